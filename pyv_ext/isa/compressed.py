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
from pyv_ext.isa.row import InstructionDef, short

_BASE = {row.name: row for row in BASE}


def _shift(name: str, format: Format, bits: str) -> tuple[InstructionDef, InstructionDef]:
    """Return a shift of both widths; `{}` is the highest bit of its count, which is 0 with 32-bit registers."""
    base = _BASE[name.removeprefix("c.")]
    return short(name, base, format, bits.format("0"), xlen=32), short(name, base, format, bits.format("-"), xlen=64)


ROWS = (
    short("c.addi4spn", _BASE["addi"], CIW, "000 -------- --- 00", "imm"),
    short("c.lw", _BASE["lw"], CL, "010 --- --- -- --- 00"),
    short("c.ld", _BASE["ld"], CL_D, "011 --- --- -- --- 00"),
    short("c.sw", _BASE["sw"], CS, "110 --- --- -- --- 00"),
    short("c.sd", _BASE["sd"], CS_D, "111 --- --- -- --- 00"),
    short("c.addi", _BASE["addi"], CI, "000 - ----- ----- 01"),
    short("c.jal", _BASE["jal"], CJ_LINK, "001 ----------- 01", xlen=32),
    short("c.addiw", _BASE["addiw"], CI, "001 - ----- ----- 01", "rd"),
    short("c.li", _BASE["addi"], CI_LI, "010 - ----- ----- 01"),
    short("c.addi16sp", _BASE["addi"], CI_SP, "011 - 00010 ----- 01", "imm"),
    short("c.lui", _BASE["lui"], CI_LUI, "011 - ----- ----- 01", "imm"),
    *_shift("c.srli", CB_SHIFT, "100 {} 00 --- ----- 01"),
    *_shift("c.srai", CB_SHIFT, "100 {} 01 --- ----- 01"),
    short("c.andi", _BASE["andi"], CB_IMM, "100 - 10 --- ----- 01"),
    short("c.sub", _BASE["sub"], CA, "100 0 11 --- 00 --- 01"),
    short("c.xor", _BASE["xor"], CA, "100 0 11 --- 01 --- 01"),
    short("c.or", _BASE["or"], CA, "100 0 11 --- 10 --- 01"),
    short("c.and", _BASE["and"], CA, "100 0 11 --- 11 --- 01"),
    short("c.subw", _BASE["subw"], CA, "100 1 11 --- 00 --- 01"),
    short("c.addw", _BASE["addw"], CA, "100 1 11 --- 01 --- 01"),
    short("c.j", _BASE["jal"], CJ, "101 ----------- 01"),
    short("c.beqz", _BASE["beq"], CB, "110 --- --- ----- 01"),
    short("c.bnez", _BASE["bne"], CB, "111 --- --- ----- 01"),
    *_shift("c.slli", CI_SHIFT, "000 {} ----- ----- 10"),
    short("c.lwsp", _BASE["lw"], CI_LWSP, "010 - ----- ----- 10", "rd"),
    short("c.ldsp", _BASE["ld"], CI_LDSP, "011 - ----- ----- 10", "rd"),
    short("c.jr", _BASE["jalr"], CR_JUMP, "100 0 ----- 00000 10", "rs1"),
    short("c.mv", _BASE["add"], CR_MOVE, "100 0 ----- ----- 10", "rs2"),
    short("c.ebreak", _BASE["ebreak"], NONE, "100 1 00000 00000 10"),
    short("c.jalr", _BASE["jalr"], CR_LINK, "100 1 ----- 00000 10", "rs1"),
    short("c.add", _BASE["add"], CR_ADD, "100 1 ----- ----- 10", "rs2"),
    short("c.swsp", _BASE["sw"], CSS, "110 ------ ----- 10"),
    short("c.sdsp", _BASE["sd"], CSS_D, "111 ------ ----- 10"),
)
