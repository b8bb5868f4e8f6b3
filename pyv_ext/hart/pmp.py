"""Physical memory protection (RISC-V privileged manual, version 1.12, "Physical Memory Protection").

16 entries with a grain of 4 bytes: OFF, TOR, NA4 and NAPOT; locks; machine and user mode. An access that is misaligned
counts as several, one for each 4 bytes that it touches, so no entry ever matches a part of one.
"""

from bisect import bisect_right
from collections.abc import Sequence
from typing import Any

from pyv_ext.hart.slots import PMP_WRITES, PMPADDR, PMPCFG
from pyv_ext.hart.traps import MACHINE, USER
from pyv_native.state import WORD32, Fields, StateError

ENTRIES = 16
"""Protection regions."""

LOCK = 0x80
WRITABLE = 0x9F
"""Bits of a `cfg` byte: the lock, and those that a write may change."""
_TOR, _NA4 = 0x08, 0x10
_MODE = 0x18
_SPACE = 1 << 32
"""Addresses of the hart. Regions may lie beyond: pmpaddr has 34-bit addresses."""


Spans = tuple[tuple[int, int], ...]
"""Ranges of addresses, each with the first address above it, in their order."""

READ, WRITE, EXECUTE, ALL = 1, 2, 4, 7
"""Rights that an entry may give: the bits of its `cfg` byte."""

KEPT = 64
"""Maps that are kept: a system that gives each task regions of its own has a few for each, again and again."""


class PmpMap:
    """What entries permit where. It never changes."""

    def __init__(self, cfg: Sequence[int], addr: Sequence[int]) -> None:
        """The address space is cut at the edges of all regions; between two of them rights are the same."""
        spans = [(*_span(cfg, addr, region), cfg[region]) for region in range(ENTRIES) if cfg[region] & _MODE]
        self._edges = sorted({0, *(edge for low, high, _ in spans for edge in (low, high) if edge < _SPACE)})
        self._rights = {mode: [_granted(edge, mode, spans) for edge in self._edges] for mode in (USER, MACHINE)}
        self.restricts = {mode: any(granted != ALL for granted in self._rights[mode]) for mode in self._rights}
        """By privilege mode: whether there is an address where it lacks a right."""

    def allows(self, address: int, size: int, rights: int, mode: int) -> bool:
        """Whether all bytes of an access have all the rights in a privilege mode."""
        first, granted = bisect_right(self._edges, address) - 1, self._rights[mode]
        last = bisect_right(self._edges, address + size - 1, first)
        return not rights & ~granted[first] and not any(rights & ~more for more in granted[first + 1 : last])

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


class Pmp:
    """The registers pmpcfg, which hold the bytes of four regions each, and pmpaddr, with their locks: words of `x`, as
    native code writes them too."""

    def __init__(self, x: "memoryview[int]") -> None:
        """Nothing is locked, and no region on."""
        self._x = x
        self._words = x[PMPCFG : PMPADDR + ENTRIES]
        self._cfg, self._addr = self._words[: PMPADDR - PMPCFG], self._words[PMPADDR - PMPCFG :]
        self._map: PmpMap | None = None
        self._of = -1
        """The version that the map is of."""
        self._load([0] * ENTRIES, [0] * ENTRIES)
        self._maps: dict[bytes, PmpMap] = {}
        """By their entries."""

    @property
    def version(self) -> int:
        """How often it has been written."""
        return self._x[PMP_WRITES]

    @property
    def cfg(self) -> bytes:
        """The bytes of all regions."""
        return b"".join(word.to_bytes(4, "little") for word in self._cfg)

    @property
    def addr(self) -> list[int]:
        return self._addr.tolist()

    def read_cfg(self, register: int) -> int:
        return self._cfg[register]

    def write_cfg(self, register: int, value: int) -> None:
        """Locked bytes keep their content; W without R is reserved and loses its W."""
        old, written = self._cfg[register], 0
        for shift in range(0, 32, 8):
            kept, byte = old >> shift & 0xFF, value >> shift & WRITABLE
            if kept & LOCK:
                byte = kept
            elif byte & 3 == 2:
                byte &= ~2
            written |= byte << shift
        self._cfg[register] = written
        self._x[PMP_WRITES] += 1

    def read_addr(self, region: int) -> int:
        return self._addr[region]

    def write_addr(self, region: int, value: int) -> None:
        """Ignored when the region is locked, or bounds a locked region from below."""
        cfg = (*self.cfg, 0)
        above = cfg[region + 1]
        if not cfg[region] & LOCK and not (above & LOCK and above & _MODE == _TOR):
            self._addr[region] = value
        self._x[PMP_WRITES] += 1

    # -- snapshots ---------------------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """What a snapshot keeps."""
        return {"cfg": self.cfg, "addr": self.addr}

    def load_state(self, state: Any) -> None:
        fields = Fields(state, "cfg", "addr")
        cfg, addr = list(fields.data("cfg", ENTRIES)), fields.integers("addr", 0, WORD32, ENTRIES)
        for region, byte in enumerate(cfg):
            if byte & ~WRITABLE or byte & 3 == 2:
                raise StateError(f"{byte:#x} is no configuration of a region", "cfg", region)
        self._load(cfg, addr)

    def _load(self, cfg: Sequence[int], addr: Sequence[int]) -> None:
        for register in range(ENTRIES // 4):
            self._cfg[register] = int.from_bytes(bytes(cfg[4 * register : 4 * register + 4]), "little")
        for region, value in enumerate(addr):
            self._addr[region] = value
        self._x[PMP_WRITES] += 1

    # -- what is permitted -------------------------------------------------------------------------------------

    @property
    def map(self) -> PmpMap:
        """What is permitted now: the same object for the same entries, as long as it is kept."""
        version = self._x[PMP_WRITES]
        if self._map is None or self._of != version:
            entries = self._words.tobytes()
            found = self._maps.get(entries)
            if found is None:
                if len(self._maps) == KEPT:
                    del self._maps[next(iter(self._maps))]
                found = self._maps[entries] = PmpMap(self.cfg, self.addr)
            self._map, self._of = found, version
        return self._map

    def allows(self, address: int, size: int, rights: int, mode: int) -> bool:
        """As `PmpMap.allows`, now."""
        return self.map.allows(address, size, rights, mode)

    def restricts(self, mode: int) -> bool:
        """Whether there is an address where the mode lacks a right."""
        return self.map.restricts[mode]


def _span(cfg: Sequence[int], addr: Sequence[int], region: int) -> tuple[int, int]:
    """First address of a region, and the first one above it."""
    address, mode = addr[region], cfg[region] & _MODE
    if mode == _TOR:
        return (addr[region - 1] << 2 if region else 0), address << 2
    if mode == _NA4:
        return address << 2, address + 1 << 2
    ones = address ^ address + 1  # the lowest zero of a NAPOT address, and the ones below it, say how large it is
    return (address & ~ones) << 2, (address | ones) + 1 << 2


def _granted(address: int, mode: int, spans: list[tuple[int, int, int]]) -> int:
    """The rights at an address: those of the first region there; without one, machine mode has all, user mode none."""
    for low, high, cfg in spans:
        if low <= address < high:
            return ALL if mode == MACHINE and not cfg & LOCK else cfg & ALL
    return ALL if mode == MACHINE else 0
