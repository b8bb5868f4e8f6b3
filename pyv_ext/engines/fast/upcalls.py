"""Upcalls of native code to Python: instructions of the slow path, hooks, custom instructions.

The interpreter is entered with the GIL (`ctypes.PYFUNCTYPE`). What a callback raises is raised when it has been left.
"""

from collections.abc import Callable

from pyv_ext.engines.boundary import calls
from pyv_ext.engines.boundary.frame import (
    COUNTED,
    END,
    HOOKED_AT,
    INSTRET,
    LIMIT,
    LOG,
    MODES,
    OFF,
    PC,
    PROTECTED,
    Log,
    cycle_of,
    show_counters,
)  # fmt: skip
from pyv_ext.engines.code import Code
from pyv_ext.engines.slow import Core
from pyv_ext.engines.tracer import OnBlock, Tracer
from pyv_ext.hart.slots import COUNTER_WRITES, GUARDED, MEPC, PMP_WRITES
from pyv_ext.isa import Kind
from pyv_native.arena import Guarded
from pyv_native.compiler import variable
from pyv_native.ir import Ir

SLOW, HOOK, HEARD, CALL = (f"ask_{name}" for name in ("slow", "hook", "heard", "call"))
"""`ask_slow(pc, cycle, retired, whether its hooks have been called) -> answer`: the instruction at pc is executed;
`GOING` where native code goes on at the frame's pc and cycle `END`, and whether the instruction has retired.
`ask_hook(pc, cycle, retired)`: the hooks of the instruction are called; `CALLED_HOOKS`, or the same.
`ask_heard(cause, handler, cycle, retired) -> GOING or 0`: those who listen, and the tracer, are told of an interrupt,
whose handler begins in that cycle.
`ask_call(number, cycle, rs1, rs2) -> cycles << 32 | rd` for a custom instruction (see `custom`), or below 0."""
_ARGUMENTS = {SLOW: 4, HOOK: 3, HEARD: 4, CALL: 4}

GOING = 2
CALLED_HOOKS = -3
"""Nothing else has changed, but maybe the state of the hart: native code looks at it, and executes the instruction."""

SPAN = 50_000_000
"""Cycles that native code goes on for at most, so that Ctrl-C is noticed."""


def ask(ir: Ir, name: str, *arguments: str) -> str:
    """Emit a guarded callback with i64 arguments; the i64 that it returns."""
    function, operands = ir.load("ptr", f"@{name}"), ", ".join(f"i64 {argument}" for argument in arguments)
    return ir.value(f"call i64 {function}({operands})")


def point(ir: Ir, progress: str) -> tuple[str, str]:
    """The cycle, and how many instructions have retired, by a progress."""
    done = ir.value(f"lshr i64 {progress}, 32")
    return cycle_of(ir, progress), ir.value(f"add i64 {ir.load('i64', '%frame', 8 * INSTRET)}, {done}")


