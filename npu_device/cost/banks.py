"""Demand of accesses on scratchpad banks, in port cycles (docs/npu-timing.md, "Scratchpad").

Interleaving places consecutive blocks of bytes on successive banks or DRAM channels.
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
"""Interleaving block in bytes of `spm.interleave: 64B`."""
READ_PORT, WRITE_PORT = 0, 1


class Access(NamedTuple):
    """Phase of a step that reads or writes a region `times` times. A fraction is a partial access."""

    region: Region
    write: bool
    times: int | Fraction = 1


class Demand(NamedTuple):
    """Cycles of a step on a port of a bank."""

    bank: int
    """Index over all clusters."""
    port: int
    cycles: int
    longest: int
    """Cycles of the longest phase."""


def demands(accesses: Sequence[Access], spm: SpmConfig) -> tuple[Demand, ...]:
    """Return the port cycles by bank and port, in this order; none if ports are not limited."""
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
    """Return the bytes of a region on each bank of its cluster."""
    block = spm.size // spm.banks if spm.interleave == "block" else LINE
    start = (region.address - SPM_BASE) % SPM_CLUSTER_STRIDE
    if spm.interleave == "block" and start // block == (start + region.end - region.address - 1) // block:
        sizes = [0] * spm.banks
        sizes[start // block] = region.payload
        return sizes
    low = start + np.arange(region.rows, dtype=np.int64) * region.stride
    return spread(low, low + region.row_bytes, block, spm.banks)


def spread(low: Column, high: Column, block: int, ways: int) -> list[int]:
    """Return the total bytes of the spans low..high-1 on each of `ways` banks or channels."""
    first = np.arange(ways, dtype=np.int64) * block
    return [int(size) for size in (_below(high, first, block) - _below(low, first, block)).sum(axis=0)]


def _below(address: Column, first: Column, block: int) -> Column:
    """Return the bytes below each address on each way. `first`: offset of each way's block in a period."""
    period = block * len(first)
    periods, remainder = np.divmod(address[:, None], period)
    return periods * block + np.minimum(np.maximum(remainder - first, 0), block)
