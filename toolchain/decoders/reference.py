"""A decoder by onnx.reference: step by step, the reference of every token, or a whole text in one pass, each token with
the keys and values that it would read in generation."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np
from onnx import helper
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import OpRun

from npu_device.kv_quant.codec import StoredTokens
from toolchain.decoders.decoder import IDS, LOGITS, POSITIONS, Decoder, KvBits
from toolchain.decoders.exported import feeds
from toolchain.onnx_domains.domains import is_foreign
from toolchain.onnx_model.reference import CORRECTED, OWN, cut, evaluated

Values = Any
Store = Callable[[int, Values], StoredTokens]
"""(index of a cache, keys or values (tokens, C)) -> how they are stored."""
QUERIES = 512
"""Tokens whose scores are in memory at once."""


class Step(NamedTuple):
    """What a step leads to."""

    logits: Values
    """Of its tokens, shape (tokens, vocabulary)."""
    past: dict[str, Values]
    """After them."""
    codes: dict[str, Values]
    """What the reference itself makes of the tensors that it takes."""
    watched: dict[str, Values]
    """The tensors that were asked for."""


def empty_past(decoder: Decoder) -> dict[str, Values]:
    """The past before the first token."""
    kinds = {value.name: value.type.tensor_type.elem_type for value in decoder.proto.graph.input}
    return {
        cache.past: np.zeros((1, cache.heads, 0, cache.head_dim), helper.tensor_dtype_to_np_dtype(kinds[cache.past]))
        for cache in decoder.caches
    }


def step_feeds(decoder: Decoder, tokens: Sequence[int], past: dict[str, Values]) -> dict[str, Values]:
    """The inputs of a step: tokens and positions behind a past, and the external data."""
    feeds = {**decoder.external, IDS: np.array([tokens], np.int64), **past}
    if decoder.positions:
        seen = next(iter(past.values())).shape[2]
        feeds[POSITIONS] = np.arange(seen, seen + len(tokens), dtype=np.int64)[None]
    return feeds


class Reference:
    """Runs a decoder with its past as ONNX has it: an array that grows. `taken`: tensors of
    `toolchain.onnx_model.reference.rounded` that every step is given; `watched`: others that every step leaves. Of an
    exported model the file as it is is run, unless inner tensors are asked for."""

    def __init__(self, decoder: Decoder, taken: Collection[str] = (), watched: Collection[str] = ()) -> None:
        self._decoder = decoder
        self._taken, self._watched = tuple(taken), tuple(watched)
        inner = bool(self._taken or self._watched)
        self._source = None if inner or _contributed(decoder.source) else decoder.source
        run = cut(decoder.proto, taken) if self._source is None else self._source
        self._evaluator = ReferenceEvaluator(run, new_ops=CORRECTED)

    def empty(self) -> dict[str, Values]:
        """The past before the first token."""
        return empty_past(self._decoder)

    def _given(self, tokens: Sequence[int], past: dict[str, Values]) -> dict[str, Values]:
        """The inputs of the model that is run."""
        made = step_feeds(self._decoder, tokens, past)
        if self._source is None:
            return made
        seen = next(iter(past.values())).shape[2]
        return {**made, **feeds(self._source, len(tokens), seen)}

    def step(self, tokens: Sequence[int], past: dict[str, Values], codes: Mapping[str, Values] | None = None) -> Step:
        """Tokens behind a past; `codes`: what is taken."""
        decoder = self._decoder
        names = [LOGITS, *(cache.present for cache in decoder.caches)]
        own = [name + OWN for name in self._taken]
        asked = [*names, *own, *self._watched]
        logits, *made = self._evaluator.run(asked, {**self._given(tokens, past), **(codes or {})})
        present, rest = made[: len(decoder.caches)], made[len(decoder.caches) :]
        seen = rest[len(own) :]
        pasts = zip(decoder.caches, present, strict=True)
        return Step(
            np.asarray(logits)[0],
            {cache.past: np.asarray(values) for cache, values in pasts},
            {name: np.asarray(values) for name, values in zip(self._taken, rest, strict=False)},
            {name: np.asarray(values) for name, values in zip(self._watched, seen, strict=True)},
        )

    def steps(
        self, tokens: Sequence[int], prompt: int, codes: Sequence[Mapping[str, Values]] | None = None
    ) -> Iterator[Step]:
        """The prompt at once, then token by token, without the last; `codes`: what is taken by each step."""
        past = self.empty()
        parts = [tokens[:prompt], *([token] for token in tokens[prompt:-1])]
        for part, given in zip(parts, codes or [{}] * len(parts), strict=True):
            step = self.step(part, past, given)
            past = step.past
            yield step


def head_scales(decoder: Decoder, prompt: Sequence[int], bits: KvBits) -> dict[str, Values]:
    """Past -> scale of each head: the largest value of the prompt's keys, or values, is the largest integer. Heads of
    floats have one too, which nothing uses."""
    reference = Reference(decoder)
    past = reference.step(prompt, reference.empty()).past
    scales = {}
    for index, cache in enumerate(decoder.caches):
        steps = [(1 << (bits(index // 2, head) or 2) - 1) - 1 for head in range(cache.heads)]
        largest = np.abs(past[cache.past].astype(np.float32)).max(axis=(0, 2, 3))
        scales[cache.past] = np.maximum(largest, 1e-6) / np.asarray(steps, np.float32)
    return scales


def _contributed(proto: Any) -> bool:
    """Whether a model has operators that onnx.reference does not know."""
    return proto is not None and any(map(is_foreign, proto.graph.node))


# -- teacher-forced evaluation: all tokens of a text in one pass ------------------------------------------------------


def text_logits(decoder: Decoder, tokens: Sequence[int], store: Store) -> Values:
    """Logits (tokens, vocabulary) of a text from position 0 on."""
    layers = {name: index for index, name in enumerate(decoder.attended)}
    operator: type[OpRun] = type("Attention", (_StoredAttention,), {"storage": _Storage(store, layers)})
    logits: Values = evaluated(decoder.proto, [LOGITS], step_feeds(decoder, tokens, empty_past(decoder)), [operator])[
        LOGITS
    ][0]
    return logits


class _Storage(NamedTuple):
    """Storage of keys and values, and the layer of each Attention by its output."""

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
    """Attention (tokens, heads x D) of scaled queries (tokens, heads, D) to the tokens up to each. `group`: query heads
    of a KV head; `cap`: of scores, 0: none; `window`: tokens before the query that it sees."""
    count, heads, _ = queries.shape
    output = np.empty((count, heads, values.numbers.shape[1] // (heads // group)), np.float32)
    for first in range(0, count, QUERIES):
        rows, seen = np.arange(first, min(first + QUERIES, count))[:, None], np.arange(min(first + QUERIES, count))
        hidden = seen > rows
        if window is not None:
            hidden |= seen < rows - window
        for head in range(heads):
            at, q = head // group, queries[first : first + QUERIES, head]
            scores = q @ _head(keys.numbers, at, heads // group, len(seen)).T
            if keys.tail is not None:
                waiting = seen >= keys.coded[rows]
                scores = np.where(waiting, q @ _head(keys.tail, at, heads // group, len(seen)).T, scores)
            if cap:
                scores = np.tanh(scores / cap) * cap
            scores[hidden] = -np.inf
            weights = np.exp(scores - scores.max(axis=1, keepdims=True))
            weights /= weights.sum(axis=1, keepdims=True)
            if values.tail is None:
                output[rows[:, 0], head] = weights @ _head(values.numbers, at, heads // group, len(seen))
                continue
            late = np.where(seen >= values.coded[rows], weights, 0)
            output[rows[:, 0], head] = (weights - late) @ _head(values.numbers, at, heads // group, len(seen))
            output[rows[:, 0], head] += late @ _head(values.tail, at, heads // group, len(seen))
    return output.reshape(count, -1)


def _head(x: Values, head: int, heads: int, tokens: int) -> Values:
    """(tokens, D) of a head."""
    return x[:tokens].reshape(tokens, heads, -1)[:, head]
