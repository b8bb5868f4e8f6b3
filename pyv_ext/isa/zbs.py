"""Zbs: single-bit instructions (RISC-V bit-manipulation extensions, version 1.0)."""

from pyv_ext.isa.formats import SHIFT, R
from pyv_ext.isa.row import op

ROWS = (
    op("bclr", R, "0100100 ----- ----- 001 ----- 0110011", "(a & ~(1 << (b & SHIFT))) & M"),
    op("bclri", SHIFT, "0100100 ----- ----- 001 ----- 0010011", "(a & ~(1 << (b & SHIFT))) & M"),
    op("bext", R, "0100100 ----- ----- 101 ----- 0110011", "(a >> (b & SHIFT)) & 1 & M"),
    op("bexti", SHIFT, "0100100 ----- ----- 101 ----- 0010011", "(a >> (b & SHIFT)) & 1 & M"),
    op("binv", R, "0110100 ----- ----- 001 ----- 0110011", "(a ^ 1 << (b & SHIFT)) & M"),
    op("binvi", SHIFT, "0110100 ----- ----- 001 ----- 0010011", "(a ^ 1 << (b & SHIFT)) & M"),
    op("bset", R, "0010100 ----- ----- 001 ----- 0110011", "(a | 1 << (b & SHIFT)) & M"),
    op("bseti", SHIFT, "0010100 ----- ----- 001 ----- 0010011", "(a | 1 << (b & SHIFT)) & M"),
)
