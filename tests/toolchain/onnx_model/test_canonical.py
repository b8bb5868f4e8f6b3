"""Models of older operator sets, with branches and loops, as they come: onnxruntime judges what became of them."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper, parser
from onnxruntime_reference import agree, by_onnxruntime, by_us, one_node, random

from pyv_npu.cli import main
from toolchain.codegen import Target
from toolchain.compiler import compile_model
from toolchain.errors import ModelError
from toolchain.onnx_model import file
from toolchain.onnx_model.model import load_model, prepare
from toolchain.onnx_model.opset import NEWEST

FLOAT, BOOL, I64 = TensorProto.FLOAT, TensorProto.BOOL, TensorProto.INT64

# -- operator sets -----------------------------------------------------------------------------------------------------

X = {"x": random(2, 3, 4, 6)}
OLD: dict[str, Any] = {
    "BatchNormalization, 7": one_node(
        "BatchNormalization", X, opset=7, constants={name: np.abs(random(3, seed=index)) + 0.1
                                                      for index, name in enumerate("sbmv")}),
    "Clip, 7": one_node("Clip", X, opset=7, min=-0.5, max=0.5),
    "Dropout, 7": one_node("Dropout", X, opset=7, ratio=0.3),
    "Dropout, 10": one_node("Dropout", X, opset=10, ratio=0.3),
    "LogSoftmax, 11": one_node("LogSoftmax", X, opset=11, axis=2),
    "MeanVarianceNormalization, 13": one_node("MeanVarianceNormalization", X, opset=13),
    "Pad, 7": one_node("Pad", X, opset=7, pads=[0, 0, 1, 2, 0, 0, 0, 3], value=1.5),
    "Pad, 9, reflect": one_node("Pad", X, opset=9, pads=[0, 0, 1, 2, 0, 0, 0, 3], mode="reflect"),
    "ReduceMax, 11": one_node("ReduceMax", X, opset=11, axes=[1, -1], keepdims=0),
    "ReduceMean, 17": one_node("ReduceMean", X, opset=17, axes=[2]),
    "ReduceSum, 11": one_node("ReduceSum", X, opset=11, axes=[0]),
    "Resize, 10, nearest": one_node("Resize", X, opset=10, constants={"s": np.array([1, 1, 2, 3], np.float32)}),
    "Resize, 10, linear": one_node(
        "Resize", X, opset=10, mode="linear", constants={"s": np.array([1, 1, 2, 1.5], np.float32)}),
    "Resize, 10, to a smaller image": one_node(
        "Resize", X, opset=10, constants={"s": np.array([1, 1, 0.6, 0.7], np.float32)}),
    "Resize, 10, wider and lower": one_node(
        "Resize", X, opset=10, constants={"s": np.array([1, 1, 0.6, 1.7], np.float32)}),
    "Slice, 9": one_node("Slice", X, opset=9, starts=[1, -3], ends=[3, 100], axes=[1, 3]),
    "Softmax, 7": one_node("Softmax", X, opset=7),
    "Softmax, 12, axis 2": one_node("Softmax", X, opset=12, axis=2),
    "Split, 11": one_node("Split", X, ("a", "b"), opset=11, axis=3, split=[2, 4]),
    "Split, 13, even": one_node("Split", X, ("a", "b", "c"), opset=13, axis=3),
    "Squeeze, 11": one_node("Squeeze", {"x": random(3, 1, 4, 1)}, opset=11, axes=[1, 3]),
    "TopK, 9": one_node("TopK", X, ("v", "i"), opset=9, k=2, kinds=(FLOAT, I64)),
    "Unsqueeze, 7": one_node("Unsqueeze", X, opset=7, axes=[0, 3]),
    "Upsample, 7": one_node("Upsample", X, opset=7, scales=[1.0, 1.0, 2.0, 2.0]),
    "Upsample, 9, linear": one_node(
        "Upsample", X, opset=9, mode="linear", constants={"s": np.array([1, 1, 2, 2], np.float32)}),
    "QuantizeLinear, 13": one_node(
        "QuantizeLinear", X, opset=13, kinds=(TensorProto.INT8,),
        constants={"s": np.float32(0.02), "z": np.int8(3)}),
    "GroupNormalization, 18": one_node(
        "GroupNormalization", {"x": random(2, 4, 3, 5)}, opset=18, num_groups=2,
        constants={"s": random(2, seed=8), "b": random(2, seed=9)}),
    "HardSwish, 14": one_node("HardSwish", X, opset=14),
    "LeakyRelu, 13": one_node("LeakyRelu", X, opset=13, alpha=0.2),
    "Selu, 13": one_node("Selu", X, opset=13),
    "Elu, 13": one_node("Elu", X, opset=13, alpha=0.7),
    "Celu, 13": one_node("Celu", X, opset=13, alpha=0.7),
    "HardSigmoid, 13": one_node("HardSigmoid", X, opset=13, alpha=0.3),
}  # fmt: skip


@pytest.mark.parametrize("case", OLD)
def test_a_node_of_an_older_operator_set_is_raised(case: str) -> None:
    proto = OLD[case]
    assert proto.opset_import[0].version < NEWEST
    agree(proto)


def test_a_graph_without_a_name_runs() -> None:
    proto = OLD["Elu, 13"]
    proto.graph.name = ""
    agree(proto)


def test_nodes_in_any_order_run() -> None:
    """Converters to FP16 put the casts of inputs at the end."""
    proto = parser.parse_model("""
        <ir_version: 8, opset_import: ["": 17]>
        g (bool c, float[3] x) => (float[3] y) {
            y = If (c) <
                then_branch = t () => (float[3] a) { b = Neg (half) a = Exp (b) },
                else_branch = e () => (float[3] d) { d = Sqrt (half) }
            >
            half = Mul (positive, positive)
            positive = Abs (x)
        }""")
    for taken in (True, False):
        agree(proto, {"c": np.array(taken), "x": random(3)})


def test_nodes_in_a_circle_are_refused() -> None:
    proto = parser.parse_model("""
        <ir_version: 8, opset_import: ["": 17]>
        g (float[3] x) => (float[3] y) { y = Add (x, z) z = Neg (y) }""")
    with pytest.raises(ModelError, match="topologically sorted"):
        prepare(proto, "m")


def test_what_has_no_form_in_a_newer_set_is_refused() -> None:
    constants = {name: np.ones(3, np.float32) for name in "sbmv"}
    proto = one_node("BatchNormalization", X, opset=7, spatial=0, constants=constants)
    with pytest.raises(ModelError, match=r"^m: node n \(BatchNormalization, opset 7\): attribute spatial=0"):
        prepare(proto, "m")


@pytest.mark.parametrize("opset", [13, 15, 17, 18])
def test_codes_of_older_operator_sets(opset: int) -> None:
    """DequantizeLinear has its full form in onnx.reference from opset 19 on."""
    weights = np.random.default_rng(4).integers(-128, 128, (6, 5), np.int8)
    constants = {"s": np.float32(0.02), "z": np.int8(3), "w": weights, "ws": np.float32(0.01)}
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"]),
        helper.make_node("DequantizeLinear", ["q", "s", "z"], ["d"]),
        helper.make_node("DequantizeLinear", ["w", "ws"], ["wd"]),
        helper.make_node("MatMul", ["d", "wd"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes, "g", [helper.make_tensor_value_info("x", FLOAT, [4, 6])],
        [helper.make_tensor_value_info("y", FLOAT, [4, 5])],
        [numpy_helper.from_array(values, name) for name, values in constants.items()],
    )  # fmt: skip
    agree(helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8))


def test_initializers_that_are_inputs_are_none() -> None:
    """Version 3 of the file format wants every initializer among the inputs."""
    proto = one_node("Mul", {"x": random(2, 3)}, constants={"w": random(3)}, opset=9)
    proto.graph.input.append(helper.make_tensor_value_info("w", FLOAT, [3]))
    proto.ir_version = 3
    assert prepare(type(proto).FromString(proto.SerializeToString()), "m").inputs == ["x"]
    got, inputs = by_us(proto, {})
    assert np.array_equal(got["y"], inputs["x"] * random(3))


# -- branches and loops ------------------------------------------------------------------------------------------------

BRANCH = """
<ir_version: 8, opset_import: ["" : 16]>
g (float[2, 3] x, int64 sr) => (float[2, N] y) {
  rate = Constant <value_int: int = 16000> ()
  same = Equal(sr, rate)
  y = If(same) <
    then_branch = t () => (float[2, 3] a) { two = Constant <value_float: float = 2.0> () a = Mul(x, two) },
    else_branch = e () => (float[2, 6] b) { b = Concat <axis: int = 1> (x, x) }
  >
}
"""
CHOICE = """
<ir_version: 8, opset_import: ["" : 16]>
g (float[2, 3] x, bool flag) => (float[2, 3] y) {
  y = If(flag) <
    then_branch = t () => (float[2, 3] a) { a = Add(x, x) },
    else_branch = e () => (float[2, 3] b) { b = Neg(x) }
  >
}
"""
LOOP = """
<ir_version: 8, opset_import: ["" : 16]>
g (float[2, 3] x) => (float[2, 3] y, float[S, 2, 3] every) {
  steps = Constant <value_int: int = 4> ()
  go = Constant <value = bool {1}> ()
  y, every = Loop(steps, go, x) <
    body = b (int64 i, bool c, float[2, 3] now) => (bool c2, float[2, 3] next, float[2, 3] seen) {
      f = Cast <to: int = 1> (i)
      next = Add(now, f)
      seen = Mul(next, next)
      three = Constant <value_int: int = 2> ()
      c2 = Less(i, three)
    }
  >
}
"""


SHARED = """
<ir_version: 8, opset_import: ["" : 17]>
g (float[4, 64] x, bool flag) => (float[4, 64] y, float[64, 64] copy)
<float[64, 64] w>
{
  again = Identity(w)
  third = Identity(again)
  a = MatMul(x, w)
  b = MatMul(a, again)
  c = If (flag) <
    then_branch = t () => (float[4, 64] yes) { yes = MatMul(b, third) },
    else_branch = e () => (float[4, 64] no) { third_ = Neg(third)  no = MatMul(b, third_) }
  >
  y = MatMul(c, third)
  copy = Identity(third)
}
"""
"""Weights that five products share; exporters write an Identity for each further use."""


def parsed(text: str) -> Any:
    return parser.parse_model(text)


@pytest.mark.parametrize("rate", [16000, 8000])
def test_a_branch_is_taken_for_a_fixed_input(rate: int) -> None:
    agree(parsed(BRANCH), {"sr": np.array(rate)}, constants={"sr": rate})


@pytest.mark.parametrize("flag", [True, False])
@pytest.mark.parametrize("large", [True, False])
def test_weights_that_layers_share_are_there_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, flag: bool, large: bool
) -> None:
    proto, weights = parsed(SHARED), random(64, 64) / 8
    del proto.graph.initializer[:]
    proto.graph.initializer.append(numpy_helper.from_array(weights, "w"))
    agree(proto, {"x": random(4, 64), "flag": np.array(flag)})
    if large:
        monkeypatch.setattr(file, "SMALL", 64)
    onnx.save(proto, tmp_path / "m.onnx")
    model = load_model(tmp_path / "m.onnx", constants={"flag": int(flag)})
    assert ("w" in model.external) == large
    compiled = compile_model(model, Target())
    assert sum(np.array_equal(values, weights) for values in compiled.graph.constants.values()) == 1


def test_a_branch_that_the_run_decides_is_refused_where_shapes_differ() -> None:
    with pytest.raises(ModelError, match=r"its branches make different shapes.*: fix its value, --constant sr=N$"):
        prepare(parsed(BRANCH), "m")


@pytest.mark.parametrize("flag", [True, False])
def test_a_branch_that_the_run_decides(flag: bool) -> None:
    agree(parsed(CHOICE), {"flag": np.array(flag)})


def test_a_loop_is_unrolled_until_its_condition_ends_it() -> None:
    agree(parsed(LOOP))


def test_a_loop_without_a_limit_is_refused() -> None:
    text = LOOP.replace("(float[2, 3] x)", "(float[2, 3] x, int64 n)", 1).replace("Loop(steps", "Loop(n")
    with pytest.raises(ModelError, match=r"the run decides its number of steps: fix its value, --constant n=N; or say"
                                         r" how many there are at most, 1\.\.1024: --shape Loop_y=N"):  # fmt: skip
        prepare(parsed(text), "m")


BY_DATA = LOOP.replace("(float[2, 3] x)", "(float[2, 3] x, int64 n, bool first, float least)", 1).replace(
    "Loop(steps, go, x)", "Loop(n, first, x)"
).replace("c2 = Less(i, three)", "sum = ReduceSum <keepdims: int = 0> (next)  c2 = Less(sum, least)")  # fmt: skip
"""The number of steps, the first condition and those of the steps are inputs, or follow from them."""


def steps_by_data(n: int, first: bool, least: float, **how: Any) -> tuple[Any, Any]:
    feeds = {"x": np.ones((2, 3), np.float32), "n": np.array(n), "first": np.array(first),
             "least": np.array(least, np.float32)}  # fmt: skip
    got, want = by_us(parsed(BY_DATA), feeds, **how)[0], by_onnxruntime(parsed(BY_DATA), feeds)
    count = int(got["every.count"][0])
    assert count == len(want["every"]) and np.array_equal(got["every"][:count], want["every"])
    assert (got["every"][count:] == -1).all()
    return got, want


@pytest.mark.parametrize(
    ("n", "first", "least"), [(3, True, 99), (9, True, 20), (9, True, 0), (5, False, 99), (0, True, 9)]
)
def test_a_loop_of_which_the_run_decides_the_steps(n: int, first: bool, least: float) -> None:
    got, want = steps_by_data(n, first, least, shapes={"Loop_y": (6,)})
    assert np.array_equal(got["y"], want["y"]) and got["Loop_y.unfinished"].tolist() == [0]


def test_more_steps_than_there_were_said_to_be() -> None:
    feeds = {"x": np.ones((2, 3), np.float32), "n": np.array(9), "first": np.array(True),
             "least": np.array(1e9, np.float32)}  # fmt: skip
    for most, unfinished in ((6, 1), (9, 0)):
        got = by_us(parsed(BY_DATA), feeds, shapes={"Loop_y": (most,)})[0]
        assert got["Loop_y.unfinished"].tolist() == [unfinished] and got["every.count"].tolist() == [most]


def test_a_run_with_too_few_steps_fails_and_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    onnx.save(parsed(BY_DATA), tmp_path / "m.onnx")
    options = ["run", str(tmp_path / "m.onnx"), "--sim-level", "IA", "--input", "n=9", "--input", "first=1",
               "--input", "least=1e9"]  # fmt: skip
    assert main([*options, "--shape", "Loop_y=6"]) != 0
    assert "output Loop_y.unfinished" in (text := capsys.readouterr().out)
    assert "DIFFERS; more steps would follow those that --shape gives the Loop" in text
    assert main([*options, "--shape", "Loop_y=9"]) == 0


def test_a_known_number_of_steps_needs_no_limit() -> None:
    text = BY_DATA.replace("Loop(n, first", "Loop(steps, first")
    feeds = {"x": np.ones((2, 3), np.float32), "n": np.array(0), "first": np.array(True),
             "least": np.array(10, np.float32)}  # fmt: skip
    got, want = by_us(parsed(text), feeds)[0], by_onnxruntime(parsed(text), feeds)
    assert np.array_equal(got["y"], want["y"]) and got["every.count"].tolist() == [len(want["every"])] != [4]
    assert "Loop_y.unfinished" not in got


def test_a_state_that_grows_needs_a_known_number_of_steps() -> None:
    text = (
        BY_DATA.replace("next = Add(now, f)", "next = Concat <axis: int = 0> (now, now)")
        .replace("float[2, 3] next", "float[M, 3] next")
        .replace("float[2, 3] now", "float[N, 3] now")
    )
    with pytest.raises(ModelError, match="a step changes the shape of x, so that the number of steps must be known"):
        by_us(parsed(text), {}, shapes={"Loop_y": (3,)})


SCAN = """<ir_version: 8, opset_import: ["" : 17]>
    g (float[2] first, float[{steps}, 2] x, float[2, {steps}] z) => (float[2] last, float[] rows, float[] back) {{
      last, rows, back = Scan <num_scan_inputs = 2, scan_input_axes = [0, 1], scan_input_directions = [0, 1],
        scan_output_axes = [0, 1], scan_output_directions = [0, 1],
        body = step (float[2] sum, float[2] one, float[2] other) => (float[2] next, float[2] made, float[2] twice) {{
          [add] both = Add(one, other)
          [more] next = Add(sum, both)
          made = Mul(next, one)
          twice = Add(both, both)
        }}>(first, x, z)
    }}"""
"""Sums of rows and of columns, the columns from the end; names of nodes come again in each step."""


def test_a_scan_is_unrolled() -> None:
    agree(parser.parse_model(SCAN.format(steps=5)))


DISTANCES = """<ir_version: 8, opset_import: ["" : {opset}]>
    g (float[5, 3] x, float[{rows}, 3] table) => (float[{rows}, 5] y) {{
      same, y = Scan <num_scan_inputs = 1,
        body = step (float[5, 3] all, float[3] row) => (float[5, 3] next, float[5] made) {{
          next = Identity(all)
          apart = Sub(all, row)
          far = {distance}
          half = Constant<value = float {{0.5}}>()
          made = Mul(far, half)
        }}>(x, table)
    }}"""
"""As scikit-learn's exporters write the neighbours of a point."""


