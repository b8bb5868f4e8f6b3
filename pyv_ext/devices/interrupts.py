"""From interrupt lines to the bits of mip: which device's line goes where, and when the hart sees it."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pyv_ext.bus.clock import Clock
from pyv_ext.devices.clint import Clint
from pyv_ext.devices.plic import SOURCES, Plic
from pyv_ext.errors import PyvExtError
from pyv_ext.protocols import Device
from pyv_state import LATEST, Fields

MSIP, MTIP, MEIP = 1 << 3, 1 << 7, 1 << 11


class InterruptWiring:
    """Follows all lines of one hart and tells it the interrupt bits of mip whenever they change.

    `sources` connects PLIC sources (1..31) to devices; the lines of `direct` devices go past the PLIC straight to
    MEIP. MEIP through the PLIC rises `plic_delay` cycles after the PLIC's output (`CoreTiming.plic`) and falls with it.
    """

    def __init__(
        self,
        clock: Clock,
        set_lines: Callable[[int], None],
        *,
        clint: Clint,
        plic: Plic,
        sources: Mapping[int, Device],
        direct: Sequence[Device] = (),
        plic_delay: int = 0,
    ) -> None:
        for source, device in sources.items():
            if not 1 <= source <= SOURCES:
                raise PyvExtError(f"PLIC source {source} of {device.name}: sources are 1..{SOURCES}")
        self.on_external: list[Callable[[int, bool], None]] = []
        """`f(cycle, level)` when MEIP changes to `level` at the start of `cycle`."""
        self.lines = 0
        """The bits of mip as the hart sees them."""
        self._set_lines = set_lines
        self._clint = clint
        self._plic = plic
        self._sources = dict(sources)
        self._direct = tuple(direct)
        self._plic_delay = plic_delay
        self._now = clock.now
        self._plic_due: int | None = None
        """When the PLIC's output, high now, reaches mip; None while it is low."""
        clock.on_change(self._follow, heeds=(clint, plic))
        clock.attach(self, heeds=(clint, plic))

    def drives(self, device: object, set_lines: Callable[[int], None]) -> bool:
        """Whether the bits of mip that `set_lines` is told follow the device's own lines."""
        return device is self._clint and set_lines == self._set_lines

    def next_event(self) -> int | None:
        due = self._plic_due
        return due if due is not None and due > self._now else None

    def advance(self, now: int) -> None:
        """The clock reports the change itself: `_follow` acts."""

    def _follow(self, cycle: int) -> None:
        cycle = self._now = max(cycle, self._now)  # the host may call in the middle of an access
        plic = self._plic
        for source, device in self._sources.items():
            plic.set_level(source, device.irq)
        if not plic.irq:
            self._plic_due = None
        elif self._plic_due is None:
            self._plic_due = cycle + self._plic_delay
        external = self._plic_due is not None and self._plic_due <= cycle
        external = external or any(device.irq for device in self._direct)
        lines = (MSIP if self._clint.software else 0) | (MTIP if self._clint.timer else 0) | (MEIP if external else 0)
        if lines == self.lines:
            return
        changed = (lines ^ self.lines) & MEIP
        self.lines = lines
        self._set_lines(lines)
        if changed:
            for observer in self.on_external:
                observer(cycle, external)

    # -- snapshots ---------------------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """What a snapshot keeps."""
        return {"lines": self.lines, "now": self._now, "plic_due": self._plic_due}

    def load_state(self, state: Any) -> None:
        fields = Fields(state, "lines", "now", "plic_due")
        self.lines = fields.integer("lines", 0, MSIP | MTIP | MEIP)
        self._now, self._plic_due = fields.integer("now", 0, LATEST), fields.optional("plic_due", 0, LATEST)
