"""Zbc: carry-less multiplication (RISC-V bit-manipulation extensions, version 1.0)."""

from pyv_ext.isa.formats import R
from pyv_ext.isa.row import op

_PRODUCT = " ^ ".join(f"(a & {1 << bit}) * b" for bit in range(32))
"""One shifted b for each bit of a, added without carries."""

ROWS = (
    op("clmul", R, "0000101 ----- ----- 001 ----- 0110011", f"({_PRODUCT}) & M", "mul"),
    op("clmulh", R, "0000101 ----- ----- 011 ----- 0110011", f"(({_PRODUCT}) >> XLEN) & M", "mul"),
    op("clmulr", R, "0000101 ----- ----- 010 ----- 0110011", f"(({_PRODUCT}) >> SHIFT) & M", "mul"),
)
