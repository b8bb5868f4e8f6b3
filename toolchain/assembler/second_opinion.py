"""Instruction words of the package riscv-assembler 1.2, an independent assembler.

It checks register, immediate and load instructions, branches and jumps of RV32IM. The other instructions are excluded:
it encodes wrong offset bits in stores, srai as srli, and 33 bits in lui and auipc, and it lacks ecall, CSRs, fences and
compressed instructions.
"""

from importlib import import_module

from pyv_ext.isa.row import Instruction
from toolchain.errors import require_extra

_WRONG = ("srai", "ecall", "ebreak", "fence", "fence.i")


class SecondOpinion:
    """Cross-check of encodings by riscv-assembler. MissingExtraError: the package is not installed."""

    def __init__(self) -> None:
        with require_extra("assembler", "--check"):
            self._tables = import_module("riscv_assembler.instr_arr")

    def word(self, instruction: Instruction | None) -> int | None:
        """Return the word of an instruction; None for an instruction that is not checked."""
        tables = self._tables
        if instruction is None or instruction.length != 4 or instruction.name in _WRONG:
            return None
        rd, rs1, rs2 = (f"x{number}" for number in (instruction.rd, instruction.rs1, instruction.rs2))
        if instruction.name in tables.R_instr:
            bits = tables.R(instruction.name, rs1, rs2, rd)
        elif instruction.name in tables.I_instr:
            bits = tables.I(instruction.name, rs1, instruction.imm, rd)
        elif instruction.name in tables.SB_instr:
            bits = tables.SB(instruction.name, rs1, rs2, instruction.imm)
        elif instruction.name in tables.UJ_instr:
            bits = tables.UJ(instruction.name, instruction.imm, rd)
        else:
            return None
        return int(bits, 2)
