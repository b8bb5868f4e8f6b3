"""The search for the highest rate within limits, against a server whose capacity is known."""

from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from pyv_npu.errors import BadInputError
from pyv_npu.serving.requests import Request, Workload
from pyv_npu.serving.study import ServedWorkload, Trial, find_rate


@dataclass(frozen=True)
class Served:
    """Figures of a run at a rate; stands in for ServedWorkload."""

    rate: float
    capacity: float
    count: int = 1000
    overload: float = 1e9
    trials: tuple[Trial, ...] = field(default=())

    @property
    def figures(self) -> dict[str, Any]:
        good = self.count if self.rate <= self.capacity else self.count // 2
        times = {"p99": 1, "mean": 1e9}
        return {
            "good_requests": good, "requests": self.count, "refused": 0, "ttft_ns": times, "tpot_ns": None,
            "e2e_ns": times, "goodput": self.rate * good / self.count, "overload": self.rate > self.overload,
        }  # fmt: skip


def search(capacity: float, first: float, **others: Any) -> ServedWorkload:
    return find_rate(lambda rate: cast(ServedWorkload, Served(rate, capacity, **others)), first)


@pytest.mark.parametrize("first", [0.5, 7.3, 100.0])
def test_it_ends_below_the_capacity_and_near_it(first: float) -> None:
    found = search(7.3, first)
    good = [trial.rate for trial in found.trials if not trial.problem]
    assert 7.3 / 1.02 < max(good) <= 7.3 and len(found.trials) < 20
    assert list(found.trials) == sorted(found.trials)
    assert cast(Any, found).rate == max(good)


def test_a_problem_is_named() -> None:
    assert search(7.3, 1.0, overload=3.0).trials[-1].problem == "requests arrive faster than they are answered"
    # 100 requests of a second each arrive within four seconds above 25 per second
    few = search(1000.0, 1.0, count=100)
    assert max(trial.rate for trial in few.trials if not trial.problem) <= 25
    assert few.trials[-1].problem == "100 requests are too few to tell: a larger --first"


def test_no_rate_is_low_or_high_enough() -> None:
    with pytest.raises(BadInputError, match="misses the limits; give other --slo"):
        search(1e-9, 1.0)
    with pytest.raises(BadInputError, match="no rate is too high"):
        search(1e9, 1.0, count=10**6)


def test_times_are_scaled_to_the_rate() -> None:
    requests = tuple(Request(index, index * 250_000_000, 1, 1) for index in range(5))
    workload = Workload("x", "poisson", requests)
    assert workload.rate == 4.0
    assert [one.arrival_ns for one in workload.at_rate(8.0).requests] == [0, 125e6, 250e6, 375e6, 500e6]
