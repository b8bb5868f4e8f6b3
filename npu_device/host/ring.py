"""The descriptor ring in memory (docs/interface.md, "NPU registers"). Indices run modulo 2^32."""

from typing import Any

from npu_device.abi import DESCRIPTOR_SIZE
from pyv_native.state import WORD64, Fields, StateError

INDEX_MASK = 0xFFFF_FFFF
MIN_SIZE, MAX_SIZE = 2, 65536


class Ring:
    """Descriptor ring: its address, and the indices of host and device."""

    def __init__(self, size: int) -> None:
        self.base = 0
        self.size = size
        self.head = 0
        """Descriptors fetched."""
        self.tail = 0
        """The last accepted tail."""
        self.next = 0
        """Descriptors whose fetch has begun: between head and tail."""
        self.wanted = False
        """A doorbell was refused because the ring was full."""

    @property
    def occupied(self) -> int:
        """Entries between head and tail."""
        return (self.tail - self.head) & INDEX_MASK

    @property
    def full(self) -> bool:
        return self.occupied >= self.size

    @property
    def waiting(self) -> bool:
        """Check for a descriptor whose fetch has not begun."""
        return self.next != self.tail

    def doorbell(self, tail: int) -> int | None:
        """Move the tail; how many descriptors that handed over, or None when the ring has no room for so many."""
        count = (tail - self.tail) & INDEX_MASK
        if count > self.size - self.occupied:
            self.wanted = self.wanted or self.full
            return None
        self.tail = tail
        return count

    def take(self) -> int:
        """Begin with the next descriptor: its index."""
        index = self.next
        self.next = (index + 1) & INDEX_MASK
        return index

    def fetched(self) -> bool:
        """Record that the 64 bytes of the oldest taken descriptor have been read; return whether SPACE is to be
        signalled."""
        self.head = (self.head + 1) & INDEX_MASK
        wanted, self.wanted = self.wanted, False
        return wanted

    def slot(self, index: int) -> int:
        """Address of the descriptor with this index."""
        return (self.base + index % self.size * DESCRIPTOR_SIZE) & 0xFFFF_FFFF_FFFF_FFFF

    def reset(self) -> None:
        """Empty; base and size are configuration and stay."""
        self.head = self.tail = self.next = 0
        self.wanted = False

    # -- what may be written while the device is disabled; False: ignored --------------------------------------

    def set_base(self, base: int) -> bool:
        if base % DESCRIPTOR_SIZE:
            return False
        self.base = base
        return True

    def set_size(self, size: int) -> bool:
        if not MIN_SIZE <= size <= MAX_SIZE or size & (size - 1) or size < self.occupied:
            return False
        self.size = size
        return True

    def set_tail(self, tail: int) -> bool:
        if (tail - self.next) & INDEX_MASK > self.size - ((self.next - self.head) & INDEX_MASK):
            return False
        self.tail = tail
        return True

    # -- snapshots ---------------------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """Return the state of a snapshot."""
        return {name: getattr(self, name) for name in _KEPT}

    def load_state(self, state: Any) -> None:
        fields = Fields(state, *_KEPT)
        base, size = fields.integer("base", 0, WORD64), fields.integer("size", MIN_SIZE, MAX_SIZE)
        head, tail, begun = (fields.integer(name, 0, INDEX_MASK) for name in ("head", "tail", "next"))
        if base % DESCRIPTOR_SIZE:
            raise StateError(f"{base:#x} is no multiple of {DESCRIPTOR_SIZE}", "base")
        if size & (size - 1):
            raise StateError(f"{size} is no power of two", "size")
        if not (begun - head) & INDEX_MASK <= (tail - head) & INDEX_MASK <= size:
            raise StateError("head, next and tail do not fit a ring of this size", "tail")
        self.base, self.size, self.head, self.tail, self.next = base, size, head, tail, begun
        self.wanted = fields.flag("wanted")


_KEPT = ("base", "size", "head", "tail", "next", "wanted")
