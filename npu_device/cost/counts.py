"""Counts of energy-consuming events of a plan: operations, register shifts and bytes, from its pieces (docs/energy.md).

The event loop executes the same steps, so its busy cycles, port cycles and bytes add up to these counts.
"""

from collections import Counter
from collections.abc import Iterator
from enum import StrEnum
from fractions import Fraction
from typing import NamedTuple

import numpy as np

from npu_device.abi.opcodes import DataType, Opcode
from npu_device.config import TeConfig
from npu_device.cost.chained import unmasked_rows
from npu_device.cost.plan import Compute, Plan, Transfer
from npu_device.cost.tensor import Product, product_of
from npu_device.memory.bitwidth import ceil_div
from npu_device.trace.events import Kind, Role

SUM_BITS = 32
"""Width of a sum in the array and in the accumulator."""


class Event(StrEnum):
    """Kinds of counted events, with their units."""

    MAC = "macs"
    """Multiply-accumulate steps."""
    VECTOR = "vector_operations"
    SHIFT = "shifted_bits"
    """Bits of operands and sums that array registers shift from their neighbours."""
    WEIGHT_LOAD = "loaded_bits"
    """Bits of loads of the stationary operand into the array."""
    ACCUMULATOR_READ = "accumulator_bytes_read"
    ACCUMULATOR_WRITE = "accumulator_bytes_written"
    SPM_READ = "spm_bytes_read"
    SPM_WRITE = "spm_bytes_written"
    NOC = "noc_byte_links"
    """Aligned bytes times links between clusters and DRAM."""
    DRAM_READ = "dram_bytes_read"
    """Aligned bytes of transfers, with or without an L2."""
    DRAM_WRITE = "dram_bytes_written"


class Count(NamedTuple):
    """Class of events with equal energy."""

    event: Event
    role: Role = Role.ACTIVATION
    """Role of the moved tensor; ACTIVATION for MACs and vector operations."""
    kinds: tuple[DataType, ...] = ()
    """MAC: data types of in0 and in1; VECTOR: data type of the elements."""


Counts = Counter[Count]
Links = tuple[int | Fraction, int | Fraction]


class Dataflow(NamedTuple):
    """Movement of operands (0: in0, 1: in1) in the array of a tensor engine."""

    stationary: int | None
    """Operand that remains in the array while the other streams, or None."""
    shifted: tuple[int, ...]
    """Operands that each MAC shifts from a neighbour."""


DATAFLOWS = {
    "roofline": Dataflow(1, (0,)),
    "systolic_ws": Dataflow(1, (0,)),
    "systolic_ws_pipe": Dataflow(1, (0,)),
    "systolic_is": Dataflow(0, (1,)),
    "systolic_os": Dataflow(None, (0, 1)),
    "chained_ve": Dataflow(0, (1,)),
}
"""`te.kind` -> dataflow. The roofline, which has no array, counts as weight stationary."""


def counts(plan: Plan, te: TeConfig, kinds: tuple[DataType, DataType], links: Links = (1, 1)) -> Counts:
    """Return the counts of a command. `kinds`: data types of in0 and of in1 (or keys). `links`: number of NoC links
    that a byte crosses from DRAM, and to it."""
    total = Counts()
    for piece, times in zip(plan.pieces, np.bincount(plan.piece, minlength=len(plan.pieces)).tolist(), strict=True):
        if isinstance(piece, Transfer):
            events = _transfer(piece, links)
        elif piece.kind is Kind.TE:
            events = _product(piece, te, kinds)
        else:
            events = _vector(piece, kinds[0])
        for count, amount in events:
            total[count] += times * amount
    return total


def _transfer(piece: Transfer, links: Links) -> Iterator[tuple[Count, int]]:
    spm, dram = (Event.SPM_READ, Event.DRAM_WRITE) if piece.write else (Event.SPM_WRITE, Event.DRAM_READ)
    yield Count(spm, piece.role), piece.spm.payload
    yield Count(dram, piece.role), piece.aligned
    yield Count(Event.NOC, piece.role), round(piece.aligned * links[piece.write])


def _vector(piece: Compute, dtype: DataType) -> Iterator[tuple[Count, int]]:
    yield Count(Event.VECTOR, kinds=(_width(piece.bits_a, dtype),)), piece.operations
    yield from _scratchpad(piece, Product(0), (Role.ACTIVATION, Role.ACTIVATION))


def _width(bits: int, dtype: DataType) -> DataType:
    """Return the element type of a vector operation, which is FP32 for scores whatever the type of the operands."""
    return DataType.FP32 if bits == 32 and dtype is not DataType.INT32 else dtype


def _product(piece: Compute, te: TeConfig, kinds: tuple[DataType, DataType]) -> Iterator[tuple[Count, int]]:
    roles = Role.ACTIVATION, Role.KV if piece.aux & 0xFF == Opcode.ATTN_T else Role.WEIGHT
    m, n, k = piece.m, piece.n, piece.k
    macs = m * n * k
    if piece.sight is not None and te.chained.mask_skip != "none":
        macs = unmasked_rows(m, piece.sight) * piece.sight.width
    yield Count(Event.MAC, kinds=kinds), macs
    chained, flow, bits = te.kind == "chained_ve", DATAFLOWS[te.kind], (piece.bits_a, piece.bits_w)
    rows, columns = (te.chained.lanes, te.chained.T) if chained else (te.rows, te.columns)
    for index in flow.shifted:
        yield Count(Event.SHIFT, roles[index]), macs * bits[index]
    if not chained:  # engines of a chain add up their lanes before the sum register
        yield Count(Event.SHIFT), macs * SUM_BITS
    is_resident = piece.weights_kept and k <= rows and n <= columns
    operand = flow.stationary
    if operand is not None and not is_resident:
        yield Count(Event.WEIGHT_LOAD, roles[operand]), (k * n if operand else m * k) * bits[operand]
    folds = 1 if operand is None else ceil_div(k, rows)
    for event in (Event.ACCUMULATOR_READ, Event.ACCUMULATOR_WRITE):
        yield Count(event), m * n * folds * SUM_BITS // 8
    yield from _scratchpad(piece, product_of(te, piece), roles)


def _scratchpad(piece: Compute, cost: Product, roles: tuple[Role, Role]) -> Iterator[tuple[Count, int]]:
    """Yield the bytes at the ports of banks, as `durations` counts them."""
    for index, region in enumerate(piece.reads):
        operand = min(index, 1)
        yield Count(Event.SPM_READ, roles[operand]), -(-region.payload * cost.reads[operand] // 1)
    for region in piece.writes:
        yield Count(Event.SPM_WRITE), -(-region.payload * cost.writes // 1)
