"""COPY and GATHER in macro form.

COPY moves elements of four dimensions M, N, K, dim3 at any strides, which is transpose, concat, split, slice and expand
(stride 0 in the source). Dimensions of 0 are 1. Elements are moved as they are. GATHER: out[i] = in0[in1[i]] for M
indices (INT32) into a table of K rows of N elements; -1 is the last row.
"""

from dataclasses import dataclass
from math import prod

import numpy as np

from npu_device.abi.descriptor import Descriptor
from npu_device.abi.errors import TicketError
from npu_device.abi.extended import Extended
from npu_device.abi.opcodes import BITS, DataType, Opcode
from npu_device.cost.plan import Column, Compute, Plan
from npu_device.cost.sequencer import Nest, Slots, Stream, Work
from npu_device.memory.arrays import Bytes, Read, WriteSet
from npu_device.memory.operands import TYPES, Matrix, make_matrix, row_bytes
from npu_device.memory.region import Region, make_region
from npu_device.operations.checks import DescriptorError, element_type, nonzero, unused_type, unused_word
from npu_device.operations.kernels import elements
from npu_device.operations.kernels.moves import row_numbers
from npu_device.operations.limits import check_runs
from npu_device.operations.macro.base import Macro, Operand, Setting, lay_out, operand, require_dram, values
from npu_device.operations.macro.tiles import Blocks, in_place
from npu_device.operations.macro.workspace import Buffers, Site, tile_size, tiles
from npu_device.trace.events import Kind, Role


@dataclass(frozen=True)
class Lattice:
    """Elements of `size` bytes at `address` plus multiples of `strides`."""

    address: int
    dims: tuple[int, int, int, int]
    strides: tuple[int, int, int, int]
    size: int

    @property
    def region(self) -> Region:
        """Return the region from the first to the last byte."""
        spans = [(dim - 1) * stride for dim, stride in zip(self.dims, self.strides, strict=True)]
        low = self.address + sum(min(0, span) for span in spans)
        size = sum(abs(span) for span in spans) + self.size
        return Region(low, 1, size, size)

    def view(self, data: Bytes) -> Bytes:
        """Return the elements in the bytes of the region, shape dims + (size,)."""
        return np.ndarray(
            (*self.dims, self.size), np.uint8, data, self.address - self.region.address, (*self.strides, 1)
        )

    @property
    def overlaps(self) -> bool:
        """Check whether two elements may share bytes: strides, from small to large, must each step over all below."""
        reach = self.size
        for stride, dim in sorted((abs(stride), dim) for stride, dim in zip(self.strides, self.dims, strict=True)):
            if dim == 1:
                continue
            if stride < reach:
                return True
            reach += stride * (dim - 1)
        return False

    @property
    def run(self) -> int:
        """Bytes that lie side by side along one dimension."""
        runs = [d * self.size for d, s in zip(self.dims, self.strides, strict=True) if abs(s) == self.size]
        return max(runs, default=self.size)

    @property
    def stores(self) -> tuple[list[int], int | None, int]:
        """Return the axes, the row axis and the bytes of the stores of a result: each step along the axes stores rows
        along the row axis, or a single row."""
        inner, size = 4, self.size
        while inner and (self.dims[inner - 1] == 1 or self.strides[inner - 1] == size):
            size *= self.dims[inner - 1]
            inner -= 1
        row = next((axis for axis in reversed(range(inner)) if self.dims[axis] > 1 and self.strides[axis] > 0), None)
        return [axis for axis in range(inner) if axis != row], row, size

    @property
    def distinct(self) -> tuple[int, ...]:
        """Dimensions along which elements differ."""
        return tuple(1 if stride == 0 else dim for dim, stride in zip(self.dims, self.strides, strict=True))


