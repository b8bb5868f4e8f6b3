"""Operators that are kernels on the core, and what follows; onnxruntime is the reference of the rows that count."""

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, defs, helper, numpy_helper, parser
from onnxruntime_reference import agree, by_onnxruntime, by_us, near, one_node

from toolchain.errors import ModelError

I64, FLOAT = TensorProto.INT64, TensorProto.FLOAT


def boxes(images: int, count: int, seed: int = 1) -> Any:
    """Boxes that lie over each other, some with their corners exchanged, some without area."""
    random = np.random.default_rng(seed)
    corner, size = random.uniform(0, 6, (images, count, 2)), random.uniform(-3, 4, (images, count, 2))
    size[:, ::5] = 0
    return np.concatenate([corner, corner + size], 2).astype(np.float32)


def scores(images: int, classes: int, count: int, seed: int = 2) -> Any:
    return np.random.default_rng(seed).integers(0, 20, (images, classes, count)).astype(np.float32) / 20


def suppressed(given: dict[str, Any], most: int, overlap: float | None, least: float | None, **how: Any) -> Any:
    names = {"most": np.array([most], np.int64)}
    names |= {} if overlap is None else {"overlap": np.array([overlap], np.float32)}
    names |= {} if least is None else {"least": np.array([least], np.float32)}
    order = ["b", "s", "most", "overlap" if overlap is not None else "", "least" if least is not None else ""]
    return one_node("NonMaxSuppression", given, kinds=(I64,), constants=names, order=order, **how)


def selected(proto: Any, given: dict[str, Any]) -> None:
    got, want = by_us(proto, given)[0], by_onnxruntime(proto, given)["y"]
    assert list(got) == ["y", "y.count"]
    assert got["y.count"].tolist() == [len(want)]
    assert np.array_equal(got["y"][: len(want)], want) and (got["y"][len(want) :] == -1).all()


@pytest.mark.parametrize("centres", [0, 1])
@pytest.mark.parametrize(("images", "classes", "most"), [(1, 1, 4), (1, 3, 2), (2, 2, 20)])
@pytest.mark.parametrize(("overlap", "least"), [(0.3, 0.25), (None, None)])
def test_boxes_are_selected(images: int, classes: int, most: int, overlap: Any, least: Any, centres: int) -> None:
    given = {"b": boxes(images, 12), "s": scores(images, classes, 12)}
    if centres:
        given["b"] = np.abs(given["b"])
    selected(suppressed(given, most, overlap, least, center_point_box=centres), given)


def test_no_box_is_good_enough() -> None:
    given = {"b": boxes(1, 6), "s": scores(1, 2, 6)}
    selected(suppressed(given, 3, 0.5, 2.0), given)


