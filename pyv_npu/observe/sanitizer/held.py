"""Submissions in flight, and the memory that they own, as byte ranges by page."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from npu_device.abi.descriptor import Descriptor
from npu_device.memory.region import Region
from pyv_ext.bus.memory import PAGE, PAGE_BITS
from pyv_npu.observe.sanitizer.findings import AccessSide

_WIDE = 64
"""Maximum number of pages of a range in the page table; larger ranges are checked for every address."""


class HoldingRole(Enum):
    """Role of a range for its submission."""

    SLOT = "descriptor in the ring"
    DESCRIPTOR = "descriptor"
    BLOCK = "extended block"
    INPUT = "operand"
    OUTPUT = "output"
    STATUS = "status word"
    """Status word, whether the device writes it back or not."""


@dataclass(slots=True, eq=False)
class OpenSubmission:
    """Submitted descriptor with the ranges that it owns."""

    number: int
    """Sequence number of the submission."""
    side: AccessSide
    """Access that submitted it: doorbell or ENQCMD_T."""
    address: int
    index: int | None
    """Index in the ring; None if submitted by ENQCMD_T."""
    descriptor: Descriptor
    stream: int
    cluster: int
    all_before: int
    """Barriers order it after all submissions up to this number, and after those of its cluster up to the next."""
    cluster_before: int
    ticket: int | None = None
    """Ticket, after the device has accepted the submission."""
    ended: bool = False
    observed: bool = False
    holdings: "list[Holding]" = field(default_factory=list)

    @property
    def writes_status(self) -> bool:
        return bool(self.descriptor.write_status)


class Holding(NamedTuple):
    """Memory of a submission in flight."""

    region: Region
    role: HoldingRole
    owner: OpenSubmission

    def touches(self, address: int, size: int) -> bool:
        """Check whether the range overlaps `size` bytes at an address."""
        start, rows, row_bytes, stride = self.region
        if address + size <= start or address >= self.region.end:
            return False
        if rows == 1:
            return True
        column = (address - start) % stride
        return column < row_bytes or column + size > stride


class Holdings:
    """Memory ranges that belong to the device."""

    def __init__(self) -> None:
        self._pages: dict[int, dict[Holding, None]] = {}
        self._wide: dict[Holding, None] = {}

    def add(self, holding: Holding) -> None:
        for bucket in self._buckets(holding, make=True):
            bucket[holding] = None

    def remove(self, holding: Holding) -> None:
        for bucket in self._buckets(holding, make=False):
            bucket.pop(holding, None)

    def at(self, address: int, size: int) -> list[Holding]:
        """Return the holdings that overlap `size` bytes at an address, oldest first within a page."""
        pages = range(address >> PAGE_BITS, (address + size - 1 >> PAGE_BITS) + 1)
        holdings = dict.fromkeys(holding for page in pages for holding in self._pages.get(page, ()))
        return [holding for holding in (*holdings, *self._wide) if holding.touches(address, size)]

    def _buckets(self, holding: Holding, *, make: bool) -> Iterator[dict[Holding, None]]:
        low, end = holding.region.address, holding.region.end
        if end - low > _WIDE * PAGE:
            yield self._wide
            return
        for page in range(low >> PAGE_BITS, (end - 1 >> PAGE_BITS) + 1):
            if make:
                yield self._pages.setdefault(page, {})
            elif page in self._pages:
                yield self._pages[page]
                if not self._pages[page]:
                    del self._pages[page]
