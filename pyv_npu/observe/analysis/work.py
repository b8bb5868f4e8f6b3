"""Work of commands independent of time: operations and use of the scratchpad.

Work is derived from the device's own plans (`npu_device.cost.plan`).
"""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from math import lcm
from typing import NamedTuple

import numpy as np

from npu_device.abi.memory_map import SPM_BASE, SPM_CLUSTER_STRIDE
from npu_device.abi.opcodes import DataType, Opcode
from npu_device.config import NpuConfig
from npu_device.cost.counts import Counts, Event, counts
from npu_device.cost.durations import Timing
from npu_device.cost.plan import Compute, Piece, Plan, Transfer, single
from npu_device.decode.command import Command
from npu_device.decode.decoder import Decoder
from npu_device.issue.plans import locate
from npu_device.levels.runner import Listed, Runner
from npu_device.memory.region import Region
from npu_device.operations.macro.base import setting_of
from npu_device.reservation.sums import Accumulators
from npu_device.trace.events import Kind
from npu_device.trace.run_spans import Spans, rows_between
from npu_device.trace.spans import Table

Ranges = tuple[tuple[int, int], ...]
"""Disjoint [start, end) addresses, ascending."""


class CommandWork(NamedTuple):
    """Work of a command."""

    operation: str
    counts: Counts
    """Events that consume energy."""
    te_cycles: int
    """Core cycles of a tensor engine without other work and stalls."""
    ve_cycles: int
    bits: tuple[int, int] | None
    """Bits of an element of in0 and in1 in its products."""
    fills: Ranges
    """Scratchpad ranges that it writes, or uses as buffers."""
    uses: Ranges
    """Scratchpad ranges that it reads."""

    @property
    def macs(self) -> int:
        """Multiply-accumulate operations of tensor engines."""
        return sum(amount for count, amount in self.counts.items() if count.event is Event.MAC)

    @property
    def vector(self) -> int:
        """Operations of vector engines."""
        return sum(amount for count, amount in self.counts.items() if count.event is Event.VECTOR)


def works(
    commands: Sequence[Listed], config: NpuConfig, memory: Mapping[int, bytes] | None = None
) -> list[CommandWork]:
    """Return the work of valid commands. `memory`: address -> bytes that commands read when they start (positions)."""
    runner = Runner(config, values=False)
    for address, data in (memory or {}).items():
        runner.memory.write_bytes(address, data)
    decoder, read, timing, setting = (
        Decoder(config, runner.memory, Accumulators(config)), runner.memory.rows, Timing(config),
        setting_of(config),
    )  # fmt: skip
    setting = setting._replace(bus=setting.bus._replace(port_limited=True))  # occupancy needs every address
    listed = []
    equal: dict[Hashable, CommandWork] = {}
    for descriptor in runner.place(commands):
        command = decoder.decode(descriptor, 0, 0)
        if command.kind is None:
            listed.append(CommandWork(command.opcode.name, Counts(), 0, 0, None, (), ()))
            continue
        if command.macro is None:
            assert command.order.step is not None, "what runs on a unit has a step"
            listed.append(_work(command, single(*command.order.step), timing, config))
            continue
        macro = command.macro.start(read)
        key = locate(macro, 1, lcm(timing.turn, setting.bus.alignment, *macro.alignments.values())).key
        if key not in equal:
            equal[key] = _work(command, macro.plan(setting), timing, config)
        listed.append(equal[key])
    return listed


def _work(command: Command, plan: Plan, timing: Timing, config: NpuConfig) -> CommandWork:
    te_cycles = ve_cycles = 0
    bits = None
    for piece, count in zip(plan.pieces, np.bincount(plan.piece, minlength=len(plan.pieces)).tolist(), strict=True):
        if isinstance(piece, Transfer):
            continue
        cycles = timing.cost(piece).cycles * count
        if piece.kind is Kind.TE:
            te_cycles += cycles
            bits = piece.bits_a, piece.bits_w
        else:
            ve_cycles += cycles
    fills = [region for piece in plan.pieces for region in _destinations(piece)]
    uses = [region for piece in plan.pieces for region in _sources(piece)] if command.macro is None else []
    d = command.descriptor
    kinds = DataType(d.type_in0), DataType(d.type_kv if command.opcode is Opcode.ATTN_T else d.type_in1)
    counted = counts(plan, config.te, kinds, timing.network.link_shares(d.cluster, config.dram.channels))
    return CommandWork(command.opcode.name, counted, te_cycles, ve_cycles, bits, _ranges(fills), _ranges(uses))


def _destinations(piece: Piece) -> tuple[Region, ...]:
    if isinstance(piece, Compute):
        return piece.writes
    return () if piece.write else (piece.spm,)


def _sources(piece: Piece) -> tuple[Region, ...]:
    if isinstance(piece, Compute):
        return piece.reads
    return (piece.spm,) if piece.write else ()


def _ranges(regions: Sequence[Region]) -> Ranges:
    """Merge the regions in scratchpads into disjoint ranges."""
    merged: list[tuple[int, int]] = []
    for region in sorted(set(regions)):
        if not SPM_BASE <= region.address < SPM_BASE + 4 * SPM_CLUSTER_STRIDE:
            continue
        if merged and region.address <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], region.end))
        else:
            merged.append((region.address, region.end))
    return tuple(merged)


# -- the scratchpad ---------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Occupancy:
    """Range of the scratchpad, with the begin and end of its occupancy."""

    low: int
    high: int
    begin: int
    end: int


def spm_occupancy(spans: Spans, works: Sequence[CommandWork]) -> Table:
    """Return the occupancy of the scratchpads: spans with `bytes`.

    A range is occupied from the begin of the command that writes it to the end of the last command that reads it;
    buffers of a macro command for the duration of the command. A write to a range begins a new span.
    """
    current: list[_Occupancy] = []
    prior: list[_Occupancy] = []
    commands = spans.commands
    begins, ends = (np.minimum(commands[name], spans.end).tolist() for name in ("started", "done"))
    for work, begin, until in zip(works, begins, ends, strict=False):
        for low, high in work.uses:
            for region in current:
                if region.low < high and low < region.high:
                    region.end = max(region.end, until)
        for low, high in work.fills:
            prior += [region for region in current if region.low < high and low < region.high]
            current = [region for region in current if region.low >= high or low >= region.high]
            current.append(_Occupancy(low, high, begin, until))
    rows = sorted(
        (region.begin, region.end, region.high - region.low)
        for region in (*prior, *current)
        if region.begin < spans.end
    )
    start, end, size = np.array(rows, dtype=np.int64).reshape(-1, 3).T
    return rows_between(start, end, size=size)
