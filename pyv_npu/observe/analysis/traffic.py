"""Traffic by role: DMA traffic of weights, activations, keys and values, and fetched descriptors (docs/bit-widths.md,
R8 and R24).

Traffic is accumulated over the events of a run: DMA_BEGIN has payload and role, the next DMA_END on the same channel
the aligned bytes. Sums over the roles equal those over all DMA events.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from npu_device.abi import DESCRIPTOR_SIZE
from npu_device.trace.events import ROLE, WRITES, Role, What

if TYPE_CHECKING:
    from npu_device.trace.records import Batch
    from npu_device.trace.spans import Integers

ROLES = tuple(role.name.lower() for role in Role)
WAYS = ("read", "written")
SIZES = ("bytes_total", "bytes_aligned")
_ROLE_MASK = 3


class RoleTraffic:
    """Bytes by role and direction. NumPy is imported only with the first events."""

    def __init__(self) -> None:
        self.moved = [[[0] * len(SIZES) for _ in WAYS] for _ in ROLES]
        """Bytes by role, direction and size."""
        self.fetched = 0
        """Number of fetched descriptors."""
        self._open: dict[int, int] = {}
        """Channel -> `aux` of its pending transfer."""

    def add(self, batch: "Batch") -> None:
        """Add the next events."""
        import numpy as np

        events = batch["what"]
        self.fetched += int(np.count_nonzero(events == What.FETCH))
        rows = np.flatnonzero((events == What.DMA_BEGIN) | (events == What.DMA_END))
        if not len(rows):
            return
        rows = rows[np.argsort(batch["unit"][rows], kind="stable")]
        unit, aux = batch["unit"][rows], batch["aux"][rows].astype(np.int64)
        ends = np.flatnonzero(events[rows] == What.DMA_END)
        first = np.diff(unit, prepend=-1) != 0
        begun = aux[ends - 1]
        for at in np.flatnonzero(first[ends]).tolist():
            begun[at] = self._open.get(int(unit[ends[at]]), 0)
        _count(self.moved, begun, batch["bytes"][rows[ends]], aux[ends])
        last = np.flatnonzero(np.append(first[1:], True))
        self._open.update(zip(unit[last].tolist(), aux[last].tolist(), strict=True))

    def join(self, traffic: "RoleTraffic") -> None:
        """Add the traffic of another run."""
        for role, ways in enumerate(traffic.moved):
            for way, sizes in enumerate(ways):
                for size, bytes_ in enumerate(sizes):
                    self.moved[role][way][size] += bytes_
        self.fetched += traffic.fetched

    def to_json(self, blocks: int = 0) -> dict[str, Any]:
        """Return the object `traffic` of a result; `blocks`: bytes of extended blocks fetched with descriptors."""
        return as_json(self.moved) | {"descriptors": self.fetched * DESCRIPTOR_SIZE + blocks}


def _count(table: list[list[list[int]]], aux: "Integers", payload: Any, aligned: Any) -> None:
    import numpy as np

    place = role_of(aux) * len(WAYS) + (aux & WRITES != 0)
    for size, bytes_ in enumerate((payload, aligned)):
        for at, count in enumerate(np.bincount(place, bytes_, len(ROLES) * len(WAYS)).tolist()):
            table[at // len(WAYS)][at % len(WAYS)][size] += int(count)


def traffic_of(batches: "Iterable[Batch]") -> RoleTraffic:
    """Return the traffic of a whole run from its events."""
    traffic = RoleTraffic()
    for batch in batches:
        traffic.add(batch)
    return traffic


def role_of(aux: Any) -> "Integers":
    """Return the role of each transfer, from the `aux` of its begin."""
    codes: Integers = aux.astype("int64") // ROLE & _ROLE_MASK
    return codes


def as_json(table: Sequence[Sequence[Sequence[int]]]) -> dict[str, Any]:
    """Return {read, written, bytes_total, bytes_aligned, utilization} by role, and their sums in `total`. `read` and
    `written` count aligned bytes; bytes_total is the payload, utilization its share of bytes_aligned."""
    total = [[sum(sizes) for sizes in zip(*way, strict=True)] for way in zip(*table, strict=True)]
    by_role = {**dict(zip(ROLES, table, strict=True)), "total": total}
    return {name: _role_entry(rows) for name, rows in by_role.items()}


def _role_entry(ways: Sequence[Sequence[int]]) -> Mapping[str, Any]:
    (payload, aligned), read, written = map(sum, zip(*ways, strict=True)), ways[0][1], ways[1][1]
    return {
        "read": read, "written": written, "bytes_total": payload, "bytes_aligned": aligned,
        "utilization": round(payload / aligned, 6) if aligned else None,
    }  # fmt: skip
