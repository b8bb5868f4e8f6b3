"""What each operation of NPU-IR takes.

Every tensor is seen as a matrix, or as a list of matrices, that the attributes describe:

| op_type | inputs | output | attributes |
|---|---|---|---|
| GEMM_T | A, B, and `epilogue` | batch x m x n | batch, m, n, k, step0, step1, in1_nk, epilogue, activation |
| ELTWISE | 1..3 | m x n | function, m, n, broadcast (shape of the second input), low, high, scale, zero |
| LAYERNORM | x, gamma (LAYER: and beta) | m x n | function, m, n, epsilon |
| SOFTMAX, GELU | x | m x n | m, n; GELU: tanh |
| REDUCE | x | m x 1 | function, m, n |
| COPY | x | any part of a tensor | dims, from, to (steps in elements), at_in, at_out (first element) |
| GATHER | table (k x n), m indices | m x n | m, n, k |
| ROPE | x, cos, sin (m x rotary / 2 each) | m x n | m, n, heads, rotary, neighbours |

step0 and step1 are the elements from one product's A and B to the next. `epilogue` joins with + those of
`bias` (n), `bias_column` (m), `scale` (1 or n) that it has. zero0, zero1, zero_out are the zero points of integers.
Tiling adds `tile` and `buffers`, placement `spread`, prefetch `prefetch`, schedule `rank`.
"""

from typing import NamedTuple

from npu_device.abi.opcodes import Opcode


class LayerOp(NamedTuple):
    """One operation: how many tensors it reads and which attributes it has."""

    opcode: Opcode
    inputs: range
    required: tuple[str, ...]
    optional: tuple[str, ...] = ()


SCHEDULING = ("tile", "buffers", "spread", "prefetch", "rank")
"""Attributes that passes add to any layer."""

GEMM_OPTIONS = ("in1_nk", "epilogue", "activation", "zero0", "zero1", "zero_out")

LAYER_OPS = {
    "GEMM_T": LayerOp(
        Opcode.GEMM_T,
        range(2, 5),
        ("batch", "m", "n", "k", "step0", "step1"),
        GEMM_OPTIONS,
    ),
    "ELTWISE": LayerOp(
        Opcode.ELTWISE, range(1, 4), ("function", "m", "n"), ("broadcast", "low", "high", "scale", "zero")
    ),
    "LAYERNORM": LayerOp(Opcode.LAYERNORM, range(2, 4), ("function", "m", "n", "epsilon")),
    "SOFTMAX": LayerOp(Opcode.SOFTMAX, range(1, 2), ("m", "n")),
    "GELU": LayerOp(Opcode.GELU, range(1, 2), ("m", "n"), ("tanh",)),
    "REDUCE": LayerOp(Opcode.REDUCE, range(1, 2), ("function", "m", "n")),
    "COPY": LayerOp(Opcode.COPY, range(1, 2), ("dims", "from", "to"), ("at_in", "at_out")),
    "GATHER": LayerOp(Opcode.GATHER, range(2, 3), ("m", "n", "k")),
    "ROPE": LayerOp(Opcode.ROPE, range(3, 4), ("m", "n", "heads", "rotary"), ("neighbours",)),
}
