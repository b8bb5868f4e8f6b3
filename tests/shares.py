"""Shares of tests that are many alike: what the default suite, `scripts/test --slow` and each
night (`scripts/test --nightly`) take of them."""

from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import settings


def draws(examples: int) -> int:
    """Examples that are drawn of so many: a fifth, and all with `--hypothesis-profile=thorough`."""
    return max(1, examples * settings().max_examples // 100)


def slow(*cases: Any, ids: tuple[str, ...] = ()) -> list[Any]:
    """Cases of a parameter that only the slow suite runs."""
    names = ids or (None,) * len(cases)
    return [pytest.param(case, marks=pytest.mark.slow, id=name) for case, name in zip(cases, names, strict=True)]


def slow_rows(*rows: tuple[Any, ...]) -> list[Any]:
    """Cases of several parameters that only the slow suite runs."""
    return [pytest.param(*row, marks=pytest.mark.slow) for row in rows]


def sample(cases: Iterable[Any], interval: int) -> list[Any]:
    """Cases of a long judge: each night all, with `--slow` the first and then one of `interval`.

    A case of several parameters is a tuple.
    """
    marks = (pytest.mark.nightly, pytest.mark.slow)
    rows = (case if type(case) is tuple else (case,) for case in cases)
    return [pytest.param(*row, marks=marks[index % interval == 0]) for index, row in enumerate(rows)]
