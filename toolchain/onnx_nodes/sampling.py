"""Decomposition of GridSample: gather the pixels around each grid point and interpolate."""

import math
from functools import reduce
from operator import add

import numpy as np

from toolchain.onnx_nodes.parts import Decomposition, Tensor

_MODES = {"linear": "linear", "bilinear": "linear", "nearest": "nearest", "cubic": "cubic", "bicubic": "cubic"}
_PADDING = ("zeros", "border", "reflection")


class _SampledAxis:
    """Sample coordinates along one axis of the image: `size` pixels, input coordinates from -1 to 1."""

    def __init__(self, parts: Decomposition, coordinates: Tensor, size: int) -> None:
        self.size, self.aligned = size, bool(parts.node.attribute("align_corners", 0))
        self.at = coordinates * ((size - self.aligned) / 2) + (size - 1) / 2

    def bounded(self, x: Tensor) -> Tensor:
        """Clamp a coordinate to the image."""
        return x.clip(0, self.size - 1)

    def reflected(self, x: Tensor) -> Tensor:
        """Reflect a coordinate at the borders of the image."""
        low = 0.0 if self.aligned else -0.5
        length = self.size - 1 - 2 * low
        if not length:
            return x * 0
        position = abs(x * 1 + -low)
        remainder = position - position.parts.make("Floor", position / (2 * length)) * (2 * length)
        return self.bounded(remainder.min(2 * length - remainder) * 1 + low)

    def inside(self, x: Tensor) -> Tensor:
        """Check whether a pixel is in the image."""
        return x.equal(self.bounded(x))


def grid_sample(parts: Decomposition) -> None:
    """Compose GridSample of 2-D images."""
    node, shape, grid = parts.node, parts.node.shape(0), parts.node.shape(1)
    mode, padding = str(node.attribute("mode", "linear")), str(node.attribute("padding_mode", "zeros"))
    if len(shape) != 4:
        node.refuse(f"{len(shape) - 2} dimensions: supported are images, batch x channels x height x width")
    if mode not in _MODES or padding not in _PADDING:
        node.refuse(f"mode {mode} with padding_mode {padding}: modes are cubic, linear and nearest, paddings "
                    f"{', '.join(_PADDING)}")  # fmt: skip
    batch, channels, height, width = shape
    count = math.prod(grid[1:3])
    x, y = (
        _SampledAxis(parts, parts.input(1).slice(3, at, at + 1).reshape(batch, count), size)
        for at, size in ((0, width), (1, height))
    )
    if padding != "zeros" and _MODES[mode] != "cubic":  # for cubic, it applies to each pixel
        for axis in (x, y):
            axis.at = axis.bounded(axis.at) if padding == "border" else axis.reflected(axis.at)
    table = parts.input(0).transpose(0, 2, 3, 1).reshape(batch * height * width, channels)
    terms = []
    for column, near_x in _neighbours(parts, x, _MODES[mode]):
        for row, near_y in _neighbours(parts, y, _MODES[mode]):
            weights = [weight for weight in (near_x, near_y) if weight is not None]
            inside = [x.inside(column), y.inside(row)] if padding == "zeros" else []
            place = (x.reflected(column), y.reflected(row)) if padding == "reflection" else (column, row)
            place = (x.bounded(place[0]), y.bounded(place[1]))
            terms.append(_pixels(parts, table, place, weights, inside, (batch, height, width)))
    rows = reduce(add, terms).reshape(batch, *grid[1:3], channels)
    parts.result("Transpose", rows, perm=[0, 3, 1, 2])


def _neighbours(parts: Decomposition, axis: _SampledAxis, mode: str) -> list[tuple[Tensor, Tensor | None]]:
    """Return (pixel, weight) along an axis; None for a weight of 1."""
    if mode == "nearest":
        return [(parts.make("Round", axis.at), None)]
    first = parts.make("Floor", axis.at)
    far = axis.at - first
    if mode == "cubic":
        return [(first + step, _cubic(far - step)) for step in (-1, 0, 1, 2)]
    return [(first, 1 - far), (first + 1, far)]


_A = -0.75
"""Coefficient of cubic convolution in ONNX (Keys, Cubic convolution interpolation for digital image processing)."""


def _cubic(distance: Tensor) -> Tensor:
    """Return the weight of a pixel at a distance below 2."""
    size = abs(distance)

    def polynomial(*factors: float) -> Tensor:
        value = size.parts.number(factors[0])
        for factor in factors[1:]:
            value = value * size + factor
        return value

    inner, far = polynomial(_A + 2, -_A - 3, 0, 1), polynomial(_A, -5 * _A, 8 * _A, -4 * _A)
    return (size < 1).where(inner, far)


def _pixels(
    parts: Decomposition, table: Tensor, at: tuple[Tensor, Tensor], weights: list[Tensor], inside: list[Tensor],
    sizes: tuple[int, int, int],
) -> Tensor:  # fmt: skip
    """Return rows of the pixel table, (batch x points, channels), times their weights; zeros outside the image."""
    batch, height, width = sizes
    column, row = (coordinate.cast(np.int64) for coordinate in at)
    first = np.arange(batch, dtype=np.int64)[:, None] * height * width
    place = row * width + column + first
    pixels = parts.make("Gather", table, place.reshape(-1), axis=0)
    for mask in inside:
        pixels = mask.reshape(-1, 1).where(pixels, 0)
    for weight in weights:
        pixels = pixels * weight.reshape(-1, 1)
    return pixels


def affine_grid(parts: Decomposition) -> None:
    """Compose AffineGrid: pixel coordinates from -1 to 1, times a matrix."""
    node = parts.node
    sizes = [int(size) for size in node.needed(1, "size")[2:]]
    corners = bool(node.attribute("align_corners", 0))
    parts.node.check_constant(*sizes, len(sizes) + 1)
    axes = [np.linspace(-1, 1, size) if corners else (2 * np.arange(size) + 1) / size - 1 for size in sizes]
    places = np.stack([*np.meshgrid(*axes, indexing="ij")[::-1], np.ones(sizes)], -1)
    flat = parts.constant(places.reshape(-1, len(sizes) + 1).astype(parts.kind))
    parts.reshaped_result(flat @ parts.input(0).transpose(0, 2, 1))
