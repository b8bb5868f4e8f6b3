"""Decomposition of operators of onnxruntime's domain com.microsoft into ONNX operators.

Source: onnxruntime's docs/ContribOperators.md, for semantics and names of inputs and attributes. Attention is in
`toolchain.onnx_domains.contributed_attention`, mixtures of experts in `contributed_experts`, quantized operators in
`contributed_quantized`.
"""

import numpy as np

from toolchain.onnx_domains import contributed_attention as attention
from toolchain.onnx_domains import contributed_experts as experts
from toolchain.onnx_domains import contributed_quantized as quantized
from toolchain.onnx_nodes.arithmetic import swish_of
from toolchain.onnx_nodes.parts import Compose, Composition, Decomposition, Tensor
from toolchain.onnx_nodes.recurrent import LSTM, quantized_lstm

DOMAIN = "com.microsoft"


# -- products ----------------------------------------------------------------------------------------------------------


def _swap(parts: Decomposition, index: int, batch: str, rows: str) -> Tensor:
    """Return a transposed operand: `batch` moves its first dimension before the last, `rows` swaps its last two."""
    rank = len(parts.node.shape(index))
    order = list(range(rank))
    if parts.node.attribute(batch, 0):
        order = [*order[1:-1], 0, rank - 1]
    if parts.node.attribute(rows, 0):
        order = [*order[:-2], order[-1], order[-2]]
    x = parts.input(index)
    return x if order == list(range(rank)) else x.transpose(*order)


def fused_matmul(parts: Decomposition) -> None:
    a, b = _swap(parts, 0, "transBatchA", "transA"), _swap(parts, 1, "transBatchB", "transB")
    alpha = parts.node.attribute("alpha", 1.0)
    parts.output(a @ b if alpha == 1.0 else a @ b * alpha)


_ACTIVATIONS = {
    "Relu": (), "Tanh": (), "Sigmoid": (), "LeakyRelu": ("alpha",), "HardSigmoid": ("alpha", "beta"), "Clip": (),
}  # fmt: skip
"""Activation of a fused operator -> attributes for its parameters."""


def _activate(parts: Decomposition, x: Tensor, numbers: list[float]) -> None:
    """Compose the result: the fused activation of `x`."""
    name = parts.node.attribute("activation", "")
    if name not in _ACTIVATIONS:
        parts.node.refuse(f"attribute activation={name}: supported are {', '.join(_ACTIVATIONS)}")
    if name == "Clip":
        if len(numbers) < 2:
            parts.node.refuse("attribute activation=Clip: activation_params must hold its two limits")
        parts.output(x.clip(*numbers[:2]))
    else:
        parts.output(parts.make(name, x, **dict(zip(_ACTIVATIONS[name], numbers, strict=False))))


_NUMBERS = ("activation_alpha", "activation_beta")
_FUSED = ("activation", "activation_params", *_NUMBERS)


def fused_convolution(parts: Decomposition) -> None:
    numbers = parts.node.attribute("activation_params", [])
    _activate(parts, parts.plus(_product(parts, "Conv"), 3), [float(value) for value in numbers])


def fused_gemm(parts: Decomposition) -> None:
    numbers = map(parts.node.attribute, _NUMBERS)
    _activate(parts, _product(parts, "Gemm"), [float(value) for value in numbers if value is not None])


def _product(parts: Decomposition, operator: str) -> Tensor:
    """Compose a product of the first three inputs, without the fused activation."""
    node = parts.node
    attributes = {name: value for name, value in node.attributes.items() if name not in _FUSED}
    return parts.make(operator, *map(parts.optional, range(3)), **attributes)


# -- activations -------------------------------------------------------------------------------------------------------


def gelu(parts: Decomposition) -> None:
    parts.result("Gelu", parts.plus(parts.input(0), 1))


def fast_gelu(parts: Decomposition) -> None:
    parts.result("Gelu", parts.plus(parts.input(0), 1), approximate="tanh")


def quick_gelu(parts: Decomposition) -> None:
    parts.output(swish_of(parts.input(0), parts.node.attribute("alpha", 1.702)))


# -- normalization -----------------------------------------------------------------------------------------------------


def _without(parts: Decomposition, *outputs: tuple[int, str]) -> None:
    """Refuse outputs that only training needs."""
    for index, name in outputs:
        if parts.node.gives(index):
            parts.node.refuse(f"output {name} is not supported: it is one of training")


