"""Decoders as exporters write them at opset 17: Concat extends caches, attention consists of primitives, and mask and
positions of a step follow from shapes (as torch.onnx exports Llama and GPT-2 of transformers 4)."""

from typing import Any

import numpy as np
from onnx import helper

from toolchain.examples.builder import Builder
from toolchain.examples.decoder_kv import BASE, EPSILON

OPSET, IR_VERSION = 17, 8


class _Graph:
    """Nodes in the style of torch.onnx, which computes sizes from shapes."""

    def __init__(self, kind: str) -> None:
        self.b = Builder(kind)
        self.node = self.b.node

    def ints(self, *values: int) -> str:
        return self.b.constant(np.array(values, np.int64))

    def size(self, x: str, axis: int) -> str:
        """Return the size of a dimension as a 1-element list."""
        scalar = self.node("Gather", self.node("Shape", x), self.b.constant(np.array(axis, np.int64)), axis=0)
        return self.node("Unsqueeze", scalar, self.ints(0))

    def reshaped(self, x: str, *sizes: str) -> str:
        return self.node("Reshape", x, self.node("Concat", *sizes, axis=0))

    def matrix(self, rows: int, columns: int) -> str:
        return self.b.weight(rows, columns, scale=rows**-0.5)

    def number(self, value: float) -> str:
        return self.b.constant(np.array(value, self.b.kind))

    def lowest(self) -> str:
        return self.number(float(np.finfo(self.b.kind).min))

    def by_head(self, x: str, heads: int, size: int) -> str:
        """Return rows per head."""
        sizes = (self.size(x, 0), self.size(x, 1), self.ints(heads), self.ints(size))
        return self.node("Transpose", self.reshaped(x, *sizes), perm=[0, 2, 1, 3])

    def by_token(self, x: str, width: int) -> str:
        """Return one row per token."""
        turned = self.node("Transpose", x, perm=[0, 2, 1, 3])
        return self.reshaped(turned, self.size(turned, 0), self.size(turned, 1), self.ints(width))


def _mean_square(g: _Graph, x: str, width: int) -> str:
    """Return Llama's RMS norm in primitives."""
    mean = g.node("ReduceMean", g.node("Pow", x, g.number(2)), axes=[-1], keepdims=1)
    root = g.node("Sqrt", g.node("Add", mean, g.number(EPSILON)))
    return g.node("Mul", g.b.positive(width), g.node("Mul", x, g.node("Div", g.number(1), root)))


def _mask(g: _Graph, past: str, total: str) -> str:
    """Return 0 where a query sees a key and the lowest number elsewhere: causal, combined with `attention_mask`."""
    tokens = g.size("input_ids", 1)
    shape = g.node("Concat", tokens, total, axis=0)
    low = g.node("ConstantOfShape", shape, value=helper.make_tensor("v", g.b.code, [1], [0.0]))
    low = g.node("Add", low, g.lowest())
    scalar = g.ints()
    columns = g.node("Range", g.b.constant(np.array(0)), g.node("Reshape", total, scalar), g.b.constant(np.array(1)))
    end = g.node("Reshape", g.node("Add", past, tokens), scalar)
    rows = g.node("Range", g.node("Reshape", past, scalar), end, g.b.constant(np.array(1)))
    rows = g.node("Reshape", rows, g.ints(-1, 1))
    future = g.node("Cast", g.node("Greater", columns, rows), to=g.b.code)
    causal = g.node("Unsqueeze", g.node("Mul", low, future), g.ints(0, 1))
    padding = g.node("Unsqueeze", g.node("Slice", "attention_mask", g.ints(0), total, g.ints(1)), g.ints(1, 2))
    hidden = g.node("Equal", g.node("Cast", padding, to=7), g.b.constant(np.array(0)))
    return g.node("Where", hidden, g.lowest(), causal)


