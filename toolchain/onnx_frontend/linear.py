"""Products: MatMul, Gemm, Conv (as a product with the patches of its input)."""

import math

import numpy as np

from npu_device.abi.opcodes import DataType
from toolchain.data_types import FLOATS
from toolchain.ir.graph import TensorIR
from toolchain.onnx_frontend.copies import expanded, transposed
from toolchain.onnx_frontend.elementwise import apply
from toolchain.onnx_frontend.node import Node
from toolchain.onnx_frontend.windows import Windows, patches, windows


def product(
    node: Node, a: TensorIR, b: TensorIR, out: TensorIR, mnk: tuple[int, int, int], *, batch: int = 1,
    step0: int = 0, step1: int = 0, nk: bool = False,
) -> None:  # fmt: skip
    """A GEMM_T layer; the steps are in elements."""
    m, n, k = mnk
    node.layer("GEMM_T", [a, b], out, batch=batch, m=m, n=n, k=k, step0=step0, step1=step1, in1_nk=int(nk))


def _same_type(node: Node, *tensors: TensorIR) -> None:
    kinds = {tensor.dtype for tensor in tensors}
    if len(kinds) > 1:
        node.refuse(f"operands of types {', '.join(sorted(kind.name for kind in kinds))}; all must have one type")


def matmul(node: Node) -> None:
    """N-D product: leading dimensions are a list of products; a factor without them is shared by all."""
    a, b, out = node.tensor(0), node.tensor(1), node.output()
    _same_type(node, a, b)
    _matmul(node, a, b, out)


def _matmul(node: Node, a: TensorIR, b: TensorIR, out: TensorIR) -> None:
    shape_a = a.shape if len(a.shape) > 1 else (1, *a.shape)
    shape_b = b.shape if len(b.shape) > 1 else (*b.shape, 1)
    (m, k), n = shape_a[-2:], shape_b[-1]
    lead = np.broadcast_shapes(shape_a[:-2], shape_b[:-2])
    count_a, count_b, batch = (math.prod(shape) for shape in (shape_a[:-2], shape_b[:-2], lead))
    if count_b == 1:
        product(node, a, b, out, (count_a * m, n, k))
        return
    if count_a not in (1, batch):
        a = expanded(node, a, (*lead, m, k))
    if count_b != batch:
        b = expanded(node, b, (*lead, k, n))
    product(node, a, b, out, (m, n, k), batch=batch, step0=0 if count_a == 1 else m * k, step1=k * n)


def matmul_integer(node: Node) -> None:
    """Products of integers, exact in int32; zero points must be 0."""
    for index in (2, 3):
        if node.has(index) and np.any(node.needed(index, "zero point")):
            node.refuse(f"zero point {node.proto.input[index]}: supported is 0")
    _matmul(node, node.tensor(0), node.tensor(1), node.output())


def gemm(node: Node) -> None:
    """alpha A' B' + beta C."""
    a, b = node.tensor(0), node.tensor(1)
    _same_type(node, a, b)
    out = node.output()
    if out.dtype not in FLOATS:
        node.refuse(f"data type {out.dtype.name} is not supported")
    alpha, beta = float(node.attribute("alpha", 1.0)), float(node.attribute("beta", 1.0))
    if node.attribute("transA", 0):
        a = transposed(node, a, (1, 0))
    nk = bool(node.attribute("transB", 0))
    (m, k), n = a.shape, b.shape[0] if nk else b.shape[1]
    added = node.has(2) and beta != 0
    parts = 1 + (alpha != 1) + added
    targets = [node.temporary(out.shape, out.dtype) for _ in range(parts - 1)] + [out]
    total = targets.pop(0)
    product(node, a, b, total, (m, n, k), nk=nk)
    if alpha != 1:
        scaled = targets.pop(0)
        apply(node, "MUL", total, node.scalar(alpha, out.dtype), scaled)
        total = scaled
    if added:
        c = node.tensor(2)
        if beta != 1:
            more = node.temporary(c.shape, c.dtype)
            apply(node, "MUL", c, node.scalar(beta, c.dtype), more)
            c = more
        apply(node, "ADD", total, c, targets.pop(0))


def convolution(node: Node) -> None:
    """Per image and group: weights (cout x cin kh kw) times patches (cin kh kw x oh ow): the result is NCHW."""
    x, w, out = node.tensor(0), node.tensor(1), node.output()
    _same_type(node, x, w)
    if out.dtype not in FLOATS:
        node.refuse(f"data type {out.dtype.name} is not supported")
    groups = int(node.attribute("group", 1))
    shape = windows(node, x.shape, w.shape[2:], out.shape[2:])
    biased = node.has(2)
    total = node.temporary(out.shape, out.dtype) if biased else out
    _convolve(node, x, w, total, shape, groups)
    if biased:
        bias = node.tensor(2)
        spatial = (1,) * (len(out.shape) - 2)
        apply(node, "ADD", total, node.view(bias, (*bias.shape, *spatial)), out)


def convolution_integer(node: Node) -> None:
    """A convolution of integers, exact in int32; zero points must be 0."""
    for index in (2, 3):
        if node.has(index) and np.any(node.needed(index, "zero point")):
            node.refuse(f"zero point {node.proto.input[index]}: supported is 0")
    x, w, out = node.tensor(0), node.tensor(1), node.output(kind=DataType.INT32)
    shape = windows(node, x.shape, w.shape[2:], out.shape[2:])
    _convolve(node, x, w, out, shape, int(node.attribute("group", 1)))


def _convolve(node: Node, x: TensorIR, w: TensorIR, out: TensorIR, shape: Windows, groups: int) -> None:
    batch, cin = x.shape[:2]
    cout = w.shape[0]
    m, k, n = cout // groups, cin // groups * math.prod(shape.kernel), math.prod(shape.output)
    columns = patches(node, x, shape, windows_last=True)
    if groups == 1:
        product(node, w, columns, out, (m, n, k), batch=batch, step1=k * n)
        return
    if batch > 1:
        w = expanded(node, w, (batch, *w.shape))
    product(node, w, columns, out, (m, n, k), batch=batch * groups, step0=m * k, step1=k * n)
