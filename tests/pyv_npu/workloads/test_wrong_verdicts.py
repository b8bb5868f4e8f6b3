"""Verdicts that were wrong: false differences, outputs that prove nothing, errors without a name."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from model_runs import execute
from onnx import TensorProto, helper, numpy_helper
from onnxruntime_reference import one_node, random

from npu_device.config import NpuConfig
from pyv_npu import Simulator
from pyv_npu.cli import main
from pyv_npu.errors import BadInputError
from pyv_npu.workloads.checks import check, check_codes, compare, trivial
from toolchain.codegen import Target
from toolchain.compiler import compile_model
from toolchain.onnx_model.model import prepare


def saved(tmp_path: Path, proto: Any) -> str:
    path = tmp_path / "m.onnx"
    onnx.save(proto, path)
    return str(path)


def graph(nodes: list[Any], inputs: Any, outputs: Any, constants: Any, opset: int = 17) -> Any:
    made = helper.make_graph(
        nodes, "g", [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in inputs],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in outputs],
        [numpy_helper.from_array(values, name) for name, values in constants.items()],
    )  # fmt: skip
    return helper.make_model(made, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


QDQ = {"s": np.float32(0.0173), "z": np.int8(3)}


def pool(opset: int = 17) -> Any:
    """Codes, their mean of 2 x 2, and codes again: one in four means lies between two codes."""
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"]),
        helper.make_node("DequantizeLinear", ["q", "s", "z"], ["d"]),
        helper.make_node("AveragePool", ["d"], ["p"], kernel_shape=[2, 2], strides=[2, 2]),
        helper.make_node("QuantizeLinear", ["p", "s", "z"], ["means"]),
        helper.make_node("DequantizeLinear", ["means", "s", "z"], ["y"]),
    ]
    return graph(nodes, [("x", [1, 8, 32, 32])], [("y", [1, 8, 16, 16])], QDQ, opset)


def test_means_of_codes_between_two_codes_do_not_differ(tmp_path: Path) -> None:
    result = Simulator(saved(tmp_path, pool()), level="IA").run()
    codes = result.json["model"]["codes"]
    assert result.correct and codes["ties"] > 0 and codes["differ"] == 0


def test_a_code_that_is_no_tie_still_counts_and_its_tensor_is_named() -> None:
    want = np.zeros(100, np.int8)
    got = want + np.arange(100, dtype=np.int8) % 2
    free = np.zeros(100, np.bool_)
    free[1] = True
    made = check_codes([(got, want)], ["means"], {"means": free})
    assert (made["ok"], made["differ"], made["ties"], made["worst"]) == (False, 49, 1, "means")


def test_two_steps_are_no_tie() -> None:
    made = check_codes([(np.full(4, 2), np.zeros(4, np.int64))], ["t"], {"t": np.ones(4, np.bool_)})
    assert (made["ok"], made["steps"], made["ties"]) == (False, 2, 0)


@pytest.mark.parametrize("bits", [2, 4, 8])
def test_weights_of_a_constant_node_are_quantized_like_others(tmp_path: Path, bits: int) -> None:
    nodes = [
        helper.make_node("Constant", [], ["w"], value=numpy_helper.from_array(random(16, 8))),
        helper.make_node("MatMul", ["x", "w"], ["y"], "n"),
    ]
    config = tmp_path / "q.yaml"
    config.write_text(f"qbits_weight_default: {bits}\n")
    model = saved(tmp_path, graph(nodes, [("x", [4, 16])], [("y", [4, 8])], {}))
    result = Simulator(model, level="IA", qconfig=config).run()
    assert result.correct and result.json["model"]["original_error"]["y"] > 1e-4


@pytest.mark.parametrize("bits", [2, 4])
def test_depthwise_weights_that_end_inside_a_byte_keep_their_width(tmp_path: Path, bits: int) -> None:
    config = tmp_path / "q.yaml"
    config.write_text(f"qbits_weight_default: {bits}\n")
    proto = one_node("Conv", {"x": random(1, 8, 10, 10)}, constants={"w": random(8, 1, 3, 3)}, group=8)
    assert Simulator(saved(tmp_path, proto), level="IA", qconfig=config).run().correct
    config.write_text(f"override:\n  layer_0:\n    weight: {bits}\n")
    with pytest.raises(BadInputError, match=r"layer_0.weight: \d bits: 1 filters of a group of n.* end inside a byte"):
        Simulator(saved(tmp_path, proto), level="IA", qconfig=config).run()


@pytest.mark.parametrize("opset", [13, 15, 18])
def test_quantized_and_converted_models_of_older_operator_sets(tmp_path: Path, opset: int) -> None:
    assert Simulator(saved(tmp_path, pool(opset)), level="IA").run().correct
    proto = one_node("MatMul", {"x": random(4, 16)}, constants={"w": random(16, 8)}, opset=opset)
    assert Simulator(saved(tmp_path, proto), level="IA", precision="int8").run().correct


def test_calibration_has_the_operators_of_the_reference(tmp_path: Path) -> None:
    """onnx.reference alone gathers along a last axis of -1 otherwise."""
    nodes = [helper.make_node("GatherElements", ["x", "i"], ["g"], axis=-1),
             helper.make_node("MatMul", ["g", "w"], ["y"])]  # fmt: skip
    constants = {"i": np.array([[3, 1, 1], [0, 2, 3]]), "w": random(3, 4)}
    proto = graph(nodes, [("x", [3, 4])], [("y", [2, 4])], constants)
    assert Simulator(saved(tmp_path, proto), level="IA", precision="int8").run().correct


def test_an_output_that_a_product_reads_turned(tmp_path: Path) -> None:
    """It keeps its values; what is turned has codes."""
    nodes = [helper.make_node("MatMul", ["x", "v"], ["y"]), helper.make_node("Transpose", ["y"], ["t"], perm=[1, 0]),
             helper.make_node("MatMul", ["t", "w"], ["z"])]  # fmt: skip
    constants = {"v": random(6, 5), "w": random(4, 3, seed=5)}
    proto = graph(nodes, [("x", [4, 6])], [("y", [4, 5]), ("z", [5, 3])], constants)
    assert Simulator(saved(tmp_path, proto), level="IA", precision="int8").run().correct


def test_a_product_that_reads_an_output(tmp_path: Path) -> None:
    """The output keeps its values: the product, and its bias, are of floats."""
    nodes = [helper.make_node("Neg", ["x"], ["y"]), helper.make_node("Gemm", ["y", "w", "b"], ["z"])]
    constants = {"w": random(6, 3), "b": random(3, seed=5)}
    proto = graph(nodes, [("x", [4, 6])], [("y", [4, 6]), ("z", [4, 3])], constants)
    assert Simulator(saved(tmp_path, proto), level="IA", precision="int8").run().correct


def test_a_mask_of_attention_is_no_bias(tmp_path: Path) -> None:
    """It is -infinity where a query has no key, which no code is."""
    nodes = [
        helper.make_node("Transpose", ["x"], ["keys"], perm=[1, 0]),
        helper.make_node("MatMul", ["x", "keys"], ["scores"]), helper.make_node("Add", ["scores", "mask"], ["seen"]),
        helper.make_node("Softmax", ["seen"], ["shares"]), helper.make_node("MatMul", ["shares", "x"], ["y"]),
    ]  # fmt: skip
    mask = np.triu(np.full((5, 5), -np.inf, np.float32), 1)
    proto = graph(nodes, [("x", [5, 8])], [("y", [5, 8])], {"mask": mask})
    result = Simulator(saved(tmp_path, proto), level="IA", precision="int8").run()
    assert result.correct and result.json["model"]["original_error"]["y"] < 0.05


def test_floats_of_8_bits_in_a_model_of_an_older_operator_set(tmp_path: Path) -> None:
    nodes = [helper.make_node("Conv", ["x", "w"], ["c"]), helper.make_node("GlobalMaxPool", ["c"], ["y"])]
    proto = graph(nodes, [("x", [1, 3, 6, 6])], [("y", [1, 4, 1, 1])], {"w": random(4, 3, 3, 3)}, opset=11)
    assert Simulator(saved(tmp_path, proto), level="IA", precision="fp8").run().correct


def test_an_unknown_precision_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match=r"--precision int4: must be one of fp32, fp16, bf16, int8"):
        Simulator(saved(tmp_path, one_node("Relu", {"x": random(3)})), precision="int4").run()


def test_a_refusal_is_a_bad_input_in_python(tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match=r"node n \(MaxRoiPool, opset 20\): this operator is not supported"):
        regions = {"x": random(1, 1, 4, 4), "r": random(2, 5)}
        Simulator(saved(tmp_path, one_node("MaxRoiPool", regions, pooled_shape=[2, 2]))).run()


def test_a_result_of_which_rounding_leaves_less_is_judged_by_double_precision() -> None:
    """Large numbers that nearly cancel each other: 1e-5 is less than what fp32 can be asked for."""
    x, half = {"x": random(8, 64)}, random(64, 4, seed=5) * 1000
    proto = graph(
        [helper.make_node("Concat", ["x", "x"], ["twice"], axis=1), helper.make_node("MatMul", ["twice", "w"], ["y"])],
        [("x", [8, 64])], [("y", [8, 4])],
        {"w": np.concatenate([half, random(64, 4, seed=6) - half])},
    )  # fmt: skip
    compiled = compile_model(prepare(proto, "m"), Target())
    right = (np.hstack([x["x"]] * 2).astype(np.float64) @ numpy_helper.to_array(proto.graph.initializer[0])).max()
    got = execute(compiled, NpuConfig(), x)

    def judged(error: float) -> dict[str, Any]:
        return compare(compiled, {"y": got["y"] + np.float32(error * right)}, x, {}).outputs["y"]

    rounding = judged(3e-5)["arithmetic"]
    assert judged(0)["ok"] and 1e-5 < rounding < 1e-2
    assert not judged(20 * rounding)["ok"] and judged(20 * rounding)["limit"] <= 8 * rounding


@pytest.mark.parametrize("kept", [True, False])
def test_a_model_of_16_bits_is_judged_as_such(*, kept: bool) -> None:
    """Also where its inputs and outputs are FP32, as converters keep them: limits of fp32 are none of it."""
    kind, half = TensorProto.FLOAT if kept else TensorProto.FLOAT16, TensorProto.FLOAT16
    nodes, name, depth = [helper.make_node("Cast", ["x"], ["t0"], to=half)], "t0", 24
    for index in range(depth):
        nodes += [helper.make_node("MatMul", [name, f"w{index}"], [f"p{index}"]),
                  helper.make_node("Tanh", [f"p{index}"], [f"t{index + 1}"])]  # fmt: skip
        name = f"t{index + 1}"
    nodes.append(helper.make_node("Cast", [name], ["y"], to=kind))
    constants = {f"w{index}": (random(32, 32, seed=index) / 5).astype(np.float16) for index in range(depth)}
    proto, x = graph(nodes, [("x", [4, 32])], [("y", [4, 32])], constants), {"x": random(4, 32)}
    proto.graph.output[0].type.tensor_type.elem_type = kind
    compiled = compile_model(prepare(proto, "m"), Target())
    got = execute(compiled, NpuConfig(), x)["y"]

    def judged(error: float) -> dict[str, Any]:
        return compare(compiled, {"y": (got + error * np.abs(got).max()).astype(got.dtype)}, x, {}).outputs["y"]

    found = judged(0)
    assert found["ok"] and found["error"] > 1e-3 and 2e-3 < found["arithmetic"] < 1e-2, found
    assert not judged(8 * found["arithmetic"])["ok"]


def test_places_of_the_largest_count_through_all_channels(tmp_path: Path) -> None:
    """Windows that are a pixel apart; what is looked up by them does not make the image a list of places."""
    x = {"x": random(1, 2, 4, 5)}
    made = one_node("MaxPool", x, ("y", "i"), kernel_shape=[2, 2], kinds=[TensorProto.FLOAT, TensorProto.INT64])
    result = Simulator(saved(tmp_path, made), level="IA").run()
    assert result.correct and not any(one["trivial"] for one in result.json["model"]["checks"].values())


# -- outputs that prove nothing ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "why"),
    [([np.nan, np.nan], "all NaN"), ([2.0, 2.0], "constant"), ([2.0], ""), ([1.0, np.nan], ""), ([1.0, 2.0], "")],
)
def test_outputs_that_prove_nothing(values: list[float], why: str) -> None:
    assert trivial(np.array(values, np.float32)) == why
    assert check(np.array(values, np.float32), np.array(values, np.float32))["trivial"] == why


def masked() -> Any:
    """Weights of keys that a mask of 0 and 1 leaves."""
    nodes = [
        helper.make_node("Sub", ["one", "attention_mask"], ["gone"]),
        helper.make_node("Div", ["gone", "zero"], ["far"]),
        helper.make_node("Sub", ["x", "far"], ["scores"]),
        helper.make_node("Softmax", ["scores"], ["y"]),
    ]
    shape = [2, 5]
    constants = {"one": np.float32(1), "zero": np.float32(1e-30)}
    return graph(nodes, [("x", shape), ("attention_mask", shape)], [("y", shape)], constants)


def test_a_mask_is_ones_by_default(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = saved(tmp_path, masked())
    assert main(["run", path, "--sim-level", "IA"]) == 0
    assert "proves nothing" not in capsys.readouterr().out


def test_a_run_without_information_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", saved(tmp_path, masked()), "--sim-level", "IA", "--input", "x=nan"]) == 0
    assert "all NaN: this run proves nothing, give inputs with --input" in capsys.readouterr().out


# -- inputs ------------------------------------------------------------------------------------------------------------


def test_one_input_from_a_file_a_picture_or_a_number(tmp_path: Path) -> None:
    from PIL import Image

    path = saved(tmp_path, one_node("Relu", {"x": random(1, 3, 4, 5)}))
    pixels = np.random.default_rng(1).integers(0, 256, (4, 5, 3), np.uint8)
    Image.fromarray(pixels).save(tmp_path / "p.png")
    np.save(tmp_path / "x.npy", random(1, 3, 4, 5))
    wanted = {
        "p.png": pixels.transpose(2, 0, 1)[None].astype(np.float32) / np.float32(255),
        "x.npy": np.maximum(random(1, 3, 4, 5), 0), "0.25": np.full((1, 3, 4, 5), 0.25, np.float32),
    }  # fmt: skip
    for value, want in wanted.items():
        given = str(tmp_path / value) if "." in value and not value[0].isdigit() else value
        assert (
            main(["run", path, "--sim-level", "IA", "--input", f"x={given}", "--report", str(tmp_path / value[0])]) == 0
        )
        assert np.array_equal(np.load(tmp_path / value[0] / "outputs.npz")["y"], want)


def opened() -> Any:
    """Two inputs with dimensions that have names, one of them the same."""
    shapes = [("x", ["batch", "n", 4]), ("y", ["batch", 1, 1])]
    return graph([helper.make_node("Add", ["x", "y"], ["z"])], shapes, [("z", None)], {})


@pytest.mark.parametrize("several", [False, True])
def test_an_array_says_the_sizes_of_open_dimensions(several: bool, tmp_path: Path) -> None:
    path, x = saved(tmp_path, opened()), random(2, 3, 4)
    np.save(tmp_path / "x.npy", x)
    np.savez(tmp_path / "x.npz", x=x)
    given = ["--inputs", str(tmp_path / "x.npz")] if several else ["--input", f"x={tmp_path / 'x.npy'}"]
    assert main(["run", path, "--sim-level", "IA", *given, "--input", "y=0.5", "--report", str(tmp_path / "r")]) == 0
    assert np.array_equal(np.load(tmp_path / "r" / "outputs.npz")["z"], x + np.float32(0.5))


@pytest.mark.parametrize(
    ("size", "options", "message"),
    [
        ((2, 3, 4), ["--shape", "batch=1"], "input x: has shape (2, 3, 4); the model takes (1, 3, 4)"),
        ((2, 3, 4, 1), [], "x has shape [batch, n, 4], y has shape [batch, 1, 1]: give every dimension a size"),
    ],
)
def test_an_array_that_does_not_fit(
    size: tuple[int, ...], options: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What --shape says counts; an array with more dimensions than its input says nothing."""
    path, name = saved(tmp_path, opened()), tmp_path / "x.npy"
    np.save(name, random(*size))
    assert main(["run", path, "--sim-level", "IA", "--input", f"x={name}", *options]) != 0
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("option", "code", "message"),
    [
        ("x", 64, "--input x: must have the form NAME=FILE or NAME=NUMBER"),
        ("z=1", 64, "--input z: the model has no such input; inputs are x"),
        ("x=there.npy", 65, "there.npy: No such file or directory"),
        ("x=there.txt", 65, "there.txt: inputs are files that end in .npy, .png, .jpg, .jpeg, or a number"),
        ("x=there.png", 65, "there.png: a picture is for an input of one image, not of shape (3,)"),
    ],
)
def test_an_input_that_is_none(
    option: str, code: int, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = saved(tmp_path, one_node("Relu", {"x": random(3)}))
    assert main(["run", path, "--sim-level", "IA", "--input", option]) == code
    assert message in capsys.readouterr().err


def test_a_sweep_of_the_device_compiles_for_each(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = saved(tmp_path, one_node("MatMul", {"x": random(64, 64)}, constants={"w": random(64, 64)}))
    line = ["sweep", path, "npu.spm.size=65536,2097152", "--json", "-o", str(tmp_path / "out")]
    assert main(line) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert [(row["npu.spm.size"], row["mode"]) for row in rows] == [
        (65536, "loose"), (65536, "tight"), (2097152, "loose"), (2097152, "tight"),
    ]  # fmt: skip
    assert all(row["cycles"] and not row["error"] for row in rows)


def test_the_limit_of_fp16_is_that_of_its_arithmetic() -> None:
    """What is taken away again leaves steps of 1/16: onnx.reference in FP16 makes the same error, which is said. More
    than twice that is wrong."""
    nodes = [helper.make_node("Add", ["x", "c"], ["sum"]), helper.make_node("Sub", ["sum", "c"], ["y"])]
    proto = graph(nodes, [("x", [4, 8])], [("y", [4, 8])], {"c": np.array([100], np.float32)})
    compiled = compile_model(prepare(proto, "m"), Target(), precision="fp16")
    given = {"x": np.random.default_rng(2).uniform(-1, 1, (4, 8)).astype(np.float32)}
    outputs = execute(compiled, NpuConfig(), given)
    found = compare(compiled, outputs, given, {}).outputs["y"]
    assert found["ok"] and 2e-3 < found["arithmetic"] < 0.05 and found["limit"] == 2 * found["arithmetic"]
    wrong = {"y": outputs["y"] + np.float32(3 * found["arithmetic"])}
    assert not compare(compiled, wrong, given, {}).outputs["y"]["ok"]
