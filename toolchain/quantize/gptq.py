"""GPTQ (arXiv 2210.17323): weights are rounded row by row, and later rows compensate the error of each row.

Weights are [k, n], the transpose of the paper's W: a row here is an input channel. The minimized error of the product
is a quadratic form in the weight error, with the Hessian X^T X of the calibration activations. Rows are processed in
order (no act-order).
"""

import numpy as np

from toolchain.ir.graph import Values
from toolchain.quantize.scales import least_squares_scales

DAMPING = 0.01
"""Fraction of the Hessian's mean diagonal added to its diagonal, as in the paper: few samples leave it singular."""
BLOCK = 128
"""Rows between updates of all later rows, as in the paper; with `group`, a group is that interval."""


def gptq(weights: Values, moments: Values, top: int, group: int = 0) -> list[tuple[Values, Values]]:
    """Quantize weights [k, n] to integers -top..top, with one scale per column and `group` consecutive rows, or per
    column if `group` is 0. `moments`: X^T X [k, k]. Return (integers as INT8 [rows, n], scales as FP32 [n]) of each
    group."""
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