def _skip(parts: Decomposition, bias: int) -> Tensor:
    """Return the sum of both inputs and a bias, which is also an output."""
    total = parts.plus(parts.input(0) + parts.input(1), bias)
    if parts.node.gives(3):
        parts.result("Identity", total, index=3)
    return total


def skip_layer_norm(parts: Decomposition) -> None:
    _without(parts, (1, "mean"), (2, "inv_std_var"))
    total, epsilon = _skip(parts, 4), parts.node.attribute("epsilon", 1e-12)
    parts.result("LayerNormalization", total, parts.input(2), parts.optional(3), epsilon=epsilon)


def skip_rms_norm(parts: Decomposition) -> None:
    _without(parts, (1, "mean"), (2, "inv_std_var"))
    total = _skip(parts, 3)
    parts.result("RMSNormalization", total, parts.input(2), epsilon=parts.node.attribute("epsilon", 1e-12))


def rms_norm(parts: Decomposition) -> None:
    _without(parts, (1, "inv_std_var"))
    attributes = {name: value for name, value in parts.node.attributes.items() if name != "stash_type"}
    parts.result("RMSNormalization", parts.input(0), parts.input(1), **attributes)


def embed_layer_norm(parts: Decomposition) -> None:
    """Compose EmbedLayerNormalization: the normalized sum of word, position and segment embeddings."""
    node = parts.node
    batch, steps = node.shape(0)
    total = parts.make("Gather", parts.input(2), parts.input(0))
    total = total + parts.make("Gather", parts.input(3), parts.optional(8) or [*range(steps)])
    if node.has(1) and node.has(4):
        total = total + parts.make("Gather", parts.input(4), parts.input(1))
    if node.gives(2):
        parts.result("Identity", total, index=2)
    epsilon = node.attribute("epsilon", 1e-12)
    parts.result("LayerNormalization", total, parts.input(5), parts.input(6), epsilon=epsilon)
    if not node.gives(1):
        return
    if node.has(7):
        counted = parts.make("ReduceSum", parts.input(7).cast(np.float32), [1], keepdims=0)
        parts.output(counted.cast(np.int32), 1)
    else:
        parts.result("Identity", np.zeros(batch, np.int32), index=1)


def distances(parts: Decomposition) -> None:
    """Compose CDist: distances between the rows of two tables."""
    node = parts.node
    metric = node.attribute("metric", "sqeuclidean")
    if metric not in ("euclidean", "sqeuclidean"):
        node.refuse(f"attribute metric={metric}: supported are euclidean, sqeuclidean")
    (rows, width), (columns, _) = node.shape(0), node.shape(1)
    differences = parts.input(0).reshape(rows, 1, width) - parts.input(1).reshape(1, columns, width)
    squares = parts.make("ReduceSum", differences * differences, [2], keepdims=0)
    parts.output(squares if metric == "sqeuclidean" else parts.make("Sqrt", squares))


def same_operator(operator: str) -> Compose:
    """Return the decomposition into the ONNX operator of this name, with the same inputs and attributes."""

    def compose(parts: Decomposition) -> None:
        parts.result(operator, *parts.node.proto.input, **parts.node.attributes)

    return compose


_TRANSPOSED = ("alpha", "transA", "transB", "transBatchA", "transBatchB")
_WINDOW = ("auto_pad", "dilations", "group", "kernel_shape", "pads", "strides")
_POOL = ("auto_pad", "ceil_mode", "channels_last", "count_include_pad", "kernel_shape", "pads", "strides")
_HEADS = ("num_heads", "scale", "mask_filter_value", "unidirectional")
_GROUPED = ("num_heads", "kv_num_heads", "scale", "softcap", "local_window_size", "do_rotary", "rotary_interleaved")

