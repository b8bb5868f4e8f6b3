"""Attention of whole tensors as one ATTN_T per batch: scores, softmax and weights never leave the scratchpad.

Keys and values have a row per token with all heads beside each other, as ONNX's of three dimensions, or rows of each
head, as its past and those of four dimensions. The queries are the last of the keys where an order of them matters.
"""

from typing import NamedTuple

from toolchain.data_types import FLOATS
from toolchain.ir.graph import Attribute, TensorIR
from toolchain.onnx_frontend.copies import transposed
from toolchain.onnx_frontend.node import Node


class Sizes(NamedTuple):
    """Of Q, K and V; `keys` are those of the past too."""

    batch: int
    heads: int
    kv_heads: int
    queries: int
    keys: int
    past: int
    width: int
    """Of a head of Q and K."""
    value_width: int

    @property
    def scores(self) -> tuple[int, int, int, int]:
        return self.batch, self.heads, self.queries, self.keys


class Sight(NamedTuple):
    """How far a query sees before and behind its own position; -1: everything."""

    left: int
    right: int


def sight(node: Node) -> Sight:
    """What is_causal and the windows say."""
    left, right = (int(node.attribute(f"{side}_window_size", -1)) for side in ("left", "right"))
    return Sight(left, 0 if node.attribute("is_causal", 0) else right)


def possible(node: Node, s: Sizes) -> bool:
    """Whether ATTN_T computes it: no mask, no cap, heads of one size and type, and an order that it knows."""
    kinds = [node.kind(node.info(index), node.proto.input[index]) for index in range(3)]
    if node.has(3) or node.attribute("softcap", 0.0) or s.width != s.value_width:
        return False
    if kinds[0] not in FLOATS or kinds[1] is not kinds[2]:
        return False
    left, right = sight(node)
    last = s.queries + s.past
    return (right < 0 and left < 0) or (right < 0 and last == s.keys) or (right == 0 and last <= s.keys)


def attend(node: Node, s: Sizes, k: TensorIR, v: TensorIR, scale: float) -> None:
    """The layer; Q and the result are brought to a row per query where they have four dimensions."""
    q, out, order = node.tensor(0), node.output(), (0, 2, 1, 3)
    four = len(q.shape) == 4
    rows = transposed(node, q, order) if four else q
    result = node.temporary((s.batch, s.queries, s.heads, s.width), out.dtype) if four else out
    left, right = sight(node)
    keys = s.queries + s.past if right == 0 else s.keys
    causal: dict[str, Attribute] = {"causal": int(right == 0), "window": left + 1 if left >= 0 else 0}
    node.layer(
        "ATTN_T", [rows, k, v], result, batch=s.batch, m=s.queries, n=s.heads * s.width, heads=s.heads,
        kv_heads=s.kv_heads, keys=keys, t_max=s.keys if len(k.shape) == 4 else 0, scale=scale, **causal,
    )  # fmt: skip
    if four:
        transposed(node, result, order, out)
