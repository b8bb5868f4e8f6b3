"""Methods of calibration on the same data: SQNR of INT8 against floats, and that of onnxruntime's quantizer."""

import contextlib
import io
import logging
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnxruntime.quantization import CalibrationDataReader, CalibrationMethod, QuantType, quantize_static

from toolchain.examples import EXAMPLES
from toolchain.onnx_model.model import prepare
from toolchain.quantize.post_training import quantize_model

METHODS = {"minmax": CalibrationMethod.MinMax, "entropy": CalibrationMethod.Entropy}


class Reader(CalibrationDataReader):  # type: ignore[misc]
    def __init__(self, samples: list[Any]) -> None:
        self._samples = iter(samples)

    def get_next(self) -> Any:
        return next(self._samples, None)


def results(proto: Any, samples: list[Any]) -> Any:
    """Outputs of onnxruntime, node by node as they stand."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return np.concatenate([session.run(None, one)[0] for one in samples])


def by_quantizer(proto: Any, samples: list[Any], method: str, folder: Path) -> Any:
    """What onnxruntime's own quantizer makes of a model."""
    onnx.save(proto, folder / "m.onnx")
    logging.disable(logging.WARNING)
    with contextlib.redirect_stdout(io.StringIO()):
        quantize_static(
            folder / "m.onnx", folder / "q.onnx", Reader(samples), calibrate_method=METHODS[method], per_channel=True,
            activation_type=QuantType.QUInt8, weight_type=QuantType.QInt8,
        )  # fmt: skip
    logging.disable(logging.NOTSET)
    return onnx.load(folder / "q.onnx")


@pytest.mark.parametrize(("name", "tail", "gain"), [("cnn", 100, -0.5), ("mlp", 100, -0.5), ("mlp", 2, 3.0)])
def test_entropy_against_the_whole_range_and_onnxruntime(name: str, tail: int, gain: float, tmp_path: Path) -> None:
    """On even data no method is worse than the other; with outliers entropy has the gain. Each is at least as good as
    that of onnxruntime on the same samples."""
    proto, random = EXAMPLES[name](), np.random.default_rng(1)
    model = prepare(EXAMPLES[name](), name)
    samples = [
        {one: random.standard_t(tail, model.info[one].shape).astype(np.float32) for one in model.inputs}
        for _ in range(28)
    ]
    used, tests = samples[:20], samples[20:]
    want = results(proto, tests)

    def ratio(changed: Any) -> float:
        return float(10 * np.log10((want**2).sum() / ((want - results(changed, tests)) ** 2).sum()))

    ours = {method: ratio(quantize_model(model, used, method=method).proto) for method in METHODS}
    theirs = {method: ratio(by_quantizer(proto, used, method, tmp_path)) for method in METHODS}
    assert ours["entropy"] > ours["minmax"] + gain
    assert all(ours[method] > theirs[method] - 1 for method in METHODS), (ours, theirs)