@dataclass(frozen=True, eq=False)
class CopyMacro(Macro):
    """Copy of `source` to `out`."""

    source: Lattice
    out: Lattice
    tile: tuple[int, int]
    """(rows of the first three dimensions, elements of the last)."""

    @property
    def operands(self) -> tuple[Operand, ...]:
        size = self.out.size
        return Operand("in0", self.source.region, size), Operand("out", self.out.region, size, written=True)

    def compute(self, read: Read, accumulated: elements.Values | None) -> WriteSet:
        content = self.source.view(np.ascontiguousarray(read(self.source.region)).reshape(-1)).copy()
        return WriteSet(tuple(self._writes(content)))

    def _writes(self, content: Bytes) -> list[tuple[Region, Bytes]]:
        """Return few strided writes: whole rows if the last dimensions are contiguous; bytes between them stay."""
        out = self.out
        outer, row, size = out.stores
        writes = []
        for index in np.ndindex(*(out.dims[axis] for axis in outer)):
            at = dict(zip(outer, index, strict=True))
            address = out.address + sum(out.strides[axis] * step for axis, step in at.items())
            part = content[tuple(at.get(axis, slice(None)) for axis in range(4))]
            count, stride = (1, size) if row is None else (out.dims[row], out.strides[row])
            writes.append((make_region(address, count, size, stride), part.reshape(count, size)))
        return writes

    @property
    def _blocks(self) -> Blocks:
        return Blocks.of(prod(self.out.dims[:3]), self.out.dims[3], self.tile)

    @property
    def parallelism(self) -> int:
        return len(self._blocks.row)

    def plan(self, setting: Setting, lanes: int = 1) -> Plan:
        blocks, slots = self._blocks, self.reserved.slots(lanes)
        count = blocks.rows * blocks.columns
        size, aux, cost = self.out.size, int(Opcode.COPY), self.site.operations(Opcode.COPY)
        distinct, index = np.unique(count, return_inverse=True)
        work = (cost * distinct).tolist()
        pieces = [Compute(Kind.VE, aux, 0, 0, 0, 8 * size, 0, operations, (), ()) for operations in work]
        lane = blocks.operands(self, lanes).lane

        def stream(name: str, part: Lattice, write: bool) -> tuple[Stream, ...]:
            alignment = self.alignments.get(name, 0)
            return _moves(slots[name], part, blocks, lane, write, alignment) if name in slots else ()

        reads, writes = stream("in0", self.source, False), stream("out", self.out, True)
        return setting.sequence(Nest(lane, reads, writes, Work(pieces, index.reshape(-1).astype(np.int64))), self.d)


