"""Logits of a text in one pass, each token with the keys and values that it would read in generation."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np
from onnx.reference.op_run import OpRun

from npu_device.kv_quant.codec import StoredTokens
from toolchain.decoders.decoder import LOGITS, Decoder
from toolchain.decoders.reference import empty_past, step_feeds
from toolchain.ir.graph import Values
from toolchain.onnx_model.reference import evaluate

Store = Callable[[int, Values], StoredTokens]
"""Function from (index of a cache, keys or values (tokens, C)) to the stored tokens."""
QUERIES = 512
"""Maximum number of tokens whose scores are in memory at a time."""


def text_logits(decoder: Decoder, tokens: Sequence[int], store: Store) -> Values:
    """Return logits (tokens, vocabulary) of a text from position 0 on."""
    layers = {name: index for index, name in enumerate(decoder.attended)}
    operator: type[OpRun] = type("Attention", (_StoredAttention,), {"storage": _Storage(store, layers)})
    inputs = step_feeds(decoder, tokens, empty_past(decoder))
    logits: Values = evaluate(decoder.proto, [LOGITS], inputs, [operator])[LOGITS]
    return logits[0]


class _Storage(NamedTuple):
    """Storage of keys and values, and the layer of each Attention node by its output."""

    store: Store
    layers: Mapping[str, int]


class _StoredAttention(OpRun):
    """Causal attention whose keys and values pass through their storage."""

    op_domain = ""
    storage: ClassVar[_Storage]

    def _run(self, *inputs: Any, **attributes: Any) -> tuple[Any, ...]:
        q, k, v = inputs[:3]
        layer = self.storage.layers[self.onnx_node.output[0]]
        heads, shared = attributes["q_num_heads"], attributes["kv_num_heads"]
        cap, window = attributes.get("softcap") or 0.0, attributes.get("left_window_size", -1)
        keys, values = (self.storage.store(2 * layer + side, x[0].astype(np.float32)) for side, x in enumerate((k, v)))
        queries = q[0].astype(np.float32).reshape(len(q[0]), heads, -1)
        queries = queries * np.float32(attributes.get("scale") or queries.shape[2] ** -0.5)
        output = attention(queries, keys, values, heads // shared, cap, None if window < 0 else window)
        present = [x[0].reshape(len(x[0]), shared, -1).transpose(1, 0, 2)[None] for x in (k, v)]
        return output.astype(q.dtype)[None], *present


def attention(
    queries: Values, keys: StoredTokens, values: StoredTokens, group: int, cap: float = 0.0, window: int | None = None
) -> Values:  # fmt: skip
    """Compute causal attention (tokens, heads x D) of scaled queries (tokens, heads, D). `group`: query heads per KV
    head; `cap`: of scores, 0: none; `window`: maximum number of tokens attended to before the query."""
    count, heads, _ = queries.shape
    output = np.empty((count, heads, values.numbers.shape[1] // (heads // group)), np.float32)
    for first in range(0, count, QUERIES):
        rows, tokens = np.arange(first, min(first + QUERIES, count))[:, None], np.arange(min(first + QUERIES, count))
        hidden = tokens > rows
        if window is not None:
            hidden |= tokens < rows - window
        for head in range(heads):
            at, q = head // group, queries[first : first + QUERIES, head]
            scores = q @ _head(keys.numbers, at, heads // group, len(tokens)).T
            if keys.tail is not None:
                waiting = tokens >= keys.coded[rows]
                scores = np.where(waiting, q @ _head(keys.tail, at, heads // group, len(tokens)).T, scores)
            if cap:
                scores = np.tanh(scores / cap) * cap
            scores[hidden] = -np.inf
            weights = np.exp(scores - scores.max(axis=1, keepdims=True))
            weights /= weights.sum(axis=1, keepdims=True)
            if values.tail is None:
                output[rows[:, 0], head] = weights @ _head(values.numbers, at, heads // group, len(tokens))
                continue
            uncoded = np.where(tokens >= values.coded[rows], weights, 0)
            output[rows[:, 0], head] = (weights - uncoded) @ _head(values.numbers, at, heads // group, len(tokens))
            output[rows[:, 0], head] += uncoded @ _head(values.tail, at, heads // group, len(tokens))
    return output.reshape(count, -1)


def _head(x: Values, head: int, heads: int, tokens: int) -> Values:
    """Return a head (tokens, D)."""
    return x[:tokens].reshape(tokens, heads, -1)[:, head]
