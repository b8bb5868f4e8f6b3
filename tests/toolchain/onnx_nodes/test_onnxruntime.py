"""Operators that are graphs of others, with values that the node tests of onnx do not have; onnxruntime judges."""

import tracemalloc
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnxruntime_reference import LIMIT, agree, by_onnxruntime, by_us, near, one_node, random

from toolchain.codegen import Target
from toolchain.compiler import compile_model
from toolchain.errors import ModelError
from toolchain.onnx_model.model import prepare
from toolchain.onnx_model.reference import evaluate

I64 = TensorProto.INT64


def check(operator: str, inputs: dict[str, Any], outputs: Any = ("y",), **how: Any) -> None:
    agree(one_node(operator, inputs, outputs, **how), inputs)


# -- recurrent ---------------------------------------------------------------------------------------------------------

GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
OUTPUTS = {"LSTM": ("Y", "Yh", "Yc"), "GRU": ("Y", "Yh"), "RNN": ("Y", "Yh")}


@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize("operator", GATES)
@pytest.mark.parametrize("lengths", ["none", "constant", "computed"])
def test_recurrent_layers_with_a_state_and_lengths(operator: str, direction: str, lengths: str) -> None:
    steps, batch, width, hidden = 5, 3, 4, 6
    ways, wide = 1 + (direction == "bidirectional"), GATES[operator] * hidden
    constants = {"W": random(ways, wide, width, seed=4), "R": random(ways, wide, hidden, seed=5),
                 "B": random(ways, 2 * wide, seed=6)}  # fmt: skip
    inputs = {"X": random(steps, batch, width), "h": random(ways, batch, hidden, seed=7)}
    order = ["X", "W", "R", "B", "L" if lengths != "none" else "", "h"]
    if lengths != "none":
        (constants if lengths == "constant" else inputs)["L"] = np.array([5, 2, 4], np.int32)
    if operator == "LSTM":
        inputs["c"] = random(ways, batch, hidden, seed=8)
        order.append("c")
    check(operator, inputs, OUTPUTS[operator], constants=constants, order=order, hidden_size=hidden,
          direction=direction)  # fmt: skip


@pytest.mark.parametrize("linear", [0, 1])
def test_gru_resets_before_or_behind_the_product(linear: int) -> None:
    constants = {"W": random(1, 15, 4, seed=4), "R": random(1, 15, 5, seed=5), "B": random(1, 30, seed=6)}
    check("GRU", {"X": random(4, 2, 4)}, ("Y", "Yh"), constants=constants, order=["X", "W", "R", "B"], hidden_size=5,
          linear_before_reset=linear)  # fmt: skip


@pytest.mark.slow
def test_a_recurrent_layer_of_many_steps() -> None:
    constants = {"W": random(1, 3, 2, seed=4), "R": random(1, 3, 3, seed=5)}
    check("RNN", {"X": random(1500, 1, 2)}, ("Y", "Yh"), constants=constants, order=["X", "W", "R"], hidden_size=3)


def test_a_recurrent_layer_of_too_many_steps_is_refused() -> None:
    constants = {"W": random(1, 3, 2, seed=4), "R": random(1, 3, 3, seed=5)}
    with pytest.raises(ModelError, match="4097 steps: supported are 4096; bind a shorter sequence with --shape"):
        check("RNN", {"X": random(4097, 1, 2)}, ("Y", "Yh"), constants=constants, order=["X", "W", "R"], hidden_size=3)


def test_lstm_with_peepholes() -> None:
    constants = {"W": random(1, 20, 4, seed=4), "R": random(1, 20, 5, seed=5), "P": random(1, 15, seed=6)}
    check("LSTM", {"X": random(4, 2, 4)}, ("Y", "Yh", "Yc"), constants=constants,
          order=["X", "W", "R", "", "", "", "", "P"], hidden_size=5)  # fmt: skip


# -- legal forms of common operators -----------------------------------------------------------------------------------


@pytest.mark.parametrize("outputs", [("y",), ("y", "mask")])
def test_dropout_in_training_at_ratio_0_is_nothing(outputs: tuple[str, ...]) -> None:
    """torchvision's swin_t exports 24 of them."""
    constants = {"ratio": np.array(0, np.float32), "training": np.array(True)}
    kinds = [TensorProto.FLOAT, TensorProto.BOOL][: len(outputs)]
    check("Dropout", {"x": random(3, 4)}, outputs, constants=constants, order=["x", "ratio", "training"], kinds=kinds)


@pytest.mark.parametrize("ratio", [None, 0.5])
def test_dropout_in_training_at_another_ratio_is_refused(ratio: float | None) -> None:
    constants = {"training": np.array(True)} | ({} if ratio is None else {"ratio": np.array(ratio, np.float32)})
    model = one_node("Dropout", {"x": random(3, 4)}, ("y",), constants=constants,
                     order=["x", "ratio" if "ratio" in constants else "", "training"])  # fmt: skip
    with pytest.raises(ModelError, match=r"training_mode is true at ratio 0\.5: supported are inference, and ratio 0"):
        compile_model(prepare(model, "m"), Target())


