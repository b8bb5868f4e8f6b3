"""What native code asks Python for without being left: devices, events, instructions of the slow path.

The interpreter is entered with the GIL (`ctypes.PYFUNCTYPE`), which also raises what a called function has raised.
"""

from collections.abc import Callable
from functools import partial

from pyv_ext.bus.clock import NEVER
from pyv_ext.bus.store_queue import ARRIVAL, COUNT, FIRST
from pyv_ext.bus.window import Load, Store
from pyv_ext.engines.boundary.frame import (
    CHANGES,
    COUNTED,
    END,
    EPOCH,
    HOOKED_AT,
    INSTRET,
    LIMIT,
    LOG,
    MODES,
    NEAR,
    NEAR_NUMBERS,
    OFF,
    OTHERS,
    PC,
    PLACES,
    PROTECTED,
    SHOWN,
    TOUCHED,
    TRACER,
    UNTIL,
    WATCHING,
    Log,
    address_of,
    show_counters,
)
from pyv_ext.engines.boundary.going_on import GOING, HOOKED, NONE, REPROTECTED, WAITING, GoingOn, asked
from pyv_ext.engines.boundary.python_calls import device_calls, function, handler_call, interface, pointers
from pyv_ext.engines.boundary.turns import Turns
from pyv_ext.engines.code import Code
from pyv_ext.engines.near import NearDevices
from pyv_ext.engines.near_code import CALLED
from pyv_ext.engines.slow import Core, register_load, register_store
from pyv_ext.engines.tracer import OnBlock, Tracer
from pyv_ext.hart.hart import Wait
from pyv_ext.hart.slots import COUNTER_WRITES, GUARDED, MEPC, MIE, MIP, PMP_WRITES
from pyv_ext.hart.traps import Cause
from pyv_ext.isa import Kind

LOAD, STORE, DUE, SLOW, WAIT, HOOK, HEARD, CALL = (
    f"ask_{name}" for name in ("load", "store", "due", "slow", "wait", "hook", "heard", "call")
)
"""`ask_load(address | size << 32, cycles left) -> answer` and `ask_store(address | size << 32, value, cycles left)`, of
the instruction at the frame's pc: cycles left after the access << 32 | value loaded, or one of the numbers below 0.
`ask_due(end, interrupts) -> cycles left`: see `Upcalls.left` and `going_on`.
`ask_slow(pc, progress) -> cycles left << 1 | whether the instruction at pc has retired`: the frame has the next pc. No
cycles left: something else comes before the next instruction.
`ask_wait(pc, progress)`: the same for a WFI while no interrupt is pending.
`ask_hook(pc, progress)`: the hooks of the instruction are called; `CALLED_HOOKS`, or the same as `ask_slow`.
`ask_heard(cause, handler, progress) -> cycles left << 1`: those who listen, and the tracer, are told of an interrupt,
whose handler begins.
`ask_call(Python function, ...) -> what it returns` for a custom instruction (see `custom`).

What Python is given and answers itself is said in `going_on`."""

LEAVE, FAULT = -1, -2
"""Nothing was done, the instruction takes the slow path; `Upcalls.ended` does what the instruction comes to."""

CALLED_HOOKS = -3
"""Nothing else has changed, but maybe the state of the hart: native code looks at it, and executes the instruction."""

SPAN = 50_000_000
"""Cycles that native code goes on for at most, so that Ctrl-C is noticed."""

_WORD = (1 << 32) - 1


