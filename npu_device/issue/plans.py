"""Cache of plans: commands that differ only in the DRAM addresses of their operands share a plan.

Layers of a model are alike, and so are requests of a step. A plan and the cost of its steps depend on the whole command
except its DRAM addresses. Of these, only the distances of overlapping operands and the alignment to accesses and
channels of DRAM matter. The base addresses are added to the steps of a cached plan.
"""

from collections.abc import Hashable, Sequence
from dataclasses import replace
from math import lcm
from typing import Any, NamedTuple

import numpy as np

from npu_device.abi.descriptor import WORDS
from npu_device.abi.extended import EXTENDED_WORDS, LAYOUTS, PER_OP
from npu_device.config import FrontEndConfig, NpuConfig, QueueConfig, SubmitConfig
from npu_device.cost.durations import Timing
from npu_device.cost.plan import Column, Plan, Transfer
from npu_device.event_loop.encoding import Encoded, Pieces, encode
from npu_device.operations.macro.base import Macro, Setting

ADDRESS_BYTES = 8
"""Size in bytes of an address word; no other word has it."""
MAX_CACHED_STEPS = 1 << 19
"""Maximum number of steps of all cached plans, of some 200 bytes each."""
_ASIDE = dict.fromkeys(("rank", "affinity", "prio", "stream", "irq", "write_status", "param1", "status", "ticket"), 0)
"""Descriptor fields that affect only when a command runs and how its completion is reported."""
_IN_DESCRIPTOR = _ASIDE | {word.name: 0 for word in WORDS if word.size == ADDRESS_BYTES}
_IN_BLOCK: dict[str, Any] = {
    word.name: 0 for word in EXTENDED_WORDS if word.size == ADDRESS_BYTES and word.name != "workspace"
}
_IN_OPERATION = {
    int(opcode): tuple(word.offset - PER_OP for word in words if word.size == ADDRESS_BYTES)
    for opcode, words in LAYOUTS.items()
}


class Place(NamedTuple):
    """Location of a command's operands in DRAM, as groups of overlapping operands."""

    key: Hashable
    """Everything that the plan depends on."""
    starts: tuple[int, ...]
    """First address of each group, ascending."""
    ends: tuple[int, ...]


class _CachedPlan(NamedTuple):
    encoded: Encoded
    group: Column
    """Group of the operand that each step transfers; the number of groups for a step without transfer."""
    offset: Column
    """Offset of each step from the start of its group in bytes."""


class Plans:
    """Cache of the most recently used plans of devices with one configuration."""

    def __init__(self, config: NpuConfig, max_steps: int = MAX_CACHED_STEPS) -> None:
        self._config = _plan_config(config)
        self.pieces = Pieces(Timing(config))
        self._max_steps = max_steps
        self.steps = 0
        """Number of steps of the cached plans."""
        self._cache: dict[Hashable, _CachedPlan] = {}
        self.misses = 0
        """Number of cache misses."""

    def fit(self, config: NpuConfig) -> bool:
        """Check whether commands have the same plans on a device with this configuration."""
        return self._config == _plan_config(config)

    def of(self, macro: Macro, setting: Setting, lanes: int) -> Encoded:
        """Return the plan of a command on `lanes` engines; encoded keys and values have virtual addresses."""
        place = locate(macro, lanes, lcm(self.pieces.timing.turn, setting.bus.alignment, *macro.alignments.values()))
        plan = self._cache.pop(place.key, None)
        if plan is None:
            self.misses += 1
            encoded = encode(macro.plan(setting, lanes), self.pieces)
            plan = _group_steps(encoded, place)
            if plan is None or len(encoded.plan) > self._max_steps:
                return encoded
            self.steps += len(encoded.plan)
        self._cache[place.key] = plan
        while self.steps > self._max_steps:
            self.steps -= len(self._cache.pop(next(iter(self._cache))).encoded.plan)
        starts = np.array((*place.starts, 0), np.int64)
        return plan.encoded.relocate(plan.offset + starts[plan.group])


def _plan_config(config: NpuConfig) -> NpuConfig:
    """Return a configuration without its submission settings."""
    return replace(config, mode="tight", frontend=FrontEndConfig(), queue=QueueConfig(), submit=SubmitConfig())


def locate(macro: Macro, lanes: int, unit: int) -> Place:
    """Return the location of a command. `unit`: period in bytes of the alignment to accesses and channels of DRAM."""
    d, block, site = macro.d, macro.block, macro.site
    per_op = bytearray(block.per_op)
    for at in _IN_OPERATION.get(d.opcode, ()):
        per_op[at : at + ADDRESS_BYTES] = bytes(ADDRESS_BYTES)
    moves = [operand for operand in macro.operands if operand.moves]
    spans = sorted((operand.region.address, operand.region.end) for operand in moves if not site.in_spm(operand.region))
    starts, ends = list[int](), list[int]()
    for start, end in spans:
        if ends and start < ends[-1]:
            ends[-1] = max(ends[-1], end)
        else:
            starts.append(start)
            ends.append(end)
    positions = []
    for operand in moves:
        address = operand.region.address
        group = -1 if site.in_spm(operand.region) else _group(starts, address)
        positions.append((operand.name, group, address if group < 0 else address - starts[group]))
    key = (
        macro.__class__, lanes, d._replace(**_IN_DESCRIPTOR), block._replace(**_IN_BLOCK, per_op=bytes(per_op)),
        macro.position, macro.sampled, tuple(positions), tuple(start % unit for start in starts),
    )  # fmt: skip
    return Place(key, tuple(starts), tuple(ends))


def _group(starts: Sequence[int], address: int) -> int:
    """Return the index of the last group that begins at or before an address."""
    return sum(start <= address for start in starts) - 1


def _group_steps(encoded: Encoded, place: Place) -> _CachedPlan | None:
    """Return a plan with the operand group of each transfer; None if a transfer lies outside all operands."""
    plan: Plan = encoded.plan
    moves = np.array([isinstance(piece, Transfer) for piece in plan.pieces], bool)[plan.piece]
    none = len(place.starts)
    group = np.full(len(plan), none, np.int64)
    starts, ends = np.array((*place.starts, 0), np.int64), np.array((*place.ends, 0), np.int64)
    at = plan.dram[moves]
    group[moves] = np.searchsorted(starts[:none], at, side="right") - 1
    if (group < 0).any() or (at >= ends[group[moves]]).any():
        return None
    return _CachedPlan(encoded, group, plan.dram - starts[group])
