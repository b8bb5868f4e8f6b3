"""Rounding of weights that carries the error of each row of a matrix to the rows after it (arXiv 2210.17323).

The error that counts is that of the product. It is a square form of the error of the weights, with the second moments
of the activations: a row takes over what is correlated with the rows before it.
"""

import numpy as np

from toolchain.ir.graph import Values
from toolchain.quantize.scales import least_squares_scales

DAMPING = 0.01
"""Part of the mean second moment that is added to each, as in the paper: few samples leave directions without any."""
BLOCK = 128
"""Rows between two updates of all rows after them, as in the paper."""


def gptq(weights: Values, moments: Values, top: int, group: int = 0) -> list[tuple[Values, Values]]:
    """Round weights [k, n] to codes of -top..top with a scale for each column of `group` rows, 0: of all. `moments`:
    [k, k], sums of products of the activations. Return (codes as INT8 [rows, n], scales as FP32 [n]) of each group."""
    rows = len(weights)
    size, step = group or rows, group or BLOCK
    mean = np.trace(moments) / rows
    inverse = np.linalg.inv(moments + np.eye(rows) * (DAMPING * mean or 1))
    factor = np.linalg.cholesky((inverse + inverse.T) / 2).T
    wide, codes = weights.astype(np.float64), np.zeros(weights.shape, np.int8)
    scales = list[Values]()
    for start in range(0, rows, step):
        end = min(start + step, rows)
        if start % size == 0:
            scales.append(least_squares_scales(wide[start : start + size].T, top))
        errors = np.zeros((end - start, weights.shape[1]))
        for row in range(start, end):
            codes[row] = np.clip(np.rint(wide[row] / scales[-1]), -top, top)
            errors[row - start] = (wide[row] - codes[row] * scales[-1].astype(np.float64)) / factor[row, row]
            wide[row + 1 : end] -= np.outer(factor[row, row + 1 : end], errors[row - start])
        wide[end:] -= factor[start:end, end:].T @ errors
    return [(codes[index * size : (index + 1) * size], scale) for index, scale in enumerate(scales)]
