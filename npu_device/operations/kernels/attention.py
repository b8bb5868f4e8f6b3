"""ATTN_T and ROPE (docs/numerics.md; operands: `npu_device.operations.macro`)."""

import numpy as np

from npu_device.operations.kernels.elements import Values
from npu_device.operations.kernels.gemm import multiply, product

SCORES = 1 << 22
"""Scores in memory at a time."""
_NO_CAP = np.float32(0)


def attention(
    q: Values, k: Values, v: Values, scale: np.float32, position: Values, causal: bool, window: int, tile_n: int,
    cap: np.float32 = _NO_CAP,
) -> Values:  # fmt: skip
    """Compute softmax(q k^T scale) v per head, fp32. `cap`: scores are cap * tanh(scores / cap); 0: they have no bound.

    q: (heads, rows, D), k and v: (heads, keys, D); position: of each row among the keys. `causal`: no keys beyond it;
    `window`: only the latest so many up to it, 0: all. Scores are sums over all of D in fp32, times the scale in fp32;
    softmax of a whole row in fp64, rounded to fp32; then sums over tiles of `tile_n` keys in fp32.
    """
    keys = k.shape[1]
    step = max(1, SCORES // keys)
    result = np.empty(q.shape[:2] + v.shape[2:], np.float32)
    for head in range(len(q)):
        for row in range(0, q.shape[1], step):
            part = slice(row, row + step)
            mask = _visible(position[part], keys, causal, window)
            result[head, part] = _attend(q[head, part], k[head], v[head], scale, mask, tile_n, cap)
    return result


def _visible(position: Values, keys: int, causal: bool, window: int) -> Values:
    """Return the attention mask: the keys that each row sees, shape (rows, keys)."""
    key = np.arange(keys)[None]
    mask = np.ones((len(position), keys), bool)
    if causal:
        mask &= key <= position[:, None]
    if window:
        mask &= key > position[:, None] - window
    return mask


def _attend(
    q: Values, k: Values, v: Values, scale: np.float32, mask: Values, tile_n: int, cap: np.float32
) -> Values:  # fmt: skip
    with np.errstate(all="ignore"):
        scores = product(q, k.T) * scale
        if cap:
            scores = (np.tanh((scores / cap).astype(np.float64))).astype(np.float32) * cap
        scores = np.where(mask, scores, np.float32(-np.inf)).astype(np.float64)
        weights = np.exp(scores - scores.max(axis=1, keepdims=True))
        weights = (weights / weights.sum(axis=1, keepdims=True)).astype(np.float32)
        return multiply(weights, v, tile_n)


def rope(x: Values, cos: Values, sin: Values, neighbours: bool) -> Values:
    """Rotate pairs, in fp32. x: (rows, heads, D), cos and sin: (rows, R / 2); dimensions beyond R stay as they are.

    A pair is (i, i + R / 2), or (2i, 2i + 1) with `neighbours`.
    """
    half = cos.shape[1]
    wide, cos, sin = (array.astype(np.float32) for array in (x, cos[:, None], sin[:, None]))
    first = slice(0, 2 * half, 2) if neighbours else slice(0, half)
    second = slice(1, 2 * half, 2) if neighbours else slice(half, 2 * half)
    turned = wide.copy()
    with np.errstate(all="ignore"):
        turned[..., first] = wide[..., first] * cos - wide[..., second] * sin
        turned[..., second] = wide[..., second] * cos + wide[..., first] * sin
    return turned
