"""What onnx.reference computes wrongly, or not at all: onnxruntime judges our implementation, and our results."""

import tracemalloc
from random import Random
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto
from onnxruntime_reference import LIMIT, agree, by_onnxruntime, near, one_node, random

from toolchain.onnx_model.model import prepare
from toolchain.onnx_model.reference import evaluate, reference
from toolchain.onnx_reference import corrected, windows

I64, FP16, INT32 = TensorProto.INT64, TensorProto.FLOAT16, TensorProto.INT32
OUTPUTS = {"LSTM": ("Y", "Yh", "Yc"), "GRU": ("Y", "Yh"), "RNN": ("Y", "Yh")}
GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}


def check(operator: str, inputs: dict[str, Any], outputs: Any = ("y",), *, limit: float = LIMIT, **how: Any) -> None:
    proto = one_node(operator, inputs, outputs, **how)
    agree(proto, inputs, limit=limit)
    want, results = by_onnxruntime(proto, inputs), reference(prepare(proto, "m"), inputs)
    for name in want:
        near(results[name], want[name], limit, name)


RECURRENT: dict[str, dict[str, Any]] = {
    "lengths": {"lengths": [4, 2, 1]}, "clip": {"clip": 0.3}, "coupled": {"input_forget": 1},
    "functions": {"activations": ["HardSigmoid", "Relu", "Softsign"], "activation_alpha": [0.3]},
}  # fmt: skip


@pytest.mark.parametrize("direction", ["reverse", "bidirectional"])
@pytest.mark.parametrize(
    ("operator", "case"), [(one, case) for one in OUTPUTS for case in RECURRENT if case != "coupled" or one == "LSTM"]
)
def test_recurrent_layers(operator: str, case: str, direction: str) -> None:
    how, ways, wide = dict(RECURRENT[case]), 1 + (direction == "bidirectional"), GATES[operator] * 5
    if case == "functions":
        how["activations"] = how["activations"][: {"LSTM": 3, "GRU": 2, "RNN": 1}[operator]] * ways
        how["activation_alpha"] *= ways
    constants = {"W": random(ways, wide, 4, seed=4), "R": random(ways, wide, 5, seed=5),
                 "B": random(ways, 2 * wide, seed=6)}  # fmt: skip
    if lengths := how.pop("lengths", None):
        constants["L"] = np.array(lengths, np.int32)
    check(operator, {"X": random(4, 3, 4)}, OUTPUTS[operator], constants=constants, hidden_size=5, opset=14,
          direction=direction, **how)  # fmt: skip


POOLS: dict[str, dict[str, Any]] = {
    "more behind": {"pads": [0, 0, 1, 2]}, "ceil": {"strides": [2, 3], "pads": [0, 1, 1, 0], "ceil_mode": 1},
    "same": {"auto_pad": "SAME_LOWER", "strides": [2, 2], "ceil_mode": 1},
    "valid": {"auto_pad": "VALID", "strides": [2, 3], "ceil_mode": 1},
}  # fmt: skip


@pytest.mark.parametrize("case", POOLS)
def test_pools(case: str) -> None:
    x = {"x": random(2, 3, 8, 9)}
    check("MaxPool", x, ("y", "places"), kinds=[1, I64], opset=12, kernel_shape=[3, 3], **POOLS[case])
    for counted in (0, 1):
        check("AveragePool", x, opset=12, kernel_shape=[3, 3], count_include_pad=counted, **POOLS[case])
    if "ceil_mode" not in POOLS[case]:
        check("LpPool", x, opset=12, kernel_shape=[3, 3], p=3, **POOLS[case])


def test_places_by_columns() -> None:
    x = {"x": random(2, 3, 4, 5)}
    check("MaxPool", x, ("y", "places"), kinds=[1, I64], opset=12, kernel_shape=[2, 2], storage_order=1)


@pytest.mark.parametrize("size", [1, 3])
def test_neighbours_of_every_image_of_a_batch(size: int) -> None:
    check("LRN", {"x": random(3, 2, 4, 5)}, size=size, alpha=0.5, bias=2.0)


@pytest.mark.parametrize("operator", ["MaxPool", "AveragePool"])
def test_a_large_pool_takes_no_second(operator: str) -> None:
    check(operator, {"x": random(1, 64, 80, 80)}, opset=12, kernel_shape=[5, 5], pads=[2, 2, 2, 2])


