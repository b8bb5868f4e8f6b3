"""Reference results of a decoder for every token, computed by onnx.reference."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from onnx import helper
from onnx.reference import ReferenceEvaluator

from toolchain.decoders.decoder import IDS, LOGITS, POSITIONS, Decoder, KvBits
from toolchain.decoders.exported import feeds
from toolchain.onnx_domains.domains import is_foreign
from toolchain.onnx_model.reference import COMPUTED, CORRECTED, cut_at

Values = Any


class DecodeStep(NamedTuple):
    """Result of a step."""

    logits: Values
    """Logits of the new tokens, shape (tokens, vocabulary)."""
    past: dict[str, Values]
    """Past after the step."""
    codes: dict[str, Values]
    """The reference's own values of the overridden tensors."""
    watched: dict[str, Values]
    """Values of the watched tensors."""


def empty_past(decoder: Decoder) -> dict[str, Values]:
    """Return the past before the first token."""
    kinds = {value.name: value.type.tensor_type.elem_type for value in decoder.proto.graph.input}
    return {
        cache.past: np.zeros((1, cache.heads, 0, cache.head_dim), helper.tensor_dtype_to_np_dtype(kinds[cache.past]))
        for cache in decoder.caches
    }


def step_feeds(decoder: Decoder, tokens: Sequence[int], past: dict[str, Values]) -> dict[str, Values]:
    """Return the inputs of a step: tokens, positions and past, and the external data."""
    feeds = {**decoder.external, IDS: np.array([tokens], np.int64), **past}
    if decoder.positions:
        first = next(iter(past.values())).shape[2]
        feeds[POSITIONS] = np.arange(first, first + len(tokens), dtype=np.int64)[None]
    return feeds


class Reference:
    """Reference execution of a decoder with an ONNX past, an array that grows. `overrides`: tensors of
    `toolchain.onnx_model.reference.rounded_outputs` whose values the caller supplies in every step; `watched`: tensors
    to return. An exported model is executed as written unless `overrides` or `watched` are set."""

    def __init__(self, decoder: Decoder, overrides: Collection[str] = (), watched: Collection[str] = ()) -> None:
        self._decoder = decoder
        self._overrides, self._watched = tuple(overrides), tuple(watched)
        inner = bool(self._overrides or self._watched)
        self._source = None if inner or _contribute(decoder.source) else decoder.source
        run = cut_at(decoder.proto, overrides) if self._source is None else self._source
        self._evaluator = ReferenceEvaluator(run, new_ops=CORRECTED)

    def empty(self) -> dict[str, Values]:
        """Return the past before the first token."""
        return empty_past(self._decoder)

    def _inputs(self, tokens: Sequence[int], past: dict[str, Values]) -> dict[str, Values]:
        """Return the inputs of the executed model."""
        inputs = step_feeds(self._decoder, tokens, past)
        if self._source is None:
            return inputs
        length = next(iter(past.values())).shape[2]
        return {**inputs, **feeds(self._source, len(tokens), length)}

    def step(
        self, tokens: Sequence[int], past: dict[str, Values], codes: Mapping[str, Values] | None = None
    ) -> DecodeStep:
        """Execute new tokens after a past; `codes`: values of the overridden tensors."""
        decoder = self._decoder
        names = [LOGITS, *(cache.present for cache in decoder.caches)]
        computed_names = [name + COMPUTED for name in self._overrides]
        outputs = [*names, *computed_names, *self._watched]
        logits, *results = self._evaluator.run(outputs, {**self._inputs(tokens, past), **(codes or {})})
        present, extra = results[: len(decoder.caches)], results[len(decoder.caches) :]
        watched = extra[len(computed_names) :]
        pasts = zip(decoder.caches, present, strict=True)
        return DecodeStep(
            np.asarray(logits)[0],
            {cache.past: np.asarray(values) for cache, values in pasts},
            {name: np.asarray(values) for name, values in zip(self._overrides, extra, strict=False)},
            {name: np.asarray(values) for name, values in zip(self._watched, watched, strict=True)},
        )

    def steps(
        self, tokens: Sequence[int], prompt: int, codes: Sequence[Mapping[str, Values]] | None = None
    ) -> Iterator[DecodeStep]:
        """Yield the step of the whole prompt, then a step per further token except the last; `codes`: overrides by
        step."""
        past = self.empty()
        parts = [tokens[:prompt], *([token] for token in tokens[prompt:-1])]
        for part, step_codes in zip(parts, codes or [{}] * len(parts), strict=True):
            step = self.step(part, past, step_codes)
            past = step.past
            yield step


def head_scales(decoder: Decoder, prompt: Sequence[int], bits: KvBits) -> dict[str, Values]:
    """Return past -> scale of each head, which maps the maximum of the prompt's keys or values to the largest integer.
    Floating-point heads have an unused scale."""
    reference = Reference(decoder)
    past = reference.step(prompt, reference.empty()).past
    scales = {}
    for index, cache in enumerate(decoder.caches):
        steps = [(1 << (bits(index // 2, head) or 2) - 1) - 1 for head in range(cache.heads)]
        largest = np.abs(past[cache.past].astype(np.float32)).max(axis=(0, 2, 3))
        scales[cache.past] = np.maximum(largest, 1e-6) / np.asarray(steps, np.float32)
    return scales


def _contribute(proto: Any) -> bool:
    """Check whether a model has operators that onnx.reference does not implement."""
    return proto is not None and any(map(is_foreign, proto.graph.node))
