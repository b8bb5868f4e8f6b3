"""Kernels of operations: pure functions of numpy arrays, the same at every level of timing."""
