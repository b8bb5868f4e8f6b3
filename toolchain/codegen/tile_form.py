"""Layers as tile commands: LOAD, one operation on the scratchpad, STORE (docs/interface.md, "Tile form").

Consecutive tiles alternate between sets of buffers; the device orders each command after those that it depends on.
"""

import itertools
from collections.abc import Callable, Iterator
from typing import NamedTuple

from npu_device.abi.descriptor import Descriptor
from npu_device.abi.opcodes import BITS, Carried, DataType, Eltwise, Gemm, Norm, Opcode, Pool, Reduce
from toolchain.codegen.commands import BROADCAST, Command, Target, float_bits, word
from toolchain.codegen.memory import DramMap, StoredOperand, StoredOperands
from toolchain.codegen.tiles import (
    SpmAddresses,
    Tile,
    TileSizes,
    buffers,
    bytes_of,
    finishes,
    sum_type,
    tile_of,
    whole_rows,
)
from toolchain.ir.graph import Graph, LayerIR, Role
from toolchain.ir.operations import windows_of


class TileEmitter:
    """Emitter of the commands of one layer."""

    def __init__(self, graph: Graph, layer: LayerIR, memory: DramMap, target: Target) -> None:
        self.layer = layer
        self.kinds = [graph.tensors[name].dtype for name in layer.inputs]
        self.kind = graph.tensors[layer.outputs[0]].dtype
        self.inputs = [memory.address(graph, name) for name in layer.inputs]
        self.pitch = graph.tensors[layer.inputs[0]].pitch
        """Row pitch of in0, elements; 0 for contiguous rows."""
        self.out = memory.address(graph, layer.outputs[0])
        self.sum = sum_type(graph, layer)
        self._operands = StoredOperands(graph, layer, memory)
        self.commands: list[Command] = []
        self._target = target
        count = layer.integer("buffers", 1)
        self.tile: Tile = tile_of(graph, layer, target, 0)
        if layer.op_type == "POOL":
            self.tile = whole_rows(graph, layer, self.tile, target)
        self._demand = TileSizes(graph, layer, target).demand(self.tile)
        self._sets = buffers(self._demand, count, target, bool(layer.integer("spread")))
        self._turns = 0

    def next_buffers(self) -> SpmAddresses:
        """Return the next set of buffers."""
        self._turns += 1
        return self._sets[(self._turns - 1) % len(self._sets)]

    @property
    def set_bytes(self) -> int:
        """Bytes of one set of buffers."""
        return self._target.spm_bytes // len(self._sets)

    def put(self, opcode: Opcode, **fields: int) -> None:
        descriptor = Descriptor(opcode=opcode, rank=self.layer.integer("rank"), **fields)
        self.commands.append(Command(self.layer.id, descriptor))

    def load(self, source: int, target: int, rows: int, columns: int, kind: DataType, distance: int) -> None:
        """Load rows that lie `distance` bytes apart in DRAM, packed into the scratchpad."""
        self._move(Opcode.LOAD, source, target, rows, columns, kind, distance, self._operands.at(source))

    def store(self, source: int, target: int, rows: int, columns: int, kind: DataType, distance: int) -> None:
        self._move(Opcode.STORE, source, target, rows, columns, kind, distance, self._operands.at(target))

    def _move(self, opcode: Opcode, source: int, target: int, rows: int, columns: int, kind: DataType, distance: int,
              stored: StoredOperand) -> None:  # fmt: skip
        """Emit a LOAD or STORE with the role and alignment of the tensor in DRAM."""
        packed = distance == bytes_of(columns, kind) or rows == 1
        function = Carried.WEIGHT if stored.role is Role.WEIGHT else Carried.ACTIVATION
        self.put(opcode, in0_addr=source, out_addr=target, tile_m=rows, tile_k=columns, type_in0=kind, type_out=kind,
                 param0=0 if packed else distance, function=function, tile_n=stored.alignment)  # fmt: skip

    def vector(self, opcode: Opcode, spm: SpmAddresses, rows: int, columns: int, **fields: int) -> None:
        """Emit an operation on rows x columns of the set."""
        self.put(opcode, tile_m=rows, tile_n=columns, type_in0=self.kinds[0], type_out=self.kind,
                 in0_addr=spm["in0"], out_addr=spm["out"], **fields)  # fmt: skip