def _moves(
    slots: Slots, part: Lattice, blocks: Blocks, lane: Column, write: bool, alignment: int
) -> tuple[Stream, ...]:
    """Return the blocks of one side between DRAM and their buffers."""
    _, d1, d2, _ = part.dims
    row, moved = blocks.row, blocks.rows * blocks.columns * part.size
    steps = (row // (d1 * d2), row // d2 % d1, row % d2, blocks.column)
    address = part.address + sum(step * stride for step, stride in zip(steps, part.strides, strict=True))
    run = np.minimum(part.run, moved)
    opcode = Opcode.STORE if write else Opcode.LOAD
    return (
        Stream(
            Role.ACTIVATION, int(opcode), slots, np.arange(len(row)), np.asarray(address, np.int64), -(-moved // run),
            run, _far(part), slots.rotate(lane), write, alignment=alignment,
        ),
    )  # fmt: skip


def _far(part: Lattice) -> int:
    """Return a distance between runs that separates them: runs of a copy are not adjacent."""
    return max(2 * part.run, max(abs(stride) for stride in part.strides))


def decode_copy(d: Descriptor, block: Extended, site: Site) -> CopyMacro:
    """Decode COPY. DescriptorError when the type, the strides or the workspace are wrong."""
    words = block.words(Opcode.COPY)
    kind = element_type(d, "type_in0", TYPES)
    if BITS[kind] < 8:
        raise DescriptorError(TicketError.DATA_TYPE, f"type_in0 {kind.name}: COPY moves whole bytes, use INT8 for rows")
    unused_type(d, "type_in1", "type_kv")
    if d.type_out not in (DataType.NONE, kind):
        raise DescriptorError(TicketError.DATA_TYPE, f"type_out {d.type_out}: must be 0 or as type_in0, {kind.value}")
    unused_word(d, "param0", "in1_addr", "tile_k")
    unused_word(block, "loop_order", "engines", "ld0", "ld1", "ldo", "epilogue", "in2", "bias", "scale")
    dims = tuple(max(1, dim) for dim in (block.m, block.n, block.k, words["dim3"]))
    size = BITS[kind] // 8
    source = Lattice(d.in0_addr, dims, words["stride_in"], size)  # type: ignore[arg-type]
    out = Lattice(d.out_addr, dims, words["stride_out"], size)  # type: ignore[arg-type]
    if out.overlaps:
        raise DescriptorError(TicketError.SHAPE, f"stride_out {out.strides}: elements of the result share bytes")
    for name, part in (("stride_in", source), ("stride_out", out)):
        if any(stride % size for stride in part.strides):
            raise DescriptorError(TicketError.MISALIGNED, f"{name} {part.strides} of {size}-byte elements")
        if part.region.address < 0:
            raise DescriptorError(TicketError.ADDRESS, f"{name} {part.strides} leads below address 0")
    check_runs(site.limits, prod(dims[axis] for axis in out.stores[0]))
    rows = dims[0] * dims[1] * dims[2]
    tile = (tile_size(d, "tile_m", rows), tile_size(d, "tile_n", dims[3]))
    buffers = Buffers(d, site, tiles(rows, dims[3], tile=tile))
    buffers.read("in0", source, prod(tile) * size)
    buffers.write("out", out, prod(tile) * size)
    return CopyMacro(d, block, site, buffers.reserve(block), source, out, tile)


@dataclass(frozen=True, eq=False)
class GatherMacro(Macro):
    """Rows of a table."""

    table: Matrix
    indices: Matrix
    out: Matrix
    tile: int

    @property
    def operands(self) -> tuple[Operand, ...]:
        return (
            operand("in0", self.table), operand("in1", self.indices), operand("out", self.out, written=True),
        )  # fmt: skip

    def compute(self, read: Read, accumulated: elements.Values | None) -> WriteSet:
        rows = self.table.rows
        index = row_numbers(values(read, self.indices)[0], rows)
        content = read(self.table.region).reshape(rows, -1)[index]
        return WriteSet(((self.out.region, content),))

    def plan(self, setting: Setting, lanes: int = 1) -> Plan:
        """Return its loop nest: each row is a transfer of its own. Rows are unknown until the indices are read, and
        count as the first."""
        blocks = Blocks.of(self.out.rows, self.out.columns, (self.tile, self.out.columns))
        of, zero = blocks.operands(self, 1), np.zeros_like(blocks.row)
        spread = make_matrix(
            self.table.region.address, max(2, self.tile), self.table.columns, self.table.kind,
            2 * max(self.alignments.get("in0", setting.bus.alignment),
                    row_bytes(self.table.columns, self.table.kind)),
        )  # fmt: skip
        indices = of.tiles("in1", self.indices, zero, zero + 1, blocks.row, blocks.rows)
        out = of.tiles("staging", self.out, *blocks, word="out")
        slots = of.slots.get("staging") or in_place(self.out)
        table = of.tiles("in0", spread, zero, blocks.rows, zero, blocks.columns, slots=slots)
        reads = indices.stream(Role.ACTIVATION, Opcode.LOAD) + table.stream(Role.WEIGHT, Opcode.GATHER)
        writes = out.stream(Role.ACTIVATION, Opcode.STORE, write=True)
        return setting.sequence(Nest(of.lane, reads, writes), self.d)


def decode_gather(d: Descriptor, block: Extended, site: Site) -> GatherMacro:
    """Decode GATHER. DescriptorError when types, shapes, strides or the workspace are wrong."""
    kind = element_type(d, "type_in0", TYPES)
    element_type(d, "type_in1", (DataType.INT32,))
    element_type(d, "type_out", (kind,))
    unused_type(d, "type_kv")
    unused_word(d, "param0", "tile_n", "tile_k")
    unused_word(block, "loop_order", "engines", "ld1", "epilogue", "in2", "bias", "scale")
    nonzero(block, "m", "n", "k")
    table = lay_out("in0", d.in0_addr, block.k, block.n, kind, block.ld0)
    require_dram(site, "in0", table)
    out = lay_out("out", d.out_addr, block.m, block.n, kind, block.ldo)
    indices = make_matrix(d.in1_addr, 1, block.m, DataType.INT32)
    size = tile_size(d, "tile_m", block.m)
    buffers = Buffers(d, site, tiles(block.m, tile=(size,)))
    buffers.read("in1", indices, size * row_bytes(1, DataType.INT32))
    buffers.read("staging", out, size * row_bytes(block.n, kind))
    return GatherMacro(d, block, site, buffers.reserve(block), table, indices, out, size)
