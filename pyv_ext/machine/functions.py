"""Functions of clock, bus and core log for Python, and the machine that they act on."""

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

from pyv_ext.machine import accesses, bus, csr, device_calls, hart, log, pmp
from pyv_ext.machine.state import LOG, MAX_CALLS, REGISTERS, SUBMIT_FUNCTIONS, HartState, Machine
from pyv_native.arena import Arena
from pyv_native.emitter import Definition
from pyv_native.module import Linkage, NativeModule, interpreted
from pyv_native.records import layout

CHECKED = False
"""Whether modules are checked builds; tests set it."""
LINKED: tuple[Definition, ...] = (
    accesses.load, accesses.store, accesses.load_atomic, accesses.store_atomic, accesses.load_reserved,
    accesses.store_conditional, accesses.fence, accesses.log_store, bus.proceed, bus.wait_for_interrupt, csr.load_csr,
    csr.write_csr, hart.take_trap, hart.call_environment, hart.return_from_trap, hart.enter_trap,
    hart.pending_interrupt, hart.native_space, pmp.permit, pmp.guard, pmp.write_config, pmp.write_address,
    log.log_cycles, log.log_trap, log.mark, device_calls.call_device,
)  # fmt: skip
"""Functions that native code outside of the module calls, through the buffer."""
FUNCTIONS: tuple[Definition, ...] = (
    *LINKED, bus.advance, bus.update_outputs, bus.find_next, csr.permits_csr, csr.read_csr,
    hart.repeats_trap, hart.permits_wait, hart.permits_translation_fence,
    hart.permits_cache_block, pmp.allows, pmp.restricts, pmp.rights_at, pmp.next_edge, log.log_mret,
    log.log_leave, log.log_csr,
)  # fmt: skip
LINKAGE = Linkage(
    bus.find_register,
    bus.read_device,
    bus.write_device,
    bus.advance_device,
    bus.serve_uart,
    accesses.before_access,
    accesses.after_load,
    accesses.after_store,
    accesses.refuse_access,
    log.read_log,
    log.mark_return,
    hart.execute_instruction,
    hart.call_custom,
    hart.find_space,
    *LINKED,
)

Callbacks = Mapping[Definition, Callable[..., int]]


@cache
def _module(checked: bool) -> NativeModule:
    return NativeModule(FUNCTIONS, Machine, linkage=LINKAGE, checked=checked)


class MachineState:
    """Records of one machine, and its functions for Python: `call[function](arena, *arguments)`.

    CPython executes them until they are compiled, so that a short program avoids the compile time.
    """

    def __init__(self, callbacks: Callbacks) -> None:
        self.arena = Arena(Machine, {"log": LOG})
        self.machine: Any = self.arena.root
        """The view of the root record."""
        self.machine.registers.resize(REGISTERS)
        self.machine.device_calls.resize(MAX_CALLS)
        self.machine.calls.resize(SUBMIT_FUNCTIONS)
        self.machine.log.resize(LOG)
        first = self.arena.root.offset + layout(Machine).fields["hart"].offset
        self.words = self.arena.bytes[first : first + layout(HartState).size].cast("Q")
        """Words of the hart."""
        self.call = {function: interpreted(function, Machine) for function in FUNCTIONS}
        for declaration, call in callbacks.items():
            self.link(declaration, call)

    def link(self, declaration: Definition, call: Callable[..., int]) -> None:
        """Bind a callback to a Python function."""
        self.arena.link_callback(LINKAGE.slots[declaration], declaration, call)

    def execute(self, function: Definition, *arguments: int) -> int:
        """Call a function."""
        return self.call[function](self.arena, *arguments)

    def compile(self) -> None:
        """Compile the functions to machine code."""
        module = _module(CHECKED)
        self.call.update({function: module.entry(function) for function in FUNCTIONS})
        for function in LINKED:
            self.arena.link(LINKAGE.slots[function], module.address(function), module)
