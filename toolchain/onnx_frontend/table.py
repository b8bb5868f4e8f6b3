"""The operator table: which ONNX operators there are, with which attributes and types, and what each becomes.

docs/onnx-coverage.md is made from it.
"""

from collections.abc import Iterable
from typing import NoReturn

from npu_device.abi.opcodes import DataType
from toolchain.ir.data_types import FLOATS, INTEGERS
from toolchain.onnx_model.model import MIN_OPSET
from toolchain.onnx_model.node import Node, Operator
from toolchain.onnx_operators import (
    attention,
    conversions,
    elementwise,
    images,
    linear,
    lookups,
    quantized,
    rows,
    shaping,
)

F8 = frozenset((DataType.E4M3FN, DataType.E5M2))
FLOAT = FLOATS - F8
ANY = FLOAT | INTEGERS
BYTE = frozenset((DataType.INT8, DataType.UINT8))
MOVED = FLOATS | INTEGERS
ALL = "all values"
PADDING = {"auto_pad": ALL, "dilations": ALL, "kernel_shape": ALL, "pads": ALL, "strides": ALL}
REDUCED = {"axes": "constant", "keepdims": ALL, "noop_with_empty_axes": ALL}


def _unary(function: str) -> Operator:
    return Operator(elementwise.unary(function), {}, FLOAT, f"ELTWISE {function.lower()}")


def _binary(function: str, types: frozenset[DataType] = ANY) -> Operator:
    return Operator(elementwise.binary(function), {}, types, f"ELTWISE {function.lower()}")


def _refuse(node: Node) -> NoReturn:
    node.refuse("its inputs must be constant")


def _evaluated(*attributes: str, constant: tuple[int, ...] = ()) -> Operator:
    return Operator(_refuse, dict.fromkeys(attributes, ALL), MOVED, "compile time", constant)


