"""A compiled model as a program that the platform loads."""

from dataclasses import replace

from pyv_ext.elf import Program, parse_elf
from toolchain.compiler import Compiled
from toolchain.program_image import WEIGHTS, weights_file


def loaded(elf: bytes, compiled: Compiled, name: str) -> Program:
    """The image of a model under a name, with the constants that the core does not see beside it."""
    program = parse_elf(elf, name)
    return replace(program, beside={WEIGHTS: weights_file(compiled)}) if compiled.memory.beyond else program
