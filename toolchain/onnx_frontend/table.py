"""Operator table: supported ONNX operators with attributes, types and lowering.

`scripts/generate` writes docs/onnx-coverage.md from it.
"""

from typing import Any, NoReturn

from npu_device.abi.opcodes import DataType
from toolchain.ir.data_types import FLOATS, INTEGERS
from toolchain.onnx_domains.on_core import ON_CORE
from toolchain.onnx_model.node import Node, Operator
from toolchain.onnx_nodes import arithmetic, hyperbolic, pools, recurrent, regions, sampling, selection, spectra
from toolchain.onnx_nodes import images as images_of_parts
from toolchain.onnx_nodes.parts import Compose
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


def _evaluate(*attributes: str, constant: tuple[int, ...] = ()) -> Operator:
    return Operator(_refuse, dict.fromkeys(attributes, ALL), MOVED, "compile time", constant)


def _compose(
    compose: Compose, *attributes: str, types: frozenset[DataType] = FLOAT, note: str = "",
    constant: tuple[int, ...] = (), **some: str,
) -> Operator:  # fmt: skip
    """Return an operator that is decomposed; `some`: attributes with their supported values."""
    return Operator(_refuse, {**dict.fromkeys(attributes, ALL), **some}, types, note, constant, compose)


def _of_integers(node: Node) -> bool:
    return node.kind(node.info(0), node.proto.input[0]) in INTEGERS


TRANSPOSED = ("auto_pad", "dilations", "group", "kernel_shape", "output_padding", "output_shape", "pads", "strides")
STEPS: dict[str, Any] = {"types": FLOAT | {DataType.INT32}, "note": "Gemm, ELTWISE"}
HYPERBOLIC = {
    name: _compose(compose, note="ELTWISE: polynomial near 0, sqrt, log, exp elsewhere")
    for name, compose in hyperbolic.FUNCTIONS.items()
}  # fmt: skip
ROWS = ("axis", "keepdims", "select_last_index")

