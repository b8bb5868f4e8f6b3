"""Attention operators of com.microsoft: projections, masks, caches and rotary positions around ONNX's Attention.

Q, K and V have shape (batch, tokens, heads x head size), caches (batch, heads, tokens, head size).
"""

from functools import reduce
from operator import add
from typing import NamedTuple

import numpy as np

from toolchain.onnx_nodes.parts import Decomposition, Tensor

_MASKED = -10000.0
"""Default bias on the score of a masked key."""


class BatchSizes(NamedTuple):
    """Sizes of a batch: queries, new keys, tokens of the past."""

    batch: int
    queries: int
    keys: int
    past: int

    @property
    def total(self) -> int:
        """Number of keys, past and new."""
        return self.past + self.keys


def _split(parts: Decomposition, x: Tensor, axis: int, sizes: list[int]) -> list[Tensor]:
    return parts.several(len(sizes), "Split", x, sizes, axis=axis)


# -- masks -------------------------------------------------------------------------------------------------------------


def _causal(parts: Decomposition, sizes: BatchSizes, window: int = -1) -> Tensor:
    """Return the causal mask (queries, keys): 0 for visible keys, the lowest number for keys after the query or at
    least `window` tokens before it."""
    distance = np.arange(sizes.total) - (np.arange(sizes.queries)[:, None] + sizes.past)
    visible = (distance <= 0) & ((distance > -window) if window > 0 else True)
    return parts.constant(np.where(visible, 0, np.finfo(parts.kind).min).astype(parts.kind))


def _padding(parts: Decomposition, index: int, sizes: BatchSizes, input_name: str) -> Tensor:
    """Return the bias of a key mask on the scores: (batch, 1, 1 or queries, keys).

    The mask has 1 for each valid key, (batch, keys) or (batch, queries, keys), or holds the number of leading valid
    keys.
    """
    node, shape, kind = parts.node, parts.node.shape(index), parts.kind
    mask = parts.input(index)
    if shape == (sizes.batch,):
        mask = parts.constant(np.arange(sizes.total, dtype=np.int32).reshape(1, -1)) < mask.reshape(-1, 1)
        shape = (sizes.batch, sizes.total)
    if shape not in ((sizes.batch, sizes.total), (sizes.batch, sizes.queries, sizes.total)):
        node.refuse(
            f"shape {list(shape)} of {input_name}: supported are (batch), (batch, keys) and (batch, queries, keys), "
            f"here ({sizes.batch}), ({sizes.batch}, {sizes.total}) and ({sizes.batch}, {sizes.queries}, {sizes.total})"
        )
    added = (1 - mask.cast(kind)) * float(node.attribute("mask_filter_value", _MASKED))
    return added.reshape(sizes.batch, 1, 1 if len(shape) == 2 else sizes.queries, sizes.total)


# -- ONNX's operator ---------------------------------------------------------------------------------------------------


def _attend(
    parts: Decomposition, operands: list[Tensor], biases: list[Tensor], past: list[Tensor], presents: list[int], *,
    heads: int, kv_heads: int, causal: bool = False, softcap: float = 0.0,
) -> list[Tensor]:  # fmt: skip
    """Compose the result, and return present keys and values if they are needed. `biases`: of the scores; `presents`:
    output indices."""
    node, scale = parts.node, float(parts.node.attribute("scale", 0.0))
    attributes = {"q_num_heads": heads, "kv_num_heads": kv_heads} | ({"is_causal": 1} if causal else {})
    numbers = ({"scale": scale} if scale else {}) | ({"softcap": softcap} if softcap else {})
    bias = reduce(add, biases) if biases else None
    outputs = parts.several(3 if past else 1, "Attention", *operands, bias, *past, **attributes, **numbers)
    parts.result("Identity", outputs[0])
    if not past and any(node.gives(index) for index in presents):
        return [x.reshape(0, 0, kv_heads, -1).transpose(0, 2, 1, 3) for x in operands[1:]]  # the layout of a cache
    return outputs[1:]


