"""Interrupt wiring: routes of device lines to the bits of mip, and their delays."""

from collections.abc import Mapping, Sequence
from typing import Any

from pyv_ext.bus.clock import NEVER, Clock
from pyv_ext.devices.clint import Clint
from pyv_ext.devices.plic import SOURCES, Plic
from pyv_ext.errors import PyvExtError
from pyv_ext.machine.state import MEIP, MSIP, MTIP, STIP
from pyv_ext.protocols import Device
from pyv_native.state import LATEST, Fields


class InterruptWiring:
    """Wiring of all lines of one hart to the bits of mip, in the words of the clock.

    `sources` connects PLIC sources (1..31) to devices; the lines of `direct` devices bypass the PLIC and drive MEIP.
    MEIP through the PLIC rises `plic_delay` cycles after the PLIC's output (`CoreTiming.plic`) and falls with it.
    """

    def __init__(
        self,
        clock: Clock,
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
        for built_in in (clint, plic):
            clock.attach(built_in)
        for source, device in sources.items():
            clock.connect(device, source=source)
        for device in direct:
            clock.connect(device, direct=True)
        self.record = clock.machine.wiring
        self.record.last_cycle, self.record.delay, self.record.on = clock.now, plic_delay, True
        clock.changed(clock.now)

    @property
    def lines(self) -> int:
        """Levels of the lines, as bits of mip."""
        return self.record.lines

    @property
    def external(self) -> tuple[int, bool] | None:
        """Last change of MEIP: its cycle, and the level after it; None if it has never changed."""
        changed = self.record.changed
        return (changed, bool(self.record.lines & MEIP)) if changed else None

    # -- snapshots ---------------------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """Return the state of a snapshot."""
        record, deadline = self.record, self.record.deadline
        return {
            "lines": record.lines, "now": record.last_cycle, "changed": record.changed,
            "plic_due": deadline if deadline < NEVER else None,
        }  # fmt: skip

    def load_state(self, state: Any) -> None:
        fields = Fields(state, "lines", "now", "changed", "plic_due")
        record = self.record
        record.lines = fields.integer("lines", 0, MSIP | MTIP | MEIP | STIP)
        record.last_cycle, deadline = fields.integer("now", 0, LATEST), fields.optional("plic_due", 0, LATEST)
        record.deadline = NEVER if deadline is None else deadline
        record.changed = fields.integer("changed", 0, LATEST)
