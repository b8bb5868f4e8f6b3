"""Run control: registers, memory, points, execution forward and back; the protocol is in `session`."""

from collections.abc import Callable, Sequence
from enum import IntEnum
from time import process_time
from typing import NamedTuple

from pyv_ext.bus.bus import Bus
from pyv_ext.bus.clock import NEVER
from pyv_ext.bus.memory import PAGE
from pyv_ext.engines.code import Hook
from pyv_ext.engines.core import Stop, StopReason
from pyv_ext.engines.engine import Engine
from pyv_ext.errors import PyvExtError
from pyv_ext.gdb.history import SnapshotHistory, TimeMachine
from pyv_ext.gdb.pacing import Clock, Intervals, Slices
from pyv_ext.gdb.points import BREAKPOINTS, DebugPoints, Hit
from pyv_ext.gdb.registers import RegisterFeature, RegisterView, hart_features
from pyv_ext.gdb.rtos import SOLE_THREAD, Read, Tasks, Thread
from pyv_ext.hart.hart import Hart
from pyv_ext.machine.state import MIE_BIT
from pyv_ext.machine.traps import Cause

Poll = Callable[[], bool]
"""Whether the client wants the hart to stop."""


class GdbSignal(IntEnum):
    """GDB's numbers of signals (include/gdb/signals.def)."""

    NONE = 0
    INT = 2
    TRAP = 5
    ABRT = 6
    SEGV = 11
    XCPU = 24


_SIGNAL_OF = {
    StopReason.DEADLOCK: GdbSignal.ABRT,
    StopReason.TRAP_LOOP: GdbSignal.SEGV,
    StopReason.ENGINE: GdbSignal.ABRT,
    StopReason.LIMIT: GdbSignal.XCPU,
    StopReason.TIMEOUT: GdbSignal.XCPU,
}
"""Signals of stops that a debugger may inspect; the program cannot resume after them."""


ECALLS = (Cause.ECALL_USER, Cause.ECALL_SUPERVISOR, Cause.ECALL_MACHINE)
ECALL_SIZE = 4
HANDLED = Stop(StopReason.BREAKPOINT, text="the handler has returned")


class Halt(NamedTuple):
    """Reason of a halt of the hart."""

    signal: GdbSignal = GdbSignal.TRAP
    hit: Hit | None = None
    text: str = ""
    """Line of text for the user."""
    begin: bool = False
    """Whether reverse execution has reached the earliest snapshot."""
    end: Stop | None = None
    """Stop that ends the run: the program has ended, or the simulator was interrupted."""


class HandlerStepper:
    """Execution of single instructions. An instruction or interrupt that enters a handler of `over` is no separate
    step: the handler runs to its return.

    The program executes the same instructions in the same cycles as without a debugger.
    """

    def __init__(self, engine: Engine, over: Callable[[int], bool]) -> None:
        """`over(mcause)`: whether the handler of a trap with this cause runs as a whole."""
        self._engine = engine
        self._skips = over
        self._handler: tuple[int, Hook] | None = None
        """While a handler runs: the address to which it returns, and the hook there."""
        self._interrupted = False
        """Whether it is the handler of an interrupt, after which the instruction is still to be executed."""
        self.completed = False
        """Whether the last `step` has executed an instruction, or taken a trap."""

    def step(self, until: int) -> Stop | None:
        """Execute an instruction, or a handler as far as possible, to cycle `until` at most; return the stop, if
        any."""
        engine, hart = self._engine, self._engine.hart
        self.completed = False
        if self._handler is not None:
            stop = engine.run(until)
            if stop is not HANDLED:
                return stop
            self.leave()
            self.completed = not self._interrupted
            return None
        traps, position, context = hart.traps, hart.position, self._context()
        stop = engine.step(until)
        if stop is None and hart.traps != traps and self._skips(hart.csrs.mcause):
            self._enter(context)
        else:
            self.completed = hart.position != position
        return stop

    def start_at(self, pc: int, has_arrived: Callable[[], bool]) -> None:
        """Start stepping at the instruction at `pc`, as soon as `has_arrived()` there."""
        self._interrupted = True
        self._watch(pc, has_arrived)

    def _context(self) -> tuple[int, int, int]:
        """Return stack pointer, privilege mode and interrupt enable: equal before a trap and after its return."""
        hart = self._engine.hart
        return hart.x[2], hart.priv, hart.csrs.mstatus & MIE_BIT

    def _enter(self, context: tuple[int, int, int]) -> None:
        """Watch for the return from a trap that was taken in this context."""
        hart, csrs = self._engine.hart, self._engine.hart.csrs
        self._interrupted = bool(csrs.mcause & hart.isa.sign)
        self._watch(csrs.mepc if self._interrupted else csrs.mepc + ECALL_SIZE, lambda: self._context() == context)

    def _watch(self, pc: int, has_arrived: Callable[[], bool]) -> None:
        def check_arrival(hart: Hart) -> Stop | None:
            return HANDLED if has_arrived() else None

        self._handler = pc, check_arrival
        self._engine.code.add_hook(pc, check_arrival)

    def leave(self) -> None:
        """Stop watching for the return."""
        if self._handler is not None:
            self._engine.code.remove_hook(*self._handler)
            self._handler = None


