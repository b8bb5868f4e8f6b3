"""Accuracy of methods that store keys and values: log likelihood of a text, teacher-forced, beside bits and time
(docs/kv-cache.md, "Accuracy").

All tokens are one prompt, computed at level IA with keys and values as the device stores them. Time is that of the next
token at CA_HYBRID with the bits that were counted.
"""

import math
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from npu_device.config import NpuConfig
from npu_device.kv_quant.methods import FLOAT8, METHODS, KvMethod
from npu_device.memory.operands import INTEGERS
from pyv_native.files import MAX_TEXT, check_input
from pyv_npu.errors import BadInputError, UsageError
from pyv_npu.kv_quant import encoded_kv
from pyv_npu.report.charts import Line, lines
from pyv_npu.sections import Cell, Chart, Table
from pyv_npu.workloads.compiled import target_of
from pyv_npu.workloads.ia import Machine
from pyv_npu.workloads.kv_figures import cached
from pyv_npu.workloads.timing import run_commands
from toolchain.decoders.decoder import (
    CONVERSATION,
    IDS,
    LOG,
    POSITIONS,
    PROMPT,
    CompiledDecoder,
    Decoder,
    compile_decoder,
)
from toolchain.onnx_operators.attention import POSITION

BASELINE = "fp32"
"""The model as it is."""
MAX_COUNT = 1 << 14
CALIBRATION = 512
"""Tokens before the scored ones that calibrate, at most."""
SCALE_BITS = 32
"""Of the fp32 scale of a token and head of integers."""
Values = Any


class Score(NamedTuple):
    """Accuracy, size and time of a method."""

    method: str
    bits: float
    """Of an element of keys and values, counted."""
    perplexity: float
    difference: float
    """Mean difference of the log likelihood of a token to that of the model, nats."""
    error: float
    """Standard error of that mean."""
    agreement: float
    """Share of the tokens where the largest logit is that of the model."""
    cycles: int
    """Of the next token, at CA_HYBRID."""
    tokens_per_second: float


def read_tokens(path: Path) -> list[int]:
    """Token ids of a text file: whole numbers with blanks or commas between them, or a JSON list. BadInputError."""
    try:
        check_input(path, MAX_TEXT)
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise BadInputError(f"--tokens {path}: {error}") from None
    words = re.split(r"[\s,]+", text.strip().strip("[]").strip())
    for word in words:
        if not (word.isdecimal() and len(word) < 10):
            raise BadInputError(f"--tokens {path}: {word[:20]!r}: must be a list of token ids, such as 3 1 4")
    return [int(word) for word in words]


def check_tokens(tokens: Sequence[int], decoder: Decoder, where: str) -> None:
    """BadInputError for a token that the vocabulary lacks."""
    wrong = next((token for token in tokens if token >= decoder.vocab), None)
    if wrong is not None:
        raise BadInputError(f"{where}: token {wrong}: the vocabulary of {decoder.name} has 0..{decoder.vocab - 1}")


def methods_of(text: str) -> list[str]:
    """Names of a list of methods. UsageError for one that is none, or is there twice."""
    names = text.split(",")
    for name in names:
        if name not in METHODS and name != BASELINE:
            raise UsageError(f"--kv {name}: must be one of {', '.join((BASELINE, *METHODS))}")
    if len(set(names)) != len(names):
        raise UsageError(f"--kv {text}: a method is there twice; drop one")
    return names


class _Run(NamedTuple):
    """A prompt that was computed."""

    made: CompiledDecoder
    read: Callable[[str], bytes]
    logits: Values
    """(tokens, vocabulary)."""


def _run(
    decoder: Decoder, npu: NpuConfig, tokens: Sequence[int], method: KvMethod | None = None,
    samples: Sequence[Sequence[Values]] = (),
) -> _Run:  # fmt: skip
    """Compute a prompt; `method`: None keeps keys and values in the model's type."""
    blocks: list[Values] = []
    options: dict[str, Any] = {}
    if method is not None and method.encoded:
        blocks = encoded_kv.blocks(decoder, method, npu.kv_quant, samples)
    elif method is not None and method.element in FLOAT8:
        options["kv_element"] = method.element
    elif method is not None:
        bits = method.bits
        options |= {"kv_bits": lambda layer, head: bits, "token_scales": method.element in INTEGERS}
    count = len(tokens)
    made = compile_decoder(decoder, target_of(npu), count, count + 1, kv_blocks=blocks, **options)
    positions = PROMPT + (POSITIONS if decoder.positions else POSITION)
    ids, at = np.asarray(tokens, "<i4").tobytes(), np.arange(count, dtype="<i4").tobytes()
    given = {PROMPT + IDS: ids, positions: at, CONVERSATION: made.conversation(tokens, count + 1)}
    machine = Machine(made.compiled, npu, given)
    machine.run(made.compiled.commands[: made.prompt_commands])
    return _Run(made, machine.read, made.logits(machine.read(LOG))[:count].copy())


