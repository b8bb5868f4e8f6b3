"""Matrix products in macro form: types, tiles and steps that GEMM_T and CONV2D_T share."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from npu_device.abi.descriptor import Descriptor
from npu_device.abi.errors import TicketError
from npu_device.abi.extended import Extended
from npu_device.abi.opcodes import BITS, DataType, Gemm, LoopOrder, Opcode
from npu_device.checks import element_type, unused_type
from npu_device.descriptor_error import DescriptorError, NoRoomError
from npu_device.events import Kind
from npu_device.macro.base import Macro, Operand, Setting, Site, operand
from npu_device.macro.finish import Finish
from npu_device.macro.tiles import Tiles, work
from npu_device.operands import FLOATS, INTEGERS, Matrix, row_bytes
from npu_device.operations import SMALL_INTEGERS
from npu_device.plan import Column, Compute, Plan, Role
from npu_device.region import Region
from npu_device.sequencer import Nest, Slots, Stream, sequence

SUM_BYTES = 4
"""Of one element of a sum."""


def product_types(d: Descriptor) -> tuple[DataType, DataType, DataType, bool]:
    """(in0, in1, out, whether the sum is an integer) of a product. Floats also take integer weights."""
    kind0 = element_type(d, "type_in0", (*SMALL_INTEGERS, *FLOATS))
    integer = kind0 in SMALL_INTEGERS
    kind1 = element_type(d, "type_in1", SMALL_INTEGERS if integer else (kind0, *SMALL_INTEGERS))
    if integer:
        out = element_type(d, "type_out", (*INTEGERS, *FLOATS))
    else:
        out = element_type(d, "type_out", dict.fromkeys((DataType.FP32, kind0)))
    unused_type(d, "type_kv")
    return kind0, kind1, out, integer


def loop_order(block: Extended) -> LoopOrder:
    if block.loop_order not in (LoopOrder.OUTPUT, LoopOrder.WEIGHT):
        raise DescriptorError(TicketError.FUNCTION, f"loop_order {block.loop_order}: must be 0 or 1")
    return LoopOrder(block.loop_order)


def check_sum(tile_m: int, tile_n: int, site: Site) -> None:
    """The sum of one hardware tile stays in the accumulator while its k tiles pass."""
    need = tile_m * tile_n * SUM_BYTES
    if need > site.acc_bytes:
        tensor, level = f"the sum of a tile of {tile_m} x {tile_n} of out", "accumulator (te.acc_bytes)"
        raise NoRoomError(TicketError.ACC_OVERFLOW, tensor, level, need, site.acc_bytes)


def sum_copies(count: int, rows: int, columns: int, site: Site) -> int:
    """Bytes of scratchpad for `count` tile sums that are open at once: 0 while the accumulator holds them."""
    need = count * rows * columns * SUM_BYTES
    return 0 if need <= site.acc_bytes else need


class Product(NamedTuple):
    """The tiles of a product, one row each."""

    row: Column
    rows: Column
    column: Column
    columns: Column
    at: Column
    """Where its k tile begins."""
    depth: Column
    first: NDArray[np.bool_]
    """Whether an output begins, with its first k tile."""
    last: NDArray[np.bool_]
    kept: NDArray[np.bool_]
    """Whether the weights are those of the tile before."""


def weights(in1: Matrix, slots: dict[str, Slots], nest: Product, nk: bool) -> Tiles:
    """in1 as the tiles see it; weights that are kept do not move again."""
    deep, wide = (nest.at, nest.depth), (nest.column, nest.columns)
    rows, columns = (wide, deep) if nk else (deep, wide)
    return Tiles(in1, slots.get("in1"), *rows, *columns, np.flatnonzero(~nest.kept))


@dataclass(frozen=True, eq=False)
class ProductMacro(Macro):
    """What GEMM_T and CONV2D_T have in common."""

    in0: Matrix
    in1: Matrix
    out: Matrix
    finish: Finish
    zeros: tuple[int, int]
    """Zero points of in0 and in1."""
    tile: tuple[int, int, int]
    slots: dict[str, Slots]

    @property
    def operands(self) -> tuple[Operand, ...]:
        return (
            operand("in0", self.in0), operand("in1", self.in1), *self.finish.operands(),
            operand("out", self.out, written=True),
        )  # fmt: skip


def product_plan(macro: ProductMacro, nest: Product, in0: Tiles, in1: Tiles, setting: Setting) -> Plan:
    """The plan of a product whose operands are seen as given."""
    d, slots = macro.d, macro.slots
    last = nest.last & (not d.function & Gemm.HOLD)
    ends = np.flatnonzero(last)
    out = Tiles(macro.out, slots.get("out"), nest.row, nest.rows, nest.column, nest.columns, ends)
    partial = slots.get("sums")

    def step(shape: list[int], reads: tuple[Region, ...], writes: tuple[Region, ...]) -> Compute:
        rows, columns, depth, kept, complete = shape
        if partial is not None and not complete:
            writes = (partial.region(0, rows * columns * SUM_BYTES),)
        return Compute(
            Kind.TE, d.opcode | d.function << 8, rows, columns, depth, BITS[macro.in0.kind], BITS[macro.in1.kind], 0,
            reads, writes, bool(kept),
        )  # fmt: skip

    flags = (nest.kept.astype(np.int64), last.astype(np.int64))
    computed = work(step, (nest.rows, nest.columns, nest.depth, *flags), (in0, in1), ((out, last),))
    extra = finish_streams(macro.finish, slots, nest.row, nest.rows, nest.column, nest.columns, ends)
    begins = np.flatnonzero(nest.first) if macro.block.loop_order == LoopOrder.OUTPUT else ends
    return sequence(
        Nest(
            len(nest.row),
            (*in0.stream(Role.ACTIVATION, Opcode.LOAD), *in1.stream(Role.WEIGHT, Opcode.LOAD), *extra),
            out.stream(Role.ACTIVATION, Opcode.STORE, write=True) if len(ends) else (),
            computed,
            outputs=begins,
        ),
        setting.bus,
        setting.buffers(d.prefetch_dist),
    )


def finish_demand(part: Finish, rows: int, columns: int, copies: int) -> dict[str, tuple[Matrix | None, int, int]]:
    """Buffers for the epilogue's operands of one tile."""
    count = columns if part.channels > 1 else 1
    return {
        "bias": (part.bias, columns * SUM_BYTES, copies),
        "scale": (part.scale, count * SUM_BYTES, copies),
        "residual": (part.residual, rows * row_bytes(columns, part.kind), copies),
    }


def finish_streams(
    part: Finish, slots: dict[str, Slots], row: Column, rows: Column, column: Column, columns: Column, ends: Column
) -> tuple[Stream, ...]:
    """Moves of the epilogue's operands, at the tiles that end an output."""
    zero, one = np.zeros_like(row), np.ones_like(row)
    streams: tuple[Stream, ...] = ()
    if part.bias is not None and "bias" in slots:
        streams += Tiles(part.bias, slots["bias"], zero, one, column, columns, ends).stream(
            Role.WEIGHT, Opcode.LOAD, late=True
        )
    if part.scale is not None and "scale" in slots:
        per = part.channels > 1
        streams += Tiles(
            part.scale, slots["scale"], zero, one, column if per else zero, columns if per else one, ends
        ).stream(Role.WEIGHT, Opcode.LOAD, late=True)
    if part.residual is not None and "residual" in slots:
        streams += Tiles(part.residual, slots["residual"], row, rows, column, columns, ends).stream(
            Role.ACTIVATION, Opcode.LOAD, late=True
        )
    return streams
