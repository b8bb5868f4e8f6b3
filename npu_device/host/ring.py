"""Descriptor ring in memory (docs/interface.md, "NPU registers"). Indices count modulo 2^32."""

from collections.abc import Callable
from typing import Any

from npu_device.abi import DESCRIPTOR_SIZE
from pyv_native.state import WORD32, WORD64

MIN_SIZE, MAX_SIZE = 2, 65536


class Ring:
    """Descriptor ring: its address, and the indices of host and device."""

    def __init__(self, front: Callable[[], Any]) -> None:
        """`front()`: view of the front end."""
        self._front = front

    @property
    def base(self) -> int:
        front = self._front()
        return int(front.base_high << 32 | front.base_low)

    @property
    def size(self) -> int:
        return int(self._front().ring_size)

    @property
    def head(self) -> int:
        """Index after the last fetched descriptor."""
        return int(self._front().head)

    @property
    def tail(self) -> int:
        """The last accepted tail."""
        return int(self._front().tail)

    @property
    def next(self) -> int:
        """Index after the last descriptor whose fetch has begun, between head and tail."""
        return int(self._front().next_fetch)

    @property
    def occupied(self) -> int:
        """Entries between head and tail."""
        return (self.tail - self.head) & WORD32

    @property
    def full(self) -> bool:
        return self.occupied >= self.size

    def slot(self, index: int) -> int:
        """Return the address of the descriptor with this index."""
        return (self.base + index % self.size * DESCRIPTOR_SIZE) & WORD64

    # -- writes, legal while the device is disabled; False: ignored --------------------------------------------

    def set_base(self, base: int) -> bool:
        if base % DESCRIPTOR_SIZE:
            return False
        front = self._front()
        front.base_high, front.base_low = base >> 32, base & WORD32
        return True

    def set_size(self, size: int) -> bool:
        if not MIN_SIZE <= size <= MAX_SIZE or size & (size - 1) or size < self.occupied:
            return False
        self._front().ring_size = size
        return True

    def set_tail(self, tail: int) -> bool:
        if (tail - self.next) & WORD32 > self.size - ((self.next - self.head) & WORD32):
            return False
        self._front().tail = tail
        return True
