"""Base of the macro forms of all operations: their description, and reads of operands.

Among the operands is the token position, which a command reads when it starts.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, NamedTuple, Self

from npu_device.abi.descriptor import Descriptor
from npu_device.abi.errors import TicketError
from npu_device.abi.extended import Extended
from npu_device.abi.opcodes import DataType
from npu_device.config import NpuConfig
from npu_device.cost.plan import Buffers, Plan, buffers
from npu_device.cost.sequencer import Bus, Nest, sequence
from npu_device.memory.arrays import Bytes, Read, WriteSet
from npu_device.memory.operands import ELEMENT_BYTES, Matrix, make_matrix, row_bytes
from npu_device.memory.region import Region
from npu_device.operations.checks import DescriptorError
from npu_device.operations.kernels.elements import Values, decode, encode
from npu_device.operations.macro.workspace import Reserved, Site

if TYPE_CHECKING:
    from npu_device.kv_quant.storage import KvAccess


class Setting(NamedTuple):
    """Part of the configuration that determines a plan. No result depends on it."""

    bus: Bus
    buffers: Callable[[int], Buffers]
    """Of a prefetch distance."""
    conv_lowering: str
    fold: tuple[int, int] | None = None
    """Rows and columns of an array that takes tiles fold by fold."""
    mask_skip: str = ""
    """Of tensor engines that see the masks of attention: `te.chained.mask_skip`."""

    def sequence(self, nest: Nest, d: Descriptor) -> Plan:
        """Return the plan of a command's nest."""
        return sequence(nest, self.bus, self.buffers(d.prefetch_dist))


def setting_of(config: NpuConfig) -> Setting:
    return Setting(
        Bus(
            config.dma.alignment, config.dma.bus_width_bytes, config.dma.partial_write == "rmw",
            config.spm.port is not None,
        ),
        partial(buffers, config.dma.buffering),
        config.te.conv_lowering,
        (config.te.rows, config.te.columns) if config.te.kind == "systolic_ws_pipe" else None,
        config.te.chained.mask_skip if config.te.kind == "chained_ve" else "",
    )  # fmt: skip


class Operand(NamedTuple):
    """Memory that a command touches."""

    name: str
    region: Region
    element: int
    """Bytes of which address and stride must be a multiple."""
    written: bool = False
    moves: bool = True
    """Whether its plan moves it or works on it; else it is read as the command starts."""


@dataclass(frozen=True, eq=False)
class Macro(ABC):
    """Validated command in macro form; each operation is a subclass."""

    d: Descriptor
    block: Extended
    site: Site
    reserved: Reserved
    position: int | None = field(default=None, kw_only=True)
    """The token position that it has read as it started."""

    @property
    @abstractmethod
    def operands(self) -> tuple[Operand, ...]:
        """Memory that it accesses, without the workspace; for a cache all of it."""

    @abstractmethod
    def compute(self, read: Read, accumulated: Values | None) -> WriteSet:
        """Sample the operands and compute. DescriptorError where data do not allow it."""

    @abstractmethod
    def plan(self, setting: Setting, lanes: int = 1) -> Plan:
        """Return its loop nest, for `lanes` engines in parallel."""

    @property
    def kv_accesses(self) -> "tuple[KvAccess, ...]":
        """Encoded caches that it touches, once it has started."""
        return ()

    @property
    def sampled(self) -> Hashable:
        """Return the sampled values on which its plan depends, except the position."""
        return None

    @property
    def parallelism(self) -> int:
        """Number of parts that engines can execute in parallel, each from begin to end on the same engine."""
        return 1

    def lanes(self, engines: int) -> int:
        """Return the number of engines that it uses, at most `engines`: those with a part of the work and buffers in
        the workspace, and no more than it requests."""
        return max(1, min(self.parallelism, self.reserved.lanes(engines), self.block.engines or engines))

    def start(self, read: Read) -> Self:
        """Return the command with all values that it samples at its start (the token position)."""
        return self

    def at(self, position: int) -> Self:
        """Return the command at a token position."""
        return replace(self, position=position)

    @cached_property
    def alignments(self) -> dict[str, int]:
        """Return the alignments of operands whose accesses of DRAM have their own (docs/bit-widths.md, R6)."""
        return self.block.aligned()

    @property
    def accumulator_shape(self) -> tuple[int, int] | None:
        """Shape of the sum, for an operation that can hold a sum."""
        return None


def operand(name: str, matrix: Matrix, written: bool = False) -> Operand:
    return Operand(name, matrix.region, ELEMENT_BYTES[matrix.kind], written)


def values(read: Read, matrix: Matrix) -> Values:
    """Return the elements of a matrix, shape (rows, columns); may share memory with the source."""
    return decode(read(matrix.region), matrix.kind, matrix.rows, matrix.columns)


def matrix_write(matrix: Matrix, result: Values) -> tuple[Region, Bytes]:
    """Return the write of a whole matrix, from values of its type."""
    return matrix.region, encode(result, matrix.kind)


def lay_out(name: str, address: int, rows: int, columns: int, kind: DataType, distance: int) -> Matrix:
    """Return a matrix with `distance` bytes between rows, 0: packed. DescriptorError when its rows overlap."""
    if 0 < distance < row_bytes(columns, kind):
        raise DescriptorError(
            TicketError.SHAPE, f"{name}: rows of {row_bytes(columns, kind)} bytes overlap, {distance} bytes apart"
        )
    return make_matrix(address, rows, columns, kind, distance)


def require_dram(site: Site, name: str, matrix: Matrix) -> None:
    """Check that a cache or table that is moved by DMA lies in DRAM (docs/bit-widths.md, R12)."""
    if site.in_spm(matrix.region):
        raise DescriptorError(TicketError.ADDRESS, f"{name} {matrix.region.address:#x} must be in DRAM")


POSITION_BYTES = 4


def position_operand(address: int) -> tuple[Operand, ...]:
    """Return the operand for `pos_addr`; none for 0."""
    if not address:
        return ()
    region = Region(address, 1, POSITION_BYTES, POSITION_BYTES)
    return (Operand("pos_addr", region, POSITION_BYTES, moves=False),)


def read_position(read: Read, address: int, rows: int, t_max: int) -> int:
    """Return the position t of the first of `rows` tokens. DescriptorError when the last is not below t_max."""
    data = read(Region(address, 1, POSITION_BYTES, POSITION_BYTES))
    position = int.from_bytes(data.tobytes(), "little")
    if position + rows > t_max:
        raise DescriptorError(
            TicketError.POSITION, f"tokens {position}..{position + rows - 1} at {address:#x}, t_max is {t_max}"
        )
    return position
