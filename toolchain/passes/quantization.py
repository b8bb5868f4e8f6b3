"""Quantization of constant weights to the widths of the QConfig.

Float weights become symmetric codes with one scale per output channel. Activations stay floats, and the epilogue scales
the product of floats and codes (docs/descriptor.md, "Extended block"). Weights of an integer product
(`toolchain.quantize.post_training`) keep their codes in the narrower type.

With the width `vq`, float weights become vector codes and codebooks (docs/quantization.md, "Vector quantization").
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from npu_device.abi.opcodes import BITS, VQ_ENTRIES, VQ_EXPANDED, VQ_VECTOR, DataType
from npu_device.memory.bitwidth import tensor_bytes
from toolchain.codegen.commands import Target
from toolchain.errors import ModelError, RuleError
from toolchain.ir.graph import Graph, LayerIR, TensorIR, Values
from toolchain.ir.operations import PRODUCTS
from toolchain.ir.reference import ReferenceExecution
from toolchain.passes.weight_groups import (
    TYPES,
    by_groups,
    has_blocks,
    in_blocks,
    rows_in_order,
    saves_traffic,
)
from toolchain.quantize.codebook import VQ_BITS, encode_matrix
from toolchain.quantize.gptq import gptq
from toolchain.quantize.qconfig import GPTQ, NEAREST, QConfig
from toolchain.quantize.scales import least_squares_scales

CODES = (DataType.INT8, DataType.UINT8)
FLOAT = (DataType.FP32, DataType.FP16, DataType.BF16)


def run(graph: Graph, target: Target) -> Graph:
    """Apply weight widths and alignments of `target.qconfig`. ModelError: it names a missing layer, or contradicts the
    scratchpad."""
    config = target.qconfig
    _check_device(config, target)
    graph = graph.copy()
    numbers = _numbers(graph)
    if not numbers and (config.weight_bits(0) is not None or config.overrides("weight")):
        raise ModelError("QConfig: the model has no product with constant weights to quantize: leave weights out")
    moments = _moments(graph, numbers, target) if config.rounding == GPTQ else {}
    pieces = {
        index: in_blocks(graph, layer) for index, layer in enumerate(graph.layers)
        if has_blocks(graph, layer) and saves_traffic(graph, layer)
    }  # fmt: skip
    for index, number in numbers.items():
        bits, layer = config.weight_bits(number), graph.layers[index]
        if bits == VQ_BITS:
            graph.layers[index] = _in_vectors(graph, layer, number, config)
        elif bits is not None and _split(layer, bits, config):
            if number in config.overrides("weight"):
                raise ModelError(
                    f"QConfig layer_{number}.weight: {bits} bits: {layer.integer('cout') // layer.integer('groups')} "
                    f"filters of a group of {layer.id} end inside a byte: override.layer_{number}.weight: 8"
                )
        elif bits is not None and graph.tensors[layer.inputs[1]].dtype in FLOAT and _has_groups(layer, config):
            pieces[index] = _in_groups(graph, layer, bits, config, moments.get(index))
        elif bits is not None and graph.tensors[layer.inputs[1]].dtype in FLOAT:
            graph.layers[index] = _quantize(graph, layer, bits, config, moments.get(index))
        elif bits is not None:
            graph.layers[index] = _narrow(graph, layer, number, bits, config)
    config.check_overrides("weight", max(numbers.values(), default=-1) + 1)
    graph.layers = [piece for at, layer in enumerate(graph.layers) for piece in pieces.get(at, [layer])]
    graph = graph.dropped_unused()
    for name, tensor in graph.tensors.items():
        _check_rows(tensor, config)
        alignment = config.alignment_of(tensor.role)
        if alignment is not None:
            graph.tensors[name] = replace(tensor, alignment=alignment)
    return graph


def _check_rows(tensor: TensorIR, config: QConfig) -> None:
    """Check the promise of `packing.mode: logical`: tensors have no padding bits (docs/bit-widths.md, R3)."""
    size = tensor_bytes(tensor.shape, tensor.qbits)
    if config.packing == "logical" and not tensor.view_of and tensor.size != size:
        rule = (
            f"tensor {tensor.id} has {size} bytes, but its rows of {tensor.shape[-1]} x {tensor.qbits} bits begin at "
            f"bytes on the device, {tensor.size} in all: packing.mode: packed_rows"
        )
        raise _violation("E_PACK", "packing.mode", "logical", rule)


def _numbers(graph: Graph) -> dict[int, int]:
    """Map the layer index of each quantizable product to its product index. The phases of a model contain the same
    products."""
    indices: dict[int, int] = {}
    numbers = Counter[int]()
    for index, layer in enumerate(graph.layers):
        if _quantizable(graph, layer) and not has_blocks(graph, layer):
            indices[index] = numbers[layer.integer("phase")]
            numbers[layer.integer("phase")] += 1
    return indices


def _split(layer: LayerIR, bits: int, config: QConfig) -> bool:
    """Check whether the weights of a group would end inside a byte, as in a depthwise convolution. The device does not
    support that, so these weights keep their width."""
    groups = layer.integer("groups", 1)
    return groups > 1 and config.packing != "unpacked_byte" and bool(layer.integer("cout") // groups * bits % 8)


def _check_device(config: QConfig, target: Target) -> None:
    for role, size in config.alignment.items():
        if size > target.most_aligned:
            limit = f"at most {target.most_aligned} bytes, the least of npu.dram.interleave and npu.l2.line"
            key = f"alignment.{role}_alignment_bytes"
            raise _violation("E_ALIGN", key, size, f"accesses of the device have {limit}")
    device = {"bank_size_bytes": target.bank_bytes, "num_banks": target.banks}
    for name, value in config.spm.items():
        if value != device[name]:
            remedy = "leave it out, or set npu.spm.size and npu.spm.banks"
            raise _violation("E_BANK", f"spm.{name}", value, f"the device has {device[name]}; {remedy}")


def _violation(code: str, key: str, value: object, rule: str) -> RuleError:
    return RuleError(code, key, value, f"QConfig {key} {value}: {rule}")


def _quantizable(graph: Graph, layer: LayerIR) -> bool:
    """Check for a product of two floats, or of two integers, whose constant weights are one matrix."""
    if layer.op_type not in PRODUCTS or graph.constant(layer.inputs[1]) is None:
        return False
    single_matrix = layer.op_type == "CONV2D_T" or layer.integer("batch") == 1 or not layer.integer("step1")
    kinds = [graph.tensors[name].dtype for name in layer.inputs[:2]]
    if kinds[0] in CODES:
        return single_matrix and kinds[1] in (*CODES, *TYPES.values())
    return single_matrix and set(kinds) <= set(FLOAT) and "scale" not in layer.text("epilogue")


def _narrow(graph: Graph, layer: LayerIR, number: int, bits: int, config: QConfig) -> LayerIR:
    """Return an integer product with its codes in a type of `bits`. ModelError: they do not fit."""
    name = layer.inputs[1]
    codes, kind = graph.constant(name), graph.tensors[name].dtype
    assert codes is not None
    top = (1 << bits - 1) - 1
    if BITS[kind] <= bits:
        return layer
    if kind is not DataType.INT8 or codes.min() < -top or codes.max() > top:
        raise ModelError(
            f"QConfig layer_{number}.weight: {bits} bits: the weights of {layer.id} are codes of {BITS[kind]} bits "
            f"already: give the model before it was quantized, with --precision int8"
        )
    if config.packing == "unpacked_byte":
        return layer
    narrow = graph.add_weight(f"{name}.as_int{bits}", codes, TYPES[bits])
    return replace(layer, inputs=(layer.inputs[0], narrow, *layer.inputs[2:]))


def _moments(graph: Graph, numbers: Mapping[int, int], target: Target) -> dict[int, Values]:
    """Return layer index -> second moments [k, k] of the rows read in the samples, for matrix products with 4- or 2-bit
    weights. Products with non-finite samples are omitted. ModelError: there are no samples, or a layer has no
    reference."""
    config, moments = target.qconfig, dict[int, Values]()
    if not target.samples:
        raise ModelError(f"QConfig rounding: {GPTQ} needs inputs, which this command has not: rounding: {NEAREST}")
    products = {
        index for index, number in numbers.items()
        if config.weight_bits(number) in (4, 2) and graph.layers[index].op_type == "GEMM_T"
        and rows_in_order(graph.layers[index])
    }  # fmt: skip
    for sample in target.samples:
        run = ReferenceExecution(graph)
        for name in graph.inputs:
            run.write(name, np.asarray(sample[name]))
        for index, layer in enumerate(graph.layers):
            if index in products:
                rows = run.wide(layer.inputs[0]).reshape(-1, layer.integer("k"))
                moments[index] = moments.get(index, 0) + rows.T @ rows
            try:
                run.layers([layer])
            except ModelError as error:
                raise ModelError(f"QConfig rounding: {GPTQ}: {error}: rounding: {NEAREST}") from None
    return {index: moment for index, moment in moments.items() if np.isfinite(moment).all()}


def _quantize(graph: Graph, layer: LayerIR, bits: int, config: QConfig, moments: Values | None) -> LayerIR:
    """Return the product with codes, and their scales at the end of its epilogue. `moments`: of `_moments`, for
    gptq."""
    name = layer.inputs[1]
    values = graph.constant(name)
    assert values is not None
    turned = bool(layer.integer("in1_nk"))
    if moments is None:
        codes, scales = _codes(values, bits, rows=turned)
    else:
        n, k = layer.integer("n"), layer.integer("k")
        matrix = values.reshape(n, k).T if turned else values.reshape(k, n)
        ((codes, scales),) = gptq(matrix, moments, (1 << bits - 1) - 1)
        codes = np.ascontiguousarray(codes.T if turned else codes).reshape(values.shape)
    weights = graph.add_weight(f"{name}.int{bits}", codes, TYPES[8 if config.packing == "unpacked_byte" else bits])
    factors = graph.add_weight(f"{weights}.scale", scales, DataType.FP32)
    epilogue = "+".join(filter(None, (layer.text("epilogue"), "scale")))
    return replace(layer, inputs=(layer.inputs[0], weights, *layer.inputs[2:], factors)).having(epilogue=epilogue)


def _in_vectors(graph: Graph, layer: LayerIR, number: int, config: QConfig) -> LayerIR:
    """Return the product with vector codes, and their codebooks after its other operands."""
    name, settings = layer.inputs[1], config.vectors
    values = graph.constant(name)
    assert values is not None
    at = f"QConfig layer_{number}.weight: vq: {layer.id}"
    if graph.tensors[name].dtype not in FLOAT:
        raise ModelError(f"{at}: its weights are codes of {BITS[graph.tensors[name].dtype]} bits already: drop vq")
    filters = layer.integer("cout") // layer.integer("groups") if layer.op_type == "CONV2D_T" else VQ_VECTOR
    if layer.integer("groups", 1) > 1 and filters % VQ_VECTOR:
        if number not in config.overrides("weight"):
            return layer
        raise ModelError(
            f"{at}: {filters} filters of a group, vectors have {VQ_VECTOR}: override.layer_{number}.weight: 16"
        )
    matrix = values.reshape(-1, values.shape[-1])
    if settings.codebooks > len(matrix):
        raise ModelError(f"{at}: {settings.codebooks} codebooks for {len(matrix)} rows of weights: fewer vq.codebooks")
    if f"{name}.vq" not in graph.constants:  # another phase contains the same product
        quantized_vectors = encode_matrix(matrix, settings)
        codes = np.repeat(quantized_vectors.codes, VQ_VECTOR, axis=1)[:, : matrix.shape[1]].reshape(values.shape)
        graph.add_weight(f"{name}.vq", codes, DataType.VQ8)
        graph.add_weight(f"{name}.vq.codebook", quantized_vectors.vectors.reshape(-1, VQ_VECTOR), VQ_EXPANDED)
    inputs = (layer.inputs[0], f"{name}.vq", *layer.inputs[2:], f"{name}.vq.codebook")
    return replace(layer, inputs=inputs).having(codebooks=settings.codebooks)


def quantized_layers(before: Graph, after: Graph) -> dict[str, LayerIR]:
    """Return layer name -> layer in `after`, for float products whose weights this pass quantized."""
    weights = {layer.id: layer.inputs[1] for layer in before.layers if layer.op_type in PRODUCTS}
    return {
        layer.id: layer for layer in after.layers
        if layer.id in weights and layer.inputs[1] != weights[layer.id]
        and before.tensors[weights[layer.id]].dtype in FLOAT and weights[layer.id] not in before.blocks
    }  # fmt: skip


def dequantize_weights(before: Graph, after: Graph) -> Graph:
    """Return the graph before this pass, with weights dequantized from the codes after it."""
    graph, products = before.copy(), quantized_layers(before, after)
    for index, layer in enumerate(graph.layers):
        if layer.id not in products:
            continue
        old, name = graph.tensors[layer.inputs[1]], f"{layer.id}.restored"
        graph.tensors[name] = replace(old, id=name, view_of="", offset=0, pitch=0)
        graph.constants[name] = _restore_weights(after, products[layer.id], layer).reshape(old.shape)
        graph.layers[index] = replace(layer, inputs=(layer.inputs[0], name, *layer.inputs[2:]))
    return graph.dropped_unused()


def _restore_weights(after: Graph, product: LayerIR, before: LayerIR) -> Values:
    """Return the dequantized weights of a product, over all its groups."""
    layers = {layer.id: layer for layer in after.layers}
    groups = list[Values]()
    while (name := f"{product.id}.group{len(groups)}") in layers:
        groups.append(_restore(after, layers[name]))
    if not groups:
        return _restore(after, product)
    matrix = np.concatenate([*groups, _restore(after, product)])
    return matrix.T if before.integer("in1_nk") else matrix


def _restore(graph: Graph, layer: LayerIR) -> Values:
    """Dequantize the weights of a float product, in their device layout."""
    codes, last = (graph.constant(layer.inputs[index]) for index in (1, -1))
    assert codes is not None and last is not None
    if not layer.integer("codebooks"):
        return codes * (last[:, None] if layer.integer("in1_nk") else last)
    matrix = codes.reshape(-1, codes.shape[-1])
    book = np.arange(len(matrix)) * layer.integer("codebooks") // len(matrix)
    within = np.arange(matrix.shape[1]) % VQ_VECTOR
    return last[book[:, None] * VQ_ENTRIES + matrix, within].reshape(codes.shape)


def _codes(values: Values, bits: int, *, rows: bool) -> tuple[Values, Values]:
    """Return (codes as INT8, scale per output channel as FP32); channels are the first axis with `rows`, else the
    last."""
    top = (1 << bits - 1) - 1
    wide = values.astype(np.float64)
    matrix = wide.reshape(values.shape[0], -1) if rows else wide.reshape(-1, values.shape[-1]).T
    scales = least_squares_scales(matrix, top)
    codes = np.clip(np.rint(matrix / scales[:, None]), -top, top).astype(np.int8)
    return (codes if rows else codes.T).reshape(values.shape), scales


def _has_groups(layer: LayerIR, config: QConfig) -> bool:
    """Check whether the weight rows of a product form several groups; a convolution has none."""
    return bool(config.group) and layer.op_type == "GEMM_T" and layer.integer("k") > config.group


def _in_groups(
    graph: Graph, layer: LayerIR, bits: int, config: QConfig, moments: Values | None
) -> list[LayerIR]:  # fmt: skip
    """Return a product as one per group of weight rows, each with its own scales. `moments`: of `_moments`."""
    n, k, size = layer.integer("n"), layer.integer("k"), config.group
    if not rows_in_order(layer):
        raise ModelError(f"QConfig group_size {config.group}: the rows of {layer.id} lie apart: group_size: 0")
    values = graph.constant(layer.inputs[1])
    assert values is not None
    matrix = values.reshape(n, k).T if layer.integer("in1_nk") else values.reshape(k, n)
    if moments is None:
        groups = [_codes(matrix[start : start + size], bits, rows=False) for start in range(0, k, size)]
    else:
        groups = gptq(matrix, moments, (1 << bits - 1) - 1, size)
    kind = TYPES[8 if config.packing == "unpacked_byte" else bits]
    return by_groups(graph, layer, groups, size, kind)
