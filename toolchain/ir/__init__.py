"""NPU-IR: tensors and layers between the model and the commands (docs/model-flow.md, "NPU-IR")."""

from toolchain.ir.graph import Attribute, Graph, LayerIR, Role, TensorIR

__all__ = ["Attribute", "Graph", "LayerIR", "Role", "TensorIR"]
