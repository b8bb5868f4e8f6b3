"""NPU-IR module as a model: its layers are given, and numpy is its reference."""

from typing import Any

from onnx import helper

from toolchain.errors import ModelError
from toolchain.ir.data_types import NUMPY, ONNX
from toolchain.ir.graph import Graph
from toolchain.ir.operations import CACHING
from toolchain.onnx_model.model import OnnxModel

OPSET = 20


def check_alone(graph: Graph, name: str) -> None:
    """Raise ModelError for a graph with layers that use caches, since its runs depend on each other."""
    for layer in graph.layers:
        if layer.op_type in CACHING or layer.integer("append") or (layer.op_type == "ATTN_T" and len(layer.inputs) > 3):
            raise ModelError(
                f"{name}: layer {layer.id} uses a cache of keys and values: run it with --generate and --prompt"
            )


def model_of(graph: Graph, name: str) -> OnnxModel:
    """Return a model without nodes, with the inputs, outputs and layers of a graph."""
    kinds = {data: kind for kind, data in reversed(ONNX.items())}

    def values(names: tuple[str, ...]) -> list[Any]:
        infos: list[Any] = []
        for name in names:
            tensor = graph.tensors[name]
            code = helper.np_dtype_to_tensor_dtype(NUMPY[tensor.dtype])
            assert tensor.dtype in kinds
            infos.append(helper.make_tensor_value_info(name, code, tensor.shape))
        return infos

    proto = helper.make_model(
        helper.make_graph([], graph.name or "graph", values(graph.inputs), values(graph.outputs)),
        opset_imports=[helper.make_opsetid("", OPSET)],
    )
    model = OnnxModel(proto, name)
    model.layers = graph
    return model
