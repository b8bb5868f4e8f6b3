"""Layers as macro commands: one descriptor each, which the device expands (docs/interface.md, "Macro form").

All share addresses, tile and share of the scratchpad; products (GEMM_T, CONV2D_T) have an epilogue.
"""

import itertools
from collections.abc import Callable
from typing import Any

from npu_device.abi.descriptor import Descriptor
from npu_device.abi.extended import Epilogue, Extended
from npu_device.abi.memory_map import SPM_BASE
from npu_device.abi.opcodes import BITS, Activation, Eltwise, Norm, Opcode, Pool, Reduce
from npu_device.operations.windows import Windows
from toolchain.codegen.commands import BROADCAST, Command, Target, float_bits, word
from toolchain.codegen.memory import DramMap
from toolchain.codegen.tiles import SLOT, Tile, fits, tile_of
from toolchain.ir.graph import Graph, LayerIR
from toolchain.ir.operations import windows_of


class Emitter:
    """Writes the commands of one layer. Products take their shares of the scratchpad in turn, so that the next one can
    begin before this one has ended; other layers take the share that the latest product has not."""

    def __init__(self, graph: Graph, layer: LayerIR, memory: DramMap, target: Target, turn: int) -> None:
        self.layer = layer
        self.kinds = [graph.tensors[name].dtype for name in layer.inputs]
        self.kind = graph.tensors[layer.outputs[0]].dtype
        self.sizes = [graph.tensors[name].elements for name in layer.inputs]
        self.inputs = [memory.address(graph, name) for name in layer.inputs]
        self.out = memory.address(graph, layer.outputs[0])
        self.pitches = [graph.tensors[name].pitch for name in (layer.inputs[0], layer.outputs[0])]
        """Elements between the rows of in0 and of the result; 0: they follow each other."""
        self._made: list[Command] = []
        self._shares = layer.integer("buffers", 1)
        self._turn = turn
        buffers = self._shares * (layer.integer("prefetch") + 1)
        self.tile: Tile = tile_of(graph, layer, target, buffers)
        rest = target._replace(resident=target.resident + SLOT)
        unaware = not layer.integer("spread") and fits(graph, layer, self.tile, rest, buffers)
        self._base = SPM_BASE + (SLOT if unaware else 0)
        self.share = (rest if unaware else target).workspace // self._shares // SLOT * SLOT

    def rows_in(self, rows: int, columns: int) -> int:
        """Bytes from a row of in0 to the one that is `rows` further."""
        return rows * (self.pitches[0] or columns) * BITS[self.kinds[0]] // 8

    def rows_out(self, rows: int, columns: int) -> int:
        """The same of the result."""
        return rows * (self.pitches[1] or columns) * BITS[self.kind] // 8

    def commands(self) -> list[Command]:
        return self._made

    def put(
        self, fields: dict[str, int], own: dict[str, Any] | None = None, opcode: Opcode | None = None, **block: Any
    ) -> None:
        """A command, by default of the layer's operation: fields of the descriptor, words of the extended block."""
        opcode = opcode or Opcode[self.layer.op_type]
        share = (self._turn + len(self._made)) % self._shares
        for name, pitch, kind in zip(("ld0", "ldo"), self.pitches, (self.kinds[0], self.kind), strict=True):
            if pitch:
                block[name] = pitch * BITS[kind] // 8
        extended = Extended.make(
            opcode, own=own, workspace=self._base + share * self.share, workspace_bytes=self.share, **block
        )
        descriptor = Descriptor(
            opcode=opcode, extended=1, rank=self.layer.integer("rank"), prefetch_dist=self.layer.integer("prefetch"),
            **{"type_in0": self.kinds[0], "type_out": self.kind, **fields},
        )  # fmt: skip
        self._made.append(Command(self.layer.id, descriptor, extended))


def _operands(e: Emitter) -> dict[str, int]:
    """Step of the epilogue -> address of its tensor."""
    steps = filter(None, e.layer.text("epilogue").split("+"))
    return dict(zip(steps, e.inputs[2:], strict=True))


