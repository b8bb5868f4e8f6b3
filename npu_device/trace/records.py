"""Events in bulk: batches of them as arrays, packed for a log, and checked where they come from a file.

Only what looks at events imports this, and NumPy with it: a program that submits nothing has none.
"""

import zlib
from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from npu_device.trace.events import BATCH, PACKED, Kind, What, unit_kind
from pyv_native.state import LATEST, StateError

RECORD = np.dtype(
    [
        ("cycle", "<u8"),
        ("unit", "<u2"),
        ("what", "<u2"),
        ("ticket", "<u4"),
        ("tile", "<u4"),
        ("bytes", "<u8"),
        ("aux", "<u4"),
    ]
)
"""An event as `events.PACKED` says."""

Batch = np.ndarray[Any, np.dtype[np.void]]
"""An array of RECORD."""


def batch_of(data: bytes) -> Batch:
    """Records as they stand in memory."""
    return np.frombuffer(data, dtype=RECORD)


def joined(batches: Iterable[Batch]) -> Batch:
    """Concatenate batches into an array."""
    return np.concatenate([np.empty(0, dtype=RECORD), *batches])


def pack(data: bytes) -> bytes:
    """Records, compressed. Byte 0 of all records comes first, then byte 1, ...: most of these rows are constant."""
    columns = np.frombuffer(data, np.uint8).reshape(-1, RECORD.itemsize).T
    return zlib.compress(columns.tobytes(), 1)


def unpack(packed: bytes) -> bytes:
    """Invert `pack`. ValueError: the bytes are no records."""
    inflate = zlib.decompressobj()
    columns = np.frombuffer(inflate.decompress(packed, BATCH * PACKED.size), np.uint8)
    if inflate.unconsumed_tail or inflate.unused_data or not inflate.eof or not len(columns):
        raise ValueError("a batch of events is longer than one, or is cut off")
    return columns.reshape(RECORD.itemsize, -1).T.tobytes()


class RecordChecks:
    """Looks at records that come from a file, in order. StateError for what no device emits."""

    def __init__(self) -> None:
        self.count = 0
        self._cycle = 0
        self._running: dict[int, bool] = {}

    def add(self, data: bytes) -> None:
        """More records, as they stand in memory."""
        if len(data) % PACKED.size:
            raise StateError(f"{len(data)} bytes are no records of {PACKED.size} bytes")
        batch = np.frombuffer(data, RECORD)
        if not len(batch):
            return
        what, kind, cycle = batch["what"], unit_kind(batch["unit"]), batch["cycle"]
        known = (what >= min(What)) & (what <= max(What)) & (kind <= max(Kind))
        numbers = (cycle <= LATEST) & ((batch["bytes"] <= LATEST) | np.isin(what, _ADDRESSES))
        self._refuse(~(known & numbers), "has a kind, a unit or a number that no event has")
        backwards = np.diff(cycle.astype(np.int64), prepend=self._cycle) < 0
        self._refuse(backwards, "is earlier than the event before")
        self._cycle = int(cycle[-1])
        self._check_steps(batch)
        self.count += len(batch)

    def _check_steps(self, batch: Batch) -> None:
        """Check that each step ends on the unit on which it began; a reset may stop it."""
        what = batch["what"]
        begins, ends = np.isin(what, list(_STEPS)), np.isin(what, [begin + 1 for begin in _STEPS])
        for begin, kind in _STEPS.items():
            this = (what == begin) | (what == begin + 1)
            self._refuse(this & (unit_kind(batch["unit"]) != kind), "is a step of another kind of unit")
        at = np.flatnonzero(begins | ends)
        units = batch["unit"][at]
        for unit in np.unique(units).tolist():
            own = at[units == unit]
            before = np.concatenate([[self._running.get(unit, False)], begins[own][:-1]])
            wrong = np.zeros(len(batch), np.bool_)
            wrong[own] = ends[own] & ~before
            self._refuse(wrong, "ends a step that has not begun")
            self._running[unit] = bool(begins[own[-1]])

    def _refuse(self, wrong: NDArray[np.bool_], why: str) -> None:
        if wrong.any():
            raise StateError(f"event {self.count + int(np.flatnonzero(wrong)[0])} {why}")


_STEPS = {What.DMA_BEGIN: Kind.DMA, What.TE_BEGIN: Kind.TE, What.VE_BEGIN: Kind.VE}
"""Begins of steps, whose ends have the next number, and the units that they are of."""
_ADDRESSES = (What.SUBMIT, What.FETCH, What.REJECT, What.STALE, What.NOTIFY)
"""Events whose field `bytes` may be an address."""
