"""Windows that slide over images: convolution as a matrix product, and pooling."""

import numpy as np

from npu_device.abi.opcodes import DataType, Pool
from npu_device.memory.operands import FLOATS
from npu_device.operations.kernels.elements import Values, limits, positive_zero, to_float
from npu_device.operations.windows import Windows


def windows(images: Values, s: Windows, pad: float) -> Values:
    """Return the inputs of each window, shape (batch, P, Q, kh, kw, C), a view; `images`: (batch, h, w, C)."""
    if any((s.pt, s.pl, s.pb, s.pr)):
        padded = np.full((s.batch, s.h + s.pt + s.pb, s.w + s.pl + s.pr, images.shape[3]), pad, dtype=images.dtype)
        padded[:, s.pt : s.pt + s.h, s.pl : s.pl + s.w] = images
        images = padded
    image, row, column, channel = images.strides
    view = np.lib.stride_tricks.as_strided(
        images.view(f"u{images.itemsize}"),  # numpy strides its own types only
        (s.batch, s.p, s.q, s.kh, s.kw, images.shape[3]),
        (image, row * s.sh, column * s.sw, row * s.dh, column * s.dw, channel),
        writeable=False,
    )
    return view.view(images.dtype)


def pool(images: Values, s: Windows, function: Pool, count_pads: bool, kind: DataType) -> Values:
    """Return the largest or the mean of each window, shape (batch, P, Q, channels); means in fp64, rounded to fp32,
    then to the type."""
    if function is Pool.MAX:
        lowest = -np.inf if kind in FLOATS else limits(kind)[0]
        wide = images.astype(np.float32) if kind in FLOATS else images.astype(np.int64)
        largest = windows(wide, s, lowest).max(axis=(3, 4))
        return to_float(positive_zero(largest), kind) if kind in FLOATS else largest.astype(images.dtype)
    total = windows(images.astype(np.float64), s, 0).sum(axis=(3, 4))
    count: Values | int = s.kh * s.kw
    if not count_pads:
        coverage = np.ones((s.batch, s.h, s.w, 1))
        count = windows(coverage, s, 0).sum(axis=(3, 4))
    return to_float((total / count).astype(np.float32), kind)
