"""Nearest rank against an independent formulation, and the refusal of P99 below 100 samples."""

import math
from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyv_npu.errors import UsageError
from pyv_npu.observe.latency.batches import Batches, nearest_rank, student
from pyv_npu.observe.latency.percentiles import Distribution

VALUES = st.lists(st.integers(0, 10**6), min_size=1, max_size=300)


@given(VALUES, st.integers(1, 100))
def test_nearest_rank_is_the_smallest_value_that_covers_the_share(values: list[int], percent: int) -> None:
    got = nearest_rank(sorted(values), percent)
    at_most = sum(1 for value in values if value <= got)
    below = sum(1 for value in values if value < got)
    needed = math.ceil(percent * len(values) / 100)
    assert below < needed <= at_most


def test_published_example_of_nearest_rank() -> None:
    # Wikipedia "Percentile", worked example of the nearest-rank method: 15, 20, 35, 40, 50.
    ordered = [15, 20, 35, 40, 50]
    assert [nearest_rank(ordered, p) for p in (5, 30, 40, 50, 100)] == [15, 20, 20, 35, 50]


def test_p99_needs_a_hundred_samples() -> None:
    short = Distribution(range(99))
    with pytest.warns(UserWarning, match=r"^p99 is None: 99 samples, below 100$"):
        assert short.p99 is None
    with pytest.raises(UsageError, match=r"P99 of 99 samples .* at least 100"):
        short.percentile(99)
    assert short.summary() is not None
    assert short.summary()["p99"] is None  # type: ignore[index]
    full = Distribution(range(100))
    assert full.p99 == 98
    assert full.summary()["p99"] == 98  # type: ignore[index]


def test_it_shows_itself() -> None:
    full, short = Distribution(range(1000, 1100)), Distribution([7])
    assert repr(full) == "<Distribution: n 100, p50 1049, p95 1094, p99 1098, min 1000, max 1099 cycles>"
    assert repr(short).endswith("p99 None, min 7, max 7 cycles; p99 is None: 1 samples, below 100>")
    assert repr(Distribution([])).startswith("<Distribution: n 0 cycles; p99 is None")
    assert " 1,049 " in full._repr_html_() and "is None" not in full._repr_html_()
    assert " - " in short._repr_html_() and "below 100" in short._repr_html_()


def test_no_samples() -> None:
    empty = Distribution([])
    assert empty.summary() is None
    with pytest.raises(UsageError, match="0 samples"):
        _ = empty.p50


@given(VALUES)
def test_counts_of_values_are_samples(values: list[int]) -> None:
    counted, listed = Distribution(Counter(values)), Distribution(values)
    assert (len(counted), counted.total, counted.cdf()) == (len(values), sum(values), listed.cdf())
    for percent in (1, 50, 95, 98, 99):
        if percent < 99 or len(values) >= 100:
            expected = nearest_rank(sorted(values), percent)
            assert counted.percentile(percent) == listed.percentile(percent) == expected
    assert listed.max == max(values)
    few, many = counted.summary(), listed.summary()
    assert few is not None and many is not None and few | {"ci95": None} == many | {"ci95": None}


@given(VALUES)
def test_cdf_ends_at_n_and_counts_values_at_most(values: list[int]) -> None:
    rows = Distribution(values).cdf()
    assert rows[-1] == (max(values), len(values))
    assert [count for _, count in rows] == [sum(1 for v in values if v <= value) for value, _ in rows]


def test_tails_need_as_many_samples_as_they_name() -> None:
    for count, known in ((999, ()), (1000, ("p99_9",)), (10_000, ("p99_9", "p99_99"))):
        summary = Distribution(range(count)).summary()
        assert summary is not None
        assert {name for name in ("p99_9", "p99_99") if summary[name] is not None} == set(known)
    assert summary["p99_9"] == 9989
    assert summary["p99_99"] == 9998


def waits(seed: int, count: int, load: float) -> Any:
    """Waits in a queue with Poisson arrivals and exponential service of 100 cycles (M/M/1), by Lindley's recurrence."""
    draw = np.random.default_rng(seed)
    steps = draw.exponential(100, count) - draw.exponential(100 / load, count)
    total = np.cumsum(steps)
    return np.rint(total - np.minimum.accumulate(np.minimum(total, 0))).astype(np.int64)


def test_intervals_hold_percentiles_of_waits_that_depend_on_each_other() -> None:
    """P(wait > t) = load * exp(-(1 - load) t / service) (Gross and Harris, "Fundamentals of Queueing Theory")."""
    load, count, runs = 0.6, 20_000, 20
    held = dict.fromkeys((50, 95, 99), 0)
    truth = {percent: 100 / (1 - load) * math.log(load / (1 - percent / 100)) for percent in held}
    independent = 0
    for seed in range(runs):
        batches = Batches()
        values = waits(seed, count, load)
        for chunk in np.array_split(values, 7):
            batches.extend(chunk)
        sample = Distribution(batches)
        for percent in held:
            interval = sample.interval(percent)
            assert interval is not None
            held[percent] += interval[0] <= truth[percent] <= interval[1]
        half = 1.96 * math.sqrt(0.95 * 0.05 * count)  # ranks that independent samples would leave
        ordered = np.sort(values)
        low, high = ordered[int(0.95 * count - half)], ordered[int(0.95 * count + half)]
        independent += low <= truth[95] <= high
    assert all(count >= 0.8 * runs for count in held.values()), held
    assert independent < 0.6 * runs


def test_few_samples_and_those_without_an_order_have_no_interval() -> None:
    assert Distribution(range(100)).interval(50) is None
    assert Distribution(range(1000)).interval(99) is None
    assert Distribution([5] * 2000).interval(95) is None and Distribution([5] * 2560).interval(95) == [5, 5]
    assert Distribution({5: 2000}).interval(50) is None


def test_students_quantiles_are_those_of_tables() -> None:
    for freedom, quantile in ((9, 2.2622), (15, 2.1314), (31, 2.0395), (63, 1.9983)):
        assert student(freedom) == pytest.approx(quantile, rel=1e-3)
