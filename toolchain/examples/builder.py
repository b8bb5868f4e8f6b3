"""Small layer on onnx.helper: nodes with generated output names, and weights from one random generator."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import helper, numpy_helper

SEED = 20
OPSET = 20


class Builder:
    """Builder of nodes and weights; `kind` is the type of activations and weights."""

    def __init__(self, kind: str = "float32") -> None:
        self.kind = np.dtype(kind)
        self.code = helper.np_dtype_to_tensor_dtype(self.kind)
        self._random = np.random.default_rng(SEED)
        self.nodes: list[Any] = []
        self.weights: list[Any] = []

    def weight(self, *shape: int, scale: float | None = None) -> str:
        """Return normally distributed weights. The default scale keeps the variance of activations."""
        fan = int(np.prod(shape[1:])) if len(shape) > 1 else shape[0]
        width = fan**-0.5 if scale is None else scale
        return self.constant((self._random.standard_normal(shape) * width).astype(self.kind))

    def positive(self, *shape: int) -> str:
        """Return values between 0.5 and 1.5, for variances and gains."""
        return self.constant(self._random.uniform(0.5, 1.5, shape).astype(self.kind))

    def constant(self, values: NDArray[Any]) -> str:
        name = f"w{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(values, name))
        return name

    def node(self, operator: str, *inputs: str, **attributes: Any) -> str:
        """Add a node and return the name of its output."""
        name = f"{operator.lower()}{len(self.nodes)}"
        self.nodes.append(helper.make_node(operator, list(inputs), [name], name=name, **attributes))
        return name

    def model(self, name: str, shape: Sequence[int | str], output: str, result: Sequence[int | str]) -> Any:
        """Return the model with one input x and one output y."""
        self.nodes.append(helper.make_node("Identity", [output], ["y"], name="out"))
        graph = helper.make_graph(
            self.nodes,
            name,
            [helper.make_tensor_value_info("x", self.code, shape)],
            [helper.make_tensor_value_info("y", self.code, result)],
            self.weights,
        )
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=9)
