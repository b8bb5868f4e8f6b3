"""Base of all engines: running to a budget, waiting, interrupts, traps, hooks and traces (docs/core-timing.md).

A burst executes instructions between two events. Here it calls closures, which define the effects and the timing of
programs: this class is the engine `reference`. An engine may execute bursts in another way. Instructions that a burst
does not support are executed here, one at a time.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

from pyv_ext.bus.bus import Bus
from pyv_ext.bus.clock import NEVER
from pyv_ext.engines.closures import After
from pyv_ext.engines.code import DecodeCache, DecodedInstruction
from pyv_ext.engines.core import AccessStopped, Stop, StopReason, Tracer
from pyv_ext.engines.protection import fault_of, load_port
from pyv_ext.errors import PyvExtError
from pyv_ext.hart.hart import Hart, Wait
from pyv_ext.isa import Instruction, OpClass
from pyv_ext.machine import accesses, log
from pyv_ext.machine.hart import repeats_trap
from pyv_ext.machine.slots import CYCLE, GUARDED, INSTRET, MIE, MIP, PC, word_of
from pyv_ext.machine.state import LogKind
from pyv_ext.machine.traps import INTERRUPT, Cause, cause_name
from pyv_ext.timing import CoreTiming
from pyv_native.state import LATEST, WORD32, Fields, StateError, inside, quote

_WORD = 4
"""Maximum bytes of an instruction."""
_TRAPPED = ("trapped_at", "trapped_pc", "trapped_cause", "loop_pc", "loop_cause", "loop_value")
"""Fields of the hart's record in a snapshot of an engine."""


class StaleFetch(NamedTuple):
    """Instruction that was fetched before a store overwrote it."""

    pc: int
    word: int
    overwritten: bytes | None
    """Content at pc after the store; if that changes once more, the instruction is fetched again."""


