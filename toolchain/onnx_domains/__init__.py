"""Operators of domains other than ONNX's own, and their decomposition into ONNX operators."""
