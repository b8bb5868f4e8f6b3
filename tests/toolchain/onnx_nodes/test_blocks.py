"""Blocks of pixels as channels and back; elements that are not numbers."""

from typing import Any

import numpy as np
import pytest
from model_runs import execute
from onnx import TensorProto
from onnxruntime_reference import agree, one_node, random

from npu_device.config import NpuConfig
from toolchain.codegen import Target
from toolchain.compiler import compile_model
from toolchain.errors import ModelError
from toolchain.onnx_model.model import prepare


@pytest.mark.parametrize("mode", ["DCR", "CRD"])
def test_blocks_of_channels_become_pixels(mode: str) -> None:
    x = random(2, 12, 3, 5)
    agree(one_node("DepthToSpace", {"x": x}, opset=17, blocksize=2, mode=mode), {"x": x})


def test_blocks_of_pixels_become_channels() -> None:
    x = random(2, 3, 4, 6)
    agree(one_node("SpaceToDepth", {"x": x}, opset=17, blocksize=2), {"x": x})


@pytest.mark.parametrize(
    ("operator", "message"),
    [("DepthToSpace", "must divide the channels, squared"), ("SpaceToDepth", "must divide height and width")],
)
def test_blocks_that_do_not_fit_are_refused(operator: str, message: str) -> None:
    x = random(1, 6, 3, 4)
    with pytest.raises(ModelError, match=f"blocksize=2 with shape .*{message}"):
        agree(one_node(operator, {"x": x}, opset=17, blocksize=2), {"x": x})


@pytest.mark.parametrize(
    ("operator", "numpys"), [("ArgMax", np.argmax), ("ArgMin", np.argmin), ("ReduceMax", np.max), ("ReduceMin", np.min)]
)
def test_the_largest_of_numbers_that_are_none(operator: str, numpys: Any) -> None:
    """As docs/onnx-coverage.md says: onnxruntime has one result or another."""
    x = random(4, 9)
    x[0, 0] = x[1, 3] = x[2, 8] = x[2, 5] = np.nan
    if operator.startswith("Arg"):
        proto = one_node(operator, {"x": x}, kinds=[TensorProto.INT64], keepdims=0, axis=1)
    else:
        proto = one_node(operator, {"x": x}, constants={"axes": np.array([1])}, keepdims=0)
    result = execute(compile_model(prepare(proto, "m"), Target()), NpuConfig(), {"x": x})["y"]
    np.testing.assert_array_equal(result, numpys(x, axis=1))
