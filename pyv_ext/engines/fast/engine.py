"""The engine `fast`: native code by LLVM, from an interpreter made from the table and translations of what runs often.

Closures execute the start of a program, so that a short one does not wait for LLVM; which of the three executes an
instruction changes nothing but the speed.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from pyv_ext.bus.bus import Bus
from pyv_ext.engines.engine import Engine
from pyv_ext.engines.polling import Polling
from pyv_ext.hart.hart import Hart

if TYPE_CHECKING:
    from pyv_ext.engines.fast.native import Native

WARM_UP = 1 << 15
"""Instructions that closures execute before native code is made: about what making it costs."""

SOON, LATE = 1 << 11, 1 << 22
"""Cycles after which it is asked whether the program polls; looking costs some microseconds."""


class FastEngine(Engine):
    """Imports llvmlite when a program has run for a while."""

    def __init__(self, hart: Hart, bus: Bus, *, misaligned: bool = False) -> None:
        super().__init__(hart, bus, misaligned=misaligned)
        self._native: Native | None = None
        self._watching = False
        self._warm_up = WARM_UP
        self._polling = Polling(self, self.code)
        self._seldom = self._patience = SOON
        self.code.on_drop.append(self._drop)

    def _burst(self, until: int) -> None:
        native = self._prepared(until)
        if native is None:
            return
        start = self.hart.cycle
        native.run(min(until, start + self._patience))
        self._patience -= self.hart.cycle - start
        if self._patience <= 0:
            self._look_for_polling(until)

    def _look_for_polling(self, until: int) -> None:
        """Now and then: more seldom where nothing is found."""
        hart, limit = self.hart, min(until, self.bus.clock.next)
        disturbed = hart.waiting is not None or self.stopping is not None or hart.csrs.mip & hart.csrs.mie
        disturbed = disturbed or self.tracer is not None
        if hart.cycle < limit and not disturbed and self._ahead is None:
            self._seldom = SOON if self._polling.skip(limit) else min(2 * self._seldom, LATE)
        self._patience = self._seldom

    def _traced(self, until: int) -> None:
        if hasattr(self.tracer, "ran"):
            self._burst(until)
        else:
            super()._traced(until)

    def _prepared(self, until: int) -> "Native | None":
        """What executes native code; None while the program is young, which closures have executed a part of then."""
        if self._warm_up > 0:
            before = self.hart.instret
            young = min(until, self.hart.cycle + self._warm_up)
            if self.tracer is None:
                super()._burst(young)
            else:
                super()._traced(young)
            self._warm_up -= self.hart.instret - before
            return None
        if self._native is None or self.bus.watching is not self._watching:
            from pyv_ext.engines.fast.native import Native

            if self._native is not None:
                self._native.close()
            self._watching = self.bus.watching
            self._native = Native(self, self.code, self._slowly)
        return self._native

    def flush(self) -> None:
        super().flush()
        if self._native is not None:
            self._native.restored()

    def _drop(self, pcs: Iterable[int]) -> None:
        if self._native is not None:
            self._native.drop(pcs)
