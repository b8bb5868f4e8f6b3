"""Products: MatMul and Gemm."""

import math
from collections.abc import Sequence

import numpy as np

from toolchain.ir.data_types import FLOATS
from toolchain.ir.graph import Attribute, TensorIR
from toolchain.onnx_model.node import Node
from toolchain.onnx_operators.copies import broadcast_tensor, transpose_tensor
from toolchain.onnx_operators.elementwise import apply


def product(
    node: Node, factors: Sequence[TensorIR], out: TensorIR, mnk: tuple[int, int, int], **attributes: Attribute
) -> None:
    """Emit a GEMM_T layer of A, B and the operands of its epilogue."""
    m, n, k = mnk
    usual: dict[str, Attribute] = {"batch": 1, "m": m, "n": n, "k": k, "step0": 0, "step1": 0}
    node.layer("GEMM_T", factors, out, **{**usual, **attributes})


def _same_type(node: Node, *tensors: TensorIR) -> None:
    kinds = {tensor.dtype for tensor in tensors}
    if len(kinds) > 1:
        node.refuse(f"operands of types {', '.join(sorted(kind.name for kind in kinds))}; all must have one type")


def matmul(node: Node) -> None:
    """Emit an N-D product: leading dimensions form a batch; an operand without them is shared."""
    a, b, out = node.tensor(0), node.tensor(1), node.output()
    _same_type(node, a, b)
    product_list(node, a, b, out)


def product_list(node: Node, a: TensorIR, b: TensorIR, out: TensorIR, *more: TensorIR, **attributes: Attribute) -> None:
    """Emit a product over the last two dimensions; `more` and `attributes` belong to the epilogue."""
    shape_a = a.shape if len(a.shape) > 1 else (1, *a.shape)
    shape_b = b.shape if len(b.shape) > 1 else (*b.shape, 1)
    (m, k), n = shape_a[-2:], shape_b[-1]
    lead = np.broadcast_shapes(shape_a[:-2], shape_b[:-2])
    count_a, count_b, batch = (math.prod(shape) for shape in (shape_a[:-2], shape_b[:-2], lead))
    if count_b == 1:
        product(node, [a, b, *more], out, (count_a * m, n, k), **attributes)
        return
    if count_a not in (1, batch):
        a = broadcast_tensor(node, a, (*lead, m, k))
    if count_b != batch:
        b = broadcast_tensor(node, b, (*lead, k, n))
    step0 = 0 if count_a == 1 else m * k
    product(node, [a, b, *more], out, (m, n, k), batch=batch, step0=step0, step1=k * n, **attributes)


def gemm(node: Node) -> None:
    """Emit alpha A' B' + beta C."""
    a, b = node.tensor(0), node.tensor(1)
    _same_type(node, a, b)
    out = node.output()
    if out.dtype not in FLOATS:
        node.refuse(f"data type {out.dtype.name} is not supported")
    alpha, beta = float(node.attribute("alpha", 1.0)), float(node.attribute("beta", 1.0))
    if node.attribute("transA", 0):
        a = transpose_tensor(node, a, (1, 0))
    nk = bool(node.attribute("transB", 0))
    (m, k), n = a.shape, b.shape[0] if nk else b.shape[1]
    added = node.has(2) and beta != 0
    total = out if alpha == 1 and not added else node.temporary(out.shape, out.dtype)
    scaled = node.temporary(out.shape, out.dtype) if alpha != 1 and added else out
    product(node, [a, b], total, (m, n, k), in1_nk=int(nk))
    if alpha != 1:
        total = apply(node, "MUL", total, node.scalar(alpha, out.dtype), scaled)
    if added:
        c = node.tensor(2)
        addend = c if beta == 1 else apply(node, "MUL", c, node.scalar(beta, c.dtype), node.temporary(c.shape, c.dtype))
        apply(node, "ADD", total, addend, out)
