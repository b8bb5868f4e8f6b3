"""Command: the request of a valid descriptor, and its progress in the device."""

from typing import NamedTuple, Protocol

from npu_device.abi.descriptor import Descriptor
from npu_device.abi.opcodes import Eltwise, Opcode
from npu_device.config import NpuConfig
from npu_device.cost.plan import Piece
from npu_device.memory.arrays import WriteSet
from npu_device.memory.operands import INTEGERS, Matrix
from npu_device.memory.region import Region, operand_words
from npu_device.operations.checks import DescriptorError
from npu_device.operations.macro.base import Macro
from npu_device.operations.tile_form import OPERATIONS, holds_sum
from npu_device.trace.events import FRONTEND, Kind, unit_code, unit_counts

ACCUMULATORS_BASE = 1 << 62
"""Accumulators are a memory of their own beyond all addresses of memory: the ranges of sums start here."""


SUM_BYTES = 4
"""Bytes of an element: int32 or fp32."""


class Sum(NamedTuple):
    """Request of a GEMM_T to the accumulators."""

    shape: tuple[int, int]
    """M x N."""
    integer: bool
    """int32, else fp32."""
    hold: bool
    """Whether the sum stays."""

    @property
    def size(self) -> int:
        return self.shape[0] * self.shape[1] * SUM_BYTES


UnitClass = tuple[Kind, int, int]
"""(kind, cluster, index + 1 within the cluster or 0 for any)."""


def units_by_class(config: NpuConfig) -> dict[UnitClass, tuple[int, ...]]:
    """Return the codes of the units of each class, lowest first."""
    classes: dict[UnitClass, tuple[int, ...]] = {}
    for kind, count in unit_counts(config).items():
        for cluster in range(config.clusters):
            codes = tuple(unit_code(kind, cluster * count + index) for index in range(count))
            classes[kind, cluster, 0] = codes
            classes |= {(kind, cluster, index + 1): (code,) for index, code in enumerate(codes)}
    return classes


class Order(NamedTuple):
    """Decoded order of a valid descriptor."""

    descriptor: Descriptor
    """Without status and ticket."""
    opcode: Opcode
    kind: Kind | None
    """Type of unit that executes it; None: no unit, it starts and completes at once when it is `oldest` (NOP,
    BARRIER, CORE)."""
    inputs: tuple[Matrix, ...] = ()
    output: Matrix | None = None
    reads: tuple[Region, ...] = ()
    """Tile form: memory that it looks at."""
    writes: tuple[Region, ...] = ()
    """Tile form: memory that it changes."""
    reads_output: bool = False
    """WHERE: elements that are not selected stay."""
    macro: Macro | None = None
    """Macro form: what it does; all that is said of operands above is empty then."""
    workspace: Region | None = None
    """Macro form: scratchpad that it uses and leaves as it was."""
    holds: bool = False
    """GEMM_T: the sum stays in the accumulator and `output` is not written."""
    total: Sum | None = None
    """GEMM_T: the sum that it begins, adds to or keeps."""
    step: tuple[Piece, int] | None = None
    """Tile form: (what its unit does, the DRAM address that it begins at), where that was asked for."""


def tile_order(d: Descriptor) -> Order:
    """Return the order of a valid descriptor in tile form."""
    opcode, kind, forms = _TILE_FORMS[d.opcode]
    operands = [form.matrix(d) for form in forms[d.function].operands]
    if not operands:
        return Order(d, opcode, kind)
    inputs, output = tuple(operands[:-1]), operands[-1]
    reads, writes = tuple([matrix.region for matrix in inputs]), (output.region,)
    if kind is not Kind.TE:
        keeps_rest = opcode is Opcode.ELTWISE and d.function == Eltwise.WHERE
        return Order(d, opcode, kind, inputs, output, reads, writes, keeps_rest)
    total = None
    if d.accumulate or d.function:
        total = Sum((d.tile_m, d.tile_n), d.type_in0 in INTEGERS, holds_sum(d))
    keeps = total is not None and total.hold
    return Order(d, opcode, kind, inputs, output, reads, () if keeps else writes, holds=keeps, total=total)


_TILE_FORMS = [(opcode, operation.kind, operation.forms) for opcode, operation in sorted(OPERATIONS.items())]
"""By opcode."""


class Command:
    """Command from `decode.Decoder`; the device fills in ticket and number and everything below them.

    Defaults that most commands keep are class attributes.
    """

    ticket: int = 0
    number: int = 0
    """Acceptance number: the age. Smaller is older."""
    status_address: int | None = None
    """Address of the status word, if it is written back."""
    affinity: int = 0
    """Index of the unit + 1 within its cluster; 0: any."""
    accumulator_regions: tuple[Region, ...] = ()
    """Bytes of the sum that it adds to or keeps."""

    entry: int = 0
    """Offset of its entry of the reservation station."""
    piece: int = 0
    """Tile command: offset of the work of its step."""
    unit_class: UnitClass | None = None
    """Class of the units that may execute it."""
    unit: int = FRONTEND
    """Code of the unit that executes it."""
    result: WriteSet | None = None
    products: object | None = None
    """CA_FULL: what engines outside are given of it (`external.products`), or why they do not take it."""
    failure: DescriptorError | None = None
    """Why it could not start: it ends at once, without a unit, and its ticket becomes an error."""

    def __init__(self, order: Order, stream: int = 0, prio: int = 0) -> None:
        self.order = order
        self.descriptor = order.descriptor
        self.opcode = order.opcode
        self.kind = order.kind
        self.macro = order.macro
        """From its start on, with the values of that cycle."""
        self.stream = stream
        self.prio = prio

    def reads(self) -> tuple[Region, ...]:
        """Return memory and sums in accumulators that it reads when it starts. Regions that it also writes may be
        missing: a writer waits for readers and writers."""
        if self.macro is None:
            regions = self.order.reads
        else:
            regions = tuple(operand.region for operand in self.macro.operands if not operand.written)
        return regions + self.accumulator_regions if self.descriptor.accumulate else regions

    def writes(self) -> tuple[Region, ...]:
        """Return memory and sums in accumulators that it changes."""
        order = self.order
        if self.macro is None:
            return self.accumulator_regions if order.holds else order.writes
        workspace = () if order.workspace is None else (order.workspace,)
        if order.holds:
            return self.accumulator_regions + workspace
        return tuple(operand.region for operand in self.macro.operands if operand.written) + workspace

    def operands(self) -> bytes:
        """Return the words of all regions that it reads and writes."""
        return operand_words(self.reads(), self.writes())


class Sums(Protocol):
    """Sums that commands hold, as `reservation.sums.Accumulators`."""

    def check(self, command: Command, total: Sum) -> None:
        """Raise DescriptorError if the sum of a command is missing or does not fit."""

    def bind(self, command: Command, total: Sum) -> None:
        """Bind the command to its sum."""
