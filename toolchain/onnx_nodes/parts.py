"""Decomposition of a node into a graph of other ONNX operators."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from onnx import TensorProto, helper

from toolchain.ir.graph import Values
from toolchain.onnx_nodes.evaluation import TensorInfo
from toolchain.onnx_nodes.view import NodeView

MAX_NODES = 20_000
"""Maximum number of nodes that replace a node."""
CORE = "pyv_npu.core"
"""Domain of the kernels on the core."""


class ValidRows(NamedTuple):
    """Valid rows of a tensor, which precede the invalid ones."""

    number: str
    """One-element tensor with the number of valid rows."""
    axis: int
    """Dimension of the rows."""


class Decomposition:
    """Builder of the nodes that replace `node`, and their constants, with names prefixed by that of its first
    output."""

    def __init__(self, node: NodeView) -> None:
        self.node = node
        self.nodes: list[Any] = []
        self.constants: dict[str, Values] = {}
        self.infos: dict[str, TensorInfo] = {}
        """Types and shapes that ONNX's inference does not determine."""
        self.counts: dict[str, ValidRows] = {}
        """Tensors with an open row count."""
        self._prefix = next(name for name in node.proto.output if name)
        self._kind: Any = None

    @property
    def kind(self) -> Any:
        """Array type of the first input."""
        return self.node.numpy_type(0)

    def input(self, index: int) -> str:
        return str(self.node.proto.input[index])

    def constant(self, values: Any) -> str:
        """Add a constant and return its name."""
        name = f"{self._prefix}/constant{len(self.constants)}"
        self.constants[name] = np.asarray(values)
        return name

    def number(self, value: float) -> str:
        """Add a number of the first input's type."""
        return self.constant(np.array(value, self.kind))

    def integers(self, *values: int) -> str:
        return self.constant(np.array(values, np.int64))

    def make(self, operator: str, *inputs: str, **attributes: Any) -> str:
        """Add a node and return the name of its output."""
        return self.several(1, operator, *inputs, **attributes)[0]

    def several(self, count: int, operator: str, *inputs: str, **attributes: Any) -> list[str]:
        """Add a node with several outputs, and return their names."""
        names = [f"{self._prefix}/{len(self.nodes)}.{index}" for index in range(count)]
        self._add(operator, inputs, names, attributes)
        return names

    def result(self, operator: str, *inputs: str, index: int = 0, **attributes: Any) -> None:
        """Add the node of an output of the decomposed node."""
        self._add(operator, inputs, [self.node.proto.output[index]], attributes)

    def _add(self, operator: str, inputs: Any, outputs: list[str], attributes: dict[str, Any]) -> None:
        if len(self.nodes) >= MAX_NODES:
            self.node.refuse(f"it becomes more than {MAX_NODES} nodes: smaller windows or shapes")
        name = f"{self.node.name}/{operator}{len(self.nodes)}"
        self.nodes.append(helper.make_node(operator, inputs, outputs, name, **attributes))

    # -- shared building blocks ----------------------------------------------------------------------------------------

    def reshaped(self, x: str, *shape: int) -> str:
        return self.make("Reshape", x, self.integers(*shape))

    def reshaped_result(self, x: str) -> None:
        """Add the output as a reshaped tensor, with the known output shape."""
        self.result("Reshape", x, self.integers(*self.node.out_info(0).shape))

    def sliced(self, x: str, axis: int, start: int, end: int, step: int = 1) -> str:
        """Return a slice of an axis. `end` is exclusive; with a negative step, -1 includes the first element."""
        stop = end if step > 0 or end >= 0 else -(1 << 31)
        return self.make(
            "Slice", x, self.integers(start), self.integers(stop), self.integers(axis), self.integers(step)
        )  # fmt: skip

    def cast(self, x: str, kind: Any) -> str:
        return self.make("Cast", x, to=helper.np_dtype_to_tensor_dtype(np.dtype(kind)))

    def joined(self, names: list[str], axis: int) -> str:
        return names[0] if len(names) == 1 else self.make("Concat", *names, axis=axis)

    def row(self, index: int, at: int) -> str:
        """Return a row of an input, folded if the input is constant."""
        values = self.node.constant(index)
        if values is not None:
            return self.constant(values[at])
        return self.make("Gather", self.input(index), self.constant(np.array(at, np.int64)), axis=0)


Compose = Callable[[Decomposition], None]


class Composition(NamedTuple):
    """Decomposition of an operator of another domain: text for docs/onnx-coverage.md, function, attributes."""

    becomes: str
    compose: Compose
    attributes: tuple[str, ...] = ()


INT32 = TensorProto.INT32
