"""Operations of NPU-IR.

The attributes describe every tensor as a matrix, or as a batch of matrices:

| op_type | inputs | output | attributes |
|---|---|---|---|
| GEMM_T | A, B, and `epilogue` | batch x m x n | batch, m, n, k, step0, step1, in1_nk, epilogue, activation |
| ELTWISE | 1..3 | m x n | function, m, n, broadcast (shape of the second input), low, high, scale, zero |
| LAYERNORM | x, gamma (LAYER: and beta) | m x n | function, m, n, epsilon |
| SOFTMAX, GELU | x | m x n | m, n; GELU: tanh |
| REDUCE | x: m x n x k | m x k | function, m, n, k (1) |
| CONV2D_T | image, weights, and `epilogue` | image | windows, cin, cout, groups, epilogue, activation |
| POOL | image | image | function, windows, channels, count_pads |
| COPY | x | any part of a tensor | dims, from, to (steps in elements), at_in, at_out (first element) |
| GATHER | table (k x n), m indices | m x n | m, n, k |
| KV_UPDATE | new keys, new values if any, position, and scales of integers (of each) | caches of keys and values |
m tokens, n, heads, t_max, qbits_kv, kv_layer (of the decoder), batch |
| KV_APPEND | x, position | rows of a log [1, heads, t_max, n / heads] | m tokens, n, heads, t_max |
| ATTN_T | q, keys, values, position, scale of integers | m x n | m, n, heads, kv_heads, t_max, scale, window, softcap |
| ATTN_T | the same, then new keys, new values | m x n, caches of keys and values | the same, append, kv_layer |
| ATTN_T | q, keys, values | batch x m x n | the same, batch, keys, causal; t_max 0: a row per key with all heads |
| CORE | 1..2 tensors | m x n, number of rows, and scratch memory | kernel (a `Kernel`), m, n, words of the kernel |
| ROPE | x, cos, sin (m x rotary / 2 each) | m x n | m, n, heads, rotary, neighbours |
| ROPE | x, cos, sin (t_max x rotary / 2 each), position | batch x m x n | the same, t_max, batch |

step0 and step1 are the distances between consecutive products in A and B, elements. `epilogue` joins the names of
present operands with +, in the order of their tensors: `bias` (n), `bias_column` (m), `residual` (m x n), `scale`
(1 or n). zero0, zero1, zero_in2, zero_out are zero points of integers. A product with B of type VQ8 has the number
`codebooks`, and as its last input the tensor of their vectors. Images are batch x h x w x channels, weights of CONV2D_T
kh x kw x cin / groups x cout; windows are the fields of `npu_device.operations.windows.Windows`: batch, h, w, kh, kw,
strides, dilations, pads at top, left, bottom, right.
Tiling adds `tile`, `buffers` and, to products, `loop_order` and `block` (M, N and K of a block of the loops);
placement adds `spread`, prefetch `prefetch`, schedule `rank`; engines adds `engines`, the maximum for a layer;
clusters adds `cluster`, that of a part, and `clusters`, the number of parts that run in parallel.
"""

from collections.abc import Collection
from typing import NamedTuple

from npu_device.abi.opcodes import Opcode
from npu_device.operations.windows import Windows
from toolchain.ir.graph import Graph, LayerIR


class LayerOp(NamedTuple):
    """Operation: opcode, allowed numbers of inputs and outputs, and attributes."""

    opcode: Opcode
    inputs: range
    required: tuple[str, ...]
    optional: tuple[str, ...] = ()
    outputs: tuple[int, ...] = (1,)


SCHEDULING = ("phase", "cluster", "clusters", "tile", "buffers", "spread", "prefetch", "engines", "turn", "rank")
"""Attributes of any layer: `phase`, for graphs of several consecutive phases, and those that passes add. A layer with
`buffers` on entry uses that share of the scratchpad, selected by `turn`."""

FINISH = ("epilogue", "activation", "zero0", "zero1", "zero_in2", "zero_out", "codebooks", "loop_order", "block")
"""Attributes of products: the epilogue of the sum, codebooks of B, and loop order."""
PRODUCTS = ("GEMM_T", "CONV2D_T")
IMAGES = ("CONV2D_T", "POOL")
CACHING = ("KV_APPEND", "KV_UPDATE")

