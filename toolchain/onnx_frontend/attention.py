"""Attention: products, a mask and a softmax; scores and their softmax are in fp32 for every type of Q, K and V."""

import math

import numpy as np

from npu_device.abi.opcodes import DataType
from toolchain.ir.graph import TensorIR, Values
from toolchain.onnx_frontend import attention_command, cached_attention
from toolchain.onnx_frontend.attention_command import Sizes, sight
from toolchain.onnx_frontend.copies import copy, expanded, steps, transposed
from toolchain.onnx_frontend.elementwise import apply
from toolchain.onnx_frontend.linear import product
from toolchain.onnx_frontend.node import Node

_LOWEST = float(np.finfo(np.float32).min)
"""A score that no weight is left of; infinity would make a row without keys undefined."""


def attention(node: Node) -> None:
    """softmax(cap(Q K^T scale) + mask) V, with keys and values of the past before the new ones: one command where there
    is one that does it, else products and a softmax between them."""
    if cached_attention.applies(node):
        cached_attention.attention(node)
        return
    if node.has(6):
        node.refuse("input nonpad_kv_seqlen is not supported")
    if len(node.proto.output) > 3 and node.proto.output[3]:
        node.refuse("output qk_matmul_output is not supported")
    s = _sizes(node)
    scale = float(node.attribute("scale", 0.0)) or s.width**-0.5
    if attention_command.possible(node, s):
        attention_command.attend(node, s, _rows(node, 1), _rows(node, 2), scale)
        return
    q = _heads(node, 0, s.heads)
    k, v = (_with_past(node, index, _heads(node, index, s.kv_heads)) for index in (1, 2))
    weights = _softmax(node, s, _scores(node, s, q, k, scale))
    if q.dtype is not DataType.FP32:
        narrow = node.temporary(s.scores, q.dtype)
        node.layer("ELTWISE", [weights], narrow, function="CAST", m=1, n=weights.elements)
        weights = narrow
    out = node.output()
    four = len(node.info(0).shape) == 4
    mixed = out if four else node.temporary((s.batch, s.heads, s.queries, s.value_width), q.dtype)
    _shared(node, s, weights, v, mixed, s.value_width, s.keys, nk=False)
    if not four:
        transposed(node, mixed, (0, 2, 1, 3), node.view(out, (s.batch, s.queries, s.heads, s.value_width)))


def _sizes(node: Node) -> Sizes:
    """Of Q, K and V with the past."""
    (batch, heads, queries, width), (_, kv_heads, new, _), (*_, value_width) = (
        _shape(node, index, name) for index, name in enumerate(("q_num_heads", "kv_num_heads", "kv_num_heads"))
    )
    if heads % kv_heads:
        node.refuse(f"{heads} heads of Q: must be a multiple of the {kv_heads} heads of K")
    past = node.info(4).shape[2] if node.has(4) else 0
    return Sizes(batch, heads, kv_heads, queries, past + new, past, width, value_width)


def _shape(node: Node, index: int, name: str) -> tuple[int, int, int, int]:
    """Batch, heads, length and size of a head."""
    shape = node.info(index).shape
    if len(shape) == 4:
        batch, heads, length, size = shape
        return batch, heads, length, size
    heads = int(node.attribute(name, 0))
    if not heads:
        node.refuse(f"attribute {name} is needed where the inputs have three dimensions")
    return shape[0], heads, shape[1], shape[2] // heads


def _rows(node: Node, index: int) -> TensorIR:
    """K or V as ATTN_T takes it: as it is, or rows of each head where a past comes before it or is made."""
    if len(node.info(index).shape) == 3 and not (node.has(4) or any(node.proto.output[1:3])):
        return node.tensor(index)
    return _with_past(node, index, _heads(node, index, int(node.attribute("kv_num_heads", 0))))