@pytest.mark.parametrize(
    ("scale", "bias", "axis"),
    [((1,), (1,), -1), ((4,), None, 1), ((3, 1), (1, 4), 1), ((1, 3, 1), (4,), 1), ((2, 1, 4), (3, 4), -1),
     ((2, 1, 4), None, -1)],
)  # fmt: skip
@pytest.mark.parametrize("constant", [True, False])
def test_scale_and_bias_of_a_normalization_are_broadcast(
    scale: tuple[int, ...], bias: tuple[int, ...] | None, axis: int, constant: bool
) -> None:
    weights = {"s": random(*scale, seed=2)} | ({} if bias is None else {"b": random(*bias, seed=3)})
    inputs = {"x": random(2, 3, 4)} | ({} if constant else weights)
    order = ["x", *weights]
    check("LayerNormalization", inputs, constants=weights if constant else {}, order=order, axis=axis, opset=17)


def test_scale_of_a_root_mean_square_is_broadcast() -> None:
    scale = {"s": random(2, 1, 1, seed=2)}
    check("RMSNormalization", {"x": random(2, 3, 4)}, constants=scale, order=["x", "s"], opset=23)


WHOLE = [np.int32, np.int64]


@pytest.mark.parametrize("kind", WHOLE)
@pytest.mark.parametrize(
    ("left", "right"),
    [((3, 5), (5, 4)), ((2, 3, 5), (5, 4)), ((2, 1, 3, 5), (4, 5, 2)), ((5,), (5, 4)), ((3, 5), (5,)), ((5,), (5,))],
)
def test_products_of_matrices_of_integers_are_exact(kind: Any, left: tuple[int, ...], right: tuple[int, ...]) -> None:
    numbers = np.random.default_rng(1)
    a, b = (numbers.integers(-limit, limit, shape).astype(kind) for limit, shape in ((9999, left), (999, right)))
    check("MatMul", {"a": a, "b": b}, kinds=[helper.np_dtype_to_tensor_dtype(np.dtype(kind))])


@pytest.mark.parametrize("kind", WHOLE)
@pytest.mark.parametrize("exponent", [np.array(0), np.array(1), np.array(2.0, np.float32), np.array([3, 0, 5])])
def test_powers_of_integers_are_exact(kind: Any, exponent: Any) -> None:
    inputs = {"x": np.arange(-6, 6).reshape(4, 3).astype(kind)}
    exponent = exponent if exponent.dtype == np.float32 else exponent.astype(kind)
    code = helper.np_dtype_to_tensor_dtype(np.dtype(kind))
    check("Pow", inputs, constants={"e": exponent}, order=["x", "e"], kinds=[code])


@pytest.mark.parametrize("exponent", [-1, 65])
def test_a_power_of_integers_that_is_no_integer_is_refused(exponent: int) -> None:
    constants = {"e": np.array(exponent, np.int32)}
    model = one_node("Pow", {"x": np.ones(3, np.int32)}, constants=constants, kinds=[TensorProto.INT32])
    with pytest.raises(ModelError, match=r"exponents of integers must be whole numbers of 0\.\.64"):
        compile_model(prepare(model, "m"), Target())


