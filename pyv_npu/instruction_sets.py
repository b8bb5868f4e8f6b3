"""Instruction sets for tools that read or write code without running it, and programs from assembly text."""

from collections.abc import Sequence

from npu_device.abi.instructions import CUSTOM_INSTRUCTIONS, match_mask
from pyv_ext.elf import Program, parse_elf
from pyv_ext.isa import Isa
from pyv_ext.isa.instruction_set import complete
from pyv_ext.protocols import CustomInstruction
from pyv_npu.config.tree import CoreConfig
from toolchain.assembler.program import assemble


def every_instruction(
    slot: int = 0, march: str | None = None, more: Sequence[CustomInstruction] = (), xlen: int = 32
) -> Isa:
    """Return the instruction set `march`, or all extensions of a width of registers, with the NPU's instructions in an
    opcode slot, and `more`.

    PyvExtError for an unknown extension or overlapping encodings.
    """
    custom = [
        CustomInstruction(row.name.lower(), *match_mask(row, slot), row.syntax, handler=lambda operands: 0)
        for row in CUSTOM_INSTRUCTIONS
    ]
    return Isa(march or complete(xlen), [*custom, *more])


def assemble_for(
    text: str, core: CoreConfig, more: Sequence[CustomInstruction] = (), name: str = "program.s"
) -> Program:
    """Assemble a program for the instruction set and opcode slot of a core. ToolchainError names the wrong line."""
    return parse_elf(assemble(text, every_instruction(core.custom_slot, core.isa, more), name).elf, name)