def packed(parts: Decomposition) -> None:
    """Compose Attention: one product computes Q, K and V; past and present hold keys and values in one tensor."""
    node = parts.node
    if node.has(6):
        node.refuse("input past_sequence_length is not supported: export the model without shared buffers")
    batch, steps = node.shape(0)[:2]
    heads, width = int(node.attribute("num_heads")), node.shape(1)[1]
    third = width // 3
    widths = [int(size) for size in node.attribute("qkv_hidden_sizes", [third, third, width - 2 * third])]
    product = parts.plus(parts.input(0) @ parts.input(1), 2)
    past: list[Tensor] = []
    if node.has(4):
        shape = node.shape(4)[1:]
        past = [half.reshape(*shape) for half in _split(parts, parts.input(4), 0, [1, 1])]
    sizes = BatchSizes(batch, steps, steps, node.shape(4)[3] if past else 0)
    biases, causal = _biases(parts, sizes, 3, "mask_index")
    present = _attend(
        parts, _split(parts, product, 2, widths), biases, past, [1], heads=heads, kv_heads=heads, causal=causal
    )
    if node.gives(1):
        parts.result("Concat", *(parts.make("Unsqueeze", half, [0]) for half in present), axis=0, index=1)


def multi_head(parts: Decomposition) -> None:
    """Compose MultiHeadAttention: Q, K and V are inputs, keys and values possibly in the layout of a cache."""
    node = parts.node
    heads = int(node.attribute("num_heads"))
    for index, name in ((8, "past_sequence_length"), (9, "cache_indirection")):
        if node.has(index):
            node.refuse(f"input {name} is not supported: export the model without shared buffers")
    if node.gives(3):
        node.refuse("output qk is not supported")
    if len(node.shape(0)) != 3 or not node.has(1) or not node.has(2):
        node.refuse("packed queries, keys and values are not supported: export the model with one input for each")
    batch, queries, width = node.shape(0)
    operands = [parts.input(index) for index in range(3)]
    keys, wide = _length_and_width(parts, 1), _length_and_width(parts, 2)[1]
    for index in (1, 2):
        if len(node.shape(index)) == 4:
            turned = operands[index].transpose(0, 2, 1, 3)
            operands[index] = turned.reshape(batch, *_length_and_width(parts, index))
    if node.has(3):
        biases = _split(parts, parts.input(3), 0, [width, keys[1], wide])
        operands = [operand + bias for operand, bias in zip(operands, biases, strict=True)]
    past = [parts.input(index) for index in (6, 7) if node.has(index)]
    sizes = BatchSizes(batch, queries, keys[0], node.shape(6)[2] if past else 0)
    biases, causal = _biases(parts, sizes, 4, "key_padding_mask")
    _presents(parts, _attend(parts, operands, biases, past, [1, 2], heads=heads, kv_heads=heads, causal=causal))


def _biases(parts: Decomposition, sizes: BatchSizes, mask: int, input_name: str) -> tuple[list[Tensor], bool]:
    """Return (mask, attention bias and, with a past, causal mask; whether the operator adds the causal mask itself).
    `mask`: input index."""
    causal, biases = bool(parts.node.attribute("unidirectional", 0)), []
    if parts.node.has(mask):
        biases.append(_padding(parts, mask, sizes, input_name))
    if parts.node.has(5):
        biases.append(parts.input(5))
    if causal and sizes.past:
        biases.append(_causal(parts, sizes))
    return biases, causal and not sizes.past


def _length_and_width(parts: Decomposition, index: int) -> tuple[int, int]:
    """Return (tokens, heads x head size) of keys or values."""
    shape = parts.node.shape(index)
    return (shape[1], shape[2]) if len(shape) == 3 else (shape[2], shape[1] * shape[3])


def _presents(parts: Decomposition, present: list[Tensor]) -> None:
    for index, x in enumerate(present, 1):
        if parts.node.gives(index):
            parts.result("Identity", x, index=index)