def _finish(e: Emitter) -> dict[str, Any]:
    """The words of the epilogue; a bias per row has no place in it."""
    layer, more = e.layer, _operands(e)
    word = 0 if "bias_column" in more else int(Activation[layer.text("activation", "NONE")])
    for step, bit in (("bias", Epilogue.BIAS), ("residual", Epilogue.RESIDUAL), ("scale", Epilogue.REQUANTIZE)):
        word |= int(bit) if step in more else 0
    if "scale" in more and e.sizes[-1] > 1:
        word |= int(Epilogue.PER_CHANNEL)
    zeros = tuple(layer.integer(f"zero{place}") for place in ("0", "1", "_in2", "_out"))
    addresses = {"bias": more.get("bias", 0), "scale": more.get("scale", 0), "in2": more.get("residual", 0)}
    return {"epilogue": word, "zero_point": zeros, **addresses}


def _tile(e: Emitter) -> dict[str, int]:
    return dict(zip(("tile_m", "tile_n", "tile_k"), e.tile, strict=True))


def gemm(e: Emitter) -> None:
    """One command per product of the list. A bias per row follows it, in place."""
    layer = e.layer
    m, n, k = (layer.integer(name) for name in "mnk")
    words = _finish(e)
    size = m * n * BITS[e.kind] // 8
    for index in range(layer.integer("batch")):
        fields = {
            "in0_addr": e.inputs[0] + index * layer.integer("step0") * BITS[e.kinds[0]] // 8,
            "in1_addr": e.inputs[1] + index * layer.integer("step1") * BITS[e.kinds[1]] // 8,
            "out_addr": e.out + index * size, "type_in1": e.kinds[1], "in1_nk": layer.integer("in1_nk"),
        }  # fmt: skip
        residual = {"in2": words["in2"] + index * size} if words["in2"] else {}
        e.put(fields | _tile(e), m=m, n=n, k=k, **{**words, **residual})
    more = _operands(e)
    if "bias_column" in more:
        _column_bias(e, m, n, more["bias_column"], layer.text("activation", "NONE"))


def convolution(e: Emitter) -> None:
    own = {name: e.layer.integer(name) for name in (*Windows._fields, "cin", "cout", "groups")}
    fields = {"in0_addr": e.inputs[0], "in1_addr": e.inputs[1], "type_in1": int(e.kinds[1]), "out_addr": e.out}
    e.put(fields | _tile(e), own, **_finish(e))


def _column_bias(e: Emitter, m: int, n: int, bias: int, activation: str) -> None:
    """ADD one value per row, then the activation, on the result of the product."""
    fields = {"in0_addr": e.out, "type_in0": int(e.kind), "out_addr": e.out, "tile_m": e.tile[0], "tile_n": e.tile[1]}
    second = {"function": int(Eltwise.ADD), "in1_addr": bias, "type_in1": int(e.kind)}
    own = {"broadcast1": BROADCAST["COLUMN"]}
    e.put(fields | second, own, Opcode.ELTWISE, m=m, n=n)
    if activation in ("GELU", "GELU_TANH"):
        e.put(fields | {"param0": int(activation == "GELU_TANH")}, None, Opcode.GELU, m=m, n=n)
    elif activation != "NONE":
        e.put(fields | {"function": int(Eltwise[activation])}, None, Opcode.ELTWISE, m=m, n=n)


MAX_BYTE = 255
"""Of windows in tile form."""
COPY_DIMS = 4
"""Dimensions that one COPY command walks."""


def _plain(e: Emitter, own: dict[str, Any] | None = None, words: dict[str, Any] | None = None, **fields: int) -> None:
    """A command on m x n elements."""
    e.put(
        {"in0_addr": e.inputs[0], "out_addr": e.out, "tile_m": e.tile[0], "tile_n": e.tile[1], **fields}, own,
        m=e.layer.integer("m"), n=e.layer.integer("n"), **(words or {}),
    )  # fmt: skip


def eltwise(e: Emitter) -> None:
    layer = e.layer
    function = layer.text("function")
    fields = {"function": int(Eltwise[function])}
    own: dict[str, Any] = {}
    if function == "CLIP":
        own = {"lowest": word(layer.real("low"), e.kind), "highest": word(layer.real("high"), e.kind)}
    elif function in ("QUANT", "DEQUANT"):
        _plain(e, None, {"scale": e.inputs[1]} | _zero(e, 3 if function == "QUANT" else 0), **fields)
        return
    elif len(e.inputs) > 1:
        fields |= {"in1_addr": e.inputs[1], "type_in1": e.kinds[1]}
        own = {"broadcast1": BROADCAST[layer.text("broadcast", "FULL")]}
    _plain(e, own, {"in2": e.inputs[2]} if function == "WHERE" else {}, **fields)


