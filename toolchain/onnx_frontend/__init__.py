"""ONNX models to NPU-IR (docs/model-flow.md, "ONNX")."""

from toolchain.onnx_frontend.importer import import_model
from toolchain.onnx_model.model import OnnxModel, load_model

__all__ = ["OnnxModel", "import_model", "load_model"]
