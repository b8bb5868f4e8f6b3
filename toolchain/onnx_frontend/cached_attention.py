"""Attention whose past keys and values are caches [B, H, T_max, D] of the device (specification 55, R11 to R15).

The cache takes the place of the past, and of the present too: new keys and values are appended at the position, and the
queries see everything up to it. Codes (`toolchain.onnx_frontend.qdq_cache`) are appended as they are.
"""

import numpy as np

from npu_device.abi.opcodes import BITS, DataType
from toolchain.ir.graph import Role, TensorIR
from toolchain.onnx_frontend.node import Node

POSITION = "position"
"""The tensor (INT32) whose first element is the position of a step's first token."""
SCALES = ".scales"
"""Behind a key cache's name: f32 scales of its heads, then of its value cache's."""
_PAST = ((4, 1), (5, 2))
"""(input, output) of keys, then of values."""


def applies(node: Node) -> bool:
    """Whether the past of an Attention is a cache."""
    return node.has(4) and node.tensor(4).role is Role.KV


def attention(node: Node) -> None:
    """Two KV_APPEND and an ATTN_T. Refused: what ATTN_T cannot do."""
    for index, name in ((3, "attn_mask"), (6, "nonpad_kv_seqlen")):
        if node.has(index):
            node.refuse(f"input {name} beside a cache of keys and values: only the causal mask is supported")
    if node.attribute("softcap", 0.0) or node.attribute("right_window_size", -1) > 0:
        node.refuse("softcap and right_window_size are not supported beside a cache of keys and values")
    if len(node.info(0).shape) != 3:
        node.refuse("beside a cache Q, K and V must have three dimensions: batch, tokens, heads x size")
    batch, tokens, width = node.info(0).shape
    if batch != 1:
        node.refuse(f"batch {batch}: a cache serves one request")
    if tokens > 1 and not node.attribute("is_causal", 0):
        node.refuse("is_causal 0 with several tokens beside a cache: only causal attention is supported")
    keys, values = (node.tensor(past) for past, _ in _PAST)
    heads, (_, kv_heads, t_max, size) = int(node.attribute("q_num_heads", 0)), keys.shape
    sizes = [node.info(index).shape[-1] for index in range(3)]
    if not heads or heads % kv_heads or sizes != [heads * size, kv_heads * size, kv_heads * size]:
        node.refuse(
            f"Q, K and V of {sizes} elements with {heads} heads: beside a cache of {kv_heads} heads of {size} they "
            f"must have q_num_heads x {size}, {kv_heads * size} and {kv_heads * size}; q_num_heads is a multiple"
        )
    if values.shape != keys.shape:
        node.refuse(f"past_key {keys.id} and past_value {values.id} must have heads of one size")
    position = node.graph.tensors[POSITION]
    scales = _scales(node, keys)
    for index, (cache, (_, present)) in enumerate(zip((keys, values), _PAST, strict=True)):
        new, scale = node.tensor(1 + index), scales[index : index + 1]
        inputs = [new, position, *(scale if new.dtype is not cache.dtype else [])]
        node.layer("KV_APPEND", inputs, cache, m=tokens, n=kv_heads * size, heads=kv_heads, t_max=t_max)
        if present < len(node.proto.output) and node.proto.output[present]:
            node.view(cache, cache.shape, node.proto.output[present])
    window = int(node.attribute("left_window_size", -1)) + 1
    zero1, zero2 = node.attribute("zero_kv", (0, 0))
    node.layer(
        "ATTN_T", [node.tensor(0), keys, values, position, *scales[2:]], node.output(), m=tokens, n=width, heads=heads,
        kv_heads=kv_heads, t_max=t_max, scale=float(node.attribute("scale", 0.0)) or size**-0.5, window=window,
        **({"zero1": zero1, "zero2": zero2} if zero1 or zero2 else {}),
    )  # fmt: skip


def _scales(node: Node, keys: TensorIR) -> list[TensorIR]:
    """(of the keys, of the values, of both) where they are integers: f32 per head."""
    if given := node.attribute("scale_kv"):
        made = [node.weight(np.full(keys.shape[1], scale), DataType.FP32) for scale in given]
        return [*made, node.weight(np.repeat(given, keys.shape[1]), DataType.FP32)]
    both = node.graph.tensors.get(keys.id + SCALES)
    if BITS[keys.dtype] > 8 or keys.dtype in (DataType.E4M3FN, DataType.E5M2) or both is None:
        return []
    half = both.elements // 2
    values = node.graph.constants[both.id].reshape(-1)
    return [node.weight(values[:half], DataType.FP32), node.weight(values[half:], DataType.FP32), both]
