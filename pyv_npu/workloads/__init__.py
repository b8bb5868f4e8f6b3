"""Models: compiled, run at a level, compared with the ONNX reference."""
