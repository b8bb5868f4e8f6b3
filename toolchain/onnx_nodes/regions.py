"""Decomposition of RoiAlign: each bin of a region is the mean or maximum of samples between pixels.

The samples of a bin form a grid, and the weight of a pixel in a sample is the product of a row factor and a column
factor. The mean is therefore two matrix products: row weights and column weights per bin, with the image between them.
"""

from typing import NamedTuple

import numpy as np

from toolchain.onnx_nodes.parts import Decomposition

NEAR = 6
"""Number of samples considered around a row for region-dependent sampling; samples are at least half a pixel apart."""


class _Bins(NamedTuple):
    """Bins of all regions along one axis: regions x bins x 1 x 1; dimension 1 is 1 in tensors shared by all bins."""

    start: str
    size: str
    """Bin size, pixels."""
    step: str
    """Distance between samples."""
    samples: str
    """Number of samples per bin."""
    pixels: int


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
        belongs = parts.make("Equal", parts.reshaped(parts.cast(parts.input(2), np.int64), count, 1, 1, 1),
                          parts.constant(np.arange(images).reshape(1, 1, images, 1)))  # fmt: skip
        wide = parts.reshaped(vertical, count, rows, 1, height)
        vertical = parts.make("Mul", wide, parts.cast(belongs, np.float32))
    tall = parts.make("Transpose", parts.input(0), perm=[0, 2, 1, 3])
    tall = parts.reshaped(tall, images * height, channels * width)
    mixed = parts.make("MatMul", parts.reshaped(vertical, count * rows, images * height), tall)
    horizontal = parts.make("Transpose", _weights(parts, along, sampling), perm=[0, 2, 1])
    pooled = parts.make("MatMul", parts.reshaped(mixed, count, rows * channels, width), horizontal)
    parts.result("Transpose", parts.reshaped(pooled, count, rows, channels, columns), perm=[0, 2, 1, 3])


def _bins(parts: Decomposition, first: int, bins: int, pixels: int, sampling: int) -> _Bins:
    """Return the bins along the axis whose region corners are in columns `first` and `first` + 2."""
    node, count, (add, mul) = parts.node, parts.node.shape(1)[0], ("Add", "Mul")
    half = node.attribute("coordinate_transformation_mode", "half_pixel") == "half_pixel"
    scale = parts.constant(np.array(node.attribute("spatial_scale", 1.0), np.float32))
    moved = _number(parts, -0.5 if half else 0)
    low, high = (
        parts.make(add, parts.make(mul, parts.sliced(parts.input(1), 1, at, at + 1), scale), moved)
        for at in (first, first + 2)
    )
    length = parts.make("Sub", high, low)
    if not half:
        length = parts.make("Max", length, _number(parts, 1))
    size = parts.make("Div", length, _number(parts, bins))
    if sampling:
        samples = _number(parts, sampling)
    else:
        samples = parts.reshaped(parts.make("Max", parts.make("Ceil", size), _number(parts, 0)), count, 1, 1, 1)
    size = parts.reshaped(size, count, 1, 1, 1)
    number = parts.constant(np.arange(bins, dtype=np.float32).reshape(1, bins, 1, 1))
    start = parts.make(add, parts.make(mul, number, size), parts.reshaped(low, count, 1, 1, 1))
    step = parts.make("Div", size, samples if sampling else parts.make("Max", samples, _number(parts, 1)))
    return _Bins(start, size, step, samples, pixels)


def _number(parts: Decomposition, value: float) -> str:
    return parts.constant(np.array(value, np.float32))


def _inside(parts: Decomposition, at: str, pixels: int) -> str:
    """Return 1 for a valid sample, at most one pixel outside of the image, else 0."""
    within = parts.make("Clip", at, _number(parts, -1), _number(parts, pixels))
    return parts.cast(parts.make("Equal", at, within), np.float32)


def _clip(parts: Decomposition, at: str, pixels: int) -> str:
    return parts.make("Clip", at, _number(parts, 0), _number(parts, pixels - 1))


