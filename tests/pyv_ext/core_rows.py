"""Changes of interrupt lines, from the core log."""

from pyv_ext.bus.clock import Clock
from pyv_ext.machine.state import MEIP, LogKind


class Lines:
    """All changes of the interrupt bits of mip since it was made."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._rows: list[tuple[int, ...]] = []
        clock.log.subscribe(self._rows.extend, (LogKind.LINES,))

    def _changes(self, bits: int) -> list[tuple[int, int]]:
        self._clock.log.read()
        return [(row[0], row[4] & bits) for row in self._rows if row[5] == LogKind.LINES and row[3] & bits]

    @property
    def all(self) -> list[tuple[int, int]]:
        """(cycle, bits of mip)."""
        return self._changes(0xFFFF)

    @property
    def external(self) -> list[tuple[int, bool]]:
        """(cycle, level) of MEIP."""
        return [(cycle, level != 0) for cycle, level in self._changes(MEIP)]
