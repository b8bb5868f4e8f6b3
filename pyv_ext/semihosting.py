"""The end of a program by semihosting (RISC-V Semihosting 0.4; Arm semihosting, SYS_EXIT and SYS_EXIT_EXTENDED).

A call is three instructions that do nothing else: slli zero,zero,31; ebreak; srai zero,zero,7, with the operation in
a0 and its parameter in a1. Operations other than the end of the program find no host: their ebreak traps.
"""

from collections.abc import Callable, Iterator
from typing import Protocol

from pyv_ext.bus import Bus
from pyv_ext.elf import Program
from pyv_ext.hart import Hart

_MAGIC = b"".join(word.to_bytes(4, "little") for word in (0x01F0_1013, 0x0010_0073, 0x4070_5013))
_A0, _A1 = 10, 11
SYS_EXIT, SYS_EXIT_EXTENDED = 0x18, 0x20
APPLICATION_EXIT = 0x2_0026
"""The reason ADP_Stopped_ApplicationExit; any other is a failure."""


class Hooked(Protocol):
    """What is needed of an engine."""

    def add_hook(self, pc: int, hook: Callable[[Hart], None]) -> None: ...


def calls(program: Program) -> Iterator[int]:
    """The address of each semihosting call of a program."""
    for segment in program.segments:
        at = segment.data.find(_MAGIC) if segment.executable else -1
        while at >= 0:
            yield segment.address + at
            at = segment.data.find(_MAGIC, at + 4)


def attach(program: Program, engine: Hooked, bus: Bus, on_exit: Callable[[int], None]) -> None:
    """Let the calls of a program that end it end the run."""

    def call(hart: Hart) -> None:
        operation, parameter = int(hart.x[_A0]), int(hart.x[_A1])
        if operation == SYS_EXIT:
            on_exit(0 if parameter == APPLICATION_EXIT else 1)
        elif operation == SYS_EXIT_EXTENDED:
            block = bus.peek(parameter, 8)
            if block is not None:
                reason, code = (int.from_bytes(block[at : at + 4], "little") for at in (0, 4))
                on_exit(code if reason == APPLICATION_EXIT else 1)

    for pc in calls(program):
        engine.add_hook(pc, call)
