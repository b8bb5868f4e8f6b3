"""Accuracy of methods that store keys and values: log likelihood of a text, teacher-forced, beside bits and time
(docs/kv-cache.md, "Accuracy").

All tokens are computed in one pass, each with the keys and values that the device would read for it (test_perplexity
compares both). Time is that of the next token at CA_HYBRID with the bits that were counted.
"""

import math
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from npu_device.config import NpuConfig
from npu_device.kv_quant.block import Side, unpack_block
from npu_device.kv_quant.codec import Parameters, StoredTokens
from npu_device.kv_quant.methods import FLOAT8, METHODS, KvMethod
from pyv_native.files import MAX_TEXT, check_input
from pyv_npu.errors import BadInputError, UsageError
from pyv_npu.kv_quant import encoded_kv
from pyv_npu.kv_quant.text_logits import text_logits
from pyv_npu.report.charts import Spec, colour, numeric_tip, quantitative, round_significant, specification, tips
from pyv_npu.sections import Cell, Chart, Table
from pyv_npu.workloads.compiled import target_of
from pyv_npu.workloads.timing import run_commands
from toolchain.decoders.decoder import Decoder, compile_decoder
from toolchain.onnx_operators.attention import POSITION

BASELINE = "fp32"
"""The model with keys and values in fp32."""
MAX_COUNT = 1 << 14
CALIBRATION = 512
"""Maximum number of tokens, just before the scored tokens, that calibrate."""
Values = Any


class Score(NamedTuple):
    """Accuracy, size and time of a method."""

    method: str
    bits: float
    """Bits of an element of keys and values, counted in the stored bytes."""
    perplexity: float
    difference: float
    """Mean over tokens of the log likelihood with the method less that with fp32, nats: negative is worse."""
    error: float
    """Standard error of that mean."""
    agreement: float
    """Top-1 agreement: share of the positions with the same argmax as fp32."""
    cycles: int
    """Core cycles of the next token, at CA_HYBRID."""
    tokens_per_second: float
    """Decode rate of one sequence: clock / cycles."""


def read_tokens(path: Path) -> list[int]:
    """Read token ids of a text file: whole numbers separated by blanks or commas, or a JSON list. BadInputError."""
    try:
        check_input(path, MAX_TEXT)
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise BadInputError(f"--tokens {path}: {error.strerror}; give a file of token ids") from None
    except UnicodeDecodeError:
        raise BadInputError(f"--tokens {path}: is no text; give a file of token ids") from None
    words = re.split(r"[\s,]+", text.strip().strip("[]").strip())
    for word in words:
        if not (word.isdecimal() and len(word) < 10):
            raise BadInputError(f"--tokens {path}: {word[:20]!r}: must be a list of token ids, such as 3 1 4")
    return [int(word) for word in words]


def check_tokens(tokens: Sequence[int], decoder: Decoder, location: str) -> None:
    """Raise BadInputError for a token that the vocabulary lacks."""
    invalid = next((token for token in tokens if token >= decoder.vocab), None)
    if invalid is not None:
        raise BadInputError(f"{location}: token {invalid}: the vocabulary of {decoder.name} has 0..{decoder.vocab - 1}")


def methods_of(text: str) -> list[str]:
    """Parse a list of methods. UsageError for an unknown or repeated name."""
    names = text.split(",")
    for name in names:
        if name not in METHODS and name != BASELINE:
            raise UsageError(f"--kv {name}: must be one of {', '.join((BASELINE, *METHODS))}")
    if len(set(names)) != len(names):
        raise UsageError(f"--kv {text}: a method is there twice; drop one")
    return names


class _Evaluation(NamedTuple):
    """Results of a text with a method."""

    likelihoods: Values
    """Log likelihoods (tokens,), nats."""
    choices: Values
    """Tokens with the largest logit (tokens,)."""
    stored: list[StoredTokens]
    """Keys and values of each cache."""


def _evaluate(
    decoder: Decoder, tokens: Sequence[int], targets: Sequence[int], store: Callable[[int, Values], StoredTokens]
) -> _Evaluation:  # fmt: skip
    stored: list[StoredTokens] = []

    def record(index: int, x: Values) -> StoredTokens:
        stored.append(store(index, x))
        return stored[-1]

    logits = text_logits(decoder, tokens, record)
    return _Evaluation(likelihoods(logits, targets), logits.argmax(axis=1), stored)


def _unchanged(index: int, x: Values) -> StoredTokens:
    """Store keys or values in fp32."""
    return StoredTokens(x, None, np.arange(1, len(x) + 1), x.nbytes, np.zeros((0, 0), np.uint8))


def likelihoods(logits: Values, targets: Sequence[int]) -> Values:
    """Return the log likelihood, nats, of each target under the logits of the position before it."""
    values = np.empty(len(targets))
    for row, target in enumerate(targets):
        wide = logits[row].astype(np.float64)
        top = wide.max()
        values[row] = wide[target] - top - math.log(np.exp(wide - top).sum())
    return values