def _zero(e: Emitter, index: int) -> dict[str, Any]:
    points = [0, 0, 0, 0]
    points[index] = e.layer.integer("zero")
    return {"zero_point": tuple(points)}


def norm(e: Emitter) -> None:
    words = {"epilogue": int(Epilogue.BIAS), "bias": e.inputs[2]} if len(e.inputs) > 2 else {}
    _plain(
        e, None, words, function=int(Norm[e.layer.text("function")]), in1_addr=e.inputs[1], type_in1=e.kinds[1],
        param0=float_bits(e.layer.real("epsilon")),
    )  # fmt: skip


def softmax(e: Emitter) -> None:
    _plain(e)


def gelu(e: Emitter) -> None:
    _plain(e, param0=e.layer.integer("tanh"))


def reduce(e: Emitter) -> None:
    k = e.layer.integer("k")
    tile = {"tile_n": e.tile[1]} if k > 1 else {}
    _plain(e, None, {"k": k}, function=int(Reduce[e.layer.text("function")]), **tile)


def pool(e: Emitter) -> None:
    layer = e.layer
    own = {f"pool_{name}": layer.integer(name) for name in Windows._fields}
    own |= {"channels": layer.integer("channels"), "count_pads": layer.integer("count_pads")}
    fields = {"in0_addr": e.inputs[0], "out_addr": e.out, "function": int(Pool[layer.text("function")])}
    e.put(fields | {"tile_m": e.tile[0], "tile_n": e.tile[1]}, own)


def copy(e: Emitter) -> None:
    """The four largest dimensions in one command; the others are walked here."""
    layer, size = e.layer, BITS[e.kind] // 8
    axes = list(zip(layer.integers("dims"), layer.integers("from"), layer.integers("to"), strict=True))
    walked = sorted(sorted(range(len(axes)), key=lambda axis: axes[axis][0])[: max(0, len(axes) - COPY_DIMS)])
    outer = [axes[axis] for axis in walked]
    inner = [axes[axis] for axis in range(len(axes)) if axis not in walked]
    inner = [(1, 0, 0)] * (COPY_DIMS - len(inner)) + inner
    dims = [axis[0] for axis in inner]
    rows = dims[0] * dims[1] * dims[2]
    tile = _copy_tile(rows, dims[3], layer, size, e)
    own: dict[str, Any] = {
        "dim3": dims[3],
        "stride_in": tuple(axis[1] * size for axis in inner),
        "stride_out": tuple(axis[2] * size for axis in inner),
    }
    for index in itertools.product(*(range(axis[0]) for axis in outer)):
        at_in = layer.integer("at_in") + sum(i * axis[1] for i, axis in zip(index, outer, strict=True))
        at_out = layer.integer("at_out") + sum(i * axis[2] for i, axis in zip(index, outer, strict=True))
        e.put(
            {
                "in0_addr": e.inputs[0] + at_in * size, "out_addr": e.out + at_out * size,
                "tile_m": tile[0], "tile_n": tile[1],
            },
            own, m=dims[0], n=dims[1], k=dims[2],
        )  # fmt: skip


