"""C: compressed instructions of RV32 and RV64 without floating point (RISC-V unprivileged manual, version 2.0).

Each is an instruction of the base set in a shorter encoding, with the meaning of its row there. Hints, such as
c.nop, execute as no-operations.
"""

from pyv_ext.isa.formats import (
    CA,
    CB,
    CB_IMM,
    CB_SHIFT,
    CI,
    CI_LDSP,
    CI_LI,
    CI_LUI,
    CI_LWSP,
    CI_SHIFT,
    CI_SP,
    CIW,
    CJ,
    CJ_LINK,
    CL,
    CL_D,
    CR_ADD,
    CR_JUMP,
    CR_LINK,
    CR_MOVE,
    CS,
    CS_D,
    CSS,
    CSS_D,
    NONE,
    Format,
)
from pyv_ext.isa.integer import BASE
from pyv_ext.isa.row import InstructionDef, alias

_BASE = {row.name: row for row in BASE}


def _shift(name: str, format: Format, bits: str) -> tuple[InstructionDef, InstructionDef]:
    """Return a shift of both widths; `{}` is the highest bit of its count, which is 0 with 32-bit registers."""
    base = _BASE[name.removeprefix("c.")]
    return alias(name, base, format, bits.format("0"), xlen=32), alias(name, base, format, bits.format("-"), xlen=64)


ROWS = (
    alias("c.addi4spn", _BASE["addi"], CIW, "000 -------- --- 00", "imm"),
    alias("c.lw", _BASE["lw"], CL, "010 --- --- -- --- 00"),
    alias("c.ld", _BASE["ld"], CL_D, "011 --- --- -- --- 00"),
    alias("c.sw", _BASE["sw"], CS, "110 --- --- -- --- 00"),
    alias("c.sd", _BASE["sd"], CS_D, "111 --- --- -- --- 00"),
    alias("c.addi", _BASE["addi"], CI, "000 - ----- ----- 01"),
    alias("c.jal", _BASE["jal"], CJ_LINK, "001 ----------- 01", xlen=32),
    alias("c.addiw", _BASE["addiw"], CI, "001 - ----- ----- 01", "rd"),
    alias("c.li", _BASE["addi"], CI_LI, "010 - ----- ----- 01"),
    alias("c.addi16sp", _BASE["addi"], CI_SP, "011 - 00010 ----- 01", "imm"),
    alias("c.lui", _BASE["lui"], CI_LUI, "011 - ----- ----- 01", "imm"),
    *_shift("c.srli", CB_SHIFT, "100 {} 00 --- ----- 01"),
    *_shift("c.srai", CB_SHIFT, "100 {} 01 --- ----- 01"),
    alias("c.andi", _BASE["andi"], CB_IMM, "100 - 10 --- ----- 01"),
    alias("c.sub", _BASE["sub"], CA, "100 0 11 --- 00 --- 01"),
    alias("c.xor", _BASE["xor"], CA, "100 0 11 --- 01 --- 01"),
    alias("c.or", _BASE["or"], CA, "100 0 11 --- 10 --- 01"),
    alias("c.and", _BASE["and"], CA, "100 0 11 --- 11 --- 01"),
    alias("c.subw", _BASE["subw"], CA, "100 1 11 --- 00 --- 01"),
    alias("c.addw", _BASE["addw"], CA, "100 1 11 --- 01 --- 01"),
    alias("c.j", _BASE["jal"], CJ, "101 ----------- 01"),
    alias("c.beqz", _BASE["beq"], CB, "110 --- --- ----- 01"),
    alias("c.bnez", _BASE["bne"], CB, "111 --- --- ----- 01"),
    *_shift("c.slli", CI_SHIFT, "000 {} ----- ----- 10"),
    alias("c.lwsp", _BASE["lw"], CI_LWSP, "010 - ----- ----- 10", "rd"),
    alias("c.ldsp", _BASE["ld"], CI_LDSP, "011 - ----- ----- 10", "rd"),
    alias("c.jr", _BASE["jalr"], CR_JUMP, "100 0 ----- 00000 10", "rs1"),
    alias("c.mv", _BASE["add"], CR_MOVE, "100 0 ----- ----- 10", "rs2"),
    alias("c.ebreak", _BASE["ebreak"], NONE, "100 1 00000 00000 10"),
    alias("c.jalr", _BASE["jalr"], CR_LINK, "100 1 ----- 00000 10", "rs1"),
    alias("c.add", _BASE["add"], CR_ADD, "100 1 ----- ----- 10", "rs2"),
    alias("c.swsp", _BASE["sw"], CSS, "110 ------ ----- 10"),
    alias("c.sdsp", _BASE["sd"], CSS_D, "111 ------ ----- 10"),
)