def test_an_input_without_elements_is_known() -> None:
    """The past of a first step, as optimum's decoders take it."""
    value, past = helper.make_tensor_value_info, [1, 2, "past", 4]
    nodes = [
        helper.make_node("Concat", ["past", "k"], ["keys"], axis=2),
        helper.make_node("Transpose", ["keys"], ["turned"], perm=[0, 1, 3, 2]),
        helper.make_node("MatMul", ["q", "turned"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes, "g", [value(name, 1, past if name == "past" else [1, 2, 3, 4]) for name in ("q", "past", "k")],
        [value("y", 1, None)],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    empty = np.zeros((1, 2, 0, 4), np.float32)
    assert prepare(type(model).FromString(model.SerializeToString()), "m", {"past": empty.shape}).inputs == ["q", "k"]
    agree(model, {"past": empty}, shapes={"past": empty.shape})


def test_an_attention_has_a_past_without_elements() -> None:
    inputs = {name: random(1, 2, 3, 4, seed=seed) for seed, name in enumerate("qkv")}
    empty = {name: np.zeros((1, 2, 0, 4), np.float32) for name in ("pk", "pv")}
    agree(one_node("Attention", inputs, ("y", "k2", "v2"), constants=empty, order=["q", "k", "v", "", "pk", "pv"],
                   is_causal=1, opset=23), inputs)  # fmt: skip


# -- images ------------------------------------------------------------------------------------------------------------

COORDINATES = ["half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric"]


@pytest.mark.parametrize("coordinates", COORDINATES)
@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
@pytest.mark.parametrize("sizes", [(2, 3, 8, 14), (2, 3, 3, 5), (2, 3, 5, 21), (2, 3, 1, 1)])
def test_resize_to_a_size(mode: str, coordinates: str, sizes: tuple[int, ...]) -> None:
    if mode == "nearest" and sizes[2:] == (1, 1):
        sizes = (2, 3, 1, 7)  # 7 to 1 pixels is a tie that fp32 decides
    x = {"x": random(2, 3, 4, 7)}
    rounding = {"nearest_mode": "floor"} if mode == "nearest" else {}
    check("Resize", x, constants={"s": np.array(sizes, np.int64)}, order=["x", "", "", "s"], mode=mode,
          coordinate_transformation_mode=coordinates, **rounding)  # fmt: skip


@pytest.mark.parametrize("rounding", ["round_prefer_floor", "round_prefer_ceil", "floor", "ceil"])
@pytest.mark.parametrize("factor", [0.5, 0.6, 1.5, 2.0, 3.0])
def test_resize_by_scales_takes_the_nearest(rounding: str, factor: float) -> None:
    x = {"x": random(1, 2, 6, 5)}
    scales = np.array([1, 1, factor, factor], np.float32)
    check("Resize", x, constants={"s": scales}, order=["x", "", "s"], mode="nearest", nearest_mode=rounding)


@pytest.mark.parametrize("stride", [1, 2, 3])
@pytest.mark.parametrize("kernel", [2, 3])
@pytest.mark.parametrize("more", [{}, {"pads": [1, 1, 1, 1]}, {"output_padding": [1, 0]}, {"dilations": [2, 1]},
                                  {"group": 2}])  # fmt: skip
def test_transposed_convolution(stride: int, kernel: int, more: dict[str, Any]) -> None:
    if more.get("output_padding") and stride == 1:
        more = {}
    weights = {"w": random(4, 3, kernel, kernel, seed=9), "b": random(3 * more.get("group", 1), seed=2)}
    check("ConvTranspose", {"x": random(2, 4, 5, 6)}, constants=weights, strides=[stride, stride], **more)


@pytest.mark.parametrize("operator", ["Conv", "ConvTranspose"])
def test_weights_that_the_graph_divides_by_their_norm(operator: str) -> None:
    make = helper.make_node
    nodes = [make("ReduceL2", ["v", "axes"], ["norm"]), make("Div", ["g", "norm"], ["factor"]),
             make("Mul", ["v", "factor"], ["w"]), make(operator, ["x", "w"], ["y"])]  # fmt: skip
    constants = {"v": random(5, 5, 3, 3), "g": random(5, 1, 1, 1, seed=5), "axes": np.array([1, 2, 3])}
    graph = helper.make_graph(
        nodes, "g", [helper.make_tensor_value_info("x", 1, [2, 5, 6, 7])],
        [helper.make_tensor_value_info("y", 1, None)],
        [numpy_helper.from_array(values, name) for name, values in constants.items()],
    )  # fmt: skip
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
    agree(proto, {"x": random(2, 5, 6, 7)})
    products = compile_model(prepare(proto, "m"), Target()).graph.layers
    assert not any(layer.op_type == "REDUCE" for layer in products)


@pytest.mark.parametrize("size", [1, 3, 5])
def test_local_response(size: int) -> None:
    check("LRN", {"x": random(2, 7, 3, 4)}, size=size, alpha=0.3, beta=0.6, bias=1.7)


@pytest.mark.parametrize("mode", ["reflect", "edge", "wrap"])
@pytest.mark.parametrize("pads", [(0, 2, 0, 3), (1, 0, 1, 2), (-1, 2, 0, -2)])
def test_pad_with_the_image(mode: str, pads: tuple[int, ...]) -> None:
    check("Pad", {"x": random(4, 6)}, constants={"p": np.array(pads)}, mode=mode)


def test_pad_that_cuts() -> None:
    check("Pad", {"x": random(4, 6)}, constants={"p": np.array((-1, 2, 3, -2)), "v": np.float32(7)})


def test_instance_normalization() -> None:
    check("InstanceNormalization", {"x": random(2, 3, 4, 5)}, constants={"s": random(3), "b": random(3, seed=8)})


@pytest.mark.parametrize("shape", [(2, 3, 5), (2, 3, 4, 5), (1, 2, 3, 2, 4)])
def test_global_pools(shape: tuple[int, ...]) -> None:
    check("GlobalMaxPool", {"x": random(*shape)})
    check("GlobalLpPool", {"x": random(*shape)}, p=3)


WINDOWS: list[dict[str, Any]] = [
    {"strides": [2, 2]}, {"strides": [2, 2], "pads": [1, 0, 1, 1]}, {"strides": [2, 2], "auto_pad": "SAME_UPPER"},
    {"auto_pad": "SAME_LOWER"}, {"dilations": [2, 1]}, {"strides": [2, 2], "ceil_mode": 1},
]  # fmt: skip


@pytest.mark.parametrize("how", WINDOWS)
def test_pools_of_windows(how: dict[str, Any]) -> None:
    """The root of sums of powers, and the places of the largest, of which the first counts."""
    x = {"x": random(2, 3, 8, 7).round(1)}
    check("LpPool", x, kernel_shape=[3, 2], p=3 if "pads" in how else 2, opset=22, **how)
    check("MaxPool", x, ("y", "i"), kernel_shape=[3, 2], kinds=(1, I64), storage_order=len(how) % 2, **how)


def test_unpooled_elements() -> None:
    nodes = [helper.make_node("MaxPool", ["x"], ["v", "i"], kernel_shape=[2, 2], strides=[2, 2]),
             helper.make_node("MaxUnpool", ["v", "i"], ["y"], kernel_shape=[2, 2], strides=[2, 2])]  # fmt: skip
    shape = [1, 2, 4, 6]
    values = [helper.make_tensor_value_info(name, 1, shape) for name in "xy"]
    graph = helper.make_graph(nodes, "g", values[:1], values[1:])
    agree(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8))


@pytest.mark.parametrize(
    ("image", "columns", "how"),
    [((12, 11), 36, {"pads": [1, 1, 1, 1], "strides": [2, 2]}), ((7, 7), 15, {"dilations": [1, 2]})],
)
def test_columns_become_an_image(image: tuple[int, int], columns: int, how: dict[str, Any]) -> None:
    """With pixels behind the last window, and with windows that overlap."""
    sizes = {"i": np.array(image), "b": np.array([3, 3])}
    check("Col2Im", {"x": random(2, 18, columns)}, constants=sizes, **how)


# -- elements and rows -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "operator",
    [
        "Ceil",
        "Celu",
        "Elu",
        "Floor",
        "HardSigmoid",
        "HardSwish",
        "Hardmax",
        "LeakyRelu",
        "LogSoftmax",
        "Mish",
        "Round",
        "Selu",
        "Sign",
        "Softplus",
        "Tan",
    ],
)
def test_functions(operator: str) -> None:
    check(operator, {"x": random(5, 7) * 4})


SMALL = [1e-3, -1e-4, 1e-6, 0]
EXTREMES: dict[str, list[float]] = {
    "Acosh": [1, 1.00001, 1.1, 2, 5, 1e10, 1e30, np.inf], "Acos": [-1, -0.5, 0.4999, 0.5, 0.9999, 1],
    "Asin": [-1, -0.5, 0.4999, 0.9999, 1], "Asinh": [1e9, -3e37, 1.5, np.inf, -np.inf], "Cosh": [90, -89.3, 1, np.inf],
    "Atan": [-0.41, 0.42, 2.41, -2.42, 1e30, np.inf, -np.inf], "Atanh": [-1, 0.5, 0.999999, -0.9],
    "Sinh": [90, -89.3, 0.999, -1.001, -np.inf],
}  # fmt: skip


@pytest.mark.parametrize("operator", EXTREMES)
def test_inverse_and_hyperbolic_functions(operator: str) -> None:
    """Near 0, where the result is small, and where it begins to overflow."""
    agree_at = [EXTREMES[operator], *([SMALL] if operator not in ("Acosh", "Acos", "Cosh") else [])]
    for values in agree_at:
        x = {"x": np.array(values, np.float32)}
        agree(one_node(operator, x), x, limit=5e-7)


def test_sums_of_integers_are_exact() -> None:
    x = np.random.default_rng(4).integers(-(1 << 27), 1 << 27, (3, 5, 2)).astype(np.int64)
    check("ReduceSum", {"x": x}, constants={"axes": np.array([0, 2])}, kinds=(I64,))


@pytest.mark.parametrize("zero", ["constant", "computed"])
def test_columns_with_zero_points_of_their_own(zero: str) -> None:
    """As dynamic quantization with a scale for each channel makes them."""
    codes = np.random.default_rng(4)
    inputs = {"a": codes.integers(0, 256, (2, 3, 5), np.uint8)}
    constants = {"b": codes.integers(0, 256, (5, 4), np.uint8), "zb": codes.integers(0, 256, 4, np.uint8)}
    (constants if zero == "constant" else inputs)["za"] = np.array(100, np.uint8)
    check("MatMulInteger", inputs, constants=constants, order=["a", "b", "za", "zb"], kinds=(6,))


def test_logarithm() -> None:
    check("Log", {"x": np.array([1e-30, 0.5, 1, 2, 1e30, 0, -1], np.float32)})


@pytest.mark.parametrize("operator", ["ReduceMin", "ReduceProd", "ReduceL1", "ReduceL2", "ReduceSumSquare",
                                      "ReduceLogSumExp"])  # fmt: skip
@pytest.mark.parametrize("axes", [[0], [1, 2], [-1], None])
@pytest.mark.parametrize("keepdims", [0, 1])
def test_reductions(operator: str, axes: list[int] | None, keepdims: int) -> None:
    constants = {} if axes is None else {"axes": np.array(axes)}
    check(operator, {"x": random(3, 4, 5)}, constants=constants, keepdims=keepdims)


@pytest.mark.parametrize("operator", ["ReduceMin", "ReduceMax", "ArgMin", "ArgMax"])
@pytest.mark.parametrize("kind", [np.int8, np.uint8, np.int32])
def test_the_smallest_integer_is_found(operator: str, kind: Any) -> None:
    x = np.array([[5, np.iinfo(kind).min, np.iinfo(kind).max]], kind)
    made = I64 if operator.startswith("Arg") else helper.np_dtype_to_tensor_dtype(x.dtype)
    how = {"axis": 1} if made == I64 else {"axes": [1]}
    check(operator, {"x": x}, kinds=(made,), opset=13, **how)


def test_the_product_of_one_number() -> None:
    check("ReduceProd", {"x": np.array(3, np.float32)})


@pytest.mark.parametrize("exclusive", [0, 1])
@pytest.mark.parametrize("reverse", [0, 1])
@pytest.mark.parametrize("axis", [0, 1, -1])
def test_cumulative_sums(axis: int, exclusive: int, reverse: int) -> None:
    check("CumSum", {"x": random(3, 4, 5)}, constants={"axis": np.array(axis)}, exclusive=exclusive, reverse=reverse)


@pytest.mark.parametrize(("exclusive", "reverse"), [(0, 0), (0, 1), (1, 0), (1, 1)])
@pytest.mark.parametrize("axis", [0, 1, 2])
def test_cumulative_sums_of_integers_are_exact(axis: int, exclusive: int, reverse: int) -> None:
    x = np.random.default_rng(4).integers(-(1 << 27), 1 << 27, (1, 5, 7)).astype(np.int32)
    check("CumSum", {"x": x}, constants={"axis": np.array(axis)}, kinds=(6,), exclusive=exclusive, reverse=reverse)


def test_an_axis_that_is_a_list_of_one() -> None:
    """tf2onnx writes it so, of constants too."""
    table = {"ones": np.ones((2, 3), np.float32), "axis": np.array([1])}
    check("CumSum", {"x": random(2, 3)}, constants={"axis": np.array([1])})
    nodes = [helper.make_node("CumSum", ["ones", "axis"], ["sums"]), helper.make_node("Mul", ["x", "sums"], ["y"])]
    graph = helper.make_graph(
        nodes, "g", [helper.make_tensor_value_info("x", 1, [2, 3])], [helper.make_tensor_value_info("y", 1, None)],
        [numpy_helper.from_array(values, name) for name, values in table.items()],
    )  # fmt: skip
    agree(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8))