def test_norms_of_absolute_values() -> None:
    check("LpNormalization", {"x": random(3, 4)}, p=1)


def test_one_number() -> None:
    one = {"x": np.array(0.5, np.float32)}
    check("ReduceLogSumExp", one)
    check("Softsign", one)


def test_squares_of_integers() -> None:
    x = {"x": np.arange(6, dtype=np.int32).reshape(2, 3)}
    check("ReduceSumSquare", x, constants={"axes": np.array([1])}, kinds=[INT32], opset=18)


def test_logarithms_of_16_bits() -> None:
    check("LogSoftmax", {"x": (9 * random(3, 7)).astype(np.float16)}, kinds=[FP16], limit=2e-3)


def test_an_image_that_is_larger_than_the_windows_reach() -> None:
    constants = {"w": random(1, 2, 1, 2)}
    check("ConvTranspose", {"x": random(1, 1, 3, 4)}, constants=constants, strides=[2, 3], output_shape=[6, 12])


def test_the_largest_code_of_numbers_beyond_all_steps() -> None:
    x = {"x": np.array([1e30, -1e30, np.inf, 3e9, 0.3], np.float32)}
    numbers = {"s": np.float32(1e-3), "z": np.uint8(5)}
    check("QuantizeLinear", x, constants=numbers, kinds=[TensorProto.UINT8])


def test_products_beyond_the_codes() -> None:
    codes = {"a": np.array([[0, 100], [200, 255]], np.uint8)}
    constants = {"as": np.float32(1), "az": np.uint8(100), "b": np.array([[1, -1], [9, 0]], np.int8),
                 "bs": np.float32(1), "bz": np.int8(0), "s": np.float32(2), "z": np.uint8(3)}  # fmt: skip
    check("QLinearMatMul", codes, constants=constants, kinds=[TensorProto.UINT8])


def test_places_that_are_no_c_array() -> None:
    columns = np.arange(6).reshape(3, 2).T
    rows = corrected.Gather.eval(random(6, 4), columns)
    assert rows.shape == (2, 3, 4) and np.array_equal(rows[1, 2], random(6, 4)[5])


@pytest.mark.parametrize("seed", range(60))
def test_convolutions(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """In as few bytes as a row takes, or in one piece."""
    chance = Random(seed)
    monkeypatch.setattr(windows, "COLUMNS", chance.choice((1, 3000, 1 << 24)))
    rank, groups = chance.choice((1, 2, 2, 3)), chance.choice((1, 1, 2, 3))
    taps, steps = ([chance.randint(1, 3) for _ in range(rank)] for _ in range(2))
    how: dict[str, Any] = {"strides": steps} if chance.random() < 0.7 else {}
    mode = chance.choice(("NOTSET", "NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER"))
    if mode != "NOTSET":
        how["auto_pad"] = mode
    elif chance.random() < 0.7:
        how["pads"] = [chance.randint(0, 3) for _ in range(2 * rank)]
    if not mode.startswith("SAME") and chance.random() < 0.5:  # onnxruntime pads dilated ones as if they were not
        how["dilations"] = [chance.randint(1, 2) for _ in range(rank)]
    x = random(chance.randint(1, 2), 2 * groups, *(chance.randint(5, 9) for _ in range(rank)), seed=seed)
    constants = {"w": random(groups * chance.randint(1, 2), 2, *taps, seed=seed + 1)}
    if chance.random() < 0.5:
        constants["b"] = random(len(constants["w"]), seed=seed + 2)
    proto = one_node("Conv", {"x": x}, ("y",), constants=constants, group=groups, **how)
    want, results = by_onnxruntime(proto, {"x": x}), evaluate(proto, ["y"], {"x": x})
    near(results["y"], want["y"], LIMIT, "y")


def test_a_convolution_takes_little_more_than_its_tensors() -> None:
    x, w = random(1, 32, 256, 256), random(32, 32, 3, 3)
    proto = one_node("Conv", {"x": x}, ("y",), constants={"w": w}, pads=[1, 1, 1, 1])
    tracemalloc.start()
    try:
        results = evaluate(proto, ["y"], {"x": x})
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert results["y"].shape == x.shape
    assert peak < 3 * x.nbytes + 3 * windows.COLUMNS, "its columns are nine times the image"
