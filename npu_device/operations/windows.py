"""The shape of windows that slide over images: CONV2D_T and POOL."""

from collections.abc import Iterator
from functools import lru_cache
from math import gcd
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Pixels = NDArray[np.int64]


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
        """Pixels of the result, all images."""
        return self.batch * self.p * self.q

    @property
    def single(self) -> bool:
        """Check whether each pixel of the result sees a single pixel of the image, and the rows that it sees lie as far
        apart as pixels `sw` apart reach."""
        last = self.h - (self.p - 1) * self.sh
        rows = self.sh if self.batch == 1 else min(self.sh, last)  # from a row to the next, in the next image too
        pads = self.pt, self.pl, self.pb, self.pr
        return (self.kh, self.kw) == (1, 1) and not any(pads) and self.q * self.sw <= rows * self.w

    @property
    def pointwise(self) -> bool:
        """Check whether each pixel of the result sees the pixel of the image at the same position."""
        return self.single and (self.sh, self.sw) == (1, 1)

    @property
    def step(self) -> int:
        """Pixels of the image from one that moves to the next."""
        return self.sw if self.single else 1


def blind(s: Windows) -> bool:
    """Check for a window that sees nothing but pads."""
    import numpy as np  # firmware without windows starts without it

    for size, count, stride, dilation, taps, pad in (
        (s.h, s.p, s.sh, s.dh, s.kh, s.pt), (s.w, s.q, s.sw, s.dw, s.kw, s.pl),
    ):  # fmt: skip
        if (count - 1) * stride - pad >= size:
            return True
        start = np.arange(min(count, -(-pad // stride))) * stride - pad  # those that begin in the image see it
        first = np.maximum(0, -(start // dilation))
        if not ((first < taps) & (start + first * dilation < size)).all():
            return True
    return False


def patch(s: Windows, row: "Pixels", rows: "Pixels") -> "tuple[Pixels, Pixels]":
    """Return (first input pixel, pixels) that the output pixels `row`..`row + rows` look at: whole rows of the image,
    or where windows are single pixels these alone, `Windows.step` apart."""
    import numpy as np

    if s.single:
        image, pixel = np.divmod(row, s.p * s.q)
        return (image * s.h + pixel // s.q * s.sh) * s.w + pixel % s.q * s.sw, rows
    image, last_image = row // (s.p * s.q), (row + rows - 1) // (s.p * s.q)
    top = row % (s.p * s.q) // s.q * s.sh - s.pt
    bottom = (row + rows - 1) % (s.p * s.q) // s.q * s.sh - s.pt + (s.kh - 1) * s.dh
    first = image * s.h + np.clip(top, 0, s.h - 1)
    last = last_image * s.h + np.clip(bottom, 0, s.h - 1)
    return first * s.w, (np.maximum(last, first) - first + 1) * s.w


@lru_cache(maxsize=4096)
def max_pixels(s: Windows, rows: int) -> int:
    """Return the maximum of input pixels that `rows` output pixels read. Tiles repeat their positions in images."""
    image, maximum = s.p * s.q, 0
    for pixels in _patch_sizes(s, rows, min(s.pixels, rows * (image // gcd(rows, image)))):
        maximum = max(maximum, int(pixels.max()))
        if maximum == s.batch * s.h * s.w:
            break
    return maximum


@lru_cache(maxsize=4096)
def all_pixels(s: Windows, rows: int) -> int:
    """Return the input pixels that tiles of `rows` output pixels read, tile after tile."""
    return sum(int(pixels.sum()) for pixels in _patch_sizes(s, rows, s.pixels))


def _patch_sizes(s: Windows, rows: int, end: int) -> "Iterator[Pixels]":
    """Yield the input pixels that each tile of `rows` output pixels up to `end` reads, in batches."""
    import numpy as np

    for start in range(0, end, rows * _TOGETHER):
        row = np.arange(start, min(end, start + rows * _TOGETHER), rows)
        yield patch(s, row, np.minimum(rows, s.pixels - row))[1]


_TOGETHER = 1 << 16
"""Tiles of a batch of the search."""