OPERATORS: dict[str, Operator] = {
    "Abs": Operator(elementwise.absolute, {}, ANY, "ELTWISE mul, max"),
    "Add": _binary("ADD"),
    "AffineGrid": _compose(sampling.affine_grid, "align_corners", note="MatMul", constant=(1,)),
    "And": Operator(elementwise.binary("MIN"), {}, BYTE, "ELTWISE min of 0 and 1"),
    "ArgMax": Operator(rows.argmax, {"axis": ALL, "keepdims": ALL, "select_last_index": ALL}, ANY, "REDUCE argmax"),
    "ArgMin": _compose(arithmetic.arg_min, *ROWS, types=ANY, note="mul or xor, REDUCE argmax"),
    "Attention": Operator(
        attention.attention,
        {"is_causal": ALL, "kv_num_heads": ALL, "left_window_size": ALL, "q_num_heads": ALL,
         "qk_matmul_output_mode": "without its output", "right_window_size": ALL, "scale": ALL, "softcap": ALL,
         "softmax_precision": "FP32 is used"},
        FLOAT | {DataType.UINT8, DataType.INT32},
        "ATTN_T; with a mask or heads of several sizes GEMM_T, ELTWISE, SOFTMAX",
    ),
    "AveragePool": Operator(
        images.average_pool, {**PADDING, "ceil_mode": ALL, "count_include_pad": ALL}, FLOAT, "POOL avg"
    ),
    "BatchNormalization": Operator(
        rows.batch_normalization, {"epsilon": ALL, "momentum": ALL, "training_mode": "0"}, FLOAT,
        "folded into weights where possible, else ELTWISE",
    ),
    "BitShift": Operator(elementwise.bit_shift, {"direction": ALL}, INTEGERS, "ELTWISE shl, shr"),
    **{f"Bitwise{name}": _binary(name.upper(), INTEGERS) for name in ("And", "Or", "Xor")},
    "BitwiseNot": Operator(elementwise.bitwise_not, {}, INTEGERS, "ELTWISE xor with ones"),
    "Cast": Operator(elementwise.cast, {"to": ALL, "saturate": ALL}, MOVED, "ELTWISE cast"),
    "CastLike": Operator(elementwise.cast, {"saturate": ALL}, MOVED, "ELTWISE cast"),
    "Ceil": _unary("CEIL"),
    "Clip": Operator(
        elementwise.clip, {}, ANY, "ELTWISE clip; computed limits: max, min", (), arithmetic.clip,
        arithmetic.open_limits,
    ),
    "Col2Im": _compose(
        images_of_parts.columns_to_image, "dilations", "pads", "strides", note="ConvTranspose", constant=(1, 2)
    ),
    "Compress": _compose(
        selection.compress, "axis", types=MOVED, note=f"Gather; {ON_CORE['Compress'].becomes}", constant=(1,)
    ),
    "Concat": Operator(shaping.concat, {"axis": ALL}, MOVED, "COPY"),
    "Constant": _evaluate(*(f"value{kind}" for kind in ("", "_float", "_floats", "_int", "_ints"))),
    "ConstantOfShape": _evaluate("value", constant=(0,)),
    "Conv": Operator(
        images.convolution, {**PADDING, "group": ALL}, FLOAT,
        "CONV2D_T; windows of one pixel: GEMM_T; three dimensions, wide dilation: COPY, GEMM_T"
    ),
    "ConvInteger": Operator(
        quantized.convolution_integer, {**PADDING, "group": ALL}, BYTE,
        "CONV2D_T, GEMM_T; with a constant w the zero point of x may be a tensor", constant=(2, 3)
    ),
    "ConvTranspose": _compose(
        images_of_parts.transposed_convolution, *TRANSPOSED, note="Pad, Conv; windows side by side: Conv, Transpose",
        constant=(1,),
    ),
    "Cos": _unary("COS"),
    "CumSum": _compose(
        arithmetic.cumulative_sum, "exclusive", "reverse", types=FLOAT | {DataType.INT32},
        note="COPY, ELTWISE add", constant=(1,),
    ),
    "DepthToSpace": _compose(
        images_of_parts.depth_to_space, "blocksize", types=MOVED, note="COPY", mode="CRD, DCR"
    ),
    "DequantizeLinear": Operator(
        conversions.dequantize, {"axis": ALL, "block_size": ALL}, INTEGERS | F8,
        "ELTWISE dequant; several scales: cast, sub, mul; FP8: cast, mul", constant=(1, 2),
    ),
    "Det": _compose(arithmetic.determinant, note="ELTWISE mul, add; up to 6 x 6"),
    "DFT": _compose(spectra.dft, "inverse", "onesided", note="MatMul with cosines and sines", constant=(1, 2)),
    "Div": _binary("DIV"),
    "Dropout": _compose(selection.dropout, "seed", types=MOVED, note="compile time", constant=(2,)),
    "DynamicQuantizeLinear": Operator(
        conversions.dynamic_quantize, {}, frozenset((DataType.FP32,)), "REDUCE max, ELTWISE"
    ),
    "Einsum": _compose(arithmetic.einsum, "equation", note="Transpose, MatMul"),
    "Equal": _binary("EQUAL"),
    "Erf": _unary("ERF"),
    "Exp": _unary("EXP"),
    "Expand": Operator(shaping.expand, {}, MOVED, "COPY", constant=(1,)),
    "EyeLike": _evaluate("dtype", "k"),
    "Flatten": Operator(shaping.emit_view, {"axis": ALL}, MOVED, "compile time"),
    "Floor": _unary("FLOOR"),
    "Gather": Operator(lookups.gather, {"axis": ALL}, MOVED, "GATHER; one constant index: COPY"),
    "GatherElements": _compose(selection.gather_elements, "axis", types=MOVED, note="GATHER"),
    "GatherND": _compose(selection.gather_nd, "batch_dims", types=MOVED, note="GATHER"),
    "Gelu": Operator(elementwise.gelu, {"approximate": ALL}, FLOAT, "GELU"),
    "Gemm": Operator(
        linear.gemm, {"alpha": ALL, "beta": ALL, "transA": ALL, "transB": ALL}, FLOAT, "GEMM_T, ELTWISE"
    ),
    "GlobalAveragePool": Operator(rows.global_average, {}, FLOAT, "REDUCE mean"),
    "GlobalLpPool": _compose(pools.global_lp_pool, "p", note="Pow, REDUCE sum"),
    "GlobalMaxPool": _compose(pools.global_max_pool, note="REDUCE max"),
    "Greater": _binary("GREATER"),
    "GridSample": _compose(
        sampling.grid_sample, "align_corners", note="GATHER, ELTWISE", mode="cubic, linear, nearest",
        padding_mode="zeros, border, reflection",
    ),
    "GRU": _compose(recurrent.recurrent, *recurrent.RECURRENT, **STEPS),
    "HardSigmoid": Operator(
        elementwise.unary("HARD_SIGMOID"), {"alpha": ALL, "beta": ALL}, FLOAT,
        "ELTWISE hard_sigmoid; other alpha: mul; other beta: mul, add, clip", (), arithmetic.hard_sigmoid,
        arithmetic.differs_from_sixths,
    ),
    "HardSwish": _unary("HARD_SWISH"),
    "Hardmax": _compose(arithmetic.hardmax, "axis", note="REDUCE argmax, ELTWISE equal"),
    "Identity": Operator(shaping.emit_view, {}, MOVED, "compile time"),
    "InstanceNormalization": _compose(images_of_parts.instance_normalization, "epsilon", note="REDUCE mean, ELTWISE"),
    "IsInf": _compose(arithmetic.is_infinite, "detect_negative", "detect_positive", note="ELTWISE equal"),
    "IsNaN": _compose(arithmetic.is_nan, note="ELTWISE equal"),
    "LayerNormalization": Operator(
        rows.normalization("LAYER"), {"axis": ALL, "epsilon": ALL, "stash_type": "1"}, FLOAT, "LAYERNORM"
    ),
    "Less": _binary("LESS"),
    "Log": _unary("LOG"),
    "LogSoftmax": _compose(arithmetic.log_softmax, "axis", note="REDUCE, ELTWISE exp, log"),
    "LpNormalization": _compose(arithmetic.lp_normalization, "axis", "p", note="REDUCE sum, ELTWISE sqrt, div"),
    "LpPool": _compose(pools.lp_pool, *PADDING, "ceil_mode", "p", note="Pow, Conv"),
    "LRN": _compose(images_of_parts.local_response, "alpha", "beta", "bias", "size", note="MatMul, ELTWISE"),
    "LSTM": _compose(recurrent.recurrent, *recurrent.RECURRENT, **STEPS),
    "MatMul": Operator(
        linear.matmul, {}, FLOAT | {DataType.INT32}, "GEMM_T; of integers ELTWISE mul, REDUCE sum",
        compose=arithmetic.compose_integer_product, composed=_of_integers,
    ),
    "MatMulInteger": Operator(
        quantized.matmul_integer, {}, BYTE, "GEMM_T; a zero point for each column: twice, ELTWISE mul, sub", (3,),
        arithmetic.integer_product, arithmetic.zeros_differ,
    ),
    "Max": Operator(elementwise.variadic("MAX"), {}, ANY, "ELTWISE max"),
    "MaxPool": Operator(
        images.maximum_pool, {**PADDING, "ceil_mode": ALL, "storage_order": ALL}, FLOAT | BYTE,
        "POOL max; with Indices: COPY, REDUCE max, argmax, GATHER", (), pools.maximum_with_places, pools.has_indices,
    ),
    "MaxUnpool": _compose(
        pools.unpool, "kernel_shape", "pads", "strides", types=FLOAT | {DataType.INT32}, constant=(2,),
        note="ScatterElements with computed indices",
    ),
    "Mean": _compose(arithmetic.mean, note="ELTWISE add, mul"),
    "Min": Operator(elementwise.variadic("MIN"), {}, ANY, "ELTWISE min"),
    "Mish": _unary("MISH"),
    "Mod": Operator(
        elementwise.binary("REM"), {"fmod": ALL}, ANY, "ELTWISE rem; sign of the divisor: add, where", (),
        arithmetic.modulo, arithmetic.by_divisor,
    ),
    "Mul": _binary("MUL"),
    "Neg": Operator(elementwise.negative, {}, ANY, "ELTWISE mul"),
    "Not": Operator(elementwise.logical_not, {}, BYTE, "ELTWISE equal"),
    "OneHot": _compose(selection.one_hot, "axis", types=MOVED, note="ELTWISE equal, where", constant=(1,)),
    "Or": Operator(elementwise.binary("MAX"), {}, BYTE, "ELTWISE max of 0 and 1"),
    "Pad": Operator(
        shaping.pad, {"mode": ALL}, MOVED, "COPY", (1, 2, 3), images_of_parts.pad, shaping.repeats_or_crops
    ),
    "Pow": Operator(
        elementwise.power, {}, FLOAT | INTEGERS, "ELTWISE pow; of integers, with constant exponents, ELTWISE mul",
        compose=arithmetic.integer_power, composed=_of_integers,
    ),
    "QLinearConv": Operator(
        quantized.qlinear_convolution, {**PADDING, "group": ALL}, INTEGERS, "CONV2D_T, GEMM_T",
        constant=(1, 2, 4, 5, 6, 7),
    ),
    "QLinearMatMul": Operator(quantized.qlinear_matmul, {}, BYTE, "GEMM_T", constant=(1, 2, 4, 5, 6, 7)),
    "QuantizeLinear": Operator(
        conversions.quantize,
        {"axis": ALL, "block_size": ALL, "saturate": ALL, "output_dtype": "INT8, UINT8, FP8"}, FLOAT,
        "ELTWISE quant; several scales: div, quant, add, clip, cast; FP8: div, cast", constant=(1, 2),
    ),
    "Range": _evaluate(constant=(0, 1, 2)),
    "Reciprocal": Operator(elementwise.reciprocal, {}, FLOAT, "ELTWISE div"),
    "ReduceLogSumExp": _compose(arithmetic.log_sum_exp, *REDUCED, note="REDUCE, ELTWISE exp, log", constant=(1,)),
    "ReduceMax": Operator(rows.reduction("MAX"), REDUCED, ANY, "REDUCE max", constant=(1,)),
    "ReduceMean": Operator(rows.reduction("MEAN"), REDUCED, FLOAT, "REDUCE mean", constant=(1,)),
    "ReduceMin": _compose(arithmetic.reduce_min, *REDUCED, types=ANY, note="mul or xor, REDUCE max", constant=(1,)),
    "ReduceProd": _compose(arithmetic.reduce_product, *REDUCED, types=ANY, note="ELTWISE mul", constant=(1,)),
    "ReduceSum": Operator(rows.reduction("SUM"), REDUCED, FLOAT | {DataType.INT32}, "REDUCE sum", constant=(1,)),
    "Relu": Operator(elementwise.unary("RELU"), {}, ANY - {DataType.UINT8}, "ELTWISE relu"),
    "Reshape": Operator(shaping.emit_view, {"allowzero": ALL}, MOVED, "compile time", constant=(1,)),
    "Resize": _compose(
        images_of_parts.resize, "antialias", "axes", "coordinate_transformation_mode", "cubic_coeff_a",
        "exclude_outside", "keep_aspect_ratio_policy", "mode", "nearest_mode", types=MOVED,
        note="MatMul per axis; nearest: COPY", constant=(1, 2, 3), extrapolation_value="not used",
    ),
    "ReverseSequence": _compose(
        selection.reverse_sequence, "batch_axis", "time_axis", types=MOVED,
        note="COPY; lengths that differ: ELTWISE, GATHER",
    ),
    "RMSNormalization": Operator(
        rows.normalization("RMS"), {"axis": ALL, "epsilon": ALL, "stash_type": "1"}, FLOAT, "LAYERNORM rms"
    ),
    "RNN": _compose(recurrent.recurrent, *recurrent.RECURRENT, **STEPS),
    "RotaryEmbedding": Operator(
        lookups.rotary_embedding, {"interleaved": ALL, "num_heads": ALL, "rotary_embedding_dim": ALL},
        FLOAT | {DataType.INT32}, "GATHER, ROPE",
    ),
    "RoiAlign": _compose(
        regions.roi_align, "coordinate_transformation_mode", "output_height", "output_width", "sampling_ratio",
        "spatial_scale", types=frozenset((DataType.FP32, DataType.INT32)),
        note="ELTWISE, REDUCE, GEMM_T; mode max: GATHER", mode="avg; max with a sampling_ratio above 0",
    ),
    "Round": _unary("ROUND"),
    "ScatterElements": _compose(
        selection.scatter_elements, "axis", "reduction", types=MOVED,
        note="GATHER; computed indices and reductions: ELTWISE equal, where, REDUCE",
    ),
    "ScatterND": _compose(
        selection.scatter_nd, "reduction", types=MOVED,
        note="GATHER; computed indices and reductions: ELTWISE equal, where, REDUCE, GATHER",
    ),
    "Shape": _evaluate("start", "end"),
    "Sigmoid": _unary("SIGMOID"),
    "Sign": _compose(arithmetic.sign, types=ANY, note="ELTWISE greater, less, sub"),
    "Sin": _unary("SIN"),
    "Size": _evaluate(),
    "Slice": Operator(
        shaping.slice_, {}, MOVED, "COPY; to a computed end: all rows, and how many count", constant=(1, 2, 3, 4)
    ),
    "Softmax": Operator(rows.softmax, {"axis": ALL}, FLOAT, "SOFTMAX"),
    "Softplus": _compose(arithmetic.softplus, note="ELTWISE exp, log"),
    "SpaceToDepth": _compose(images_of_parts.space_to_depth, "blocksize", types=MOVED, note="COPY"),
    "Split": Operator(shaping.split, {"axis": ALL, "num_outputs": ALL}, MOVED, "COPY", constant=(1,)),
    "Sqrt": _unary("SQRT"),
    "Squeeze": Operator(shaping.emit_view, {}, MOVED, "compile time", constant=(1,)),
    "STFT": _compose(spectra.stft, "onesided", note="COPY, MatMul with cosines and sines", constant=(1, 3)),
    "Sub": _binary("SUB"),
    "Swish": Operator(
        elementwise.unary("SILU"), {"alpha": ALL}, FLOAT, "ELTWISE silu; other alpha than 1: mul, sigmoid", (),
        arithmetic.swish, arithmetic.has_factor,
    ),
    "Sum": Operator(elementwise.variadic("ADD"), {}, ANY, "ELTWISE add"),
    "Tan": _compose(arithmetic.tangent, note="ELTWISE sin, cos, div"),
    "Tanh": _unary("TANH"),
    "Tile": Operator(shaping.tile, {}, MOVED, "COPY", constant=(1,)),
    "TopK": _compose(
        selection.top_k, "axis", "largest", "sorted", types=ANY, constant=(1,),
        note="K times REDUCE max, argmax, ELTWISE where; integers and large K: kernel TOP_K on the core, GATHER",
    ),
    "Transpose": Operator(shaping.transpose, {"perm": ALL}, MOVED, "COPY"),
    "Trilu": Operator(shaping.trilu, {"upper": ALL}, ANY, "ELTWISE where with a triangle of ones", constant=(1,)),
    "Unsqueeze": Operator(shaping.emit_view, {}, MOVED, "compile time", constant=(1,)),
    "Where": Operator(elementwise.where, {}, ANY, "ELTWISE where"),
    "Xor": _compose(arithmetic.xor, types=BYTE, note="ELTWISE equal"),
    **HYPERBOLIC,
}  # fmt: skip
"""ONNX operator -> its support. Any other operator is evaluated at compile time if all its inputs are constant."""


IN_RANGE = frozenset(name for name, row in OPERATORS.items() if row.types >= MOVED) | {
    "ArgMax", "ArgMin", "BitShift", "BitwiseAnd", "BitwiseNot", "BitwiseOr", "BitwiseXor", "Clip", "DequantizeLinear",
    "Equal", "Greater", "Less", "Max", "Min", "QuantizeLinear", "ReduceMax", "ReduceMin", "TopK", "Where",
}  # fmt: skip
"""Operators whose results stay in the range of their inputs' type, since INT16 and UINT16 are INT32 on the device."""
