"""Methods against statements of their papers in numpy, written apart: errors within 1 %, bits exact; and caches that
grow by any steps against the codec at once."""

import dataclasses
import itertools
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import pyv_npu
from npu_device.abi.errors import NpuDeviceError
from npu_device.abi.kv_block import KvPolicy
from npu_device.kv_quant import codecs
from npu_device.kv_quant.codec import NO_POSITIONS, KvCodec, Rotary
from npu_device.kv_quant.codecs import CODECS, TokenCodec
from npu_device.kv_quant.methods import METHODS
from npu_device.kv_quant.storage import EncodedCache, KvAccess, Sizes, pages
from npu_device.memory.kv import KvCache
from npu_device.memory.region import Region
from pyv_npu.cli.shared.work import KV_METHODS
from pyv_npu.cli.verbs.serve import KV_DEFAULT
from pyv_npu.kv_quant import synthetic
from toolchain.decoders.shapes import KV_BITS

Array = np.ndarray[Any, Any]
TOKENS, HEADS, DIM = 300, 4, 64
WIDTH = HEADS * DIM
RANDOM = np.random.default_rng(7)
KEYS, VALUES = synthetic.keys(RANDOM, TOKENS, WIDTH), synthetic.values(RANDOM, TOKENS, WIDTH)
SAMPLES = {"k": synthetic.keys(np.random.default_rng(7), 500, WIDTH), "v": synthetic.values(RANDOM, 500, WIDTH)}
"""Calibration: other tokens, the same channels of keys."""


def test_run_and_serve_have_one_default() -> None:
    assert METHODS[KV_DEFAULT].bits == KV_BITS and not METHODS[KV_DEFAULT].encoded


def test_the_command_line_names_all_methods() -> None:
    assert list(KV_METHODS) == list(METHODS)


def test_no_other_part_asks_which_method_it_is() -> None:
    """Names of encoded methods and numbers of codecs are in codecs, the lists of the command line, and studies of a
    paper."""
    names = "|".join(name for name, method in METHODS.items() if method.encoded and name not in ("sparse", "delta"))
    asks = re.compile(rf"[\"']({names})[\"']|KvPolicy\.|\bcodecs\.[A-Z]")
    root = Path(pyv_npu.__file__).parent.parent
    files = [path for package in ("npu_device", "toolchain", "pyv_npu") for path in (root / package).rglob("*.py")]
    found = {str(path.relative_to(root)) for path in files if asks.search(path.read_text(encoding="utf-8"))}
    allowed = {"npu_device/abi/kv_block.py", "pyv_npu/cli/shared/work.py", "pyv_npu/cli/verbs/reproduce.py"}
    rest = {name for name in found - allowed if "/kv_quant/" not in name and "/reproductions/" not in name}
    assert not rest and len(files) > 300


# -- statements of the papers ------------------------------------------------------------------------------------------


def asymmetric(x: Array, axis: int, bits: int = 4) -> Array:
    """Round to nearest between the extremes along an axis."""
    low, high = x.min(axis=axis, keepdims=True), x.max(axis=axis, keepdims=True)
    step = (high - low) / (2**bits - 1)
    return np.rint((x - low) / np.where(step == 0, 1, step)) * step + low


def by_head(x: Array) -> Array:
    return asymmetric(x.reshape(len(x), HEADS, DIM), 2).reshape(x.shape)


def kivi_keys(x: Array, sample: Array) -> Array:
    """Algorithm 1: groups of 128 tokens by channel; the rest stays in full precision."""
    whole = len(x) // 128 * 128
    groups = [asymmetric(x[at : at + 128], 0) for at in range(0, whole, 128)]
    return np.concatenate([*groups, x[whole:]])


def kivi_values(x: Array, sample: Array) -> Array:
    """The latest 128 tokens stay in full precision."""
    return np.concatenate([by_head(x[:-128]), x[-128:]])


