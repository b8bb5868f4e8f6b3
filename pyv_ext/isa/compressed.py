"""C: compressed instructions of RV32 and RV64 without floating point (RISC-V unprivileged manual, version 2.0).

Each is an instruction of the base set in a shorter encoding, with the meaning of its row there. Hints, such as
c.nop, execute as no-operations.
"""

from pyv_ext.isa import formats
from pyv_ext.isa.integer import BASE
from pyv_ext.isa.row import InstructionDef, alias

_BASE = {row.name: row for row in BASE}


def _shift(name: str, format: formats.Format, bits: str) -> tuple[InstructionDef, InstructionDef]:
    """Return a shift of both widths; `{}` is the highest bit of its count, which is 0 with 32-bit registers."""
    base = _BASE[name.removeprefix("c.")]
    return alias(name, base, format, bits.format("0"), xlen=32), alias(name, base, format, bits.format("-"), xlen=64)


ROWS = (
    alias("c.addi4spn", _BASE["addi"], formats.CIW, "000 -------- --- 00", "imm"),
    alias("c.lw", _BASE["lw"], formats.CL, "010 --- --- -- --- 00"),
    alias("c.ld", _BASE["ld"], formats.CL_D, "011 --- --- -- --- 00"),
    alias("c.sw", _BASE["sw"], formats.CS, "110 --- --- -- --- 00"),
    alias("c.sd", _BASE["sd"], formats.CS_D, "111 --- --- -- --- 00"),
    alias("c.addi", _BASE["addi"], formats.CI, "000 - ----- ----- 01"),
    alias("c.jal", _BASE["jal"], formats.CJ_LINK, "001 ----------- 01", xlen=32),
    alias("c.addiw", _BASE["addiw"], formats.CI, "001 - ----- ----- 01", "rd"),
    alias("c.li", _BASE["addi"], formats.CI_LI, "010 - ----- ----- 01"),
    alias("c.addi16sp", _BASE["addi"], formats.CI_SP, "011 - 00010 ----- 01", "imm"),
    alias("c.lui", _BASE["lui"], formats.CI_LUI, "011 - ----- ----- 01", "imm"),
    *_shift("c.srli", formats.CB_SHIFT, "100 {} 00 --- ----- 01"),
    *_shift("c.srai", formats.CB_SHIFT, "100 {} 01 --- ----- 01"),
    alias("c.andi", _BASE["andi"], formats.CB_IMM, "100 - 10 --- ----- 01"),
    alias("c.sub", _BASE["sub"], formats.CA, "100 0 11 --- 00 --- 01"),
    alias("c.xor", _BASE["xor"], formats.CA, "100 0 11 --- 01 --- 01"),
    alias("c.or", _BASE["or"], formats.CA, "100 0 11 --- 10 --- 01"),
    alias("c.and", _BASE["and"], formats.CA, "100 0 11 --- 11 --- 01"),
    alias("c.subw", _BASE["subw"], formats.CA, "100 1 11 --- 00 --- 01"),
    alias("c.addw", _BASE["addw"], formats.CA, "100 1 11 --- 01 --- 01"),
    alias("c.j", _BASE["jal"], formats.CJ, "101 ----------- 01"),
    alias("c.beqz", _BASE["beq"], formats.CB, "110 --- --- ----- 01"),
    alias("c.bnez", _BASE["bne"], formats.CB, "111 --- --- ----- 01"),
    *_shift("c.slli", formats.CI_SHIFT, "000 {} ----- ----- 10"),
    alias("c.lwsp", _BASE["lw"], formats.CI_LWSP, "010 - ----- ----- 10", "rd"),
    alias("c.ldsp", _BASE["ld"], formats.CI_LDSP, "011 - ----- ----- 10", "rd"),
    alias("c.jr", _BASE["jalr"], formats.CR_JUMP, "100 0 ----- 00000 10", "rs1"),
    alias("c.mv", _BASE["add"], formats.CR_MOVE, "100 0 ----- ----- 10", "rs2"),
    alias("c.ebreak", _BASE["ebreak"], formats.NONE, "100 1 00000 00000 10"),
    alias("c.jalr", _BASE["jalr"], formats.CR_LINK, "100 1 ----- 00000 10", "rs1"),
    alias("c.add", _BASE["add"], formats.CR_ADD, "100 1 ----- ----- 10", "rs2"),
    alias("c.swsp", _BASE["sw"], formats.CSS, "110 ------ ----- 10"),
    alias("c.sdsp", _BASE["sd"], formats.CSS_D, "111 ------ ----- 10"),
)
