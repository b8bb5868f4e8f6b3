"""Zba: address generation (RISC-V bit-manipulation extensions, version 1.0)."""

from pyv_ext.isa.formats import R
from pyv_ext.isa.row import op

ROWS = (
    op("sh1add", R, "0010000 ----- ----- 010 ----- 0110011", "((a << 1) + b) & M"),
    op("sh2add", R, "0010000 ----- ----- 100 ----- 0110011", "((a << 2) + b) & M"),
    op("sh3add", R, "0010000 ----- ----- 110 ----- 0110011", "((a << 3) + b) & M"),
)