class OutputBlock(NamedTuple):
    """Block of rows and columns of a matrix."""

    row: int
    column: int
    rows: int
    columns: int


def blocks(m: int, n: int, tile: Tile) -> Iterator[OutputBlock]:
    for row, column in itertools.product(range(0, m, tile[0]), range(0, n, tile[1])):
        yield OutputBlock(row, column, min(tile[0], m - row), min(tile[1], n - column))


def _parameters(e: TileEmitter, function: str) -> dict[str, int]:
    layer = e.layer
    if function == "CLIP":
        return {"param0": word(layer.real("low"), e.kind), "param1": word(layer.real("high"), e.kind)}
    if function in ("QUANT", "DEQUANT"):
        return {"param0": float_bits(layer.real("scale")), "param1": layer.integer("zero") & 0xFFFF_FFFF}
    return {}


def eltwise(e: TileEmitter) -> None:
    layer = e.layer
    function, m, n = layer.text("function"), layer.integer("m"), layer.integer("n")
    broadcast = layer.text("broadcast", "FULL")
    size, in_size = BITS[e.kind] // 8, BITS[e.kinds[0]] // 8
    for block in blocks(m, n, e.tile):
        spm = e.next_buffers()
        at = block.row * n + block.column
        e.load(e.inputs[0] + at * in_size, spm["in0"], block.rows, block.columns, e.kinds[0], n * in_size)
        fields = {"function": int(Eltwise[function]), **_parameters(e, function)}
        if function not in ("QUANT", "DEQUANT") and len(layer.inputs) > 1:
            _second(e, broadcast, block, n, spm["in1"])
            fields |= {"in1_addr": spm["in1"], "type_in1": e.kinds[1], "param1": BROADCAST[broadcast]}
        if function == "WHERE":
            e.load(e.inputs[2] + at * size, spm["out"], block.rows, block.columns, e.kind, n * size)
        e.vector(Opcode.ELTWISE, spm, block.rows, block.columns, **fields)
        e.store(spm["out"], e.out + at * size, block.rows, block.columns, e.kind, n * size)


def _second(e: TileEmitter, broadcast: str, block: OutputBlock, n: int, target: int) -> None:
    kind, size = e.kinds[1], BITS[e.kinds[1]] // 8
    at, rows, columns = {
        "FULL": (block.row * n + block.column, block.rows, block.columns),
        "ROW": (block.column, 1, block.columns),
        "COLUMN": (block.row, 1, block.rows),
        "SCALAR": (0, 1, 1),
    }[broadcast]
    e.load(e.inputs[1] + at * size, target, rows, columns, kind, n * size)


def rowwise(e: TileEmitter) -> None:
    """Emit LAYERNORM, SOFTMAX, GELU, REDUCE."""
    layer = e.layer
    m, n = layer.integer("m"), layer.integer("n")
    opcode = Opcode[layer.op_type]
    fields = {"param0": layer.integer("tanh")} if opcode is Opcode.GELU else dict[str, int]()
    if opcode is Opcode.LAYERNORM:
        fields = {"function": int(Norm[layer.text("function")]), "param0": float_bits(layer.real("epsilon"))}
        fields["type_in1"] = int(e.kind)
    elif opcode is Opcode.REDUCE:
        fields["function"] = int(Reduce[layer.text("function")])
    columns = 1 if opcode is Opcode.REDUCE else n
    in_row, out_row = bytes_of(e.pitch or n, e.kinds[0]), bytes_of(columns, e.kind)
    for block in blocks(m, n, e.tile):
        spm = e.next_buffers()
        size = BITS[e.kinds[0]] // 8 * block.column
        e.load(e.inputs[0] + block.row * in_row + size, spm["in0"], block.rows, block.columns, e.kinds[0], in_row)
        for index, address in enumerate(e.inputs[1:]):
            e.load(address, spm["in1"] + index * bytes_of(n, e.kind), 1, n, e.kind, bytes_of(n, e.kind))
            fields["in1_addr"] = spm["in1"]
        e.vector(opcode, spm, block.rows, block.columns, **fields)
        width = 1 if opcode is Opcode.REDUCE else block.columns
        e.store(spm["out"], e.out + block.row * out_row + size, block.rows, width, e.kind, out_row)


