"""Verifier of a graph, run around every pass."""

import math

from npu_device.abi.opcodes import DataType
from npu_device.memory.bitwidth import FULL_PRECISION, BitWidthError, check_role
from toolchain.errors import ToolchainError
from toolchain.ir.graph import DRAM, SPM, Graph, LayerIR, Role, TensorIR
from toolchain.ir.operations import (
    CACHING,
    IMAGES,
    LAYER_OPS,
    PITCHED,
    PRODUCTS,
    append_operands,
    epilogue_of,
    violation,
    windows_of,
)


class IrError(ToolchainError):
    """Violation of a rule of NPU-IR, by a pass or by parsed text. Code, field and value: docs/bit-widths.md, R25."""

    def __init__(self, text: str, code: str = "E_IR", field: str = "", value: object = None) -> None:
        self.code, self.field, self.value = code, field, value
        super().__init__(text)


def verify(graph: Graph) -> None:
    """Raise IrError for a violated rule, with the layer or tensor."""
    for tensor in graph.tensors.values():
        if tensor.view_of:
            base = graph.tensors.get(tensor.view_of)
            if base is None or base.view_of:
                raise IrError(f"tensor {tensor.id}: is a view of {tensor.view_of}, which must be a stored tensor")
            if tensor.offset < 0 or tensor.offset + tensor.extent > base.elements or base.dtype is not tensor.dtype:
                raise IrError(f"tensor {tensor.id}: a view has elements of {base.id}, of the same type")
            if tensor.pitch and tensor.pitch < tensor.shape[-1]:
                raise IrError(f"tensor {tensor.id}: rows of {tensor.shape[-1]} elements overlap, {tensor.pitch} apart")
        elif tensor.offset or tensor.pitch:
            raise IrError(f"tensor {tensor.id}: offset and pitch are for views")
        if tensor.storage_class not in (DRAM, SPM):
            raise IrError(f"tensor {tensor.id}: storage_class {tensor.storage_class}: must be {DRAM} or {SPM}")
        _widths(tensor)
    for name, values in graph.constants.items():
        if name not in graph.tensors or values.shape != graph.tensors[name].shape:
            raise IrError(f"constant {name}: values of shape {values.shape} need a tensor of that shape")
    _order(graph)
    for layer in graph.layers:
        _layer(graph, layer)


def _widths(tensor: TensorIR) -> None:
    """Check that a role allows the width, unless it is full precision, and that caches are in DRAM (docs/bit-widths.md,
    R10 and R12)."""
    if tensor.role is Role.KV and tensor.storage_class != DRAM:
        rule = f"tensor {tensor.id}: storage_class {tensor.storage_class}: keys and values lie in {DRAM}"
        raise IrError(rule, "E_STORAGE", "storage_class", tensor.storage_class)
    if tensor.qbits == FULL_PRECISION or tensor.dtype is DataType.VQ8:
        return
    try:
        check_role(tensor.role, tensor.qbits)
    except BitWidthError as error:
        raise IrError(f"tensor {tensor.id}: {error}", error.code, "qbits", tensor.qbits) from None


def _order(graph: Graph) -> None:
    defined = {graph.storage(name) for name in graph.inputs} | set(graph.constants)
    roles = (Role.WEIGHT, Role.KV)
    defined |= {tensor.id for tensor in graph.tensors.values() if tensor.role in roles and not tensor.view_of}
    layer_ids: set[str] = set()
    for layer in graph.layers:
        if layer.id in layer_ids:
            raise IrError(f"layer {layer.id}: appears twice")
        layer_ids.add(layer.id)
        for name in (*layer.inputs, *layer.outputs):
            if name not in graph.tensors:
                raise IrError(f"layer {layer.id}: no tensor {name}")
        for name in layer.inputs:
            if graph.storage(name) not in defined:
                raise IrError(f"layer {layer.id}: reads {name} before any layer has written it")
        for name in layer.outputs:
            if graph.storage(name) in graph.constants:
                raise IrError(f"layer {layer.id}: writes {name}, which is constant")
            defined.add(graph.storage(name))
    for name in graph.outputs:
        if name not in graph.tensors or graph.storage(name) not in defined:
            raise IrError(f"output {name}: no layer writes it")


def _layer(graph: Graph, layer: LayerIR) -> None:
    if layer.op_type not in LAYER_OPS:
        raise IrError(f"layer {layer.id}: no operation {layer.op_type}; there are {', '.join(LAYER_OPS)}")
    if rule := violation(layer.op_type, len(layer.inputs), len(layer.outputs), layer.attributes):
        raise IrError(f"layer {layer.id}: {layer.op_type} {rule}")
    if any(graph.tensors[name].pitch for name in (*layer.inputs, *layer.outputs)):
        _pitches(graph, layer)
    _shape(graph, layer)


