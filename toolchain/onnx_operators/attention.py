"""Attention: products, a mask and a softmax; scores and their softmax are in fp32 for every type of Q, K and V.

Attention of whole tensors is one ATTN_T per batch; scores, softmax and weights never leave the scratchpad. Keys and
values have one row per token with all heads side by side, as in ONNX's 3-D form, or rows per head, as in a past and in
the 4-D form. If the order matters, the queries correspond to the last keys.

The past may be a cache [B, H, T_max, D] of the device (docs/bit-widths.md, "KV cache"), which also replaces the
present: new keys and values are appended at the position, and the queries see all keys up to it. Codes
(`toolchain.onnx_frontend.qdq_graph`) are appended unchanged.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from npu_device.abi.opcodes import DataType
from npu_device.kv_quant.block import pack_block, unpack_block
from toolchain.ir.data_types import FLOATS
from toolchain.ir.graph import Attribute, Role, TensorIR, Values
from toolchain.onnx_model.node import Node
from toolchain.onnx_operators.copies import broadcast_tensor, copy, steps, transpose_tensor
from toolchain.onnx_operators.elementwise import apply, apply_unary, cast_to
from toolchain.onnx_operators.linear import product


class AttentionSizes(NamedTuple):
    """Sizes of Q, K and V; `keys` includes those of the past."""

    batch: int
    heads: int
    kv_heads: int
    queries: int
    keys: int
    past: int
    width: int
    """Size of a head of Q and K."""
    value_width: int

    @property
    def scores(self) -> tuple[int, int, int, int]:
        return self.batch, self.heads, self.queries, self.keys


class QueryWindow(NamedTuple):
    """Window of a query before and after its own position; -1 for unlimited."""

    left: int
    right: int


def sight(node: Node) -> QueryWindow:
    """Return the window given by is_causal and the window sizes."""
    left, right = (int(node.attribute(f"{side}_window_size", -1)) for side in ("left", "right"))
    return QueryWindow(left, 0 if node.attribute("is_causal", 0) else right)


def is_supported(node: Node, s: AttentionSizes) -> bool:
    """Check whether ATTN_T supports the attention: no mask, heads of equal size and type, and a supported window."""
    kinds = [node.kind(node.info(index), node.proto.input[index]) for index in range(3)]
    if node.has(3) or s.width != s.value_width:
        return False
    if kinds[0] not in FLOATS or kinds[1] is not kinds[2]:
        return False
    left, right = sight(node)
    last = s.queries + s.past
    return (right < 0 and left < 0) or (right < 0 and last == s.keys) or (right == 0 and last <= s.keys)


def _cap(node: Node) -> dict[str, Attribute]:
    """Return the attribute for the bound of the scores; empty without a bound."""
    cap = float(node.attribute("softcap", 0.0))
    return {"softcap": cap} if cap else {}


def attend(node: Node, s: AttentionSizes, k: TensorIR, v: TensorIR, scale: float) -> None:
    """Emit the layer; 4-D Q and result are converted to one row per query."""
    q, out, order = node.tensor(0), node.output(), (0, 2, 1, 3)
    four = len(q.shape) == 4
    rows = transpose_tensor(node, q, order) if four else q
    result = node.temporary((s.batch, s.queries, s.heads, s.width), out.dtype) if four else out
    left, right = sight(node)
    keys = s.queries + s.past if right == 0 else s.keys
    causal: dict[str, Attribute] = {"causal": int(right == 0), "window": left + 1 if left >= 0 else 0}
    node.layer(
        "ATTN_T", [rows, k, v], result, batch=s.batch, m=s.queries, n=s.heads * s.width, heads=s.heads,
        kv_heads=s.kv_heads, keys=keys, t_max=s.keys if len(k.shape) == 4 else 0, scale=scale, **causal, **_cap(node),
    )  # fmt: skip
    if four:
        transpose_tensor(node, result, order, out)


POSITION = "position"
"""Tensor (INT32) whose first element is the position of a step's first token."""
HEADS = ".heads"
"""Infix between a cache's name and the first head of one of its parts."""
SCALES = ".scales"
"""Suffix of a key cache's name: f32 scales of its heads, then of the value cache's."""
_PAST = ((4, 1), (5, 2))
"""(input, output) of keys, then of values."""


def has_cache_past(node: Node) -> bool:
    """Check whether the past of an Attention is a cache."""
    return _has_past(node) and node.tensor(4).role is Role.KV


