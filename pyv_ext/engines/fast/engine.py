"""Engine `fast`: an interpreter generated from the instruction table, and translations of hot code, compiled by LLVM.

Closures execute the start of a program, so that a short program does not wait for LLVM, unless its last run needed it.
The choice among the three affects only speed. Iterations of polling loops are skipped (`PollingDetection`).
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from pyv_ext.bus.bus import Bus
from pyv_ext.engines.core import Stop
from pyv_ext.engines.engine import Engine
from pyv_ext.engines.persistent.profile_image import ProfileImage, Regions
from pyv_ext.engines.polling import PollingDetection
from pyv_ext.hart.hart import Hart

if TYPE_CHECKING:
    from pyv_ext.engines.fast.native import Native

WARM_UP = 1 << 15
"""Instructions that closures execute before native code is generated: about as long as the generation takes. A program
whose last run reached native code uses it at once."""
READY = 1 << 10
"""`WARM_UP` if the interpreter is likely to be in the cache: about as long as loading it takes."""


class FastEngine(Engine):
    """Engine that imports llvmlite only after a warm-up."""

    def __init__(self, hart: Hart, bus: Bus, *, misaligned: bool = False) -> None:
        super().__init__(hart, bus, misaligned=misaligned)
        self._native: Native | None = None
        self._configuration = False, False
        """Whether native code checks for watched loads, and whether it checks PMP."""
        self._warm_up = WARM_UP
        self._profile: ProfileImage | None = None
        self._polling = PollingDetection(self, self.code)
        self.code.on_drop.append(self._drop)
        self.code.supports_self_modifying = True

    def run(self, until: int) -> Stop | None:
        stop = super().run(until)
        if stop is not None and self._native is not None:
            self._native.store_profile()
        return stop

    def _burst(self, until: int) -> None:
        native = self._native_code(until)
        if native is None:
            return
        start = self.hart.cycle
        native.run(min(until, start + self._polling.remaining))
        self._polling.count_cycles(self.hart.cycle - start, until)

    def _guarded_burst(self, until: int) -> None:
        hart = self.hart
        if self.tracers or self._warm_up > 0:
            previous = hart.instret
            self._execute_instruction()
            self._warm_up -= hart.instret - previous
        else:
            self._current_native().run(until)

    def _native_code(self, until: int) -> "Native | None":
        """Return the native code, created after the warm-up; None: closures have executed a part of the warm-up
        instead."""
        if self._profile is None:
            self._profile = ProfileImage(self)
            if self._profile.ready:
                self._warm_up = min(self._warm_up, READY)
            if self._profile.native:
                self._warm_up = 0
                self._configuration = False, any(fetchable is not None for fetchable in self._profile.regions)
        if self._warm_up > 0:
            previous = self.hart.instret
            young = min(until, self.hart.cycle + self._warm_up)
            super()._burst(young)
            self._warm_up -= self.hart.instret - previous
            return None
        return self._current_native()

    def _current_native(self) -> "Native":
        """Return the native code for the current observers and protection."""
        form = self.bus.watching, self._configuration[1] or self.hart.guarded
        if self._native is None or form != self._configuration:
            from pyv_ext.engines.fast.native import Native

            regions: Regions = {} if self._profile is None else self._profile.regions
            if self._native is not None:
                regions = self._native.regions
            self._configuration = form
            self._native = Native(self, self.code, self._execute_slow, self._profile, regions, guarded=form[1])
            if self._profile is not None:
                self._profile.record_native_code()
        return self._native

    def _drop(self, pcs: Iterable[int]) -> None:
        if self._native is not None:
            self._native.drop(pcs)
