"""The engine `fast`: native code by LLVM, from an interpreter made from the table and translations of what runs often.

Closures execute the start of a program, so that a short one does not wait for LLVM, unless its last run did; which of
the three executes an instruction changes nothing but the speed. Time jumps over loops that poll (`PollingDetection`).
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from pyv_ext.bus.bus import Bus
from pyv_ext.engines.engine import Engine
from pyv_ext.engines.last_run import LastRun
from pyv_ext.engines.polling import PollingDetection
from pyv_ext.engines.tracer import batches_of
from pyv_ext.hart.hart import Hart
from pyv_ext.hart.pmp import EXECUTE, Spans

if TYPE_CHECKING:
    from pyv_ext.engines.fast.native import Native

WARM_UP = 1 << 15
"""Instructions that closures execute before native code is made: about what making it costs. A program whose last run
has needed native code has it at once."""


MOST_NATIVES = 8
"""Forms of native code for where PMP lets it fetch that are kept."""


class FastEngine(Engine):
    """Imports llvmlite when a program has run for a while."""

    def __init__(self, hart: Hart, bus: Bus, *, misaligned: bool = False) -> None:
        super().__init__(hart, bus, misaligned=misaligned)
        self._natives: dict[Spans | None, Native] = {}
        """Native code by where PMP lets it fetch; None while that forbids nothing."""
        self._watching = False
        self._warm_up = WARM_UP
        self._last: LastRun | None = None
        self._polling = PollingDetection(self, self.code)
        self.code.on_drop.append(self._drop)
        self.code.may_be_volatile = True

    def _burst(self, until: int) -> None:
        native = self._native_code(until)
        if native is None:
            return
        start = self.hart.cycle
        native.run(min(until, start + self._polling.due))
        self._polling.executed(self.hart.cycle - start, until)

    def _traced(self, until: int) -> None:
        if batches_of(self.tracer) is not None:
            self._burst(until)
        else:
            super()._traced(until)

    def _guarded(self, until: int) -> None:
        hart = self.hart
        if self.tracer is not None or self._warm_up > 0:
            before = hart.instret
            self._one()
            self._warm_up -= hart.instret - before
        else:
            self._native_at(hart.csrs.pmp.spans(hart.priv, EXECUTE)).run(until)

    def _native_code(self, until: int) -> "Native | None":
        """What executes native code; None while the program is young: then closures have executed a part of it."""
        if self._last is None:
            self._last = LastRun(self)
            if self._last.regions:
                self._warm_up = 0
        if self._warm_up > 0:
            before = self.hart.instret
            young = min(until, self.hart.cycle + self._warm_up)
            if self.tracer is None:
                super()._burst(young)
            else:
                super()._traced(young)
            self._warm_up -= self.hart.instret - before
            return None
        return self._native_at(None)

    def _native_at(self, fetchable: Spans | None) -> "Native":
        """What executes native code where PMP lets it fetch nothing else; None: it forbids nothing."""
        if self.bus.watching is not self._watching:
            self._watching = self.bus.watching
            self._close(tuple(self._natives))
        native = self._natives.get(fetchable)
        if native is None:
            from pyv_ext.engines.fast.native import Native

            self._close(tuple(self._natives)[1 : 1 - MOST_NATIVES])
            last = self._last if fetchable is None else None
            native = self._natives[fetchable] = Native(self, self.code, self._execute_slow, last, fetchable)
        return native

    def _close(self, which: Iterable[Spans | None]) -> None:
        for fetchable in which:
            self._natives.pop(fetchable).close()

    def flush(self) -> None:
        super().flush()
        for native in self._natives.values():
            native.restored()

    def _drop(self, pcs: Iterable[int]) -> None:
        for native in self._natives.values():
            native.drop(pcs)