def qserve_keys(x: Array, sample: Array) -> Array:
    """Equation 9: lambda_i = max(|K_i|, |K_i + D/2|) ** 0.5 for the two channels of a rotary pair."""
    top = np.abs(sample).max(axis=0).reshape(HEADS, 2, DIM // 2).max(axis=1) ** 0.5
    divisor = np.concatenate((top, top), axis=1).reshape(-1)
    return by_head(x / divisor) * divisor


def tender(x: Array, sample: Array) -> Array:
    """Section 3: bias of a channel, groups whose scale is that of the largest divided by 2, 4, ..., 128."""
    bias = (sample.max(axis=0) + sample.min(axis=0)) / 2
    reach = np.abs(sample - bias).max(axis=0)
    read = np.empty_like(x)
    for channel in range(x.shape[1]):
        limit, shifts = reach.max(), 0
        while shifts < 7 and reach[channel] <= limit / 2:
            limit, shifts = limit / 2, shifts + 1
        scale = limit / 7
        read[:, channel] = np.clip(np.rint((x[:, channel] - bias[channel]) / scale), -7, 7) * scale + bias[channel]
    return read


def lloyd(x: Array) -> Array:
    """16 means of one-dimensional k-means."""
    means = np.linspace(x.min(), x.max(), 16)
    for _ in range(60):
        nearest = np.abs(x[:, None] - means).argmin(axis=1)
        means = np.array([x[nearest == at].mean() if (nearest == at).any() else means[at] for at in range(16)])
    return np.sort(means)


def levelled(scaled: Array, outlier: Array, levels: Array) -> Array:
    return np.where(outlier, scaled, levels[np.abs(scaled[..., None] - levels).argmin(axis=-1)])


def kvquant_keys(x: Array, sample: Array) -> Array:
    """Thresholds of each channel offline, 1 % of the elements beyond; non-uniform levels of the normalized rest."""
    low, high = np.percentile(sample, (0.5, 99.5), axis=0)
    middle, reach = (low + high) / 2, (high - low) / 2
    inside = (sample - middle) / reach
    levels = lloyd(inside[np.abs(inside) <= 1][::7])
    scaled = (x - middle) / reach
    return levelled(scaled, np.abs(scaled) > 1, levels) * reach + middle


def kvquant_values(x: Array, sample: Array) -> Array:
    """Thresholds of each token online: 0.5 % of the elements, rounded up, on each side."""
    count = int(np.ceil(0.005 * x.shape[1]))

    def normal(x: Array) -> tuple[Array, Array, Array, Array]:
        order = np.sort(x, axis=1)
        low, high = order[:, [count]], order[:, [-count - 1]]
        middle, reach = (low + high) / 2, (high - low) / 2
        return (x - middle) / reach, (x < low) | (x > high), middle, reach

    scaled, outlier, _, _ = normal(sample)
    levels = lloyd(scaled[~outlier][::7])
    scaled, outlier, middle, reach = normal(x)
    return levelled(scaled, outlier, levels) * reach + middle


def integers(x: Array, sample: Array, top: int, pruned: bool = False) -> tuple[Array, Array, Array]:
    """(integers of channels between the extremes of a sample, middle, unit); `pruned`: the half of a channel that is
    nearest to its middle is zero."""
    middle, unit = (sample.max(axis=0) + sample.min(axis=0)) / 2, (sample.max(axis=0) - sample.min(axis=0)) / 2 / top
    whole = np.clip(np.rint((x - middle) / unit), -top, top)
    dead = np.median(np.abs(sample - middle), axis=0) if pruned else 0
    return np.where(np.abs(x - middle) < dead, 0, whole), middle, unit


def by_channel(x: Array, sample: Array, top: int = 7, pruned: bool = False) -> Array:
    whole, middle, unit = integers(x, sample, top, pruned)
    coded = len(x) if pruned else len(x) // 16 * 16
    return np.concatenate(((whole * unit + middle)[:coded], x[coded:]))


def symmetric(x: Array, bits: int) -> Array:
    """Round to nearest, the largest magnitude of a head and token is the largest integer."""
    heads, top = x.reshape(len(x), HEADS, DIM), 2 ** (bits - 1) - 1
    scale = np.abs(heads).max(axis=2, keepdims=True) / top
    return (np.rint(heads / scale) * scale).reshape(x.shape)


def oaken_limits(sample: Array) -> tuple[float, float, float, float]:
    """Section 4.2: 2 % of the elements are beyond each outer threshold, 6 % between the inner ones."""
    low, inner_low = np.quantile(sample, (0.02, 0.47), method="lower")
    inner_high, high = np.quantile(sample, (0.53, 0.98), method="higher")
    return low, inner_low, inner_high, high


def oaken_groups(x: Array, sample: Array) -> tuple[Array, Array]:
    """Flags of the outer and of the inner group."""
    low, inner_low, inner_high, high = oaken_limits(sample)
    return (x <= low) | (x >= high), (inner_low < x) & (x < inner_high)


def oaken(x: Array, sample: Array) -> Array:
    """Equations 1 to 3: each group of a token is shifted to its threshold, and rounded between its extremes to 5 bits,
    the middle one to 4. Codes of one side stay on that side of zero, by which the threshold is added again."""
    low, inner_low, inner_high, high = oaken_limits(sample)
    outer, inner = oaken_groups(x, sample)
    read = np.empty_like(x)
    for token, whole in enumerate(x):
        for group, below, above, bits in (
            (outer[token], low, high, 5), (inner[token], 0.0, 0.0, 5),
            (~(outer[token] | inner[token]), inner_low, inner_high, 4),
        ):  # fmt: skip
            upper = whole[group] >= above
            shifted = whole[group] - np.where(upper, above, below)
            if not len(shifted):
                continue
            least, step = shifted.min(), (shifted.max() - shifted.min()) / (2**bits - 1) or 1.0
            codes = np.rint((shifted - least) / step)
            if above != below:
                first = np.ceil(-least / step)
                codes = np.where(upper, np.maximum(codes, first), np.minimum(codes, first - 1))
            numbers = codes * step + least
            read[token, group] = numbers + np.where(numbers >= 0, above, below)
    return read


def beyond(x: Array, sample: Array) -> float:
    low, high = np.percentile(sample, (0.5, 99.5), axis=0)
    return float(((x < low) | (x > high)).mean())


def escaped(x: Array, sample: Array, *, run: bool) -> float:
    """Share of integers that start a run, or differ from those before by more than one."""
    count, whole = 0, integers(x[:CODED], sample, 7)[0].astype(int)
    for channel in whole.T.tolist():
        for at in range(0, len(channel), 16):
            for before, here in itertools.pairwise([0, *channel[at : at + 16]]):
                count += here != before if run else abs(here - before) > 1
    return count / x.size


class Paper(NamedTuple):
    """What a paper says about keys, or values."""

    read: Callable[[Array, Array], Array]
    """(x, sample) -> x as it is read, in float64."""
    bits: float
    """Of an element, without entries."""
    entry: int = 0
    """Bits of an entry."""
    share: Callable[[Array, Array], float] = lambda x, sample: 0.0
    """(x, sample) -> elements with an entry."""


CODED = TOKENS // 16 * 16
"""Tokens in whole groups of 16; the others are fp16."""


def run_lengths(bits: int, *, run: bool) -> Paper:
    fixed = (bits * CODED + 16 * (TOKENS - CODED)) / TOKENS
    return Paper(by_channel, fixed, 8, lambda x, sample: escaped(x, sample, run=run))


def both(paper: Paper) -> tuple[Paper, Paper]:
    return paper, paper


def of_numbers(kind: Any, bits: int) -> tuple[Paper, Paper]:
    return both(Paper(lambda x, sample: x.astype(kind).astype(float), bits))


HEAD_TOKEN = Paper(lambda x, sample: by_head(x), 4 + 32 / DIM)
PAPERS: dict[str, tuple[Paper, Paper]] = {
    "fp16": of_numbers(np.float16, 16),
    "fp8_e4m3": of_numbers(ml_dtypes.float8_e4m3fn, 8),
    "fp8_e5m2": of_numbers(ml_dtypes.float8_e5m2, 8),
    "uniform8": both(Paper(lambda x, sample: symmetric(x, 8), 8 + 32 / DIM)),
    "uniform4": both(Paper(lambda x, sample: symmetric(x, 4), 4 + 32 / DIM)),
    "uniform2": both(Paper(lambda x, sample: symmetric(x, 2), 2 + 32 / DIM)),
    "oaken": both(Paper(oaken, 4 + 96 / WIDTH, 8, lambda x, sample: np.add(*oaken_groups(x, sample)).mean())),
    "kivi": (Paper(kivi_keys, ((4 + 32 / 128) * 256 + 16 * 44) / 300),
             Paper(kivi_values, ((4 + 32 / DIM) * 172 + 16 * 128) / 300)),
    "kvquant": (Paper(kvquant_keys, 4, 32, beyond),
                Paper(kvquant_values, 4 + 32 / WIDTH, 32, lambda x, sample: 4 / WIDTH)),
    "qserve": (Paper(qserve_keys, 4 + 32 / DIM), HEAD_TOKEN),
    "atom": both(HEAD_TOKEN),
    "tender": both(Paper(tender, 4)),
    "per_token4": both(Paper(lambda x, sample: asymmetric(x, 1), 4 + 32 / WIDTH)),
    "grouped_heads": both(HEAD_TOKEN),
    "rle": both(run_lengths(1, run=True)),
    "delta": both(run_lengths(2, run=False)),
    "sparse": both(Paper(lambda x, sample: by_channel(x, sample, 127, True), 1, 8,
                         lambda x, sample: (integers(x, sample, 127, True)[0] != 0).mean())),
}  # fmt: skip
"""Method -> statements of its keys and of its values."""


@pytest.mark.parametrize("side", ["k", "v"])
@pytest.mark.parametrize("name", METHODS)
def test_errors_are_those_of_the_paper_and_bytes_are_exact(name: str, side: str) -> None:
    """Bytes are those of the formula with the entries that are counted, whose share is the paper's within 0.2 %:
    thresholds are fp16."""
    x, sample, paper = {"k": KEYS, "v": VALUES}[side], SAMPLES[side], PAPERS[name]["kv".index(side)]
    method = METHODS[name]
    parameters = method.calibrate(sample, side, DIM)
    stored = method.store(x, side, DIM, parameters)
    wide = x.astype(np.float64), sample.astype(np.float64)
    error, expected = (float(np.linalg.norm(read - x)) for read in (stored.numbers, paper.read(*wide)))
    assert error == pytest.approx(expected, rel=0.01)
    entries = int(stored.counts.sum())
    assert stored.size * 8 == pytest.approx(paper.bits * x.size + paper.entry * entries, rel=1e-12)
    assert entries == pytest.approx(paper.share(*wide) * x.size, rel=0.002)


@pytest.mark.parametrize("rotary", [Rotary(0.5 ** np.arange(DIM // 4, dtype=np.float32), True),
                                    Rotary(0.5 ** np.arange(DIM // 2, dtype=np.float32))])  # fmt: skip
def test_keys_of_kvquant_are_stored_as_they_are_before_rotary_positions(rotary: Rotary) -> None:
    """Channels that positions turn are no channels of like numbers: the error is that of the keys before."""
    codec = CODECS[KvPolicy.CHANNEL_LEVELS]
    pairs = np.arange(len(KEYS))[:, None, None] * rotary.frequencies
    whole = KEYS.astype(np.float64).reshape(len(KEYS), -1, DIM)
    at = np.arange(2 * len(rotary.frequencies)).reshape((-1, 2) if rotary.neighbours else (2, -1))
    first, second = at.T if rotary.neighbours else at
    number = (whole[..., first] + 1j * whole[..., second]) * np.exp(1j * pairs)
    whole[..., first], whole[..., second] = number.real, number.imag
    x = whole.reshape(KEYS.shape).astype(np.float32)
    np.testing.assert_allclose(rotary.turn(x, DIM, 0, back=True), KEYS, atol=1e-4)
    sample = rotary.turn(SAMPLES["k"], DIM, 0)
    turned, other = (codec.store(x, DIM, codec.calibrate([sample], DIM, rotary=positions)).numbers - x
                     for positions in (rotary, NO_POSITIONS))  # fmt: skip
    paper = kvquant_keys(KEYS.astype(np.float64), SAMPLES["k"].astype(np.float64)) - KEYS
    assert np.linalg.norm(turned) == pytest.approx(np.linalg.norm(paper), rel=0.01)
    assert np.linalg.norm(turned) < np.linalg.norm(other)


def test_oaken_beats_five_uniform_bits_with_fewer() -> None:
    """Section 2.4 of the requirements; the other codec of one scale a token."""
    for x, side in ((KEYS, "k"), (VALUES, "v")):
        oaken, five = METHODS["oaken"], TokenCodec(5)
        parameters = oaken.calibrate(SAMPLES[side], side, DIM)
        errors = [np.linalg.norm(read - x) for read in
                  (oaken.store(x, side, DIM, parameters).numbers, five.store(x, DIM, parameters).numbers)]  # fmt: skip
        assert errors[0] < errors[1]
        assert five.store(x, DIM, parameters).size * 8 == x.size * (5 + 32 / WIDTH)


# -- storage -----------------------------------------------------------------------------------------------------------


class Memory:
    """Bytes of one cache."""

    def __init__(self, size: int) -> None:
        self.data = np.zeros(size, np.uint8)

    def read(self, region: Region) -> Array:
        address, rows, size, stride = region
        return np.stack([self.data[address + row * stride :][:size] for row in range(rows)])

    def write(self, region: Region, data: Array) -> None:
        address, rows, size, stride = region
        for row, part in enumerate(np.split(np.asarray(data).reshape(-1), rows)):
            self.data[address + row * stride :][:size] = part


@settings(max_examples=40, deadline=None)
@given(st.sampled_from(sorted(CODECS)), st.lists(st.integers(1, 140), min_size=1, max_size=6), st.integers(0, 99))
def test_a_cache_that_grows_reads_as_the_codec_does_at_once(policy: int, steps: list[int], seed: int) -> None:
    codec: KvCodec = CODECS[policy]
    total = sum(steps)
    x = synthetic.keys(np.random.default_rng(seed), total, WIDTH).astype(np.float16).astype(np.float32)
    parameters = codec.calibrate([KEYS], DIM, rotary=Rotary(0.5 ** np.arange(DIM // 2, dtype=np.float32)))
    cache = EncodedCache(0, HEADS, total, DIM, codec)
    memory, first = Memory(cache.size), 0
    for step in steps:
        writes, latest = cache.append(memory.read, first, x[first : first + step], parameters)
        before = cache.decoded(memory.read, first, parameters)
        for region, data in writes:
            assert region.end <= cache.size
            memory.write(region, data)
        first += step
        read = cache.read(memory.read, first, parameters)
        assert np.array_equal(np.concatenate((before, latest), axis=1), read)
    expected = codec.store(x, DIM, parameters).numbers.reshape(total, HEADS, DIM).transpose(1, 0, 2)
    np.testing.assert_array_equal(read.astype(np.float32), expected)
    lengths = cache.lengths(memory.read, cache.coded(total)).sum(axis=0).tolist()
    assert pages(cache, total, lengths, 4096).payload == codec.store(x, DIM, parameters).size


@pytest.mark.parametrize("name", METHODS)
def test_bytes_of_tokens_are_those_that_their_appends_write(name: str) -> None:
    """Equal but for rounding, the counts, and the tail, whose tokens are written twice."""
    method, tokens = METHODS[name], 1280
    cache = KvCache(0, 1, HEADS, tokens, DIM, (method.bits,) * HEADS)
    written = tokens * sum(map(sum, method.written(HEADS, DIM)))
    for encoded in method.caches(HEADS, tokens, DIM):
        coded = encoded.coded(tokens)
        written -= tokens * encoded.chunks
        if encoded.codec.tail:
            written -= coded * WIDTH * 2 + (tokens - coded) * (WIDTH // 2 + HEADS * 4 * DIM // 128)
    assert method.stored_bytes(cache, tokens) == pytest.approx(written, rel=0.02)
    assert bool(method.stated(cache, tokens)) == method.encoded


def test_kivi_keeps_the_bits_of_the_requirements() -> None:
    """O13: (4.25 (T - 128) + 16 x 128) / T at T = 2,048 and D = 128: values; keys have left the tail."""
    x = np.zeros((2048, 128), np.float32)
    keys, values = (METHODS["kivi"].store(x, side, 128, METHODS["kivi"].calibrate(x, side, 128)).bits for side in "kv")
    assert values == pytest.approx(4.984, abs=0.001) and keys == 4.25


@pytest.mark.parametrize("policy", [policy for policy, codec in CODECS.items() if codec.tail])
def test_tokens_that_all_wait_in_the_tail_take_no_entries(policy: int) -> None:
    cache = EncodedCache(0, HEADS, 3, DIM, CODECS[policy])
    memory = Memory(cache.size)
    writes, _ = cache.append(memory.read, 0, KEYS[:3], CODECS[policy].calibrate([KEYS], DIM))
    for region, data in writes:
        memory.write(region, data)
    encoded = cache.encoded(memory.read, 3)
    assert encoded.payload == 0 and cache.stream_bytes(encoded.counts).sum() == 0


def test_pages_of_a_ring_stay() -> None:
    """A group of keys leaves the tail; its pages stay for the next one."""
    cache = EncodedCache(0, 1, 256, 64, codecs.CHANNEL_GROUP)

    def rows(tokens: int) -> list[int]:
        access = KvAccess(cache, tokens, 1, Sizes(np.zeros((cache.coded(tokens) + 1, 0), np.int64)))
        return [span.size for span in access.row_bytes()]

    assert rows(127) == [0, 127 * 128, 0]
    assert rows(128) == [128 * 32, 128 * 128, 64 * 4] and rows(130) == rows(128)


def test_tokens_before_a_window_are_passed_once_they_have_left_the_tail() -> None:
    cache = EncodedCache(0, 1, 512, 64, codecs.AGED_TOKEN)

    def dense(tokens: int, first: int) -> tuple[int, ...]:
        span = KvAccess(cache, tokens, 1, Sizes(np.zeros((tokens, 0), np.int64)), first).row_bytes()[0]
        return tuple(size // 32 for size in (span.size, span.stored, span.passed))

    assert dense(257, 100) == (129, 128, 100)
    assert dense(257, 200) == (129, 128, 128), "those up to 200 wait in the tail"


def test_a_chunk_has_no_more_entries_than_elements() -> None:
    cache = EncodedCache(0, HEADS, 4, DIM, codecs.OAKEN)
    memory, counts = Memory(cache.size), np.zeros((4, cache.chunks), np.uint8)
    counts[0, 0], counts[1, 0] = 64, 65
    memory.write(cache.rows("counts", 0, 4), counts)
    assert cache.lengths(memory.read, 1).sum() == 64
    with pytest.raises(NpuDeviceError, match="token 1 has a chunk of 65 outliers, a chunk has 64 elements"):
        cache.lengths(memory.read, 2)


def test_codes_of_grouped_heads_lie_side_by_side() -> None:
    """An append writes a token's codes of four heads at once; with three heads each has rows of its own."""
    cache = EncodedCache(0, 4, 8, 64, codecs.GROUPED_HEADS)
    x = np.arange(3 * 4 * 64, dtype=np.float32).reshape(3, -1) % 7
    writes, _ = cache.append(Memory(cache.size).read, 0, x, codecs.HEAD_TOKEN.calibrate([x], 64))
    assert [(region.rows, region.row_bytes) for region, _ in writes] == [(1, 3 * 128), (1, 3 * 16)]
    apart = EncodedCache(0, 4, 8, 64, codecs.HEAD_TOKEN)
    writes, _ = apart.append(Memory(apart.size).read, 0, x, codecs.HEAD_TOKEN.calibrate([x], 64))
    assert [(region.rows, region.row_bytes) for region, _ in writes] == [(4, 3 * 32), (4, 3 * 4)]
    assert codecs.GROUPED_HEADS.head_group(3) == 1 and codecs.GROUPED_HEADS.head_group(6) == 2


@pytest.mark.parametrize("policy", [KvPolicy.RUNS, KvPolicy.NONZERO])
def test_codes_and_counts_that_contradict_each_other_are_refused(policy: int) -> None:
    codec, x = CODECS[policy], KEYS[:16]
    parameters = codec.calibrate([KEYS], DIM)
    encoded = codec.encode(x, DIM, parameters)
    counts = encoded.counts.copy()
    counts[3, 1] += 1
    with pytest.raises(NpuDeviceError, match="counts of chunks"):
        codec.decode(dataclasses.replace(encoded, counts=counts), DIM, parameters)