def followed(*nodes: Any, outputs: Any, **constants: Any) -> Any:
    """Boxes and scores of one image, NonMaxSuppression, and these nodes."""
    first = helper.make_node("NonMaxSuppression", ["b", "s", "most", "overlap"], ["y"], "nms")
    constants |= {"most": np.array([9]), "overlap": np.array([0.02], np.float32)}
    graph = helper.make_graph(
        [first, *nodes], "g",
        [helper.make_tensor_value_info("b", FLOAT, [1, 9, 4]), helper.make_tensor_value_info("s", FLOAT, [1, 2, 9])],
        [helper.make_tensor_value_info(name, kind, None) for name, kind in outputs.items()],
        [numpy_helper.from_array(np.asarray(values), name) for name, values in constants.items()],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def test_boxes_and_scores_of_those_selected() -> None:
    make = helper.make_node
    proto = followed(
        make("Slice", ["y", "two", "three", "one"], ["column"]), make("Squeeze", ["column", "one"], ["places"]),
        make("Gather", ["b", "places"], ["rows"], axis=1), make("Squeeze", ["rows", "zero"], ["found"]),
        make("Mul", ["found", "factor"], ["scaled"]), make("Transpose", ["s"], ["by_box"], perm=[0, 2, 1]),
        make("Slice", ["y", "zero", "three", "one", "two"], ["pair"]), make("Cast", ["pair"], ["floats"], to=FLOAT),
        make("Concat", ["scaled", "floats"], ["all"], axis=1), make("GatherND", ["s", "triple"], ["score"]),
        make("Slice", ["y", "zero", "three", "one"], ["triple"]),
        outputs={"all": FLOAT, "score": FLOAT}, zero=np.array([0]), one=np.array([1]), two=np.array([2]),
        three=np.array([3]), factor=np.array([1, 2, 3, 4], np.float32),
    )  # fmt: skip
    nodes = {node.output[0]: node for node in proto.graph.node}
    del proto.graph.node[:]
    order = ["y", "column", "places", "rows", "found", "scaled", "pair", "floats", "all", "triple", "score"]
    proto.graph.node.extend(nodes[name] for name in order)
    given = {"b": boxes(1, 9), "s": scores(1, 2, 9)}
    assert 1 < counted(proto, given)["all"] < 18


def counted(proto: Any, given: dict[str, Any]) -> dict[str, int]:
    """AssertionError where the rows that count are not onnxruntime's; how many they are, by the name of an output."""
    got, want = by_us(proto, given)[0], by_onnxruntime(proto, given)
    counts = {}
    for name, expected in want.items():
        made = got[name]
        if f"{name}.count" in got:
            counts[name] = int(got[f"{name}.count"][0])
            axes = [at for at, size in enumerate(expected.shape) if size != made.shape[at]]
            axis = axes[0] if axes else expected.shape.index(counts[name])
            made = made.take(range(counts[name]), axis)
        near(made, expected, 1e-6, name)
    return counts


ROWS = """<ir_version: 8, opset_import: ["" : 18]>
g (float[2, 9] x, float[2, 9] u, float t) => (OUT y)
<int64[1] zero = {0}, int64[1] one = {1}, int64[1] two = {2}, int64[1] four = {4}, int64[1] last = {-1},
 int64[1] most = {9223372036854775807}, int64 three = {3}, int64 twenty = {20}, int64[2] pair = {9, 4},
 int64[4] beside = {0, 1, 0, 2}, int64[4] before = {1, 0, 0, 0},
 int64 scalar = {-1}, int64 first = {0}, int64 step = {1}, float half = {0.5},
 float[7, 2] rest = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14},
 float[18] table = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}>
{
  large = Greater(x, t)
  found = NonZero(large)
  places = Transpose <perm = [1, 0]> (found)
  v = GatherND(x, places)
  second = Greater(u, t)
  again = NonZero(second)
  others = Transpose <perm = [1, 0]> (again)
  w = GatherND(u, others)
  pairs = Cast <to = 1> (places)
  size = Shape(v)
  number = Squeeze(size, zero)
  NODES
}
"""
"""Rows of which the run decides how many count: elements of x and of u above t, and their places."""
JOINS: dict[str, tuple[str, str]] = {
    "all of several": ("float[N]", "y = Concat <axis = 0> (v, w, table, v)"),
    "rows of two dimensions": ("float[N, 2]", "y = Concat <axis = 0> (pairs, rest, pairs)"),
    "columns": ("float[N, 4]", "y = Concat <axis = 1> (pairs, pairs)"),
    "sum": ("float", "y = ReduceSum <keepdims = 0> (v)"),
    "sum of columns": ("float[1, 2]", "y = ReduceSum(pairs, zero)"),
    "sum of each": ("float[N]", "y = ReduceSum <keepdims = 0> (pairs, one)"),
    "mean": ("float", "y = ReduceMean <keepdims = 0> (v)"),
    "mean of columns": ("float[2]", "y = ReduceMean <keepdims = 0> (pairs, zero)"),
    "largest": ("float", "n = Neg(v)  y = ReduceMin <keepdims = 0> (n)"),
    "largest of integers": ("int64[2]", "y = ReduceMax <keepdims = 0> (places, zero)"),
    "place of the largest": ("int64[1]", "n = Neg(v)  y = ArgMax <axis = 0> (n)"),
    "sums so far": ("float[N]", "y = CumSum(v, first)"),
    "shares": ("float[N]", "y = Softmax <axis = 0> (v)"),
    "the first": ("float[N]", "y = Slice(v, zero, four, zero)"),
    "those behind the first": ("float[N]", "y = Slice(v, one, most, zero)"),
    "all but the last": ("float[N]", "y = Slice(v, zero, last, zero)"),
    "as many as the run says": ("float[N]", "n = Shape(w)  y = Slice(v, zero, n, zero)"),
    "the last": ("float", "y = Gather(v, scalar)"),
    "the last, computed": ("float[1]", "n = Sub(zero, one)  y = Gather(v, n)"),
    "some": ("float[N]", "i = NonZero(v)  j = Squeeze(i, zero)  k = Neg(j)  y = Gather(v, k)"),
    "how many": ("int64[1]", "y = Identity(size)"),
    "as many ones": ("int64[N]", "y = ConstantOfShape <value = int64[1] {1}> (size)"),
    "numbers from 0": ("int64[N]", "y = Range(first, number, step)"),
    "numbers from 1": ("int64[N]", "y = Range(step, number, step)"),
    "fewer numbers than rows": ("int64[N]", "n = Sub(number, three)  y = Range(first, n, step)"),
    "more numbers where fewer rows": (
        "int64[N]", "n = Mul(number, scalar)  m = Add(n, twenty)  y = Range(first, m, step)",
    ),
    "a product of sizes": ("int64[N]", "n = Mul(number, three)  y = Range(first, n, step)"),
    "columns of zeros beside them": ("float[N, 5]", "y = Pad(pairs, beside)"),
    "columns by axis": ("float[N, 5]", "b = Slice(beside, one, most, zero, two)  y = Pad(pairs, b, , one)"),
    "expanded": ("float[N]", "y = Expand(t, size)"),
    "in two dimensions": ("float[N, 1]", "s = Concat <axis = 0> (size, one)  y = Reshape(v, s)"),
    "two of each": ("float[N]", "y = Reshape(pairs, last)"),
    "the shape of columns": ("int64[N, 2]", "s = Shape(pairs)  y = ConstantOfShape <value = int64[1] {3}> (s)"),
    "the width of columns": ("int64", "s = Shape(pairs)  y = Gather(s, step)"),
    "at most four of the largest": (
        "float[N]", "b = Concat <axis = 0> (four, size)  k = ReduceMin(b)  y, i = TopK <axis = 0> (v, k)",
    ),
    "places of at most four": (
        "int64[N]", "b = Concat <axis = 0> (four, size)  k = ReduceMin(b)  z, y = TopK <axis = 0> (v, k)",
    ),
    "all, the smallest first": ("float[N]", "y, i = TopK <axis = 0, largest = 0> (v, size)"),
    "found among those found": ("int64[1, N]", "b = Greater(v, half)  y = NonZero(b)"),
    "elements that others choose": ("float[N]", "b = Greater(v, half)  y = Compress <axis = 0> (v, b)"),
    "written to their rows": (
        "float[18]", "n = Slice(places, one, two, one)  f = Squeeze(n, one)  y = ScatterElements(table, f, v)",
    ),
    "rows written": ("float[18]", "n = Slice(places, one, two, one)  y = ScatterND(table, n, v)"),
    "products of rows": ("float[N, 7]", "r = Transpose(rest)  y = MatMul(pairs, r)"),
    "two of one mask": ("float[N]", "i = NonZero(large)  j = Transpose(i)  r = GatherND(u, j)  y = Add(v, r)"),
    "a branch without rows": (
        "float[N]", "e = Equal(number, first)  y = If (e) <then_branch = a () => (float[0] n) { n = Constant <value = "
        "float[0] {}> () }, else_branch = b () => (float[M] m) { m = Neg(v) }>",
    ),
    "a branch with others": (
        "float[N]", "e = Greater(number, step)  y = If (e) <then_branch = a () => (float[A] n) { n = Neg(v) }, "
        "else_branch = b () => (float[18] m) { m = Neg(table) }>",
    ),
}  # fmt: skip


NO_RESULT = ("the last", "place of", "mean", "largest", "at most", "places of at most", "all, the smallest")
"""Of no elements, in onnxruntime."""
LEAST = {"all": -10.0, "some": 0.2, "few": 1.3, "none": 10.0}


@pytest.mark.parametrize(
    ("name", "t"),
    [pytest.param(name, t, id=f"{name}-{which}") for name in JOINS for which, t in LEAST.items()
     if which != "none" or not name.startswith(NO_RESULT)],
)  # fmt: skip
def test_operators_on_rows_that_count(name: str, t: float) -> None:
    kind, nodes = JOINS[name]
    random = np.random.default_rng(7)
    given = {key: random.normal(size=(2, 9)).astype(np.float32) for key in "xu"} | {"t": np.array(t, np.float32)}
    proto = parser.parse_model(ROWS.replace("OUT", kind).replace("NODES", nodes))
    counted(proto, given)


@pytest.mark.parametrize(
    ("nodes", "node"),
    [
        ("n = Slice(v, last, most, zero)  y = Identity(n)", "Slice"),
        ("y = CumSum <reverse = 1> (v, first)", "CumSum"),
        ("n = Transpose(pairs)  y = MatMul(n, pairs)", "MatMul"),
        ("n = Unsqueeze(v, one)  y = Mul(n, w)", "Mul"),
        ("y = Pad(pairs, before)", "Pad"),
    ],
)
def test_what_joins_rows_is_refused(nodes: str, node: str) -> None:
    proto = parser.parse_model(ROWS.replace("OUT", "float[A, B]").replace("NODES", nodes))
    with pytest.raises(
        ModelError, match=rf"{node}, opset 18.*: it joins rows of \w+, of which the run decides"
    ) as caught:
        by_us(proto, {})
    assert "\n" not in str(caught.value)


def test_a_size_at_a_computed_place_has_no_limit() -> None:
    """The largest place need not have the largest size."""
    nodes = "i = Min(number, step)  n = Gather(pair, i)  y = Range(first, n, step)"
    proto = parser.parse_model(ROWS.replace("OUT", "int64[N]").replace("NODES", nodes))
    with pytest.raises(ModelError, match="Range, opset 18"):
        by_us(proto, {})


def test_no_box_can_be_selected() -> None:
    given = {"b": boxes(1, 4), "s": scores(1, 1, 4)}
    with pytest.raises(ModelError, match="max_output_boxes_per_class 0: no box is selected: give 1 or more"):
        by_us(suppressed(given, 0, 0.5, None), given)


def test_more_boxes_than_there_are() -> None:
    given = {"b": boxes(1, 400), "s": scores(1, 1, 400)}
    selected(suppressed(given, 1 << 40, 0.9, None), given)


def test_a_number_of_rows_that_the_model_gives_does_not_count() -> None:
    given = {"x": np.array([[1, 0], [2, 3]], np.float32)}
    proto = one_node("NonZero", given, kinds=(I64,))
    proto.graph.output[0].CopyFrom(helper.make_tensor_value_info("y", I64, [2, 3]))
    got = by_us(proto, given)[0]
    assert got["y"].tolist() == [[0, 1, 1, -1], [0, 0, 1, -1]] and got["y.count"].tolist() == [3]


# -- NonZero, Compress ------------------------------------------------------------------------------------------------


def places(kind: Any, *shape: int, seed: int = 3) -> Any:
    """Numbers of which half are zero, -0 among them."""
    return (np.random.default_rng(seed).integers(-1, 2, shape) * np.float32(-0.5) * 2).astype(kind)


@pytest.mark.parametrize("kind", [np.float32, np.float16, np.int32, np.int64, np.int8, np.uint8, np.bool_])
@pytest.mark.parametrize("shape", [(1,), (7,), (3, 4), (2, 1, 3, 5)])
def test_places_that_are_not_zero(kind: Any, shape: tuple[int, ...]) -> None:
    given = {"x": places(kind, *shape)}
    got = by_us(one_node("NonZero", given, kinds=(I64,)), given)[0]
    want = np.argwhere(given["x"] != 0).T
    assert list(got) == ["y", "y.count"] and got["y.count"].tolist() == [want.shape[1]]
    assert got["y"].shape == (len(shape), given["x"].size) and got["y"].dtype == np.int64
    assert np.array_equal(got["y"][:, : want.shape[1]], want) and (got["y"][:, want.shape[1] :] == -1).all()


def test_the_newest_operator_set() -> None:
    given = {"x": places(np.float32, 5)}
    proto = one_node("NonZero", given, kinds=(I64,), opset=defs.onnx_opset_version())
    assert by_us(proto, given)[0]["y.count"].tolist() == [np.count_nonzero(given["x"])]


def test_places_that_the_compiler_knows_take_no_kernel() -> None:
    """Exporters write ranges like that."""
    table = {"ones": np.ones((2, 2), np.float32)}
    nodes = [helper.make_node("NonZero", ["ones"], ["places"]), helper.make_node("Cast", ["places"], ["f"], to=FLOAT),
             helper.make_node("Add", ["f", "x"], ["y"])]  # fmt: skip
    graph = helper.make_graph(
        nodes, "g", [helper.make_tensor_value_info("x", FLOAT, [2, 4])],
        [helper.make_tensor_value_info("y", FLOAT, None)], [numpy_helper.from_array(table["ones"], "ones")],
    )  # fmt: skip
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    agree(proto)


@pytest.mark.parametrize("axis", [None, 0, 1, -1])
def test_rows_by_a_computed_condition(axis: int | None) -> None:
    x, size = places(np.float32, 4, 6), {None: 24, 0: 4}.get(axis, 6)
    given = {"x": x, "c": places(np.bool_, size, seed=5)}
    how = {} if axis is None else {"axis": axis}
    proto = one_node("Compress", given, **how)
    got, want = by_us(proto, given)[0], by_onnxruntime(proto, given)["y"]
    (count,) = got["y.count"].tolist()
    along = (axis or 0) % want.ndim
    assert count == want.shape[along] and got["y"].shape[along] == size
    assert np.array_equal(np.take(got["y"], np.arange(count), along), want)


def test_a_result_that_is_too_large() -> None:
    given = {"x": np.zeros((2, 5000, 5000), np.int8)}
    with pytest.raises(ModelError, match=r"a result of up to \[3, 50000000\]: supported are up to 67108864 elements"):
        by_us(one_node("NonZero", given, kinds=(I64,)), {})


# -- Unique ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [np.float32, np.int64, np.int8])
@pytest.mark.parametrize("shape", [(1,), (12,), (4, 6)])
def test_elements_that_differ(kind: Any, shape: tuple[int, ...]) -> None:
    given = {"x": np.random.default_rng(7).integers(-4, 4, shape).astype(kind)}
    code = helper.np_dtype_to_tensor_dtype(np.dtype(kind))
    proto = one_node("Unique", given, ("y", "i", "back", "n"), kinds=(code, I64, I64, I64))
    got, want = by_us(proto, given)[0], by_onnxruntime(proto, given)
    count = len(want["y"])
    assert got["y.count"].tolist() == [count]
    for name in ("y", "i", "n"):
        assert np.array_equal(got[name][:count], want[name]) and got[name].dtype == want[name].dtype, name
    assert np.array_equal(got["back"], want["back"])


def test_only_how_often_elements_are_there() -> None:
    given = {"x": np.array([3, 1, 3, 3], np.int64)}
    got = by_us(one_node("Unique", given, ("", "", "", "n"), kinds=(I64,) * 4), given)[0]
    assert got["n"][: int(got["n.count"][0])].tolist() == [1, 3]


@pytest.mark.parametrize(
    ("shape", "how", "message"),
    [((2, 3), {"axis": 1}, "attributes axis, sorted=0: supported are all"), ((3,), {"sorted": 0}, "supported are all"),
     ((1 << 13,), {}, r"8192 elements: supported are 1\.\.4096: use a smaller input")],
)  # fmt: skip
def test_what_of_unique_is_refused(shape: tuple[int, ...], how: Any, message: str) -> None:
    given = {"x": np.zeros(shape, np.float32)}
    with pytest.raises(ModelError, match=message):
        by_us(one_node("Unique", given, **how), given)