@pytest.mark.parametrize("kind", [np.float32, np.float16, np.int32, np.int64, np.int8, np.uint8])
@pytest.mark.parametrize(("axis", "k", "largest"), [(0, 2, 1), (1, 20, 0), (-1, 24, 1)])
def test_many_of_the_largest_and_those_of_integers(kind: Any, axis: int, k: int, largest: int) -> None:
    x = np.round(random(4, 24) * 3)  # with ties
    x = (np.abs(x) if kind is np.uint8 else x).astype(kind)
    x[1, 5] = 100
    proto = one_node("TopK", {"x": x}, ("v", "i"), constants={"k": np.array([k])}, axis=axis, largest=largest,
                     kinds=(helper.np_dtype_to_tensor_dtype(np.dtype(kind)), I64))  # fmt: skip
    got, keys = by_us(proto, {"x": x})[0], x.astype(np.float64) * (-1 if largest else 1)
    want = np.take(np.argsort(keys, axis, kind="stable"), np.arange(k), axis)
    assert np.array_equal(got["i"], want) and got["i"].dtype == np.int64
    assert np.array_equal(got["v"], np.take_along_axis(x, want, axis)) and got["v"].dtype == x.dtype


@pytest.mark.parametrize("computed", [False, True])
@pytest.mark.parametrize(("time", "lengths"), [(0, [3, 1, 4]), (1, [5, 2, 3, 5]), (0, [4, 4, 4])])
def test_sequences_from_behind(time: int, lengths: list[int], computed: bool) -> None:
    given, constants = {"x": random(4, 3, 2) if time == 0 else random(4, 5)}, {"n": np.array(lengths)}
    where = {"time_axis": time, "batch_axis": 1 - time}
    if computed:
        check("ReverseSequence", {**given, **constants}, **where)
    else:
        check("ReverseSequence", given, constants=constants, **where)


