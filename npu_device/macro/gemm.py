"""GEMM_T in macro form: out = epilogue((in0 - zero0) x (in1 - zero1))."""

from dataclasses import dataclass

import numpy as np

from npu_device.abi.descriptor import Descriptor
from npu_device.abi.errors import TicketError
from npu_device.abi.extended import Extended
from npu_device.abi.opcodes import BITS, DataType, Gemm, LoopOrder, Opcode
from npu_device.checks import element_type, nonzero, unused_type, unused_word
from npu_device.descriptor_error import DescriptorError
from npu_device.events import Kind
from npu_device.kernels import elements, gemm
from npu_device.macro.base import (
    Demand,
    Effect,
    Macro,
    Operand,
    Read,
    Setting,
    Site,
    Tile,
    in_dram,
    input_copies,
    operand,
    output_copies,
    reserve,
    strided,
    tile_size,
    values,
    whole,
)
from npu_device.macro.finish import Finish, finish, zero_point
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
        raise DescriptorError(
            TicketError.ACC_OVERFLOW,
            f"the sum of a tile of {tile_m} x {tile_n} needs {need} bytes, te.acc_bytes is {site.acc_bytes}",
        )


def sum_copies(count: int, rows: int, columns: int, site: Site) -> int:
    """Bytes of scratchpad for `count` tile sums that are open at once: 0 while the accumulator holds them."""
    need = count * rows * columns * SUM_BYTES
    return 0 if need <= site.acc_bytes else need


@dataclass(frozen=True, eq=False)
class GemmMacro(Macro):
    """M x K times K x N."""

    in0: Matrix
    in1: Matrix
    out: Matrix
    finish: Finish
    integer: bool
    zeros: tuple[int, int]
    tile: tuple[int, int, int]
    slots: dict[str, Slots]

    @property
    def operands(self) -> tuple[Operand, ...]:
        return (
            operand("in0", self.in0), operand("in1", self.in1), *self.finish.operands(),
            operand("out", self.out, written=True),
        )  # fmt: skip

    @property
    def held_shape(self) -> tuple[int, int] | None:
        return self.block.m, self.block.n

    def compute(self, read: Read, held: elements.Values | None) -> Effect:
        in0 = gemm.shifted(values(read, self.in0), self.zeros[0])
        in1 = gemm.shifted(values(read, self.in1), self.zeros[1])
        total = gemm.tiled(in0, in1.T if self.d.in1_nk else in1, self.tile[2], held)
        if self.d.function & Gemm.HOLD:
            return Effect(held=total)
        return Effect((whole(self.out, self.finish.apply(total, read)),))

    def plan(self, setting: Setting) -> Plan:
        b, (m, n, k) = self.block, self.tile
        counts = [-(-extent // size) for extent, size in ((b.m, m), (b.n, n), (b.k, k))]
        order = (0, 1, 2) if self.block.loop_order == LoopOrder.OUTPUT else (1, 2, 0)
        index: list[Column] = [np.zeros(0, np.int64)] * 3
        for axis, column in zip(order, np.indices([counts[a] for a in order]), strict=True):
            index[axis] = column.reshape(-1).astype(np.int64)
        at_m, at_n, at_k = index
        tiles = len(at_m)
        rows, columns = np.minimum(m, b.m - at_m * m), np.minimum(n, b.n - at_n * n)
        depth = np.minimum(k, b.k - at_k * k)
        every = np.arange(tiles)
        kept = np.zeros(tiles, np.int64)
        if self.block.loop_order == LoopOrder.WEIGHT:
            kept[1:] = (at_m[1:] != 0).astype(np.int64)
        fresh = np.flatnonzero(kept == 0)
        last = (at_k == counts[2] - 1) & (not self.d.function & Gemm.HOLD)
        ends = np.flatnonzero(last)
        in0 = Tiles(self.in0, self.slots.get("in0"), at_m * m, rows, at_k * k, depth, every)
        if self.d.in1_nk:
            in1 = Tiles(self.in1, self.slots.get("in1"), at_n * n, columns, at_k * k, depth, fresh)
        else:
            in1 = Tiles(self.in1, self.slots.get("in1"), at_k * k, depth, at_n * n, columns, fresh)
        out = Tiles(self.out, self.slots.get("out"), at_m * m, rows, at_n * n, columns, ends)
        extra = finish_streams(self.finish, self.slots, at_m * m, rows, at_n * n, columns, ends)
        partial = self.slots.get("sums")

        def step(shape: list[int], reads: tuple[Region, ...], writes: tuple[Region, ...]) -> Compute:
            size_m, size_n, size_k, keep, open_ = shape
            if partial is not None and not open_ and not writes:
                writes = (partial.region(0, size_m * size_n * SUM_BYTES),)
            return Compute(
                Kind.TE, self.d.opcode | self.d.function << 8, size_m, size_n, size_k, BITS[self.in0.kind],
                BITS[self.in1.kind], 0, reads, writes, bool(keep),
            )  # fmt: skip

        computed = work(step, (rows, columns, depth, kept, last.astype(np.int64)), (in0, in1), ((out, last),))
        nest = Nest(
            tiles,
            (
                *in0.stream(Role.ACTIVATION, Opcode.LOAD), *in1.stream(Role.WEIGHT, Opcode.LOAD), *extra,
            ),
            out.stream(Role.ACTIVATION, Opcode.STORE, write=True) if len(ends) else (),
            computed,
            outputs=np.flatnonzero(at_k == 0) if self.block.loop_order == LoopOrder.OUTPUT else ends,
        )  # fmt: skip
        return sequence(nest, setting.bus, setting.buffers(self.d.prefetch_dist))


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


def decode_gemm(d: Descriptor, block: Extended, site: Site) -> GemmMacro:
    """DescriptorError when types, shapes, strides or the workspace are wrong."""
    kind0, kind1, kind, integer = product_types(d)
    nonzero(block, "m", "n", "k")
    unused_word(d, "param0")
    order = loop_order(block)
    m, n, k = block.m, block.n, block.k
    out = strided("out", d.out_addr, m, n, kind, block.ldo)
    in0 = strided("in0", d.in0_addr, m, k, kind0, block.ld0)
    in1 = strided("in1", d.in1_addr, *((n, k) if d.in1_nk else (k, n)), kind1, block.ld1)
    part = finish(d, block, m, n, integer, kind)
    tile = (
        tile_size(d, "tile_m", m),
        tile_size(d, "tile_n", n, kind, *(() if d.in1_nk else (kind1,))),
        tile_size(d, "tile_k", k, kind0, *((kind1,) if d.in1_nk else ())),
    )
    check_sum(tile[0], tile[1], site)

    def demand(tile: Tile) -> Demand:
        tm, tn, tk = tile
        reads, results = input_copies(d), output_copies(d)
        weights = tn * row_bytes(tk, kind1) if d.in1_nk else tk * row_bytes(tn, kind1)
        wanted = in_dram(
            site,
            {
                "in0": (in0, tm * row_bytes(tk, kind0), reads),
                "in1": (in1, weights, reads),
                "out": (out if not d.function else None, tm * row_bytes(tn, kind), results),
                **finish_demand(part, tm, tn, results),
            },
        )
        open_sums = sum_copies(-(-m // tm), tm, tn, site) if order is LoopOrder.WEIGHT and tk < k else 0
        return wanted | ({"sums": (open_sums, 1)} if open_sums else {})

    return GemmMacro(
        d, block, site, in0, in1, out, part, integer, (zero_point(block, 0, kind0), zero_point(block, 1, kind1)), tile,
        reserve(block, tile, demand),
    )  # fmt: skip
