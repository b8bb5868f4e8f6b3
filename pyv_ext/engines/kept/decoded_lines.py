"""The decoded lines of code of a program's last run: the next one decodes nothing that is the same.

A line is taken over only where memory holds the bytes that it was decoded from, and its entries are of the very sources
that are executed now (`pyv_ext.engines.kept.recipe`): what is decoded does not depend on what is kept.
"""

import struct
import zlib
from collections.abc import Iterable

from pyv_ext.bus.memory import LINE, PAGE_BITS, Ram
from pyv_ext.engines.kept.last_run import LastRun
from pyv_jit.digest import sha256
from pyv_state.named import NamedTuple

SEEN = LINE + 2
"""Bytes that decide what is decoded in a line: its own, and those behind it, where its last instruction may end."""
_LEAST = 64
"""Instructions that a run must have decoded itself, besides an eighth of those of the last run, to be kept."""


class Line(NamedTuple):
    """A decoded line."""

    base: int
    """Its address."""
    places: int
    """Where instructions begin of which there are entries: bit n for byte 2 n."""
    seen: bytes
    entries: bytes
    """Of all its places."""

    @property
    def sizes(self) -> dict[int, int]:
        """The bytes of these instructions, by address."""
        places, seen = self.places, self.seen
        return {
            self.base + at: 4 if seen[at] & 3 == 3 else 2 for at in range(0, LINE, 2) if places >> (at >> 1) & 1
        }  # fmt: skip


class DecodedLines:
    """Those of one map of where PMP permits fetches."""

    def __init__(self, last: LastRun | None, recipe: str, size: int) -> None:
        """`recipe`: all that entries depend on besides the bytes; empty, and nothing is kept. `size`: bytes of the
        entries of a line."""
        self._cache = last.cache if last is not None and recipe else None
        self._key = b"" if last is None else sha256(last.key + recipe.encode()).digest()
        self._record = struct.Struct(f"<II{SEEN}s{size}s")
        self._pages: dict[int, list[Line]] = {}
        self._known = 0
        self._own = 0
        """Instructions of the last run that were taken over or are kept, and those that were decoded since."""
        kept = self._cache.get(self._key) if self._cache is not None else None
        for fields in () if kept is None else self._record.iter_unpack(zlib.decompress(kept)):
            line = Line(*fields)
            self._pages.setdefault(line.base >> PAGE_BITS, []).append(line)

    def take(self, pc: int, ram: Ram) -> Iterable[Line]:
        """The lines in the page of `pc` that memory holds as they were. Each is given once."""
        for line in self._pages.pop(pc >> PAGE_BITS, ()):
            at = line.base - ram.base
            if ram.base <= line.base <= ram.end - SEEN and ram.u8[at : at + SEEN] == line.seen:
                self._known += line.places.bit_count()
                yield line

    def decoded(self) -> None:
        """An instruction was decoded that was not taken over."""
        self._own += 1

    def wanted(self) -> bool:
        """Whether so much was decoded that keeping it is worth its time."""
        return self._cache is not None and self._own >= _LEAST + self._known // 8

    def keep(self, lines: Iterable[Line]) -> None:
        """Let the next run begin with these."""
        self._known, self._own = self._known + self._own, 0
        if self._cache is not None:
            self._cache.put(self._key, zlib.compress(b"".join(self._record.pack(*line) for line in lines), 1))