class Upcalls:
    """Answers the native code of one hart."""

    def __init__(
        self,
        core: Core,
        frame: memoryview,
        words: memoryview,
        code: Code,
        slow: Callable[[bool, bool], bool],
        show_modes: Callable[[], None],
    ) -> None:
        """`words`: the signed words of the frame; `slow(True, whether its hooks have been called)` executes the
        instruction at the hart's pc, and says whether others may follow it at once; `show_modes` fills `MODES` of the
        frame."""
        self._core = core
        self._hart = core.hart
        self._x = core.hart.x
        self._bus = core.bus
        self._clock = core.bus.clock
        self._machine = core.bus.clock.machine
        self._code = code
        self._frame = frame
        self._words = words
        self._execute_slow = slow
        self._log = Log(frame)
        self._watching = core.bus.watching
        self._clock.load_observed, self._clock.store_observed = self._load, self._store
        self.calls: list[Callable[[int, int, int], int]] = []
        """Callbacks of custom instructions, by number (see `custom`)."""
        self.ended: Callable[[], object] = int
        """What ends the instruction that native code has left: a trap, a wait."""
        self._show_modes = show_modes
        words[COUNTED] = -1
        self._tracer: Tracer | None = None
        self._on_block: OnBlock | None = None
        """The tracer's, which knows of what has retired before cycle `_told`."""
        self._told = 0
        called: dict[str, Callable[..., int]] = {
            SLOW: self._slow, HOOK: self._hook, HEARD: self._heard, CALL: self._call
        }  # fmt: skip
        arena = core.bus.clock.arena
        self._guarded = {name: Guarded(arena, name, call, _ARGUMENTS[name]) for name, call in called.items()}

    @staticmethod
    def variables() -> str:
        """The IR of the pointers to what native code calls."""
        return calls.variables() + "".join(map(variable, _ARGUMENTS))

    @property
    def pointers(self) -> dict[str, int]:
        """Addresses of the variables of the IR, by name."""
        return calls.pointers() | {name: guarded.address for name, guarded in self._guarded.items()}

    def _call(self, number: int, acts: int, a: int, b: int) -> int:
        return self.calls[number](acts, a, b)

    # -- around native code ------------------------------------------------------------------------------------

    def begin(self, until: int) -> int:
        """Native code may begin now, to come to cycle `until`; the cycles that it may go on for at first."""
        hart, words, machine = self._hart, self._words, self._machine
        cycle = self._told = hart.cycle
        words[HOOKED_AT] = -1
        machine.until = min(until, cycle + SPAN)
        self._proceed()
        words[LIMIT] = machine.limit
        self._follow_tracer()
        words[PROTECTED] = self._x[PMP_WRITES]
        words[PC] = hart.pc
        words[INSTRET] = hart.instret
        if self._x[COUNTER_WRITES] != words[COUNTED]:
            self._show_counters()
        return machine.limit - cycle

    def _proceed(self) -> None:
        """Let native code go on, up to the next event."""
        self._machine.leave = False
        self._machine.limit = min(self._machine.next, self._machine.until)

    def end(self) -> None:
        """Native code has been left: the tracer is told of what has retired."""
        if self._on_block is not None:
            self._tell(self._on_block, self._hart.cycle)

    def _tell(self, on_block: OnBlock, cycle: int) -> None:
        """Tell the tracer of what has retired before a cycle."""
        if cycle > self._told:
            on_block(self._told, cycle, self._log.take())
            self._told = cycle

    def execute_slow(self) -> bool:
        """Execute the instruction at the hart's pc by the slow path; whether native code may go on."""
        hart = self._hart
        return self._slow(hart.pc, hart.cycle, hart.instret, 0) >= GOING

    def _look_at_hart(self) -> None:
        """Let native code see counters that have been written, and ask before it goes to another mode where PMP has."""
        words, x = self._words, self._x
        if x[COUNTER_WRITES] != words[COUNTED]:
            self._show_counters()
        if x[PMP_WRITES] != words[PROTECTED]:
            for word in MODES.values():
                words[word] = 0

    def restored(self) -> None:
        """The hart is in another state altogether."""
        self._words[COUNTED] = -1

    def _show_counters(self) -> None:
        self._words[COUNTED] = self._x[COUNTER_WRITES]
        show_counters(self._hart.csrs, self._frame)

    def _follow_tracer(self) -> bool:
        """Switch on the log of stores for a tracer; it and observers of the bus see every access of a device. Whether
        this is another tracer than before."""
        tracer = self._core.tracer
        changed = tracer is not self._tracer
        if changed:
            self._tracer = tracer
            self._on_block = getattr(tracer, "on_block", None)
            self._words[LOG] = OFF if self._on_block is None else self._log.first
        self._machine.observed = tracer is not None or bool(self._bus.observers)
        self._machine.guarded = bool(self._bus.guards)
        return changed

    # -- what it asks ------------------------------------------------------------------------------------------

    def _slow(self, pc: int, cycle: int, retired: int, hooked: int) -> int:
        hart, words = self._hart, self._words
        hart.pc, hart.cycle, hart.instret = pc, cycle, retired
        if self._x[PMP_WRITES] != words[PROTECTED] and not hooked and self._is_mret(pc):
            words[PROTECTED] = self._x[PMP_WRITES]
            self._show_modes()
            words[PC], words[END] = pc, cycle
            return GOING
        self._machine.fresh = False
        if self._on_block is not None:
            self._tell(self._on_block, cycle)
        going = self._execute_slow(True, bool(hooked)) and self._bus.watching is self._watching
        self._told = hart.cycle
        if self._follow_tracer():
            going = going and (self._tracer is None or self._on_block is not None)
        self._look_at_hart()
        words[PC] = hart.pc
        if going:
            self._proceed()
            words[END] = hart.cycle
            return GOING | hart.instret - retired
        words[LIMIT] = hart.cycle
        return hart.instret - retired

    def _load(self, address: int, size: int, start: int) -> int:
        self._begins(start)
        answer = self._bus.load(address, size, start)
        if answer is None:
            self._machine.fault = True
            return 0
        self._machine.cycles = answer[1]
        self._accessed(start, start + answer[1])
        return answer[0]

    def _store(self, address: int, size: int, value: int, start: int) -> int:
        self._begins(start)
        cycles = self._bus.store(address, size, value, start)
        if cycles is None:
            self._machine.fault = True
            return 0
        self._machine.cycles = cycles
        self._accessed(start, start + cycles)
        return 0

    def _begins(self, start: int) -> None:
        """An access of a device begins: the tracer is told of what comes before."""
        hart = self._hart
        hart.pc, hart.cycle = self._words[PC], start
        if self._on_block is not None:
            self._tell(self._on_block, start)

    def _accessed(self, start: int, end: int) -> None:
        """Tell the tracer of an access, which an event before it may have set."""
        tracer = self._core.tracer
        if tracer is None:
            return
        self._told, pc = end, self._hart.pc
        instruction = (self._code.decoded.get(pc) or self._code.at(pc)).instruction
        if instruction is not None:
            tracer.retire(pc, start, end, instruction)

    def _is_mret(self, pc: int) -> bool:
        decoded = self._code.decoded.get(pc)
        return decoded is not None and decoded.instruction is not None and decoded.instruction.row.kind is Kind.MRET

    def _hook(self, pc: int, cycle: int, retired: int) -> int:
        """Call the hooks of the instruction, which native code executes unless they have changed more than the tracer;
        nothing that native code has done is untold, but to the tracer."""
        core, hart, machine = self._core, self._hart, self._machine
        hart.pc, hart.cycle, hart.instret = pc, cycle, retired
        if self._on_block is not None:
            self._tell(self._on_block, cycle)
        machine.fresh = False
        changes, due, watching = machine.changes, machine.next, self._bus.watching
        for hook in tuple(self._code.hooks[pc]):
            stop = hook(hart)
            if stop is not None:
                core.stop(stop)
                self._words[PC], self._words[LIMIT] = pc, cycle
                return 0
        tracer = core.tracer
        if tracer is not None and tracer is not self._tracer and not hasattr(tracer, "on_block"):
            return self._slow(pc, cycle, retired, 1)
        if machine.changes != changes or machine.next != due or self._bus.watching is not watching or core.stopping:
            return self._slow(pc, cycle, retired, 1)
        self._follow_tracer()
        self._told = cycle
        self._proceed()
        return CALLED_HOOKS

    def _heard(self, cause: int, handler: int, end: int, retired: int) -> int:
        hart, words, x = self._hart, self._words, self._x
        start = end - hart.timing.irq
        hart.pc, hart.cycle, hart.instret = handler, start, retired
        self._machine.fresh = False
        if self._on_block is not None:
            self._tell(self._on_block, start)
        guarded = x[GUARDED]
        hart.tell_interrupt(cause)
        self._told, tracer = end, self._core.tracer
        if tracer is not None:
            tracer.trap(x[MEPC], cause, 0, start, end, True)
        self._look_at_hart()
        if x[PMP_WRITES] != words[PROTECTED] or x[GUARDED] != guarded:
            words[LIMIT] = end
            return 0
        words[END] = end
        return GOING