def scores(
    decoder: Decoder, npu: NpuConfig, tokens: Sequence[int], count: int, names: Sequence[str],
    say: Callable[[str], None] = lambda text: None,
) -> Iterator[Score]:  # fmt: skip
    """Yield the scores of the fp32 model and of methods on the last `count` tokens, whose context begins one token
    before them. At most `CALIBRATION` tokens before the context calibrate the offline tables; if there are none, the
    scored tokens do. UsageError: too few tokens."""
    if not 1 <= count <= min(MAX_COUNT, len(tokens) - 1):
        limit = min(MAX_COUNT, len(tokens) - 1)
        raise UsageError(f"--count {count}: must be 1..{limit}: one token less than the file has")
    prompt, targets, history = tokens[-count - 1 : -1], tokens[-count:], tokens[: -count - 1][-CALIBRATION:]
    say(f"{BASELINE}: {count} tokens")
    base = _evaluate(decoder, prompt, targets, _unchanged)
    yield _score(BASELINE, decoder, npu, None, base, base)
    samples = [stored.numbers for stored in (_evaluate(decoder, history, (), _unchanged) if history else base).stored]
    for name in names:
        if name == BASELINE:
            continue
        say(f"{name}: {count} tokens")
        method = METHODS[name]
        blocks = encoded_kv.blocks(decoder, method, npu.kv_quant, [[x] for x in samples]) if method.encoded else []
        sides = [
            side for cache, block in zip(decoder.caches[::2], blocks, strict=False)
            for side in unpack_block(block.tobytes(), cache.heads, cache.head_dim, cache.past)
        ]  # fmt: skip

        def store(index: int, x: Values, method: KvMethod = method, sides: Sequence[Side] = sides) -> StoredTokens:
            parameters = sides[index].parameters if sides else None
            return method.store(x, "kv"[index % 2], decoder.caches[index].head_dim, parameters or Parameters())

        yield _score(name, decoder, npu, method, _evaluate(decoder, prompt, targets, store), base, blocks)


def _score(
    name: str, decoder: Decoder, npu: NpuConfig, method: KvMethod | None, run: _Evaluation, base: _Evaluation,
    blocks: Sequence[Values] = (),
) -> Score:  # fmt: skip
    count = len(run.likelihoods)
    difference = run.likelihoods - base.likelihoods
    error = float(difference.std(ddof=1) / math.sqrt(count)) if count > 1 else 0.0
    agreement = float((run.choices == base.choices).mean())
    bits = 8 * sum(stored.size for stored in run.stored) / sum(stored.numbers.size for stored in run.stored)
    cycles = _step_cycles(decoder, npu, method, run.stored, blocks)
    return Score(
        name, bits, math.exp(-float(run.likelihoods.mean())), float(difference.mean()), error, agreement, cycles,
        npu.clock_hz / cycles,
    )  # fmt: skip


def _step_cycles(
    decoder: Decoder, npu: NpuConfig, method: KvMethod | None, stored: Sequence[StoredTokens], blocks: Sequence[Values]
) -> int:  # fmt: skip
    """Return the cycles of the token after a text, with the entries that its tokens stored."""
    options: dict[str, Any] = {}
    if method is not None and not method.encoded:
        bits = method.bits
        kind = {"kv_element": method.element} if method.element in FLOAT8 else {"kv_bits": lambda layer, head: bits}
        options = {**kind, "token_scales": method.scaled}
    count = len(stored[0].numbers)
    program = compile_decoder(decoder, target_of(npu), 0, count + 1, kv_blocks=blocks, **options)
    memory = {program.address(POSITION): count.to_bytes(4, "little")}
    if blocks:
        counts = {cache.past: tokens.counts for cache, tokens in zip(decoder.caches, stored, strict=True)}
        memory |= encoded_kv.tables(program, counts)
    return run_commands(program.step(0), npu, "CA_HYBRID", memory=memory).cycles


FRONT = "Pareto front"
HEADS = ("method", "bits", "perplexity", "log likelihood to fp32", "top-1 agreement", "cycles", "tokens/s")


def table(rows: Sequence[Score]) -> Table:
    """Return a row for each method."""
    texts = [
        (row.method, f"{row.bits:.3f}", f"{row.perplexity:.3f}", f"{row.difference:+.4f} +- {row.error:.4f}",
         f"{row.agreement:.1%}", f"{row.cycles:,}", f"{row.tokens_per_second:,.1f}")
        for row in rows
    ]  # fmt: skip
    return Table(HEADS, [[Cell(line[0], kind="text"), *map(Cell, line[1:])] for line in texts])


def pareto_front(rows: Sequence[Score]) -> list[Score]:
    """Return, by bits, each method that no other method with at most as many bits beats in perplexity."""
    front = [
        row for row in rows if not any(rival.bits <= row.bits and rival.perplexity < row.perplexity for rival in rows)
    ]
    return sorted(front, key=lambda row: row.bits)


def chart(rows: Sequence[Score], of: str) -> Chart:
    """Return perplexity by bits, a labelled point for each method and a line along the Pareto front."""
    front = pareto_front(rows)
    data = [
        {"method": row.method, "bits": round_significant(row.bits), "perplexity": round_significant(row.perplexity),
         "kind": FRONT if row in front else "others"}
        for row in rows
    ]  # fmt: skip
    across = quantitative("bits", "bits of an element, logarithmic", (), zero=False)
    across["scale"] = {"type": "log", "domain": [min(row.bits for row in rows) / 1.1, 48]}
    across["axis"] = {"values": [1, 2, 4, 8, 16, 32]}
    place = {"x": across, "y": quantitative("perplexity", "perplexity", [row.perplexity for row in rows])}
    tooltip = [*tips(method="method"), numeric_tip("bits", "bits"), numeric_tip("perplexity", "perplexity")]
    layers: list[Spec] = [
        {"mark": "line", "transform": [{"filter": f"datum.kind === '{FRONT}'"}],
         "encoding": {**place, "color": colour("kind", [FRONT, "others"])}},
        {"mark": {"type": "point", "filled": True, "size": 60},
         "encoding": {**place, "color": colour("kind", [FRONT, "others"]), "tooltip": tooltip}},
        {"mark": {"type": "text", "align": "left", "dx": 7, "dy": -7},
         "encoding": {**place, "text": {"field": "method"}}},
    ]  # fmt: skip
    return Chart("perplexity", "Perplexity by bits", of, specification(data, layers, 360))