CONTRIBUTED: dict[str, Composition] = {
    "Attention": Composition("MatMul, Attention", attention.packed, (*_HEADS, "qkv_hidden_sizes")),
    "BiasGelu": Composition("Add, Gelu", gelu),
    "CDist": Composition("Sub, Mul, ReduceSum, Sqrt", distances, ("metric",)),
    "DequantizeLinear": Composition("DequantizeLinear", same_operator("DequantizeLinear"), ("axis",)),
    "DynamicQuantizeLSTM": Composition("DynamicQuantizeLinear, MatMulInteger, LSTM", quantized_lstm, LSTM),
    "DynamicQuantizeMatMul": Composition("DynamicQuantizeLinear, MatMulInteger", quantized.dynamic_matmul),
    "EmbedLayerNormalization": Composition(
        "Gather, Add, LayerNormalization", embed_layer_norm, ("epsilon", "mask_index_type")
    ),
    "FastGelu": Composition("Add, Gelu", fast_gelu),
    "FusedConv": Composition("Conv, Add, activation", fused_convolution, (*_WINDOW, "activation", "activation_params")),
    "FusedGemm": Composition(
        "Gemm, activation", fused_gemm, ("activation", "alpha", "beta", "transA", "transB", *_NUMBERS)
    ),
    "FusedMatMul": Composition("Transpose, MatMul, Mul", fused_matmul, _TRANSPOSED),
    "GatherBlockQuantized": Composition(
        "Gather, Sub, Mul", quantized.gather_blocks, ("bits", "block_size", "gather_axis", "quantize_axis")
    ),
    "Gelu": Composition("Gelu", gelu),
    "GroupQueryAttention": Composition("RotaryEmbedding, Concat, Attention", attention.grouped, _GROUPED),
    "MatMulIntegerToFloat": Composition("MatMulInteger, Mul", quantized.integer_matmul),
    "MatMulNBits": Composition(
        "DequantizeLinear, MatMul", quantized.matmul_nbits, ("K", "N", "accuracy_level", "bits", "block_size")
    ),
    "MoE": Composition("TopK, Softmax, MatMul, activation, Mul, ReduceSum", experts.mixture, experts.ROUTING),
    "MultiHeadAttention": Composition("Attention", attention.multi_head, _HEADS),
    "QGemm": Composition("DequantizeLinear, Gemm, QuantizeLinear", quantized.gemm, ("alpha", "transA", "transB")),
    "QLinearAdd": Composition("DequantizeLinear, Add, QuantizeLinear", quantized.elementwise("Add", 0, 3, scale=6)),
    "QLinearAveragePool": Composition(
        "DequantizeLinear, AveragePool, QuantizeLinear", quantized.pooled("AveragePool"), _POOL
    ),
    "QLinearConcat": Composition("DequantizeLinear, Concat, QuantizeLinear", quantized.concat, ("axis",)),
    "QLinearGlobalAveragePool": Composition(
        "DequantizeLinear, GlobalAveragePool, QuantizeLinear", quantized.pooled("GlobalAveragePool"), ("channels_last",)
    ),
    "QLinearLeakyRelu": Composition(
        "DequantizeLinear, LeakyRelu, QuantizeLinear", quantized.elementwise("LeakyRelu", 0, scale=3), ("alpha",)
    ),
    "QLinearMul": Composition("DequantizeLinear, Mul, QuantizeLinear", quantized.elementwise("Mul", 0, 3, scale=6)),
    "QLinearSigmoid": Composition(
        "DequantizeLinear, Sigmoid, QuantizeLinear", quantized.elementwise("Sigmoid", 0, scale=3)
    ),
    "QLinearSoftmax": Composition(
        "DequantizeLinear, Softmax, QuantizeLinear", quantized.softmax, ("axis", "opset")
    ),
    "QLinearWhere": Composition("DequantizeLinear, Where, QuantizeLinear", quantized.where),
    "QMoE": Composition(
        "TopK, Softmax, MatMul, activation, Mul, ReduceSum", experts.mixture_of_codes,
        (*experts.ROUTING, *experts.CODES),
    ),
    "QuantizeLinear": Composition("QuantizeLinear", same_operator("QuantizeLinear"), ("axis",)),
    "QuickGelu": Composition("Sigmoid, Mul", quick_gelu, ("alpha",)),
    "RotaryEmbedding": Composition(
        "RotaryEmbedding", attention.rotary, ("interleaved", "num_heads", "rotary_embedding_dim", "scale")
    ),
    "SimplifiedLayerNormalization": Composition("RMSNormalization", rms_norm, ("axis", "epsilon", "stash_type")),
    "SkipLayerNormalization": Composition("Add, LayerNormalization", skip_layer_norm, ("epsilon",)),
    "SkipSimplifiedLayerNormalization": Composition("Add, RMSNormalization", skip_rms_norm, ("epsilon",)),
    "TransposeMatMul": Composition("Transpose, MatMul, Mul", fused_matmul, ("alpha", "transA", "transB")),
    "Trilu": Composition("Trilu", same_operator("Trilu"), ("upper",)),
}  # fmt: skip
"""Operator -> its decomposition."""
