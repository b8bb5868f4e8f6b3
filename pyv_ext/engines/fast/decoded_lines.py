"""The decoded lines of code of a program's last run: the next one decodes nothing that is the same.

A line is taken over only where memory holds the bytes that it was decoded from, and its entries are of the very sources
that are executed now (`pyv_ext.engines.recipe`): what is decoded does not depend on what is kept.
"""

import struct
import zlib
from collections.abc import Iterable
from hashlib import sha256

from pyv_ext.bus.memory import LINE, PAGE_BITS, Ram
from pyv_ext.engines.fast.entries import SIZE, STEP
from pyv_ext.engines.last_run import LastRun

SEEN = LINE + 2
"""Bytes that decide what is decoded in a line: its own, and those behind it, where its last instruction may end."""
PLACES = range(0, LINE, STEP)
"""Where instructions may begin, from the begin of a line."""
LINE_SIZE = len(PLACES) * SIZE
"""Bytes of the entries of a line."""
_RECORD = struct.Struct(f"<I{SEEN}s{LINE_SIZE}s")
"""Address, bytes and entries of a line."""
_LEAST = 64
"""Instructions that a run must have decoded itself, besides an eighth of those of the last run, to be kept."""


class DecodedLines:
    """Those of one map of where PMP permits fetches."""

    def __init__(self, last: LastRun | None, recipe: str) -> None:
        """`recipe`: all that entries depend on besides the bytes; empty, and nothing is kept."""
        self._cache = last.cache if last is not None and recipe else None
        self._key = b"" if last is None else sha256(last.key + recipe.encode()).digest()
        self._pages: dict[int, dict[int, tuple[bytes, bytes]]] = {}
        """Bytes and entries, by page and address of the line."""
        self._known = 0
        self._own = 0
        """Instructions of the last run that were taken over or are kept, and those that were decoded since."""
        kept = self._cache.get(self._key) if self._cache is not None else None
        for base, seen, entries in () if kept is None else _RECORD.iter_unpack(zlib.decompress(kept)):
            self._pages.setdefault(base >> PAGE_BITS, {})[base] = seen, entries

    def take(self, pc: int, ram: Ram) -> Iterable[tuple[int, dict[int, int], bytes]]:
        """The lines in the page of `pc` that memory holds as they were: address, sizes of instructions by address, and
        entries. Each is given once."""
        for base, (seen, entries) in self._pages.pop(pc >> PAGE_BITS, {}).items():
            at = base - ram.base
            if ram.base <= base <= ram.end - SEEN and ram.u8[at : at + SEEN] == seen:
                codes = zip(PLACES, entries[::SIZE], entries[1::SIZE], strict=True)
                sizes = {base + place: 4 if seen[place] & 3 == 3 else 2 for place, low, high in codes if low | high}
                self._known += len(sizes)
                yield base, sizes, entries

    def decoded(self) -> None:
        """An instruction was decoded that was not taken over."""
        self._own += 1

    def wanted(self) -> bool:
        """Whether so much was decoded that keeping it is worth its time."""
        return self._cache is not None and self._own >= _LEAST + self._known // 8

    def keep(self, lines: Iterable[tuple[int, bytes, bytes]]) -> None:
        """Let the next run begin with these: address, bytes and entries of each."""
        self._known, self._own = self._known + self._own, 0
        if self._cache is not None:
            self._cache.put(self._key, zlib.compress(b"".join(_RECORD.pack(*line) for line in lines), 1))
