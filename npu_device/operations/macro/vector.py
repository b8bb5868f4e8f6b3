"""Operations of the vector engine whose tiles are blocks of a matrix: ELTWISE, LAYERNORM, SOFTMAX, GELU, REDUCE.

Shapes are in docs/opcodes.md, "Macro form". QUANT and DEQUANT take `scale` (one f32, or N with epilogue bit 7) and a
zero point; CLIP takes its bounds; LAYERNORM takes epsilon in param0, GELU its form. A scalar in a broadcast has one
element, a row N, a column M.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np

from npu_device.abi.descriptor import Descriptor
from npu_device.abi.errors import TicketError
from npu_device.abi.extended import Epilogue, Extended
from npu_device.abi.opcodes import DataType, Eltwise, Norm, Opcode, Reduce
from npu_device.cost.plan import Column, Plan
from npu_device.memory.arrays import Read, WriteSet
from npu_device.memory.operands import FLOATS, INTEGERS, TYPES, Matrix, make_matrix, row_bytes
from npu_device.operations.checks import DescriptorError, element_type, nonzero, unused_type, unused_word
from npu_device.operations.kernels import elements, rows
from npu_device.operations.kernels.elements import Values, as_float
from npu_device.operations.kernels.eltwise import Parameters, apply
from npu_device.operations.limits import check_operations
from npu_device.operations.macro.base import Operand, Setting, lay_out, matrix_write, operand, values
from npu_device.operations.macro.epilogue import zero_point
from npu_device.operations.macro.tiles import BlockMacro, Blocks, vector_plan
from npu_device.operations.macro.workspace import Buffers, Site, tile_size, tiles
from npu_device.operations.tile_form import (
    BINARY,
    COMPARE,
    CONVERSIONS,
    REQUANTIZED,
    Broadcast,
    source_types,
)


class Source(NamedTuple):
    """Operand that is read, and the part of it that rows and columns of the result need."""

    name: str
    matrix: Matrix
    rows: int = 1
    """Rows for each row of the result; 0: the first row for all."""
    columns: int = 1
    """1: the same columns as the result; 0: all columns."""


Evaluate = Callable[[list[elements.Values]], elements.Values]
"""Function from rows of the sources to these rows of the result, or to values that broadcast to them."""


@dataclass(frozen=True, eq=False)
class VectorMacro(BlockMacro):
    """Vector operation: `evaluate` maps rows of the sources, as matrices, to these rows of the result in its type."""

    sources: tuple[Source, ...]
    evaluate: Evaluate
    work_per_element: int
    """Operations of the engine for each element of the result."""

    @property
    def operands(self) -> tuple[Operand, ...]:
        return (
            *(operand(source.name, source.matrix) for source in self.sources), operand("out", self.out, written=True),
        )  # fmt: skip

    def compute(self, read: Read, accumulated: elements.Values | None) -> WriteSet:
        columns = self.out.columns
        sources = [(values(read, source.matrix), source.rows) for source in self.sources]
        width = max(columns, *(rows * source.shape[1] for source, rows in sources))
        results = []
        for part in elements.blocks(self.out.rows, width):
            inputs = [x[part.start * rows : part.stop * rows] if rows else x for x, rows in sources]
            results.append(np.broadcast_to(self.evaluate(inputs), (part.stop - part.start, columns)))
        return WriteSet((matrix_write(self.out, elements.join(results)),))

    def plan(self, setting: Setting, lanes: int = 1) -> Plan:
        blocks = self.blocks
        of = blocks.operands(self, lanes)
        parts = [of.tiles(source.name, source.matrix, *_part(source, blocks)) for source in self.sources]
        out = of.tiles("out", self.out, *blocks)
        kind = self.sources[0].matrix.kind
        return vector_plan(self, setting, blocks, parts, out, kind, self.work_per_element)


def _part(source: Source, blocks: Blocks) -> tuple[Column, Column, Column, Column]:
    """Return (first row, rows, first column, columns) of a source for each block of the result."""
    zero = np.zeros_like(blocks.row)
    across = (blocks.column, blocks.columns) if source.columns else (zero, zero + source.matrix.columns)
    if not source.rows:
        return zero, zero + 1, *across
    return blocks.row * source.rows, blocks.rows * source.rows, *across


def make_vector(
    d: Descriptor, block: Extended, site: Site, sources: tuple[Source, ...], out: Matrix, evaluate: Evaluate,
    work_per_element: int, tile: tuple[int, int],
) -> VectorMacro:  # fmt: skip
    """Return the command, with its buffers. DescriptorError when the workspace is too small."""
    check_operations(site.limits, out.rows * out.columns * work_per_element)
    buffers, (rows, columns) = Buffers(d, site, tiles(out.rows, out.columns, tile=tile)), tile
    for source in sources:
        across = columns if source.columns else source.matrix.columns
        size = max(1, rows * source.rows if source.rows else 1) * row_bytes(across, source.matrix.kind)
        buffers.read(source.name, source.matrix, size)
    buffers.write("out", out, rows * row_bytes(columns, out.kind))
    return VectorMacro(d, block, site, buffers.reserve(block), out, tile, sources, evaluate, work_per_element)


def _whole_rows(d: Descriptor, block: Extended) -> tuple[int, int]:
    """Return the tile of an operation that needs all of a row: tile_n is 0 or at least N."""
    if 0 < d.tile_n < block.n:
        raise DescriptorError(TicketError.SHAPE, f"tile_n {d.tile_n}: rows of {block.n} cannot be cut, give 0 or N")
    return tile_size(d, "tile_m", block.m), block.n


def _source(name: str, address: int, block: Extended, kind: DataType, shape: int, distance: int) -> Source:
    """Return an operand of ELTWISE in the shape that a broadcast word names."""
    if shape > max(Broadcast):
        raise DescriptorError(TicketError.RESERVED, f"broadcast of {name} {shape}: must be 0..{max(Broadcast)}")
    high = 1 if shape in (Broadcast.ROW, Broadcast.SCALAR) else block.m
    wide = 1 if shape in (Broadcast.COLUMN, Broadcast.SCALAR) else block.n
    if shape != Broadcast.FULL and distance:
        raise DescriptorError(TicketError.RESERVED, f"bytes between rows of {name}, which is broadcast")
    matrix = lay_out(name, address, high, wide, kind, distance)
    return Source(name, matrix, int(high == block.m), int(wide == block.n))


def decode_eltwise(d: Descriptor, block: Extended, site: Site) -> VectorMacro:
    words = block.words(Opcode.ELTWISE)
    function = Eltwise(d.function)
    unused_type(d, "type_kv")
    unused_word(d, "param0", "tile_k")
    unused_word(block, "k", "loop_order", "bias")
    nonzero(block, "m", "n")
    sources, targets = CONVERSIONS.get(function, (source_types(function), None))
    kind = element_type(d, "type_in0", REQUANTIZED if function is Eltwise.WHERE else sources)
    second = function in BINARY or function in COMPARE
    kind1 = kind
    if second:
        kind1 = element_type(d, "type_in1", TYPES if function is Eltwise.WHERE else (kind,))
    else:
        unused_type(d, "type_in1")
        unused_word(d, "in1_addr")
    allowed = targets or ((DataType.UINT8,) if function in COMPARE else (kind1,))
    out_kind = element_type(d, "type_out", allowed)
    inputs = [_source("in0", d.in0_addr, block, kind, words["broadcast0"], block.ld0)]
    if second:
        inputs.append(_source("in1", d.in1_addr, block, kind1, words["broadcast1"], block.ld1))
    if function is Eltwise.WHERE:
        inputs.append(_source("in2", block.in2, block, kind1, words["broadcast2"], 0))
    else:
        unused_word(block, "in2")
        unused_word(words, "broadcast2")
    if not second:
        unused_word(words, "broadcast1")
    if function is not Eltwise.CLIP:
        unused_word(words, "lowest", "highest")
    scaled = function in (Eltwise.QUANT, Eltwise.DEQUANT)
    zero = 0
    if scaled:
        if block.epilogue & ~Epilogue.PER_CHANNEL:
            raise DescriptorError(TicketError.RESERVED, f"epilogue {block.epilogue:#x}: only bit 7 has a meaning here")
        columns = block.n if block.epilogue else 1
        inputs.append(Source("scale", make_matrix(block.scale, 1, columns, DataType.FP32), 0, int(columns == block.n)))
        quant = function is Eltwise.QUANT
        zero = zero_point(block, 3 if quant else 0, out_kind if quant else kind)
    else:
        unused_word(block, "epilogue", "scale")
    tile = (
        tile_size(d, "tile_m", block.m),
        tile_size(d, "tile_n", block.n, out_kind, *(source.matrix.kind for source in inputs if source.columns)),
    )

    def evaluate(operands: list[Values]) -> Values:
        parameters = Parameters(zero_point=zero, lowest=words["lowest"], highest=words["highest"])
        if scaled:
            parameters = parameters._replace(scale=operands[1][0])
        return apply(function, operands, parameters, out_kind)

    out = lay_out("out", d.out_addr, block.m, block.n, out_kind, block.ldo)
    return make_vector(d, block, site, tuple(inputs), out, evaluate, site.operations(Opcode.ELTWISE), tile)


def _float_block(d: Descriptor, block: Extended, *unused: str) -> tuple[Source, Matrix]:
    """Return in0 and out of an operation on rows of floats."""
    kind = element_type(d, "type_in0", FLOATS)
    element_type(d, "type_out", (kind,))
    unused_type(d, "type_kv")
    unused_word(d, "tile_k")
    unused_word(block, "k", "loop_order", "in2", "scale", "ld1", *unused)
    nonzero(block, "m", "n")
    source = lay_out("in0", d.in0_addr, block.m, block.n, kind, block.ld0)
    return Source("in0", source), lay_out("out", d.out_addr, block.m, block.n, kind, block.ldo)


def decode_norm(d: Descriptor, block: Extended, site: Site) -> VectorMacro:
    x, out = _float_block(d, block)
    norm = Norm(d.function)
    kind = element_type(d, "type_in1", dict.fromkeys((out.kind, DataType.FP32)))
    inputs = [x, Source("in1", make_matrix(d.in1_addr, 1, block.n, kind), 0)]
    if block.epilogue == Epilogue.BIAS and norm is Norm.LAYER:
        inputs.append(Source("bias", make_matrix(block.bias, 1, block.n, kind), 0))
    else:
        unused_word(block, "epilogue", "bias")

    def evaluate(operands: list[Values]) -> Values:
        beta = operands[2] if len(operands) > 2 else None
        return rows.normalize(operands[0], operands[1], beta, as_float(d.param0), norm, out.kind)

    cost = site.operations(Opcode.LAYERNORM, d.function)
    return make_vector(d, block, site, tuple(inputs), out, evaluate, cost, _whole_rows(d, block))


def decode_softmax(d: Descriptor, block: Extended, site: Site) -> VectorMacro:
    x, out = _float_block(d, block, "epilogue", "bias")
    unused_type(d, "type_in1")
    unused_word(d, "param0", "in1_addr")
    evaluate = partial(rows.softmax, d, kind=out.kind, _=None)
    return make_vector(d, block, site, (x,), out, evaluate, site.operations(Opcode.SOFTMAX), _whole_rows(d, block))


def decode_gelu(d: Descriptor, block: Extended, site: Site) -> VectorMacro:
    x, out = _float_block(d, block, "epilogue", "bias")
    unused_type(d, "type_in1")
    unused_word(d, "in1_addr")
    if d.param0 > 1:
        raise DescriptorError(TicketError.RESERVED, f"param0 {d.param0}: must be 0 (erf) or 1 (tanh)")
    tile = (tile_size(d, "tile_m", block.m), tile_size(d, "tile_n", block.n))
    evaluate = partial(rows.gelu, d, kind=out.kind, _=None)
    return make_vector(d, block, site, (x,), out, evaluate, site.operations(Opcode.GELU), tile)


def decode_reduce(d: Descriptor, block: Extended, site: Site) -> VectorMacro:
    """Decode REDUCE: in0 has M x N rows of K elements if K > 1, else M rows of N."""
    kind = element_type(d, "type_in0", FLOATS if d.function == Reduce.MEAN else TYPES)
    integer = d.function == Reduce.ARGMAX or (d.function == Reduce.SUM and kind in INTEGERS)
    out_kind = element_type(d, "type_out", (DataType.INT32 if integer else kind,))
    unused_type(d, "type_in1", "type_kv")
    unused_word(d, "param0", "in1_addr", "tile_k")
    unused_word(block, "loop_order", "epilogue", "in2", "bias", "scale", "ld1")
    nonzero(block, "m", "n")
    m, n, k = block.m, block.n, max(1, block.k)
    out = lay_out("out", d.out_addr, m, k, out_kind, block.ldo)
    if k == 1:
        source = Source("in0", lay_out("in0", d.in0_addr, m, n, kind, block.ld0), 1, 0)
        tile = (tile_size(d, "tile_m", m), 1)
    else:
        source = Source("in0", lay_out("in0", d.in0_addr, m * n, k, kind, block.ld0), n)
        tile = (tile_size(d, "tile_m", m), tile_size(d, "tile_n", k, kind, out_kind))

    def evaluate(operands: list[Values]) -> Values:
        x = operands[0].reshape(-1, n, k)
        return rows.reduce_axis(x, Reduce(d.function), out_kind).reshape(-1, k)

    return make_vector(d, block, site, (source,), out, evaluate, n * site.operations(Opcode.REDUCE), tile)
