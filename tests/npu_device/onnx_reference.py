"""onnx.reference as an oracle: one node, evaluated."""

from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

Array = np.ndarray[Any, Any]


def reference(op: str, *inputs: Array | None, opset: int = 24, outputs: int = 1, **attributes: Any) -> Array:
    """The first output of a node of the ONNX operator `op`; None: an input that is left out."""
    names = [f"x{index}" if value is not None else "" for index, value in enumerate(inputs)]
    results = [f"y{index}" for index in range(outputs)]
    node = helper.make_node(op, names, results, **attributes)
    given = {name: value for name, value in zip(names, inputs, strict=True) if name}
    values = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(value.dtype), value.shape)
        for name, value in given.items()
        if value is not None
    ]
    made = [helper.make_tensor_value_info(name, TensorProto.UNDEFINED, None) for name in results]
    graph = helper.make_graph([node], "one", values, made)
    model = helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", opset)])
    (answer, *_) = ReferenceEvaluator(model).run(None, given)
    return np.asarray(answer)
