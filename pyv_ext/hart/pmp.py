"""Physical memory protection (RISC-V privileged manual, version 1.12, "Physical Memory Protection").

16 entries with a grain of 4 bytes: OFF, TOR, NA4 and NAPOT; locks; machine and user mode. An access that is misaligned
counts as several, one for each 4 bytes that it touches, so no entry ever matches a part of one.
"""

from bisect import bisect_right
from typing import Any

from pyv_ext.hart.traps import MACHINE, USER
from pyv_state import WORD32, Fields, StateError

ENTRIES = 16
"""Protection regions."""

_LOCK = 0x80
_WRITABLE = 0x9F
_TOR, _NA4 = 0x08, 0x10
_MODE = 0x18
_SPACE = 1 << 32
"""Addresses of the hart. Regions may lie beyond: pmpaddr has 34-bit addresses."""


Spans = tuple[tuple[int, int], ...]
"""Ranges of addresses, each with the first address above it, in their order."""

READ, WRITE, EXECUTE, ALL = 1, 2, 4, 7
"""Rights that an entry may give: the bits of its `cfg` byte."""


class Pmp:
    """`cfg` bytes and `addr` registers, with their locks. One pmpcfg register holds the bytes of four regions."""

    def __init__(self) -> None:
        self.cfg = [0] * ENTRIES
        self.addr = [0] * ENTRIES
        self.version = 0
        """How often it has been written."""
        self._refresh()

    def read_cfg(self, register: int) -> int:
        return int.from_bytes(self.cfg[4 * register : 4 * register + 4], "little")

    def write_cfg(self, register: int, value: int) -> None:
        """Locked bytes keep their content; W without R is reserved and loses its W."""
        for region, byte in enumerate(value.to_bytes(4, "little"), 4 * register):
            if not self.cfg[region] & _LOCK:
                byte &= _WRITABLE
                self.cfg[region] = byte & ~2 if byte & 3 == 2 else byte
        self._refresh()

    def write_addr(self, region: int, value: int) -> None:
        """Ignored when the region is locked, or bounds a locked region from below."""
        above = self.cfg[region + 1] if region + 1 < ENTRIES else 0
        if not self.cfg[region] & _LOCK and not (above & _LOCK and above & _MODE == _TOR):
            self.addr[region] = value
        self._refresh()

    # -- snapshots ---------------------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """What a snapshot keeps."""
        return {"cfg": bytes(self.cfg), "addr": list(self.addr)}

    def load_state(self, state: Any) -> None:
        fields = Fields(state, "cfg", "addr")
        cfg, addr = list(fields.data("cfg", ENTRIES)), fields.integers("addr", 0, WORD32, ENTRIES)
        for region, byte in enumerate(cfg):
            if byte & ~_WRITABLE or byte & 3 == 2:
                raise StateError(f"{byte:#x} is no configuration of a region", "cfg", region)
        self.cfg, self.addr = cfg, addr
        self._refresh()

    # -- what is permitted -------------------------------------------------------------------------------------

    def allows(self, address: int, size: int, rights: int, mode: int) -> bool:
        """Whether all bytes of an access have all the rights in a privilege mode."""
        first, granted = bisect_right(self._edges, address) - 1, self._rights[mode]
        last = bisect_right(self._edges, address + size - 1, first)
        return not rights & ~granted[first] and not any(rights & ~more for more in granted[first + 1 : last])

    def restricts(self, mode: int) -> bool:
        """Whether there is an address where the mode lacks a right."""
        return self._restricts[mode]

    def spans(self, mode: int, right: int) -> Spans:
        """Where the mode has a right: all bytes of an access lie in one of these, or it is forbidden."""
        found: list[tuple[int, int]] = []
        for low, high, granted in zip(self._edges, [*self._edges[1:], _SPACE], self._rights[mode], strict=True):
            if not granted & right:
                continue
            if found and found[-1][1] == low:
                low = found.pop()[0]
            found.append((low, high))
        return tuple(found)

    def _refresh(self) -> None:
        """Cut the address space at the edges of all regions; between two of them rights are the same."""
        self.version += 1
        spans = [(*self._span(region), self.cfg[region]) for region in range(ENTRIES) if self.cfg[region] & _MODE]
        self._edges = sorted({0, *(edge for low, high, _ in spans for edge in (low, high) if edge < _SPACE)})
        self._rights = {mode: [_granted(edge, mode, spans) for edge in self._edges] for mode in (USER, MACHINE)}
        self._restricts = {mode: any(granted != ALL for granted in self._rights[mode]) for mode in self._rights}

    def _span(self, region: int) -> tuple[int, int]:
        """First address of a region, and the first one above it."""
        address, mode = self.addr[region], self.cfg[region] & _MODE
        if mode == _TOR:
            return (self.addr[region - 1] << 2 if region else 0), address << 2
        if mode == _NA4:
            return address << 2, address + 1 << 2
        ones = address ^ address + 1  # the lowest zero of a NAPOT address, and the ones below it, say how large it is
        return (address & ~ones) << 2, (address | ones) + 1 << 2


def _granted(address: int, mode: int, spans: list[tuple[int, int, int]]) -> int:
    """The rights at an address: those of the first region there; without one, machine mode has all, user mode none."""
    for low, high, cfg in spans:
        if low <= address < high:
            return ALL if mode == MACHINE and not cfg & _LOCK else cfg & ALL
    return ALL if mode == MACHINE else 0
