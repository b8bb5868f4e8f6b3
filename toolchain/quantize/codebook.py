"""Vector quantization of weights: codebooks by k-means (docs/quantization.md, "Vector quantization")."""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from npu_device.abi.opcodes import BITS, VQ_ENTRIES, VQ_VECTOR, DataType

VQ_BITS = BITS[DataType.VQ8]
"""Bits per weight, without its codebook."""
SAMPLE = 1 << 15
"""Maximum number of vectors for the training of a codebook; all vectors are then coded."""
ROUNDS = 25
"""Maximum number of k-means rounds."""
BLOCK = 1 << 15
"""Number of vectors whose distances are in memory at a time."""
LARGEST = float(np.finfo(np.float16).max)

Values = NDArray[Any]


class VectorQuantization(NamedTuple):
    """Parameters of vector quantization."""

    codebooks: int = 1
    """Codebooks per product."""
    seed: int = 0
    """Seed for the initial k-means centres."""


class Coded(NamedTuple):
    """Matrix in vector quantization."""

    codes: Values
    """UINT8, shape (rows, vectors per row)."""
    vectors: Values
    """FP16, shape (codebooks, VQ_ENTRIES, VQ_VECTOR)."""


def encode_matrix(matrix: Values, settings: VectorQuantization) -> Coded:
    """Return the codes and codebooks of a float matrix; the last vector of a row is padded with zeros."""
    rows, columns = matrix.shape
    padded = np.zeros((rows, -(-columns // VQ_VECTOR) * VQ_VECTOR), np.float32)
    padded[:, :columns] = np.clip(matrix.astype(np.float32), -LARGEST, LARGEST)
    codes = np.zeros((rows, padded.shape[1] // VQ_VECTOR), np.uint8)
    vectors = np.zeros((settings.codebooks, VQ_ENTRIES, VQ_VECTOR), np.float16)
    book = np.arange(rows) * settings.codebooks // rows
    for index in range(settings.codebooks):
        in_book = book == index
        points = padded[in_book].reshape(-1, VQ_VECTOR)
        vectors[index] = k_means(points, np.random.default_rng((settings.seed, index)))
        codes[in_book] = nearest_indices(points, vectors[index].astype(np.float32)).reshape(-1, codes.shape[1])
    return Coded(codes, vectors)


def k_means(points: Values, rng: np.random.Generator) -> Values:
    """Return VQ_ENTRIES centres of the points as FP16, shape (VQ_ENTRIES, VQ_VECTOR), by Lloyd's algorithm from random
    points, until no assignment changes. An empty centre moves to the point with the largest distance from its own
    centre."""
    if len(points) > SAMPLE:
        points = points[np.sort(rng.choice(len(points), SAMPLE, replace=False))]
    distinct = np.unique(points, axis=0)
    if len(distinct) <= VQ_ENTRIES:
        return np.pad(distinct, ((0, VQ_ENTRIES - len(distinct)), (0, 0))).astype(np.float16)
    centres = distinct[np.sort(rng.choice(len(distinct), VQ_ENTRIES, replace=False))]
    before = None
    for _ in range(ROUNDS):
        nearest_centre = nearest_indices(points, centres)
        if before is not None and np.array_equal(nearest_centre, before):
            break
        before = nearest_centre
        counts = np.bincount(nearest_centre, minlength=VQ_ENTRIES)
        sums = np.stack([np.bincount(nearest_centre, points[:, axis], VQ_ENTRIES) for axis in range(VQ_VECTOR)], axis=1)
        empty = np.flatnonzero(counts == 0)
        if len(empty):
            far = np.argsort(-((points - centres[nearest_centre]) ** 2).sum(axis=1), kind="stable")[: len(empty)]
        centres = (sums / np.maximum(counts, 1)[:, None]).astype(np.float32)
        if len(empty):
            centres[empty] = points[far]
    return centres.astype(np.float16)


def nearest_indices(points: Values, centres: Values) -> Values:
    """Return the index of the nearest centre of each point as UINT8; the first of equal distances."""
    norms = (centres.astype(np.float64) ** 2).sum(axis=1)
    codes = np.zeros(len(points), np.uint8)
    for start in range(0, len(points), BLOCK):
        part = points[start : start + BLOCK]
        codes[start : start + BLOCK] = np.argmin(norms - 2 * (part @ centres.T), axis=1)
    return codes
