"""Scratchpad banks: which of them an access uses, and for how many port cycles (docs/npu-timing.md, "Scratchpad").

Interleaving puts consecutive blocks of bytes on banks or DRAM channels in turn.
"""

from collections.abc import Sequence
from fractions import Fraction
from typing import NamedTuple

import numpy as np

from npu_device.abi.memory_map import SPM_BASE, SPM_CLUSTER_STRIDE
from npu_device.config import SpmConfig
from npu_device.cost.plan import Column
from npu_device.memory.region import Region

LINE = 64
"""Bytes of `spm.interleave: 64B`."""
READ_PORT, WRITE_PORT = 0, 1


class Access(NamedTuple):
    """Phase of a step: a region is read or written `times` times; a part of it counts in proportion."""

    region: Region
    write: bool
    times: int | Fraction = 1


class Demand(NamedTuple):
    """Cycles of a step on a port of a bank."""

    bank: int
    """Through all clusters."""
    port: int
    cycles: int
    longest: int
    """Of the phase that needs most."""


def demands(accesses: Sequence[Access], spm: SpmConfig) -> tuple[Demand, ...]:
    """Port cycles by bank and port, in this order; none where ports are not limited."""
    if spm.port is None:
        return ()
    phases: dict[tuple[int, int], list[int]] = {}
    for access in accesses:
        port = WRITE_PORT if access.write and spm.ports == "1r1w" else READ_PORT
        for bank, size in enumerate(bytes_per_bank(access.region, spm)):
            if size:
                phases.setdefault((bank, port), []).append(-(-size * access.times // spm.port))
    cluster = _cluster(accesses)
    return tuple(
        Demand(cluster * spm.banks + bank, port, sum(cycles), max(cycles))
        for (bank, port), cycles in sorted(phases.items())
    )


def _cluster(accesses: Sequence[Access]) -> int:
    return next(((access.region.address - SPM_BASE) // SPM_CLUSTER_STRIDE for access in accesses), 0)


def bytes_per_bank(region: Region, spm: SpmConfig) -> list[int]:
    """Bytes of a region on each bank of its cluster."""
    block = spm.size // spm.banks if spm.interleave == "block" else LINE
    start = (region.address - SPM_BASE) % SPM_CLUSTER_STRIDE
    if spm.interleave == "block" and start // block == (start + region.end - region.address - 1) // block:
        sizes = [0] * spm.banks
        sizes[start // block] = region.payload
        return sizes
    low = start + np.arange(region.rows, dtype=np.int64) * region.stride
    return spread(low, low + region.row_bytes, block, spm.banks)


def spread(low: Column, high: Column, block: int, ways: int) -> list[int]:
    """Bytes of the spans low..high-1, added up, on each of `ways` banks or channels."""
    first = np.arange(ways, dtype=np.int64) * block
    return [int(size) for size in (_below(high, first, block) - _below(low, first, block)).sum(axis=0)]


def _below(address: Column, first: Column, block: int) -> Column:
    """Bytes below each address on each way, whose part of every turn begins at `first`."""
    turn = block * len(first)
    turns, rest = np.divmod(address[:, None], turn)
    return turns * block + np.minimum(np.maximum(rest - first, 0), block)
