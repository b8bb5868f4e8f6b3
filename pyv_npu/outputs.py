"""What the NPU left behind: a digest that does not depend on how commands were submitted or how long they took."""

import hashlib
from collections.abc import Callable, Sequence

from pyv_ext.bus import Bus
from pyv_ext.memory import Ram

STATUS_SIZE = 8
"""Status and ticket, written back into a descriptor: the submission's, not a result."""


class Outputs:
    """Collects the memory ranges that the device writes; the scratchpad counts as a whole."""

    def __init__(self, bus: Bus, spm: Sequence[Ram], is_status: Callable[[int], bool]) -> None:
        """`is_status(address)`: whether a command asked for its status word at that address."""
        self._bus = bus
        self._spm = spm
        self._is_status = is_status
        self._ranges: dict[tuple[int, int], None] = {}

    def written(self, address: int, size: int) -> None:
        """The device wrote `size` bytes at `address`."""
        if any(ram.base <= address < ram.end for ram in self._spm):
            return
        if size != STATUS_SIZE or not self._is_status(address):
            self._ranges[address, size] = None

    def ranges(self) -> list[tuple[int, int]]:
        """Disjoint [start, end) ranges of DRAM, ascending."""
        merged: list[tuple[int, int]] = []
        for address, size in sorted(self._ranges):
            if merged and address <= merged[-1][1]:
                merged[-1] = (merged[-1][0], max(merged[-1][1], address + size))
            else:
                merged.append((address, address + size))
        return merged

    def sha256(self) -> str:
        """Hash of the scratchpads and of all that was written to DRAM, with its addresses."""
        digest = hashlib.sha256()
        for ram in self._spm:
            digest.update(ram.u8)
        for start, end in self.ranges():
            digest.update(f"{start:x}..{end:x}:".encode())
            digest.update(self._bus.peek(start, end - start) or b"")
        return digest.hexdigest()
