"""Zifencei: instruction-fetch fence (RISC-V unprivileged manual, version 2.0)."""

from pyv_ext.isa.formats import NONE
from pyv_ext.isa.row import Kind, Row

ROWS = (
    # Its imm, rs1 and rd fields are reserved and must be ignored.
    Row("fence.i", NONE, "------------ ----- 001 ----- 0001111", Kind.FENCE_I, "fence"),
)
