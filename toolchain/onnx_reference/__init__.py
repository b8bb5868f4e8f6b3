"""Corrected operators of onnx.reference, for those that contradict ONNX's definition."""

from onnx.reference.op_run import OpRun


class Operator(OpRun):
    """Implementation of an operator of ONNX's own domain."""

    op_domain = ""