class Engine:
    """Engine that executes the instructions of `hart` on `bus`. The first memory of the bus is that of the fast path.

    `misaligned` allows loads and stores of memory at any address; else they trap.

    Ctrl-C: a KeyboardInterrupt inside `run` may leave an instruction incomplete. A caller that continues after Ctrl-C
    handles SIGINT by calling `stop`, and runs in short slices.
    """

    def __init__(self, hart: Hart, bus: Bus, *, misaligned: bool = False) -> None:
        if not bus.rams or bus.rams[0].near:
            raise PyvExtError("the first memory of the bus must be plain RAM: add_ram it before making an engine")
        if hart.x is not bus.clock.words:
            raise PyvExtError("hart and bus do not share a clock: make the hart with bus.clock.records")
        self.hart = hart
        self.bus = bus
        self.isa = hart.isa
        self.misaligned = misaligned
        self.tracers: Sequence[Tracer] = ()
        """Observers of instructions and traps, in the order in which they are called."""
        self.fetches_ahead = hart.timing == CoreTiming()
        """The cycle contract (docs/core-timing.md): the instruction right after a store is fetched before it."""
        self.code = DecodeCache(self, self._mark)
        self.peek = load_port(hart, bus)
        self.stopping: Stop | None = None
        """Reason to end the run before the next instruction; an exit is permanent."""
        self._stale_fetch: StaleFetch | None = None
        self._running = False
        self._machine = bus.clock.machine
        self._machine.misaligned = misaligned
        bus.clock.mark_return = self.mark

    def add_tracer(self, tracer: Tracer) -> None:
        """Pass every later instruction and trap to `tracer`, after earlier tracers; adding it again has no effect."""
        if tracer not in self.tracers:
            self.tracers = *self.tracers, tracer
            self.bus.clock.leave()

    def remove_tracer(self, tracer: Tracer) -> None:
        """Stop passing instructions and traps to `tracer`; it need not have been added."""
        self.tracers = tuple(entry for entry in self.tracers if entry is not tracer)

    # -- running -----------------------------------------------------------------------------------------------

    def run(self, until: int) -> Stop | None:
        """Execute until the hart's cycle is `until` or the end of the instruction that reaches it; return None then.

        Splitting a run at any cycle changes nothing. A waiting hart stops exactly at `until`. Exceptions of devices
        propagate: the hart is then before the instruction that accesses the device or, after an exception of a posted
        store or an event, before the next instruction (docs/extending.md).
        """
        hart = self.hart
        self._begin()
        try:
            while self.stopping is None and hart.cycle < until:
                if not self._ready(until):
                    continue
                if hart.waiting is not None or self._stale_fetch is not None:
                    self._execute_instruction()
                elif hart.guarded:
                    self._guarded_burst(until)
                elif self.tracers:
                    self._traced_burst(until)
                else:
                    self._burst(until)
        except BaseException:
            self._clear_failure()
            raise
        finally:
            self._running = False
        return self._take_stop()

    def _begin(self) -> None:
        if self._running:
            raise PyvExtError("the machine is running: a device, hook or instruction that it calls cannot run it")
        self._running = True

    def step(self, until: int = NEVER) -> Stop | None:
        """Execute one instruction, or take one trap or interrupt, waits included, but not beyond cycle `until`.

        An instruction still waiting at `until` continues to wait in the next step.
        """
        hart = self.hart
        position = hart.position
        self._begin()
        try:
            while self.stopping is None and hart.position == position and hart.cycle < until:
                if self._ready(until):
                    self._execute_instruction()
        except BaseException:
            self._clear_failure()
            raise
        finally:
            self._running = False
        return self._take_stop()

    def _clear_failure(self) -> None:
        """Clean up after an exception of a device, which may have completed a part of its work."""
        clock = self.bus.clock
        clock.arena.clear_error()  # an error that Ctrl-C has preempted
        clock.changed(clock.now)

    def stop(self, stop: Stop) -> None:
        """End the run with `stop` after the current instruction."""
        if self.stopping is None:
            self.stopping = stop
            self.bus.clock.leave()

    def _take_stop(self) -> Stop | None:
        """Return the reason of the stop, and clear it unless the program has exited: then the next run ends at once as
        well."""
        self.bus.clock.show_output()
        hart, wait = self.hart, self.hart.waiting
        if wait is not None and max(self.bus.clock.next, wait.not_before) <= hart.cycle < wait.until:
            hart.waiting = Wait(wait.start, wait.not_before, hart.cycle)  # also for an event before the next run
        stop = self.stopping
        if stop is not None and stop.reason is not StopReason.EXIT:
            self.stopping = None
        return stop

    def _burst(self, until: int) -> None:
        """Execute at least one instruction, and continue to cycle `until` as long as only instructions change state.

        An override must execute the same instructions in the same cycles.
        """
        hart, clock, code = self.hart, self.bus.clock, self.code
        while not self.tracers:
            if self._machine.kinds >> LogKind.STORES & 1:
                return self._traced_burst(until)
            limit = min(until, clock.next)
            self._run_closures(limit)
            while hart.cycle < limit and hart.pc not in code.steps:
                code.at(hart.pc)
                if hart.pc not in code.steps:
                    break
                self._run_closures(limit)
            if hart.cycle >= until or hart.cycle >= clock.next or not self._execute_slow():
                return None
        return None

    def _guarded_burst(self, until: int) -> None:
        """Execute at least one instruction while PMP restricts the hart; an override must have the same effect."""
        self._execute_instruction()

    def _run_closures(self, limit: int) -> None:
        """Execute closures by pc until cycle `limit`, an address without one, or an instruction of the slow path."""
        hart, steps = self.hart, self.code.steps
        pc, cycle, instret = hart.pc, hart.cycle, hart.instret
        try:
            while cycle < limit:
                after = steps[pc]()
                if after is None:
                    break
                pc, cost = after
                cycle += cost
                instret += 1
        except KeyError:
            pass  # not decoded yet
        finally:
            hart.pc, hart.cycle, hart.instret = pc, cycle, instret

    def _execute_slow(self, tried: bool = False, hooked: bool = False) -> bool:
        """Execute the next instruction of a burst; return whether the burst may continue after it and the due events.

        `tried`: its closure was called and takes the slow path; `hooked`: its hooks have been called.
        """
        hart, x, code = self.hart, self.hart.x, self.code
        guarded = x[GUARDED]
        if guarded or self.fetches_ahead:
            self._execute_instruction()
            if hart.waiting is not None or self._stale_fetch is not None:
                return False
        else:
            pc, start = x[PC], x[CYCLE]
            if pc in code.hooks:
                tried = False
                if not hooked and not self._call_hooks(pc):
                    return False
            decoded = code.decoded.get(pc) or code.at(pc)
            try:
                after = decoded.slow() if tried else decoded.step() or decoded.slow()
            except AccessStopped as stopped:
                self.stop(stopped.stop)
                return False
            if after is not None:
                x[PC], cycles = after
                end = x[CYCLE] = start + cycles
                x[INSTRET] += 1
                if decoded.instruction is not None:
                    self._report_retirement(pc, start, end, decoded.instruction)
            elif hart.waiting is not None:
                return False
        if self.stopping is not None or x[GUARDED] != guarded:
            return False
        return not x[MIP] & x[MIE] or hart.interrupt() is None

    def _traced_burst(self, until: int) -> None:
        """Execute a burst of which each instruction is reported to tracers and the log."""
        hart, clock, code = self.hart, self.bus.clock, self.code
        limit = min(until, clock.next)
        while hart.cycle < limit:
            pc, start = hart.pc, hart.cycle
            step = code.steps.get(pc)
            after = None if step is None else step()
            if after is None:
                self._execute_slow()
                return
            hart.pc, cycles = after
            end = hart.cycle = start + cycles
            hart.instret += 1
            instruction = code.at(pc).instruction
            assert instruction is not None  # a closure has executed it
            self._report_retirement(pc, start, end, instruction)

    def _execute_instruction(self) -> None:
        """Execute the instruction at pc, or poll it if it waits."""
        hart = self.hart
        pc = hart.pc
        decoded = self._fetch(pc)
        if hart.waiting is not None:
            start = hart.waiting.start
        else:
            start = hart.cycle
            if pc in self.code.hooks and not self._call_hooks(pc):
                return
        fetched, self._stale_fetch = self._stale_fetch, None
        if hart.guarded and hart.waiting is None:
            fault = fault_of(self, decoded.instruction)
            if fault is not None:
                self.trap(*fault)
                return
        next_word = None
        if self.fetches_ahead and decoded.instruction is not None:
            next_word = self._overwritten_word(decoded.instruction)
        try:
            after = decoded.step() or decoded.slow()
        except AccessStopped as stopped:
            self._stale_fetch = fetched
            return self.stop(stopped.stop)
        if after is None:
            return
        hart.pc, cycles = after
        if next_word is not None:
            self._stale_fetch = StaleFetch(hart.pc, next_word, self.bus.peek(hart.pc, _WORD))
        hart.cycle += cycles
        hart.instret += 1
        hart.waiting = None
        if decoded.instruction is not None:
            self._report_retirement(pc, start, hart.cycle, decoded.instruction)

    def _report_retirement(self, pc: int, start: int, end: int, instruction: Instruction) -> None:
        """Log an instruction that has retired, and pass it to the tracers."""
        op_class = instruction.row.op_class
        if self._machine.kinds and op_class in (OpClass.STORE, OpClass.FENCE, OpClass.XRET):
            self._log(op_class, start, end, instruction)
        for tracer in self.tracers:
            tracer.retire(pc, start, end, instruction)

    def _log(self, op_class: OpClass, start: int, end: int, instruction: Instruction) -> None:
        execute = self.hart.records.execute
        if op_class is OpClass.XRET:
            execute(log.log_mret, start, end - start)
        elif op_class is OpClass.FENCE:
            execute(log.log_cycles, LogKind.FENCE, start, end - start, 0)
        else:
            address = self.hart.x[instruction.rs1] + instruction.imm & self.isa.mask
            execute(accesses.log_store, address, start, end - start)

    def _report_trap(self, pc: int, cause: int, value: int, start: int, interrupt: bool) -> None:
        """Log a trap whose handler begins now, and pass it to the tracers."""
        clock, end = self.bus.clock, self.hart.cycle
        if self._machine.kinds:
            clock.call[log.log_trap](clock.arena, start, end - start, pc, cause | INTERRUPT if interrupt else cause)
        for tracer in self.tracers:
            tracer.trap(pc, cause, value, start, end, interrupt)

    def _call_hooks(self, pc: int) -> bool:
        """Call the hooks of the instruction at `pc`; return whether it is to be executed now."""
        for hook in tuple(self.code.hooks[pc]):
            stop = hook(self.hart)
            if stop is not None:
                self.stop(stop)
                return False
        return True

    def _fetch(self, pc: int) -> DecodedInstruction:
        """Return the instruction at `pc`, as it was when it was fetched."""
        word = self._stale_word(pc)
        return self.code.at(pc) if word is None else self.code.executable(pc, word)

    @property
    def has_fetched_ahead(self) -> bool:
        """Check whether the next instruction was fetched before a store overwrote it."""
        return self._stale_fetch is not None

    def _stale_word(self, pc: int) -> int | None:
        """Return the instruction word at `pc` if it was fetched before the store that has overwritten it."""
        fetch = self._stale_fetch
        is_stale = fetch is not None and fetch.pc == pc and self.bus.peek(pc, _WORD) == fetch.overwritten
        return fetch.word if fetch is not None and is_stale else None

    def _overwritten_word(self, instruction: Instruction) -> int | None:
        """Return the word after the instruction at pc if that instruction is a store about to overwrite it."""
        if instruction.row.op_class is not OpClass.STORE:
            return None
        hart = self.hart
        address = hart.x[instruction.rs1] + instruction.imm & self.isa.mask
        next_pc = hart.pc + instruction.length & self.isa.mask
        overlaps = address < next_pc + _WORD and next_pc < address + instruction.row.size
        word = self.bus.peek(next_pc, _WORD) if overlaps else None
        return None if word is None else int.from_bytes(word, "little")

    # -- waiting and interrupts --------------------------------------------------------------------------------

    def wait(self, wait: Wait, cycle: int) -> After | None:
        """Suspend the instruction at pc, which cannot retire yet; the hart has reached `cycle`."""
        self.hart.waiting = wait
        self.hart.cycle = cycle
        return None

    def _ready(self, until: int) -> bool:
        """Deliver device events and interrupts; return whether the instruction at pc executes now."""
        hart, clock = self.hart, self.bus.clock
        wait = hart.waiting
        if wait is not None and not self._wakes():
            recheck = max(min(clock.next, wait.until), hart.cycle)
            if recheck >= NEVER:
                self.stop(Stop(StopReason.DEADLOCK, text=f"deadlock at pc {hart.pc:#010x}: no event is left"))
                return False
            hart.cycle = min(recheck, until)
            if recheck >= until:
                return False
        if clock.next <= hart.cycle:
            clock.advance(hart.cycle)
            if self.stopping is not None:
                return False
        if hart.csrs.mip & hart.csrs.mie and self._take_interrupt():
            return False
        if wait is not None:
            return hart.cycle >= wait.not_before
        return self.stopping is None

    def _wakes(self) -> bool:
        """Check whether an interrupt that is pending already ends the wait."""
        csrs = self.hart.csrs
        return bool(csrs.mip & csrs.mie) and (self.hart.interrupt() is not None or self._at_wfi())

    def _at_wfi(self) -> bool:
        decoded = self._fetch(self.hart.pc)
        return decoded.instruction is not None and decoded.instruction.row.op_class is OpClass.WFI

    def _take_interrupt(self) -> bool:
        """Take a pending interrupt that squashes the instruction at pc; return whether it was taken. A WFI retires
        before it."""
        hart = self.hart
        interrupt = hart.interrupt()
        if interrupt is None or (hart.waiting is not None and self._at_wfi()):
            return False
        pc, start = hart.pc, hart.cycle if hart.waiting is None else hart.waiting.start
        self._stale_fetch = None
        hart.enter_trap(interrupt, 0, interrupt=True)
        hart.cycle += hart.timing.irq
        self._report_trap(pc, interrupt, 0, start, True)
        return True

    def trap(self, cause: int, value: int, delay: int = 0) -> After | None:
        """Take a synchronous trap, detected `delay` cycles after the hart's cycle; stop in a trap loop."""
        value &= self.isa.mask
        if self._in_trap_loop(cause, value):
            return None
        hart = self.hart
        pc, start = hart.pc, hart.cycle if hart.waiting is None else hart.waiting.start
        hart.enter_trap(cause, value)
        hart.cycle += delay + hart.timing.trap
        self._report_trap(pc, cause, value, start, False)
        return None

    def _in_trap_loop(self, cause: int, value: int) -> bool:
        """Check whether the synchronous trap at pc repeats the last trap without progress; if so, stop the run."""
        hart = self.hart
        if not hart.records.execute(repeats_trap, hart.pc, cause, value, hart.instret):
            return False
        trap = self._trap_text(hart.pc, cause, value)
        first = self._trap_text(*(hart.x[word_of(name)] for name in ("loop_pc", "loop_cause", "loop_value")))
        origin = "" if first == trap else f"; it began at {first}"
        self.stop(Stop(StopReason.TRAP_LOOP, text=f"trap loop at {trap}{origin}"))
        return True

    def _trap_text(self, pc: int, cause: int, value: int) -> str:
        """Return the message text of a synchronous trap."""
        meant = self.isa.meaning(value) if cause == Cause.ILLEGAL else ""
        text = f"pc {pc:#010x}: cause {cause} ({cause_name(cause)}), mtval {value:#010x}"
        return f"{text} ({meant})" if meant else text

    # -- interface of the slow path ----------------------------------------------------------------------------

    def flush(self) -> None:
        """Execute FENCE.I: invalidate decoded instructions that differ from memory."""
        self.code.refresh()

    # -- snapshots ---------------------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """Return the state beyond the hart's: the last trap (to find trap loops), a pending stop, an instruction
        fetched ahead."""
        stop, fetch = self.stopping, self._stale_fetch
        trapped = [self.hart.x[word_of(name)] for name in _TRAPPED]
        return {
            "trapped": None if trapped[0] == NEVER else trapped,
            "stop": None if stop is None else {"reason": stop.reason.value, "code": stop.code, "text": stop.text},
            "ahead": None if fetch is None else {"pc": fetch.pc, "word": fetch.word, "over": fetch.overwritten},
        }

    def load_state(self, state: Any) -> None:
        """Restore a state after memory has been restored. StateError if it is invalid."""
        fields = Fields(state, "trapped", "stop", "ahead")
        mask, count = self.isa.mask, (0, LATEST)
        word = (0, mask)
        trapped: tuple[int, ...] = (NEVER, 0, 0, 0, 0, 0)
        if fields["trapped"] is not None:
            trapped = fields.row("trapped", count, word, word, word, word, word)
        for name, value in zip(_TRAPPED, trapped, strict=True):
            self.hart.x[word_of(name)] = value
        self.stopping = self._stale_fetch = None
        with inside("stop"):
            if fields["stop"] is not None:
                stop = Fields(fields["stop"], "reason", "code", "text")
                if stop["reason"] not in list(StopReason):
                    raise StateError(f"{quote(stop['reason'])} is no reason", "reason")
                reason, code = StopReason(stop.text("reason")), stop.optional("code", -LATEST, LATEST)
                self.stopping = Stop(reason, code, stop.text("text"))
        with inside("ahead"):
            if fields["ahead"] is not None:
                fetch = Fields(fields["ahead"], "pc", "word", "over")
                over = None if fetch["over"] is None else fetch.data("over")
                self._stale_fetch = StaleFetch(fetch.integer("pc", 0, mask), fetch.integer("word", 0, WORD32), over)
        self.flush()

    # -- hooks -------------------------------------------------------------------------------------------------

    def mark(self, pc: int) -> int:
        """Log entry or return of a submit function right before each instruction at `pc`. Returns 0."""
        if self._mark not in self.code.hooks.get(pc, ()):
            self.code.add_hook(pc, self._mark)
        return 0

    def _mark(self, hart: Hart) -> None:
        clock, x = self.bus.clock, hart.x
        clock.call[log.mark](clock.arena, hart.pc, x[1], x[2], hart.cycle)
