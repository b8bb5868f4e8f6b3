"""ATTN_T and ROPE (specification 40, "Numerics"; operands: `npu_device.macro`)."""

import numpy as np

from npu_device.kernels.elements import Values
from npu_device.kernels.gemm import product, tiled


def visible(queries: int, keys: int, causal: bool, window: int) -> Values:
    """Which keys each query sees, shape (queries, keys); the queries are the last of the keys' positions.

    `window`: only the latest so many keys up to the query's own position; 0: all.
    """
    position = np.arange(queries)[:, None] + (keys - queries)
    key = np.arange(keys)[None]
    seen = np.ones((queries, keys), bool)
    if causal:
        seen &= key <= position
    if window:
        seen &= key > position - window
    return seen


def attention(q: Values, k: Values, v: Values, scale: np.float32, seen: Values, tile_n: int) -> Values:
    """softmax(q k^T scale) v per head, fp32.

    q: (heads, rows, D), k and v: (heads, keys, D), seen: (rows, keys). Scores are sums over all of D in fp32, times the
    scale in fp32; softmax of a whole row in fp64, rounded to fp32; then sums over tiles of `tile_n` keys in fp32.
    """
    with np.errstate(all="ignore"):
        scores = product(q, k.transpose(0, 2, 1)) * scale
        scores = np.where(seen, scores, np.float32(-np.inf)).astype(np.float64)
        weights = np.exp(scores - scores.max(axis=2, keepdims=True))
        weights = (weights / weights.sum(axis=2, keepdims=True)).astype(np.float32)
        return tiled(weights, v, tile_n)


def rope(x: Values, cos: Values, sin: Values, neighbours: bool) -> Values:
    """Rotate pairs, in fp32. x: (rows, heads, D), cos and sin: (rows, R / 2); dimensions beyond R stay as they are.

    A pair is (i, i + R / 2), or (2i, 2i + 1) with `neighbours`.
    """
    half = cos.shape[1]
    wide, cos, sin = (one.astype(np.float32) for one in (x, cos[:, None], sin[:, None]))
    first = slice(0, 2 * half, 2) if neighbours else slice(0, half)
    second = slice(1, 2 * half, 2) if neighbours else slice(half, 2 * half)
    turned = wide.copy()
    with np.errstate(all="ignore"):
        turned[..., first] = wide[..., first] * cos - wide[..., second] * sin
        turned[..., second] = wide[..., second] * cos + wide[..., first] * sin
    return turned