def test_a_part_without_elements_is_joined() -> None:
    nodes = [helper.make_node("Split", ["x", "sizes"], ["a", "b"], axis=1),
             helper.make_node("Neg", ["a"], ["n"]), helper.make_node("Concat", ["n", "b"], ["y"], axis=1)]  # fmt: skip
    graph = helper.make_graph(
        nodes, "g", [helper.make_tensor_value_info("x", 1, [2, 4])], [helper.make_tensor_value_info("y", 1, None)],
        [numpy_helper.from_array(np.array([4, 0]), "sizes")],
    )  # fmt: skip
    agree(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), {"x": random(2, 4)})


@pytest.mark.parametrize("axis", [None, 0, -1])
def test_a_constant_mask_says_how_many_rows_there_are(axis: int | None) -> None:
    how = {} if axis is None else {"axis": axis}
    check("Compress", {"x": random(2, 3)}, constants={"mask": np.array([False, True])}, opset=11, **how)


def test_one_element_of_a_tensor() -> None:
    check("GatherND", {"x": random(3, 2), "at": np.array([1, 0])}, opset=13)


@pytest.mark.parametrize("how", [{}, {"k": 1}, {"k": -1, "dtype": TensorProto.INT64}])
def test_ones_on_a_diagonal(how: dict[str, int]) -> None:
    check("EyeLike", {"x": random(3, 4)}, kinds=(how.get("dtype", TensorProto.FLOAT),), **how)


