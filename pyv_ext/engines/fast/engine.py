"""The engine `fast`: native code by LLVM, from an interpreter made from the table and translations of what runs often.

Closures execute the start of a program, so that a short one does not wait for LLVM; which of the three executes an
instruction changes nothing but the speed.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from pyv_ext.bus import Bus
from pyv_ext.engines.engine import Engine
from pyv_ext.hart import Hart

if TYPE_CHECKING:
    from pyv_ext.engines.fast.native import Native

WARM_UP = 1 << 15
"""Instructions that closures execute before native code is made: about what making it costs."""


class FastEngine(Engine):
    """Needs llvmlite, and imports it when a program has run for a while."""

    def __init__(self, hart: Hart, bus: Bus, *, misaligned: bool = False) -> None:
        super().__init__(hart, bus, misaligned=misaligned)
        self._native: Native | None = None
        self._watching = False
        self._warm_up = WARM_UP
        self.code.on_drop.append(self._drop)

    def _burst(self, until: int) -> None:
        if self._warm_up > 0:
            before = self.hart.instret
            super()._burst(min(until, self.hart.cycle + self._warm_up))
            self._warm_up -= self.hart.instret - before
            return
        if self._native is None or self.bus.watching is not self._watching:
            from pyv_ext.engines.fast.native import Native

            self._watching = self.bus.watching
            self._native = Native(self, self.code)
        hart, clock, native = self.hart, self.bus.clock, self._native
        while True:
            native.run(min(until, clock.next))
            if hart.cycle >= until or hart.cycle >= clock.next or not self._slowly(tried=True):
                return

    def flush(self) -> None:
        super().flush()
        if self._native is not None:
            self._native.forget_counters()

    def _drop(self, pcs: Iterable[int]) -> None:
        if self._native is not None:
            self._native.drop(pcs)