def grouped(parts: Decomposition) -> None:
    """Compose GroupQueryAttention for requests of equal length: each query sees the past and new keys up to its own."""
    node = parts.node
    heads, kv_heads = int(node.attribute("num_heads")), int(node.attribute("kv_num_heads"))
    for index, name in enumerate(("head_sink", "k_scale", "v_scale", "q_norm_weight",
                                  "k_norm_weight", "query_seqlens"), 11):  # fmt: skip
        if node.has(index):
            node.refuse(f"input {name} is not supported")
    batch, steps, width = node.shape(0)
    if node.has(1):
        operands = [parts.input(index) for index in range(3)]
        size = width // heads
    else:
        size = width // (heads + 2 * kv_heads)
        operands = _split(parts, parts.input(0), 2, [heads * size, kv_heads * size, kv_heads * size])
    past = [parts.input(index) for index in (3, 4) if node.has(index) and node.shape(index)[2]]
    sizes = BatchSizes(batch, steps, steps, node.shape(3)[2] if past else 0)
    lengths = node.constant(5)
    if past and batch > 1 and lengths is None:
        node.refuse("requests of several lengths: seqlens_k must be constant where there is a past; use a batch of 1")
    if lengths is not None and past and np.any(lengths != sizes.total - 1):
        node.refuse(
            f"input seqlens_k holds {lengths.reshape(-1).tolist()}: supported is {sizes.total - 1}, past and new"
        )
    if node.attribute("do_rotary", 0):
        operands[:2] = [
            _rotate(parts, operand, count, steps, sizes.past)
            for operand, count in zip(operands, (heads, kv_heads), strict=False)
        ]
    biases = [parts.input(10)] if node.has(10) else []
    window = int(node.attribute("local_window_size", -1))
    plain = not past and window <= 0
    if not plain:
        biases.append(_causal(parts, sizes, window))
    present = _attend(
        parts, operands, biases, past, [1, 2],
        heads=heads, kv_heads=kv_heads, causal=plain, softcap=float(node.attribute("softcap", 0.0)),
    )  # fmt: skip
    _presents(parts, present)


# -- rotation ----------------------------------------------------------------------------------------------------------


def _rotate(parts: Decomposition, x: Tensor, heads: int, steps: int, first: int) -> Tensor:
    """Apply rotary positions to queries or keys; the positions are an input or count from `first`."""
    node = parts.node
    places = parts.optional(9) or np.tile(np.arange(first, first + steps, dtype=np.int64), (node.shape(0)[0], 1))
    return parts.make(
        "RotaryEmbedding", x, parts.input(7), parts.input(8), places,
        interleaved=int(node.attribute("rotary_interleaved", 0)), num_heads=heads,
    )  # fmt: skip


def rotary(parts: Decomposition) -> None:
    """Compose RotaryEmbedding; a single position is that of the first token."""
    node, shape = parts.node, parts.node.shape(0)
    if float(node.attribute("scale", 1.0)) != 1.0:
        node.refuse(f"attribute scale={node.attribute('scale')}: supported is 1")
    batch, steps = (shape[0], shape[1]) if len(shape) == 3 else (shape[0], shape[2])
    places = parts.input(1)
    if node.shape(1) == (1,):
        places = places + np.tile(np.arange(steps, dtype=np.int64), (batch, 1))
    rotated = int(node.attribute("rotary_embedding_dim", 0))
    attributes = {"interleaved": int(node.attribute("interleaved", 0))}
    if len(shape) == 3:
        heads = int(node.attribute("num_heads", 0))
        attributes["num_heads"] = heads or shape[2] // (rotated or 2 * node.shape(2)[1])
    if rotated:
        attributes["rotary_embedding_dim"] = rotated
    parts.result("RotaryEmbedding", parts.input(0), parts.input(2), parts.input(3), places, **attributes)
