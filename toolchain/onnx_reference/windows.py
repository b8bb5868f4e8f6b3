"""Convolutions, pools and LRN. onnx.reference misplaces pool windows that extend beyond the image, needs seconds for a
large image, and computes neighbours of LRN correctly only for a batch of one."""

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from toolchain.onnx_reference import Operator

COLUMNS = 1 << 24
"""Maximum size of the patches copied for a convolution, bytes."""


class _WindowAxis(NamedTuple):
    """Windows along one dimension of an image."""

    taps: int
    windows: int
    step: int
    dilation: int
    """Distance between taps, elements."""
    begin: int
    """Padding before the image, elements."""
    end: int
    """Padding after the image, elements; windows may extend further."""

    def beyond(self, size: int) -> int:
        """Return the elements that the last window reads after the image."""
        return max(0, (self.windows - 1) * self.step + (self.taps - 1) * self.dilation + 1 - size - self.begin)

    def tap(self, at: int) -> slice:
        """Return the slice of the padded dimension that tap `at` reads."""
        return slice(at * self.dilation, at * self.dilation + (self.windows - 1) * self.step + 1, self.step)


def _axes(image: Sequence[int], attributes: dict[str, Any]) -> list[_WindowAxis]:
    rank, kernel, mode = len(image), attributes["kernel_shape"], attributes["auto_pad"] or "NOTSET"
    steps, dilations = (attributes.get(name) or [1] * rank for name in ("strides", "dilations"))
    pads = attributes["pads"] if attributes["pads"] and mode == "NOTSET" else [0] * 2 * rank
    result = []
    for axis, size in enumerate(image):
        reach, step = (kernel[axis] - 1) * dilations[axis] + 1, steps[axis]
        begin, end = pads[axis], pads[rank + axis]
        if mode.startswith("SAME"):
            count = -(-size // step)
            total = max(0, (count - 1) * step + reach - size)
            begin = total // 2 if mode == "SAME_UPPER" else total - total // 2
            end = total - begin
        else:
            span = size + begin + end - reach
            count = (-(-span // step) if attributes.get("ceil_mode") else span // step) + 1
            if attributes.get("ceil_mode"):
                count -= (count - 1) * step >= size + begin  # no window starts after the image
        result.append(_WindowAxis(kernel[axis], count, step, dilations[axis], begin, end))
    return result


def _taps(x: Any, axes: list[_WindowAxis], fill: Any) -> Iterator[Any]:
    """Yield, for each tap of the window, the elements of all windows."""
    widths = [(axis.begin, axis.beyond(size)) for axis, size in zip(axes, x.shape[2:], strict=True)]
    padded = np.pad(x, [(0, 0), (0, 0), *widths], constant_values=fill)
    for at in itertools.product(*(range(axis.taps) for axis in axes)):
        slices: list[Any] = [axis.tap(tap) for axis, tap in zip(axes, at, strict=True)]
        yield padded[(..., *slices)]


class Conv(Operator):
    """Convolution in blocks of rows, with at most `COLUMNS` bytes of patches. onnx.reference copies the patches of the
    whole image with 8-byte indices, a gigabyte for a model of 1 MiB, and fills dilated kernels with zeros. 16-bit
    numbers are multiplied and added in FP32, which is fast in numpy, and rounded once."""

    def _run(self, x: Any, w: Any, b: Any = None, group: int | None = None, **attributes: Any) -> tuple[Any]:
        rank, groups, wide = x.ndim - 2, group or 1, np.promote_types(x.dtype, np.float32)
        axes = _axes(x.shape[2:], {**attributes, "kernel_shape": w.shape[2:]})
        image = np.pad(x.astype(wide, copy=False), [(0, 0), (0, 0), *((axis.begin, axis.end) for axis in axes)])
        reach = [(axis.taps - 1) * axis.dilation + 1 for axis in axes]
        windows = np.lib.stride_tricks.sliding_window_view(image, reach, tuple(range(2, x.ndim)))
        steps = [axis.step for axis in axes] + [axis.dilation for axis in axes]
        windows = windows[:, :, *(slice(None, None, step) for step in steps)]
        sizes, weights = windows.shape[2 : 2 + rank], w.astype(wide, copy=False).reshape(groups, len(w) // groups, -1)
        result = np.empty((len(x), *weights.shape[:2], *sizes), wide)
        of_a_row = x.shape[1] * math.prod(w.shape[2:]) * math.prod(sizes[1:]) * wide.itemsize
        rows = max(1, COLUMNS // max(1, of_a_row))
        for image_index, first in itertools.product(range(len(x)), range(0, sizes[0], rows)):
            block = windows[image_index, :, first : first + rows]
            columns = block.transpose(0, *range(1 + rank, 1 + 2 * rank), *range(1, 1 + rank))
            products = weights @ columns.reshape(groups, weights.shape[2], -1)
            result[image_index, :, :, first : first + rows] = products.reshape(
                *weights.shape[:2], *block.shape[1 : 1 + rank]
            )
        result = result.reshape(len(x), -1, *sizes)
        return ((result if b is None else result + b.reshape(-1, *(1,) * rank)).astype(x.dtype),)


class MaxPool(Operator):
    def _run(self, x: Any, **attributes: Any) -> tuple[Any, ...]:
        axes, image = _axes(x.shape[2:], attributes), x.shape[2:]
        lowest = np.iinfo(x.dtype).min if x.dtype.kind in "iu" else -math.inf
        if len(self.output) < 2:
            result: Any = None
            for elements in _taps(x, axes, lowest):
                result = elements.copy() if result is None else np.maximum(result, elements, out=result)
            return (result,)
        order = image[::-1] if attributes["storage_order"] else image
        places = np.arange(math.prod(image)).reshape(order)
        places = places.T if attributes["storage_order"] else places
        places = places + np.arange(math.prod(x.shape[:2])).reshape(*x.shape[:2], *[1] * len(image)) * math.prod(image)
        best, index_of_best = None, None
        for elements, index in zip(_taps(x, axes, lowest), _taps(places, axes, -1), strict=True):
            if best is None or index_of_best is None:
                best, index_of_best = elements.copy(), index.copy()
                continue
            better = (elements > best) | ((index_of_best < 0) & (index >= 0))
            best, index_of_best = np.where(better, elements, best), np.where(better, index, index_of_best)
        return best, index_of_best


class AveragePool(Operator):
    def _run(self, x: Any, **attributes: Any) -> tuple[Any]:
        axes, wide = _axes(x.shape[2:], attributes), np.promote_types(x.dtype, np.float32)
        counts = np.ones(())
        for axis, size in zip(axes, x.shape[2:], strict=True):
            low, high = (-axis.begin, size + axis.end) if attributes["count_include_pad"] else (0, size)
            at = (np.arange(axis.windows) * axis.step - axis.begin)[:, None] + np.arange(axis.taps) * axis.dilation
            counts = np.multiply.outer(counts, ((at >= low) & (at < high)).sum(axis=1))
        total = sum(_taps(x.astype(wide), axes, 0))
        return ((total / counts).astype(x.dtype),)


class LpPool(Operator):
    def _run(self, x: Any, p: int = 2, **attributes: Any) -> tuple[Any]:
        powers = np.abs(x.astype(np.float64)) ** p
        return ((sum(_taps(powers, _axes(x.shape[2:], attributes), 0)) ** (1 / p)).astype(x.dtype),)


class LRN(Operator):
    def _run(self, x: Any, alpha: float = 1e-4, beta: float = 0.75, bias: float = 1.0, size: int = 1) -> tuple[Any]:
        wide = np.promote_types(x.dtype, np.float32)
        before, after = (size - 1) // 2, size - 1 - (size - 1) // 2
        squares = np.pad(x.astype(wide) ** 2, [(0, 0), (before, after), *[(0, 0)] * (x.ndim - 2)])
        sums = sum(squares[:, at : at + x.shape[1]] for at in range(size))
        return ((x / (bias + alpha / size * sums) ** beta).astype(x.dtype),)
