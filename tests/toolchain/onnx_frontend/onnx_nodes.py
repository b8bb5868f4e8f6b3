"""The node tests of the onnx package, made ready for a compiler: what must be constant becomes an initializer."""

import warnings
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import onnx
from onnx import defs, numpy_helper
from onnx.backend.test.case.node import collect_testcases

from toolchain.onnx_frontend.table import OPERATORS
from toolchain.onnx_model.opset import OLDEST

FUNCTIONS: dict[str, tuple[int, ...]] = {
    "Celu": (), "Elu": (), "GreaterOrEqual": (), "GroupNormalization": (),
    "LeakyRelu": (), "LessOrEqual": (), "PRelu": (), "ReduceL1": (1,), "ReduceL2": (1,),
    "ReduceSumSquare": (1,), "Selu": (), "Softsign": (), "SwiGLU": (),
    "ThresholdedRelu": (),
}  # fmt: skip
"""Operators that ONNX defines by those of the table, and which inputs must be constant."""


class Case(NamedTuple):
    name: str
    model: Any
    inputs: dict[str, Any]
    outputs: list[Any]
    rtol: float
    atol: float


@cache
def cases() -> dict[str, list[Case]]:
    """Operator -> the tests that consist of it alone."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        collected = collect_testcases(None)
    found: dict[str, list[Case]] = {name: [] for name in (*OPERATORS, *FUNCTIONS)}
    for case in collected:
        assert case.model is not None
        names = {node.op_type for node in case.model.graph.node}
        if len(names) == 1 and (name := next(iter(names))) in found and case.data_sets:
            found[name].append(_case(case))
    return found


def _case(case: Any) -> Case:
    model = onnx.ModelProto.FromString(case.model.SerializeToString())
    inputs, outputs = case.data_sets[0]
    constant = {
        node.input[index] for node in model.graph.node for index in _constant(node.op_type) if index < len(node.input)
    }
    given = {}
    for value, data in zip(model.graph.input, inputs, strict=True):
        values = _array(data)
        if value.name in constant:
            tensor = data if isinstance(data, onnx.TensorProto) else numpy_helper.from_array(values, value.name)
            model.graph.initializer.append(tensor)
            model.graph.initializer[-1].name = value.name
        else:
            given[value.name] = values
    _raise_opset(model)
    return Case(case.name, model, given, [_array(data) for data in outputs], case.rtol, case.atol)


def _constant(operator: str) -> tuple[int, ...]:
    return OPERATORS[operator].constant if operator in OPERATORS else FUNCTIONS[operator]


def _array(data: Any) -> Any:
    return numpy_helper.to_array(data) if isinstance(data, onnx.TensorProto) else np.asarray(data)


def _raise_opset(model: Any) -> None:
    """To the oldest that is supported, where its operators are still the same ones there."""
    for opset in model.opset_import:
        versions = [
            [defs.get_schema(node.op_type, version).since_version for version in (opset.version, OLDEST)]
            for node in model.graph.node
            if opset.domain == "" and opset.version < OLDEST
        ]
        if versions and all(old == new for old, new in versions):
            opset.version = OLDEST
            model.ir_version = max(model.ir_version, 7)
