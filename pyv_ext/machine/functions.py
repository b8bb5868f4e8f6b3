"""The functions of clock, bus and core log for Python, and the machine that they act on."""

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

from pyv_ext.hart import slots
from pyv_ext.machine import bus, log
from pyv_ext.machine.state import LOG, REGISTERS, SUBMIT_FUNCTIONS, Machine
from pyv_native.arena import Arena
from pyv_native.emitter import Definition
from pyv_native.module import Linkage, NativeModule, interpreted
from pyv_native.records import WORD, layout

CHECKED = False
"""Whether modules are checked builds, as tests have them."""
FUNCTIONS: tuple[Definition, ...] = (
    bus.load, bus.store, bus.load_hart, bus.store_hart, bus.advance, bus.settle, bus.find_next, bus.proceed,
    bus.wait_for_interrupt, log.log_cycles, log.log_trap, log.log_mret, log.mark,
)  # fmt: skip
LINKAGE = Linkage(
    bus.find_register,
    bus.read_device,
    bus.write_device,
    bus.advance_device,
    bus.serve_uart,
    log.read_log,
    log.mark_return,
)

Callbacks = Mapping[Definition, Callable[..., int]]


@cache
def _module(checked: bool) -> NativeModule:
    return NativeModule(FUNCTIONS, Machine, linkage=LINKAGE, checked=checked)


class MachineState:
    """One machine's records, and its functions for Python: `call[function](arena, *arguments)`.

    CPython executes them until they are compiled: a short program does not wait for that.
    """

    def __init__(self, callbacks: Callbacks) -> None:
        self.arena = Arena(Machine)
        self.machine: Any = self.arena.root
        """The view of the root record."""
        self.machine.registers.resize(REGISTERS)
        self.machine.calls.resize(SUBMIT_FUNCTIONS)
        self.machine.log.resize(LOG)
        first = self.arena.root.offset + layout(Machine).fields["x"].offset
        self.words = self.arena.bytes[first : first + WORD * slots.WORDS].cast("Q")
        """Words of the hart."""
        self.call = {function: interpreted(function, Machine) for function in FUNCTIONS}
        LINKAGE.connect(self.arena, (), callbacks)

    def compile(self) -> None:
        """Let the functions be machine code from now on."""
        module = _module(CHECKED)
        self.call.update({function: module.entry(function) for function in FUNCTIONS})

    @staticmethod
    def address(function: Definition) -> int:
        """Address of a function's machine code."""
        return _module(CHECKED).address(function)