LAYER_OPS = {
    "GEMM_T": LayerOp(
        Opcode.GEMM_T,
        range(2, 7),
        ("batch", "m", "n", "k", "step0", "step1"),
        ("in1_nk", *FINISH),
    ),
    "ELTWISE": LayerOp(
        Opcode.ELTWISE, range(1, 4), ("function", "m", "n"), ("broadcast", "low", "high", "scale", "zero")
    ),
    "LAYERNORM": LayerOp(Opcode.LAYERNORM, range(2, 4), ("function", "m", "n", "epsilon")),
    "SOFTMAX": LayerOp(Opcode.SOFTMAX, range(1, 2), ("m", "n")),
    "GELU": LayerOp(Opcode.GELU, range(1, 2), ("m", "n"), ("tanh",)),
    "CONV2D_T": LayerOp(Opcode.CONV2D_T, range(2, 7), (*Windows._fields, "cin", "cout", "groups"), FINISH),
    "POOL": LayerOp(Opcode.POOL, range(1, 2), ("function", *Windows._fields, "channels"), ("count_pads",)),
    "REDUCE": LayerOp(Opcode.REDUCE, range(1, 2), ("function", "m", "n"), ("k",)),
    "COPY": LayerOp(Opcode.COPY, range(1, 2), ("dims", "from", "to"), ("at_in", "at_out")),
    "GATHER": LayerOp(Opcode.GATHER, range(2, 3), ("m", "n", "k")),
    "KV_UPDATE": LayerOp(
        Opcode.KV_APPEND, range(2, 6), ("m", "n", "heads", "t_max", "qbits_kv", "kv_layer"), ("batch",), outputs=(1, 2)
    ),
    "KV_APPEND": LayerOp(Opcode.KV_APPEND, range(2, 3), ("m", "n", "heads", "t_max")),
    "ATTN_T": LayerOp(
        Opcode.ATTN_T,
        range(3, 9),
        ("m", "n", "heads", "kv_heads", "t_max", "scale"),
        ("window", "zero1", "zero2", "batch", "keys", "causal", "append", "kv_layer", "qbits_kv", "tiles", "softcap"),
        outputs=(1, 3),
    ),
    "CORE": LayerOp(Opcode.CORE, range(1, 3), ("kernel", "m", "n", "words"), outputs=(2, 3)),
    "ROPE": LayerOp(Opcode.ROPE, range(3, 5), ("m", "n", "heads", "rotary"), ("neighbours", "t_max", "batch")),
}
PITCHED = {
    "ATTN_T": ("in0", "out", "new0", "new1"), "KV_APPEND": ("in0",), "KV_UPDATE": ("in0", "in1"),
    "LAYERNORM": ("in0",), "ROPE": ("in0", "out"),
    "GEMM_T": ("in1", "out", "residual"), "CONV2D_T": ("out", "residual"),
}  # fmt: skip
"""Operands that may have a row pitch."""
ATTRIBUTES = {name: dict.fromkeys((*op.required, *op.optional, *SCHEDULING)) for name, op in LAYER_OPS.items()}
"""Operation -> names of its attributes, in order."""


def violation(op_type: str, inputs: int, outputs: int, attributes: Collection[str]) -> str:
    """Return the rule that numbers of operands or names of attributes of a layer violate; empty for none."""
    op, names = LAYER_OPS[op_type], ATTRIBUTES[op_type]
    if inputs not in op.inputs:
        return f"takes {op.inputs.start}..{op.inputs.stop - 1} inputs, got {inputs}"
    if outputs not in op.outputs:
        return f"has {' or '.join(map(str, op.outputs))} outputs, got {outputs}"
    for name in op.required:
        if name not in attributes:
            return f"needs attribute {name}"
    unknown = next((name for name in attributes if name not in names), None)
    return "" if unknown is None else f"has no attribute {unknown}; it has {', '.join(names)}"


def epilogue_of(layer: LayerIR) -> dict[str, str]:
    """Map each step of a product's epilogue to its tensor."""
    steps = list(filter(None, layer.text("epilogue").split("+")))
    return dict(zip(steps, layer.inputs[2 : 2 + len(steps)], strict=True))


def has_factors(layer: LayerIR) -> bool:
    """Check whether a product has codebooks, zero points or scales."""
    scaled = "scale" in layer.text("epilogue") or bool(layer.integer("codebooks"))
    return scaled or "zero0" in layer.attributes or "zero1" in layer.attributes


def windows_of(layer: LayerIR) -> Windows:
    """Return the windows of a CONV2D_T or POOL."""
    lookup = layer.attributes.get
    return Windows(*[lookup(name, 0) for name in Windows._fields])  # type: ignore[arg-type]


def append_operands(layer: LayerIR) -> tuple[str, ...]:
    """Return the new keys and values that an ATTN_T itself appends (docs/bit-widths.md, R23); empty for none."""
    return layer.inputs[-2:] if layer.integer("append") else ()


def on_core(graph: Graph) -> set[str]:
    """Return the stored tensors that the core reads or writes."""
    layers = [layer for layer in graph.layers if layer.op_type == "CORE"]
    return {graph.storage(name) for layer in layers for name in (*layer.inputs, *layer.outputs)}


def keys_of(layer: LayerIR) -> int:
    """Return the maximum number of keys of an ATTN_T: those of a tensor, or the capacity of a cache."""
    return layer.integer("keys") or layer.integer("t_max")


def matrix_of(layer: LayerIR) -> tuple[int, int, int]:
    """Return (M, N, K) of one product of the batch or of one group (docs/npu-timing.md, "Closed forms", F9)."""
    if layer.op_type == "GEMM_T":
        return layer.integer("m"), layer.integer("n"), layer.integer("k")
    shape = windows_of(layer)
    return shape.pixels, filters_of(layer), shape.kh * shape.kw * channels_of(layer)


def filters_of(layer: LayerIR) -> int:
    """Return the number of filters in a group of a CONV2D_T."""
    return layer.integer("cout") // layer.integer("groups")


def channels_of(layer: LayerIR) -> int:
    """Return the image channels that one filter of a CONV2D_T reads: those of its group."""
    return layer.integer("cin") // layer.integer("groups")


def macs(layer: LayerIR) -> int:
    """Return the number of multiplications of a product."""
    m, n, k = matrix_of(layer)
    return layer.integer("batch" if layer.op_type == "GEMM_T" else "groups") * m * n * k
