"""Initializers in the bytes of a file, against the parser of the onnx package."""

import mmap
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from toolchain.examples import EXAMPLES
from toolchain.onnx_model import file
from toolchain.onnx_model.file import read_file
from toolchain.onnx_model.wire import without_values

SHAPES = st.lists(st.integers(0, 20), max_size=3)
KINDS = st.sampled_from([np.float32, np.float16, np.int64, np.uint8, np.bool_])


def model(tensors: list[Any]) -> Any:
    nodes = [helper.make_node("Identity", ["x"], ["y"])]
    inputs, outputs = ([helper.make_tensor_value_info(name, TensorProto.FLOAT, [2])] for name in "xy")
    return helper.make_model(helper.make_graph(nodes, "g", inputs, outputs, tensors))


def assert_split(data: bytes, small: int) -> int:
    """What is left and what was found are the model; how many were found."""
    rest, found = without_values(data, small)
    whole, kept = onnx.ModelProto.FromString(data), onnx.ModelProto.FromString(rest)
    large = [tensor for tensor in whole.graph.initializer if len(tensor.raw_data) > small]
    assert [stored.tensor.name for stored in found] == [tensor.name for tensor in large]
    for stored, tensor in zip(found, large, strict=True):
        assert data[stored.offset : stored.offset + stored.size] == tensor.raw_data
        assert onnx.TensorProto.FromString(data[stored.start : stored.end]) == tensor
        tensor.ClearField("raw_data")
        assert stored.tensor == tensor
    smaller = [tensor for tensor in whole.graph.initializer if tensor not in large]
    del whole.graph.initializer[:]
    whole.graph.initializer.extend(smaller)
    assert kept == whole
    return len(found)


@settings(deadline=None)
@given(st.lists(st.tuples(SHAPES, KINDS, st.booleans()), max_size=6), st.integers(0, 3000))
def test_what_is_left_and_what_is_found_are_the_model(
    tensors: list[tuple[list[int], Any, bool]], small: int
) -> None:  # fmt: skip
    made = []
    for index, (shape, kind, raw) in enumerate(tensors):
        values = np.arange(np.prod(shape, dtype=int)).reshape(shape).astype(kind)
        code = helper.np_dtype_to_tensor_dtype(values.dtype)
        flat = values.tobytes() if raw else values.reshape(-1)
        made.append(helper.make_tensor(f"t{index}", code, shape, flat, raw=raw))
    assert_split(model(made).SerializeToString(), small)


def test_every_example_is_split() -> None:
    assert sum(assert_split(EXAMPLES[name]().SerializeToString(), 1 << 10) for name in ("cnn", "mlp")) > 2


@settings(deadline=None)
@given(st.data())
def test_bytes_that_are_no_protobuf_are_left_as_they_are(data: st.DataObject) -> None:
    whole = model([numpy_helper.from_array(np.arange(200.0), "w")]).SerializeToString()
    at = data.draw(st.integers(0, len(whole) - 1))
    broken = data.draw(st.sampled_from([whole[:at], whole[:at] + b"\xff" + whole[at + 1 :], b"\xff" * at]))
    rest, found = without_values(broken, 100)
    assert found or rest == broken
    for stored in found:
        assert stored.start <= stored.offset <= stored.offset + stored.size <= stored.end <= len(broken)


def test_a_tensor_whose_other_fields_are_broken_is_left() -> None:
    """What the parser of the onnx package refuses, it refuses in its own words."""
    tensor = numpy_helper.from_array(np.arange(200.0), "w")
    tensor.external_data.add(key="k", value="v")
    whole = model([tensor]).SerializeToString()
    broken = whole.replace(b"\x0a\x01k\x12\x01v", b"\x0a\x7fk\x12\x01v")
    assert broken != whole
    assert without_values(broken, 100) == (broken, [])


def test_numbers_have_64_bits_at_most() -> None:
    assert without_values(b"\x80" * 1000 + b"\0", 100) == (b"\x80" * 1000 + b"\0", [])


@pytest.mark.parametrize("large", [False, True])
def test_values_stay_in_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, large: bool) -> None:
    weights = np.random.default_rng(1).standard_normal((200, 101)).astype(np.float32)
    path = tmp_path / "model.onnx"
    onnx.save(model([numpy_helper.from_array(weights, "w"), numpy_helper.from_array(weights[0], "small")]), path)
    if large:
        monkeypatch.setattr(file, "MAPPED", 1)
    proto, external = read_file(path)
    assert [tensor.name for tensor in proto.graph.initializer] == ["small"]
    assert [value.name for value in proto.graph.input] == ["x", "w"]
    values: Any = external["w"]
    assert isinstance(values.base, mmap.mmap if large else bytes)
    file.give_back([values])
    assert values.tobytes() == weights.tobytes()


def test_elements_below_a_byte_are_unpacked(tmp_path: Path) -> None:
    codes = (np.arange(1 << 18) % 16 - 8).astype(ml_dtypes.int4)
    path = tmp_path / "model.onnx"
    onnx.save(model([numpy_helper.from_array(codes, "w")]), path)
    values = read_file(path).external["w"]
    assert values.dtype == codes.dtype and np.array_equal(values, codes)