@pytest.mark.parametrize(
    ("opset", "distance"),
    [(12, "ReduceSumSquare<axes = [1], keepdims = 0>(apart)"), (17, "ReduceL1<axes = [-1], keepdims = 0>(apart)")],
)
def test_a_scan_of_steps_that_are_apart_is_one_step(opset: int, distance: str) -> None:
    text = DISTANCES.format(opset=opset, distance=distance, rows=2000)
    agree(parser.parse_model(text))
    assert len(prepare(parser.parse_model(text), "m").graph.node) < 12


def test_a_scan_with_a_state_that_changes_is_not_one_step() -> None:
    text = DISTANCES.format(opset=17, distance="ReduceL1<axes = [-1], keepdims = 0>(apart)", rows=4)
    agree(parser.parse_model(text.replace("next = Identity(all)", "next = Add(all, row)")))


LISTS = """<ir_version: 8, opset_import: ["" : 17]> g (float[3, 4] x) => (float[n, 4] y, int64 count) {
      zero = Constant<value = int64 {0}>()
      one = Constant<value = int64 {1}>()
      rows = SplitToSequence<axis = 0, keepdims = 0>(x)
      second = SequenceAt(rows, one)
      none = SequenceEmpty()
      three = Constant<value = int64 {3}>()
      yes = Constant<value = int32 {1}>()
      go = Cast<to = 9>(yes)
      all = Loop<body = step (int64 i, bool was, seq(float[4]) list) => (bool on, seq(float[4]) longer) {
          row = SequenceAt(rows, i)
          twice = Add(row, second)
          longer = SequenceInsert(list, twice)
          on = Identity(was)
      }>(three, go, none)
      less = SequenceErase(all, one)
      made = SequenceInsert(less, second, zero)
      count = SequenceLength(made)
      y = ConcatFromSequence<axis = 0, new_axis = 1>(made)
    }"""
