"""Product with scales per group of weight rows, as one product per group.

Groups are those of the QConfig, or blocks of codes in a model (`Graph.blocks`).
"""

from collections.abc import Sequence

import numpy as np

from npu_device.abi.opcodes import BITS, DataType
from toolchain.codegen.tiles import bytes_of
from toolchain.ir.graph import Attribute, Graph, LayerIR, TensorIR, Values
from toolchain.ir.operations import epilogue_of

TYPES = {8: DataType.INT8, 4: DataType.INT4, 2: DataType.INT2}
"""Bits of codes -> type."""


def rows_in_order(layer: LayerIR) -> bool:
    """Check whether the rows of a product are contiguous in its first operand."""
    return layer.integer("batch") == 1 or layer.integer("step0") == layer.integer("m") * layer.integer("k")


def has_blocks(graph: Graph, layer: LayerIR) -> bool:
    """Check whether a product reads weights that the model stores as codes in blocks."""
    if layer.op_type != "GEMM_T" or layer.inputs[1] not in graph.blocks or layer.integer("in1_nk"):
        return False
    blocks = graph.blocks[layer.inputs[1]]
    fits = blocks.zeros is None or not layer.integer("k") % blocks.size
    return (
        rows_in_order(layer)
        and fits
        and not layer.integer("step1")
        and graph.tensors[layer.inputs[0]].dtype is DataType.FP32
    )


def saves_traffic(graph: Graph, layer: LayerIR) -> bool:
    """Check whether codes save more DRAM traffic than writing and reading the partial sums of blocks costs, as with few
    tokens."""
    blocks, (k, n) = graph.blocks[layer.inputs[1]], (layer.integer("k"), layer.integer("n"))
    sums = layer.integer("batch") * layer.integer("m") * n * (len(blocks.scales) - 1)
    saved = bytes_of(k * n, DataType.FP32) - bytes_of(k * n, TYPES[blocks.bits])
    return 2 * bytes_of(sums, DataType.FP32) < saved


def in_blocks(graph: Graph, layer: LayerIR) -> list[LayerIR]:
    """Return the product on these codes. Nonzero zero points become a product of the block sums of activations, which
    is added first."""
    name, (k, n) = layer.inputs[1], (layer.integer("k"), layer.integer("n"))
    blocks = graph.blocks[name]
    starts = range(0, k, blocks.size)
    groups = [(blocks.codes[at : at + blocks.size], row) for at, row in zip(starts, blocks.scales, strict=True)]
    layers, first = list[LayerIR](), ""
    if blocks.zeros is not None:
        rows, count, source = layer.integer("batch") * layer.integer("m"), len(groups), layer.inputs[0]
        sums = graph.add_activation(f"{layer.id}.sums", (rows, count), DataType.FP32)
        first = graph.add_activation(f"{layer.id}.zeros", (rows, n), DataType.FP32)
        zeros = np.ascontiguousarray(-blocks.zeros * blocks.scales, np.float32)
        graph.add_weight(f"{name}.zeros", zeros, DataType.FP32)
        layers.append(LayerIR(sums, "REDUCE", (source,), (sums,),
                              {"function": "SUM", "m": rows * count, "n": k // count}))  # fmt: skip
        usual: dict[str, Attribute] = {"batch": 1, "m": rows, "n": n, "k": count, "step0": 0, "step1": 0}
        layers.append(LayerIR(first, "GEMM_T", (sums, f"{name}.zeros"), (first,), usual))
    return layers + by_groups(graph, layer, groups, blocks.size, TYPES[blocks.bits], first)


def by_groups(
    graph: Graph, layer: LayerIR, groups: Sequence[tuple[Values, Values]], size: int, kind: DataType, first: str = ""
) -> list[LayerIR]:
    """Return a product as one product per group of weight rows, (codes, scales). Each adds the result of the previous
    group; the last is the product itself. Its rows are rearranged by group. `first`: tensor added to it."""
    m, n, k, batch = (layer.integer(name) for name in ("m", "n", "k", "batch"))
    rows = batch * m
    source, out = graph.tensors[layer.inputs[0]], graph.tensors[layer.outputs[0]]
    layers = list[LayerIR]()
    if rows > 1 and len(groups) > 1:
        source = graph.tensors[graph.add_activation(f"{layer.id}.rows", (k * rows,), source.dtype)]
        for start, count in ((0, k // size), (k - k % size, 1)):
            width = size if not start else k % size
            if width:
                walk: dict[str, Attribute] = {
                    "dims": (count, rows, width), "from": (size, k, 1), "to": (size * rows, width, 1),
                    "at_in": start, "at_out": start * rows,
                }  # fmt: skip
                layers.append(LayerIR(f"{layer.id}.rows{start}", "COPY", (layer.inputs[0],), (source.id,), walk))
    parts = epilogue_of(layer)
    residual = parts.get("residual", "")
    if first and residual:
        total = graph.add_activation(f"{layer.id}.first", (rows, n), out.dtype)
        add_attributes: dict[str, Attribute] = {"function": "ADD", "m": 1, "n": rows * n, "broadcast": "FULL"}
        layers.append(LayerIR(total, "ELTWISE", (first, residual), (total,), add_attributes))
    else:
        total = first or residual
    for index, (codes, scales) in enumerate(groups):
        start, width = index * size, len(codes)
        last = index == len(groups) - 1
        name, view = f"{layer.inputs[1]}.int{BITS[kind]}.group{index}", f"{layer.id}.rows.group{index}"
        graph.add_weight(name, np.ascontiguousarray(codes), kind)
        graph.add_weight(f"{name}.scale", np.ascontiguousarray(scales), DataType.FP32)
        begin, stored = source.offset + start * rows, source.view_of or source.id
        graph.tensors[view] = TensorIR(view, source.role, (rows, width), source.dtype, stored, offset=begin)
        target = layer.outputs[0] if last else graph.add_activation(f"{layer.id}.sum{index}", (rows, n), out.dtype)
        end = {key: tensor for key, tensor in parts.items() if last and key != "residual"}
        end |= {"residual": total} if total else {}
        attributes = {**layer.attributes, "batch": 1, "m": rows, "k": width, "step0": 0, "step1": 0, "in1_nk": 0,
                      "epilogue": "+".join((*end, "scale"))}  # fmt: skip
        if not last:
            attributes.pop("activation", None)
        label = layer.id if last else f"{layer.id}.group{index}"
        layers.append(LayerIR(label, "GEMM_T", (view, name, *end.values(), f"{name}.scale"), (target,), attributes))
        total = target
    return layers
