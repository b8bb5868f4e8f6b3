"""What a decoder is asked to generate, and its result: tokens, logits, cycles of each step, how they compare."""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np

from pyv_npu.config.yaml_file import load_qconfig
from pyv_npu.errors import UsageError
from pyv_npu.report import tokens as steps_of
from pyv_npu.result import Detail, Result
from pyv_npu.text import columns, lines_of
from pyv_npu.workloads.checks import check, check_codes, codes_row
from pyv_npu.workloads.compiled import listing
from pyv_npu.workloads.data import Values
from toolchain.decoders.decoder import CODES, LOG, CompiledDecoder, Decoder
from toolchain.decoders.reference import Reference
from toolchain.decoders.shapes import BY_BITS
from toolchain.quantize.precision import INT8
from toolchain.quantize.qconfig import QConfig


class GenerationRequest(NamedTuple):
    """What a decoder generates, and how it is compiled."""

    prompt: tuple[int, ...]
    new: int
    """Tokens after the prompt."""
    given: tuple[int, ...] = ()
    """The first of them; the others are the largest logits."""
    t_max: int | None = None
    """Tokens that the caches hold; None: prompt and new tokens."""
    kv_bits: int | None = None
    """Of keys and values; None: the model's own type."""
    passes: str = "all"
    qconfig: Path | None = None
    """How wide weights are, `toolchain.quantize.qconfig`."""
    precision: str = ""
    """INT8: the model is quantized first; empty: it has its own."""
    calibration: tuple[Path, ...] = ()
    """Files with input_ids that show INT8 the ranges of the model."""

    @property
    def exact(self) -> bool:
        """Whether numbers are those of the model, so that they are compared with the reference. Narrow weights of a
        model that an option quantizes are its own."""
        return self.kv_bits is None and (self.qconfig is None or self.precision == INT8)

    @property
    def total(self) -> int:
        """Tokens of the whole conversation."""
        return len(self.prompt) + self.new

    def check(self, decoder: Decoder) -> None:
        """UsageError for a request that the decoder cannot fulfil."""
        for name, tokens in (("--prompt", self.prompt), ("--given", self.given)):
            for token in tokens:
                if not 0 <= token < decoder.vocab:
                    raise UsageError(f"{name}: token {token}: the vocabulary has 0..{decoder.vocab - 1}")
        if not self.prompt:
            raise UsageError("--prompt: must hold at least one token")
        if self.new < 1:
            raise UsageError(f"--generate {self.new}: must be at least 1")
        if len(self.given) > self.new:
            raise UsageError(f"--given: {len(self.given)} tokens, --generate asks for {self.new}")
        if self.kv_bits is not None and self.kv_bits not in BY_BITS:
            raise UsageError(f"--qbits-kv {self.kv_bits}: must be one of {', '.join(map(str, BY_BITS))}")
        kind = decoder.caches[0].kind
        if self.kv_bits is not None and kind in CODES:
            raise UsageError(f"--qbits-kv {self.kv_bits}: the model keeps keys and values as {kind.name}: drop it")
        if self.t_max is not None and self.total > self.t_max:
            raise UsageError(f"--t-max {self.t_max}: prompt and new tokens are {self.total}: they must fit the caches")

    def weights(self) -> QConfig:
        """The QConfig that is named, or an empty one. UsageError where it speaks of caches."""
        if self.qconfig is None:
            return QConfig()
        config = load_qconfig(self.qconfig)
        for name in config.override:
            if name.endswith(".kv"):
                raise UsageError(f"{self.qconfig}: override.{name}: a decoder's caches have one width, --qbits-kv")
        return config


