"""The instruction table (docs/core-timing.md, "Engines").

One file per extension holds its rows; `Isa` makes decoder, encoder and disassembler from the chosen ones.
"""

from pyv_ext.isa.instruction_set import EXTENSIONS, Isa
from pyv_ext.isa.row import Instruction, Kind, Row

__all__ = ["EXTENSIONS", "Instruction", "Isa", "Kind", "Row"]