def _has_past(node: Node) -> bool:
    """Check whether past keys and values exist; those of a first step are empty."""
    return node.has(4) and 0 not in node.info(4).shape


def cached_attention(node: Node) -> None:
    """Emit a KV_UPDATE and an ATTN_T for each part of the cache. ModelError: ATTN_T does not support the attention."""
    for index, name in ((3, "attn_mask"), (6, "nonpad_kv_seqlen")):
        if node.has(index):
            node.refuse(f"input {name} with a cache of keys and values: only the causal mask is supported")
    if node.attribute("right_window_size", -1) > 0:
        node.refuse("right_window_size is not supported with a cache of keys and values")
    if len(node.info(0).shape) != 3:
        node.refuse("with a cache Q, K and V must have three dimensions: batch, tokens, heads x size")
    batch, tokens, _ = node.info(0).shape
    if batch != 1:
        node.refuse(f"batch {batch}: a cache serves one request")
    if tokens > 1 and not node.attribute("is_causal", 0):
        node.refuse("is_causal 0 with several tokens and a cache: only causal attention is supported")
    keys, values = (node.tensor(past) for past, _ in _PAST)
    heads, (_, kv_heads, _, size) = int(node.attribute("q_num_heads", 0)), keys.shape
    sizes = [node.info(index).shape[-1] for index in range(3)]
    if not heads or heads % kv_heads or sizes != [heads * size, kv_heads * size, kv_heads * size]:
        node.refuse(
            f"Q, K and V of {sizes} elements with {heads} heads: with a cache of {kv_heads} heads of {size} they "
            f"must have q_num_heads x {size}, {kv_heads * size} and {kv_heads * size}; q_num_heads is a multiple"
        )
    if values.shape != keys.shape:
        node.refuse(f"past_key {keys.id} and past_value {values.id} must have heads of one size")
    index = _next_layer(node)
    for first, stored in _parts(node, keys, values):
        _attend_to(node, index, first, stored, (tokens, heads // kv_heads * size, kv_heads))
    for cache, (_, present) in zip((keys, values), _PAST, strict=True):
        if present < len(node.proto.output) and node.proto.output[present]:
            node.view(cache, cache.shape, node.proto.output[present])


def parts_of(tensors: Mapping[str, TensorIR], past: str) -> list[TensorIR]:
    """Return the tensors that hold the heads of a cache, in order: one, or one per width."""
    names = [name for name in tensors if name.startswith(past + HEADS)]
    tensors_by_head = {int(name.removeprefix(past + HEADS)): tensors[name] for name in names}
    return [tensors_by_head[first] for first in sorted(tensors_by_head)] or [tensors[past]]


def _parts(node: Node, keys: TensorIR, values: TensorIR) -> Iterator[tuple[int, tuple[TensorIR, TensorIR]]]:
    """Yield (first head, (keys, values)) of the parts of a cache."""
    first = 0
    for pair in zip(*(parts_of(node.graph.tensors, cache.id) for cache in (keys, values)), strict=True):
        yield first, pair
        first += pair[0].shape[1]


def _attend_to(
    node: Node, index: int, first: int, stored: tuple[TensorIR, TensorIR], sizes: tuple[int, int, int]
) -> None:
    """Append to a part of a layer's caches and attend to it. `sizes`: tokens, elements of the queries per KV head, KV
    heads of the layer."""
    (tokens, share, all_heads), (_, count, t_max, size) = sizes, stored[0].shape
    position = node.graph.tensors[POSITION]
    scales = _scales(node, node.tensor(4), stored[0], first)

    def columns(x: TensorIR, width: int) -> TensorIR:
        return x if count == all_heads else _columns(node, x, first * width, count * width, tokens)

    new = [columns(node.tensor(1 + side), size) for side in (0, 1)]
    converted = scales[:2] if new[0].dtype is not stored[0].dtype else []
    node.layer(
        "KV_UPDATE", [*new, position, *converted], stored, m=tokens, n=count * size, heads=count, t_max=t_max,
        qbits_kv=stored[0].qbits, kv_layer=index,
    )  # fmt: skip
    window = int(node.attribute("left_window_size", -1)) + 1
    zero1, zero2 = node.attribute("zero_kv", (0, 0))
    out = node.graph.tensors.get(node.proto.output[0]) or node.output()
    node.layer(
        "ATTN_T", [columns(node.tensor(0), share), *stored, position, *scales[2:]], columns(out, share), m=tokens,
        n=count * share, heads=count * share // size, kv_heads=count, t_max=t_max,
        scale=float(node.attribute("scale", 0.0)) or size**-0.5, window=window, **_cap(node),
        **({"zero1": zero1, "zero2": zero2} if zero1 or zero2 else {}),
    )  # fmt: skip


def _columns(node: Node, x: TensorIR, first: int, count: int, rows: int) -> TensorIR:
    """Return a view of columns `first` to `first + count`."""
    pitch = x.pitch or x.shape[-1]
    columns = replace(
        x, id=f"{x.id}.columns{first}", shape=(rows, count), view_of=x.view_of or x.id, offset=x.offset + first,
        pitch=pitch if rows > 1 else 0,
    )  # fmt: skip
    node.graph.tensors[columns.id] = columns
    return columns


def _next_layer(node: Node) -> int:
    """Return the index of the next decoder layer."""
    return 1 + max((layer.integer("kv_layer", -1) for layer in node.graph.layers), default=-1)


def _scales(node: Node, keys: TensorIR, part: TensorIR, first: int) -> list[TensorIR]:
    """Return the scales (of keys, of values, of both) for an integer or encoded cache part; empty for any other."""
    count = part.shape[1]
    if part.dtype is DataType.ENCODED:
        block, dims = node.graph.tensors[keys.id + SCALES], (part.shape[1], part.shape[3])
        sides = unpack_block(node.graph.constants[block.id].tobytes(), *dims, block.id)
        halves = [np.frombuffer(pack_block([side], *dims), np.int32) for side in sides]
        return [*(node.weight(half, DataType.INT32) for half in halves), block]
    if scales := node.attribute("scale_kv"):
        head_scales = [node.weight(np.full(count, scale), DataType.FP32) for scale in scales]
        return [*head_scales, node.weight(np.repeat(scales, count), DataType.FP32)]
    if table := node.graph.tensors.get(f"{keys.id}{SCALES}.{first}"):  # per-token scales, computed at the append
        return [*(_side(node, table, side) for side in (0, 1)), table]
    kv_scales = node.graph.tensors.get(keys.id + SCALES)
    if part.dtype in FLOATS or kv_scales is None:
        return []
    half = kv_scales.elements // 2
    values = node.graph.constants[kv_scales.id].reshape(-1)
    of_keys, of_values = (values[start + first : start + first + count] for start in (0, half))
    if count == half:
        return [node.weight(of_keys, DataType.FP32), node.weight(of_values, DataType.FP32), kv_scales]
    return [
        node.weight(side_scales, DataType.FP32)
        for side_scales in (of_keys, of_values, np.concatenate((of_keys, of_values)))
    ]


def _side(node: Node, table: TensorIR, side: int) -> TensorIR:
    """Return a view of the scales of keys (0) or values (1) in a table of both."""
    _, heads, t_max = table.shape
    view = replace(table, id=f"{table.id}.{side}", shape=(heads, t_max), view_of=table.id, offset=side * heads * t_max)
    node.graph.tensors[view.id] = view
    return view


def attention(node: Node) -> None:
    """Emit softmax(cap(Q K^T scale) + mask) V, with past before new keys and values: as one ATTN_T if the device
    supports it, else as products with a softmax between them."""
    if has_cache_past(node):
        cached_attention(node)
        return
    if node.has(6):
        node.refuse("input nonpad_kv_seqlen is not supported")
    if len(node.proto.output) > 3 and node.proto.output[3]:
        node.refuse("output qk_matmul_output is not supported")
    s = _sizes(node)
    scale = float(node.attribute("scale", 0.0)) or s.width**-0.5
    if is_supported(node, s):
        attend(node, s, _rows(node, 1), _rows(node, 2), scale)
        return
    q = _heads(node, 0, s.heads)
    k, v = (_with_past(node, index, _heads(node, index, s.kv_heads)) for index in (1, 2))
    scores, seeing = _masked(node, s, _scores(node, s, q, k, scale))
    weights = node.temporary(s.scores, DataType.FP32)
    node.layer("SOFTMAX", [scores], weights, m=scores.elements // s.keys, n=s.keys)
    weights = cast_to(node, weights, q.dtype)
    out = node.output()
    four = len(node.info(0).shape) == 4
    rows = (s.batch, s.heads, s.queries, s.value_width)
    mixed = out if four and seeing is None else node.temporary(rows, q.dtype)
    _shared(node, s, weights, v, mixed, s.value_width, s.keys, nk=False)
    if seeing is not None:
        weighted, mixed = mixed, out if four else node.temporary(rows, q.dtype)
        share = broadcast_tensor(node, cast_to(node, seeing, q.dtype), (*rows[:3], 1))
        apply(node, "MUL", weighted, share, mixed)
    if not four:
        transpose_tensor(node, mixed, (0, 2, 1, 3), node.view(out, (s.batch, s.queries, s.heads, s.value_width)))


def _sizes(node: Node) -> AttentionSizes:
    """Return the sizes of Q, K and V, including the past."""
    (batch, heads, queries, width), (_, kv_heads, new, _), (*_, value_width) = (
        _shape(node, index, name) for index, name in enumerate(("q_num_heads", "kv_num_heads", "kv_num_heads"))
    )
    if heads % kv_heads:
        node.refuse(f"{heads} heads of Q: must be a multiple of the {kv_heads} heads of K")
    past = node.info(4).shape[2] if _has_past(node) else 0
    return AttentionSizes(batch, heads, kv_heads, queries, past + new, past, width, value_width)


def _shape(node: Node, index: int, name: str) -> tuple[int, int, int, int]:
    """Return (batch, heads, length, size of a head)."""
    shape = node.info(index).shape
    if len(shape) == 4:
        batch, heads, length, size = shape
        return batch, heads, length, size
    heads = int(node.attribute(name, 0))
    if not heads:
        node.refuse(f"attribute {name} is needed where the inputs have three dimensions")
    return shape[0], heads, shape[1], shape[2] // heads


def _rows(node: Node, index: int) -> TensorIR:
    """Return K or V for ATTN_T: unchanged, or as rows per head if there is a past or a present."""
    if len(node.info(index).shape) == 3 and not (_has_past(node) or any(node.proto.output[1:3])):
        return node.tensor(index)
    return _with_past(node, index, _heads(node, index, int(node.attribute("kv_num_heads", 0))))


def _heads(node: Node, index: int, heads: int) -> TensorIR:
    """Return Q, K or V as (batch, heads, length, size)."""
    x = node.tensor(index)
    if len(x.shape) == 4:
        return x
    batch, length, width = x.shape
    return transpose_tensor(node, node.view(x, (batch, length, heads, width // heads)), (0, 2, 1, 3))


def _with_past(node: Node, index: int, new: TensorIR) -> TensorIR:
    """Append K or V to the past; the result is an output if the node names it."""
    named = index < len(node.proto.output) and bool(node.proto.output[index])
    parts = ([node.tensor(index + 3)] if _has_past(node) else []) + [new]
    if len(parts) == 1 and not named:
        return new
    length = sum(part.shape[2] for part in parts)
    shape = (*new.shape[:2], length, new.shape[3])
    joined = node.output(index) if named else node.temporary(shape, new.dtype)
    at = 0
    for part in parts:
        copy(node, part, joined, part.shape, steps(part.shape), steps(shape), at_out=at * steps(shape)[2])
        at += part.shape[2]
    return joined


def _shared(
    node: Node, s: AttentionSizes, a: TensorIR, b: TensorIR, out: TensorIR, n: int, k: int, *, nk: bool
) -> None:
    """Emit one product per head of K and V; the heads of Q that share it are stacked as rows."""
    m = s.heads // s.kv_heads * s.queries
    batch = s.batch * s.kv_heads
    product(node, [a, b], out, (m, n, k), batch=batch, step0=m * k, step1=k * n, in1_nk=int(nk))


def _scores(node: Node, s: AttentionSizes, q: TensorIR, k: TensorIR, scale: float) -> TensorIR:
    raw, cap = node.temporary(s.scores, DataType.FP32), float(node.attribute("softcap", 0.0))
    _shared(node, s, q, k, raw, s.keys, q.shape[-1], nk=True)
    scaled = apply(node, "MUL", raw, node.scalar(scale / cap if cap else scale, DataType.FP32))
    if not cap:
        return scaled
    bounded = apply_unary(node, "TANH", scaled, node.temporary(s.scores, DataType.FP32))
    return apply(node, "MUL", bounded, node.scalar(cap, DataType.FP32))


def _masked(node: Node, s: AttentionSizes, scores: TensorIR) -> tuple[TensorIR, TensorIR | None]:
    """Add the masks to the scores.

    A query without visible keys has a result of 0: its scores stay unmasked, and the second tensor has 0 for it and 1
    for others, shape (..., queries or 1, 1), or is None if every query sees a key.
    """
    added, seeing = _constant_mask(node, s) if not node.has(3) or node.constant(3) is not None else _mask(node, s)
    return scores if added is None else apply(node, "ADD", scores, added), seeing


def _constant_mask(node: Node, s: AttentionSizes) -> tuple[TensorIR | None, TensorIR | None]:
    """Return constant masks in the form of `_mask`; None for a mask without effect."""
    total = np.where(_visible(node, s), np.float32(0), -np.inf)
    mask = node.constant(3) if node.has(3) else None
    if mask is not None:
        border = np.zeros((*mask.shape[:-1], s.keys - mask.shape[-1]), mask.dtype)
        if mask.dtype == np.bool_:
            mask = np.where(np.concatenate((mask, border), -1), np.float32(0), -np.inf)
        else:
            mask = np.concatenate((mask, border - np.inf), -1)
        total = total + mask.astype(np.float32)
    seeing = ~np.isneginf(total.max(axis=-1, keepdims=True))
    total = np.where(seeing, total, 0)
    return (
        node.weight(total, DataType.FP32) if total.any() else None,
        None if seeing.all() else node.weight(seeing, DataType.FP32),
    )


def _mask(node: Node, s: AttentionSizes) -> tuple[TensorIR, TensorIR]:
    """Return (mask added to scores (FP32), whether each query sees a key (UINT8, a column)); mask rows of queries
    without a key are 0."""
    mask, minus_infinity = _whole_mask(node, node.tensor(3), s), node.scalar(-math.inf, DataType.FP32)
    added = node.temporary(mask.shape, DataType.FP32)
    if node.info(3).type == "BOOL":
        branches = (
            broadcast_tensor(node, operand, mask.shape) for operand in (node.scalar(0, DataType.FP32), minus_infinity)
        )
        node.layer("ELTWISE", [mask, *branches], added, function="WHERE", m=1, n=mask.elements)
    else:
        added = cast_to(node, mask, DataType.FP32)
    visible = _visible(node, s)
    if not visible.all():
        added = apply(node, "ADD", added, node.weight(np.where(visible, 0, -math.inf), DataType.FP32))
    column = (*added.shape[:-1], 1)
    maxima, lowest = (node.temporary(column, DataType.FP32) for _ in range(2))
    seeing = node.temporary(column, DataType.UINT8)
    node.layer("REDUCE", [added], maxima, function="MAX", m=maxima.elements, n=s.keys)
    apply(node, "GREATER", maxima, minus_infinity, seeing)
    branches = (broadcast_tensor(node, operand, column) for operand in (minus_infinity, node.scalar(0, DataType.FP32)))
    node.layer("ELTWISE", [seeing, *branches], lowest, function="WHERE", m=1, n=maxima.elements)
    return apply(node, "MAX", added, lowest), seeing


def _whole_mask(node: Node, mask: TensorIR, s: AttentionSizes) -> TensorIR:
    """Extend the mask to all keys; keys after its end are hidden."""
    missing = s.keys - mask.shape[-1]
    if not missing:
        return mask
    shape = (*mask.shape[:-1], s.keys)
    full, bools = node.temporary(shape, mask.dtype), node.info(3).type == "BOOL"
    border = node.weight(np.full((missing,), 0 if bools else -math.inf), mask.dtype)
    border_shape = (*shape[:-1], missing)
    copy(node, border, full, border_shape, (*[0] * (len(shape) - 1), 1), steps(shape), at_out=mask.shape[-1])
    copy(node, mask, full, mask.shape, steps(mask.shape), steps(shape))
    return full


def _visible(node: Node, s: AttentionSizes) -> Values:
    """Return which keys each query sees by is_causal and the windows, shape (queries, keys)."""
    distance = np.arange(s.queries)[:, None] + s.past - np.arange(s.keys)
    mask = np.ones(distance.shape, np.bool_)
    left, right = sight(node)
    if left >= 0:
        mask &= distance <= left
    if right >= 0:
        mask &= -distance <= right
    return mask