def copy(e: TileEmitter) -> None:
    """Emit slabs of two dimensions, loaded and stored again, in a loop over the other dimensions."""
    layer, kind = e.layer, e.kind
    size = BITS[kind] // 8
    axes = list(zip(layer.integers("dims"), layer.integers("from"), layer.integers("to"), strict=True))
    columns = 1
    if axes[-1][1:] == (1, 1):
        columns = axes.pop()[0]
    usable = [axis for axis in axes if axis[1] >= columns and axis[2] >= columns]
    rows, take, put = max(usable, default=(1, 0, 0))
    if usable:
        axes.remove((rows, take, put))
    wide = min(columns, e.set_bytes // size)
    high = max(1, e.set_bytes // (wide * size))
    for index in itertools.product(*(range(axis[0]) for axis in axes)):
        source = layer.integer("at_in") + sum(i * axis[1] for i, axis in zip(index, axes, strict=True))
        target = layer.integer("at_out") + sum(i * axis[2] for i, axis in zip(index, axes, strict=True))
        for row, column in itertools.product(range(0, rows, high), range(0, columns, wide)):
            slot = e.next_buffers()["in0"]
            shape = min(high, rows - row), min(wide, columns - column)
            at_in, at_out = source + row * take + column, target + row * put + column
            e.load(e.inputs[0] + at_in * size, slot, *shape, kind, take * size)
            e.store(slot, e.out + at_out * size, *shape, kind, put * size)


def pool(e: TileEmitter) -> None:
    """Emit tiles of whole rows of one image, over some channels."""
    layer, shape = e.layer, windows_of(e.layer)
    channels, size = layer.integer("channels"), BITS[e.kind] // 8
    rows, wide = e.tile[0] // shape.q, e.tile[1]
    slabs = itertools.product(range(shape.batch), range(0, shape.p, rows), range(0, channels, wide))
    for image, first, channel in slabs:
        spm = e.next_buffers()
        count, columns = min(rows, shape.p - first), min(wide, channels - channel)
        top = first * shape.sh - shape.pt
        bottom = (first + count - 1) * shape.sh - shape.pt + shape.kh
        above, below = max(0, -top), max(0, bottom - shape.h)
        high = bottom - below - top - above
        source = (image * shape.h + top + above) * shape.w * channels + channel
        e.load(e.inputs[0] + source * size, spm["in0"], high * shape.w, columns, e.kind, channels * size)
        e.put(
            Opcode.POOL, function=int(Pool[layer.text("function")]), tile_m=high, tile_n=shape.w, tile_k=columns,
            type_in0=e.kind, type_out=e.kind, in0_addr=spm["in0"], out_addr=spm["out"],
            param0=_bytes(shape.kh, shape.kw, shape.sh, shape.sw), param1=_bytes(above, shape.pl, below, shape.pr),
        )  # fmt: skip
        target = (image * shape.p + first) * shape.q * channels + channel
        e.store(spm["out"], e.out + target * size, count * shape.q, columns, e.kind, channels * size)


def _bytes(*values: int) -> int:
    return int.from_bytes(bytes(values), "little")


def gemm(e: TileEmitter) -> None:
    """Emit an output-stationary product: the sum of a tile stays in the accumulator over its k tiles."""
    layer = e.layer
    m, n, k = (layer.integer(name) for name in "mnk")
    sizes = [BITS[kind] // 8 for kind in e.kinds]
    nk = layer.integer("in1_nk")
    for index in range(layer.integer("batch")):
        in0 = e.inputs[0] + index * layer.integer("step0") * sizes[0]
        in1 = e.inputs[1] + index * layer.integer("step1") * sizes[1]
        out = e.out + index * m * n * (BITS[e.kind] // 8)
        for block in blocks(m, n, e.tile):
            spm = e.next_buffers()
            result = spm["out"]
            for at in range(0, k, e.tile[2]):
                depth = min(e.tile[2], k - at)
                e.load(in0 + (block.row * k + at) * sizes[0], spm["in0"], block.rows, depth, e.kinds[0],
                       k * sizes[0])  # fmt: skip
                if nk:
                    e.load(in1 + (block.column * k + at) * sizes[1], spm["in1"], block.columns, depth,
                           e.kinds[1], k * sizes[1])  # fmt: skip
                else:
                    e.load(in1 + (at * n + block.column) * sizes[1], spm["in1"], depth, block.columns,
                           e.kinds[1], n * sizes[1])  # fmt: skip
                last = at + depth == k
                e.put(Opcode.GEMM_T, in0_addr=spm["in0"], in1_addr=spm["in1"], out_addr=result,
                      tile_m=block.rows, tile_n=block.columns, tile_k=depth, type_in0=e.kinds[0],
                      type_in1=e.kinds[1], type_out=e.sum, in1_nk=nk, accumulate=int(at > 0),
                      function=int(Gemm.WRITE if last else Gemm.HOLD))  # fmt: skip
                if not last:
                    spm = e.next_buffers()
            spm = {**spm, "out": result}
            kind, result = _finish(e, spm, block, index * m * n + block.row * n + block.column)
            size = BITS[kind] // 8
            e.store(result, out + (block.row * n + block.column) * size, block.rows, block.columns, kind, n * size)


def _finish(e: TileEmitter, spm: SpmAddresses, block: OutputBlock, at: int) -> tuple[DataType, int]:
    """Emit the epilogue of a tile in the scratchpad; `at`: index of its first element in the output. Return (type,
    address) of the result."""
    layer = e.layer
    if not finishes(layer):
        return e.kind, spm["out"]

    def step(opcode: Opcode, **fields: int) -> None:
        e.put(opcode, **{"in0_addr": spm["out"], "tile_m": block.rows, "tile_n": block.columns, "type_in0": e.sum,
              "out_addr": spm["out"], "type_out": e.sum, **fields})  # fmt: skip

    def add(second: str, broadcast: str) -> None:
        step(Opcode.ELTWISE, function=int(Eltwise.ADD), in1_addr=spm[second], type_in1=int(e.sum),
             param1=BROADCAST[broadcast])  # fmt: skip

    for name, source in zip(layer.text("epilogue").split("+"), e.inputs[2:], strict=False):
        if name == "residual":
            _residual(e, spm, block, source + at * BITS[e.kind] // 8, step)
            add("residual", "FULL")
            continue
        row = name == "bias"
        first, count = (block.column, block.columns) if row else (block.row, block.rows)
        e.load(source + 4 * first, spm["bias"], 1, count, e.sum, 4 * count)
        add("bias", "ROW" if row else "COLUMN")
    activation = layer.text("activation")
    if activation in ("GELU", "GELU_TANH"):
        step(Opcode.GELU, param0=int(activation == "GELU_TANH"))
    elif activation:
        step(Opcode.ELTWISE, function=int(Eltwise[activation]))
    if e.sum is e.kind:
        return e.kind, spm["out"]
    step(Opcode.ELTWISE, function=int(Eltwise.CAST), out_addr=spm["final"], type_out=int(e.kind))
    return e.kind, spm["final"]


def _residual(e: TileEmitter, spm: SpmAddresses, block: OutputBlock, source: int, step: Callable[..., None]) -> None:
    """Load the residual's part of the tile in the type of the sum. A narrower residual is loaded to the result buffer
    first, then cast."""
    arrives = spm["residual" if e.sum is e.kind else "final"]
    e.load(source, arrives, block.rows, block.columns, e.kind, e.layer.integer("n") * BITS[e.kind] // 8)
    if e.sum is not e.kind:
        step(Opcode.ELTWISE, function=int(Eltwise.CAST), in0_addr=arrives, type_in0=int(e.kind),
             out_addr=spm["residual"])  # fmt: skip


FORMS: dict[str, Callable[[TileEmitter], None]] = {
    "GEMM_T": gemm,
    "ELTWISE": eltwise,
    "LAYERNORM": rowwise,
    "SOFTMAX": rowwise,
    "GELU": rowwise,
    "POOL": pool,
    "REDUCE": rowwise,
    "COPY": copy,
}
