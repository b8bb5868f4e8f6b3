"""The check of models that round to codes on the way: the reference continues with the codes of the run."""

from typing import Any

import numpy as np
import pytest
from model_runs import run_compiled
from onnx import TensorProto, helper, numpy_helper

from npu_device.config import NpuConfig
from pyv_npu.config import Config, with_values
from pyv_npu.workloads import ia
from pyv_npu.workloads.checks import check, check_codes, compare
from pyv_npu.workloads.data import random_inputs
from toolchain.codegen import Target
from toolchain.compiler import Compiled, compile_model
from toolchain.examples import EXAMPLES
from toolchain.onnx_model.model import prepare
from toolchain.onnx_model.reference import evaluate, rounded_outputs

CONFIG = NpuConfig()
GRANULARITIES = ["macro", "tile"]
DEPTH, WIDTH = 512, 64


def compiled(name: str, granularity: str = "macro", **options: Any) -> Compiled:
    return compile_model(prepare(EXAMPLES[name](**options), name), Target(), granularity=granularity)


def _product(scale: np.float32) -> Any:
    """A product of floats, codes of its results, and what depends on them."""
    random = np.random.default_rng(1)
    weights = {
        "w": random.standard_normal((DEPTH, WIDTH)).astype(np.float32),
        "v": random.standard_normal((WIDTH, 8)).astype(np.float32), "scale": scale, "zero": np.int8(0),
    }  # fmt: skip
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["sum"]),
        helper.make_node("QuantizeLinear", ["sum", "scale", "zero"], ["codes"]),
        helper.make_node("DequantizeLinear", ["codes", "scale", "zero"], ["back"]),
        helper.make_node("MatMul", ["back", "v"], ["y"]),
    ]
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes, "g", [value("x", TensorProto.FLOAT, [1, DEPTH])], [value("y", TensorProto.FLOAT, [1, 8])],
        [numpy_helper.from_array(np.asarray(values), name) for name, values in weights.items()],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)


def _scale_between(ours: Any, theirs: Any) -> np.float32:
    """A scale with which one of the values, and only one, becomes another code."""
    for index in np.flatnonzero(ours != theirs):
        for code in range(10, 100):
            scale = np.float32(max(abs(ours[index]), abs(theirs[index])) / np.float32(code + 0.5))
            if np.count_nonzero(np.rint(ours / scale) != np.rint(theirs / scale)) == 1:
                return scale
    raise AssertionError("no value differs in its last bit")


def test_a_value_between_two_codes_does_not_spoil_what_lies_behind_it() -> None:
    plain = prepare(_product(np.float32(1)), "m")
    inputs = {"x": np.random.default_rng(2).uniform(-1, 1, (1, DEPTH)).astype(np.float32)}
    theirs = evaluate(plain.proto, ["sum"], inputs)["sum"].reshape(-1)
    ours = (inputs["x"].astype(np.float64) @ plain.initializers["w"]).astype(np.float32).reshape(-1)
    model = compile_model(prepare(_product(_scale_between(ours, theirs)), "m"), Target())
    outputs, codes = ia.observed(model, CONFIG, inputs)
    made = compare(model, outputs, inputs, codes)
    assert (made.codes["differ"], made.codes["ties"], made.codes["ok"]) == (0, 1, True)
    assert made.outputs["y"]["ok"] and made.outputs["y"]["limit"] == 1e-5
    alone = compare(model, outputs, inputs, {}).outputs["y"]
    assert not alone["ok"] and alone["error"] > 1e-3, "what the reference makes of its own code"


@pytest.mark.parametrize("granularity", GRANULARITIES)
@pytest.mark.parametrize("name", ["mlp_int8", "cnn_int8", "decoder_int8"])
def test_every_code_is_seen_whatever_passes_made_of_its_tensor(name: str, granularity: str) -> None:
    model = compiled(name, granularity)
    inputs = random_inputs(model, 4)
    outputs, codes = ia.observed(model, CONFIG, inputs)
    assert list(codes) and set(codes) == set(rounded_outputs(model.model.proto))
    for key, values in codes.items():
        assert values.shape == model.model.info[key].shape
    made = compare(model, outputs, inputs, codes)
    assert made.codes["ok"] and made.codes["tensors"] == len(codes)
    assert made.codes["elements"] == sum(values.size for values in codes.values())


@pytest.mark.parametrize("name", ["mlp_int8", "cnn_int8"])
def test_a_wrong_code_is_found_where_it_is_made(name: str) -> None:
    model = compiled(name)
    inputs = random_inputs(model, 4)
    outputs, codes = ia.observed(model, CONFIG, inputs)
    key = list(codes)[1]
    for change, count in ((2, 1), (1, 100)):
        wrong = codes[key].copy()
        wrong.reshape(-1)[:count] ^= change
        assert not compare(model, outputs, inputs, codes | {key: wrong}).codes["ok"]


def test_outputs_that_do_not_follow_from_the_codes_are_found() -> None:
    model = compiled("mlp_int8")
    inputs = random_inputs(model, 4)
    outputs, codes = ia.observed(model, CONFIG, inputs)
    moved = {name: values + np.float32(1e-4) for name, values in outputs.items()}
    assert not compare(model, moved, inputs, codes).outputs["y"]["ok"]


@pytest.mark.parametrize(("size", "allowed"), [(10, 1), (10_000, 1), (25_000, 3)])
def test_so_many_codes_may_be_one_step_off(size: int, allowed: int) -> None:
    want = np.zeros(size, np.int8)
    for off, step, ok in ((allowed, 1, True), (allowed + 1, 1, False), (1, 2, False)):
        got = want.copy()
        got[:off] = step
        assert check_codes([(got, want)])["ok"] is ok
    assert check_codes([(want[:5], want[:5]), (want, want)])["elements"] == size + 5


def test_integers_that_are_no_codes_must_be_equal() -> None:
    want = np.zeros(100_000, np.int32)
    got = want.copy()
    got[0] = 1
    assert not check(got, want)["ok"] and check(got, want, steps=True)["ok"]


def test_through_firmware_the_codes_are_those_of_ia() -> None:
    model = compiled("mlp_int8")
    seen = [
        run_compiled(with_values(Config(), {"run.sim_level": level}), model).json["model"]
        for level in ("IA", "IA_TIMING", "CA_HYBRID")
    ]
    assert seen[0]["codes"]["ok"] and all(one["codes"] == seen[0]["codes"] for one in seen)
