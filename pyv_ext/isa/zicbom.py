"""Zicbom: cache-block management (RISC-V base cache management operations, version 1.0)."""

from pyv_ext.isa.formats import CBO
from pyv_ext.isa.row import Kind, Row

ROWS = tuple(
    Row(name, CBO, f"{selector} ----- 010 00000 0001111", Kind.CBO, "store")
    for name, selector in (
        ("cbo.inval", "000000000000"),
        ("cbo.clean", "000000000001"),
        ("cbo.flush", "000000000010"),
    )
)
