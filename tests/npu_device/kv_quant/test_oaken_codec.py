"""Oaken's codec: the golden vector, the plain definition beside the fast form, what holds of every encoding."""

from typing import Any

import numpy as np
import oaken_plain
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from shares import draws

from npu_device.abi.errors import NpuDeviceError
from npu_device.kv_quant import oaken
from npu_device.kv_quant.codec import Encoded, entropy_bound
from npu_device.kv_quant.storage import EncodedCache, Parameters
from npu_device.kv_quant.thresholds import Thresholds
from npu_device.memory.region import Region

GOLDEN = Thresholds(-4.0, -0.125, 0.125, 4.0)
NORMAL = Thresholds(-2.05, -0.075, 0.075, 2.05).check("")
SETS = (
    NORMAL,
    GOLDEN,
    Thresholds(0.5, 1.0, 1.0, 2.0),
    Thresholds(-1.0, -1.0, -1.0, -1.0),
    Thresholds(0.0, 0.0, 0.0, 0.0),
)


def golden() -> Any:
    x = np.array([((index * 37) % 61 - 30) / 10 for index in range(64)], np.float32)
    x[[3, 17, 40, 5, 9, 50]] = [8, -6.5, 5, 0.0625, -0.03125, 0]
    return x


def test_the_golden_vector() -> None:
    """Specification O14, byte for byte."""
    made = oaken.encode(golden()[None], GOLDEN)
    assert made.dense.tobytes().hex() == "90f3974abda1d42f0b8eb2e5386c9fc307497da1d1105afeb2ef286b8fc30639"
    assert made.sparse.tobytes().hex() == "c385090e51e82aaf32"
    assert made.counts.tolist() == [[9]]
    assert made.meta.tobytes().hex() == "00c1b632c0c1223666ae9b1e"
    read = oaken.decode(made, GOLDEN)[0]
    assert read[[3, 17, 40]].tolist() == [8.0, -6.5, 5.06640625]
    assert read[[5, 50]].tolist() == [0.061279296875, -0.003215789794921875]


@settings(max_examples=draws(40), deadline=None)
@given(
    st.integers(0, 2**32 - 1), st.sampled_from(SETS), st.sampled_from(oaken.OUTLIER_CODES),
    st.sampled_from([0.0, 1e-7, 0.1, 1.0, 30.0]), st.booleans(),
)  # fmt: skip
def test_the_fast_form_is_the_plain_one(seed: int, t: Thresholds, code: str, scale: float, rounded: bool) -> None:
    """Bytes and numbers, with elements on thresholds, empty groups and equal extremes among them."""
    random = np.random.default_rng(seed)
    x = (random.standard_t(3, (2, 128)) * scale).astype(np.float32)
    x = np.round(x * 8) / 8 if rounded else x
    made, plain = oaken.encode(x, t, code), oaken_plain.encode(x.tolist(), t, code)
    for name in ("dense", "counts", "sparse", "meta"):
        assert np.array_equal(getattr(made, name), getattr(plain, name)), name
    rows = [oaken_plain.decode_token(*oaken_plain.encode_token(row.tolist(), t, code), t, code) for row in x]
    assert np.array_equal(oaken.decode(made, t, code), np.array(rows, np.float16))


def test_a_side_that_rounding_left_without_a_code_gets_one() -> None:
    """Steps that fp16 rounds down would put the largest code of a group below zero."""
    x = np.ones((64, 64), np.float32)
    x[:, 0], x[:, 1] = -4 - np.linspace(1, 2, 64), np.nextafter(np.float32(4), np.float32(5))
    made = oaken.encode(x, GOLDEN)
    meta = made.meta.view(np.float16).reshape(64, 3, 2).astype(np.float32)
    low, step = meta[:, oaken.OUTER].T
    assert (low < 0).all() and (low + oaken.OUTLIER_TOP * step >= 0).all()
    assert np.array_equal(made.sparse, oaken_plain.encode(x.tolist(), GOLDEN, oaken.MSB_CLAMP).sparse)


