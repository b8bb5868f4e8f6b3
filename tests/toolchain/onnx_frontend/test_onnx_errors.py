"""What is wrong with a model: one line that names it and says what helps, before any other work."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.external_data_helper import ExternalDataInfo, load_external_data_for_tensor

from toolchain.codegen import Target
from toolchain.compiler import compile_model
from toolchain.errors import ModelError
from toolchain.onnx_model import file
from toolchain.onnx_model.model import load_model, prepare

FLOAT = TensorProto.FLOAT
Shape = list[int | str] | None


def model(
    nodes: list[Any], shape: Shape, *, kind: int = FLOAT, made: int = 0, out: Shape = None, opset: int = 18,
    weights: Any = (), domains: tuple[str, ...] = (),
) -> Any:  # fmt: skip
    graph = helper.make_graph(
        nodes, "g", [helper.make_tensor_value_info("x", kind, shape)],
        [helper.make_tensor_value_info("y", made or kind, shape if out is None else out)], list(weights),
    )  # fmt: skip
    opsets = [helper.make_opsetid("", opset), *(helper.make_opsetid(domain, 1) for domain in domains)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=9)


def node(operator: str, *inputs: str, **attributes: Any) -> Any:
    return helper.make_node(operator, ["x", *inputs], ["y"], name="n", **attributes)


def refused(proto: Any, **shapes: tuple[int, ...]) -> str:
    with pytest.raises(ModelError) as caught:
        compile_model(prepare(proto, "m.onnx", shapes), Target())
    message = str(caught.value)
    assert "\n" not in message and message.startswith("m.onnx: ")
    return message.removeprefix("m.onnx: ")


CASES: dict[str, tuple[Callable[[], Any], str]] = {
    "an operator of another domain": (
        lambda: model([node("Gelu", domain="com.example")], [2, 3], domains=("com.example",)),
        "node n (Gelu, opset 18): this operator of com.example is not supported; `pyv-npu docs onnx-coverage` lists "
        "those that are: export the model with them",
    ),
    "an attribute": (
        lambda: model(
            [node("Cast", to=TensorProto.FLOAT16, round_mode="up")], [4], made=TensorProto.FLOAT16, opset=24
        ),
        "node n (Cast, opset 24): attribute round_mode is not supported; supported are to, saturate",
    ),
    "a value of an attribute": (
        lambda: model(
            [node("Pad", "p", mode="around")], [2, 3], out=[4, 5],
            weights=[numpy_helper.from_array(np.array([1, 1, 1, 1]), "p")],
        ),
        "node n (Pad, opset 18): attribute mode=around: supported are constant, reflect, edge, wrap",
    ),
    "an element type": (
        lambda: model([node("Identity")], [2], kind=TensorProto.COMPLEX64),
        "input x: data type COMPLEX64: supported are FLOAT, DOUBLE, FLOAT16, BFLOAT16, FLOAT8E4M3FN, FLOAT8E5M2, "
        "INT32, INT64, INT8, UINT8, BOOL, INT16, UINT16, UINT32, UINT64",
    ),
    "a type that the operator does not take": (
        lambda: model([node("Gemm", "x")], [2, 2], kind=TensorProto.INT32),
        "node n (Gemm, opset 18): data type INT32 of input 0 (x) is not supported",
    ),
    "an input that must be constant": (
        lambda: helper.make_model(
            helper.make_graph(
                [helper.make_node("Tile", ["x", "r"], ["y"], name="n")], "g",
                [
                    helper.make_tensor_value_info("x", FLOAT, [2]),
                    helper.make_tensor_value_info("r", TensorProto.INT64, [1]),
                ],
                [helper.make_tensor_value_info("y", FLOAT, [4])],
            ),
            opset_imports=[helper.make_opsetid("", 18)], ir_version=9,
        ),
        "node n (Tile, opset 18): repeats (r) must be constant",
    ),
    "an old opset": (
        lambda: model([node("Relu")], [2], opset=6),
        "opset 6: must be 7 or newer: export the model again",
    ),
    "an open dimension": (
        lambda: model([node("Relu")], ["batch", 3, "width"]),
        "input x has shape [batch, 3, width]: give every dimension a size, --shape batch=N,width=N with a "
        "number for each N",
    ),
    "no shape at all": (
        lambda: model([node("Relu")], None, out=[2]),
        "input x has no shape: give every dimension a size, --shape x=N,... with a number for each N",
    ),
    "no element": (
        lambda: model([node("Relu")], [2, 0]),
        "output y: shape [2, 0] holds no element",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_a_model_that_cannot_be_compiled(case: str) -> None:
    make, message = CASES[case]
    assert refused(make()) == message


def test_an_unknown_operator_is_named_with_the_page_of_those_that_there_are() -> None:
    regions = helper.make_node("Constant", [], ["r"], value=numpy_helper.from_array(np.zeros((1, 5), np.float32)))
    assert refused(model([regions, node("MaxRoiPool", "r", pooled_shape=[1, 1])], [1, 1, 2, 2])) == (
        "node n (MaxRoiPool, opset 18): this operator is not supported; `pyv-npu docs onnx-coverage` lists those that "
        "are: export the model with them"
    )


@pytest.mark.parametrize("operator", ["RandomNormalLike", "RandomUniformLike", "RandomNormal", "Bernoulli"])
def test_random_numbers_are_an_input(operator: str) -> None:
    """A constant would be the numbers of one run of the compiler."""
    drawn = operator == "RandomNormal"
    random = helper.make_node(operator, [] if drawn else ["x"], ["r"], name="n", **({"shape": [2]} if drawn else {}))
    message = refused(model([random, helper.make_node("Add", ["x", "r"], ["y"])], [2]))
    assert message.startswith(
        f"node n ({operator}, opset 18): its numbers are drawn anew in each run: export the model"
    )


def test_an_unknown_operator_is_named_and_not_one_behind_it_that_needs_its_shape() -> None:
    behind = helper.make_node(
        "EmbedLayerNormalization", ["ids", "", "words", "places", "", "scale", "offset"], ["y"], domain="com.microsoft"
    )
    unknown = helper.make_node("Gelu", ["x"], ["ids"], name="n", domain="com.example")
    tables = [numpy_helper.from_array(np.ones((4, 2), np.float32), name) for name in ("words", "places")]
    tables += [numpy_helper.from_array(np.ones(2, np.float32), name) for name in ("scale", "offset")]
    proto = model([unknown, behind], [1, 3], domains=("com.example", "com.microsoft"))
    proto.graph.initializer.extend(tables)
    assert refused(proto).startswith("node n (Gelu, opset 18): this operator of com.example is not supported")


def test_every_node_that_is_not_supported_is_named_at_once() -> None:
    regions = helper.make_node("Constant", [], ["r"], value=numpy_helper.from_array(np.zeros((1, 5), np.float32)))
    pooled = [
        helper.make_node("MaxRoiPool", [before, "r"], [after], name=name, pooled_shape=[1, 1])
        for name, before, after in (("n0", "x", "a"), ("n2", "b", "y"))
    ]
    nodes = [regions, pooled[0], helper.make_node("Bernoulli", ["a"], ["b"], name="n1"), pooled[1]]
    assert refused(model(nodes, [1, 1, 2, 2])) == (
        "3 nodes are not supported: 2 MaxRoiPool: node n0 (MaxRoiPool, opset 18): this operator is not supported; 1 "
        "Bernoulli: node n1 (Bernoulli, opset 18): its numbers are drawn anew in each run: export the model with them "
        "as an input; `pyv-npu docs onnx-coverage` lists those that are: export the model with them"
    )


def test_a_sequence_is_no_tensor() -> None:
    proto = model([node("Identity")], [2])
    proto.graph.input[0].CopyFrom(helper.make_tensor_sequence_value_info("x", FLOAT, [2]))
    proto.graph.output[0].CopyFrom(helper.make_tensor_sequence_value_info("y", FLOAT, [2]))
    assert refused(proto) == "input x is a sequence: supported are tensors"


@pytest.mark.parametrize(
    ("shape", "given", "message"),
    [
        (["n", 4], {"z": (1, 4)}, "--shape z: no such input; inputs are x; dimensions are n"),
        (["n", 4], {"x": (1,)}, "--shape x: has 2 dimensions, got 1"),
        (["n", 4], {"x": (1, 5)}, "--shape x: a dimension is 4 in the model, got 5"),
    ],
)
def test_a_shape_that_does_not_fit(shape: Shape, given: dict[str, tuple[int, ...]], message: str) -> None:
    assert refused(model([node("Relu")], shape), **given) == message


@pytest.mark.parametrize("shape", [["n", 4], None])
def test_a_shape_makes_a_model_fixed(shape: Shape) -> None:
    made = prepare(model([node("Relu")], shape, out=shape or [3, 4]), "m", {"x": (3, 4)})
    assert made.info["x"].shape == made.info["y"].shape == (3, 4)


def test_what_the_checker_finds_is_passed_on_in_one_line() -> None:
    broken = model([helper.make_node("Add", ["x"], ["y"], name="n")], [2])
    assert "has input size 1 not in range [min=2, max=2]" in refused(broken)


def save_apart(folder: Path) -> Path:
    """A model whose weights lie in a file of their own."""
    weights = numpy_helper.from_array(np.arange(64, dtype=np.float32), "w")
    proto = model([node("Add", "w")], [64], weights=[weights])
    onnx.save(proto, folder / "m.onnx", save_as_external_data=True, location="m.bin", size_threshold=0)
    return folder / "m.onnx"


def test_weights_beside_the_model_are_read(tmp_path: Path) -> None:
    assert load_model(save_apart(tmp_path)).initializers["w"].tolist() == list(range(64))


def keep_reference(tensor: Any, folder: str) -> None:
    """Loads external data as onnx does up to 1.23.1: the tensor points to its file still."""
    info = ExternalDataInfo(tensor)
    values = (Path(folder) / info.location).read_bytes()[info.offset or 0 :]
    tensor.raw_data = values[: info.length]


@pytest.mark.parametrize("load", [load_external_data_for_tensor, keep_reference])
def test_a_model_as_torch_exports_it_is_compiled(
    load: Callable[[Any, str], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All weights are in m.onnx.data: a large one stays there, a small one becomes part of the model."""
    monkeypatch.setattr(file, "load_external_data_for_tensor", load)
    weights = {"w": np.arange(80 * 256, dtype=np.float32).reshape(80, 256), "b": np.arange(256, dtype=np.float32)}
    stored = [numpy_helper.from_array(values, name) for name, values in weights.items()]
    proto = model([node("Gemm", "w", "b")], [2, 80], out=[2, 256], weights=stored)
    onnx.save(proto, tmp_path / "m.onnx", save_as_external_data=True, location="m.onnx.data", size_threshold=0)
    loaded = load_model(tmp_path / "m.onnx")
    assert {name: loaded.initializers[name].tolist() for name in weights} == {
        name: values.tolist() for name, values in weights.items()
    }
    assert [layer.op_type for layer in compile_model(loaded, Target()).graph.layers] == ["GEMM_T"]


