"""Where data lies: rows of bytes at a constant distance."""

from typing import NamedTuple


class Region(NamedTuple):
    """`rows` rows of `row_bytes` bytes, `stride` bytes from start to start; one row when nothing lies between."""

    address: int
    rows: int
    row_bytes: int
    stride: int

    @property
    def end(self) -> int:
        """One past the last byte."""
        return self.address + (self.rows - 1) * self.stride + self.row_bytes

    @property
    def payload(self) -> int:
        """Bytes of data."""
        return self.rows * self.row_bytes


def make_region(address: int, rows: int, row_bytes: int, stride: int = 0) -> Region:
    """The region of a matrix; stride 0 means packed. Rows without a gap become one row."""
    if rows == 1 or stride in (0, row_bytes):
        return Region(address, 1, rows * row_bytes, rows * row_bytes)
    return Region(address, rows, row_bytes, stride)


def conflict(a: Region, b: Region) -> bool:
    """Whether the device keeps two accesses in order: by column interval when the strides are equal, else by
    bounding box (docs/interface.md, "Order and visibility"). Never False when the two share a byte."""
    if a.address >= b.end or b.address >= a.end:
        return False
    if a.rows == 1 or b.rows == 1 or a.stride != b.stride:
        return True
    distance = (b.address - a.address) % a.stride
    return distance < a.row_bytes or a.stride - distance < b.row_bytes
