"""Operators of onnx.reference, corrected where they disagree with ONNX's definition."""
