"""Machine-mode instructions, present in every hart (RISC-V privileged manual, version 1.12)."""

from pyv_ext.isa.formats import NONE
from pyv_ext.isa.row import Kind, Row

ROWS = (
    Row("mret", NONE, "001100000010 00000 000 00000 1110011", Kind.MRET, "jump"),
    Row("wfi", NONE, "000100000101 00000 000 00000 1110011", Kind.WFI, "wfi"),
)
