"""Models as onnxruntime's optimizer and quantizer write them: fused operators of com.microsoft."""

from pathlib import Path
from typing import Any

import onnx
import onnxruntime
import pytest
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, quantize_dynamic, quantize_static
from onnxruntime_reference import agree, random

from toolchain.examples import EXAMPLES
from toolchain.onnx_domains.contributed import DOMAIN


class Inputs(CalibrationDataReader):  # type: ignore[misc]
    """Four random ones."""

    def __init__(self, model: Any) -> None:
        shapes = {v.name: [dim.dim_value for dim in v.type.tensor_type.shape.dim] for v in model.graph.input}
        self._left = [{name: random(*shape, seed=seed) for name, shape in shapes.items()} for seed in range(4)]

    def get_next(self) -> Any:
        return self._left.pop() if self._left else None


def quantized(model: Any, way: str, path: Path) -> Any:
    if way == "dynamic":
        quantize_dynamic(model, path)
    elif way == "static":
        quantize_static(model, path, Inputs(model), quant_format=QuantFormat.QOperator)
    else:
        onnx.save(model, path)
    return onnx.load(path)


def optimized(model: Any, path: Path) -> Any:
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    options.optimized_model_filepath = str(path)
    options.log_severity_level = 4
    onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return onnx.load(path)


@pytest.mark.parametrize("way", ["float", "dynamic", "static"])
@pytest.mark.parametrize("name", ["mlp", "cnn", "decoder"])
def test_what_onnxruntime_writes_runs(name: str, way: str, tmp_path: Path) -> None:
    """One step of a code is what products of integers and of floats may differ by."""
    model = EXAMPLES[name]()
    model.ir_version = min(model.ir_version, 10)
    made = optimized(quantized(model, way, tmp_path / "quantized.onnx"), tmp_path / "optimized.onnx")
    assert any(node.domain == DOMAIN for node in made.graph.node)
    agree(made, limit=1e-5 if way == "float" else 2e-2)
