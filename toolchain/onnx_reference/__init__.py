"""Corrected operators of onnx.reference, for those that contradict ONNX's definition."""
