"""Ascending integers as short text: differences as base-128 varints, zigzag, in base64. page/gantt.js reads them."""

import base64

import numpy as np

from npu_device.trace.spans import Integers


def packed(values: Integers) -> str:
    """Seven bits a byte, low bits first, the top bit set in all but the last; small differences take one byte."""
    values = np.concatenate([np.zeros(1, np.int64), values.astype(np.int64)])
    steps = values[1:] - values[:-1]
    rest = ((steps << 1) ^ (steps >> 63)).astype(np.uint64)
    columns = []
    while True:
        more = rest >> np.uint64(7)
        columns.append((rest & np.uint64(0x7F)) | np.where(more > 0, np.uint64(0x80), np.uint64(0)))
        if not more.any():
            break
        rest = more
    table = np.stack(columns, axis=1).astype(np.uint8)
    used = np.ones(table.shape, dtype=bool)
    used[:, 1:] = np.logical_and.accumulate(table[:, :-1] >= 0x80, axis=1)
    return base64.b64encode(table[used].tobytes()).decode("ascii")
