"""A decoder by onnx.reference: the judge of every token."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from onnx import helper
from onnx.reference import ReferenceEvaluator

from toolchain.llm.decoder import IDS, LOGITS, POSITIONS, Decoder

Values = Any


class Reference:
    """Runs a decoder with its past as ONNX has it: an array that grows."""

    def __init__(self, decoder: Decoder) -> None:
        self._decoder = decoder
        self._evaluator = ReferenceEvaluator(decoder.proto)
        kinds = {value.name: value.type.tensor_type.elem_type for value in decoder.proto.graph.input}
        self._kinds = {cache.past: _numpy(kinds[cache.past]) for cache in decoder.caches}

    def empty(self) -> dict[str, Values]:
        """The past before the first token."""
        return {
            cache.past: np.zeros((1, cache.heads, 0, cache.head_dim), self._kinds[cache.past])
            for cache in self._decoder.caches
        }

    def feeds(self, tokens: Sequence[int], past: dict[str, Values]) -> dict[str, Values]:
        """The inputs of a step: tokens and positions behind a past."""
        made = {IDS: np.array([tokens], np.int64), **past}
        if self._decoder.positions:
            seen = next(iter(past.values())).shape[2]
            made[POSITIONS] = np.arange(seen, seen + len(tokens), dtype=np.int64)[None]
        return made

    def step(self, tokens: Sequence[int], past: dict[str, Values]) -> tuple[Values, dict[str, Values]]:
        """(logits of the tokens, shape (tokens, vocabulary); the past after them)."""
        decoder = self._decoder
        names = [LOGITS, *(cache.present for cache in decoder.caches)]
        logits, *present = self._evaluator.run(names, self.feeds(tokens, past))
        return np.asarray(logits)[0], {
            cache.past: np.asarray(values) for cache, values in zip(decoder.caches, present, strict=True)
        }

    def logits(self, tokens: Sequence[int], prompt: int) -> Values:
        """Of every token but the last: the prompt at once, then token by token."""
        first, past = self.step(tokens[:prompt], self.empty())
        rows = list(first)
        for token in tokens[prompt:-1]:
            row, past = self.step([token], past)
            rows.append(row[0])
        return np.stack(rows)


def head_scales(reference: Reference, decoder: Decoder, prompt: Sequence[int], bits: int) -> dict[str, Values]:
    """Past -> scale of each head: the largest value of the prompt's keys, or values, is the largest integer."""
    _, past = reference.step(prompt, reference.empty())
    steps = (1 << bits - 1) - 1
    return {
        cache.past: np.maximum(np.abs(past[cache.past].astype(np.float32)).max(axis=(0, 2, 3)), 1e-6) / steps
        for cache in decoder.caches
    }


def _numpy(code: int) -> Any:
    return helper.tensor_dtype_to_np_dtype(code)
