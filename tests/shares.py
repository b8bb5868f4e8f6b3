"""What the default suite takes of tests that are many alike; continuous integration runs the rest beside the slow tests
(`scripts/test --slow`)."""

from typing import Any

import pytest
from hypothesis import settings


def draws(examples: int) -> int:
    """How many examples of so many are drawn: a fifth, and all with `--hypothesis-profile=thorough`."""
    return max(1, examples * settings().max_examples // 100)


def slow(*cases: Any, ids: tuple[str, ...] = ()) -> list[Any]:
    """Cases of a parameter that only the slow suite runs."""
    names = ids or (None,) * len(cases)
    return [pytest.param(case, marks=pytest.mark.slow, id=name) for case, name in zip(cases, names, strict=True)]