"""What torch.jit.script makes of a list and its append."""


def test_lists_of_tensors() -> None:
    agree(parser.parse_model(LISTS))


def test_a_scan_of_too_many_steps_is_refused() -> None:
    with pytest.raises(ModelError, match=r"2000 steps: must be 1\.\.1024: bind a smaller dimension with --shape"):
        by_us(parser.parse_model(SCAN.format(steps=2000)), {})


def test_a_loop_that_breaks_the_format_is_refused_in_one_line() -> None:
    proto = parsed(LOOP)
    loop = next(node for node in proto.graph.node if node.op_type == "Loop")
    kept = list(loop.attribute)
    del loop.attribute[:]
    with pytest.raises(ModelError, match=r"Loop, opset 16\): its inputs, outputs or subgraphs are not those"):
        prepare(proto, "m")
    loop.attribute.extend(kept)
    proto.graph.initializer.append(numpy_helper.from_array(np.zeros(8, np.int64), "table"))
    proto.graph.initializer[-1].dims[0] = 4
    with pytest.raises(ModelError, match=r"m: tensor table: .*reshape.*: export the model again"):
        prepare(proto, "m")


@pytest.mark.parametrize(("text", "message"), [("n", "no such input; inputs are x, sr$"), ("x", r"has shape \[2, 3\]")])
def test_only_inputs_of_one_element_are_fixed(text: str, message: str) -> None:
    with pytest.raises(ModelError, match=f"^m: --constant {text}: {message}"):
        prepare(parsed(BRANCH), "m", constants={text: 1})