OPERATORS: dict[str, Operator] = {
    "Abs": Operator(elementwise.absolute, {}, ANY, "ELTWISE mul, max"),
    "Add": _binary("ADD"),
    "And": Operator(elementwise.binary("MIN"), {}, BYTE, "ELTWISE min of 0 and 1"),
    "ArgMax": Operator(rows.argmax, {"axis": ALL, "keepdims": ALL, "select_last_index": ALL}, ANY, "REDUCE argmax"),
    "Attention": Operator(
        attention.attention,
        {"is_causal": ALL, "kv_num_heads": ALL, "left_window_size": ALL, "q_num_heads": ALL,
         "qk_matmul_output_mode": "without its output", "right_window_size": ALL, "scale": ALL, "softcap": ALL,
         "softmax_precision": "FP32 is used"},
        FLOAT | {DataType.UINT8, DataType.INT32},
        "ATTN_T; with a mask, softcap or heads of several sizes GEMM_T, ELTWISE, SOFTMAX",
    ),
    "AveragePool": Operator(
        images.average_pool, {**PADDING, "ceil_mode": ALL, "count_include_pad": ALL}, FLOAT, "POOL avg"
    ),
    "BatchNormalization": Operator(
        rows.batch_normalization, {"epsilon": ALL, "momentum": ALL, "training_mode": "0"}, FLOAT,
        "folded into weights where possible, else ELTWISE",
    ),
    "Cast": Operator(elementwise.cast, {"to": ALL, "saturate": ALL}, MOVED, "ELTWISE cast"),
    "CastLike": Operator(elementwise.cast, {"saturate": ALL}, MOVED, "ELTWISE cast"),
    "Clip": Operator(elementwise.clip, {}, ANY, "ELTWISE clip", constant=(1, 2)),
    "Concat": Operator(shaping.concat, {"axis": ALL}, MOVED, "COPY"),
    "Constant": _evaluated(*(f"value{kind}" for kind in ("", "_float", "_floats", "_int", "_ints"))),
    "ConstantOfShape": _evaluated("value", constant=(0,)),
    "Conv": Operator(images.convolution, {**PADDING, "group": ALL}, FLOAT, "CONV2D_T; three dimensions: COPY, GEMM_T"),
    "ConvInteger": Operator(
        quantized.convolution_integer, {**PADDING, "group": ALL}, BYTE,
        "CONV2D_T; with a constant w the zero point of x may be a tensor", constant=(2, 3)
    ),
    "Cos": _unary("COS"),
    "DequantizeLinear": Operator(
        conversions.dequantize, {"axis": ALL, "block_size": ALL}, INTEGERS,
        "ELTWISE dequant; several scales: cast, sub, mul", constant=(1, 2),
    ),
    "Div": _binary("DIV"),
    "DynamicQuantizeLinear": Operator(
        conversions.dynamic_quantize, {}, frozenset((DataType.FP32,)), "REDUCE max, ELTWISE"
    ),
    "Equal": _binary("EQUAL"),
    "Erf": _unary("ERF"),
    "Exp": _unary("EXP"),
    "Expand": Operator(shaping.expand, {}, MOVED, "COPY", constant=(1,)),
    "Flatten": Operator(shaping.renamed, {"axis": ALL}, MOVED, "compile time"),
    "Gather": Operator(lookups.gather, {"axis": ALL}, MOVED, "GATHER; one constant index: COPY"),
    "Gelu": Operator(elementwise.gelu, {"approximate": ALL}, FLOAT, "GELU"),
    "Gemm": Operator(
        linear.gemm, {"alpha": ALL, "beta": ALL, "transA": ALL, "transB": ALL}, FLOAT, "GEMM_T, ELTWISE"
    ),
    "GlobalAveragePool": Operator(rows.global_average, {}, FLOAT, "REDUCE mean"),
    "Greater": _binary("GREATER"),
    "Identity": Operator(shaping.renamed, {}, MOVED, "compile time"),
    "LayerNormalization": Operator(
        rows.normalization("LAYER"), {"axis": ALL, "epsilon": ALL, "stash_type": "1"}, FLOAT, "LAYERNORM"
    ),
    "Less": _binary("LESS"),
    "MatMul": Operator(linear.matmul, {}, FLOAT, "GEMM_T"),
    "MatMulInteger": Operator(quantized.matmul_integer, {}, BYTE, "GEMM_T", constant=(3,)),
    "Max": Operator(elementwise.variadic("MAX"), {}, ANY, "ELTWISE max"),
    "MaxPool": Operator(
        images.maximum_pool, {**PADDING, "ceil_mode": ALL, "storage_order": ALL}, FLOAT | BYTE, "POOL max"
    ),
    "Min": Operator(elementwise.variadic("MIN"), {}, ANY, "ELTWISE min"),
    "Mul": _binary("MUL"),
    "Neg": Operator(elementwise.negative, {}, ANY, "ELTWISE mul"),
    "Not": Operator(elementwise.logical_not, {}, BYTE, "ELTWISE equal"),
    "Or": Operator(elementwise.binary("MAX"), {}, BYTE, "ELTWISE max of 0 and 1"),
    "Pad": Operator(shaping.pad, {"mode": "constant"}, MOVED, "COPY", constant=(1, 2, 3)),
    "Pow": Operator(elementwise.power, {}, FLOAT | INTEGERS, "ELTWISE pow; the base is a float"),
    "QuantizeLinear": Operator(
        conversions.quantize, {"axis": ALL, "block_size": ALL, "saturate": ALL, "output_dtype": "INT8, UINT8"}, FLOAT,
        "ELTWISE quant; several scales: div, quant, add, clip, cast", constant=(1, 2),
    ),
    "QLinearConv": Operator(
        quantized.qlinear_convolution, {**PADDING, "group": ALL}, INTEGERS, "CONV2D_T",
        constant=(1, 2, 4, 5, 6, 7),
    ),
    "QLinearMatMul": Operator(quantized.qlinear_matmul, {}, BYTE, "GEMM_T", constant=(1, 2, 4, 5, 6, 7)),
    "Range": _evaluated(constant=(0, 1, 2)),
    "Reciprocal": Operator(elementwise.reciprocal, {}, FLOAT, "ELTWISE div"),
    "ReduceMax": Operator(rows.reduction("MAX"), REDUCED, ANY, "REDUCE max", constant=(1,)),
    "ReduceMean": Operator(rows.reduction("MEAN"), REDUCED, FLOAT, "REDUCE mean", constant=(1,)),
    "ReduceSum": Operator(rows.reduction("SUM"), REDUCED, FLOAT, "REDUCE sum", constant=(1,)),
    "Relu": Operator(elementwise.unary("RELU"), {}, ANY - {DataType.UINT8}, "ELTWISE relu"),
    "Reshape": Operator(shaping.renamed, {"allowzero": ALL}, MOVED, "compile time", constant=(1,)),
    "RMSNormalization": Operator(
        rows.normalization("RMS"), {"axis": ALL, "epsilon": ALL, "stash_type": "1"}, FLOAT, "LAYERNORM rms"
    ),
    "RotaryEmbedding": Operator(
        lookups.rotary_embedding, {"interleaved": ALL, "num_heads": ALL, "rotary_embedding_dim": ALL},
        FLOAT | {DataType.INT32}, "GATHER, ROPE",
    ),
    "Shape": _evaluated("start", "end"),
    "Sigmoid": _unary("SIGMOID"),
    "Sin": _unary("SIN"),
    "Size": _evaluated(),
    "Slice": Operator(shaping.slice_, {}, MOVED, "COPY", constant=(1, 2, 3, 4)),
    "Softmax": Operator(rows.softmax, {"axis": ALL}, FLOAT, "SOFTMAX"),
    "Split": Operator(shaping.split, {"axis": ALL, "num_outputs": ALL}, MOVED, "COPY", constant=(1,)),
    "Sqrt": _unary("SQRT"),
    "Squeeze": Operator(shaping.renamed, {}, MOVED, "compile time", constant=(1,)),
    "Sub": _binary("SUB"),
    "Sum": Operator(elementwise.variadic("ADD"), {}, ANY, "ELTWISE add"),
    "Tanh": _unary("TANH"),
    "Tile": Operator(shaping.tile, {}, MOVED, "COPY", constant=(1,)),
    "Transpose": Operator(shaping.transpose, {"perm": ALL}, MOVED, "COPY"),
    "Trilu": Operator(shaping.trilu, {"upper": ALL}, ANY, "ELTWISE mul with a triangle of ones", constant=(1,)),
    "Unsqueeze": Operator(shaping.renamed, {}, MOVED, "compile time", constant=(1,)),
    "Where": Operator(elementwise.where, {}, ANY, "ELTWISE where"),
}  # fmt: skip
"""Besides these, an operator whose inputs are all constant is evaluated by the compiler."""


