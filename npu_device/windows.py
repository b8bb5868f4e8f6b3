"""The shape of windows that slide over images: CONV2D_T and POOL."""

from typing import NamedTuple

import numpy as np


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
        start = np.arange(count) * stride - pad
        first = np.maximum(0, -(start // dilation))
        if not ((first < taps) & (start + first * dilation < size)).all():
            return True
    return False
