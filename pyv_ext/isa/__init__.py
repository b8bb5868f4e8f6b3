"""Instruction table, from which decoder, disassembler, assembler and engines are made.

`Isa` holds the rows of the chosen extensions.
"""

from pyv_ext.isa.instruction_set import EXTENSIONS, Isa
from pyv_ext.isa.row import Instruction, Kind, Row

__all__ = ["EXTENSIONS", "Instruction", "Isa", "Kind", "Row"]
