"""The ONNX reference implementation: the judge of every model."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from toolchain.ir.graph import Values
from toolchain.onnx_frontend.model import OnnxModel


def reference(model: OnnxModel, inputs: Mapping[str, Values]) -> dict[str, Values]:
    """The outputs of a model by onnx.reference."""
    return _outputs(model.proto, model.outputs, inputs)


def reference_with(
    proto: Any, names: list[str], weights: Callable[[Any, tuple[int, ...]], Values | None], inputs: Mapping[str, Values]
) -> dict[str, Values]:
    """The outputs `names` of an onnx.ModelProto with other weights: `weights(node, shape)` of each Conv, Gemm and
    MatMul with constant weights gives them, or None to keep them."""
    changed = onnx.ModelProto.FromString(proto.SerializeToString())
    shapes = {tensor.name: (tuple(tensor.dims), tensor.data_type) for tensor in changed.graph.initializer}
    for node in changed.graph.node:
        if node.op_type not in ("Conv", "Gemm", "MatMul") or node.input[1] not in shapes:
            continue
        shape, kind = shapes[node.input[1]]
        made = weights(node, shape)
        if made is not None:
            name = f"{node.output[0]}.changed"
            made = made.astype(helper.tensor_dtype_to_np_dtype(kind))
            changed.graph.initializer.append(numpy_helper.from_array(made, name))
            node.input[1] = name
    return _outputs(changed, names, inputs)


def _outputs(proto: Any, names: list[str], inputs: Mapping[str, Values]) -> dict[str, Values]:
    results = ReferenceEvaluator(proto).run(names, dict(inputs))
    return {name: np.asarray(values) for name, values in zip(names, results, strict=True)}