@pytest.mark.parametrize("corners", [0, 1])
@pytest.mark.parametrize("size", [[2, 1, 3, 4], [2, 2, 2, 3, 4]])
def test_an_affine_grid(size: list[int], corners: int) -> None:
    dims = len(size) - 2
    constants = {"size": np.array(size)}
    check("AffineGrid", {"theta": random(2, dims, dims + 1)}, constants=constants, align_corners=corners)


def test_rows_without_elements_are_joined() -> None:
    nodes = [helper.make_node("Slice", ["x", "zero", "zero", "axis"], ["none"]),
             helper.make_node("Mul", ["none", "none"], ["still"]),
             helper.make_node("Concat", ["still", "x", "none"], ["y"], axis=1)]  # fmt: skip
    graph = helper.make_graph(
        nodes, "g", [helper.make_tensor_value_info("x", 1, [2, 3])], [helper.make_tensor_value_info("y", 1, None)],
        [numpy_helper.from_array(np.array([value]), name) for name, value in (("zero", 0), ("axis", 1))],
    )  # fmt: skip
    agree(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8))


@pytest.mark.parametrize("largest", [0, 1])
@pytest.mark.parametrize(("axis", "k"), [(0, 2), (1, 5), (-1, 1)])
def test_top_k(axis: int, k: int, largest: int) -> None:
    x = {"x": np.round(random(4, 6)).astype(np.float32)}  # with ties
    check("TopK", x, ("v", "i"), constants={"k": np.array([k])}, kinds=(1, I64), axis=axis, largest=largest)


