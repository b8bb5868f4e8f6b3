"""Rounding that carries errors on: against the algorithm row by row, and against rounding to the nearest."""

from typing import Any

import numpy as np
import pytest

from toolchain.quantize.gptq import BLOCK, gptq
from toolchain.quantize.scales import least_squares_scales

Array = np.ndarray[Any, Any]


def by_conditional_means(weights: Array, moments: Array, top: int, group: int) -> Array:
    """Codes by the definition: what is left of the product is least where the rows after a row that is rounded move to
    their optimum, which is solved anew for each row."""
    rows = len(weights)
    damped = moments + np.eye(rows) * 0.01 * np.trace(moments) / rows
    wide, codes = weights.astype(np.float64), np.zeros(weights.shape, int)
    scale = least_squares_scales(wide[: group or rows].T, top)
    for row in range(rows):
        if group and row % group == 0:
            scale = least_squares_scales(wide[row : row + group].T, top)
        codes[row] = np.clip(np.rint(wide[row] / scale), -top, top)
        error = wide[row] - codes[row] * scale.astype(np.float64)
        after = slice(row + 1, rows)
        wide[after] += np.outer(np.linalg.solve(damped[after, after], damped[after, row]), error)
    return codes


@pytest.mark.parametrize(("group", "rows"), [(0, BLOCK + 22), (32, 80), (64, 64)])
def test_codes_are_those_of_the_definition(group: int, rows: int) -> None:
    random = np.random.default_rng(group)
    weights = random.standard_normal((rows, 5)).astype(np.float32)
    x = random.standard_normal((400, rows)) @ random.standard_normal((rows, rows))
    codes = np.concatenate([codes for codes, _ in gptq(weights, x.T @ x, 7, group)])
    assert np.mean(codes != by_conditional_means(weights, x.T @ x, 7, group)) < 0.01  # where numbers lie between codes


def test_activations_that_are_not_correlated_leave_the_nearest() -> None:
    weights = np.random.default_rng(2).standard_normal((64, 7)).astype(np.float32)
    scales = least_squares_scales(weights.T.astype(np.float64), 1)
    ((codes, same),) = gptq(weights, np.eye(64), 1)
    assert np.array_equal(same, scales)
    assert np.array_equal(codes, np.clip(np.rint(weights / scales), -1, 1).astype(np.int8))


def test_activations_of_zero_are_no_error() -> None:
    assert np.isfinite(gptq(np.ones((3, 2), np.float32), np.zeros((3, 3)), 7)[0][1]).all()
