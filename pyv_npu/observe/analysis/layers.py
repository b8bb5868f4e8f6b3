"""Layers of a model in a run: time, traffic, operations and stall causes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from npu_device.levels.explain import Blocker
from npu_device.trace.events import CACHED, WRITES, Kind, What, unit_kind
from npu_device.trace.run_spans import Spans
from npu_device.trace.spans import UNITS, Integers, Table
from pyv_npu.observe.analysis.traffic import ROLES, role_of
from pyv_npu.observe.analysis.work import CommandWork

ENGINES = tuple(kind.name.lower() for kind in UNITS)


@dataclass
class Layer:
    """Layer of a run; cycles are core cycles."""

    name: str
    operations: tuple[str, ...]
    """Distinct opcodes of its commands."""
    commands: int = 0
    start: int = 0
    """First cycle of work of an engine, or the core, for the layer; equals `end` without work."""
    end: int = 0
    active: int = 0
    """Cycles in which at least one engine, or the core, works for the layer."""
    busy: dict[str, int] = field(default_factory=lambda: dict.fromkeys(ENGINES, 0))
    """"te", "ve", "dma" -> cycles summed over the engines; "core" -> cycles of kernels, in runs with kernels."""
    read: int = 0
    """Bytes read at the pins of DRAM."""
    written: int = 0
    roles: dict[str, int] = field(default_factory=lambda: dict.fromkeys(ROLES, 0))
    """"activation", "weight", "kv" -> aligned bytes that the DMA moved."""
    macs: int = 0
    vector: int = 0
    """Operations of vector engines."""
    te_cycles: int = 0
    """Cycles of a tensor engine without stalls."""
    ve_cycles: int = 0
    bits: set[tuple[int, int]] = field(default_factory=set)
    chain: dict[Blocker, int] = field(default_factory=dict)
    """Cause -> cycles of the layer on the critical chain."""

    @property
    def ops(self) -> int:
        """Arithmetic operations; a multiply-accumulate counts as two."""
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
    spans: Spans, names: Sequence[str], works: Sequence[CommandWork], chain: Mapping[tuple[int, Blocker], int]
) -> list[Layer]:
    """Return layers in the order of their first commands. `names`, `works`: of each command in the order of
    acceptance; `chain`: from the explanation of the run."""
    by_name = {name: Layer(name, ()) for name in dict.fromkeys(names)}
    for name, work in zip(names, works, strict=True):
        _add(by_name[name], work)
    ordered = list(by_name.values())
    order = {name: index for index, name in enumerate(by_name)}
    layer_of = np.array([order[name] for name in names], dtype=np.int64)

    def assign_layers(rows: Table) -> tuple[Table, Integers]:
        """Return the rows of commands with a layer, and the index of the layer."""
        rows = rows[(rows["number"] >= 0) & (rows["number"] < len(layer_of))]
        return rows, layer_of[rows["number"]]

    def sums(index: Integers, values: Integers) -> list[int]:
        return np.bincount(index, values, len(ordered)).astype(np.int64).tolist()

    steps, index = assign_layers(spans.steps)
    length, kinds = steps["end"] - steps["start"], unit_kind(steps["unit"])
    for kind in UNITS:
        mask = kinds == kind
        for layer, busy in zip(ordered, sums(index[mask], length[mask]), strict=True):
            layer.busy[kind.name.lower()] = busy
    core_time, owner = assign_layers(spans.core)
    if len(core_time):
        for layer, cycles in zip(ordered, sums(owner, core_time["end"] - core_time["start"]), strict=True):
            layer.busy["core"] = cycles
    moves = kinds == Kind.DMA
    for code, role in enumerate(ROLES):
        of_role = moves & (role_of(steps["aux"]) == code)
        for layer, moved in zip(ordered, sums(index[of_role], steps["moved"][of_role]), strict=True):
            layer.roles[role] = moved
    _extents(ordered, np.concatenate([steps, core_time]), np.concatenate([index, owner]))
    lines, line_index = assign_layers(spans.select(What.L2_MISS, What.L2_WRITE_BACK))
    size = lines["bytes"].astype(np.int64)
    past = (kinds == Kind.DMA) & (steps["aux"] & CACHED == 0)
    for name, writes, event in (("read", 0, What.L2_MISS), ("written", WRITES, What.L2_WRITE_BACK)):
        mask, through = past & (steps["aux"] & WRITES == writes), lines["what"] == event
        direct = sums(index[mask], steps["moved"][mask])
        cached = sums(line_index[through], size[through])
        for layer, direct_bytes, cached_bytes in zip(ordered, direct, cached, strict=True):
            setattr(layer, name, direct_bytes + cached_bytes)
    number_of = {ticket: number for number, ticket in enumerate(spans.commands["ticket"].tolist())}
    for (ticket, cause), cycles in chain.items():
        number = number_of.get(ticket, len(layer_of))
        if number < len(layer_of):
            layer = ordered[int(layer_of[number])]
            layer.chain[cause] = layer.chain.get(cause, 0) + cycles
    return ordered


def _add(layer: Layer, work: CommandWork) -> None:
    layer.commands += 1
    layer.operations = tuple(dict.fromkeys((*layer.operations, work.operation)))
    layer.macs += work.macs
    layer.vector += work.vector
    layer.te_cycles += work.te_cycles
    layer.ve_cycles += work.ve_cycles
    if work.bits is not None:
        layer.bits.add(work.bits)


def _extents(ordered: Sequence[Layer], steps: Table, index: Integers) -> None:
    order = np.lexsort((steps["start"], index))
    index, start, end = index[order], steps["start"][order], steps["end"][order]
    for number, layer in enumerate(ordered):
        first, last = np.searchsorted(index, [number, number + 1])
        if first < last:
            layer.start, layer.end = int(start[first]), int(end[first:last].max())
            layer.active = covered_cycles(start[first:last], end[first:last])


def covered_cycles(start: Integers, end: Integers) -> int:
    """Return the cycles covered by spans, which are sorted by start."""
    latest_end = np.maximum.accumulate(end)
    previous_end = np.concatenate([start[:1], latest_end[:-1]])
    return int(np.maximum(end - np.maximum(start, previous_end), 0).sum())