@dataclass(frozen=True)
class GenerationDetail(Detail):
    """Tokens, logits, and how they compare with the reference."""

    difference: ClassVar[str] = "the logits differ from the ONNX reference"
    compiled: CompiledDecoder
    tokens: tuple[int, ...]
    """The prompt's, then the new ones."""
    logits: Values
    """Of every token but the last, shape (tokens - 1, vocabulary)."""
    figures: Mapping[str, Any]
    """The `generate` object of the result."""
    cycles: Sequence[int] | None
    """Core cycles of the prompt and of each token after it; None at IA, empty where some were not seen."""

    @classmethod
    def of(
        cls, made: CompiledDecoder, request: GenerationRequest, tokens: Sequence[int], read: Callable[[str], bytes],
        codes: Sequence[Mapping[str, Values]] | None, cycles: Sequence[int] | None,
    ) -> "GenerationDetail":  # fmt: skip
        """`read` gives the bytes that a tensor has at the end. `codes`: what each step has rounded numbers to, the
        reference continues with it; None: the run is not compared."""
        decoder, graph = made.decoder, made.compiled.graph
        logits = made.logits(read(LOG))[: len(tokens) - 1]
        kept = {name: read(name) for name in (LOG, *(cache.past for cache in decoder.caches))}
        caches = [graph.tensors[cache.past] for cache in decoder.caches]
        alloc = sum(cache.size for cache in caches)
        figures = {
            "prompt": list(request.prompt), "tokens": list(tokens), "given": list(request.given), "t_max": made.t_max,
            "kv_type": caches[0].dtype.name, "kv_bytes_alloc": alloc,
            "kv_bytes_used": alloc // made.t_max * (len(tokens) - 1),
            "commands": {"prompt": made.prompt_commands, "step": made.step_commands},
            "outputs_sha256": {name: hashlib.sha256(data).hexdigest() for name, data in kept.items()},
        }  # fmt: skip
        nothing: dict[str, Any] = {"steps": [], "codes": {}, "original_error": None}
        figures |= nothing if codes is None else _compared(decoder, request, tokens, logits, codes)
        return cls(made, tuple(tokens), logits, figures, cycles)

    def to_json(self, result: Result[Any]) -> dict[str, Any]:
        cycles = {} if self.cycles is None else {"cycles_by_step": list(self.cycles)}
        return {**cycles, "generate": dict(self.figures)}

    def text(self, result: Result[Any]) -> str:
        """The tokens, and how each step compares with the reference."""
        made = self.figures
        rows = [
            *self._tokens(),
            ("commands", f"{made['commands']['prompt']} for the prompt, {made['commands']['step']} for every token"),
            ("KV", f"{made['kv_type']}, {made['kv_bytes_used']:,} of {made['kv_bytes_alloc']:,} bytes used"),
        ]
        if self.cycles is not None:
            rows.append(("cycles", f"{result.cycles:,}"))
        steps = made["steps"]
        if steps:
            worst = max(steps, key=lambda step: -1.0 if step["error"] is None else float(step["error"]))
            limit = f", limit {worst['limit']:.0e}"
            if worst["ok"] is None:
                limit = "; not checked: weights or caches have another type"
            rows.append(("worst error of logits", f"{worst['error']:.2e} at position {worst['position']}{limit}"))
            same = sum(step["next"] == step["reference_next"] for step in steps)
            rows.append(("same choice", f"{same} of {len(steps)} positions"))
            rows += codes_row(made["codes"])
            if made["original_error"] is not None:
                error = f"{made['original_error']:.2e} against the model before it was quantized"
                rows.append(("original", f"error {error}"))
            rows += [("DIFFERS", f"position {step['position']}") for step in steps if step["ok"] is False]
        level = result.config.run.sim_level
        head = f"decoder {result.program}, {level}, against onnx.reference"
        return "\n\n".join([lines_of(head, rows), *_step_table({level: result})]) + "\n"

    def files(self, result: Result[Any]) -> Mapping[str, bytes]:
        return listing(self.compiled.compiled, result.config.npu)

    def compared(self, loose: Result[Any], tight: Result[Any]) -> tuple[dict[str, Any], str]:
        """The tokens, and how long each took in both modes."""
        both = steps_of.side_by_side(loose.json, tight.json)
        rows = [*self._tokens(), ("same in both modes", "yes" if both["same_tokens"] else "NO")]
        head = f"decoder {loose.program}: from the first submission of a step until firmware knows its result"
        table = _step_table({"loose": loose, "tight": tight})
        return {"generate": both}, "\n\n".join([lines_of(head, rows), *table]) + "\n"

    def _tokens(self) -> list[tuple[str, str]]:
        count = len(self.figures["prompt"])
        named = (("prompt", self.tokens[:count]), ("new tokens", self.tokens[count:]))
        return [(name, " ".join(map(str, tokens))) for name, tokens in named]


def _compared(
    decoder: Decoder, request: GenerationRequest, tokens: Sequence[int], logits: Values,
    codes: Sequence[Mapping[str, Values]],
) -> dict[str, Any]:  # fmt: skip
    """How each token's logits, and all codes, compare with the reference on the same tokens; with other types than the
    model's the error is reported."""
    taken = list(codes[0])
    wanted = list(Reference(decoder, taken).steps(tokens, len(request.prompt), codes))
    found = []
    for position, (got, want) in enumerate(zip(logits, np.concatenate([step.logits for step in wanted]), strict=True)):
        compared = check(got, want)
        found.append(
            {
                "position": position, "token": tokens[position], "next": int(got.argmax()),
                "reference_next": int(want.argmax()), "error": compared["error"], "limit": compared["limit"],
                "ok": compared["ok"] if request.exact else None,
            }
        )  # fmt: skip
    pairs = [(given[name], step.codes[name]) for given, step in zip(codes, wanted, strict=True) for name in taken]
    original = None
    if decoder.original is not None:
        before = Reference(decoder.original).steps(tokens, len(request.prompt))
        original = check(logits, np.concatenate([step.logits for step in before]))["error"]
    return {"steps": found, "codes": check_codes(pairs) if taken else {}, "original_error": original}


def _step_table(runs: Mapping[str, Result[Any]]) -> list[str]:
    """A table with a row for the prompt and for each token, where there is time."""
    named = {name: run.json for name, run in runs.items()}
    rows = [
        [
            step.name,
            str(step.makes),
            *(f"{cycles:,}" for cycles in step.cycles),
            *([step.ratio] if step.cycles[1:] else []),
        ]
        for step in steps_of.steps(named)
    ]
    return [columns(steps_of.heads(named), rows)] if rows else []
