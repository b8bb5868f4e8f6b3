"""Layers as macro commands: one descriptor each, which the device's sequencer expands (specification 20)."""

import itertools
from collections.abc import Callable
from typing import Any

from npu_device.abi.descriptor import Descriptor
from npu_device.abi.extended import Epilogue, Extended
from npu_device.abi.memory_map import SPM_BASE
from npu_device.abi.opcodes import BITS, Activation, Eltwise, Norm, Opcode, Reduce
from toolchain.codegen.commands import BROADCAST, Command, Target, float_bits, word
from toolchain.codegen.memory import DramMap
from toolchain.codegen.tiles import Tile, check, whole
from toolchain.ir.graph import Graph, LayerIR

COPY_DIMS = 4
"""Dimensions that one COPY command walks."""


class Emitter:
    """Writes the commands of one layer. Layers take their shares of the scratchpad in turn, so that the next one can
    begin before this one has ended."""

    def __init__(self, graph: Graph, layer: LayerIR, memory: DramMap, target: Target, turn: int) -> None:
        self.layer = layer
        self.kinds = [graph.tensors[name].dtype for name in layer.inputs]
        self.kind = graph.tensors[layer.outputs[0]].dtype
        self.sizes = [graph.tensors[name].elements for name in layer.inputs]
        self.inputs = [memory.address(graph, name) for name in layer.inputs]
        self.out = memory.address(graph, layer.outputs[0])
        self.tile: Tile = layer.integers("tile") or whole(layer)
        self._made: list[Command] = []
        self._shares = layer.integer("buffers", 1)
        self.share = target.spm_bytes // self._shares
        self._turn = turn
        check(graph, layer, self.tile, target, self._shares * (layer.integer("prefetch") + 1))

    def commands(self) -> list[Command]:
        return self._made

    def put(
        self, fields: dict[str, int], own: dict[str, Any] | None = None, opcode: Opcode | None = None, **block: Any
    ) -> None:
        """A command, by default of the layer's operation: fields of the descriptor, words of the extended block."""
        opcode = opcode or Opcode[self.layer.op_type]
        share = (self._turn + len(self._made)) % self._shares
        extended = Extended.make(
            opcode, own=own, workspace=SPM_BASE + share * self.share, workspace_bytes=self.share, **block
        )
        descriptor = Descriptor(
            opcode=opcode, extended=1, rank=self.layer.integer("rank"), prefetch_dist=self.layer.integer("prefetch"),
            **{"type_in0": self.kinds[0], "type_out": self.kind, **fields},
        )  # fmt: skip
        self._made.append(Command(self.layer.id, descriptor, extended))


def gemm(e: Emitter) -> None:
    """One command per product of the list. A bias per row has no place in an epilogue: it follows, in place."""
    layer = e.layer
    m, n, k = (layer.integer(name) for name in "mnk")
    steps = layer.text("epilogue").split("+")
    more = dict(zip([step for step in steps if step], e.inputs[2:], strict=True))
    activation = layer.text("activation", "NONE")
    epilogue = 0 if "bias_column" in more else int(Activation[activation])
    epilogue |= int(Epilogue.BIAS) if "bias" in more else 0
    if "scale" in more:
        epilogue |= int(Epilogue.REQUANTIZE) | (int(Epilogue.PER_CHANNEL) if e.sizes[-1] > 1 else 0)
    zeros = (layer.integer("zero0"), layer.integer("zero1"), 0, layer.integer("zero_out"))
    for index in range(layer.integer("batch")):
        in0 = e.inputs[0] + index * layer.integer("step0") * BITS[e.kinds[0]] // 8
        in1 = e.inputs[1] + index * layer.integer("step1") * BITS[e.kinds[1]] // 8
        e.put(
            {
                "in0_addr": in0, "in1_addr": in1, "type_in1": e.kinds[1],
                "out_addr": e.out + index * m * n * BITS[e.kind] // 8, "in1_nk": layer.integer("in1_nk"),
                "tile_m": e.tile[0], "tile_n": e.tile[1], "tile_k": e.tile[2],
            },
            m=m, n=n, k=k, epilogue=epilogue, bias=more.get("bias", 0), scale=more.get("scale", 0), zero_point=zeros,
        )  # fmt: skip
    if "bias_column" in more:
        _column_bias(e, m, n, more["bias_column"], activation)


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
    _plain(e, function=int(Reduce[e.layer.text("function")]))


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
    room = e.share // (2 * (layer.integer("prefetch") + 1)) // size
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
    """The tables have a row for each row of x."""
    layer = e.layer
    m, heads = layer.integer("m"), layer.integer("heads")
    own = {
        "rope_heads": heads, "rope_head_dim": layer.integer("n") // heads, "rotary_dim": layer.integer("rotary"),
        "rope_flags": layer.integer("neighbours"), "rope_t_max": m,
    }  # fmt: skip
    fields = {"in0_addr": e.inputs[0], "in1_addr": e.inputs[1], "type_in1": int(e.kinds[1]), "out_addr": e.out}
    e.put(fields | {"tile_m": e.tile[0]}, own, m=m, in2=e.inputs[2])


FORMS: dict[str, Callable[[Emitter], None]] = {
    "GEMM_T": gemm,
    "ELTWISE": eltwise,
    "LAYERNORM": norm,
    "SOFTMAX": softmax,
    "GELU": gelu,
    "REDUCE": reduce,
    "COPY": copy,
    "GATHER": gather,
    "ROPE": rope,
}


def alone(layer: LayerIR) -> bool:
    """Whether a layer has nothing but a macro form: tables, zero points, scales that are tensors."""
    if layer.op_type == "GEMM_T":
        return "scale" in layer.text("epilogue") or any(name in layer.attributes for name in ("zero0", "zero1"))
    quantizes = layer.text("function") in ("QUANT", "DEQUANT")
    return layer.op_type in ("GATHER", "ROPE") or (quantizes and "scale" not in layer.attributes)
