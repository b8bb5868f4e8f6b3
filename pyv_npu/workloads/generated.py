"""What came of a conversation with a decoder: tokens, logits, cycles of each step, and how they compare."""

import hashlib
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from pyv_npu.observe.latency.table import Latency
from pyv_npu.workloads.checks import check, check_codes
from pyv_npu.workloads.data import Values
from pyv_npu.workloads.verdicts import passed
from pyv_npu.workloads.wish import Wish
from toolchain.decoders.decoder import LOG, CompiledDecoder, Decoder
from toolchain.decoders.reference import Reference

if TYPE_CHECKING:
    from pyv_npu.results import RunResult


@dataclass(frozen=True)
class Generated:
    """A conversation that took place."""

    tokens: tuple[int, ...]
    """The prompt's, then the new ones."""
    logits: Values
    """Of every token but the last, shape (tokens - 1, vocabulary)."""
    json: dict[str, Any]
    compiled: CompiledDecoder
    run: "RunResult | None" = None
    """What the firmware's run left, with the same `json`; None without a core."""

    @property
    def correct(self) -> bool:
        """Whether every token's logits are as near to the reference as the type allows, where that is asked."""
        return passed(self.json)


def generated(
    made: CompiledDecoder, wish: Wish, tokens: Sequence[int], read: Callable[[str], bytes], json: dict[str, Any],
    codes: Sequence[Mapping[str, Values]] | None, run: "RunResult | None" = None,
) -> Generated:  # fmt: skip
    """The result; `read` gives the bytes that a tensor has at the end. `codes`: what each step has rounded numbers to,
    the reference continues with it; None: the run is not compared."""
    decoder, graph = made.decoder, made.compiled.graph
    logits = made.logits(read(LOG))[: len(tokens) - 1]
    kept = {name: read(name) for name in (LOG, *(cache.past for cache in decoder.caches))}
    caches = [graph.tensors[cache.past] for cache in decoder.caches]
    alloc = sum(cache.size for cache in caches)
    figures = {
        "prompt": list(wish.prompt), "tokens": list(tokens), "given": list(wish.given), "t_max": made.t_max,
        "kv_type": caches[0].dtype.name, "kv_bytes_alloc": alloc,
        "kv_bytes_used": alloc // made.t_max * (len(tokens) - 1),
        "commands": {"prompt": made.prompt_commands, "step": made.step_commands},
        "outputs_sha256": {name: hashlib.sha256(data).hexdigest() for name, data in kept.items()},
    }  # fmt: skip
    nothing: dict[str, Any] = {"steps": [], "codes": {}, "original_error": None}
    figures |= nothing if codes is None else _compared(decoder, wish, tokens, logits, codes)
    whole = json | {"generate": figures}
    return Generated(tuple(tokens), logits, whole, made, None if run is None else replace(run, json=whole))


def _compared(
    decoder: Decoder, wish: Wish, tokens: Sequence[int], logits: Values, codes: Sequence[Mapping[str, Values]]
) -> dict[str, Any]:
    """How each token's logits, and all codes, compare with the reference on the same tokens; with other types than the
    model's the error is reported."""
    taken = list(codes[0])
    wanted = list(Reference(decoder, taken).steps(tokens, len(wish.prompt), codes))
    found = []
    for position, (got, want) in enumerate(zip(logits, np.concatenate([step.logits for step in wanted]), strict=True)):
        compared = check(got, want)
        found.append(
            {
                "position": position, "token": tokens[position], "next": int(got.argmax()),
                "reference_next": int(want.argmax()), "error": compared["error"], "limit": compared["limit"],
                "ok": compared["ok"] if wish.exact else None,
            }
        )  # fmt: skip
    steps = zip(codes, wanted, strict=True)
    pairs = [(given[name], step.codes[name]) for given, step in steps for name in taken]
    original = None
    if decoder.original is not None:
        before = Reference(decoder.original).steps(tokens, len(wish.prompt))
        original = check(logits, np.concatenate([step.logits for step in before]))["error"]
    return {"steps": found, "codes": check_codes(pairs) if taken else {}, "original_error": original}


def step_cycles(made: CompiledDecoder, wish: Wish, latency: Latency) -> list[int]:
    """Core cycles of the prompt and of each token behind it, from t0 of the first command until the firmware knows that
    all are done, t7 (docs/latency.md); [] where some were not seen, as in a run that began from a snapshot."""
    first, step = made.prompt_commands, made.step_commands
    bounds = [0, *range(first, first + wish.new * step, step)]
    seen = [(one.t0, one.t7) for one in latency.accepted if one.t0 is not None and one.t7 is not None]
    if len(seen) != bounds[-1]:
        return []
    steps = (seen[start:end] for start, end in itertools.pairwise(bounds))
    return [max(t7 for _, t7 in step) - step[0][0] for step in steps]
