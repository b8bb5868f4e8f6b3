"""Decoder layer of a language model, for a whole sequence at once."""

from typing import Any

import numpy as np

from toolchain.examples.builder import Builder

EPSILON = 1e-5


def decoder(length: int = 32, width: int = 128, heads: int = 4, kv_heads: int = 2, kind: str = "float32") -> Any:
    """Return a decoder layer: layer normalization, causal attention with grouped heads, and a feed-forward network,
    both with residual connections."""
    b = Builder(kind)
    size = width // heads
    x = _attention(b, "x", length, width, heads, kv_heads, size)
    y = _norm(b, x, width)
    y = b.node("Gelu", b.node("MatMul", y, b.weight(width, 4 * width, scale=width**-0.5)))
    y = b.node("MatMul", y, b.weight(4 * width, width, scale=(4 * width) ** -0.5))
    return b.model("decoder", [length, width], b.node("Add", x, y), [length, width])


def _norm(b: Builder, x: str, width: int) -> str:
    return b.node("LayerNormalization", x, b.positive(width), b.weight(width), epsilon=EPSILON)


def _attention(b: Builder, x: str, length: int, width: int, heads: int, kv_heads: int, size: int) -> str:
    normed = _norm(b, x, width)
    q, k, v = (_heads(b, normed, length, width, count, size) for count in (heads, kv_heads, kv_heads))
    groups = b.constant(np.array([kv_heads, heads // kv_heads, length, size], np.int64))
    full_shape = b.constant(np.array([heads, length, size], np.int64))
    axis = b.constant(np.array([1], np.int64))
    k, v = (b.node("Reshape", b.node("Expand", b.node("Unsqueeze", t, axis), groups), full_shape) for t in (k, v))
    scores = b.node("MatMul", q, b.node("Transpose", k, perm=[0, 2, 1]))
    scores = b.node("Mul", scores, b.constant(np.array(size**-0.5, b.kind)))
    mask = np.triu(np.full((length, length), -1e4), 1).astype(b.kind)
    weights = b.node("Softmax", b.node("Add", scores, b.constant(mask)), axis=-1)
    mixed = b.node("Transpose", b.node("MatMul", weights, v), perm=[1, 0, 2])
    flat = b.node("Reshape", mixed, b.constant(np.array([length, width], np.int64)))
    return b.node("Add", x, b.node("MatMul", flat, b.weight(width, width, scale=width**-0.5)))


def _heads(b: Builder, x: str, length: int, width: int, count: int, size: int) -> str:
    """Project (length, width) and split it into heads: (count, length, size)."""
    y = b.node("MatMul", x, b.weight(width, count * size, scale=width**-0.5))
    split = b.constant(np.array([length, count, size], np.int64))
    return b.node("Transpose", b.node("Reshape", y, split), perm=[1, 0, 2])