def test_missing_weights_are_named(tmp_path: Path) -> None:
    path = save_apart(tmp_path)
    (tmp_path / "m.bin").unlink()
    with pytest.raises(ModelError) as caught:
        load_model(path)
    message = str(caught.value)
    assert message.startswith(f"{path}: ") and "m.bin" in message and "\n" not in message
    assert message.endswith(": put its external data into the folder of the model")


def test_functions_of_the_model_are_its_operators() -> None:
    """As exporters write them: a domain of the model's own with bodies of standard operators."""
    body = [helper.make_node("Mul", ["a", "a"], ["b"]), helper.make_node("Add", ["a", "b"], ["c"])]
    own = helper.make_function("own", "Poly", ["a"], ["c"], body, [helper.make_opsetid("", 18)])
    proto = model([node("Poly", domain="own")], [4], domains=("own",))
    proto.functions.append(own)
    compiled = compile_model(prepare(proto, "m"), Target())
    assert [layer.text("function") for layer in compiled.graph.layers] == ["MUL", "ADD"]


@pytest.mark.parametrize("data", [b"", b"\x08", b"not a model", bytes(range(256))])
def test_a_broken_file(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(data)
    with pytest.raises(ModelError) as caught:
        load_model(path)
    assert str(caught.value).startswith(f"{path}: no ONNX model (")
    assert str(caught.value).endswith("): export it again") and "\n" not in str(caught.value)


def test_a_pointer_of_git_lfs_is_named(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    path.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n")
    with pytest.raises(ModelError) as caught:
        load_model(path)
    assert str(caught.value) == f"{path}: a pointer of Git LFS, not the model itself: git lfs pull brings it"


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(ModelError) as caught:
        load_model(tmp_path / "m.onnx")
    assert str(caught.value) == f"{tmp_path / 'm.onnx'}: No such file or directory: give the path of an ONNX model"