_HEAD = f"""# ONNX operators

Made by `scripts/onnx-coverage` from the operator table. Models have opset {MIN_OPSET} or newer. An operator, attribute
or element type that is not here is refused by name before anything is compiled. The node tests of the onnx package
check every row: each passes, or what it needs is refused by name (`tests/toolchain/onnx_frontend/test_onnx_nodes.py`).

An operator that is not here and that ONNX defines by others (LeakyRelu, HardSwish, Elu, GroupNormalization, ...)
becomes those. Operators whose inputs are all constant are evaluated by the compiler, any operator of ONNX among them.
BOOL is one byte, 0 or 1. INT64 is INT32 on the device: constants and inputs must fit, results that INT32 cannot hold
wrap.

| operator | becomes | attributes | element types | constant inputs |
|---|---|---|---|---|
"""


def coverage_page() -> str:
    """The page."""
    rows = []
    for name, row in OPERATORS.items():
        attributes = ", ".join(
            key if value == "all values" else f"{key} ({value})" for key, value in row.attributes.items()
        )
        inputs = ", ".join(map(str, row.constant))
        rows.append(f"| {name} | {row.note} | {attributes} | {_types(row.types)} | {inputs} |\n")
    return _HEAD + "".join(rows)


def _types(kinds: Iterable[DataType]) -> str:
    return ", ".join(kind.name for kind in sorted(kinds))