def _weights(parts: Decomposition, bins: _Bins, sampling: int) -> str:
    """Compute the weight of each row of pixels in the mean of a bin: regions x bins x pixels."""
    pixel = parts.constant(np.arange(bins.pixels, dtype=np.float32).reshape(1, 1, 1, bins.pixels))
    if sampling:
        sample = parts.constant(np.arange(sampling, dtype=np.float32).reshape(1, 1, sampling, 1))
    else:
        sample = _samples_around(parts, bins, pixel)
    at = parts.make("Add", sample, _number(parts, 0.5))
    at = parts.make("Add", parts.make("Mul", at, bins.step), bins.start)
    distance = parts.make("Abs", parts.make("Sub", _clip(parts, at, bins.pixels), pixel))
    weight = parts.make("Max", parts.make("Sub", _number(parts, 1), distance), _number(parts, 0))
    weight = parts.make("Mul", weight, _inside(parts, at, bins.pixels))
    if not sampling:
        weight = parts.make("Mul", weight, parts.cast(parts.make("Less", sample, bins.samples), np.float32))
    total = parts.make("ReduceSum", weight, parts.integers(2), keepdims=1)
    several = bins.samples if sampling else parts.make("Max", bins.samples, _number(parts, 1))
    mean = parts.make("Div", total, several)
    return parts.make("Squeeze", mean, parts.integers(2))


def _samples_around(parts: Decomposition, bins: _Bins, pixel: str) -> str:
    """Return the indices of NEAR samples around each row of pixels, including all less than a pixel away."""
    before = parts.make("Sub", parts.make("Sub", pixel, _number(parts, 1)), bins.start)
    step = parts.make("Max", bins.step, _number(parts, float(np.finfo(np.float32).tiny)))
    first = parts.make("Floor", parts.make("Sub", parts.make("Div", before, step), _number(parts, 0.5)))
    first = parts.make("Min", parts.make("Max", first, _number(parts, 0)), bins.samples)
    return parts.make("Add", first, parts.constant(np.arange(NEAR, dtype=np.float32).reshape(1, 1, NEAR, 1)))


def _largest(parts: Decomposition, down: _Bins, along: _Bins, sizes: tuple[int, int, int], sampling: int) -> None:
    """Compute the maximum over the contributions of the four pixels around each sample."""
    (images, channels, height, width), (count, rows, columns) = parts.node.shape(0), sizes
    pixels = parts.make("Transpose", parts.input(0), perm=[0, 2, 3, 1])
    table = parts.reshaped(pixels, images * height * width, channels)
    first = parts.make("Mul", parts.reshaped(parts.cast(parts.input(2), np.int64), count, 1, 1),
                       parts.constant(np.array(height * width, np.int64)))  # fmt: skip
    result = ""
    for i in range(sampling):
        for j in range(sampling):
            for row, tall in _corners(parts, down, i, (count, rows, 1)):
                for column, wide in _corners(parts, along, j, (count, 1, columns)):
                    line = parts.make("Mul", row, parts.constant(np.array(width, np.int64)))
                    place = parts.make("Add", parts.make("Add", first, line), column)
                    value = parts.make("Gather", table, parts.reshaped(place, -1), axis=0)
                    value = parts.make("Mul", value, parts.reshaped(parts.make("Mul", tall, wide), -1, 1))
                    result = parts.make("Max", result, value) if result else value
    parts.result("Transpose", parts.reshaped(result, count, rows, columns, channels), perm=[0, 3, 1, 2])


def _corners(parts: Decomposition, bins: _Bins, sample: int, shape: tuple[int, ...]) -> list[tuple[str, str]]:
    """Return (pixel, weight) on both sides of a sample."""
    at = parts.make("Add", parts.make("Mul", bins.step, _number(parts, sample + 0.5)), bins.start)
    inside, at = _inside(parts, at, bins.pixels), _clip(parts, at, bins.pixels)
    low = parts.make("Floor", at)
    high = parts.make("Min", parts.make("Add", low, _number(parts, 1)), _number(parts, bins.pixels - 1))
    far = parts.make("Sub", at, low)
    weights = parts.make("Sub", _number(parts, 1), far), far
    return [
        (parts.reshaped(parts.cast(pixel, np.int64), *shape),
         parts.reshaped(parts.make("Mul", weight, inside), *shape))
        for pixel, weight in zip((low, high), weights, strict=True)
    ]  # fmt: skip
