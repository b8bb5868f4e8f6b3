"""Regions of memory: rows of bytes at a constant distance."""

from collections.abc import Iterable
from struct import pack
from typing import NamedTuple

OPERAND_WORDS = 5
"""Number of words of an operand: first address, end, bytes of a row, row stride (0 for one row), 1 if it is written."""


class Region(NamedTuple):
    """Region of `rows` rows of `row_bytes` bytes, `stride` bytes from start to start; contiguous rows form one row."""

    address: int
    rows: int
    row_bytes: int
    stride: int

    @property
    def end(self) -> int:
        """Address after the last byte."""
        return self.address + (self.rows - 1) * self.stride + self.row_bytes

    @property
    def payload(self) -> int:
        """Bytes of data."""
        return self.rows * self.row_bytes

    @property
    def row_addresses(self) -> range:
        """First address of each row."""
        return range(self.address, self.address + self.rows * self.stride, self.stride)


def make_region(address: int, rows: int, row_bytes: int, stride: int = 0) -> Region:
    """Return the region of a matrix; stride 0 means packed. Rows without a gap become one row."""
    if rows == 1 or stride in (0, row_bytes):
        return Region(address, 1, rows * row_bytes, rows * row_bytes)
    return Region(address, rows, row_bytes, stride)


def conflict(a: Region, b: Region) -> bool:
    """Check whether the device orders two accesses: by column interval if the strides are equal, else by bounding box
    (docs/interface.md, "Order and visibility"). Never False if they share a byte."""
    if a.address >= b.end or b.address >= a.end:
        return False
    if a.rows == 1 or b.rows == 1 or a.stride != b.stride:
        return True
    distance = (b.address - a.address) % a.stride
    return distance < a.row_bytes or a.stride - distance < b.row_bytes


def operand_words(reads: Iterable[Region], writes: Iterable[Region]) -> bytes:
    """Return the words of operands for `reservation.hazards`, 8 bytes each."""
    words = [
        word
        for regions, written in ((reads, 0), (writes, 1))
        for region in regions
        for word in (region[0], region.end, region[2], region[3] if region[1] > 1 else 0, written)
    ]
    return pack(f"<{len(words)}q", *words)
