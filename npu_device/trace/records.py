"""Batches of events as arrays: compression for a log, and checks of records from a file.

Only modules that evaluate events import this and NumPy, so a program without submissions does not.
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
"""NumPy type of an event in the layout of `events.PACKED`."""

Batch = np.ndarray[Any, np.dtype[np.void]]
"""Array of RECORD."""


def batch_of(data: bytes) -> Batch:
    """Return an array of packed records."""
    return np.frombuffer(data, dtype=RECORD)


def joined(batches: Iterable[Batch]) -> Batch:
    """Concatenate batches into an array."""
    return np.concatenate([np.empty(0, dtype=RECORD), *batches])


def pack(data: bytes) -> bytes:
    """Compress records, transposed to byte 0 of all records, byte 1, ..., as most of these rows are constant."""
    columns = np.frombuffer(data, np.uint8).reshape(-1, RECORD.itemsize).T
    return zlib.compress(columns.tobytes(), 1)


def unpack(packed: bytes) -> bytes:
    """Invert `pack`. Raise ValueError for bytes that are not a batch of records."""
    decompressor = zlib.decompressobj()
    columns = np.frombuffer(decompressor.decompress(packed, BATCH * PACKED.size), np.uint8)
    if decompressor.unconsumed_tail or decompressor.unused_data or not decompressor.eof or not len(columns):
        raise ValueError("a batch of events is longer than one, or is cut off")
    return columns.reshape(RECORD.itemsize, -1).T.tobytes()


class RecordChecks:
    """Checks of the records of a file, in order. Methods raise StateError for an event that no device emits."""

    def __init__(self) -> None:
        self.count = 0
        self._cycle = 0
        self._running: dict[int, bool] = {}

    def add(self, data: bytes) -> None:
        """Check the next packed records."""
        if len(data) % PACKED.size:
            raise StateError(f"{len(data)} bytes are no records of {PACKED.size} bytes")
        batch = np.frombuffer(data, RECORD)
        if not len(batch):
            return
        event_kinds, kind, cycle = batch["what"], unit_kind(batch["unit"]), batch["cycle"]
        valid_codes = (event_kinds >= min(What)) & (event_kinds <= max(What)) & (kind <= max(Kind))
        numbers = (cycle <= LATEST) & ((batch["bytes"] <= LATEST) | np.isin(event_kinds, _ADDRESSES))
        self._refuse(~(valid_codes & numbers), "has a kind, a unit or a number that no event has")
        backwards = np.diff(cycle.astype(np.int64), prepend=self._cycle) < 0
        self._refuse(backwards, "is earlier than the event before")
        self._cycle = int(cycle[-1])
        self._check_steps(batch)
        self.count += len(batch)

    def _check_steps(self, batch: Batch) -> None:
        """Check that each step ends on the unit on which it began. A step stopped by a reset has no end."""
        event_kinds = batch["what"]
        begins, ends = np.isin(event_kinds, list(_STEPS)), np.isin(event_kinds, [begin + 1 for begin in _STEPS])
        for begin, kind in _STEPS.items():
            this = (event_kinds == begin) | (event_kinds == begin + 1)
            self._refuse(this & (unit_kind(batch["unit"]) != kind), "is a step of another kind of unit")
        marks = np.flatnonzero(begins | ends)
        units = batch["unit"][marks]
        for unit in np.unique(units).tolist():
            positions = marks[units == unit]
            is_running = np.concatenate([[self._running.get(unit, False)], begins[positions][:-1]])
            violations = np.zeros(len(batch), np.bool_)
            violations[positions] = ends[positions] & ~is_running
            self._refuse(violations, "ends a step that has not begun")
            self._running[unit] = bool(begins[positions[-1]])

    def _refuse(self, violations: NDArray[np.bool_], rule: str) -> None:
        if violations.any():
            raise StateError(f"event {self.count + int(np.flatnonzero(violations)[0])} {rule}")


_STEPS = {What.DMA_BEGIN: Kind.DMA, What.TE_BEGIN: Kind.TE, What.VE_BEGIN: Kind.VE}
"""Begin event of steps -> kind of their units. The value of the end event is that of the begin plus 1."""
_ADDRESSES = (What.SUBMIT, What.FETCH, What.REJECT, What.STALE, What.NOTIFY)
"""Events whose field `bytes` may be an address."""
