"""The ONNX reference implementation: the judge of every model."""

from collections.abc import Mapping

import numpy as np
from onnx.reference import ReferenceEvaluator

from toolchain.ir.graph import Values
from toolchain.onnx_frontend.model import OnnxModel


def reference(model: OnnxModel, inputs: Mapping[str, Values]) -> dict[str, Values]:
    """The outputs of a model by onnx.reference."""
    results = ReferenceEvaluator(model.proto).run(model.outputs, dict(inputs))
    return {name: np.asarray(values) for name, values in zip(model.outputs, results, strict=True)}