def _pitches(graph: Graph, layer: LayerIR) -> None:
    """Check that only operands that support a row pitch have one."""
    ends = {"in0": layer.inputs[0], "in1": layer.inputs[1] if len(layer.inputs) > 1 else "", "out": layer.outputs[0]}
    ends |= dict(zip(("new0", "new1"), append_operands(layer), strict=False))
    if layer.op_type in PRODUCTS and epilogue_of(layer).get("residual"):
        ends["residual"] = epilogue_of(layer)["residual"]
        if graph.tensors[ends["residual"]].pitch != graph.tensors[ends["out"]].pitch:
            raise IrError(f"layer {layer.id}: the rows of {ends['residual']} must lie as those of {ends['out']}")
    allowed = {ends[operand] for operand in PITCHED.get(layer.op_type, ()) if operand in ends}
    for name in (*layer.inputs, *layer.outputs):
        if graph.tensors[name].pitch and name not in allowed:
            raise IrError(f"layer {layer.id}: the rows of {name} must follow each other for {layer.op_type}")


def _shape(graph: Graph, layer: LayerIR) -> None:
    out = graph.tensors[layer.outputs[0]]
    if layer.op_type == "COPY":
        dims = layer.integers("dims")
        if not len(dims) == len(layer.integers("from")) == len(layer.integers("to")):
            raise IrError(f"layer {layer.id}: dims, from and to must be equally long")
        for name, at, steps in (
            (layer.inputs[0], layer.integer("at_in"), layer.integers("from")),
            (out.id, layer.integer("at_out"), layer.integers("to")),
        ):
            low = at + sum(min(0, (d - 1) * s) for d, s in zip(dims, steps, strict=True))
            high = at + sum(max(0, (d - 1) * s) for d, s in zip(dims, steps, strict=True))
            if math.prod(dims) and not 0 <= low <= high < graph.tensors[name].elements:
                raise IrError(f"layer {layer.id}: elements {low}..{high} are not in tensor {name}")
        return
    if layer.op_type in IMAGES:
        rows, columns = windows_of(layer).pixels, layer.integer("cout" if layer.op_type == "CONV2D_T" else "channels")
    else:
        rows, columns = layer.integer("batch", 1) * layer.integer("m"), layer.integer("n")
    if layer.op_type == "REDUCE":
        columns = layer.integer("k", 1)
    if layer.op_type in CACHING or append_operands(layer):
        _caches(graph, layer)
    if layer.op_type in CACHING:
        rows = layer.integer("batch", 1) * layer.integer("t_max")
    if rows * columns != out.elements:
        raise IrError(f"layer {layer.id}: {rows} x {columns} elements, output {out.id} has {out.elements}")


def _caches(graph: Graph, layer: LayerIR) -> None:
    """Check that each cache is [B, H, T_max, D] in DRAM, and that new rows have its heads (docs/bit-widths.md, R11 to
    R13)."""
    attends = layer.op_type == "ATTN_T"
    caches = layer.outputs[1:] if attends else layer.outputs
    new = append_operands(layer) if attends else layer.inputs[: len(caches)]
    heads, batch = layer.integer("kv_heads" if attends else "heads"), layer.integer("batch", 1)
    size = layer.integer("n") // layer.integer("heads")
    shape = (batch, heads, layer.integer("t_max"), size)
    for name, row in zip(caches, new, strict=True):
        cache, rows = graph.tensors[name], graph.tensors[row]
        if cache.role is not Role.KV or cache.storage_class != DRAM:
            raise IrError(
                f"layer {layer.id}: appends to {name}, role {cache.role} in {cache.storage_class}: a cache has role "
                f"{Role.KV} and lies in {DRAM}"
            )
        if cache.shape != shape:
            raise IrError(f"layer {layer.id}: {name} has shape {list(cache.shape)}: must be {list(shape)}")
        if rows.elements != batch * layer.integer("m") * heads * size:
            raise IrError(
                f"layer {layer.id}: {row} has {rows.elements} elements: {layer.integer('m')} tokens of {heads} heads "
                f"of {size} are {batch * layer.integer('m') * heads * size}"
            )
        if layer.integer("qbits_kv", cache.qbits) != cache.qbits:
            raise IrError(f"layer {layer.id}: qbits_kv {layer.integer('qbits_kv')}: {name} has {cache.qbits} bits")