@pytest.mark.parametrize(
    ("shape", "kernel", "how"),
    [
        ((1, 128, 2200), [3], {"dilations": [1024]}),
        ((1, 128, 40, 64), [3, 3], {"dilations": [24, 24], "pads": [24] * 4, "strides": [2, 1], "group": 2}),
    ],
)
def test_windows_that_no_tile_would_span(shape: tuple[int, ...], kernel: list[int], how: Any) -> None:
    """Dilated so widely, as in WaveNet and DeepLab, that the rows between two of theirs do not fit the scratchpad."""
    x, weights = {"x": random(*shape)}, random(4, shape[1] // how.get("group", 1), *kernel, seed=4)
    proto = one_node("Conv", x, constants={"w": weights, "b": random(4)}, kernel_shape=kernel, **how)
    agree(proto, x)
    tracemalloc.start()
    (reference,) = evaluate(proto, ["y"], x).values()
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    near(reference, by_onnxruntime(proto, x)["y"], LIMIT, "y")
    assert most < 12 * x["x"].nbytes  # onnx's own fills the kernel up with zeros


@pytest.mark.parametrize("kind", [np.float32, np.float16])
@pytest.mark.parametrize("largest", [0, 1])
def test_top_k_of_infinities_finds_each_once(largest: int, kind: Any) -> None:
    inf, lowest = np.inf, np.finfo(kind).min
    rows = [
        [-inf] * 5,
        [inf] * 5,
        [-inf, 1, -inf, inf, -inf],
        [inf, -inf, inf, lowest, -inf],
        [lowest, -inf, -lowest, inf, inf],
    ]
    x, number = np.array(rows, kind), helper.np_dtype_to_tensor_dtype(np.dtype(kind))
    check("TopK", {"x": x}, ("v", "i"), constants={"k": np.array([4])}, kinds=(number, I64), axis=1, largest=largest)


@pytest.mark.parametrize(
    "equation",
    [
        "bij,bjk->bik",
        "bhqd,bhkd->bhqk",
        "i,j->ij",
        "ij->ji",
        "ij->",
        "bij,jk",
        "abc,cd,de->abe",
        "bij,bij->b",
        "bii->bi",
        "iji,i->j",
    ],
)
def test_einsum(equation: str) -> None:
    sizes = {letter: 2 + index for index, letter in enumerate(sorted(set(equation) & set("abcdefghijkq")))}
    terms = equation.split("->")[0].split(",")
    inputs = {f"x{i}": random(*(sizes[one] for one in term), seed=i) for i, term in enumerate(terms)}
    check("Einsum", inputs, equation=equation)


@pytest.mark.parametrize("constant", [False, True])
@pytest.mark.parametrize("axis", [0, 1])
def test_gather_elements(axis: int, constant: bool) -> None:
    indices = {"i": np.random.default_rng(2).integers(-3, 3, (3, 3))}
    inputs, constants = ({"x": random(3, 3)}, indices) if constant else ({"x": random(3, 3), **indices}, {})
    check("GatherElements", inputs, constants=constants, axis=axis)


@pytest.mark.parametrize("constant", [False, True])
@pytest.mark.parametrize("batch", [0, 1])
def test_gather_nd(batch: int, constant: bool) -> None:
    indices = {"i": np.random.default_rng(2).integers(-2, 2, (2, 4, 1))}
    inputs, constants = ({"x": random(2, 3, 5)}, indices) if constant else ({"x": random(2, 3, 5), **indices}, {})
    check("GatherND", inputs, constants=constants, batch_dims=batch)


def test_scatter() -> None:
    data = {"x": random(4, 5), "u": random(2, 5, seed=9)}
    places = np.array([[0, 1, 2, 3, 0], [-1, 0, 0, 1, 2]])
    check("ScatterElements", data, constants={"i": places}, order=["x", "i", "u"], axis=0)
    check("ScatterND", data, constants={"i": np.array([[3], [1]])}, order=["x", "i", "u"])


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_one_hot(axis: int) -> None:
    constants = {"d": np.array(5), "v": np.array([2.0, 3.0], np.float32)}
    check("OneHot", {"i": np.array([[0, 2, -1], [4, 1, 9]])}, constants=constants, axis=axis)


@pytest.mark.parametrize("fmod", [0, 1])
def test_remainders(fmod: int) -> None:
    a, b = np.array([7, -7, 7, -7, 0, 6], np.int32), np.array([3, 3, -3, -3, 5, 3], np.int32)
    check("Mod", {"a": a, "b": b}, kinds=(TensorProto.INT32,), fmod=fmod)
    if fmod:
        check("Mod", {"a": random(40), "b": random(40, seed=5)}, fmod=1)


def test_limits_that_the_run_computes() -> None:
    check("Clip", {"x": random(4, 5), "low": np.array(-0.5, np.float32), "high": np.array(0.2, np.float32)})


# -- double precision --------------------------------------------------------------------------------------------------


def test_double_precision_is_single_on_the_device() -> None:
    """Inputs and outputs keep their type."""
    x = {"x": np.linspace(-3, 3, 24).reshape(2, 3, 4)}
    check("Softmax", x, kinds=[TensorProto.DOUBLE], axis=-1)
    check("CumSum", x, kinds=[TensorProto.DOUBLE], constants={"axis": np.array(1)}, reverse=1)
    check("Add", x, kinds=[TensorProto.DOUBLE], constants={"c": np.array([1e-3, 2, 3e30, 4])})


@pytest.mark.parametrize("reduction", ["add", "max", "min", "mul"])
@pytest.mark.parametrize("kind", [np.float32, np.int64])
def test_updates_of_a_place_are_reduced(reduction: str, kind: Any) -> None:
    """Elements and rows; indices that cover a part of the other axes."""
    given = {"x": (random(5, 3) * 9).astype(kind), "i": np.array([[0, -1], [0, 2], [3, 2]]),
             "u": (random(3, 2, seed=5) * 9).astype(kind)}  # fmt: skip
    how: dict[str, Any] = {"reduction": reduction, "opset": 18, "kinds": (I64,) if kind is np.int64 else ()}
    agree(one_node("ScatterElements", given, **how), given)
    rows = {"x": given["x"], "u": (random(4, 3, seed=5) * 9).astype(kind)}
    places = {"i": np.array([[0], [2], [-1], [0]])}
    agree(one_node("ScatterND", rows, constants=places, order=["x", "i", "u"], **how), rows)


def test_elements_at_places_of_a_part_of_the_other_axes() -> None:
    given = {"x": random(5, 4), "i": np.array([[0, 1], [3, -2]]), "u": random(2, 2, seed=5)}
    agree(one_node("ScatterElements", given, axis=1), given)


@pytest.mark.parametrize(("axis", "shape"), [(0, (7, 3, 2)), (1, (4, 5, 2)), (-1, (4, 3, 6))])
def test_scattered_elements_are_added(axis: int, shape: tuple[int, ...]) -> None:
    """Indices that are computed, some of them twice and some from the end."""
    data = random(4, 3, 2)
    size = data.shape[axis]
    indices = np.random.default_rng(5).integers(-size, size, shape)
    given = {"x": data, "i": indices, "u": random(*shape, seed=6)}
    agree(one_node("ScatterElements", given, axis=axis, reduction="add", opset=18), given)


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("kind", [np.float32, np.int64])
def test_the_last_update_of_a_place_that_the_run_computes_stays(axis: int, kind: Any) -> None:
    places = np.broadcast_to(np.array([1, -1, 1, 0])[:, None], (4, 3))
    given = {"x": (random(5, 3) * 9).astype(kind), "i": np.ascontiguousarray(places), "u": random(4, 3).astype(kind)}
    given = {name: np.ascontiguousarray(values.T) if axis else values for name, values in given.items()}
    agree(one_node("ScatterElements", given, kinds=(I64,) if kind is np.int64 else (), axis=axis), given)


@pytest.mark.parametrize("places", [[[3], [-4], [3]], [[[0, 1]], [[2, -1]], [[0, 1]]]])
def test_rows_at_places_that_the_run_computes(places: Any) -> None:
    indices = np.array(places)
    shape = (4, 3, 2)
    given = {"x": random(*shape), "i": indices, "u": random(*indices.shape[:-1], *shape[indices.shape[-1] :], seed=5)}
    agree(one_node("ScatterND", given), given)


@pytest.mark.parametrize(
    ("operator", "shapes", "how", "message"),
    [
        ("ScatterElements", ((5, 3), (4, 3), (4, 3)), {"reduction": "sum"}, "reduction=sum: supported are none, add"),
        ("ScatterElements", ((9000, 1), (9000, 1), (9000, 1)), {}, "9000 places, 9000 computed indices, 1 elements"),
    ],
)
def test_computed_places_that_are_refused(operator: str, shapes: Any, how: Any, message: str) -> None:
    data, places, updates = shapes
    given = {"x": random(*data), "i": np.zeros(places, np.int64), "u": random(*updates)}
    with pytest.raises(ModelError, match=message):
        agree(one_node(operator, given, **how), given)


@pytest.mark.parametrize("operator", ["ReduceMean", "ReduceSum", "ReduceMax", "GlobalAveragePool"])
def test_rows_that_the_scratchpad_does_not_hold(operator: str) -> None:
    """384 x 384 pixels, as instance normalization of images has them; a prime number stays one row."""
    axes = {} if operator.startswith("Global") else {"axes": np.array([2, 3])}
    check(operator, {"x": random(1, 2, 384, 384)}, constants=axes)
    check(operator, {"x": random(1, 1, 1, 65_537)}, constants=axes)


@pytest.mark.parametrize("mode", ["constant", "edge", "reflect"])
def test_our_reference_takes_elements_away(mode: str) -> None:
    x, constants = random(4, 6), {"p": np.array([-1, 2, 1, -2])}
    proto = one_node("Pad", {"x": x}, constants=constants, mode=mode)
    (made,) = evaluate(proto, ["y"], {"x": x}).values()
    near(made, by_onnxruntime(proto, {"x": x})["y"], 0, "y")
    agree(proto, {"x": x})


@pytest.mark.parametrize("axis", [0, -1])
def test_our_reference_takes_a_depth_in_a_list(axis: int) -> None:
    x, constants = np.array([[0, 2], [-1, 9]]), {"d": np.array([4]), "v": random(2)}
    proto = one_node("OneHot", {"x": x}, constants=constants, axis=axis)
    (made,) = evaluate(proto, ["y"], {"x": x}).values()
    near(made, by_onnxruntime(proto, {"x": x})["y"], 0, "y")


@pytest.mark.parametrize("size", range(1, 7))
def test_a_determinant(size: int) -> None:
    check("Det", {"x": random(2, 3, size, size)}, opset=11)
    check("Det", {"x": random(size, size)}, opset=22)


def test_a_large_determinant_is_refused() -> None:
    with pytest.raises(ModelError, match="a determinant of 7 rows: supported are up to 6"):
        check("Det", {"x": random(7, 7)}, opset=11)
