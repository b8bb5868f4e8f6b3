"""Store buffer with forwarding for the results of commands that have not retired.

A stream retires in order, so a command may end before it may retire. Its output is parked here until retirement writes
it to memory. Dependent commands read through the buffer; the core reads memory.

Operations read memory through read-only views. Their results are `sampled` in the cycle of the start, so that no later
store changes them.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from npu_device.event_loop.l2 import L2
from npu_device.memory.arrays import Bytes, WriteSet
from npu_device.memory.memory import Memory
from npu_device.memory.region import Region, conflict


class Results:
    """Parked outputs by acceptance number. Hazards prevent overlaps between them."""

    def __init__(self, memory: Memory, l2: L2 | None = None) -> None:
        """`l2`: the cache through which commands read and write, if its content may differ from `memory`."""
        self._memory = memory if l2 is None else l2
        self._parked: dict[int, tuple[tuple[Region, Bytes], ...]] = {}

    def sampled(self, made: WriteSet) -> WriteSet:
        """Detach the results of a command from memory: a copy of each array that is a view."""
        writes, total = made
        if total is not None:
            total = self._copy(total)
        return WriteSet(tuple([(region, self._copy(data)) for region, data in writes]), total)

    def _copy(self, data: NDArray[Any]) -> NDArray[Any]:
        result = data if data.flags.owndata else data.copy()
        result.setflags(write=False)
        return result

    def park(self, number: int, writes: tuple[tuple[Region, Bytes], ...]) -> None:
        self._parked[number] = writes

    def parked(self, number: int) -> tuple[tuple[Region, Bytes], ...] | None:
        """Return the parked writes of a command, or None."""
        return self._parked.get(number)

    def publish(self, number: int) -> None:
        """Write the parked outputs of a retiring command, if any, to memory."""
        if self._parked:
            for region, data in self._parked.pop(number, ()):
                self._memory.write(region, data)

    def read(self, region: Region) -> Bytes:
        """Return the rows of a region as a later command sees them; a view of memory if nothing in it is parked."""
        if not self._parked:
            return self._memory.rows(region)
        parked = [one for writes in self._parked.values() for one in writes if conflict(region, one[0])]
        if not parked:
            return self._memory.rows(region)
        size = region.end - region.address
        flat = self._memory.rows(Region(region.address, 1, size, size))[0].copy()
        for source, data in parked:
            for start, row in zip(source.row_addresses, data.reshape(source.rows, source.row_bytes), strict=True):
                low = max(start, region.address)
                high = min(start + source.row_bytes, region.end)
                if low < high:
                    flat[low - region.address : high - region.address] = row[low - start : high - start]
        return np.ndarray((region.rows, region.row_bytes), np.uint8, flat, 0, (region.stride, 1))

    def reset(self) -> None:
        self._parked.clear()