def likelihoods(logits: Values, targets: Sequence[int]) -> Values:
    """Log likelihood, nats, of each target under the logits before it."""
    wide = logits.astype(np.float64)
    top = wide.max(axis=1)
    total = top + np.log(np.exp(wide - top[:, None]).sum(axis=1))
    return wide[np.arange(len(targets)), np.asarray(targets)] - total


def scores(
    decoder: Decoder, npu: NpuConfig, tokens: Sequence[int], count: int, names: Sequence[str],
    say: Callable[[str], None] = lambda text: None,
) -> Iterator[Score]:  # fmt: skip
    """Scores of the model and of methods on the last `count` tokens. Those before calibrate what is made offline; where
    there are none, the scored ones do. UsageError: too few tokens."""
    if not 1 <= count <= min(MAX_COUNT, len(tokens) - 1):
        most = min(MAX_COUNT, len(tokens) - 1)
        raise UsageError(f"--count {count}: must be 1..{most}: one token less than the file has")
    prompt, targets, before = tokens[-count - 1 : -1], tokens[-count:], tokens[: -count - 1][-CALIBRATION:]
    say(f"{BASELINE}: {count} tokens")
    plain = _run(decoder, npu, prompt)
    base, choice = likelihoods(plain.logits, targets), plain.logits.argmax(axis=1)
    yield _score(BASELINE, decoder, npu, plain, None, base, base, 1.0)
    sampled = plain if not before else _run(decoder, npu, before)
    shown = len(before) or count
    samples = [
        [encoded_kv.tokens_by_channels(cached(sampled.made, sampled.read, cache.past)[:, :, :shown]).astype(np.float32)]
        for cache in decoder.caches
    ]
    del plain, sampled
    for name in names:
        if name == BASELINE:
            continue
        say(f"{name}: {count} tokens")
        run = _run(decoder, npu, prompt, METHODS[name], samples)
        agreement = float((run.logits.argmax(axis=1) == choice).mean())
        yield _score(name, decoder, npu, run, METHODS[name], base, likelihoods(run.logits, targets), agreement)


def _score(
    name: str, decoder: Decoder, npu: NpuConfig, run: _Run, method: KvMethod | None, base: Values, found: Values,
    agreement: float,
) -> Score:  # fmt: skip
    made, count = run.made, len(found)
    memory = {made.address(POSITION): count.to_bytes(4, "little")}
    bits = float(np.mean([made.compiled.graph.tensors[cache.past].qbits for cache in decoder.caches]))
    if made.kv_blocks:
        memory |= encoded_kv.tables(made, run.read)
        rows = encoded_kv.measured(made, run.read, count, npu.kv_quant.page_bytes)
        bits = float(np.average([row["b_eff"] for row in rows], weights=[row["elements"] for row in rows]))
    elif method is not None and method.element in INTEGERS:
        bits += SCALE_BITS / decoder.caches[0].head_dim
    timed = run_commands(made.step(0), npu, "CA_HYBRID", memory=memory)
    difference = found - base
    error = float(difference.std(ddof=1) / math.sqrt(count)) if count > 1 else 0.0
    return Score(
        name, bits, math.exp(-float(found.mean())), float(difference.mean()), error, agreement, timed.cycles,
        npu.clock_hz / timed.cycles,
    )  # fmt: skip


HEADS = ("method", "bits", "perplexity", "log likelihood to fp32", "same choice", "cycles", "tokens/s")


def table(rows: Sequence[Score]) -> Table:
    """A row for each method."""
    texts = [
        (row.method, f"{row.bits:.3f}", f"{row.perplexity:.3f}", f"{row.difference:+.4f} +- {row.error:.4f}",
         f"{row.agreement:.1%}", f"{row.cycles:,}", f"{row.tokens_per_second:,.1f}")
        for row in rows
    ]  # fmt: skip
    return Table(HEADS, [[Cell(line[0], kind="text"), *map(Cell, line[1:])] for line in texts])


def chart(rows: Sequence[Score], of: str) -> Chart:
    """Perplexity by bits; the Pareto front has what no method with as few bits is below."""
    front = sorted(
        (row.bits, row.perplexity) for row in rows
        if not any(other.bits <= row.bits and other.perplexity < row.perplexity for other in rows)
    )  # fmt: skip
    points = [Line(row.method, [(row.bits, row.perplexity)]) for row in rows]
    return lines(
        "perplexity", "Perplexity by bits", of, [Line("Pareto front", front), *points], "bits of an element",
        "perplexity", dots=True,
    )  # fmt: skip
