"""Decompositions of DFT and STFT: products with matrices of cosines and sines, constant because lengths are."""

import numpy as np

from toolchain.onnx_nodes.parts import Decomposition, Tensor

MAX_LENGTH = 8192
"""Maximum length of a transform, which is the size of its matrices."""


def _matrices(length: int, bins: int, kind: object, *, inverse: bool) -> tuple[np.ndarray, np.ndarray]:
    """Return (cosines, sines) of exp(-2 pi i row column / length); the inverse has the opposite sign and a factor 1 /
    length."""
    angles = np.outer(np.arange(length), np.arange(bins)) % length * (2 * np.pi / length)
    factor = 1 / length if inverse else 1.0
    sign = 1.0 if inverse else -1.0
    return (factor * np.cos(angles)).astype(kind), (factor * sign * np.sin(angles)).astype(kind)


def _transform(parts: Decomposition, x: Tensor, shape: tuple[int, ...], bins: int, *, inverse: bool) -> Tensor:
    """Return rows of real or complex numbers (..., length, 1 or 2) times the matrices: (..., bins, 2)."""
    length, parts_of = shape[-2:]
    cosines, sines = _matrices(length, bins, parts.kind, inverse=inverse)
    rows = int(np.prod(shape[:-2]))
    if parts_of == 1:
        flat, matrix = x.reshape(rows, length), np.stack((cosines, sines), -1).reshape(length, -1)
    else:
        flat = x.reshape(rows, 2 * length)
        real = np.stack((cosines, sines), -1)
        imaginary = np.stack((-sines, cosines), -1)
        matrix = np.stack((real, imaginary), 1).reshape(2 * length, -1)
    return (flat @ matrix).reshape(*shape[:-2], bins, 2)


def _check_length(parts: Decomposition, length: int) -> None:
    if length > MAX_LENGTH:
        parts.node.refuse(f"a transform of {length} numbers: supported are up to {MAX_LENGTH}")


def dft(parts: Decomposition) -> None:
    """Compose DFT along one axis, which is moved last for the product."""
    node, shape = parts.node, parts.node.shape(0)
    rank, inverse = len(shape), bool(node.attribute("inverse", 0))
    axis = node.number(2, "axis") if node.has(2) else int(node.attribute("axis", -2))
    axis %= rank
    length = node.number(1, "dft_length") if node.has(1) else shape[axis]
    half = bool(node.attribute("onesided", 0))
    if half and inverse:
        node.refuse("attributes onesided and inverse together are not supported")
    _check_length(parts, length)
    order = [*(at for at in range(rank - 1) if at != axis), axis, rank - 1]
    x = parts.input(0).transpose(*order)
    turned = [shape[at] for at in order]
    if length < turned[-2]:
        x = x.slice(rank - 2, 0, length)
    elif length > turned[-2]:
        x = parts.make("Pad", x, [*[0] * (2 * rank - 2), length - turned[-2], 0], 0)
    turned[-2] = length
    spectrum = _transform(parts, x, tuple(turned), length // 2 + 1 if half else length, inverse=inverse)
    parts.result("Transpose", spectrum, perm=[order.index(at) for at in range(rank)])


def stft(parts: Decomposition) -> None:
    """Compose STFT of (batch, samples) or (batch, samples, 1): frames, window, transform of each frame."""
    node, shape = parts.node, parts.node.shape(0)
    if len(shape) == 3 and shape[2] != 1:
        node.refuse("a complex signal is not supported: its last dimension must be 1")
    step = node.number(1, "frame_step")
    if node.has(3):
        length = node.number(3, "frame_length")
    elif node.has(2):
        length = node.shape(2)[0]
    else:
        node.refuse("input window or frame_length is needed")
    _check_length(parts, length)
    batch, samples = shape[:2]
    frames = (samples - length) // step + 1
    places = np.arange(frames)[:, None] * step + np.arange(length)
    x = parts.make("Gather", parts.input(0).reshape(batch, samples), places, axis=1)
    if node.has(2):
        x = x * parts.input(2)
    bins = length // 2 + 1 if node.attribute("onesided", 1) else length
    spectrum = _transform(parts, x, (batch, frames, length, 1), bins, inverse=False)
    parts.reshaped_result(spectrum)
