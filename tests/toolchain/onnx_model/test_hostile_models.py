"""Models of strangers: files outside their folder, and constants, loops and functions that fill memory."""

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper, parser

from toolchain.errors import ModelError
from toolchain.onnx_frontend import import_model
from toolchain.onnx_model.file import external_files
from toolchain.onnx_model.model import load_model, prepare

FLOAT, INT64, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL
OPSETS = [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]


def value(name: str, kind: int = FLOAT, shape: Sequence[int] = (1, 4)) -> Any:
    return helper.make_tensor_value_info(name, kind, shape)


def model(nodes: Sequence[Any], shape: Sequence[int] = (1, 4), kind: int = FLOAT, **more: Any) -> Any:
    graph = helper.make_graph(nodes, "g", [value("x", kind, shape)], [value("y", FLOAT, shape)])
    return helper.make_model(graph, opset_imports=OPSETS, ir_version=8, **more)


def constant(name: str, values: Any, kind: type = np.int64) -> Any:
    return helper.make_node("Constant", [], [name], value=numpy_helper.from_array(np.asarray(values, kind)))


def summed(*nodes: Any) -> Any:
    """A model that adds the sum of `w`, which the nodes make, to its input."""
    return model([*nodes, helper.make_node("Cast", ["w"], ["f"], to=FLOAT),
                  helper.make_node("ReduceSum", ["f"], ["r"]), helper.make_node("Add", ["x", "r"], ["y"])])  # fmt: skip


def outside(shape: Sequence[int] = (4,)) -> Any:
    """A tensor whose values are in another file."""
    tensor = TensorProto(name="w", data_type=FLOAT, dims=shape, data_location=TensorProto.EXTERNAL)
    tensor.external_data.add(key="location", value="values.bin")
    return tensor


def in_branch() -> Any:
    node = helper.make_node("Constant", [], ["c"], value=outside((1, 4)))
    branches = [helper.make_graph([node], "b", [], [value("c")]) for _ in range(2)]
    chosen = helper.make_node("If", ["b"], ["i"], then_branch=branches[0], else_branch=branches[1])
    return model([constant("b", True, np.bool_), chosen, helper.make_node("Add", ["x", "i"], ["y"])])


def in_body() -> Any:
    nodes = [helper.make_node("Add", ["row", "w"], ["sum"])]
    body = helper.make_graph(nodes, "b", [value("row", shape=(4,))], [value("sum", shape=(4,))], [outside()])
    return model([helper.make_node("Scan", ["x"], ["y"], body=body, num_scan_inputs=1)])


def in_sparse() -> Any:
    sparse = helper.make_sparse_tensor(outside(), numpy_helper.from_array(np.arange(4)), [4])
    return model(
        [helper.make_node("Constant", [], ["w"], sparse_value=sparse), helper.make_node("Add", ["x", "w"], ["y"])]
    )


