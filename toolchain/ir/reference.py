"""Reference of a graph in numpy: the definition of each layer on whole tensors, in fp64 between two roundings.

It is independent of tiles, commands and device kernels. It serves as reference for graphs without an ONNX model
(docs/mlir.md, "NPU-IR as a module") and for those whose weights a QConfig narrows (docs/quantization.md).
"""

import math
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

import ml_dtypes
import numpy as np

from npu_device.abi.opcodes import DataType
from toolchain.errors import ModelError
from toolchain.ir.data_types import FLOATS, INTEGERS, NUMPY
from toolchain.ir.graph import Graph, LayerIR, Values
from toolchain.ir.operations import windows_of

_CUBIC = 0.044715
"""Coefficient of GELU's tanh form (arXiv 1606.08415)."""


def execute(graph: Graph, inputs: Mapping[str, Values]) -> dict[str, Values]:
    """Execute a graph and return its outputs."""
    run = ReferenceExecution(graph)
    for name in graph.inputs:
        run.write(name, np.asarray(inputs[name]))
    run.layers(graph.layers)
    return {name: run.read(name).reshape(graph.tensors[name].shape) for name in graph.outputs}


class ReferenceExecution:
    """Memory of a graph during its execution."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.memory: dict[str, Values] = {}
        for name, tensor in graph.tensors.items():
            if not tensor.view_of:
                self.memory[name] = np.zeros(tensor.elements, NUMPY.get(tensor.dtype, np.dtype(np.uint8)))
        for name, values in graph.constants.items():
            self.memory[name] = np.array(values).reshape(-1)

    def layers(self, layers: Iterable[LayerIR]) -> None:
        """Execute layers in order. ModelError: a layer has no definition here."""
        with np.errstate(all="ignore"):
            for layer in layers:
                if layer.op_type not in LAYERS or layer.integer("append"):
                    raise ModelError(f"layer {layer.id}: {layer.op_type} has no reference without the model it is from")
                LAYERS[layer.op_type](self, layer)

    def position(self, layer: LayerIR, index: int = 3) -> int | None:
        """Return the position of the first token, for a layer that reads a position."""
        return int(self.wide(layer.inputs[index])[0]) if len(layer.inputs) > index else None

    def _at(self, name: str) -> Any:
        tensor = self.graph.tensors[name]
        if not tensor.pitch:
            return slice(tensor.offset, tensor.offset + tensor.elements)
        rows = tensor.elements // tensor.shape[-1]
        steps = np.arange(rows)[:, None] * tensor.pitch + np.arange(tensor.shape[-1])
        return (tensor.offset + steps).reshape(-1)

    def read(self, name: str) -> Values:
        """Return the elements as a flat array."""
        return self.memory[self.graph.storage(name)][self._at(name)]

    def wide(self, name: str) -> Values:
        """Return the elements as fp64 or int64."""
        values = self.read(name)
        return values.astype(np.int64 if values.dtype.kind in "iub" else np.float64)

    def kind(self, name: str) -> DataType:
        return self.graph.tensors[name].dtype

    def write(self, name: str, values: Values) -> None:
        """Write elements in the type of a tensor: integers wrap, floats are rounded."""
        self.memory[self.graph.storage(name)][self._at(name)] = narrow(values.reshape(-1), self.kind(name))


def narrow(values: Values, kind: DataType) -> Values:
    """Convert values to a type: integers wrap; floats are rounded to fp32, then to the type; fp8 saturates."""
    target = NUMPY[kind]
    if kind in FLOATS:
        single = values.astype(np.float32)
        if target.itemsize == 1:
            limit = float(ml_dtypes.finfo(target).max)
            single = np.where(np.isnan(single), single, np.clip(single, -limit, limit))
        return single.astype(target)
    return values.astype(np.int64).astype(target)


def saturate(values: Values, kind: DataType) -> Values:
    limits = np.iinfo(NUMPY[kind])
    return np.clip(np.nan_to_num(values, nan=0.0, posinf=1e30, neginf=-1e30), limits.min, limits.max)


def erf(x: Values) -> Values:
    return np.vectorize(math.erf, otypes=[np.float64])(x)


def _sigmoid(x: Values) -> Values:
    return 1 / (1 + np.exp(-x))


def _gelu(x: Values) -> Values:
    return x / 2 * (1 + erf(x / math.sqrt(2)))


def _gelu_tanh(x: Values) -> Values:
    return x / 2 * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + _CUBIC * x**3)))


def _relu(x: Values) -> Values:
    return np.maximum(x, 0)


def _hard_sigmoid(x: Values) -> Values:
    return np.clip(x / 6 + 0.5, 0, 1)


UNARY: dict[str, Callable[[Values], Values]] = {
    "RELU": _relu, "RELU6": lambda x: np.clip(x, 0, 6), "SIGMOID": _sigmoid, "TANH": np.tanh,
    "SILU": lambda x: x * _sigmoid(x), "HARD_SIGMOID": _hard_sigmoid, "HARD_SWISH": lambda x: x * _hard_sigmoid(x),
    "MISH": lambda x: x * np.tanh(np.logaddexp(0, x)),
}  # fmt: skip
"""Activations that are also functions of ELTWISE."""
ACTIVATIONS: dict[str, Callable[[Values], Values]] = {
    "": lambda x: x, "NONE": lambda x: x, "GELU": _gelu, "GELU_TANH": _gelu_tanh, **UNARY,
}  # fmt: skip

# -- products ----------------------------------------------------------------------------------------------------------


def _finish(run: ReferenceExecution, layer: LayerIR, total: Values, columns: int) -> None:
    """Apply the epilogue to sums (rows x columns, or a batch of them) and write the result."""
    kind = run.kind(layer.outputs[0])
    parts = dict(zip(filter(None, layer.text("epilogue").split("+")), layer.inputs[2:], strict=True))
    read = {name: run.wide(tensor) for name, tensor in parts.items()}
    integers = total.dtype.kind == "i"
    activate = ACTIVATIONS[layer.text("activation")]
    residual_factor: Any = 1.0
    if "scale" in read and "residual" in read and kind in INTEGERS:
        read["scale"], residual_factor = read["scale"][:-1], read["scale"][-1]
    if integers:
        total = total.astype(np.int32).astype(np.int64)
    for name in ("bias", "bias_column") if integers else ():
        if name in read:
            total = total + (read[name] if name == "bias" else read[name][:, None])
    value = total.astype(np.int32).astype(np.int64) if integers else total
    if "scale" in read:
        value = value * read["scale"]
    for name in () if integers else ("bias", "bias_column"):
        if name in read:
            value = value + (read[name] if name == "bias" else read[name][:, None])
    if "residual" in read:
        value = value + (read["residual"].reshape(value.shape) - layer.integer("zero_in2")) * residual_factor
    value = activate(value)
    if kind in INTEGERS and "scale" in read:
        value = saturate(np.rint(value + layer.integer("zero_out")), kind)
    assert value.shape[-1] == columns
    run.write(layer.outputs[0], value)


def _gemm(run: ReferenceExecution, layer: LayerIR) -> None:
    m, n, k, batch = (layer.integer(name) for name in ("m", "n", "k", "batch"))
    factors = []
    turned = bool(layer.integer("in1_nk"))
    for index, (rows, columns) in enumerate(((m, k), (n, k) if turned else (k, n))):
        values = run.wide(layer.inputs[index]) - layer.integer(f"zero{index}")
        step = layer.integer(f"step{index}")
        factors.append([values[at * step :][: rows * columns].reshape(rows, columns) for at in range(batch)])
    total = np.stack([a @ (b.T if turned else b) for a, b in zip(*factors, strict=True)])
    _finish(run, layer, total.reshape(batch * m, n) if batch == 1 else total, n)


def _patches(image: Values, layer: LayerIR, fill: float) -> Values:
    """Return patches: batch x p x q x kh x kw x channels."""
    w = windows_of(layer)
    padded = np.pad(image, ((0, 0), (w.pt, w.pb), (w.pl, w.pr), (0, 0)), constant_values=fill)
    rows = np.arange(w.p)[:, None] * w.sh + np.arange(w.kh) * w.dh
    columns = np.arange(w.q)[:, None] * w.sw + np.arange(w.kw) * w.dw
    return padded[:, rows[:, None, :, None], columns[None, :, None, :]]


def _convolution(run: ReferenceExecution, layer: LayerIR) -> None:
    w, cin, cout, groups = windows_of(layer), *(layer.integer(name) for name in ("cin", "cout", "groups"))
    image = run.wide(layer.inputs[0]).reshape(w.batch, w.h, w.w, cin) - layer.integer("zero0")
    kernel = (run.wide(layer.inputs[1]) - layer.integer("zero1")).reshape(w.kh * w.kw, cin // groups, cout)
    patches = _patches(image, layer, 0).reshape(w.pixels, w.kh * w.kw, groups, cin // groups)
    deep = cout // groups
    parts = [
        np.einsum("pkc,kcn->pn", patches[:, :, at], kernel[:, :, at * deep : (at + 1) * deep]) for at in range(groups)
    ]
    _finish(run, layer, np.concatenate(parts, axis=1), cout)


# -- elements ----------------------------------------------------------------------------------------------------------


def _divide(a: Values, b: Values) -> Values:
    if a.dtype.kind == "f":
        return a / b
    quotient = np.abs(a) // np.where(b == 0, 1, np.abs(b))
    return np.where(b == 0, 0, np.where((a < 0) != (b < 0), -quotient, quotient))


def _remainder(a: Values, b: Values) -> Values:
    return np.fmod(a, b) if a.dtype.kind == "f" else a - _divide(a, b) * b


def _where(condition: Values, a: Values, b: Values) -> Values:
    return np.where(condition != 0, a, b)


def _shift(a: Values, b: Values, shift: Callable[..., Values]) -> Values:
    """Return shifted integers; shifts beyond 31 bits give 0 or the sign."""
    return shift(a, np.where((b < 0) | (b > 31), 32, b))


FUNCTIONS: dict[str, Callable[..., Values]] = {
    "AND": np.bitwise_and, "OR": np.bitwise_or, "XOR": np.bitwise_xor,
    "SHL": partial(_shift, shift=np.left_shift), "SHR": partial(_shift, shift=np.right_shift),
    "ADD": np.add, "SUB": np.subtract, "MUL": np.multiply, "DIV": _divide, "REM": _remainder,
    "MAX": np.maximum, "MIN": np.minimum,
    "POW": lambda a, b: np.power(a.astype(np.float64), b.astype(np.float64)), "EQUAL": np.equal,
    "GREATER": np.greater, "LESS": np.less, "WHERE": _where, "ERF": erf, "EXP": np.exp, "SQRT": np.sqrt,
    "SIN": np.sin, "COS": np.cos, "LOG": np.log, "FLOOR": np.floor, "CEIL": np.ceil, "ROUND": np.rint, **UNARY,
}  # fmt: skip


def _eltwise(run: ReferenceExecution, layer: LayerIR) -> None:
    m, n = layer.integer("m"), layer.integer("n")
    shapes = {"FULL": (m, n), "ROW": (1, n), "COLUMN": (m, 1), "SCALAR": (1, 1)}
    operands = [run.wide(layer.inputs[0]).reshape(m, n)]
    scaled = layer.text("function") in ("QUANT", "DEQUANT")
    for index, name in enumerate(() if scaled else layer.inputs[1:]):
        values = run.wide(name)
        operands.append(values.reshape(shapes[layer.text("broadcast", "FULL") if index == 0 else "FULL"]))
    function, kind, x = layer.text("function"), run.kind(layer.outputs[0]), operands[0]
    if function == "CAST":
        result = saturate(np.trunc(x), kind) if x.dtype.kind == "f" and kind in INTEGERS else x
    elif scaled:
        scale, zero = run.read(layer.inputs[1]).astype(np.float32), layer.integer("zero")
        if function == "DEQUANT":
            result = (x - zero) * scale.astype(np.float64)
        elif x.dtype.kind == "f":
            result = saturate(np.rint(x.astype(np.float32) / scale).astype(np.float64) + zero, kind)
        else:
            result = saturate(np.rint(x * scale.astype(np.float64) + zero), kind)
    elif function == "CLIP":
        result = np.minimum(np.maximum(x, layer.real("low")), layer.real("high"))
    else:
        result = FUNCTIONS[function](*operands)
    run.write(layer.outputs[0], np.broadcast_to(result, (m, n)))


def _softmax(run: ReferenceExecution, layer: LayerIR) -> None:
    x = run.wide(layer.inputs[0]).reshape(layer.integer("m"), layer.integer("n"))
    run.write(layer.outputs[0], _normalize(x))


def _normalize(x: Values) -> Values:
    powers = np.exp(x - x.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True)


def _norm(run: ReferenceExecution, layer: LayerIR) -> None:
    x = run.wide(layer.inputs[0]).reshape(layer.integer("m"), layer.integer("n"))
    if layer.text("function") == "LAYER":
        x = x - x.mean(-1, keepdims=True)
    x = x / np.sqrt((x * x).mean(-1, keepdims=True) + np.float64(np.float32(layer.real("epsilon"))))
    x = x * run.wide(layer.inputs[1])
    run.write(layer.outputs[0], x + run.wide(layer.inputs[2]) if len(layer.inputs) > 2 else x)


def _activation(run: ReferenceExecution, layer: LayerIR) -> None:
    run.write(layer.outputs[0], (_gelu_tanh if layer.integer("tanh") else _gelu)(run.wide(layer.inputs[0])))


def _reduce(run: ReferenceExecution, layer: LayerIR) -> None:
    x = run.wide(layer.inputs[0]).reshape(layer.integer("m"), layer.integer("n"), layer.integer("k", 1))
    reductions: dict[str, Any] = {"SUM": np.sum, "MEAN": np.mean, "MAX": np.max, "ARGMAX": np.argmax}
    reduction = reductions[layer.text("function")]
    run.write(layer.outputs[0], reduction(x, axis=1))


def _pool(run: ReferenceExecution, layer: LayerIR) -> None:
    w, channels = windows_of(layer), layer.integer("channels")
    image = run.wide(layer.inputs[0]).reshape(w.batch, w.h, w.w, channels).astype(np.float64)
    if layer.text("function") == "MAX":
        run.write(layer.outputs[0], _patches(image, layer, -np.inf).max(axis=(3, 4)))
        return
    total = _patches(image, layer, 0).sum(axis=(3, 4))
    count: Any = w.kh * w.kw
    if not layer.integer("count_pads"):
        count = _patches(np.ones_like(image), layer, 0).sum(axis=(3, 4))
    run.write(layer.outputs[0], total / count)


# -- moves and attention -----------------------------------------------------------------------------------------------


def _copy(run: ReferenceExecution, layer: LayerIR) -> None:
    dims = layer.integers("dims")

    def indices(steps: tuple[int, ...], first: int) -> Values:
        at = np.full(dims, first, np.int64)
        for axis, (size, step) in enumerate(zip(dims, steps, strict=True)):
            at += (np.arange(size) * step).reshape([-1 if dim == axis else 1 for dim in range(len(dims))])
        return at.reshape(-1)

    source, target = layer.inputs[0], layer.outputs[0]
    values = run.read(source)[indices(layer.integers("from"), layer.integer("at_in"))]
    stored = run.read(target).copy()
    stored[indices(layer.integers("to"), layer.integer("at_out"))] = values
    run.memory[run.graph.storage(target)][run._at(target)] = stored


def _gather(run: ReferenceExecution, layer: LayerIR) -> None:
    table = run.read(layer.inputs[0]).reshape(layer.integer("k"), layer.integer("n"))
    rows = table[run.wide(layer.inputs[1])].reshape(-1)
    run.memory[run.graph.storage(layer.outputs[0])][run._at(layer.outputs[0])] = rows


def _attention(run: ReferenceExecution, layer: LayerIR) -> None:
    m, n, heads, shared = (layer.integer(name) for name in ("m", "n", "heads", "kv_heads"))
    position = run.position(layer)
    keys = layer.integer("keys") if position is None else position + m
    batch, size = layer.integer("batch", 1), n // heads
    query = run.wide(layer.inputs[0]).reshape(batch, m, heads, size).transpose(0, 2, 1, 3)

    def cache(name: str) -> Values:
        values = run.wide(name)
        if layer.integer("t_max"):
            values = values.reshape(batch, shared, layer.integer("t_max"), size)[:, :, :keys]
        else:
            values = values.reshape(batch, keys, shared, size).transpose(0, 2, 1, 3)
        return np.repeat(values, heads // shared, axis=1)

    scores = query @ cache(layer.inputs[1]).swapaxes(2, 3) * np.float64(np.float32(layer.real("scale")))
    if cap := np.float64(np.float32(layer.real("softcap", 0.0))):
        scores = cap * np.tanh(scores / cap)
    positions, other = np.arange(m)[:, None] + keys - m, np.arange(keys)
    visible = np.ones((m, keys), bool)
    if layer.integer("causal") or position is not None:
        visible &= other <= positions
    if layer.integer("window"):
        visible &= other > positions - layer.integer("window")
    result = _normalize(np.where(visible, scores, -np.inf)) @ cache(layer.inputs[2])
    run.write(layer.outputs[0], result.transpose(0, 2, 1, 3))


def _rope(run: ReferenceExecution, layer: LayerIR) -> None:
    m, n, heads, rotary = (layer.integer(name) for name in ("m", "n", "heads", "rotary"))
    half = rotary // 2
    x = run.wide(layer.inputs[0]).reshape(-1, heads, n // heads)
    position, tables = run.position(layer), [run.wide(name).reshape(-1, 1, half) for name in layer.inputs[1:3]]
    if position is not None:
        tables = [table[position : position + m] for table in tables]
    cos, sin = (table[: None if layer.integer("batch") else m] for table in tables)
    first = slice(0, rotary, 2) if layer.integer("neighbours") else slice(0, half)
    second = slice(1, rotary, 2) if layer.integer("neighbours") else slice(half, rotary)
    result = x.copy()
    result[..., first] = x[..., first] * cos - x[..., second] * sin
    result[..., second] = x[..., second] * cos + x[..., first] * sin
    run.write(layer.outputs[0], result)


def _append(run: ReferenceExecution, layer: LayerIR) -> None:
    """Append new rows to a cache or to the log of logits, at the position."""
    updates = layer.op_type == "KV_UPDATE"
    m, heads, t_max = (layer.integer(name) for name in ("m", "heads", "t_max"))
    size, batch = layer.integer("n") // heads, layer.integer("batch", 1)
    first = run.position(layer, len(layer.outputs) if updates else 1)
    for source, target in zip(layer.inputs, layer.outputs, strict=False):
        rows = run.wide(source).reshape(batch, m, heads, size).transpose(0, 2, 1, 3)
        cache = run.wide(target).reshape(batch, heads, t_max, size)
        cache[:, :, first : (first or 0) + m] = rows
        run.write(target, cache)


LAYERS: dict[str, Callable[[ReferenceExecution, LayerIR], None]] = {
    "GEMM_T": _gemm, "CONV2D_T": _convolution, "ELTWISE": _eltwise, "SOFTMAX": _softmax, "LAYERNORM": _norm,
    "GELU": _activation, "REDUCE": _reduce, "POOL": _pool, "COPY": _copy, "GATHER": _gather, "ATTN_T": _attention,
    "ROPE": _rope, "KV_UPDATE": _append, "KV_APPEND": _append,
}  # fmt: skip
"""Operation -> its definition; caches must be floating-point."""
