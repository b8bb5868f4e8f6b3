"""MLIR: modules as models, the dialect `npu`, and code for the four instructions (docs/mlir.md)."""
