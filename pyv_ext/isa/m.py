"""M: integer multiplication and division (RISC-V unprivileged manual, version 2.0)."""

from pyv_ext.isa.formats import R
from pyv_ext.isa.row import op

ROWS = (
    op("mul", R, "0000001 ----- ----- 000 ----- 0110011", "(a * b) & M", "mul"),
    op("mulh", R, "0000001 ----- ----- 001 ----- 0110011", "(S(a) * S(b) >> XLEN) & M", "mul"),
    op("mulhsu", R, "0000001 ----- ----- 010 ----- 0110011", "(S(a) * b >> XLEN) & M", "mul"),
    op("mulhu", R, "0000001 ----- ----- 011 ----- 0110011", "(a * b >> XLEN) & M", "mul"),
    op("div", R, "0000001 ----- ----- 100 ----- 0110011", "QUOT(S(a), S(b)) & M", "div"),
    op("divu", R, "0000001 ----- ----- 101 ----- 0110011", "QUOT(a, b) & M", "div"),
    op("rem", R, "0000001 ----- ----- 110 ----- 0110011", "REM(S(a), S(b)) & M", "div"),
    op("remu", R, "0000001 ----- ----- 111 ----- 0110011", "REM(a, b) & M", "div"),
)
