"""What the last run of a program has translated to native code: the next one begins with it."""

import struct
from collections.abc import Iterable, Sequence
from hashlib import sha256
from typing import NamedTuple

from pyv_ext.bus.memory import PAGE
from pyv_ext.engines.slow import Core
from pyv_jit.code_cache import code_cache


class Extent(NamedTuple):
    """A block of the last run: its address, its bytes, and the CRC-32 of what was there."""

    pc: int
    size: int
    check: int


_EXTENT, _COUNT = struct.Struct("<III"), struct.Struct("<I")
KEEPS = 64
"""How often a run keeps its regions at most: programs that need more of them translate for longer than they start.
0: nothing is kept, nor looked for."""


class LastRun:
    """The regions with which the last run of a program ended, for the next one to begin with.

    What is kept is a hint, on which nothing but speed depends. The page around its first instruction tells a program
    from others.
    """

    def __init__(self, core: Core) -> None:
        """Of the program whose first instruction is the next one."""
        page = core.hart.pc & -PAGE
        about = f"regions of {core.isa.name} at {page:#x}\n".encode()
        self._key = sha256(about + (core.bus.peek(page, PAGE) or b"")).digest()
        self._cache = code_cache() if KEEPS else None
        self._keeps = 0
        kept = self._cache.get(self._key) if self._cache is not None else None
        self.regions: list[list[Extent]] = [] if kept is None else _unpacked(kept)

    def keep(self, regions: Iterable[Sequence[Extent]]) -> None:
        """Let the next run begin with these."""
        self._keeps += 1
        if self._cache is not None and self._keeps <= KEEPS:
            self._cache.put(self._key, _packed(regions))


def _packed(regions: Iterable[Sequence[Extent]]) -> bytes:
    return b"".join(
        _COUNT.pack(len(region)) + b"".join(_EXTENT.pack(extent.pc, extent.size, extent.check) for extent in region)
        for region in regions
    )


def _unpacked(kept: bytes) -> list[list[Extent]]:
    """The inverse of `_packed`; nothing, where the bytes are none of it."""
    regions, at = [], 0
    while at < len(kept):
        end = at + _COUNT.size
        if end > len(kept):
            return []
        (count,) = _COUNT.unpack(kept[at:end])
        at, end = end, end + count * _EXTENT.size
        if end > len(kept):
            return []
        regions.append([Extent(*fields) for fields in _EXTENT.iter_unpack(kept[at:end])])
        at = end
    return regions
