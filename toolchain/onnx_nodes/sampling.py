"""Decomposition of GridSample: gather the pixels around each grid point and interpolate."""

import math

import numpy as np

from toolchain.onnx_nodes.parts import Decomposition

_MODES = {"linear": "linear", "bilinear": "linear", "nearest": "nearest", "cubic": "cubic", "bicubic": "cubic"}
_PADDING = ("zeros", "border", "reflection")


class _SampledAxis:
    """Sample coordinates along one axis of the image: `size` pixels, input coordinates from -1 to 1."""

    def __init__(self, parts: Decomposition, coordinates: str, size: int) -> None:
        self._parts, self.size = parts, size
        self.aligned = bool(parts.node.attribute("align_corners", 0))
        if self.aligned:
            self.at = self._scaled(coordinates, (size - 1) / 2, (size - 1) / 2)
        else:
            self.at = self._scaled(coordinates, size / 2, (size - 1) / 2)

    def _scaled(self, x: str, factor: float, added: float) -> str:
        parts = self._parts
        return parts.make("Add", parts.make("Mul", x, parts.number(factor)), parts.number(added))

    def bounded(self, x: str) -> str:
        """Clamp a coordinate to the image."""
        return self._parts.make("Clip", x, self._parts.number(0), self._parts.number(self.size - 1))

    def reflected(self, x: str) -> str:
        """Reflect a coordinate at the borders of the image."""
        parts = self._parts
        low, high = (0.0, self.size - 1.0) if self.aligned else (-0.5, self.size - 0.5)
        length = high - low
        if not length:
            return parts.make("Mul", x, parts.number(0))
        position = parts.make("Abs", self._scaled(x, 1, -low))
        turns = parts.make("Floor", parts.make("Div", position, parts.number(2 * length)))
        remainder = parts.make("Sub", position, parts.make("Mul", turns, parts.number(2 * length)))
        folded = parts.make("Min", remainder, parts.make("Sub", parts.number(2 * length), remainder))
        return self.bounded(self._scaled(folded, 1, low))

    def inside(self, x: str) -> str:
        """Check whether a pixel is in the image."""
        return self._parts.make("Equal", x, self.bounded(x))


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
        _SampledAxis(parts, parts.reshaped(parts.sliced(parts.input(1), 3, at, at + 1), batch, count), size)
        for at, size in ((0, width), (1, height))
    )
    if padding != "zeros" and _MODES[mode] != "cubic":  # for cubic, it applies to each pixel
        for axis in (x, y):
            axis.at = axis.bounded(axis.at) if padding == "border" else axis.reflected(axis.at)
    table = parts.reshaped(parts.make("Transpose", parts.input(0), perm=[0, 2, 3, 1]), batch * height * width, channels)
    terms = []
    for column, near_x in _neighbours(parts, x, _MODES[mode]):
        for row, near_y in _neighbours(parts, y, _MODES[mode]):
            weights = [weight for weight in (near_x, near_y) if weight]
            inside = [x.inside(column), y.inside(row)] if padding == "zeros" else []
            place = (x.reflected(column), y.reflected(row)) if padding == "reflection" else (column, row)
            place = (x.bounded(place[0]), y.bounded(place[1]))
            terms.append(_pixels(parts, table, place, weights, inside, (batch, height, width)))
    total = terms[0]
    for term in terms[1:]:
        total = parts.make("Add", total, term)
    rows = parts.reshaped(total, batch, *grid[1:3], channels)
    parts.result("Transpose", rows, perm=[0, 3, 1, 2])


def _neighbours(parts: Decomposition, axis: _SampledAxis, mode: str) -> list[tuple[str, str]]:
    """Return (pixel, weight) along an axis; weight "" means 1."""
    if mode == "nearest":
        return [(parts.make("Round", axis.at), "")]
    first = parts.make("Floor", axis.at)
    far = parts.make("Sub", axis.at, first)
    if mode == "cubic":
        return [
            (parts.make("Add", first, parts.number(step)), _cubic(parts, parts.make("Sub", far, parts.number(step))))
            for step in (-1, 0, 1, 2)
        ]
    return [
        (first, parts.make("Sub", parts.number(1), far)),
        (parts.make("Add", first, parts.number(1)), far),
    ]


_A = -0.75
"""Coefficient of cubic convolution in ONNX (Keys, Cubic convolution interpolation for digital image processing)."""


def _cubic(parts: Decomposition, distance: str) -> str:
    """Return the weight of a pixel at a distance below 2."""

    def polynomial(x: str, *factors: float) -> str:
        value = parts.number(factors[0])
        for factor in factors[1:]:
            value = parts.make("Add", parts.make("Mul", value, x), parts.number(factor))
        return value

    size = parts.make("Abs", distance)
    inner, far = polynomial(size, _A + 2, -_A - 3, 0, 1), polynomial(size, _A, -5 * _A, 8 * _A, -4 * _A)
    return parts.make("Where", parts.make("Less", size, parts.number(1)), inner, far)


def _pixels(
    parts: Decomposition, table: str, at: tuple[str, str], weights: list[str], inside: list[str],
    sizes: tuple[int, int, int],
) -> str:  # fmt: skip
    """Return rows of the pixel table, (batch x points, channels), times their weights; zeros outside the image."""
    batch, height, width = sizes
    column, row = (parts.cast(coordinate, np.int64) for coordinate in at)
    first = np.arange(batch, dtype=np.int64)[:, None] * height * width
    place = parts.make("Add", parts.make("Mul", row, parts.constant(np.array(width, np.int64))), column)
    place = parts.make("Add", place, parts.constant(first))
    pixels = parts.make("Gather", table, parts.reshaped(place, -1), axis=0)
    for mask in inside:
        pixels = parts.make("Where", parts.reshaped(mask, -1, 1), pixels, parts.number(0))
    for weight in weights:
        pixels = parts.make("Mul", pixels, parts.reshaped(weight, -1, 1))
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
    parts.reshaped_result(parts.make("MatMul", flat, parts.make("Transpose", parts.input(0), perm=[0, 2, 1])))