@pytest.mark.parametrize("code", oaken.OUTLIER_CODES)
def test_no_outlier_changes_its_side_and_errors_are_at_most_a_step(code: str) -> None:
    """O10 over 320 token-vectors: with msb_clamp nothing decodes on the wrong side, sign_mag keeps outer elements."""
    random = np.random.default_rng(7)
    x = (random.standard_t(4, (320, 256)) * random.lognormal(0, 0.5, 256)).astype(np.float32)
    t = Thresholds(-2.6, -0.08, 0.08, 2.6).check("")
    made = oaken.encode(x, t, code)
    read = oaken.decode(made, t, code).astype(np.float32)
    outer = (x <= t.outer_low) | (x >= t.outer_high)
    assert outer.any() and np.array_equal(read[outer] > 0, x[outer] > 0)
    if code == oaken.MSB_CLAMP:
        middle = ~outer & ((x <= t.inner_low) | (x >= t.inner_high))
        assert np.array_equal(read[middle] > 0, x[middle] > 0)
        step = made.meta.view(np.float16).astype(np.float32)[:, 1::2]
        inner = ~outer & ~middle
        for group, mask in enumerate((outer, middle, inner)):
            bound = np.broadcast_to(
                step[:, group : group + 1] + 2.0**-9 * np.abs(x).max(axis=1, keepdims=True), x.shape
            )
            assert (np.abs(read - x)[mask] <= bound[mask]).all()


def test_bytes_are_those_of_the_formula() -> None:
    """O13, O15: dense C/2, a byte an outlier, 12 bytes a token."""
    x = np.random.default_rng(1).standard_normal((8, 4096)).astype(np.float32)
    made = oaken.encode(x, NORMAL)
    outliers = int(((np.abs(x) >= -NORMAL.outer_low) | (np.abs(x) < NORMAL.inner_high)).sum())
    assert len(made.sparse) == int(made.counts.sum()) == outliers
    assert made.payload == x.size // 2 + outliers + 12 * len(x)
    assert 8 * made.payload / x.size == pytest.approx(4 + 8 * outliers / x.size + 96 / 4096)


def test_encoding_what_was_decoded_gives_the_same_codes_again_where_groups_are_apart() -> None:
    """Elements well inside their groups: a second round changes nothing of the groups."""
    x = golden()[None]
    once = oaken.encode(x, GOLDEN)
    again = oaken.encode(oaken.decode(once, GOLDEN), GOLDEN)
    assert np.array_equal(once.sparse & 127, again.sparse & 127) and np.array_equal(once.counts, again.counts)


@pytest.mark.parametrize(
    ("x", "code", "said"),
    [
        (np.zeros((1, 96)), "msb_clamp", "a token-vector of 96 elements: must be a multiple of 64"),
        (np.full((1, 64), np.nan), "msb_clamp", "token 0 has an element that is NaN, infinite or beyond fp16"),
        (np.full((1, 64), 7e4), "msb_clamp", "token 0 has an element that is NaN, infinite or beyond fp16"),
        (np.zeros((1, 64)), "huffman", "outlier_code huffman: must be one of msb_clamp, sign_mag"),
    ],
)
def test_what_cannot_be_encoded(x: Any, code: str, said: str) -> None:
    with pytest.raises(NpuDeviceError, match=said):
        oaken.encode(x, NORMAL, code)


def test_one_element_beyond_fp16_is_enough() -> None:
    x = np.ones((1, 64))
    x[0, 5] = 7e4
    for form, tokens in ((oaken, x), (oaken_plain, x.tolist())):
        with pytest.raises(NpuDeviceError, match="beyond fp16"):
            form.encode(tokens, NORMAL, "msb_clamp")


def test_counts_and_entries_must_agree() -> None:
    made = oaken.encode(golden()[None], GOLDEN)
    with pytest.raises(NpuDeviceError, match="8 sparse entries"):
        oaken.decode(Encoded(made.dense, made.counts, made.sparse[:-1], made.meta), GOLDEN)


def test_counts_of_outliers_that_are_assumed_add_up_to_their_share() -> None:
    cache = EncodedCache(64, 2, 9, 96)
    counts = np.frombuffer(cache.expected_counts(100), np.uint8)
    assert len(counts) == cache.chunks * 9
    assert counts.max() - counts.min() <= 1 and abs(counts.sum() - 0.1 * 9 * 2 * 96) < 1


