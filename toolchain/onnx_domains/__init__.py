"""Operators of domains beside ONNX's own, and what of ONNX they become."""
