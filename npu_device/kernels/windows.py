"""Windows that slide over images: convolution as a matrix product, and pooling."""

from typing import NamedTuple

import numpy as np

from npu_device.abi.opcodes import DataType, Pool
from npu_device.kernels.elements import Values, limits, to_float
from npu_device.operands import FLOATS


class Windows(NamedTuple):
    """Images of `h` x `w`, windows of `kh` x `kw`, strides, dilations, pads at top, left, bottom and right."""

    batch: int
    h: int
    w: int
    kh: int
    kw: int
    sh: int
    sw: int
    dh: int
    dw: int
    pt: int
    pl: int
    pb: int
    pr: int

    @property
    def p(self) -> int:
        """Rows of the result."""
        return (self.h + self.pt + self.pb - self.dh * (self.kh - 1) - 1) // self.sh + 1

    @property
    def q(self) -> int:
        """Columns of the result."""
        return (self.w + self.pl + self.pr - self.dw * (self.kw - 1) - 1) // self.sw + 1

    @property
    def pixels(self) -> int:
        """Of the result, all images."""
        return self.batch * self.p * self.q

    @property
    def pointwise(self) -> bool:
        """Whether each pixel of the result sees the pixel of the image at the same place."""
        return (self.kh, self.kw, self.sh, self.sw) == (1, 1, 1, 1) and not any((self.pt, self.pl, self.pb, self.pr))


def blind(s: Windows) -> bool:
    """Whether there is a window that sees nothing but pads."""
    for size, count, stride, dilation, taps, pad in (
        (s.h, s.p, s.sh, s.dh, s.kh, s.pt), (s.w, s.q, s.sw, s.dw, s.kw, s.pl),
    ):  # fmt: skip
        places = np.arange(count)[:, None] * stride - pad + np.arange(taps) * dilation
        if not ((places >= 0) & (places < size)).any(axis=1).all():
            return True
    return False


def windows(images: Values, s: Windows, pad: float) -> Values:
    """What each window sees, shape (batch, P, Q, kh, kw, C), a view; `images`: (batch, h, w, C)."""
    if any((s.pt, s.pl, s.pb, s.pr)):
        padded = np.full((s.batch, s.h + s.pt + s.pb, s.w + s.pl + s.pr, images.shape[3]), pad, dtype=images.dtype)
        padded[:, s.pt : s.pt + s.h, s.pl : s.pl + s.w] = images
        images = padded
    image, row, column, channel = images.strides
    return np.lib.stride_tricks.as_strided(
        images,
        (s.batch, s.p, s.q, s.kh, s.kw, images.shape[3]),
        (image, row * s.sh, column * s.sw, row * s.dh, column * s.dw, channel),
        writeable=False,
    )


def pool(images: Values, s: Windows, function: Pool, count_pads: bool, kind: DataType) -> Values:
    """The largest or the mean of each window, shape (batch, P, Q, channels); means in fp64, rounded to fp32, then to
    the type."""
    if function is Pool.MAX:
        lowest = -np.inf if kind in FLOATS else limits(kind)[0]
        wide = images.astype(np.float32) if kind in FLOATS else images.astype(np.int64)
        return windows(wide, s, lowest).max(axis=(3, 4)).astype(images.dtype)
    total = windows(images.astype(np.float64), s, 0).sum(axis=(3, 4))
    count: Values | int = s.kh * s.kw
    if not count_pads:
        ones = np.ones((s.batch, s.h, s.w, 1))
        count = windows(ones, s, 0).sum(axis=(3, 4))
    return to_float((total / count).astype(np.float32), kind)
