"""One node by ONNX's own definition: what the compiler knows of it."""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import onnx
from onnx.reference import ReferenceEvaluator

from toolchain.ir.graph import Values


def evaluate(proto: Any, feeds: Mapping[str, Values], opsets: Iterable[Any]) -> list[Values]:
    """The outputs of a node whose inputs have these values. Raises what onnx.reference raises."""
    helper = onnx.helper
    kinds = {name: helper.np_dtype_to_tensor_dtype(values.dtype) for name, values in feeds.items()}
    graph = helper.make_graph(
        [proto], "constant",
        [helper.make_tensor_value_info(name, kinds[name], values.shape) for name, values in feeds.items()],
        [helper.make_empty_tensor_value_info(name) for name in proto.output if name],
    )  # fmt: skip
    results: Any = ReferenceEvaluator(helper.make_model(graph, opset_imports=list(opsets))).run(None, dict(feeds))
    return [np.asarray(one) for one in results]