@pytest.mark.parametrize(("heads", "size"), [(2, 32), (1, 128), (4, 16), (4, 80), (2, 96), (3, 64)])
def test_a_cache_gives_back_what_was_appended_in_any_portions(heads: int, size: int) -> None:
    """The bytes of tokens do not depend on how many came at once; chunks may cover several heads."""
    cache, parameters = EncodedCache(64, heads, 9, size), Parameters(NORMAL)
    x = np.random.default_rng(heads).standard_normal((9, heads * size)).astype(np.float32)
    memories = []
    for portions in ((9,), (4, 1, 1, 3)):
        memory = np.zeros(64 + cache.size, np.uint8)

        def read(region: Region, memory: Any = memory) -> Any:
            at = np.arange(region.rows)[:, None] * region.stride + np.arange(region.row_bytes) + region.address
            return memory[at]

        first = 0
        for count in portions:
            writes, seen = cache.append(read, first, x[first : first + count], parameters)
            for region, data in writes:
                at = np.arange(region.rows)[:, None] * region.stride + np.arange(region.row_bytes) + region.address
                memory[at] = data.reshape(at.shape)
            first += count
            assert np.array_equal(cache.read(read, first, parameters)[:, first - count :], seen)
        wanted = oaken.decode(oaken.encode(x, NORMAL), NORMAL).reshape(9, heads, size).transpose(1, 0, 2)
        assert np.array_equal(cache.read(read, 9, parameters), wanted)
        memories.append(memory)
    assert np.array_equal(*memories)


@pytest.mark.parametrize("code", oaken.OUTLIER_CODES)
@pytest.mark.parametrize("taken", [(0, 1, 2, 3), (1, 2), (0, 3), (1,), (2,)])
def test_elements_on_thresholds_keep_their_side(taken: tuple[int, ...], code: str) -> None:
    """Shifted they are all 0: the smallest number of fp16 tells the sides. sign_mag keeps those of outer elements."""
    x = np.resize(np.array(GOLDEN, np.float32)[list(taken)], 64)[None]
    made, plain = oaken.encode(x, GOLDEN, code), oaken_plain.encode(x.tolist(), GOLDEN, code)
    for name in ("dense", "counts", "sparse", "meta"):
        assert np.array_equal(getattr(made, name), getattr(plain, name)), name
    kept = np.abs(x) == 4 if code == oaken.SIGN_MAG else np.ones_like(x, bool)
    assert np.array_equal(oaken.decode(made, GOLDEN, code)[kept], x[kept])


def test_an_outlier_code_that_there_is_not_is_refused() -> None:
    made, row = oaken.encode(golden()[None], GOLDEN), golden().tolist()
    parts = oaken_plain.encode_token(row, GOLDEN)
    for call in (
        lambda: oaken.encode(golden()[None], GOLDEN, "none"), lambda: oaken.decode(made, GOLDEN, "none"),
        lambda: oaken_plain.encode_token(row, GOLDEN, "none"), lambda: oaken_plain.decode_token(*parts, GOLDEN, "none"),
    ):  # fmt: skip
        with pytest.raises(NpuDeviceError, match="outlier_code none: must be one of"):
            call()


def test_the_entropy_bound_is_that_of_equal_and_of_single_symbols() -> None:
    """Nibbles that are all alike cost nothing, 16 equally frequent ones 4 bits; entries and metadata come on top."""

    def encoded(dense: list[int], sparse: list[int]) -> Encoded:
        tokens = np.array([dense], np.uint8)
        return Encoded(tokens, np.zeros((1, 1), np.uint8), np.array(sparse, np.uint8), np.zeros((1, 0), np.uint8))

    assert entropy_bound(encoded([0x33] * 32, []), 4) == 0
    assert entropy_bound(encoded([at | 15 - at << 4 for at in range(16)] * 2, []), 4) == 4
    assert entropy_bound(encoded([0x33] * 32, [1, 2, 3, 4]), 4) == 4 * 2 / 64
