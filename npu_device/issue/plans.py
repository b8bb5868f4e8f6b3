"""Plans that are kept: commands that differ only in where their operands lie in DRAM have one plan.

Layers of a model are alike, and so are requests of a step. What a plan, and what its steps cost, depends on is all of
the command but addresses in DRAM; of these how far operands that share memory are apart, and how each lies on the
accesses and channels of DRAM. The rest is added to the steps of the plan that is kept.
"""

from collections.abc import Hashable, Sequence
from dataclasses import replace
from math import lcm
from typing import Any, NamedTuple

import numpy as np

from npu_device.abi.descriptor import EXTENDED_WORDS, WORDS
from npu_device.abi.extended import LAYOUTS, PER_OP
from npu_device.config import FrontEndConfig, NpuConfig, QueueConfig, SubmitConfig
from npu_device.cost.durations import Timing
from npu_device.cost.plan import Column, Plan, Transfer
from npu_device.event_loop.encoding import Encoded, Pieces, encode
from npu_device.operations.macro.base import Macro, Setting

ADDRESS_BYTES = 8
"""Of a word that holds an address, and of no other."""
KEPT_STEPS = 1 << 19
"""Of all plans that are kept together, some 200 bytes each."""
_ASIDE = dict.fromkeys(("rank", "affinity", "prio", "stream", "irq", "write_status", "param1", "status", "ticket"), 0)
"""What a descriptor says of when a command runs and who is told."""
_IN_DESCRIPTOR = _ASIDE | {word.name: 0 for word in WORDS if word.size == ADDRESS_BYTES}
_IN_BLOCK: dict[str, Any] = {
    word.name: 0 for word in EXTENDED_WORDS if word.size == ADDRESS_BYTES and word.name != "workspace"
}
_IN_OPERATION = {
    int(opcode): tuple(word.offset - PER_OP for word in words if word.size == ADDRESS_BYTES)
    for opcode, words in LAYOUTS.items()
}


class Place(NamedTuple):
    """Location of a command's operands in DRAM: groups of operands that share memory."""

    key: Hashable
    """All that its plan depends on."""
    starts: tuple[int, ...]
    """First address of each group, ascending."""
    ends: tuple[int, ...]


class _Kept(NamedTuple):
    encoded: Encoded
    group: Column
    """Of each step the group of operands that it moves; behind the last one: it moves nothing."""
    offset: Column
    """From the start of the group."""


class Plans:
    """Plans of devices with one configuration, those used last."""

    def __init__(self, config: NpuConfig, kept_steps: int = KEPT_STEPS) -> None:
        self._config = _timed(config)
        self.pieces = Pieces(Timing(config))
        self._room = kept_steps
        self.steps = 0
        """Of the plans that are kept."""
        self._kept: dict[Hashable, _Kept] = {}
        self.made = 0
        """Plans that were made, not found."""

    def fit(self, config: NpuConfig) -> bool:
        """Check whether commands have the same plans on a device with this configuration."""
        return self._config == _timed(config)

    def of(self, macro: Macro, setting: Setting, lanes: int) -> Encoded:
        """Return the plan of a command for so many engines; encoded keys and values lie where the command says."""
        place = placed(macro, lanes, lcm(self.pieces.timing.turn, setting.bus.alignment, *macro.alignments.values()))
        found = self._kept.pop(place.key, None)
        if found is None:
            self.made += 1
            encoded = encode(macro.plan(setting, lanes), self.pieces)
            found = _located(encoded, place)
            if found is None or len(encoded.plan) > self._room:
                return encoded
            self.steps += len(encoded.plan)
        self._kept[place.key] = found
        while self.steps > self._room:
            self.steps -= len(self._kept.pop(next(iter(self._kept))).encoded.plan)
        starts = np.array((*place.starts, 0), np.int64)
        return found.encoded.moved(found.offset + starts[found.group])


def _timed(config: NpuConfig) -> NpuConfig:
    """Return a configuration without what says how commands arrive."""
    return replace(config, mode="tight", frontend=FrontEndConfig(), queue=QueueConfig(), submit=SubmitConfig())


def placed(macro: Macro, lanes: int, unit: int) -> Place:
    """Return the location of a command. `unit`: bytes of DRAM after which neither its accesses nor its channels
    differ."""
    d, block, site = macro.d, macro.block, macro.site
    own = bytearray(block.per_op)
    for at in _IN_OPERATION.get(d.opcode, ()):
        own[at : at + ADDRESS_BYTES] = bytes(ADDRESS_BYTES)
    moved = [one for one in macro.operands if one.moves]
    outside = sorted((one.region.address, one.region.end) for one in moved if not site.in_spm(one.region))
    starts, ends = list[int](), list[int]()
    for start, end in outside:
        if ends and start < ends[-1]:
            ends[-1] = max(ends[-1], end)
        else:
            starts.append(start)
            ends.append(end)
    where = []
    for one in moved:
        address = one.region.address
        group = -1 if site.in_spm(one.region) else _group(starts, address)
        where.append((one.name, group, address if group < 0 else address - starts[group]))
    key = (
        macro.__class__, lanes, d._replace(**_IN_DESCRIPTOR), block._replace(**_IN_BLOCK, per_op=bytes(own)),
        macro.position, macro.sampled, tuple(where), tuple(start % unit for start in starts),
    )  # fmt: skip
    return Place(key, tuple(starts), tuple(ends))


def _group(starts: Sequence[int], address: int) -> int:
    """Return the last group that does not begin behind an address."""
    return sum(start <= address for start in starts) - 1


def _located(encoded: Encoded, place: Place) -> _Kept | None:
    """Return a plan whose transfers know their operands; None if a transfer lies outside all operands."""
    plan: Plan = encoded.plan
    moves = np.array([isinstance(piece, Transfer) for piece in plan.pieces], bool)[plan.piece]
    none = len(place.starts)
    group = np.full(len(plan), none, np.int64)
    starts, ends = np.array((*place.starts, 0), np.int64), np.array((*place.ends, 0), np.int64)
    at = plan.dram[moves]
    group[moves] = np.searchsorted(starts[:none], at, side="right") - 1
    if (group < 0).any() or (at >= ends[group[moves]]).any():
        return None
    return _Kept(encoded, group, plan.dram - starts[group])