# -- dimensions --------------------------------------------------------------------------------------------------------


def dynamic() -> Any:
    proto = one_node("MatMul", {"x": random(2, 5), "w": random(5, 3)})
    for value, names in zip(proto.graph.input, (("batch", "seq"), ("seq", 3)), strict=True):
        for dim, name in zip(value.type.tensor_type.shape.dim, names, strict=True):
            if isinstance(name, str):
                dim.dim_param = name
    return proto


def test_a_named_dimension_is_bound_everywhere() -> None:
    agree(dynamic(), shapes={"batch": (4,), "seq": (7,)})


def test_all_open_dimensions_are_named_at_once() -> None:
    with pytest.raises(ModelError) as caught:
        prepare(dynamic(), "m")
    assert str(caught.value) == (
        "m: input x has shape [batch, seq], w has shape [seq, 3]: give every dimension a size, --shape batch=N,seq=N "
        "with a number for each N"
    )


def test_an_output_without_a_shape_gets_one() -> None:
    assert prepare(one_node("Relu", X), "m").info["y"].shape == (2, 3, 4, 6)


def test_a_wrong_shape_of_an_output_does_not_count() -> None:
    """Exporters write shapes of their own guess; the operators say what the shape is."""
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 6])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, "n"])
    shape = helper.make_tensor("s", TensorProto.INT64, [3], [1, 3, 4])
    graph = helper.make_graph([helper.make_node("Reshape", ["x", "s"], ["y"])], "g", [x], [y], [shape])
    model = prepare(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), "m")
    assert model.info["y"].shape == (1, 3, 4)
