"""Slice by steps that go back from before the first element: it begins at that, as onnxruntime has it."""

from typing import Any

import numpy as np
import pytest
from onnxruntime_reference import agree, by_onnxruntime, one_node, random

from toolchain.onnx_model.model import prepare
from toolchain.onnx_model.reference import reference

X = {"x": random(3, 5)}


def slice_of(start: int, end: int, step: int) -> Any:
    bounds = {"starts": np.array([start, -9]), "ends": np.array([end, -99]), "axes": np.array([1, -2]),
              "steps": np.array([step, -1])}  # fmt: skip
    return one_node("Slice", X, constants=bounds)


@pytest.mark.parametrize(
    ("start", "end", "step"), [(-9, -99, -1), (-6, -7, -3), (-5, -99, -2), (99, 0, -2), (-9, 9, 2)]
)
def test_a_slice_from_before_the_first_element(start: int, end: int, step: int) -> None:
    proto = slice_of(start, end, step)
    agree(proto, X)
    assert np.array_equal(reference(prepare(proto, "m"), X)["y"], by_onnxruntime(proto, X)["y"])
