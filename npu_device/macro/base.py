"""What the macro forms of all operations share: their operands, where those are, and the workspace."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import Any, NamedTuple, Self

from npu_device.abi.descriptor import Descriptor
from npu_device.abi.errors import TicketError
from npu_device.abi.extended import Extended
from npu_device.abi.opcodes import BITS, DataType
from npu_device.config import NpuConfig
from npu_device.descriptor_error import DescriptorError, NoRoomError
from npu_device.effect import Effect, Read
from npu_device.kernels import elements
from npu_device.memory import Bytes
from npu_device.operands import ELEMENT_BYTES, Matrix, make_matrix, row_bytes
from npu_device.plan import Buffers, Plan, buffers
from npu_device.region import Region
from npu_device.sequencer import Bus, Slots

SLOT_ALIGNMENT = 64
"""Of the buffers in a workspace, and of the workspace."""


class Site(NamedTuple):
    """The cluster that a command runs on, as far as its operands are concerned."""

    spm_base: int
    spm_size: int
    acc_bytes: int

    def in_spm(self, region: Region) -> bool:
        return self.spm_base <= region.address and region.end <= self.spm_base + self.spm_size


class Setting(NamedTuple):
    """What of the configuration shapes a plan. No result depends on it."""

    bus: Bus
    buffers: Callable[[int], Buffers]
    """Of a prefetch distance."""
    conv_lowering: str


def setting_of(config: NpuConfig) -> Setting:
    return Setting(
        Bus(config.dma.alignment, config.dma.bus_width_bytes),
        partial(buffers, config.dma.buffering),
        config.te.conv_lowering,
    )


class Operand(NamedTuple):
    """Memory that a command touches."""

    name: str
    region: Region
    element: int
    """What address and stride must be a multiple of."""
    written: bool = False


@dataclass(frozen=True, eq=False)
class Macro(ABC):
    """A validated command in macro form. All that is said about one operation is in one subclass."""

    d: Descriptor
    block: Extended
    site: Site

    @property
    @abstractmethod
    def operands(self) -> tuple[Operand, ...]:
        """All memory it touches, without the workspace; for a cache the whole of it."""

    @abstractmethod
    def compute(self, read: Read, held: elements.Values | None) -> Effect:
        """Sample the operands and compute. DescriptorError where data do not allow it."""

    @abstractmethod
    def plan(self, setting: Setting) -> Plan:
        """Its loop nest."""

    def start(self, read: Read) -> Self:
        """The command with everything known that it reads when it starts (the token position)."""
        return self

    @property
    def held_shape(self) -> tuple[int, int] | None:
        """Shape of the sum, for an operation that can hold one."""
        return None


def operand(name: str, matrix: Matrix, written: bool = False) -> Operand:
    return Operand(name, matrix.region, ELEMENT_BYTES[matrix.kind], written)


def values(read: Read, matrix: Matrix) -> elements.Values:
    """The elements of a matrix, shape (rows, columns); may share memory with the source."""
    return elements.decode(read(matrix.region), matrix.kind, matrix.rows, matrix.columns)


def whole(matrix: Matrix, result: elements.Values) -> tuple[Region, Bytes]:
    """The write of a whole matrix, from values of its type."""
    return matrix.region, elements.encode(result, matrix.kind)


def strided(name: str, address: int, rows: int, columns: int, kind: DataType, distance: int) -> Matrix:
    """A matrix with `distance` bytes between rows, 0: packed. DescriptorError when its rows overlap."""
    if 0 < distance < row_bytes(columns, kind):
        raise DescriptorError(
            TicketError.SHAPE, f"{name}: rows of {row_bytes(columns, kind)} bytes overlap, {distance} bytes apart"
        )
    return make_matrix(address, rows, columns, kind, distance)


def tile_size(d: Descriptor, name: str, extent: int, *matrices: DataType) -> int:
    """The tile along one dimension, at most its extent. Types whose rows it cuts must be cut at a byte."""
    size: int = getattr(d, name)
    if not size:
        raise DescriptorError(TicketError.SHAPE, f"{name} is 0")
    if size >= extent:
        return extent
    for kind in matrices:
        if size * BITS[kind] % 8:
            rule = 8 // BITS[kind]
            raise DescriptorError(TicketError.SHAPE, f"{name} {size}: must be a multiple of {rule} for {kind.name}")
    return size


def input_copies(d: Descriptor) -> int:
    """Buffers of each operand that is read."""
    return d.prefetch_dist + 1


def output_copies(d: Descriptor) -> int:
    """Buffers of each operand that is written: one fills while the other drains."""
    return min(2, d.prefetch_dist + 1)


MAX_TILES = 1 << 22
"""Hardware tiles of one command."""


def tiles(*extents: int, tile: "Tile") -> int:
    """How many tiles cover the extents."""
    return prod(-(-extent // size) for extent, size in zip(extents, tile, strict=True))


Demand = dict[str, tuple[int, int]]
"""Operand -> (bytes of one buffer, buffers)."""
Tile = tuple[int, ...]


def _total(demand: Demand) -> int:
    return sum(_padded(size) * copies for size, copies in demand.values())


def _padded(size: int) -> int:
    return -(-size // SLOT_ALIGNMENT) * SLOT_ALIGNMENT


def reserve(block: Extended, tile: Tile, count: int, demand: Callable[[Tile], Demand]) -> dict[str, Slots]:
    """Buffers in the workspace for a tile of a command with `count` tiles. NoRoomError when it is too small."""
    if count > MAX_TILES:
        raise DescriptorError(TicketError.SHAPE, f"{count} tiles: a command has at most {MAX_TILES}, use larger ones")
    wanted = demand(tile)
    need = _total(wanted)
    if need > block.workspace_bytes:
        parts = ", ".join(f"{name} {copies} x {size}" for name, (size, copies) in wanted.items())
        raise NoRoomError(TicketError.WORKSPACE, parts, "scratchpad in the workspace", need, block.workspace_bytes)
    at = block.workspace
    slots = {}
    for name, (size, copies) in wanted.items():
        slots[name] = Slots(at, _padded(size), copies)
        at += _padded(size) * copies
    return slots


def in_dram(site: Site, demand: dict[str, tuple[Matrix | None, int, int]]) -> Demand:
    """The demand of those operands that are there and not in the scratchpad already."""
    return {
        name: (size, copies)
        for name, (matrix, size, copies) in demand.items()
        if matrix is not None and not site.in_spm(matrix.region)
    }


def require_dram(site: Site, name: str, matrix: Matrix) -> None:
    """A cache or table that is moved by DMA lies there (specification 55, R12)."""
    if site.in_spm(matrix.region):
        raise DescriptorError(TicketError.ADDRESS, f"{name} {matrix.region.address:#x} must be in DRAM")


def dimensions(block: dict[str, Any], *names: str) -> None:
    """Dimensions among an operation's own words must not be 0."""
    for name in names:
        if not block[name]:
            raise DescriptorError(TicketError.SHAPE, f"{name} is 0")
