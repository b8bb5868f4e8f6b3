"""Bit manipulation (RISC-V bit-manipulation extensions, version 1.0).

Zba generates addresses, Zbb has the basic operations, Zbc multiplies without carries, Zbs works on single bits.
"""

from pyv_ext.isa.formats import SHIFT, UNARY, R
from pyv_ext.isa.row import op

ZBA = (
    op("sh1add", R, "0010000 ----- ----- 010 ----- 0110011", "((a << 1) + b) & M"),
    op("sh2add", R, "0010000 ----- ----- 100 ----- 0110011", "((a << 2) + b) & M"),
    op("sh3add", R, "0010000 ----- ----- 110 ----- 0110011", "((a << 3) + b) & M"),
)


ZBB = (
    op("andn", R, "0100000 ----- ----- 111 ----- 0110011", "(a & ~b) & M"),
    op("orn", R, "0100000 ----- ----- 110 ----- 0110011", "(a | ~b) & M"),
    op("xnor", R, "0100000 ----- ----- 100 ----- 0110011", "~(a ^ b) & M"),
    op("clz", UNARY, "0110000 00000 ----- 001 ----- 0010011", "CLZ(a) & M"),
    op("ctz", UNARY, "0110000 00001 ----- 001 ----- 0010011", "CTZ(a) & M"),
    op("cpop", UNARY, "0110000 00010 ----- 001 ----- 0010011", "CPOP(a) & M"),
    op("max", R, "0000101 ----- ----- 110 ----- 0110011", "(a if S(a) > S(b) else b) & M"),
    op("maxu", R, "0000101 ----- ----- 111 ----- 0110011", "(a if a > b else b) & M"),
    op("min", R, "0000101 ----- ----- 100 ----- 0110011", "(a if S(a) < S(b) else b) & M"),
    op("minu", R, "0000101 ----- ----- 101 ----- 0110011", "(a if a < b else b) & M"),
    op("sext.b", UNARY, "0110000 00100 ----- 001 ----- 0010011", "((a & 0xFF ^ 0x80) - 0x80) & M"),
    op("sext.h", UNARY, "0110000 00101 ----- 001 ----- 0010011", "((a & 0xFFFF ^ 0x8000) - 0x8000) & M"),
    op("zext.h", UNARY, "0000100 00000 ----- 100 ----- 0110011", "a & 0xFFFF & M"),
    op("rol", R, "0110000 ----- ----- 001 ----- 0110011", "(a << (b & SHIFT) | a >> (-b & SHIFT)) & M"),
    op("ror", R, "0110000 ----- ----- 101 ----- 0110011", "(a >> (b & SHIFT) | a << (-b & SHIFT)) & M"),
    op("rori", SHIFT, "0110000 ----- ----- 101 ----- 0010011", "(a >> (b & SHIFT) | a << (-b & SHIFT)) & M"),
    # A byte that is not zero carries into, or has, its top bit.
    op(
        "orc.b",
        UNARY,
        "0010100 00111 ----- 101 ----- 0010011",
        "(((a & 127 * BYTES) + 127 * BYTES | a) >> 7 & BYTES) * 255 & M",
    ),
    op("rev8", UNARY, "0110100 11000 ----- 101 ----- 0010011", "BSWAP(a) & M"),
)


_PRODUCT = " ^ ".join(f"(a & {1 << bit}) * b" for bit in range(32))
"""One shifted b for each bit of a, added without carries."""

ZBC = (
    op("clmul", R, "0000101 ----- ----- 001 ----- 0110011", f"({_PRODUCT}) & M", "mul"),
    op("clmulh", R, "0000101 ----- ----- 011 ----- 0110011", f"(({_PRODUCT}) >> XLEN) & M", "mul"),
    op("clmulr", R, "0000101 ----- ----- 010 ----- 0110011", f"(({_PRODUCT}) >> SHIFT) & M", "mul"),
)


ZBS = (
    op("bclr", R, "0100100 ----- ----- 001 ----- 0110011", "(a & ~(1 << (b & SHIFT))) & M"),
    op("bclri", SHIFT, "0100100 ----- ----- 001 ----- 0010011", "(a & ~(1 << (b & SHIFT))) & M"),
    op("bext", R, "0100100 ----- ----- 101 ----- 0110011", "(a >> (b & SHIFT)) & 1 & M"),
    op("bexti", SHIFT, "0100100 ----- ----- 101 ----- 0010011", "(a >> (b & SHIFT)) & 1 & M"),
    op("binv", R, "0110100 ----- ----- 001 ----- 0110011", "(a ^ 1 << (b & SHIFT)) & M"),
    op("binvi", SHIFT, "0110100 ----- ----- 001 ----- 0010011", "(a ^ 1 << (b & SHIFT)) & M"),
    op("bset", R, "0010100 ----- ----- 001 ----- 0110011", "(a | 1 << (b & SHIFT)) & M"),
    op("bseti", SHIFT, "0010100 ----- ----- 001 ----- 0010011", "(a | 1 << (b & SHIFT)) & M"),
)
