"""Bit manipulation (RISC-V bit-manipulation extensions, version 1.0).

Zba generates addresses, Zbb has the basic operations, Zbc multiplies without carries, Zbs works on single bits.
"""

from pyv_ext.isa.formats import SHIFT, UNARY, R
from pyv_ext.isa.row import InstructionDef, op, shift

ZBA = (
    op("sh1add", R, "0010000 ----- ----- 010 ----- 0110011", "((a << 1) + b) & M"),
    op("sh2add", R, "0010000 ----- ----- 100 ----- 0110011", "((a << 2) + b) & M"),
    op("sh3add", R, "0010000 ----- ----- 110 ----- 0110011", "((a << 3) + b) & M"),
    op("add.uw", R, "0000100 ----- ----- 000 ----- 0111011", "((a & 0xFFFFFFFF) + b) & M", xlen=64),
    op("sh1add.uw", R, "0010000 ----- ----- 010 ----- 0111011", "(((a & 0xFFFFFFFF) << 1) + b) & M", xlen=64),
    op("sh2add.uw", R, "0010000 ----- ----- 100 ----- 0111011", "(((a & 0xFFFFFFFF) << 2) + b) & M", xlen=64),
    op("sh3add.uw", R, "0010000 ----- ----- 110 ----- 0111011", "(((a & 0xFFFFFFFF) << 3) + b) & M", xlen=64),
    op("slli.uw", SHIFT, "000010 ------ ----- 001 ----- 0011011", "((a & 0xFFFFFFFF) << (b & SHIFT)) & M", xlen=64),
)


_ROTATION = "W((a & 0xFFFFFFFF) {} (b & 31) | (a & 0xFFFFFFFF) {} (-b & 31))"
"""Rotation of a word, by its two shifts."""

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
    op("zext.h", UNARY, "0000100 00000 ----- 100 ----- 0110011", "a & 0xFFFF & M", xlen=32),
    op("zext.h", UNARY, "0000100 00000 ----- 100 ----- 0111011", "a & 0xFFFF & M", xlen=64),
    op("rol", R, "0110000 ----- ----- 001 ----- 0110011", "(a << (b & SHIFT) | a >> (-b & SHIFT)) & M"),
    op("ror", R, "0110000 ----- ----- 101 ----- 0110011", "(a >> (b & SHIFT) | a << (-b & SHIFT)) & M"),
    *shift("rori", "011000", "101", "(a >> (b & SHIFT) | a << (-b & SHIFT)) & M"),
    op("clzw", UNARY, "0110000 00000 ----- 001 ----- 0011011", "(CLZ(a & 0xFFFFFFFF) - 32) & M", xlen=64),
    op("ctzw", UNARY, "0110000 00001 ----- 001 ----- 0011011", "CTZ(a | 0x100000000) & M", xlen=64),
    op("cpopw", UNARY, "0110000 00010 ----- 001 ----- 0011011", "CPOP(a & 0xFFFFFFFF) & M", xlen=64),
    op("rolw", R, "0110000 ----- ----- 001 ----- 0111011", f"{_ROTATION.format('<<', '>>')} & M", xlen=64),
    op("rorw", R, "0110000 ----- ----- 101 ----- 0111011", f"{_ROTATION.format('>>', '<<')} & M", xlen=64),
    op("roriw", SHIFT, "0110000 ----- ----- 101 ----- 0011011", f"{_ROTATION.format('>>', '<<')} & M", xlen=64),
    # A byte that is not zero carries into, or has, its top bit.
    op(
        "orc.b",
        UNARY,
        "0010100 00111 ----- 101 ----- 0010011",
        "(((a & 127 * BYTES) + 127 * BYTES | a) >> 7 & BYTES) * 255 & M",
    ),
    op("rev8", UNARY, "0110100 11000 ----- 101 ----- 0010011", "BSWAP(a) & M", xlen=32),
    op("rev8", UNARY, "0110101 11000 ----- 101 ----- 0010011", "BSWAP(a) & M", xlen=64),
)


def _carryless(xlen: int) -> tuple[InstructionDef, ...]:
    product = " ^ ".join(f"(a & {1 << bit}) * b" for bit in range(xlen))  # a shifted b for each bit of a, no carries
    return (
        op("clmul", R, "0000101 ----- ----- 001 ----- 0110011", f"({product}) & M", "mul", xlen),
        op("clmulh", R, "0000101 ----- ----- 011 ----- 0110011", f"(({product}) >> XLEN) & M", "mul", xlen),
        op("clmulr", R, "0000101 ----- ----- 010 ----- 0110011", f"(({product}) >> SHIFT) & M", "mul", xlen),
    )


ZBC = (*_carryless(32), *_carryless(64))


ZBS = (
    op("bclr", R, "0100100 ----- ----- 001 ----- 0110011", "(a & ~(1 << (b & SHIFT))) & M"),
    *shift("bclri", "010010", "001", "(a & ~(1 << (b & SHIFT))) & M"),
    op("bext", R, "0100100 ----- ----- 101 ----- 0110011", "(a >> (b & SHIFT)) & 1 & M"),
    *shift("bexti", "010010", "101", "(a >> (b & SHIFT)) & 1 & M"),
    op("binv", R, "0110100 ----- ----- 001 ----- 0110011", "(a ^ 1 << (b & SHIFT)) & M"),
    *shift("binvi", "011010", "001", "(a ^ 1 << (b & SHIFT)) & M"),
    op("bset", R, "0010100 ----- ----- 001 ----- 0110011", "(a | 1 << (b & SHIFT)) & M"),
    *shift("bseti", "001010", "001", "(a | 1 << (b & SHIFT)) & M"),
)
