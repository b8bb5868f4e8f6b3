"""How consecutive addresses go round banks or channels: a block of bytes on each in turn."""

import numpy as np

from npu_device.plan import Column


def spread(low: Column, high: Column, block: int, ways: int) -> list[int]:
    """Bytes of the spans low..high-1, added up, on each of `ways` banks or channels."""
    first = np.arange(ways, dtype=np.int64) * block
    return [int(size) for size in (_below(high, first, block) - _below(low, first, block)).sum(axis=0)]


def _below(address: Column, first: Column, block: int) -> Column:
    """Bytes below each address on each way, whose part of every turn begins at `first`."""
    turn = block * len(first)
    return address[:, None] // turn * block + np.clip(address[:, None] % turn - first, 0, block)
