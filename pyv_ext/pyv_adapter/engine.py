"""Engine `pyv`: the Py-V core behind the interface of engines; every cycle is a cycle of the netlist."""

from typing import Any

from pyv_ext.bus.bus import Bus
from pyv_ext.bus.clock import NEVER
from pyv_ext.engines.core import AccessStopped, Stop
from pyv_ext.engines.engine import Engine, StaleFetch
from pyv_ext.errors import PyvExtError
from pyv_ext.hart.hart import Hart
from pyv_ext.isa import Isa
from pyv_ext.machine.traps import INTERRUPT
from pyv_ext.pyv_adapter import ISA, loader
from pyv_ext.timing import CoreTiming


class PyvEngine(Engine):
    """Engine that executes the instructions of `hart` on `bus` by the extended Py-V core.

    `specialised` selects the evaluation: faster parts and a fixed order, or Py-V's own. PyvExtError if Py-V is missing
    or has another structure, or if the core does not support the hart. Cycle 0 is the bubble after reset.
    """

    def __init__(self, hart: Hart, bus: Bus, *, misaligned: bool = False, specialised: bool = True) -> None:
        _check(hart.isa, hart.timing, misaligned)
        super().__init__(hart, bus)
        loader.load()
        from pyv_ext.pyv_adapter.clocked_core import ClockedCore

        self._core = ClockedCore(hart, bus, specialised=specialised)
        self._in_core: int | None = None
        """pc of the instruction in the core's pipeline; None: there is none."""
        hart.cycle = max(hart.cycle, hart.timing.reset)

    def run(self, until: int) -> Stop | None:
        """Run as the base class does; the host may have changed pc, registers and memory before."""
        self._take_over()
        while self.stopping is None and self.hart.cycle < until:
            if self._ready(until):
                self._execute_instruction()
        return self._take_stop()

    def step(self, until: int = NEVER) -> Stop | None:
        """Step as the base class does."""
        self._take_over()
        return super().step(until)

    def _take_over(self) -> None:
        pc = self.hart.pc
        if self._in_core != pc:
            self._core.select_instruction(pc, self._stale_word(pc))
            self._in_core = pc

    def flush(self) -> None:
        """Fetch the instruction again."""
        super().flush()
        self._in_core = None

    def state(self) -> dict[str, Any]:
        """Return the state as the base class does; here the pipeline holds the instruction that was fetched ahead."""
        self._keep_fetch()
        return super().state()

    def _keep_fetch(self) -> None:
        """Record the instruction of the pipeline if memory has changed: it is lost when the core restarts."""
        if self._in_core == self.hart.pc:
            fetch = self._core.stale_fetch
            self._stale_fetch = None if fetch is None else StaleFetch(self._in_core, *fetch)

    def _at_wfi(self) -> bool:
        return self._core.holds_wfi

    def _take_interrupt(self) -> bool:
        """Let the core take an interrupt; return whether it did."""
        if not self._core.begin():
            return False
        self._execute_instruction()
        return True

    def _execute_instruction(self) -> None:
        """Execute a cycle: a whole instruction, or a poll of an instruction that waits."""
        hart, core = self.hart, self._core
        pc, waiting = hart.pc, hart.waiting
        start = hart.cycle if waiting is None else waiting.start
        if not core.begin() and waiting is None and pc in self.code.hooks and not self._call_hooks(pc):
            return
        self._keep_fetch()
        self._in_core = None  # after an exception the next run restarts this instruction
        try:
            trap = core.evaluate()
        except AccessStopped as stopped:
            core.release()
            return self.stop(stopped.stop)
        trapped = trap.cause >= 0
        interrupt = trapped and bool(trap.cause & INTERRUPT)
        if trapped and not interrupt and self._in_trap_loop(trap.cause, trap.value):
            return core.release()
        core.tick()
        self._in_core, self._stale_fetch = hart.pc, None
        if trapped:
            self._report_trap(pc, trap.cause & ~INTERRUPT, trap.value, start, interrupt)
        elif hart.waiting is None and core.instruction is not None:
            self._report_retirement(pc, start, hart.cycle, core.instruction)
        return None


def _check(isa: Isa, timing: CoreTiming, misaligned: bool) -> None:
    """Raise PyvExtError if the core does not support a hart with these properties."""
    core_isa = Isa(ISA)
    absent = [] if isa.xlen == core_isa.xlen else [f"rv{isa.xlen}"]
    absent += [name for name in isa.extensions if name not in core_isa.extensions]
    if absent:
        raise PyvExtError(f"core pyv: ISA {isa.name}: it does not execute {absent[0]}: use {ISA}")
    if misaligned:
        raise PyvExtError("core pyv: misaligned accesses trap: set core.misaligned to false, or use another core")
    if timing != CoreTiming():
        raise PyvExtError("core pyv: executes an instruction per cycle, its bus too: use preset pyv, or another core")
