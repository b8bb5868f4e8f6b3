"""Decomposition of RoiAlign: each bin of a region is the mean or maximum of samples between pixels.

The samples of a bin form a grid, and the weight of a pixel in a sample is the product of a row factor and a column
factor. The mean is therefore two matrix products: row weights and column weights per bin, with the image between them.
"""

from typing import NamedTuple

import numpy as np

from toolchain.onnx_nodes.parts import Decomposition, Tensor

NEAR = 6
"""Number of samples considered around a row for region-dependent sampling; samples are at least half a pixel apart."""


class _Bins(NamedTuple):
    """Bins of all regions along one axis: regions x bins x 1 x 1; dimension 1 is 1 in tensors shared by all bins."""

    start: Tensor
    size: Tensor
    """Bin size, pixels."""
    step: Tensor
    """Distance between samples."""
    samples: Tensor
    """Number of samples per bin."""
    pixels: int

    def inside(self, at: Tensor) -> Tensor:
        """Return 1 for a valid sample, at most one pixel outside of the image, else 0."""
        return at.equal(at.clip(-1, self.pixels)).cast(np.float32)


def roi_align(parts: Decomposition) -> None:
    node, (images, channels, height, width) = parts.node, parts.node.shape(0)
    rows, columns = (int(node.attribute(f"output_{name}", 1)) for name in ("height", "width"))
    mode, sampling = str(node.attribute("mode", "avg")), int(node.attribute("sampling_ratio", 0))
    if mode not in ("avg", "max") or (mode == "max" and sampling < 1):
        node.refuse(
            f"mode={mode} with sampling_ratio={sampling}: supported are avg, and max with a sampling_ratio above 0"
        )
    count = node.shape(1)[0]
    down, along = _bins(parts, 1, rows, height, sampling), _bins(parts, 0, columns, width, sampling)
    if mode == "max":
        _largest(parts, down, along, (count, rows, columns), sampling)
        return
    vertical = _weights(parts, down, sampling)  # regions x rows of bins x height
    if images > 1:
        indices = parts.input(2).cast(np.int64).reshape(count, 1, 1, 1)
        belongs = indices.equal(np.arange(images).reshape(1, 1, images, 1))
        vertical = vertical.reshape(count, rows, 1, height) * belongs.cast(np.float32)
    tall = parts.input(0).transpose(0, 2, 1, 3).reshape(images * height, channels * width)
    mixed = vertical.reshape(count * rows, images * height) @ tall
    horizontal = _weights(parts, along, sampling).transpose(0, 2, 1)
    pooled = mixed.reshape(count, rows * channels, width) @ horizontal
    parts.result("Transpose", pooled.reshape(count, rows, channels, columns), perm=[0, 2, 1, 3])


def _bins(parts: Decomposition, first: int, bins: int, pixels: int, sampling: int) -> _Bins:
    """Return the bins along the axis whose region corners are in columns `first` and `first` + 2."""
    node, count = parts.node, parts.node.shape(1)[0]
    half = node.attribute("coordinate_transformation_mode", "half_pixel") == "half_pixel"
    scale = parts.constant(np.array(node.attribute("spatial_scale", 1.0), np.float32))
    moved = parts.constant(np.array(-0.5 if half else 0, np.float32))
    low, high = (parts.input(1).slice(1, at, at + 1) * scale + moved for at in (first, first + 2))
    length = high - low
    if not half:
        length = length.max(1)
    size = length / bins
    if sampling:
        samples = parts.constant(np.array(sampling, np.float32))
    else:
        samples = parts.make("Ceil", size).max(0).reshape(count, 1, 1, 1)
    size = size.reshape(count, 1, 1, 1)
    start = np.arange(bins, dtype=np.float32).reshape(1, bins, 1, 1) * size + low.reshape(count, 1, 1, 1)
    return _Bins(start, size, size / (samples if sampling else samples.max(1)), samples, pixels)


def _weights(parts: Decomposition, bins: _Bins, sampling: int) -> Tensor:
    """Compute the weight of each row of pixels in the mean of a bin: regions x bins x pixels."""
    pixel = parts.constant(np.arange(bins.pixels, dtype=np.float32).reshape(1, 1, 1, bins.pixels))
    if sampling:
        sample = parts.constant(np.arange(sampling, dtype=np.float32).reshape(1, 1, sampling, 1))
    else:
        sample = _samples_around(parts, bins, pixel)
    at = (sample + 0.5) * bins.step + bins.start
    weight = (1 - abs(at.clip(0, bins.pixels - 1) - pixel)).max(0) * bins.inside(at)
    if not sampling:
        weight = weight * (sample < bins.samples).cast(np.float32)
    mean = parts.make("ReduceSum", weight, [2], keepdims=1) / (bins.samples if sampling else bins.samples.max(1))
    return parts.make("Squeeze", mean, [2])


def _samples_around(parts: Decomposition, bins: _Bins, pixel: Tensor) -> Tensor:
    """Return the indices of NEAR samples around each row of pixels, including all less than a pixel away."""
    before = pixel - 1 - bins.start
    first = parts.make("Floor", before / bins.step.max(float(np.finfo(np.float32).tiny)) - 0.5)
    return first.max(0).min(bins.samples) + np.arange(NEAR, dtype=np.float32).reshape(1, 1, NEAR, 1)


def _largest(parts: Decomposition, down: _Bins, along: _Bins, sizes: tuple[int, int, int], sampling: int) -> None:
    """Compute the maximum over the contributions of the four pixels around each sample."""
    (images, channels, height, width), (count, rows, columns) = parts.node.shape(0), sizes
    table = parts.input(0).transpose(0, 2, 3, 1).reshape(images * height * width, channels)
    first = parts.input(2).cast(np.int64).reshape(count, 1, 1) * (height * width)
    result: Tensor | None = None
    for i in range(sampling):
        for j in range(sampling):
            for row, tall in _corners(parts, down, i, (count, rows, 1)):
                for column, wide in _corners(parts, along, j, (count, 1, columns)):
                    place = first + row * width + column
                    value = parts.make("Gather", table, place.reshape(-1), axis=0)
                    value = value * (tall * wide).reshape(-1, 1)
                    result = value if result is None else result.max(value)
    assert result is not None
    parts.result("Transpose", result.reshape(count, rows, columns, channels), perm=[0, 3, 1, 2])


def _corners(parts: Decomposition, bins: _Bins, sample: int, shape: tuple[int, ...]) -> list[tuple[Tensor, Tensor]]:
    """Return (pixel, weight) on both sides of a sample."""
    at = bins.step * (sample + 0.5) + bins.start
    inside, at = bins.inside(at), at.clip(0, bins.pixels - 1)
    low = parts.make("Floor", at)
    high, far = (low + 1).min(bins.pixels - 1), at - low
    pairs = ((low, 1 - far), (high, far))
    return [(pixel.cast(np.int64).reshape(*shape), (weight * inside).reshape(*shape)) for pixel, weight in pairs]
