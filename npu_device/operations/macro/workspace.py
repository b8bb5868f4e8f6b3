"""The workspace of a macro command: the buffers of its tiles, and their addresses."""

from dataclasses import dataclass
from itertools import accumulate
from math import prod
from typing import NamedTuple, Protocol

from npu_device.abi.descriptor import Descriptor
from npu_device.abi.errors import TicketError
from npu_device.abi.extended import Extended
from npu_device.abi.opcodes import BITS, DataType, Opcode
from npu_device.config import LimitsConfig, VeOperations
from npu_device.cost.durations import vector_operations
from npu_device.cost.sequencer import Slots
from npu_device.memory.region import Region
from npu_device.operations.checks import CapacityError, DescriptorError
from npu_device.operations.limits import check_tiles

SLOT_ALIGNMENT = 64
"""Of the buffers in a workspace, and of the workspace."""


class Site(NamedTuple):
    """Cluster that a command runs on, as far as its operands are concerned."""

    spm_base: int
    spm_size: int
    acc_bytes: int
    bank_bytes: int
    limits: LimitsConfig = LimitsConfig()
    fold: tuple[int, int] | None = None
    """Rows and columns of an array that takes tiles fold by fold."""
    costs: VeOperations = VeOperations()
    p_out_permille: int = 100
    """Share of outliers of encoded keys and values in runs without values."""
    write_combine: bool = True
    """Whether appended entries and metadata fill whole accesses of DRAM before these are made."""
    kv_halves: tuple[bytes | None, ...] = (None, None)
    """Parameter block of encoded keys and values, as it was when the command was fetched."""

    def operations(self, opcode: Opcode, function: int = 0) -> int:
        """Return the operations of the vector engine per element."""
        return vector_operations(self.costs, opcode, function)

    def in_spm(self, region: Region) -> bool:
        return self.spm_base <= region.address and region.end <= self.spm_base + self.spm_size


class Placed(Protocol):
    """Operand, as far as it has an address."""

    @property
    def region(self) -> Region: ...


class Buffers:
    """Buffers that a tile of a command needs in the workspace, for an engine."""

    def __init__(self, d: Descriptor, site: Site, tiles: int) -> None:
        """`tiles`: hardware tiles of the command. DescriptorError for too many of them."""
        check_tiles(site.limits, tiles)
        self._site = site
        self._reads = d.prefetch_dist + 1
        self._writes = min(2, d.prefetch_dist + 1)
        self.needs: dict[str, tuple[int, int]] = {}
        """Operand -> (bytes of one buffer, buffers)."""
        self.common: tuple[str, ...] = ()
        """Operands whose buffers engines have in common."""

    def read(self, name: str, operand: Placed | None, size: int, tiles: int = 1, common: bool = False) -> None:
        """Add `prefetch_dist` + 1 buffers for an operand that is read, unless it is in the scratchpad already; at least
        as many as `tiles` that stay. `common`: once for all engines."""
        self._add(name, operand, size, max(tiles, self._reads))
        if common and name in self.needs:
            self.common = (*self.common, name)

    def write(self, name: str, operand: Placed | None, size: int) -> None:
        """Add two buffers (without prefetch a single buffer) for an operand that is written or belongs to the result:
        the first fills while the second drains."""
        self._add(name, operand, size, self._writes)

    def add_private(self, name: str, size: int, common: bool = False) -> None:
        """Add space for data that does not move; none for 0 bytes. `common`: engines divide it."""
        if size:
            self.needs[name] = (size, 1)
            self.common = (*self.common, name) if common else self.common

    def _add(self, name: str, operand: Placed | None, size: int, copies: int) -> None:
        if operand is not None and not self._site.in_spm(operand.region):
            self.needs[name] = (size, copies)

    def reserve(self, block: Extended) -> "Reserved":
        """Reserve the buffers in the workspace. CapacityError when it is too small."""
        need = _total(self.needs)
        if need > block.workspace_bytes:
            parts = ", ".join(f"{name} {copies} x {size}" for name, (size, copies) in self.needs.items())
            level, capacity = "scratchpad in the workspace", block.workspace_bytes
            raise CapacityError(TicketError.WORKSPACE, parts, level, need, capacity)
        return Reserved(self._site, block.workspace, block.workspace_bytes, self.needs, self.common)