@pytest.mark.parametrize("make", [in_branch, in_body, in_sparse])
def test_values_are_read_from_the_folder_of_the_model_wherever_in_it_they_are_named(
    make: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """onnx would read them from the working directory."""
    secret, folder = tmp_path / "home", tmp_path / "model"
    secret.mkdir()
    folder.mkdir()
    np.full(4, 7, np.float32).tofile(secret / "values.bin")
    monkeypatch.chdir(secret)
    path = folder / "m.onnx"
    path.write_bytes(make().SerializeToString())
    with pytest.raises(ModelError, match="put its external data into the folder of the model"):
        load_model(path)
    np.arange(4, dtype=np.float32).tofile(folder / "values.bin")
    assert external_files(path) == [folder / "values.bin"]
    if make is not in_sparse:
        graph = import_model(load_model(path))
        assert any(np.array_equal(values.reshape(-1), np.arange(4)) for values in graph.constants.values())


CALLS_ITSELF = [("F0", "F0", 1)]
TOO_MANY = [("F0", "", 1), *((f"F{at}", f"F{at - 1}", 2) for at in range(1, 24))]
"""(name, function that it calls, how often)."""


@pytest.mark.parametrize(
    ("functions", "message"),
    [(CALLS_ITSELF, "function F0: calls itself"), (TOO_MANY, "more than 50000 nodes in the place of calls"),
     ([(f"F{at}", f"F{at + 1}", 1) for at in range(70)], "calls are nested more than 64 deep")],
)  # fmt: skip
def test_functions_are_counted_before_they_replace_their_calls(
    functions: list[tuple[str, str, int]], message: str
) -> None:
    made = []
    for name, called, count in functions:
        names = ["a", *(f"t{at}" for at in range(1, count)), "b"]
        nodes = [
            helper.make_node(called or "Relu", [one], [two], domain="own" if called else "")
            for one, two in itertools.pairwise(names)
        ]
        made.append(helper.make_function("own", name, ["a"], ["b"], nodes, OPSETS))
    first = functions[-1][0] if functions is TOO_MANY else "F0"
    with pytest.raises(ModelError, match=message):
        prepare(model([helper.make_node(first, ["x"], ["y"], domain="own")], functions=made), "m")


HUGE = {
    "Range": [constant("a", 0), constant("b", 1 << 40), constant("d", 1),
              helper.make_node("Range", ["a", "b", "d"], ["w"])],
    "ConstantOfShape": [constant("s", [1 << 20, 1 << 20]), helper.make_node("ConstantOfShape", ["s"], ["w"])],
    "OneHot": [constant("i", [[1, 2]]), constant("d", 1 << 40), constant("v", [0, 1]),
               helper.make_node("OneHot", ["i", "d", "v"], ["w"])],
    "Gather": [constant("i", np.zeros(1 << 14)), constant("d", np.zeros((4, 1 << 14))),
               helper.make_node("Gather", ["d", "i"], ["w"])],
    "Concat": [constant("c0", np.ones(1024)),
               *(helper.make_node("Concat", [f"c{at}"] * 2, [f"c{at + 1}"], axis=0) for at in range(39)),
               helper.make_node("Concat", ["c39", "c39"], ["w"], axis=0)],
}  # fmt: skip


@pytest.mark.parametrize("operator", HUGE)
def test_a_huge_constant_is_refused_before_it_is_made(operator: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("toolchain.onnx_frontend.importer.MAX_COMPUTED", 1 << 20)
    limited = "a computed one has up to|has more elements than there are addresses"
    with pytest.raises(ModelError, match=f"{operator}.*({limited})"):
        import_model(prepare(summed(*HUGE[operator]), "m"))


def test_shapes_of_long_vectors_are_inferred_without_their_elements() -> None:
    """ONNX would make an object of each element: 3 GB of these."""
    long = model([helper.make_node("Cast", ["x"], ["y"], to=FLOAT)], (1 << 26,), INT64)
    assert prepare(long, "m").info["y"].shape == (1 << 26,)


def loop(nodes: Sequence[Any], state: Sequence[str] = ()) -> Any:
    inputs = [value("n", INT64, ()), value("going", BOOL, ()), *map(value, state)]
    left = [value("still", BOOL, ()), *(value(f"{name}'") for name in state)]
    return helper.make_graph([helper.make_node("Identity", ["going"], ["still"]), *nodes], "b", inputs, left)


def test_weights_in_a_model_stay_what_and_where_they_are() -> None:
    """Shapes are inferred without them; the model has them before and after."""
    weights = np.arange(4 * 8192, dtype=np.float32).reshape(4, 8192)
    made = model([helper.make_node("MatMul", ["x", "w"], ["y"])])
    made.graph.output[0].CopyFrom(value("y", shape=(1, 8192)))
    made.graph.initializer.extend([numpy_helper.from_array(weights, "w")])
    found = prepare(made, "m")
    assert found.inputs == ["x"]
    for proto in (made, found.proto):
        (kept,) = proto.graph.initializer
        np.testing.assert_array_equal(numpy_helper.to_array(kept), weights)


def test_loops_inside_loops_have_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("toolchain.onnx_model.rewriter.MAX_NODES", 2000)
    body = loop([helper.make_node("Relu", ["v"], ["v'"])], ["v"])
    for _ in range(4):
        inner = helper.make_node("Loop", ["count", "yes", "v"], ["v'"], body=body)
        body = loop([constant("count", 1000), constant("yes", True, np.bool_), inner], ["v"])
    nodes = [
        constant("c", 1000),
        constant("t", True, np.bool_),
        helper.make_node("Loop", ["c", "t", "x"], ["y"], body=body),
    ]
    with pytest.raises(ModelError, match="more than 2000 nodes behind loops and branches: export fewer steps"):
        prepare(model(nodes), "m")


def test_a_loop_that_leaves_nothing_is_no_part_of_a_model() -> None:
    nodes = [constant("c", 3), constant("t", True, np.bool_), helper.make_node("Loop", ["c", "t"], [], body=loop([]))]
    made = prepare(model([*nodes, helper.make_node("Relu", ["x"], ["y"])]), "m")
    assert [node.op_type for node in made.graph.node] == ["Relu"]


@pytest.mark.parametrize(
    "node",
    ["o = Pad ()", "o = com.microsoft.LayerNormalization (x, x, o)", 'o = Split <axis: string = "x"> (x)'],
)
def test_a_node_that_onnx_forbids_is_refused_beside_functions_and_old_operators(node: str, tmp_path: Path) -> None:
    """Both are rewritten before ONNX's checker sees the model."""
    text = f"""<ir_version: 8, opset_import: ["" : 7, "f" : 1]>
        g (float[8,2] x) => (float[] o, float[] p) {{ {node}  p = f.F (x) }}
        <domain: "f", opset_import: ["" : 20, "f" : 1]>
        F (a) => (b) {{ b = Relu (a) }}"""
    path = tmp_path / "model.onnx"
    path.write_bytes(parser.parse_model(text).SerializeToString())
    with pytest.raises(ModelError, match=r"model\.onnx: .+"):
        load_model(path)


def test_text_that_is_not_utf8_is_refused_wherever_it_is(tmp_path: Path) -> None:
    """Names of tensors, dimensions and domains, of which protobuf checks none."""
    text = """<ir_version: 8, opset_import: ["" : 17, "com.microsoft" : 1], domain: "abc">
        graph (float[batch,2] input) => (float[batch,2] output) { hidden = Relu (input) output = Neg (hidden) }"""
    data, path, refusals = parser.parse_model(text).SerializeToString(), tmp_path / "model.onnx", 0
    for place in range(len(data)):
        path.write_bytes(data[:place] + b"\x8d" + data[place + 1 :])
        try:
            import_model(load_model(path, {"batch": (3,)}))
        except ModelError:
            refusals += 1
    assert refusals > 60


@pytest.mark.parametrize("equation", ["-", "ij-", "ij->-", "i$j->i"])
def test_an_equation_of_other_characters_is_refused_before_onnx_reads_it(equation: str) -> None:
    """Shape inference of onnx never ends for "-"."""
    node = helper.make_node("Einsum", ["x"], ["y"], name="e", equation=equation)
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2, 3]) for name in "xy"]
    model = helper.make_model(helper.make_graph([node], "g", values[:1], values[1:]))
    with pytest.raises(ModelError, match=r"node e \(Einsum\): attribute equation: must be letters, commas"):
        prepare(model, "m")
