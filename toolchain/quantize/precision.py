"""`--precision`: explicit conversion of a model to another element type.

fp32, fp16 and bf16 change the graph here: all float tensors get the type, constants are rounded once, inputs and
outputs keep theirs with a cast. int8 and fp8 quantize the model (`toolchain.quantize.post_training`).
"""

from collections.abc import Iterator
from dataclasses import replace

import ml_dtypes
import numpy as np

from npu_device.abi.opcodes import DataType
from toolchain.errors import ModelError
from toolchain.ir.data_types import NUMPY
from toolchain.ir.graph import Graph, LayerIR, TensorIR, Values

FLOAT_TYPES = {"fp32": DataType.FP32, "fp16": DataType.FP16, "bf16": DataType.BF16}
INT8 = "int8"
FP8 = {"fp8": DataType.E4M3FN, "fp8_e4m3fn": DataType.E4M3FN, "fp8_e5m2": DataType.E5M2}
CALIBRATED = {INT8: DataType.INT8, **FP8}
"""Precisions with calibrated ranges -> type of the weights."""
PRECISIONS = (*FLOAT_TYPES, *CALIBRATED)
TOLERANCE = {"fp32": 1e-5, "fp16": 2e-3, "bf16": 2e-2}
"""Maximum error against onnx.reference of the original model, relative to its largest value (docs/numerics.md)."""


def cast(graph: Graph, precision: str) -> Graph:
    """Return the graph with all floats in one type. ModelError: the model is already quantized."""
    kind = FLOAT_TYPES[precision]
    for layer in graph.layers:
        if layer.text("function") in ("QUANT", "DEQUANT") or "scale" in layer.text("epilogue"):
            raise ModelError(f"--precision {precision}: layer {layer.id} has a scale, the model is quantized: drop it")
    outside = dict.fromkeys(name for name in (*graph.inputs, *graph.outputs) if _changes(graph.tensors[name], kind))
    inside = {name: f"{name}.{precision}" for name in outside}
    result = Graph(graph.name, inputs=graph.inputs, outputs=graph.outputs)
    for name, tensor in graph.tensors.items():
        result.tensors[inside.get(name, name)] = TensorIR(
            inside.get(name, name), tensor.role, tensor.shape, kind if _changes(tensor, kind) else tensor.dtype,
            inside.get(tensor.view_of, tensor.view_of),
        )  # fmt: skip
    for name in outside:
        result.add_activation(name, graph.tensors[name].shape, graph.tensors[name].dtype)
    for name, values in graph.constants.items():
        changed = _changes(graph.tensors[name], kind)
        result.constants[inside.get(name, name)] = _round(values, kind) if changed else values
    result.layers = [
        *_casts(graph, ((name, inside[name]) for name in graph.inputs if name in inside)),
        *(_rename(layer, inside) for layer in graph.layers),
        *_casts(graph, ((inside[name], name) for name in graph.outputs if name in inside)),
    ]
    return result


def _changes(tensor: TensorIR, kind: DataType) -> bool:
    return tensor.dtype in FLOAT_TYPES.values() and tensor.dtype is not kind


def _round(values: Values, kind: DataType) -> Values:
    """Round to the type, half to even. Finite values stay finite, so large negative masks keep their effect."""
    with np.errstate(over="ignore"):
        rounded = values.astype(NUMPY[kind])
    infinite = np.isinf(rounded)
    exact = values[infinite]
    rounded[infinite] = np.where(np.isinf(exact), exact, np.copysign(float(ml_dtypes.finfo(NUMPY[kind]).max), exact))
    return rounded


def _rename(layer: LayerIR, names: dict[str, str]) -> LayerIR:
    inputs, outputs = (tuple(names.get(name, name) for name in group) for group in (layer.inputs, layer.outputs))
    return replace(layer, inputs=inputs, outputs=outputs)


def _casts(graph: Graph, pairs: Iterator[tuple[str, str]]) -> Iterator[LayerIR]:
    for source, target in pairs:
        tensor = graph.tensors.get(source) or graph.tensors[target]
        name = f"{target}.cast".replace(" ", "_").replace(":", "_")
        yield LayerIR(name, "ELTWISE", (source,), (target,), {"function": "CAST", "m": 1, "n": tensor.elements})
