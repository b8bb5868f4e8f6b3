"""Polling loops: time jumps over iterations that change nothing (docs/core-timing.md, "Engines").

An iteration that returns to its first pc with the same registers, and that has only computed, jumped and loaded from
memory and stable registers, repeats until the next event. Such iterations are counted, not executed.
"""

from typing import TYPE_CHECKING

from pyv_ext.engines.code import DecodeCache
from pyv_ext.isa import OpClass
from pyv_ext.machine.slots import INSTRET, PC

if TYPE_CHECKING:
    from pyv_ext.engines.engine import Engine

PLAIN = (OpClass.OP, OpClass.LOAD, OpClass.BRANCH, OpClass.JUMP)
"""Kinds that change only registers when their closures execute them."""

MAX_INSTRUCTIONS = 32
"""Maximum instructions of a recognized loop."""

MIN_INTERVAL, MAX_INTERVAL = 1 << 11, 1 << 22
"""Bounds of the cycles between two checks for polling; a check takes some microseconds."""

WORTH = 1 << 14
"""Minimum cycles to the next event for a check: native code executes as many in the time of a check."""


class PollingDetection:
    """Detector of a polling loop at the hart's pc. A check that finds none, or is impossible because an event is due,
    doubles the interval to the next."""

    def __init__(self, core: "Engine", code: DecodeCache) -> None:
        self._core = core
        self._code = code
        self._interval = MIN_INTERVAL
        self.remaining = MIN_INTERVAL
        """Cycles until the next check."""

    def count_cycles(self, cycles: int, until: int) -> None:
        """Count executed cycles; when a check is due, jump over polling iterations up to cycle `until`."""
        self.remaining -= cycles
        if self.remaining > 0:
            return
        core, hart = self._core, self._core.hart
        limit = min(until, core.bus.clock.next)
        is_busy = hart.waiting is not None or core.stopping is not None or hart.csrs.mip & hart.csrs.mie
        is_busy = is_busy or hart.guarded
        possible = hart.cycle + WORTH < limit and not is_busy and not core.tracers and not core.has_fetched_ahead
        polls = possible and self.skip(limit)
        self._interval = MIN_INTERVAL if polls else min(2 * self._interval, MAX_INTERVAL)
        self.remaining = self._interval

    def skip(self, limit: int) -> bool:
        """Execute one iteration, and skip as many as fit before cycle `limit`; no event is due before it.

        Returns False for other code, of which some instructions have then been executed as usual.
        """
        core, hart = self._core, self._core.hart
        pc, cycle, instret, registers = hart.pc, hart.cycle, hart.instret, self._registers()
        if core.bus.guards:
            return False
        for _ in range(MAX_INSTRUCTIONS):
            if hart.cycle >= limit or not self._step():
                return False
            if hart.pc == pc:
                break
        took = hart.cycle - cycle
        if hart.pc != pc or not took or self._registers() != registers:
            return False
        iterations = max(limit - hart.cycle, 0) // took
        hart.instret += iterations * (hart.instret - instret)
        hart.cycle += iterations * took
        return iterations > 0

    def _registers(self) -> tuple[bytes, bytes]:
        """Return the words of the hart without pc, cycle and instret."""
        x = self._core.hart.x
        return x[:PC].tobytes(), x[INSTRET + 1 :].tobytes()

    def _step(self) -> bool:
        """Execute an instruction if a polling loop may contain it; return whether it did so and changed nothing
        else."""
        core, hart = self._core, self._core.hart
        decoded = self._code.at(hart.pc)
        if (
            decoded.instruction is None
            or decoded.instruction.row.op_class not in PLAIN
            or hart.pc in self._code.hooks
            or self._code.decoded.get(hart.pc) is not decoded
        ):
            return False
        clock = core.bus.clock
        changes = clock.changes
        after = decoded.step()
        if after is None:
            if decoded.instruction.row.op_class is not OpClass.LOAD:
                return False
            after = decoded.slow()
        if after is None:
            return False
        hart.pc, cycles = after
        hart.cycle += cycles
        hart.instret += 1
        return clock.changes == changes and core.stopping is None
