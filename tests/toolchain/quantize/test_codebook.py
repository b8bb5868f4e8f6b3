"""Vector quantization: codes against all distances, codebooks against a plain Lloyd step, bytes against the formula."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from shares import draws

from npu_device.abi.opcodes import DataType
from toolchain.ir.data_types import encode_values
from toolchain.ir.graph import Role, TensorIR
from toolchain.quantize.codebook import VectorQuantization, encode_matrix, k_means, nearest_indices

Array = np.ndarray[Any, Any]


def meant(codes: Array, vectors: Array, columns: int) -> Array:
    """The elements, vector by vector."""
    rows = [
        np.concatenate([vectors[row * len(vectors) // len(codes), code] for code in line])[:columns]
        for row, line in enumerate(codes)
    ]
    return np.array(rows)


@settings(max_examples=draws(60), deadline=None)
@given(st.integers(1, 70), st.integers(1, 90), st.integers(1, 5), st.integers(0, 9))
def test_bytes_are_those_of_the_formula(rows: int, columns: int, books: int, seed: int) -> None:
    """rows x ceil(columns / 8) codes, and codebooks x 2^8 x 8 x 2 bytes; for rows of whole vectors that is
    ceil(n / d) x b / 8 + codebooks x 2^b x d x 2."""
    books = min(books, rows)
    matrix = np.random.default_rng(seed).standard_normal((rows, columns))
    encoded = encode_matrix(matrix, VectorQuantization(books, seed))
    tensor = TensorIR("w", Role.WEIGHT, (rows, columns), DataType.VQ8)
    logical = np.repeat(encoded.codes, 8, axis=1)[:, :columns]
    assert encode_values(logical, DataType.VQ8) == encoded.codes.tobytes()
    total = tensor.size + len(encode_values(encoded.vectors, DataType.FP16))
    assert total == rows * -(-columns // 8) + books * 256 * 8 * 2
    if columns % 8 == 0:
        assert total == -(-rows * columns // 8) * 8 // 8 + books * 2**8 * 8 * 2


@pytest.mark.parametrize("books", [1, 3])
def test_every_vector_has_the_nearest_of_its_codebook(books: int) -> None:
    matrix = np.random.default_rng(1).standard_normal((96, 64)).astype(np.float32)
    encoded = encode_matrix(matrix, VectorQuantization(books))
    for row, line in enumerate(matrix.reshape(96, 8, 8)):
        book = encoded.vectors[row * books // 96].astype(np.float64)
        distances = ((line[:, None, :] - book) ** 2).sum(axis=2)
        chosen = distances[np.arange(8), encoded.codes[row]]
        assert np.all(chosen <= distances.min(axis=1) * (1 + 1e-5) + 1e-9)


def test_codebooks_are_as_good_as_rounds_of_lloyd_from_them() -> None:
    """Another round, written plainly, lowers the error by less than 1 %; a random choice of vectors is far worse."""
    points = np.random.default_rng(2).standard_normal((6000, 8)).astype(np.float32)
    centres = k_means(points, np.random.default_rng(0)).astype(np.float64)

    def error(of: Array) -> float:
        distances = ((points[:, None, :] - of) ** 2).sum(axis=2)
        return float(distances.min(axis=1).mean())

    own = ((points[:, None, :] - centres) ** 2).sum(axis=2).argmin(axis=1)
    again = np.array([points[own == one].mean(axis=0) for one in range(256) if (own == one).any()])
    assert error(centres) <= error(again) * 1.01
    assert error(centres) < 0.8 * error(points[:256].astype(np.float64))


def test_few_vectors_are_kept_exactly() -> None:
    rng = np.random.default_rng(3)
    values = rng.standard_normal((100, 8)).astype(np.float16)
    matrix = values[rng.integers(0, 100, (40, 4))].reshape(40, 32)
    encoded = encode_matrix(matrix, VectorQuantization())
    assert np.array_equal(meant(encoded.codes, encoded.vectors, 32), matrix)


def test_equal_seeds_give_equal_codes_and_others_do_not() -> None:
    matrix = np.random.default_rng(4).standard_normal((64, 128))
    first, again, other = (encode_matrix(matrix, VectorQuantization(2, seed)) for seed in (5, 5, 6))
    assert first.codes.tobytes() == again.codes.tobytes() and first.vectors.tobytes() == again.vectors.tobytes()
    assert first.vectors.tobytes() != other.vectors.tobytes()


def test_an_empty_centre_moves_to_the_furthest_point() -> None:
    """300 points near the origin and one far away: it has a centre of its own."""
    points = np.random.default_rng(5).standard_normal((300, 8)).astype(np.float32) * 0.01
    points[17] = 100
    centres = k_means(points, np.random.default_rng(7)).astype(np.float32)
    assert np.allclose(centres[nearest_indices(points[17:18], centres)[0]], 100)


def test_values_beyond_fp16_are_its_largest() -> None:
    encoded = encode_matrix(np.array([[1e6, -1e9, 0, 1, 2, 3, 4, 5]]), VectorQuantization())
    assert meant(encoded.codes, encoded.vectors, 2).tolist() == [[65504, -65504]]
