"""Platform-level interrupt controller with one context: machine mode of hart 0 (RISC-V PLIC specification 1.0.0)."""

from typing import Any

from pyv_ext.devices.base import Register, RegisterDevice
from pyv_state import WORD32, Fields, StateError, inside

SOURCES = 31
PRIORITY_MASK = 7
"""Seven priority levels; priority 0 never interrupts."""
_PRIORITIES = tuple(f"PRIORITY{source}" for source in range(SOURCES + 1))


class Plic(RegisterDevice):
    """Sources 1..31 with level-triggered gateways.

    A gateway passes one request at a time: a high level makes its source pending; a claim takes the source into
    service; after completion the level is looked at again. A request that was passed stays when its level falls.
    """

    name = "plic"
    size = 0x400_0000
    registers = (
        *(Register(_PRIORITIES[source], 4 * source, mask=PRIORITY_MASK) for source in range(1, SOURCES + 1)),
        Register("PENDING", 0x1000, "ro"),
        Register("ENABLE", 0x2000, mask=0xFFFF_FFFE),
        Register("THRESHOLD", 0x20_0000, mask=PRIORITY_MASK),
        Register("CLAIM", 0x20_0004),
    )

    def __init__(self) -> None:
        super().__init__()
        self._levels = 0
        self._in_service = 0

    @property
    def irq(self) -> bool:
        """The context's interrupt notification: an enabled pending source is above the threshold."""
        best = self._best()
        return best != 0 and self[_PRIORITIES[best]] > self["THRESHOLD"]

    def set_level(self, source: int, level: bool) -> None:
        """The interrupt line of `source` (1..31) as it is now."""
        bit = 1 << source
        if bool(self._levels & bit) != level:
            self._levels ^= bit
            self._pass_requests()

    def _pass_requests(self) -> None:
        self["PENDING"] |= self._levels & ~self._in_service

    def _best(self) -> int:
        """The enabled pending source of highest priority, of equal ones the lowest; 0 when there is none."""
        content = self._content
        candidates = content["PENDING"] & content["ENABLE"]
        best = priority = 0
        while candidates:
            source = (candidates & -candidates).bit_length() - 1
            candidates &= candidates - 1
            if content[_PRIORITIES[source]] > priority:
                best, priority = source, content[_PRIORITIES[source]]
        return best

    def on_read(self, name: str, now: int) -> int:
        return self._claim() if name == "CLAIM" else self[name]

    def stable(self, offset: int, size: int) -> bool:
        return self._at[offset].name != "CLAIM"

    def peek(self, offset: int, size: int, now: int) -> int | None:
        """CLAIM shows the source that a claim would take."""
        if not self.accepts(offset, size, False):
            return None
        name = self._at[offset].name
        return self._best() if name == "CLAIM" else self[name]

    def on_write(self, name: str, value: int, now: int) -> None:
        if name == "CLAIM":
            self._complete(value)
        else:
            self[name] = value

    def _claim(self) -> int:
        """Take the best source into service, whatever the threshold."""
        source = self._best()
        if source:
            self["PENDING"] &= ~(1 << source)
            self._in_service |= 1 << source
        return source

    def _complete(self, source: int) -> None:
        """End the service of an enabled source; the specification ignores any other value."""
        if source <= SOURCES and self["ENABLE"] >> source & 1:
            self._in_service &= ~(1 << source)
            self._pass_requests()

    # -- snapshots ---------------------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """What a snapshot keeps."""
        return {"registers": self.contents(), "levels": self._levels, "in_service": self._in_service}

    def load_state(self, state: Any) -> None:
        fields = Fields(state, "registers", "levels", "in_service")
        with inside("registers"):
            self.load_contents(fields["registers"])
        for name in ("PENDING", "ENABLE"):
            if self[name] & 1:
                raise StateError("source 0 does not exist", "registers", name)
        self._levels, self._in_service = (fields.integer(name, 0, WORD32) for name in ("levels", "in_service"))