def _copy_tile(rows: int, columns: int, layer: LayerIR, size: int, e: Emitter) -> tuple[int, int]:
    """Rows and columns of which the buffers fit the share: in and out, each `prefetch` + 1 times."""
    room = e.share // (2 * (layer.integer("prefetch") + 1)) // SLOT * SLOT // size
    wide = min(columns, room)
    return max(1, min(rows, room // wide)), wide


def gather(e: Emitter) -> None:
    e.put(
        {
            "in0_addr": e.inputs[0], "in1_addr": e.inputs[1], "type_in1": e.kinds[1], "out_addr": e.out,
            "tile_m": e.tile[0],
        },
        m=e.layer.integer("m"), n=e.layer.integer("n"), k=e.layer.integer("k"),
    )  # fmt: skip


def rope(e: Emitter) -> None:
    """One command per batch. The tables have a row for each row of x, or begin with position 0."""
    layer = e.layer
    m, n, heads = (layer.integer(name) for name in ("m", "n", "heads"))
    own = {
        "rope_heads": heads, "rope_head_dim": n // heads, "rotary_dim": layer.integer("rotary"),
        "rope_flags": layer.integer("neighbours"), "rope_t_max": layer.integer("t_max", m),
        "rope_pos_addr": e.inputs[3] if len(e.inputs) > 3 else 0,
    }  # fmt: skip
    fields = {"in1_addr": e.inputs[1], "type_in1": int(e.kinds[1]), "tile_m": e.tile[0]}
    for index in range(layer.integer("batch", 1)):
        x, out = e.inputs[0] + index * e.rows_in(m, n), e.out + index * e.rows_out(m, n)
        e.put(fields | {"in0_addr": x, "out_addr": out}, own, m=m, in2=e.inputs[2])


def kv_append(e: Emitter) -> None:
    """Rows of tokens into a cache, from the position on: one command per batch."""
    m, n, heads, t_max = (e.layer.integer(name) for name in ("m", "n", "heads", "t_max"))
    own = {"kv_heads": heads, "head_dim": n // heads, "q_len": m, "t_max": t_max, "pos_addr": e.inputs[1]}
    fields = {"type_out": 0, "type_kv": e.kind, "tile_m": e.tile[0]}
    for index in range(e.layer.integer("batch", 1)):
        x, cache = e.inputs[0] + index * e.rows_in(m, n), e.out + index * e.rows_out(t_max, n)
        e.put(fields | {"in0_addr": x, "out_addr": cache}, own, **_kv_scale(e, 2))


def attention(e: Emitter) -> None:
    """One command per batch. With a position the queries from there on see all keys up to their own."""
    layer = e.layer
    m, n, heads, kv_heads, t_max = (layer.integer(name) for name in ("m", "n", "heads", "kv_heads", "t_max"))
    size = n // heads
    own = {
        "heads": heads, "kv_heads": kv_heads, "head_dim": size, "attn_flags": layer.integer("causal", 1), "q_len": m,
        "kv_len": layer.integer("keys"), "t_max": t_max, "pos_addr": e.inputs[3] if len(e.inputs) > 3 else 0,
        "window": layer.integer("window"), "attn_scale": float_bits(layer.real("scale")),
    }  # fmt: skip
    tile = {"tile_m": e.tile[0], "tile_n": e.tile[1], "tile_k": size}
    zero = (0, layer.integer("zero1"), layer.integer("zero2"), 0)
    batch = layer.integer("batch", 1)
    tokens = e.sizes[1] // batch * BITS[e.kinds[1]] // 8
    for index in range(batch):
        q, k, v = (at + index * step for at, step in zip(e.inputs, (e.rows_in(m, n), tokens, tokens), strict=False))
        fields = {"in0_addr": q, "in1_addr": k, "out_addr": e.out + index * e.rows_out(m, n), "type_kv": e.kinds[1]}
        e.put(fields | tile, own, in2=v, zero_point=zero, **_kv_scale(e, 4))


def _kv_scale(e: Emitter, index: int) -> dict[str, Any]:
    """The scales of keys and values that are integers: one per head."""
    if index >= len(e.inputs):
        return {}
    return {"scale": e.inputs[index], "epilogue": int(Epilogue.REQUANTIZE | Epilogue.PER_CHANNEL)}


FORMS: dict[str, Callable[[Emitter], None]] = {
    "GEMM_T": gemm,
    "CONV2D_T": convolution,
    "POOL": pool,
    "ELTWISE": eltwise,
    "LAYERNORM": norm,
    "SOFTMAX": softmax,
    "GELU": gelu,
    "REDUCE": reduce,
    "COPY": copy,
    "GATHER": gather,
    "KV_APPEND": kv_append,
    "ATTN_T": attention,
    "ROPE": rope,
}


def alone(layer: LayerIR) -> bool:
    """Whether a layer has nothing but a macro form: tables, zero points, scales that are tensors, some windows."""
    if layer.op_type == "GEMM_T":
        return "scale" in layer.text("epilogue") or any(name in layer.attributes for name in ("zero0", "zero1"))
    if layer.op_type == "REDUCE":
        return layer.integer("k") > 1
    if layer.op_type == "POOL":
        shape = windows_of(layer)
        dilated = (shape.dh, shape.dw) != (1, 1)
        return dilated or bool(layer.integer("count_pads")) or max(shape[3:7]) > MAX_BYTE or max(shape[9:]) > MAX_BYTE
    quantizes = layer.text("function") in ("QUANT", "DEQUANT")
    tables = ("ATTN_T", "CONV2D_T", "GATHER", "KV_APPEND", "ROPE")
    return layer.op_type in tables or (quantizes and "scale" not in layer.attributes)
