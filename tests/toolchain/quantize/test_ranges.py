"""Ranges of tensors from samples, against numpy."""

import numpy as np
import pytest

from toolchain.errors import ModelError
from toolchain.quantize.ranges import Histogram, parse_method


def observed(*samples: np.ndarray) -> Histogram:
    made = Histogram(counting=True)
    for sample in samples:
        made.add(sample)
    return made


RANDOM = np.random.default_rng(3).standard_normal(50_000).astype(np.float32)


def test_the_whole_range() -> None:
    assert observed(RANDOM[:9], RANDOM).range("minmax", 100) == (float(RANDOM.min()), float(RANDOM.max()))


@pytest.mark.parametrize("share", [99.0, 99.9])
@pytest.mark.parametrize("shift", [0.0, 3.0])
def test_a_share_is_that_of_numpy_within_a_bin(share: float, shift: float) -> None:
    """Samples of which each is wider than the one before, so that bins are merged."""
    values = RANDOM + np.float32(shift)
    parts = np.split(values[np.argsort(np.abs(values))], 5)
    low, high = observed(*parts).range("percentile", share)
    wanted = np.percentile(values, [100 - share, share])
    assert np.abs(np.array([low, high]) - wanted).max() <= 0.01


def squared_error(values: np.ndarray, limit: float, codes: int) -> float:
    """Of numbers that are rounded to `codes` steps up to a limit, and end there."""
    step = limit / codes
    return float(((np.clip(np.rint(values / step), -codes, codes) * step - values) ** 2).sum())


def test_entropy_leaves_out_what_is_rare_and_far_away() -> None:
    """Never at the price of a larger squared error than that of the whole range."""
    values = np.random.default_rng(4).standard_t(2, 50_000).astype(np.float32)
    largest = float(np.abs(values).max())
    limit = max(map(abs, observed(values).range("entropy", 100)))
    assert limit < 0.8 * largest
    assert squared_error(values, limit, 127) <= 0.9 * squared_error(values, largest, 127)


def test_entropy_of_even_and_of_few_numbers_is_the_whole_range() -> None:
    """Bins of few samples differ by chance, and zeros behind Relu lie in every range."""
    even = np.linspace(-1, 1, 60_000, dtype=np.float32)
    assert np.abs(np.array(observed(even).range("entropy", 100))).min() > 0.95
    for count in (300, 3000):
        values = np.maximum(RANDOM[:count], 0)
        assert observed(values).range("entropy", 100)[1] > 0.9 * values.max()


def test_nothing_but_zeros() -> None:
    for method in ("minmax", "percentile", "entropy"):
        assert observed(np.zeros(5, np.float32)).range(method, 99.0) == (0, 0)


def test_methods_by_name() -> None:
    assert parse_method("minmax")[0] == "minmax" and parse_method("percentile:99.5") == ("percentile", 99.5)
    for wrong in ("mean", "percentile:", "percentile:101", "percentile:x", "entropy:3", ""):
        with pytest.raises(ModelError, match=f"--calibration-method {wrong}: must be minmax"):
            parse_method(wrong)