class Upcalls:
    """Answers the native code of one hart, which may go on to cycle `LIMIT` of the frame."""

    def __init__(
        self,
        core: Core,
        frame: memoryview,
        words: memoryview,
        code: Code,
        slow: Callable[[bool, bool], bool],
        show_modes: Callable[[], None],
        near: NearDevices | None = None,
    ) -> None:
        """`words`: the signed words of the frame; `slow(True, whether its hooks have been called)` executes the
        instruction at the hart's pc, and says whether others may follow it at once; `show_modes` fills `MODES` of the
        frame; `near`: what native code serves itself."""
        self._core = core
        self._near = near
        self._hart = core.hart
        self._x = core.hart.x
        self._bus = core.bus
        self._clock = core.bus.clock
        self._code = code
        self._frame = frame
        self._words = words
        self._execute_slow = slow
        self._log = Log(frame)
        self._loads: dict[int, Load] = {}
        self._stores: dict[int, Store] = {}
        self._queue = core.bus.clock.queue.table
        self._watching = core.bus.watching
        self._shadowed = core.bus.shadow is not None
        self.ended: Callable[[], object] = int
        """What ends the instruction that native code has left: a trap, a wait."""
        self._show_modes = show_modes
        words[WATCHING] = id(core.bus.watching)
        words[COUNTED] = -1
        self._tracer: Tracer | None = None
        self._on_block: OnBlock | None = None
        """The tracer's, which knows of what has retired before cycle `_told`."""
        self._told = 0
        self._caching = False
        """Whether the MMIO read cache is used."""
        self._called: dict[str, Callable[..., int]] = {
            asked(LOAD): self._load, asked(STORE): self._store, asked(SLOW): self._slow,
            asked(HOOK): self._hook, asked(HEARD): self._heard, asked(WAIT): self._wait, DUE: self.left,
        }  # fmt: skip
        observers = [core.bus.observers, *(() if near is None else near.observers)]
        self._going_on = GoingOn(core, observers, DUE)
        self._turns = Turns(core.hart, core.bus.clock, frame, self._hold)
        frame[NEAR_NUMBERS] = 0 if near is None else sum(1 << number for number in near.numbers if number < 64)

    def functions(self) -> str:
        """The IR of what native code calls."""
        on = self._going_on
        asking = on.access(LOAD, 1) + on.access(STORE, 2) + on.instruction(HEARD, 2)
        asking += on.instruction(SLOW, 1) + on.instruction(HOOK, 1) + on.instruction(WAIT, 1, NONE)
        going_on = function(DUE, 2) + self._turns.text() + on.text()
        custom = function(CALL, 3, given=True) + handler_call()
        return interface() + asking + going_on + custom + device_calls(PLACES)

    def pointers(self) -> dict[str, int]:
        """What the variables of that IR point to."""
        return pointers(self._called) | self._going_on.pointers | self._turns.pointers

    # -- around native code ------------------------------------------------------------------------------------

    def begin(self, until: int) -> int:
        """Native code may begin now, to come to cycle `until`; the cycles that it may go on for at first."""
        hart, words = self._hart, self._words
        cycle = self._told = hart.cycle
        words[HOOKED_AT] = -1
        until = words[UNTIL] = min(until, cycle + SPAN)
        self._follow_tracer()
        self._turns.follow()
        words[PROTECTED] = self._x[PMP_WRITES]
        words[PC] = hart.pc
        words[INSTRET] = hart.instret
        if self._x[COUNTER_WRITES] != words[COUNTED]:
            self._show_counters()
        limit = min(until, self._clock.next)
        words[LIMIT] = words[OTHERS] = limit
        near = self._near
        if near is not None:
            words[NEAR] = address_of(near.table) if near.ready else 0
            words[OTHERS] = min(until, self._clock.besides(near.numbers))
        return limit - cycle

    def end(self) -> None:
        """Native code has been left: stores that are due arrive, the tracer is told of what has retired."""
        try:
            if self._words[TOUCHED]:
                self._synchronize()
        finally:
            if self._queue[COUNT]:
                self._clock.wake()
                self._clock.settle(self._hart.cycle)
            if self._on_block is not None:
                self._tell(self._on_block, self._hart.cycle)

    def _tell(self, on_block: OnBlock, cycle: int) -> None:
        """Tell the tracer of what has retired before a cycle."""
        if cycle > self._told:
            on_block(self._told, cycle, self._log.take())
            self._told = cycle

    def failed(self) -> None:
        """What native code has called has raised something, and may have changed which stores are deferrable."""
        if self._queue[COUNT]:
            self._clock.flush()

    def execute_slow(self) -> bool:
        """Execute the instruction at the hart's pc by the slow path; whether native code may go on."""
        hart = self._hart
        first = 0 if self._x[PMP_WRITES] == self._words[PROTECTED] else REPROTECTED
        going = self._slow(hart.pc, hart.cycle, hart.instret, first) >= GOING
        self._look_at_hart()
        return going

    def _look_at_hart(self) -> None:
        """Let native code see counters that have been written, and ask before it goes to another mode where PMP has."""
        words, x = self._words, self._x
        if x[COUNTER_WRITES] != words[COUNTED]:
            self._show_counters()
        if x[PMP_WRITES] != words[PROTECTED]:
            for word in MODES.values():
                words[word] = 0

    def _synchronize(self) -> None:
        """Tell the clock of the devices that native code has served or called; raise what one of them has raised."""
        clock, touched, self._words[TOUCHED] = self._clock, self._words[TOUCHED], 0
        if touched == CALLED:
            clock.changes += 1
        elif self._near is not None:
            self._near.synchronize(touched)
        if clock.failure is not None:
            failure, clock.failure = clock.failure, None
            raise failure

    def _catch_up(self, cycle: int) -> None:
        """Do what waits of all that native code has done with devices; stores arrive that are due at `cycle`."""
        if self._words[TOUCHED]:
            self._synchronize()
        if self._queue[COUNT]:
            self._clock.wake()
            self._clock.settle(cycle)

    def _hold(self, failure: BaseException) -> None:
        """The run raises what an event has raised when native code has been left, after the instruction before."""
        self._clock.failure = failure
        self._words[TOUCHED] = CALLED

    def restored(self) -> None:
        """The hart is in another state altogether."""
        self._words[COUNTED] = -1

    def _show_counters(self) -> None:
        self._words[COUNTED] = self._x[COUNTER_WRITES]
        show_counters(self._hart.csrs, self._frame)

    def _follow_tracer(self) -> None:
        """With a tracer, stores are logged, and every access of a device takes the slow path."""
        words, tracer = self._words, self._core.tracer
        self._tracer = tracer
        words[TRACER] = id(tracer)
        on_block = self._on_block = getattr(tracer, "on_block", None)
        words[LOG] = OFF if on_block is None else self._log.first
        self._caching = tracer is None and not self._bus.guards
        if self._caching:
            self._show_changes()
        else:
            words[CHANGES] = words[SHOWN] = words[EPOCH] = 0

    def _show_changes(self) -> None:
        """Let native code see what of its caches holds; to be called while they are used."""
        words, clock = self._words, self._clock
        if words[NEAR] and self._near is not None and self._near.observed:
            words[NEAR] = 0
        words[CHANGES] = words[SHOWN] = changes = clock.changes
        words[EPOCH] = 0 if self._shadowed or self._bus.observers else changes - clock.deferred

    # -- what it asks ------------------------------------------------------------------------------------------

    def _slow(self, pc: int, cycle: int, retired: int, first: int) -> int:
        hart, words = self._hart, self._words
        hart.pc, hart.cycle, hart.instret = pc, cycle, retired
        if first & REPROTECTED and not first & HOOKED and self._is_mret(pc):
            words[PROTECTED] = self._x[PMP_WRITES]
            self._show_modes()
            words[PC] = pc
            words[END] = cycle
            return GOING
        if first & WAITING:
            self.end()
        elif self._on_block is not None:
            self._tell(self._on_block, cycle)
        going = self._execute_slow(True, first & HOOKED > 0)
        self._told = hart.cycle
        if words[EPOCH] and (self._bus.observers or self._bus.guards):
            words[EPOCH] = 0
        if self._core.tracer is not self._tracer:
            self._follow_tracer()
            going = going and (self._tracer is None or self._on_block is not None)
        words[PC] = hart.pc
        if going:
            words[END] = hart.cycle
            return GOING | hart.instret - retired
        words[LIMIT] = words[OTHERS] = hart.cycle
        return hart.instret - retired

    def _is_mret(self, pc: int) -> bool:
        decoded = self._code.decoded.get(pc)
        return decoded is not None and decoded.instruction is not None and decoded.instruction.row.kind is Kind.MRET

    def _hook(self, pc: int, cycle: int, retired: int, first: int) -> int:
        """Call the hooks of the instruction, which native code executes unless they have changed more than the tracer;
        nothing that native code has done is untold, but to the tracer."""
        core, hart, clock = self._core, self._hart, self._clock
        hart.pc, hart.cycle, hart.instret = pc, cycle, retired
        if self._on_block is not None:
            self._tell(self._on_block, cycle)
        changes, due = clock.changes, clock.next
        for hook in tuple(self._code.hooks[pc]):
            stop = hook(hart)
            if stop is not None:
                core.stop(stop)
                self._words[PC] = pc
                self._words[LIMIT] = self._words[OTHERS] = cycle
                return 0
        tracer = core.tracer
        if tracer is not self._tracer:
            if tracer is not None and not hasattr(tracer, "on_block"):
                return self._slow(pc, cycle, retired, HOOKED)
            self._follow_tracer()
            self._told = cycle
        if clock.changes != changes or clock.next != due:  # maybe since the run is to stop, or loads are watched
            return self._slow(pc, cycle, retired, HOOKED)
        if tracer is None and (self._bus.observers or self._bus.guards):
            return self._slow(pc, cycle, retired, HOOKED)
        return CALLED_HOOKS

    def _wait(self, pc: int, start: int, retired: int, first: int) -> int:
        """Let time pass as `Engine` does while a WFI waits: it is asked again after every event."""
        core, hart, clock, x, until = self._core, self._hart, self._clock, self._hart.x, self._words[UNTIL]
        if first & WAITING:
            self._catch_up(start)  # what has arrived already ends no wait
        hart.pc = self._words[PC] = pc
        hart.instret = retired
        cycle = again = start + 1
        while cycle < until:
            if not x[MIP] & x[MIE]:
                if clock.next >= NEVER:
                    break  # a deadlock
                cycle = min(max(clock.next, cycle), until)
                if cycle == until:
                    break
            hart.cycle = cycle
            try:
                if clock.next <= cycle:
                    clock.advance(cycle)
            except BaseException as failure:
                self._hold(failure)
                break
            if core.stopping is not None:
                break
            if x[MIP] & x[MIE]:
                if core.tracer is not self._tracer:
                    break
                hart.instret += 1
                self._words[PC] = pc + 4 & core.isa.mask
                self._words[END] = cycle + hart.timing.wfi
                return GOING | 1
            cycle = again = cycle + 1
        hart.waiting = Wait(start, again, NEVER)
        hart.cycle = self._words[LIMIT] = self._words[OTHERS] = cycle
        return 0

    def _heard(self, cause: int, handler: int, end: int, retired: int, first: int) -> int:
        hart, words, x = self._hart, self._words, self._x
        start = end - hart.timing.irq
        hart.pc, hart.cycle, hart.instret = handler, start, retired
        if first & WAITING:
            self.end()
        elif self._on_block is not None:
            self._tell(self._on_block, start)
        guarded = x[GUARDED]
        hart.tell_interrupt(cause)
        self._told, tracer = end, self._core.tracer
        if tracer is not None:
            tracer.trap(x[MEPC], cause, 0, start, end, True)
        if x[PMP_WRITES] != words[PROTECTED] or x[GUARDED] != guarded:
            words[LIMIT] = words[OTHERS] = end
            return 0
        words[END] = end
        return GOING

    def _load(self, place: int, start: int, first: int) -> int:
        load = self._loads.get(place)
        if load is None:
            load = register_load(self._bus, place & _WORD, place >> 32)
            if load is None:
                return LEAVE
            self._loads[place] = load
        if self._bus.guards:
            return LEAVE
        words = self._words
        if self._shadowed:
            self._hart.pc = words[PC]
        if first:
            if words[TOUCHED]:
                self._synchronize()
            if self._queue[COUNT]:
                self._clock.wake()
        on_block = self._on_block
        if on_block is not None:
            self._begins(on_block, start)
        answer = load(start)
        if answer is None:
            self.ended = partial(self._core.trap, Cause.LOAD_FAULT, place & _WORD)
            return FAULT
        end = start + answer[1]
        if on_block is not None or self._core.tracer is not None:
            self._accessed(start, end)
        words[END] = end
        return answer[0] & _WORD

    def _store(self, place: int, value: int, start: int, first: int) -> int:
        store = self._stores.get(place)
        if store is None:
            store = register_store(self._bus, place & _WORD, place >> 32)
            if store is None:
                return LEAVE
            self._stores[place] = store
        if self._bus.guards:
            return LEAVE
        words = self._words
        if self._shadowed:
            self._hart.pc = words[PC]
        if first:
            self._catch_up(start)
        on_block = self._on_block
        if on_block is not None:
            self._begins(on_block, start)
        cycles = store(value, start)
        if cycles is None:
            self.ended = partial(self._core.trap, Cause.STORE_FAULT, place & _WORD)
            return FAULT
        end = start + cycles
        if on_block is not None or self._core.tracer is not None:
            self._accessed(start, end)
        words[END] = end
        return 0

    def _begins(self, on_block: OnBlock, start: int) -> None:
        """Tell the tracer of what comes before an access of a device."""
        hart = self._hart
        hart.pc, hart.cycle = self._words[PC], start
        self._tell(on_block, start)

    def _accessed(self, start: int, end: int) -> None:
        """Tell the tracer of an access, which an event before it may have set."""
        self._told, tracer, pc = end, self._core.tracer, self._words[PC]
        instruction = (self._code.decoded.get(pc) or self._code.at(pc)).instruction
        if tracer is not None and instruction is not None:
            tracer.retire(pc, start, end, instruction)

    def left(self, end: int, interrupts: int) -> int:
        """The cycles that native code may go on for from cycle `end`, after the events that are due then; 0 where
        something else comes before the next instruction, with `ALL` an interrupt too."""
        core, clock, words = self._core, self._clock, self._words
        until = words[UNTIL]
        if words[TOUCHED]:
            self._synchronize()
        if self._queue[COUNT]:
            clock.flush()  # what has happened since may have changed which are deferrable
        if clock.next <= end < until and core.stopping is None:
            self._hart.cycle = end
            try:
                clock.advance(end)
            except BaseException as failure:
                self._hold(failure)
                words[LIMIT] = words[OTHERS] = end
                return 0
        self._look_at_hart()
        near, first = self._near, NEVER
        arriving = None if near is None or not words[NEAR] else near.posted
        if clock.posted and words[EPOCH] and end >= clock.unheld and clock.hold(arriving):
            first = self._queue[FIRST + ARRIVAL]
        others = clock.next if clock.next < until else until
        limit = first if first < others else others
        if (
            limit <= end
            or core.stopping is not None
            or core.tracer is not self._tracer
            or self._bus.watching is not self._watching
            or (interrupts and self._x[MIP] & self._x[MIE] and self._hart.interrupt() is not None)
        ):
            words[LIMIT] = words[OTHERS] = end
            limit = end
        else:
            words[LIMIT], words[OTHERS] = limit, others
            if near is not None and words[NEAR] and clock.first in near.numbers:
                words[OTHERS] = min(until, clock.besides(near.numbers))
        if self._caching and clock.changes != words[SHOWN]:
            self._show_changes()
        return limit - end
