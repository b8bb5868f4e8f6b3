"""Zicsr: control and status register instructions (RISC-V unprivileged manual, version 2.0)."""

from pyv_ext.isa.formats import CSR, CSR_I
from pyv_ext.isa.row import Kind, Row

ROWS = (
    Row("csrrw", CSR, "------------ ----- 001 ----- 1110011", Kind.CSR_WRITE, "csr", "a & M"),
    Row("csrrs", CSR, "------------ ----- 010 ----- 1110011", Kind.CSR_UPDATE, "csr", "(old | a) & M"),
    Row("csrrc", CSR, "------------ ----- 011 ----- 1110011", Kind.CSR_UPDATE, "csr", "(old & ~a) & M"),
    Row("csrrwi", CSR_I, "------------ ----- 101 ----- 1110011", Kind.CSR_WRITE, "csr", "b & M"),
    Row("csrrsi", CSR_I, "------------ ----- 110 ----- 1110011", Kind.CSR_UPDATE, "csr", "(old | b) & M"),
    Row("csrrci", CSR_I, "------------ ----- 111 ----- 1110011", Kind.CSR_UPDATE, "csr", "(old & ~b) & M"),
)
