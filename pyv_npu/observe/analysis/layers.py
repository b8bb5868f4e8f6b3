"""Layers of a model in a run: when they ran, what they moved and computed, what bounded them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from npu_device.levels.explain import Blocker
from npu_device.trace.events import CACHED, WRITES, Kind, What
from pyv_npu.observe.analysis.work import Work
from pyv_npu.report.spans import UNITS, Integers, Records, Spans, unit_spans

ENGINES = tuple(kind.name.lower() for kind in UNITS)


@dataclass
class Layer:
    """One layer; cycles are core cycles."""

    name: str
    operations: tuple[str, ...]
    """Opcodes of its commands, each once."""
    commands: int = 0
    start: int = 0
    """First cycle in which an engine worked for it; equals `end` where none did."""
    end: int = 0
    active: int = 0
    """Cycles in which at least one engine worked for it."""
    busy: dict[str, int] = field(default_factory=lambda: dict.fromkeys(ENGINES, 0))
    """"te", "ve", "dma" -> cycles summed over the engines."""
    read: int = 0
    """Bytes from DRAM, as counted on its pins."""
    written: int = 0
    macs: int = 0
    vector: int = 0
    """Operations of vector engines."""
    te_cycles: int = 0
    """Of one tensor engine that waits for nothing."""
    ve_cycles: int = 0
    bits: set[tuple[int, int]] = field(default_factory=set)
    chain: dict[Blocker, int] = field(default_factory=dict)
    """Cycles of the critical chain that were spent on it, by cause."""

    @property
    def ops(self) -> int:
        """Arithmetic operations; a multiply-accumulate step is two."""
        return 2 * self.macs + self.vector

    @property
    def bytes(self) -> int:
        return self.read + self.written

    @property
    def intensity(self) -> float | None:
        """Operations per byte of DRAM traffic; None without traffic."""
        return self.ops / self.bytes if self.bytes else None

    @property
    def rate(self) -> float:
        """Operations per active cycle."""
        return self.ops / self.active if self.active else 0.0


def layers(
    records: Records, names: Sequence[str], works: Sequence[Work], end: int, chain: Mapping[tuple[int, Blocker], int]
) -> list[Layer]:
    """Layers in the order of their first commands. `names`, `works`: of each command in the order of acceptance; `end`:
    the last cycle of the run; `chain`: of the run's explanation."""
    made = {name: Layer(name, ()) for name in dict.fromkeys(names)}
    for name, work in zip(names, works, strict=True):
        _add(made[name], work)
    order = {name: index for index, name in enumerate(made)}
    tickets = accepted_tickets(records)[: len(names)]
    layer_of = np.array([order[name] for name in names[: len(tickets)]], dtype=np.int64)
    found = list(made.values())
    spans = {kind: list(unit_spans(records, kind, end).values()) for kind in UNITS}
    for kind, lanes in spans.items():
        for lane in lanes:
            index, known = _index(lane.ticket, tickets, layer_of)
            sums = np.bincount(index, (lane.end - lane.start)[known], len(found))
            for layer, busy in zip(found, sums.astype(np.int64).tolist(), strict=True):
                layer.busy[kind.name.lower()] += busy
    _extents(found, [lane for lanes in spans.values() for lane in lanes], tickets, layer_of)
    _traffic(found, records, tickets, layer_of)
    for (ticket, cause), spent in chain.items():
        at = int(np.searchsorted(tickets, ticket))
        if at < len(tickets) and tickets[at] == ticket:
            layer = found[int(layer_of[at])]
            layer.chain[cause] = layer.chain.get(cause, 0) + spent
    return found


def accepted_tickets(records: Records) -> Integers:
    """Tickets in the order of acceptance, ascending."""
    return np.asarray(records["ticket"][records["what"] == What.ACCEPT], dtype=np.int64)


def _add(layer: Layer, work: Work) -> None:
    layer.commands += 1
    layer.operations = tuple(dict.fromkeys((*layer.operations, work.operation)))
    layer.macs += work.macs
    layer.vector += work.vector
    layer.te_cycles += work.te_cycles
    layer.ve_cycles += work.ve_cycles
    if work.bits is not None:
        layer.bits.add(work.bits)


def _index(wanted: Integers, tickets: Integers, layer_of: Integers) -> tuple[Integers, NDArray[np.bool_]]:
    """(layer of each wanted ticket that is known, which are known)."""
    at = np.minimum(np.searchsorted(tickets, wanted), max(len(tickets) - 1, 0))
    known = tickets[at] == wanted if len(tickets) else np.zeros(len(wanted), bool)
    return layer_of[at[known]] if len(tickets) else np.zeros(0, np.int64), known


def _extents(found: Sequence[Layer], lanes: Sequence[Spans], tickets: Integers, layer_of: Integers) -> None:
    if not lanes:
        return
    start, end, ticket = (np.concatenate([lane[column] for lane in lanes]) for column in range(3))
    index, known = _index(ticket, tickets, layer_of)
    start, end = start[known], end[known]
    order = np.lexsort((start, index))
    index, start, end = index[order], start[order], end[order]
    for number, layer in enumerate(found):
        first, last = np.searchsorted(index, [number, number + 1])
        if first < last:
            layer.start, layer.end = int(start[first]), int(end[first:last].max())
            layer.active = _union(start[first:last], end[first:last])


def _union(start: Integers, end: Integers) -> int:
    """Cycles covered by spans that are sorted by start."""
    reach = np.maximum.accumulate(end)
    before = np.concatenate([start[:1], reach[:-1]])
    return int(np.maximum(end - np.maximum(start, before), 0).sum())


def _traffic(found: Sequence[Layer], records: Records, tickets: Integers, layer_of: Integers) -> None:
    """Aligned bytes of DRAM transfers: the end of a transfer has the bytes, its begin the direction. Of transfers
    through the L2 these are the lines that it fetches and writes back."""

    def add(name: str, ticket: Integers, size: Integers) -> None:
        index, known = _index(ticket.astype(np.int64), tickets, layer_of)
        moved = np.bincount(index, size.astype(np.int64)[known], len(found)).astype(np.int64)
        for layer, value in zip(found, moved.tolist(), strict=True):
            setattr(layer, name, getattr(layer, name) + value)

    mine = records[records["unit"] >> 8 == Kind.DMA]
    for unit in np.unique(mine["unit"]):
        rows = mine[mine["unit"] == unit]
        begins, ends = (rows[rows["what"] == what] for what in (What.DMA_BEGIN, What.DMA_END))
        begins = begins[: len(ends)]  # a channel moves one thing at a time: the n-th end belongs to the n-th begin
        writes, past = (begins["aux"] & WRITES) != 0, (begins["aux"] & CACHED) == 0
        for chosen, name in ((~writes & past, "read"), (writes & past, "written")):
            add(name, ends["ticket"][chosen], ends["aux"][chosen])
    for what, name in ((What.L2_MISS, "read"), (What.L2_WRITE_BACK, "written")):
        lines = records[records["what"] == what]
        add(name, lines["ticket"], lines["bytes"])
