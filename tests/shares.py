"""Selection from sets of similar tests for the default suite, `scripts/test --slow` and `scripts/test --nightly`."""

from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import settings


def draws(examples: int) -> int:
    """Return the number of examples to draw: a fifth, or all with `--hypothesis-profile=thorough`."""
    return max(1, examples * settings().max_examples // 100)


def slow(*cases: Any, ids: tuple[str, ...] = ()) -> list[Any]:
    """Return the cases of a parameter, marked slow."""
    names = ids or (None,) * len(cases)
    return [pytest.param(case, marks=pytest.mark.slow, id=name) for case, name in zip(cases, names, strict=True)]


def slow_rows(*rows: tuple[Any, ...]) -> list[Any]:
    """Return the cases of several parameters, marked slow."""
    return [pytest.param(*row, marks=pytest.mark.slow) for row in rows]


def sample(cases: Iterable[Any], interval: int) -> list[Any]:
    """Return the cases of a long comparison: all are nightly, except every `interval`-th, which is slow.

    A case of several parameters is a tuple.
    """
    marks = (pytest.mark.nightly, pytest.mark.slow)
    rows = (case if type(case) is tuple else (case,) for case in cases)
    return [pytest.param(*row, marks=marks[index % interval == 0]) for index, row in enumerate(rows)]