class Debugger:
    """Run control of one engine. `features` are registers beyond those of the hart; `limit` ends the run at a cycle;
    `tasks(read)` are those of the RTOS of the program, if it is known.

    Reverse execution requires a `time_machine` that can save the machine.
    """

    def __init__(
        self,
        engine: Engine,
        *,
        features: Sequence[RegisterFeature] = (),
        tasks: Callable[[Read], Tasks | None] = lambda read: None,
        time_machine: TimeMachine | None = None,
        limit: int = NEVER,
        clock: Clock = process_time,
    ) -> None:
        self.features = [*hart_features(engine.hart), *features]
        self.registers: list[RegisterView] = [register for feature in self.features for register in feature.registers]
        self.points = DebugPoints(engine)
        self._bus: Bus = engine.bus
        self.tasks = tasks(self.read)
        self.running = False
        self.step_interrupts = False
        """Whether steps enter handlers of interrupts."""
        self._engine = engine
        self._hart = engine.hart
        self._limit = limit
        self._slices = Slices(clock)
        self._next_poll = 0
        """Cycle of the next poll of the client."""
        self._history: SnapshotHistory | None = None
        self.no_history = "" if time_machine is not None else "this machine keeps no past"
        """Reason why reverse execution is unavailable; empty if it is available."""
        if time_machine is not None:
            try:
                self._history = SnapshotHistory(engine, time_machine, Intervals(clock))
                self._history.remember()
            except PyvExtError as error:
                self._history, self.no_history = None, str(error)

    # -- inspection --------------------------------------------------------------------------------------------

    def read(self, address: int, size: int) -> bytes:
        """Read memory and registers of devices without side effects, up to the first byte that is neither: possibly
        fewer bytes."""
        data = b""
        while len(data) < size:
            start = address + len(data)
            length = min(size - len(data), PAGE - start % PAGE)
            part = self._bus.peek(start, length) or self._peek_device(start, length)
            if part is None:
                break
            data += part
        return data

    def _peek_device(self, address: int, size: int) -> bytes | None:
        """Return the rest of the word at `address`, at most `size` bytes."""
        mapped = self._bus.device_at(address & -4, 4)
        peek = getattr(mapped[0], "peek", None) if mapped is not None else None
        if mapped is None or peek is None:
            return None
        value: int | None = peek(mapped[1], 4, self._hart.cycle)
        return None if value is None else value.to_bytes(4, "little")[address & 3 :][:size]

    def thread(self) -> int:
        """Return the number of the thread that the hart executes."""
        running = None if self.tasks is None else self.tasks.running
        return SOLE_THREAD if self.tasks is None or running is None else self.tasks.thread_id(running)

    def threads(self) -> dict[int, Thread]:
        """Return the tasks of the RTOS by their numbers; none as long as only the hart exists."""
        return {} if self.tasks is None else {thread.thread_id: thread for thread in self.tasks.threads()}

    def registers_of(self, thread_id: int) -> Sequence[RegisterView]:
        """Return the registers of a thread: those of the hart, or their saved copies while it does not run.

        Registers that no frame holds, CSRs for example, are the hart's. ValueError for a thread that does not exist.
        """
        if thread_id == self.thread():
            return self.registers
        thread, tasks = self.threads().get(thread_id), self.tasks
        if thread is None or tasks is None:
            raise ValueError(f"thread {thread_id}")
        saved, pointer = tasks.saved_registers(thread.task), tasks.stack_pointer(thread.task)

        def saved_view(register: RegisterView) -> RegisterView:
            if register.name == "sp" and pointer is not None:
                return register._replace(read=lambda: pointer, write=None)
            address = saved.get(register.name)
            return register if address is None else self._in_memory(register, address)

        return [saved_view(register) for register in self.registers]

    def _in_memory(self, register: RegisterView, address: int) -> RegisterView:
        size = register.bits // 8
        return register._replace(
            read=lambda: int.from_bytes(self.read(address, size), "little"),
            write=lambda value: self.write(address, value.to_bytes(size, "little")),
        )

    # -- modification ------------------------------------------------------------------------------------------

    def write(self, address: int, data: bytes) -> None:
        """Change memory; PyvExtError outside of RAM. Only the program writes devices."""
        self._bus.poke(address, data)
        self._forget_history()

    def write_register(self, register: RegisterView, value: int) -> None:
        """Write a register. PyvExtError if the debugger cannot write it."""
        if register.write is None:
            raise PyvExtError(f"{register.name} cannot be written by the debugger: let the program do it")
        register.write(value & (1 << register.bits) - 1)
        self._forget_history()

    def _forget_history(self) -> None:
        if self._history is not None:
            self._history.forget()

    # -- execution ---------------------------------------------------------------------------------------------

    def resume(self, poll: Poll) -> Halt:
        """Run until something stops the hart."""
        return self._forward(poll, lambda: self._engine.run(self._next_poll), lambda: False)

    def step(self, poll: Poll, thread: int = 0) -> Halt:
        """Execute one instruction or trap, waits included; with `step_interrupts` also an interrupt."""
        return self.step_range(poll, 0, 0, thread)

    def step_range(self, poll: Poll, start: int, end: int, thread: int = 0) -> Halt:
        """Step at least once, and continue while pc is in [start, end).

        A waiting thread is stepped when it runs again; 0 is the running thread. ValueError for an unknown thread.
        """
        stepper = HandlerStepper(self._engine, self._steps_over)
        if thread not in (0, self.thread()):
            pc, sp = (
                next(register for register in self.registers_of(thread) if register.name == name).read()
                for name in ("pc", "sp")
            )
            stepper.start_at(pc, lambda: self._hart.x[2] == sp and self.thread() == thread)
        try:
            return self._forward(
                poll,
                lambda: stepper.step(self._next_poll),
                lambda: stepper.completed and not start <= self._hart.pc < end,
            )
        finally:
            stepper.leave()

    def _steps_over(self, cause: int) -> bool:
        """Check whether the handler of a trap runs as a whole: of interrupts, and of the ECALL by which a task
        yields."""
        if self.step_interrupts:
            return False
        return bool(cause & self._hart.isa.sign) or (cause in ECALLS and self.thread() != SOLE_THREAD)

    def _set_next_poll(self) -> None:
        self._next_poll = min(self._limit, self._hart.cycle + self._slices.cycles)

    def _forward(self, poll: Poll, go: Callable[[], Stop | None], has_arrived: Callable[[], bool]) -> Halt:
        points, history = self.points, self._history
        if history is not None:
            history.remember()
        points.take_hit()
        points.skipped_position = self._hart.position
        self.running = True
        points.plant()
        self._slices.begin()
        self._set_next_poll()
        try:
            while True:
                if self._hart.cycle >= self._limit:
                    text = f"cycle limit {self._limit} reached at pc {self._hart.pc:#010x}"
                    return Halt(GdbSignal.XCPU, text=text)
                stop = go()
                if stop is not None:
                    return self._halt(stop)
                if has_arrived():
                    return Halt()
                if self._hart.cycle >= self._next_poll:
                    self._slices.end()
                    self._set_next_poll()
                    if poll():
                        return Halt(GdbSignal.INT)
                    if history is not None and history.is_due:
                        points.unplant()
                        history.remember()
                        points.plant()
        finally:
            points.unplant()
            self.running = False
            self._deliver_events()

    def _deliver_events(self) -> None:
        """Deliver device events that are due now, as the next instruction would, so that devices are up to date."""
        self._bus.clock.advance(self._hart.cycle)

    def _halt(self, stop: Stop) -> Halt:
        if stop.reason is StopReason.BREAKPOINT:
            return Halt(hit=self.points.take_hit())
        if stop.reason in _SIGNAL_OF:
            return Halt(_SIGNAL_OF[stop.reason], text=stop.text)
        return Halt(end=stop)

    # -- reverse execution -------------------------------------------------------------------------------------

    def step_back(self) -> Halt:
        """Undo one instruction, trap or interrupt."""
        history = self._require_history()
        position = self._hart.position
        if position <= history.begin:
            return Halt(GdbSignal.NONE, begin=True)
        history.restore_position(position - 1)
        self._deliver_events()
        return Halt()

    def resume_back(self, poll: Poll) -> Halt:
        """Go back to the latest position at which a point would have stopped the hart, or to the earliest snapshot."""
        history = self._require_history()
        end = position = self._hart.position
        try:
            while end > history.begin:
                with history.replaying():
                    start = history.rewind(end - 1)
                    stop_point = self._last_hit(history, end, poll)
                if stop_point is not None:
                    history.restore_position(stop_point[0])
                    return Halt(hit=stop_point[1])
                end = start
            history.restore_position(history.begin)
            return Halt(GdbSignal.NONE, begin=True)
        except InterruptedError:
            history.restore_position(position)
            return Halt(GdbSignal.INT)
        finally:
            self._deliver_events()

    def _last_hit(self, history: SnapshotHistory, end: int, poll: Poll) -> tuple[int, Hit] | None:
        """Replay to position `end`; return position and hit of the last point before it. InterruptedError if the
        client interrupts it."""
        points, last = self.points, None
        points.take_hit()
        points.skipped_position = None
        points.plant()
        try:
            while self._hart.position < end:
                history.approach(end)
                hit = points.take_hit()
                if hit is not None:
                    points.skipped_position = self._hart.position
                    is_watchpoint = hit.kind not in BREAKPOINTS  # in reverse, the position after an access precedes it
                    last = self._hart.position + is_watchpoint, hit
                if poll():
                    raise InterruptedError
        finally:
            points.unplant()
        return last

    def _require_history(self) -> SnapshotHistory:
        if self._history is None:
            raise PyvExtError(f"no way back: {self.no_history}")
        self._history.remember()
        return self._history