@dataclass(frozen=True)
class Reserved:
    """Buffers in the workspace: for an engine at least, and perhaps for more."""

    site: Site
    address: int
    size: int
    needs: dict[str, tuple[int, int]]
    common: tuple[str, ...] = ()
    """Operands whose buffers engines have in common, behind the others."""

    @property
    def _private(self) -> dict[str, tuple[int, int]]:
        """Buffers that engines do not share."""
        return {name: buffers for name, buffers in self.needs.items() if name not in self.common}

    @property
    def _shared_bytes(self) -> int:
        return _total({name: self.needs[name] for name in self.common})

    def lanes(self, engines: int) -> int:
        """Return the number of engines, at most `engines`, that have buffers."""
        need = _total(self._private)
        return min(engines, (self.size - self._shared_bytes) // need) if need else engines

    def slots(self, lanes: int) -> dict[str, Slots]:
        """Return the buffers of each operand. Engines have equal shares of the workspace, in banks of their own where
        it is large enough."""
        available = self.size - self._shared_bytes
        share = available // lanes
        banks = share - share % self.site.bank_bytes
        share = banks if banks >= _total(self._private) else share - share % SLOT_ALIGNMENT
        addresses = iter(self._spread(share // self.site.bank_bytes) or self._pack())
        slots = {
            name: Slots(tuple(next(addresses) for _ in range(copies)), share)
            for name, (_, copies) in self._private.items()
        }  # fmt: skip
        end = self.address + available - available % SLOT_ALIGNMENT
        for name in self.common:
            size, copies = self.needs[name]
            stride = max(0, size - self.site.acc_bytes) // max(1, lanes - 1) if name == "sums" else 0
            places = tuple(end + index * _pad(size) for index in range(copies))
            slots[name] = Slots(places, stride - stride % SLOT_ALIGNMENT)
            end += _pad(size) * copies
        return slots

    def _sizes(self) -> list[int]:
        """Return the sizes of all buffers in their order."""
        return [_pad(size) for size, copies in self._private.values() for _ in range(copies)]

    def _spread(self, banks: int) -> list[int] | None:
        """Place every buffer in the next bank that can hold it, so that few phases meet; None if no bank can."""
        size_of_bank = self.site.bank_bytes
        if banks < 2 or (self.address - self.site.spm_base) % size_of_bank:
            return None
        free = [size_of_bank] * banks
        addresses = []
        for index, size in enumerate(self._sizes()):
            order = (index + step for step in range(banks))
            bank = next((bank % banks for bank in order if size <= free[bank % banks]), None)
            if bank is None:
                return None
            addresses.append(self.address + (bank + 1) * size_of_bank - free[bank])
            free[bank] -= size
        return addresses

    def _pack(self) -> list[int]:
        """Place the buffers one after the other."""
        ends = list(accumulate(self._sizes(), initial=self.address))
        return ends[:-1]


def tile_size(d: Descriptor, name: str, extent: int, *matrices: DataType) -> int:
    """Return the tile along one dimension, at most its extent. Types whose rows it cuts must be cut at a byte."""
    size: int = getattr(d, name)
    if not size:
        raise DescriptorError(TicketError.SHAPE, f"{name} is 0: must be at least 1")
    if size >= extent:
        return extent
    for kind in matrices:
        if size * BITS[kind] % 8:
            rule = 8 // BITS[kind]
            raise DescriptorError(TicketError.SHAPE, f"{name} {size}: must be a multiple of {rule} for {kind.name}")
    return size


def tiles(*extents: int, tile: tuple[int, ...]) -> int:
    """Return the number of tiles that cover the extents."""
    return prod(-(-extent // size) for extent, size in zip(extents, tile, strict=True))


def _total(needs: dict[str, tuple[int, int]]) -> int:
    return sum(_pad(size) * copies for size, copies in needs.values())


def _pad(size: int) -> int:
    return -(-size // SLOT_ALIGNMENT) * SLOT_ALIGNMENT
