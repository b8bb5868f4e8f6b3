"""Instruction table, from which decoder, disassembler, assembler and engines are generated.

`Isa` holds the rows of the chosen extensions.
"""

from pyv_ext.isa.instruction_set import EXTENSIONS, Isa
from pyv_ext.isa.row import Instruction, InstructionDef, OpClass

__all__ = ["EXTENSIONS", "Instruction", "InstructionDef", "Isa", "OpClass"]
