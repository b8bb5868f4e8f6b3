"""Traffic by role: what the DMA moved of weights, activations, keys and values, and the descriptors that were fetched
(docs/bit-widths.md, R8 and R24).

A fold over the events of a run: payload and role stand in DMA_BEGIN, aligned bytes in the DMA_END that follows on the
same channel. Sums over the roles are those of all DMA events.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from npu_device.abi.descriptor import DESCRIPTOR_SIZE
from npu_device.cost.plan import Role
from npu_device.trace.events import ROLE, WRITES, Batch, What
from npu_device.trace.spans import Integers, among

ROLES = tuple(role.name.lower() for role in Role)
WAYS = ("read", "written")
SIZES = ("bytes_total", "bytes_aligned")
_ROLE_MASK = 7
_OF_DMA = among((What.DMA_BEGIN, What.DMA_END))


class Traffic:
    """Bytes by role, way and size; shape (roles, ways, sizes)."""

    def __init__(self) -> None:
        self.moved: Integers = np.zeros((len(ROLES), len(WAYS), len(SIZES)), np.int64)
        self.fetched = 0
        """Descriptors."""
        self._open: dict[int, int] = {}
        """Channel -> `aux` of the transfer that it works on."""

    def add(self, batch: Batch) -> None:
        """The next events."""
        what = batch["what"]
        self.fetched += int(np.count_nonzero(what == What.FETCH))
        where = np.flatnonzero(_OF_DMA[what])
        if not len(where):
            return
        where = where[np.argsort(batch["unit"][where], kind="stable")]
        unit, aux = batch["unit"][where], batch["aux"][where].astype(np.int64)
        ends = np.flatnonzero(what[where] == What.DMA_END)
        first = np.diff(unit, prepend=-1) != 0
        begun = aux[ends - 1]
        for at in np.flatnonzero(first[ends]).tolist():
            begun[at] = self._open.get(int(unit[ends[at]]), 0)
        _count(self.moved, begun, batch["bytes"][where[ends]], aux[ends])
        last = np.flatnonzero(np.append(first[1:], True))
        self._open.update(zip(unit[last].tolist(), aux[last].tolist(), strict=True))

    def join(self, other: "Traffic") -> None:
        """What another run has moved too."""
        self.moved += other.moved
        self.fetched += other.fetched

    def to_json(self, blocks: int = 0) -> dict[str, Any]:
        """The `traffic` object of a result; `blocks`: bytes of extended blocks that were fetched with descriptors."""
        return as_json(self.moved) | {"descriptors": self.fetched * DESCRIPTOR_SIZE + blocks}


def _count(table: Integers, aux: Integers, payload: Any, aligned: Any) -> None:
    place = role_of(aux) * len(WAYS) + (aux & WRITES != 0)
    for size, bytes_ in enumerate((payload, aligned)):
        sums = np.bincount(place, bytes_, len(ROLES) * len(WAYS)).astype(np.int64)
        table[:, :, size] += sums.reshape(len(ROLES), len(WAYS))


def traffic_of(batches: Iterable[Batch]) -> Traffic:
    """Of the events of a whole run."""
    made = Traffic()
    for batch in batches:
        made.add(batch)
    return made


def role_of(aux: Any) -> Integers:
    """The role of each transfer, by the `aux` of its begin."""
    codes: Integers = aux.astype(np.int64) // ROLE & _ROLE_MASK
    return codes


def as_json(table: Integers) -> dict[str, Any]:
    """Role -> {read, written, bytes_total, bytes_aligned, utilization}, and their sums in `total`. `read` and
    `written` count aligned bytes; bytes_total is the payload, utilization its share of bytes_aligned."""
    named = {**dict(zip(ROLES, table, strict=True)), "total": table.sum(axis=0)}
    return {name: _one(rows) for name, rows in named.items()}


def _one(rows: Integers) -> Mapping[str, Any]:
    (payload, aligned), read, written = rows.sum(axis=0).tolist(), int(rows[0, 1]), int(rows[1, 1])
    return {
        "read": read, "written": written, "bytes_total": payload, "bytes_aligned": aligned,
        "utilization": round(payload / aligned, 6) if aligned else None,
    }  # fmt: skip
