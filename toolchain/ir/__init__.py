"""NPU-IR: tensors and layers between the model and the commands (docs/model-flow.md, "NPU-IR")."""
