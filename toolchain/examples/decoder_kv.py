"""Decoder layers with a key/value cache, in the form of docs/llm.md, "Your own decoder"."""

from typing import Any

import numpy as np
from onnx import helper

from toolchain.examples.builder import Builder

OPSET, IR_VERSION = 23, 11
OPSET_WINDOW = 25
"""First operator set whose Attention has a sliding window."""
EPSILON = 1e-5
BASE = 10_000.0
"""Base of the rotary frequencies (Su et al., arXiv 2104.09864)."""


def decoder_kv(
    layers: int = 2, width: int = 128, heads: int = 4, kv_heads: int = 2, vocab: int = 256, positions: int = 256,
    kind: str = "float32", window: int = 0,
) -> Any:  # fmt: skip
    """Return a Llama decoder: RMS norms, rotary positions, grouped heads, a gated feed-forward network. `window`:
    tokens that a query sees; 0 for all."""
    b = Builder(kind)
    size = width // heads
    angles = np.arange(positions)[:, None] * BASE ** (-np.arange(0, size, 2) / size)
    cos, sin = (b.constant(table.astype(b.kind)) for table in (np.cos(angles), np.sin(angles)))
    x = b.node("Gather", b.weight(vocab, width, scale=1.0), "input_ids")
    nodes, caches = b.nodes, []
    sliding: dict[str, Any] = {"left_window_size": window - 1} if window else {}
    for layer in range(layers):
        y = _norm(b, x, width)
        q, k, v = (b.node("MatMul", y, _matrix(b, width, n * size)) for n in (heads, kv_heads, kv_heads))
        q, k = (
            b.node("RotaryEmbedding", rows, cos, sin, "position_ids", num_heads=n)
            for rows, n in ((q, heads), (k, kv_heads))
        )
        past = [f"past_key_values.{layer}.{part}" for part in ("key", "value")]
        present = [f"present.{layer}.{part}" for part in ("key", "value")]
        nodes.append(
            helper.make_node(
                "Attention", [q, k, v, "", *past], [f"attention.{layer}", *present], name=f"attention.{layer}",
                q_num_heads=heads, kv_num_heads=kv_heads, is_causal=1, **sliding,
            )
        )  # fmt: skip
        caches.append((past, present))
        x = b.node("Add", x, b.node("MatMul", f"attention.{layer}", _matrix(b, width, width)))
        y = _norm(b, x, width)
        gate = b.node("MatMul", y, _matrix(b, width, 2 * width))
        gate = b.node("Mul", gate, b.node("Sigmoid", gate))
        y = b.node("Mul", gate, b.node("MatMul", y, _matrix(b, width, 2 * width)))
        x = b.node("Add", x, b.node("MatMul", y, _matrix(b, 2 * width, width)))
    nodes.append(helper.make_node("MatMul", [_norm(b, x, width), _matrix(b, width, vocab)], ["logits"], name="head"))
    return _model(b, caches, kv_heads, size, vocab, OPSET_WINDOW if window else OPSET)


def _norm(b: Builder, x: str, width: int) -> str:
    return b.node("RMSNormalization", x, b.positive(width), axis=-1, epsilon=EPSILON)


def _matrix(b: Builder, rows: int, columns: int) -> str:
    return b.weight(rows, columns, scale=rows**-0.5)


def _model(b: Builder, caches: list[tuple[list[str], list[str]]], heads: int, size: int, vocab: int, opset: int) -> Any:
    value, integer = helper.make_tensor_value_info, 7
    inputs = [value("input_ids", integer, [1, "tokens"]), value("position_ids", integer, [1, "tokens"])]
    outputs = [value("logits", b.code, [1, "tokens", vocab])]
    for past, present in caches:
        inputs += [value(name, b.code, [1, heads, "past", size]) for name in past]
        outputs += [value(name, b.code, [1, heads, "past_and_tokens", size]) for name in present]
    graph = helper.make_graph(b.nodes, "decoder_kv", inputs, outputs, b.weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=IR_VERSION)