def _rotate(g: _Graph, x: str, cos: str, sin: str, size: int) -> str:
    """Return queries or keys with rotary positions applied."""
    far = g.node("Slice", x, g.ints(size // 2), g.ints(1 << 62), g.ints(3))
    first = g.node("Slice", x, g.ints(0), g.ints(size // 2), g.ints(3))
    half = g.node("Concat", g.node("Neg", far), first, axis=-1)
    return g.node("Add", g.node("Mul", x, cos), g.node("Mul", half, sin))


def _repeat(g: _Graph, x: str, heads: int, kv_heads: int, size: int) -> str:
    """Repeat each head of keys or values for its group of queries. MatMul broadcasts a single head."""
    if kv_heads in (1, heads):
        return x
    share, batch, length = heads // kv_heads, g.size(x, 0), g.size(x, 2)
    shape = g.node("Concat", batch, g.ints(kv_heads), g.ints(share), length, g.ints(size), axis=0)
    wide = g.node("Expand", g.node("Unsqueeze", x, g.ints(2)), shape)
    return g.reshaped(wide, batch, g.ints(heads), length, g.ints(size))


def decoder_concat(
    layers: int = 2, width: int = 128, heads: int = 4, kv_heads: int = 2, vocab: int = 256, kind: str = "float32",
) -> Any:  # fmt: skip
    """Return a Llama decoder with scaled_dot_product_attention and `position_ids`."""
    g = _Graph(kind)
    size = width // heads
    past = g.size("past_key_values.0.key", 2)
    total = g.node("Add", past, g.size("input_ids", 1))
    mask = _mask(g, past, total)
    rates = g.b.constant((BASE ** (-np.arange(0, size, 2) / size)).astype(np.float32).reshape(1, -1, 1))
    places = g.node("Cast", g.node("Unsqueeze", "position_ids", g.ints(1)), to=1)
    angles = g.node("Transpose", g.node("MatMul", rates, places), perm=[0, 2, 1])
    angles = g.node("Concat", angles, angles, axis=-1)
    cos, sin = (
        g.node("Unsqueeze", g.node("Cast", g.node(function, angles), to=g.b.code), g.ints(1))
        for function in ("Cos", "Sin")
    )
    x = g.node("Gather", g.b.weight(vocab, width, scale=1.0), "input_ids")
    for layer in range(layers):
        y = _mean_square(g, x, width)
        q, k, v = (
            g.by_head(g.node("MatMul", y, g.matrix(width, n * size)), n, size) for n in (heads, kv_heads, kv_heads)
        )
        q, k = (_rotate(g, rows, cos, sin, size) for rows in (q, k))
        k, v = _cache_rows(g, layer, k, v)
        k, v = (_repeat(g, rows, heads, kv_heads, size) for rows in (k, v))
        root = g.number(size**-0.25)
        turned = g.node("Mul", g.node("Transpose", k, perm=[0, 1, 3, 2]), root)
        scores = g.node("Add", g.node("MatMul", g.node("Mul", q, root), turned), mask)
        y = g.by_token(g.node("MatMul", g.node("Softmax", scores, axis=-1), v), width)
        x = g.node("Add", x, g.node("MatMul", y, g.matrix(width, width)))
        y = _mean_square(g, x, width)
        gate = g.node("MatMul", y, g.matrix(width, 2 * width))
        gate = g.node("Mul", gate, g.node("Sigmoid", gate))
        y = g.node("Mul", gate, g.node("MatMul", y, g.matrix(width, 2 * width)))
        x = g.node("Add", x, g.node("MatMul", y, g.matrix(2 * width, width)))
    g.b.nodes.append(helper.make_node("MatMul", [_mean_square(g, x, width), g.matrix(width, vocab)], ["logits"]))
    return _model(g, "decoder_concat", layers, (kv_heads, size), vocab, ["attention_mask", "position_ids"])


def decoder_concat_learned(
    layers: int = 2, width: int = 128, heads: int = 4, vocab: int = 256, positions: int = 256, kind: str = "float32",
) -> Any:  # fmt: skip
    """Return a GPT-2 decoder: one product for queries, keys and values, learned positions counted from the length of
    the past, a triangular mask sliced to the step, and tokens as the only input besides caches."""
    g = _Graph(kind)
    size, scalar = width // heads, g.ints()
    past = g.size("past_key_values.0.key", 2)
    total = g.node("Add", past, g.size("input_ids", 1))
    places = g.node("Range", g.node("Reshape", past, scalar), g.node("Reshape", total, scalar),
                    g.b.constant(np.array(1)))  # fmt: skip
    places = g.node("Unsqueeze", places, g.ints(0))
    triangle = g.b.constant(np.tril(np.ones((positions, positions), np.bool_))[None, None])
    x = g.node("Add", g.node("Gather", g.b.weight(vocab, width, scale=1.0), "input_ids"),
               g.node("Gather", g.b.weight(positions, width, scale=1.0), places))  # fmt: skip
    for layer in range(layers):
        y = _normalize(g, x, width)
        y = _linear(g, y, width, 3 * width)
        parts = [f"split.{layer}.{index}" for index in range(3)]
        g.b.nodes.append(helper.make_node("Split", [y, g.ints(width, width, width)], parts, axis=2))
        q, k, v = (g.by_head(part, heads, size) for part in parts)
        k, v = _cache_rows(g, layer, k, v)
        scores = g.node("MatMul", q, g.node("Transpose", k, perm=[0, 1, 3, 2]))
        scores = g.node("Div", scores, g.number(size**0.5))
        visible = g.node("Slice", g.node("Slice", triangle, past, total, g.ints(2)), g.ints(0), total, g.ints(3))
        scores = g.node("Where", visible, scores, g.lowest())
        y = g.by_token(g.node("MatMul", g.node("Softmax", scores, axis=-1), v), width)
        x = g.node("Add", x, _linear(g, y, width, width))
        y = _linear(g, _normalize(g, x, width), width, 2 * width)
        half = g.node("Mul", y, g.number(0.5))
        cube = g.node("Mul", g.node("Pow", y, g.number(3)), g.number(0.044715))
        bent = g.node("Tanh", g.node("Mul", g.node("Add", y, cube), g.number((2 / np.pi) ** 0.5)))
        y = g.node("Mul", half, g.node("Add", bent, g.number(1)))
        x = g.node("Add", x, _linear(g, y, 2 * width, width))
    head = g.matrix(width, vocab)
    g.b.nodes.append(helper.make_node("MatMul", [_normalize(g, x, width), head], ["logits"]))
    return _model(g, "decoder_concat_learned", layers, (heads, size), vocab, [])


def _normalize(g: _Graph, x: str, width: int) -> str:
    return g.node("LayerNormalization", x, g.b.positive(width), g.b.weight(width), axis=-1, epsilon=EPSILON)


def _linear(g: _Graph, x: str, rows: int, columns: int) -> str:
    """Return GPT-2's Conv1D: a Gemm on one row per token."""
    flat = g.reshaped(x, g.ints(-1), g.ints(rows))
    product = g.node("Gemm", flat, g.matrix(rows, columns), g.b.weight(columns))
    return g.reshaped(product, g.size(x, 0), g.size(x, 1), g.ints(columns))


def _cache_rows(g: _Graph, layer: int, k: str, v: str) -> list[str]:
    """Append keys and values to their past."""
    names = []
    for part, new in (("key", k), ("value", v)):
        name = f"present.{layer}.{part}"
        g.b.nodes.append(
            helper.make_node("Concat", [f"past_key_values.{layer}.{part}", new], [name], name=f"concat.{name}", axis=-2)
        )
        names.append(name)
    return names


def _model(g: _Graph, name: str, layers: int, cache: tuple[int, int], vocab: int, others: list[str]) -> Any:
    value, integer = helper.make_tensor_value_info, 7
    lengths = {"attention_mask": "past_sequence_length + 1"}
    inputs = [
        value(input_name, integer, ["batch_size", lengths.get(input_name, "sequence_length")])
        for input_name in ("input_ids", *others)
    ]
    outputs = [value("logits", g.b.code, ["batch_size", "sequence_length", vocab])]
    for layer in range(layers):
        for part in ("key", "value"):
            shapes = (["batch_size", cache[0], length, cache[1]] for length in ("past_sequence_length", "total"))
            pair = (f"past_key_values.{layer}.{part}", f"present.{layer}.{part}")
            for key, shape, values in zip(pair, shapes, (inputs, outputs), strict=True):
                values.append(value(key, g.b.code, shape))
    graph = helper.make_graph(g.b.nodes, name, inputs, outputs, g.b.weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR_VERSION)