def _heads(node: Node, index: int, heads: int) -> TensorIR:
    """Q, K or V as (batch, heads, length, size)."""
    x = node.tensor(index)
    if len(x.shape) == 4:
        return x
    batch, length, width = x.shape
    return transposed(node, node.view(x, (batch, length, heads, width // heads)), (0, 2, 1, 3))


def _with_past(node: Node, index: int, new: TensorIR) -> TensorIR:
    """K or V behind those of the past; they are an output too where that is named."""
    named = index < len(node.proto.output) and bool(node.proto.output[index])
    parts = ([node.tensor(index + 3)] if node.has(index + 3) else []) + [new]
    if len(parts) == 1 and not named:
        return new
    length = sum(part.shape[2] for part in parts)
    shape = (*new.shape[:2], length, new.shape[3])
    whole = node.output(index) if named else node.temporary(shape, new.dtype)
    at = 0
    for part in parts:
        copy(node, part, whole, part.shape, steps(part.shape), steps(shape), at_out=at * steps(shape)[2])
        at += part.shape[2]
    return whole


def _shared(node: Node, s: Sizes, a: TensorIR, b: TensorIR, out: TensorIR, n: int, k: int, *, nk: bool) -> None:
    """One product per head of K and V; the heads of Q that share it are rows of it."""
    m = s.heads // s.kv_heads * s.queries
    batch = s.batch * s.kv_heads
    product(node, [a, b], out, (m, n, k), batch=batch, step0=m * k, step1=k * n, in1_nk=int(nk))


def _scores(node: Node, s: Sizes, q: TensorIR, k: TensorIR, scale: float) -> TensorIR:
    raw, scaled = (node.temporary(s.scores, DataType.FP32) for _ in range(2))
    _shared(node, s, q, k, raw, s.keys, q.shape[-1], nk=True)
    cap = float(node.attribute("softcap", 0.0))
    apply(node, "MUL", raw, node.scalar(scale / cap if cap else scale, DataType.FP32), scaled)
    if not cap:
        return scaled
    bounded, capped = (node.temporary(s.scores, DataType.FP32) for _ in range(2))
    node.layer("ELTWISE", [scaled], bounded, function="TANH", m=1, n=scaled.elements)
    apply(node, "MUL", bounded, node.scalar(cap, DataType.FP32), capped)
    return capped


def _softmax(node: Node, s: Sizes, scores: TensorIR) -> TensorIR:
    """Weights of the keys. A row of which a mask of bools leaves nothing is zero."""
    chosen = None
    if node.has(3):
        mask = _whole_mask(node, node.tensor(3), s)
        masked = node.temporary(s.scores, DataType.FP32)
        if node.info(3).type == "BOOL":
            chosen = expanded(node, mask, s.scores)
            low = expanded(node, node.scalar(_LOWEST, DataType.FP32), s.scores)
            node.layer("ELTWISE", [chosen, scores, low], masked, function="WHERE", m=1, n=scores.elements)
        else:
            apply(node, "ADD", scores, _as_fp32(node, mask), masked)
        scores = masked
    seen = _visible(node, s)
    if not seen.all():
        limited = node.temporary(s.scores, DataType.FP32)
        apply(node, "ADD", scores, node.weight(np.where(seen, 0, -math.inf), DataType.FP32), limited)
        scores = limited
    weights = node.temporary(s.scores, DataType.FP32)
    node.layer("SOFTMAX", [scores], weights, m=scores.elements // s.keys, n=s.keys)
    if chosen is None:
        return weights
    kept = node.temporary(s.scores, DataType.FP32)
    apply(node, "MUL", weights, _as_fp32(node, chosen), kept)
    return kept


def _whole_mask(node: Node, mask: TensorIR, s: Sizes) -> TensorIR:
    """The mask, of all keys: those beyond its end are not seen."""
    missing = s.keys - mask.shape[-1]
    if not missing:
        return mask
    shape = (*mask.shape[:-1], s.keys)
    whole, bools = node.temporary(shape, mask.dtype), node.info(3).type == "BOOL"
    border = node.weight(np.full((missing,), 0 if bools else -math.inf), mask.dtype)
    rest = (*shape[:-1], missing)
    copy(node, border, whole, rest, (*[0] * (len(shape) - 1), 1), steps(shape), at_out=mask.shape[-1])
    copy(node, mask, whole, mask.shape, steps(mask.shape), steps(shape))
    return whole


def _as_fp32(node: Node, x: TensorIR) -> TensorIR:
    if x.dtype is DataType.FP32:
        return x
    wide = node.temporary(x.shape, DataType.FP32)
    node.layer("ELTWISE", [x], wide, function="CAST", m=1, n=x.elements)
    return wide


def _visible(node: Node, s: Sizes) -> Values:
    """Which keys each query sees by is_causal and the windows, shape (queries, keys)."""
    distance = np.arange(s.queries)[:, None] + s.past - np.arange(s.keys)
    seen = np.ones(distance.shape, np.bool_)
    left, right = sight(node)
    if left >= 0:
        seen &= distance <= left
    if right >= 0:
        seen &= -distance <= right
    if not seen.any(axis=1).all():
        node.refuse(f"the window leaves query {int(seen.any(axis=1).argmin())} no key: make it wider")
    return seen
