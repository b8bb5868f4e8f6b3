"""Custom instructions and accesses of device CSRs in native code, which calls their handlers and devices, and resumes
with the results. A device must have native code; the handler of another instruction must not access devices."""

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from pyv_ext.engines.steps import trap_or_wait
from pyv_ext.isa import Instruction, OpClass
from pyv_ext.machine.slots import SINK
from pyv_ext.machine.state import MAX_CALLS, PYTHON_CALL, READ, SUBMIT, WRITE
from pyv_ext.protocols import Operands, Retry, Stall, Trap, Value
from pyv_native.intrinsics import i32
from pyv_native.state import WORD32

if TYPE_CHECKING:
    from pyv_ext.engines.engine import Engine

LEAVE = -1
"""Result of a call that `CustomCalls.finish` has to finish."""
MAX_CYCLES = 1 << 29
"""Maximum cycles of an instruction in native code."""

Call = Callable[[int, int, int], int]
"""`call(cycle of its effect, rs1, rs2) -> cycles beyond its issue << 32 | 32 bits of rd, which has their sign`, or a
negative number: then `CustomCalls.finish` has to finish it."""


class CustomCalls:
    """Calls of one hart's custom instructions, by the indices that entries hold."""

    def __init__(self, core: "Engine", execute_slow: Callable[[], object]) -> None:
        """`execute_slow()`: executes the instruction at the hart's pc."""
        self._core = core
        self._indices: dict[tuple[int, int], int] = {}
        self._calls: dict[int, Call] = {}
        """Calls of handlers."""
        self.delays = memoryview(bytearray(8 * MAX_CALLS)).cast("Q")
        """Cycles from the begin of each instruction to that of its effect, the last of its issue."""
        self.execute_slow = execute_slow
        self.finish: Callable[[], object] = int
        """Finishes the instruction at which native code has exited: a trap, a wait."""

    def call(self, index: int, acts: int, a: int, b: int) -> int:
        """Execute `pyv_ext.machine.hart.call_custom`."""
        return self._calls[index](acts, a, b)

    def index_of(self, pc: int, instruction: Instruction) -> int | None:
        """Return the index of an instruction's call; None if it takes the slow path."""
        word = instruction.word
        index = self._indices.get((pc, word), len(self._indices))
        if index < len(self._indices):
            return index
        if index == MAX_CALLS or instruction.length != 4:
            return None
        call = self._python_call(pc, instruction)
        device = (PYTHON_CALL, 0, 0, False) if call is not None else self._device_call(instruction)
        if device is None:
            return None
        if call is not None:
            self._calls[index] = call
        self._indices[pc, word] = index
        self.delays[index] = instruction.row.issue_cycles(self._core.hart.timing) - 1
        record = self._core.bus.clock.machine.device_calls[index]
        record.kind, record.device_id, record.addr, record.stable = device
        return index

    def _python_call(self, pc: int, instruction: Instruction) -> Call | None:
        """Return the call of a handler that accesses no device; None for any other instruction."""
        custom = instruction.row.custom
        if instruction.row.op_class is not OpClass.CUSTOM or custom is None or custom.handler is None:
            return None
        if custom.touches == "devices" or custom.ready is not None:
            return None
        return _call(self._core, pc, instruction, custom.handler, self)

    def _device_call(self, instruction: Instruction) -> tuple[int, int, int, bool] | None:
        """Return the fields of `DeviceCall` for an instruction whose device may have native code; None for others."""
        custom, clock = instruction.row.custom, self._core.bus.clock
        if instruction.row.op_class is OpClass.CUSTOM:
            index = clock.index_of(custom.device) if custom is not None and custom.submits else None
            return None if index is None else (SUBMIT, index, 0, False)
        window = self._core.hart.csrs.windows.get(instruction.csr)
        offset, stable = getattr(window, "offset", None), getattr(window, "stable", None)
        index = clock.index_of(getattr(window, "device", None))
        if offset is None or index is None:
            return None
        if instruction.writes_csr:
            stores = instruction.name == "csrrw" and not instruction.rd
            return (WRITE, index, offset(instruction.csr), False) if stores else None
        return READ, index, offset(instruction.csr), stable is not None and stable(instruction.csr)


def _call(
    core: "Engine", pc: int, instruction: Instruction, handler: Callable[[Operands], Any], calls: CustomCalls
) -> Call:
    """Create the call of an instruction; a handler reads memory as of the last cycle of its issue."""
    word, mask = instruction.word, core.isa.mask
    clock, peek = core.bus.clock, core.peek
    looks = instruction.row.custom is not None and instruction.row.custom.touches == "memory"

    def call(acts: int, a: int, b: int) -> int:
        if looks and clock.next <= acts:
            calls.finish = calls.execute_slow
            return LEAVE
        outcome = handler(Operands(pc, word, a, b, acts, peek, False))
        if isinstance(outcome, Trap | Stall | Retry):
            calls.finish = partial(trap_or_wait, core, outcome, core.hart.cycle, acts)
            return LEAVE
        value, cycles = outcome if isinstance(outcome, Value) else (int(outcome), 0)
        if 0 <= cycles < MAX_CYCLES and not (value ^ i32(value)) & mask:
            return cycles << 32 | value & WORD32
        total = instruction.row.issue_cycles(core.hart.timing) + cycles
        calls.finish = partial(_retire, core, instruction, value & mask, total)
        return LEAVE

    return call


def _retire(core: "Engine", instruction: Instruction, value: int, cycles: int) -> None:
    hart = core.hart
    hart.x[instruction.rd or SINK] = value
    hart.pc = hart.pc + instruction.length & core.isa.mask
    hart.cycle += cycles
    hart.instret += 1
