"""Code generation from layers to descriptors, extended blocks and a DRAM layout."""

from toolchain.codegen.commands import Command, Target
from toolchain.codegen.generate import GRANULARITIES, generate
from toolchain.codegen.memory import DramMap, place

__all__ = ["GRANULARITIES", "Command", "DramMap", "Target", "generate", "place"]
