"""Operators of com.microsoft; onnxruntime, which defines them, judges."""

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper, parser
from onnxruntime_reference import agree, by_us, near, one_node, random

from toolchain.codegen import Target
from toolchain.compiler import compile_model
from toolchain.errors import ModelError
from toolchain.onnx_domains.contributed import CONTRIBUTED, DOMAIN
from toolchain.onnx_frontend import import_model
from toolchain.onnx_model.model import prepare

I32, U8 = TensorProto.INT32, TensorProto.UINT8


def check(operator: str, inputs: dict[str, Any], outputs: Any = ("y",), *, limit: float = 1e-5, **how: Any) -> None:
    how.setdefault("domain", DOMAIN)
    agree(one_node(operator, inputs, outputs, **how), inputs, limit=limit)


def codes(*shape: int, seed: int = 3, kind: Any = np.uint8) -> Any:
    limits = np.iinfo(kind)
    return np.random.default_rng(seed).integers(limits.min, limits.max, shape, dtype=kind, endpoint=True)


def scales(**values: float) -> dict[str, Any]:
    return {name: np.float32(value) for name, value in values.items()}


# -- products ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("operator", ["FusedMatMul", "TransposeMatMul"])
@pytest.mark.parametrize("a", [0, 1])
@pytest.mark.parametrize("b", [0, 1])
def test_fused_products(operator: str, a: int, b: int) -> None:
    left, right = random(2, 3, *((5, 4) if a else (4, 5))), random(2, 3, *((6, 5) if b else (5, 6)), seed=4)
    check(operator, {"a": left, "b": right}, alpha=0.25, transA=a, transB=b)


def test_fused_products_with_the_batch_inside() -> None:
    check("FusedMatMul", {"a": random(4, 2, 5), "b": random(5, 2, 6, seed=4)}, transBatchA=1, transBatchB=1)
    check("FusedMatMul", {"a": random(5, 2, 4), "b": random(2, 5, 6, seed=4)}, transBatchA=1, transA=1)


@pytest.mark.parametrize("metric", ["euclidean", "sqeuclidean"])
def test_distances_between_rows(metric: str) -> None:
    check("CDist", {"a": random(4, 3), "b": random(5, 3, seed=4)}, metric=metric)


@pytest.mark.parametrize(
    ("activation", "numbers"),
    [
        ("Relu", ()),
        ("Tanh", ()),
        ("Sigmoid", ()),
        ("LeakyRelu", (0.2,)),
        ("HardSigmoid", (0.3, 0.4)),
        ("Clip", (0.0, 0.5)),
    ],
)
def test_convolutions_with_an_activation(activation: str, numbers: tuple[float, ...]) -> None:
    weights = {"w": random(4, 3, 3, 3, seed=5), "b": random(4, seed=6)}
    more = {"activation_params": list(numbers)} if numbers else {}
    check("FusedConv", {"x": random(1, 3, 7, 6)}, constants=weights, activation=activation, pads=[1, 1, 1, 1], **more)


def test_a_convolution_that_adds() -> None:
    inputs = {"x": random(1, 3, 5, 5), "z": random(1, 4, 5, 5, seed=8)}
    weights = {"w": random(4, 3, 1, 1, seed=5), "b": random(4, seed=6)}
    check("FusedConv", inputs, constants=weights, order=["x", "w", "b", "z"], activation="Relu")


@pytest.mark.parametrize(("activation", "more"), [("Relu", {}), ("LeakyRelu", {"activation_alpha": 0.3})])
def test_a_gemm_with_an_activation(activation: str, more: dict[str, float]) -> None:
    inputs = {"a": random(4, 5), "b": random(6, 5, seed=4), "c": random(6, seed=5)}
    check("FusedGemm", inputs, activation=activation, transB=1, alpha=0.5, beta=2.0, **more)


# -- activations and normalization -------------------------------------------------------------------------------------


@pytest.mark.parametrize("operator", ["Gelu", "FastGelu", "QuickGelu"])
def test_gelu(operator: str) -> None:
    check(operator, {"x": random(3, 40)}, limit=5e-5 if operator == "FastGelu" else 1e-5)


@pytest.mark.parametrize("operator", ["BiasGelu", "FastGelu"])
def test_gelu_with_a_bias(operator: str) -> None:
    check(operator, {"x": random(3, 40), "b": random(40, seed=4)}, limit=5e-5)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("total", [False, True])
@pytest.mark.parametrize("operator", ["SkipLayerNormalization", "SkipSimplifiedLayerNormalization"])
def test_normalization_of_a_sum(operator: str, total: bool, bias: bool) -> None:
    inputs = {"x": random(2, 4, 16), "s": random(2, 4, 16, seed=4)}
    constants = {"g": random(16, seed=5)} | ({} if "Simplified" in operator else {"e": random(16, seed=6)})
    constants |= {"b": random(16, seed=7)} if bias else {}
    check(operator, inputs, ("y", "", "", "t") if total else ("y",), constants=constants, epsilon=1e-5)


def test_a_norm_that_exporters_write_into_the_domain_of_onnx() -> None:
    check("SimplifiedLayerNormalization", {"x": random(2, 4, 16), "g": random(16, seed=5)}, domain="", epsilon=1e-5)


@pytest.mark.parametrize("mask", [False, True])
@pytest.mark.parametrize("segments", [False, True])
def test_embeddings(segments: bool, mask: bool) -> None:
    chance = np.random.default_rng(5)
    inputs = {"i": chance.integers(0, 20, (2, 6), dtype=np.int32)}
    constants = {"w": random(20, 8, seed=1), "p": random(10, 8, seed=2), "g": random(8, seed=4), "e": random(8, seed=5)}
    if segments:
        inputs["s"] = chance.integers(0, 2, (2, 6), dtype=np.int32)
        constants["t"] = random(2, 8, seed=3)
    if mask:
        inputs["m"] = np.array([[1, 1, 1, 1, 0, 0], [1] * 6], np.int32)
    order = ["i", "s" if segments else "", "w", "p", "t" if segments else "", "g", "e", *(["m"] if mask else [])]
    check("EmbedLayerNormalization", inputs, ("y", "n"), constants=constants, order=order, kinds=[1, I32])


# -- quantized ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [np.uint8, np.int8])
@pytest.mark.parametrize("operator", ["QLinearAdd", "QLinearMul"])
def test_quantized_sums_and_products(operator: str, kind: Any) -> None:
    inputs = {"a": codes(3, 20, kind=kind), "b": codes(3, 20, kind=kind, seed=4)}
    numbers = scales(sa=0.02, sb=0.03, sy=0.0517) | {
        name: kind(value) for name, value in (("za", 7), ("zb", 9), ("zy", 3))
    }
    order = ["a", "sa", "za", "b", "sb", "zb", "sy", "zy"]
    check(operator, inputs, constants=numbers, order=order, kinds=[U8 if kind is np.uint8 else TensorProto.INT8])


@pytest.mark.parametrize("operator", ["QLinearSigmoid", "QLinearLeakyRelu"])
def test_quantized_functions(operator: str) -> None:
    numbers = scales(sx=0.05, sy=0.02) | {"zx": np.uint8(120), "zy": np.uint8(90)}
    check(operator, {"x": codes(3, 50)}, constants=numbers, order=["x", "sx", "zx", "sy", "zy"], kinds=[U8])


@pytest.mark.parametrize(("opset", "axis"), [(13, -1), (13, 1), (11, 1), (11, 2)])
def test_quantized_softmax(opset: int, axis: int) -> None:
    numbers = scales(sx=0.05, sy=1 / 256) | {"zx": np.uint8(120), "zy": np.uint8(0)}
    order = ["x", "sx", "zx", "sy", "zy"]
    x = {"x": codes(2, 3, 10)}
    model = one_node("QLinearSoftmax", x, constants=numbers, order=order, kinds=[U8], domain=DOMAIN, axis=axis)
    model.graph.node[0].attribute.append(helper.make_attribute("opset", opset))
    agree(model, x)


@pytest.mark.parametrize("last", [0, 1])
@pytest.mark.parametrize("operator", ["QLinearAveragePool", "QLinearGlobalAveragePool"])
def test_quantized_pooling(operator: str, last: int) -> None:
    numbers = scales(sx=0.05, sy=0.031) | {"zx": np.uint8(120), "zy": np.uint8(90)}
    more: dict[str, Any] = {} if "Global" in operator else {"kernel_shape": [3, 3], "strides": [2, 2]}
    shape = (1, 7, 9, 4) if last else (1, 4, 7, 9)
    check(operator, {"x": codes(*shape)}, constants=numbers, order=["x", "sx", "zx", "sy", "zy"], kinds=[U8],
          channels_last=last, **more)  # fmt: skip


def test_quantized_tensors_side_by_side() -> None:
    inputs = {"a": codes(2, 3), "b": codes(2, 5, seed=4)}
    numbers = scales(sa=0.02, sb=0.03, sy=0.05) | {
        name: np.uint8(value) for name, value in (("za", 7), ("zb", 9), ("zy", 3))
    }
    check(
        "QLinearConcat",
        inputs,
        constants=numbers,
        order=["sy", "zy", "a", "sa", "za", "b", "sb", "zb"],
        kinds=[U8],
        axis=1,
    )


@pytest.mark.parametrize("per_column", [False, True])
@pytest.mark.parametrize("codes_out", [False, True])
def test_quantized_gemm(codes_out: bool, per_column: bool) -> None:
    numbers = {"sa": np.float32(0.02), "za": np.uint8(7), "b": codes(6, 5, seed=4),
               "sb": random(5, seed=8) ** 2 * np.float32(0.02) + np.float32(0.01) if per_column else np.float32(0.03),
               "zb": np.full(5, 9, np.uint8) if per_column else np.uint8(9),
               "c": np.arange(-200, 300, 100, dtype=np.int32)}  # fmt: skip
    order = ["a", "sa", "za", "b", "sb", "zb", "c"]
    if codes_out:
        numbers |= {"sy": np.float32(0.9), "zy": np.uint8(80)}
        order += ["sy", "zy"]
    check("QGemm", {"a": codes(3, 6)}, constants=numbers, order=order, kinds=[U8 if codes_out else 1])


@pytest.mark.parametrize("bias", [False, True])
def test_a_product_that_quantizes_its_input(bias: bool) -> None:
    numbers = {"b": codes(8, 5), "sb": np.float32(0.02), "zb": np.uint8(120)} | (
        {"c": random(5, seed=8)} if bias else {}
    )
    check("DynamicQuantizeMatMul", {"a": random(3, 8)}, constants=numbers)


def test_a_product_of_integers() -> None:
    numbers = {"b": codes(8, 5), "sa": np.float32(0.1), "sb": np.float32(0.02), "za": np.uint8(3), "zb": np.uint8(120)}
    check("MatMulIntegerToFloat", {"a": codes(3, 8, seed=4)}, constants=numbers)


@pytest.mark.parametrize("zeros", [False, True])
@pytest.mark.parametrize("shape", [(3,), (2, 4)])
def test_rows_of_few_bits(shape: tuple[int, ...], zeros: bool) -> None:
    """The embedding that a builder shares with the head."""
    ids = np.random.default_rng(1).integers(0, 9, shape)
    numbers = {"t": codes(9, 32), "s": random(9, 4, seed=9)} | ({"z": codes(9, 2, seed=2)} if zeros else {})
    order = ["t", "ids", *list(numbers)[1:]]
    check("GatherBlockQuantized", {"ids": ids}, constants=numbers, order=order, bits=4, block_size=16, gather_axis=0,
          quantize_axis=1)  # fmt: skip


@pytest.mark.parametrize("tokens", [1, 3])
@pytest.mark.parametrize("level", [1, 4])
@pytest.mark.parametrize("zeros", [False, True])
@pytest.mark.parametrize(("bits", "rows"), [(2, 64), (4, 64), (4, 40), (4, 32), (8, 64)])
def test_weights_of_few_bits(bits: int, rows: int, zeros: bool, level: int, tokens: int) -> None:
    """At level 4 onnxruntime rounds activations to codes of 8 bits, in blocks."""
    size, columns = 32, 7
    blocks = -(-rows // size)
    numbers = {"b": codes(columns, blocks, size * bits // 8), "s": random(columns * blocks, seed=9)}
    if zeros:
        numbers["z"] = codes(columns * -(-blocks * bits // 8), seed=2)
    check("MatMulNBits", {"a": random(tokens, rows)}, constants=numbers, K=rows, N=columns, bits=bits, block_size=size,
          accuracy_level=level)  # fmt: skip


def test_a_block_of_activations_that_are_0() -> None:
    numbers = {"b": codes(7, 2, 16), "s": random(14, seed=9)}
    a = random(2, 64)
    a[1, 32:] = 0
    check("MatMulNBits", {"a": a}, constants=numbers, K=64, N=7, bits=4, block_size=32, accuracy_level=4)


BLOCKED = """<ir_version: 10, opset_import: ["" : 21]>
g (float[TOKENS, 64] x, float[TOKENS, 8] r) => (float[TOKENS, 8] y) <float[8] b = {1, 2, 3, 4, 5, 6, 7, 8}> {
  w = DequantizeLinear <axis = 0, block_size = 32> (codes, scales, zeros)
  p = MatMul (x, w)
  q = Add (p, b)
  s = Add (q, r)
  y = Relu (s)
}"""


@pytest.mark.parametrize("tokens", [1, 5])
@pytest.mark.parametrize("offset", [0, 3])
@pytest.mark.parametrize(
    ("kind", "low", "narrow"), [("uint4", 0, "INT4"), ("int4", -8, "INT4"), ("int8", -128, "INT8")]
)
def test_codes_of_blocks_stay_codes(kind: str, low: int, narrow: str, offset: int, tokens: int) -> None:
    """Of a product whose bias, residual and activation are its epilogue (onnxruntime rounds activations here)."""
    proto, draw = parser.parse_model(BLOCKED.replace("TOKENS", str(tokens))), np.random.default_rng(3)
    limits = {"uint4": 16, "int4": 8, "int8": 128}
    dtype = np.dtype(np.int8) if kind == "int8" else np.dtype(getattr(ml_dtypes, kind))
    matrix = draw.integers(low, limits[kind], (64, 8)).astype(dtype)
    zeros = np.full((2, 8), (8 if kind == "uint4" else 0) + offset).astype(dtype)
    scales = draw.uniform(0.01, 0.05, (2, 8)).astype(np.float32)
    proto.graph.initializer.extend(
        numpy_helper.from_array(values, name) for name, values in
        (("codes", matrix), ("scales", scales), ("zeros", zeros))
    )  # fmt: skip
    feeds = {"x": random(tokens, 64), "r": random(tokens, 8, seed=2)}
    weights = (matrix.astype(np.float32) - zeros.astype(np.float32)[:1]) * scales.repeat(32, axis=0)
    want = np.maximum(feeds["x"] @ weights + np.arange(1, 9, dtype=np.float32) + feeds["r"], 0)
    near(by_us(proto, feeds)[0]["y"], want, 1e-5, "y")
    made = compile_model(prepare(proto, "m"), Target()).graph
    products = [layer for layer in made.layers if layer.op_type == "GEMM_T"]
    kinds = [made.tensors[layer.inputs[1]].dtype.name for layer in products]
    assert kinds == ["FP32"] * bool(offset) + [narrow] * 2
    assert "ELTWISE" not in {layer.op_type for layer in made.layers} or offset  # one that adds residual and zeros


# -- attention ---------------------------------------------------------------------------------------------------------

MASKS = {
    "": None, "lengths": np.array([3, 5], np.int32), "keys": np.array([[1, 1, 1, 0, 0], [1] * 5], np.int32),
    "queries": np.tril(np.ones((2, 5, 5), np.int32)),
}  # fmt: skip


@pytest.mark.parametrize("causal", [0, 1])
@pytest.mark.parametrize("mask", MASKS)
def test_attention_with_its_projection(mask: str, causal: int) -> None:
    inputs = {"x": random(2, 5, 16)}
    constants = {"w": random(16, 48, seed=4), "b": random(48, seed=5)}
    order = ["x", "w", "b"]
    if mask:
        inputs["m"] = MASKS[mask]
        order.append("m")
    check("Attention", inputs, constants=constants, order=order, num_heads=4, unidirectional=causal)


@pytest.mark.parametrize("causal", [0, 1])
def test_attention_with_a_past(causal: int) -> None:
    inputs = {"x": random(2, 3, 16), "p": random(2, 2, 4, 6, 4, seed=9)}
    constants = {"w": random(16, 48, seed=4), "b": random(48, seed=5)}
    check("Attention", inputs, ("y", "present"), constants=constants, order=["x", "w", "b", "", "p"], num_heads=4,
          unidirectional=causal)  # fmt: skip


@pytest.mark.parametrize("mask", [False, True])
@pytest.mark.parametrize("bias", [False, True])
def test_attention_of_several_heads(bias: bool, mask: bool) -> None:
    inputs = {"q": random(2, 3, 16), "k": random(2, 5, 16, seed=4), "v": random(2, 5, 16, seed=5)}
    constants = {"b": random(48, seed=6)} if bias else {}
    order = ["q", "k", "v", "b" if bias else "", *(["m"] if mask else [])]
    if mask:
        inputs["m"] = MASKS["keys"]
    check("MultiHeadAttention", inputs, constants=constants, order=order, num_heads=4)


def test_attention_of_several_heads_with_a_past() -> None:
    inputs = {"q": random(2, 3, 16), "k": random(2, 3, 16, seed=4), "v": random(2, 3, 16, seed=5),
              "pk": random(2, 4, 6, 4, seed=6), "pv": random(2, 4, 6, 4, seed=7),
              "a": random(2, 4, 3, 9, seed=8)}  # fmt: skip
    check("MultiHeadAttention", inputs, ("y", "ck", "cv"), order=["q", "k", "v", "", "", "a", "pk", "pv"], num_heads=4)


def test_attention_to_keys_of_an_encoder() -> None:
    inputs = {"q": random(2, 3, 16), "k": random(2, 4, 5, 4, seed=4), "v": random(2, 4, 5, 4, seed=5)}
    check("MultiHeadAttention", inputs, num_heads=4)


@pytest.mark.parametrize("interleaved", [0, 1])
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("past", [0, 6])
def test_attention_of_groups(past: int, packed: bool, interleaved: int) -> None:
    steps, total = 3, past + 3
    inputs = {"q": random(1, steps, 64 if not packed else 128)}
    order = ["q", "", ""]
    if not packed:
        inputs |= {"k": random(1, steps, 32, seed=4), "v": random(1, steps, 32, seed=5)}
        order = ["q", "k", "v"]
    inputs |= {"pk": random(1, 2, past, 16, seed=6), "pv": random(1, 2, past, 16, seed=7)} if past else {}
    order += ["pk", "pv"] if past else ["", ""]
    angles = np.outer(np.arange(32), 10.0 ** -np.arange(8)).astype(np.float32)
    constants = {
        "l": np.array([total - 1], np.int32),
        "t": np.array(total, np.int32),
        "cos": np.cos(angles),
        "sin": np.sin(angles),
    }
    check("GroupQueryAttention", inputs, ("y", "ck", "cv"), constants=constants, order=[*order, "l", "t", "cos", "sin"],
          num_heads=4, kv_num_heads=2, do_rotary=1, rotary_interleaved=interleaved)  # fmt: skip


def test_attention_in_a_window() -> None:
    inputs = {"q": random(1, 8, 64), "k": random(1, 8, 32, seed=4), "v": random(1, 8, 32, seed=5)}
    constants = {"l": np.array([7], np.int32), "t": np.array(8, np.int32)}
    check("GroupQueryAttention", inputs, constants=constants, order=["q", "k", "v", "", "", "l", "t"], num_heads=4,
          kv_num_heads=2, local_window_size=3)  # fmt: skip


@pytest.mark.parametrize("interleaved", [0, 1])
@pytest.mark.parametrize("first", [np.array([4]), np.array([[0, 1, 2], [5, 3, 1]])])
def test_rotation(first: Any, interleaved: int) -> None:
    angles = np.outer(np.arange(32), 10.0 ** -np.arange(4)).astype(np.float32)
    inputs = {"x": random(2, 3, 32), "p": first.astype(np.int64)}
    check("RotaryEmbedding", inputs, constants={"c": np.cos(angles), "s": np.sin(angles)}, interleaved=interleaved)
    by_head = {"x": random(2, 4, 3, 8), "p": first.astype(np.int64)}
    check("RotaryEmbedding", by_head, constants={"c": np.cos(angles), "s": np.sin(angles)}, interleaved=interleaved)


# -- refusals ----------------------------------------------------------------------------------------------------------


def refusal(operator: str, inputs: dict[str, Any], **how: Any) -> str:
    with pytest.raises(ModelError) as found:
        prepare(one_node(operator, inputs, domain=DOMAIN, **how), "m.onnx")
    return str(found.value)


def test_an_unknown_operator_is_refused() -> None:
    with pytest.raises(ModelError) as found:
        import_model(prepare(one_node("Inverse", {"x": random(3, 3)}, domain=DOMAIN), "m.onnx"))
    text = "m.onnx: node n (Inverse, opset 20): this operator of com.microsoft is not supported;"
    assert str(found.value).startswith(text)


def test_an_attribute_that_acts_is_refused_and_one_that_does_not_is_not() -> None:
    inputs = {"q": random(1, 3, 16), "k": random(1, 3, 16), "v": random(1, 3, 16)}
    constants = {"l": np.array([2], np.int32), "t": np.array(3, np.int32)}
    how: dict[str, Any] = {
        "constants": constants,
        "order": ["q", "k", "v", "", "", "l", "t"],
        "num_heads": 1,
        "kv_num_heads": 1,
    }
    assert "attribute smooth_softmax is not supported" in refusal(
        "GroupQueryAttention", inputs, smooth_softmax=1, **how
    )
    check("GroupQueryAttention", inputs, smooth_softmax=0, **how)


def test_the_operators_and_their_attributes_are_those_of_onnxruntime() -> None:
    import onnxruntime.capi._pybind_state as runtime

    rows = {row.name: row for row in runtime.get_all_operator_schema() if row.domain == DOMAIN}
    for name, row in CONTRIBUTED.items():
        if name != "SimplifiedLayerNormalization":
            assert set(row.attributes) <= set(rows[name].attributes), name


@pytest.mark.parametrize(("direction", "count"), [("forward", 1), ("bidirectional", 2)])
@pytest.mark.parametrize("kind", [np.uint8, np.int8])
def test_lstm_with_weights_of_codes(direction: str, count: int, kind: Any) -> None:
    steps, width, hidden = 4, 6, 5
    zero = np.full(count, 128 if kind is np.uint8 else 0, kind)
    numbers = {
        "w": codes(count, width, 4 * hidden, kind=kind), "r": codes(count, hidden, 4 * hidden, seed=4, kind=kind),
        "b": random(count, 8 * hidden, seed=5), "w_scale": np.full(count, 0.004, np.float32), "w_zero": zero,
        "r_scale": np.full(count, 0.005, np.float32), "r_zero": zero,
    }  # fmt: skip
    order = ["x", "w", "r", "b", "", "h", "", "", "w_scale", "w_zero", "r_scale", "r_zero"]
    given = {"x": random(steps, 1, width), "h": random(count, 1, hidden, seed=6)}
    check("DynamicQuantizeLSTM", given, ("y", "last", "cell"), constants=numbers, order=order, direction=direction,
          hidden_size=hidden)  # fmt: skip


# -- mixtures of experts -----------------------------------------------------------------------------------------------


def experts(tokens: int, count: int, columns: int = 6) -> tuple[dict[str, Any], dict[str, Any]]:
    """Inputs and constants of a mixture."""
    weights = {
        "fc1": random(count, columns, 8, seed=5), "bias1": random(count, columns, seed=6),
        "fc2": random(count, 8, 6, seed=7), "bias2": random(count, 8, seed=8),
    }  # fmt: skip
    return {"x": random(1, tokens, 8), "router": random(tokens, count, seed=4)}, weights


@pytest.mark.parametrize(("tokens", "count"), [(5, 4), (1, 6)])
@pytest.mark.parametrize("normalized", [0, 1])
def test_mixtures_of_experts(tokens: int, count: int, normalized: int) -> None:
    inputs, constants = experts(tokens, count)
    check("MoE", inputs, constants=constants, k=2, activation_type="silu", normalize_routing_weights=normalized)


@pytest.mark.parametrize("activation", ["relu", "gelu", "silu", "identity"])
def test_activations_of_experts(activation: str) -> None:
    inputs, constants = experts(3, 3)
    check("MoE", inputs, constants=constants, k=1, activation_type=activation)


@pytest.mark.parametrize("limits", [{}, {"swiglu_limit": 0.7}])
@pytest.mark.parametrize("tokens", [1, 4])
def test_gated_experts(tokens: int, limits: dict[str, float]) -> None:
    inputs, constants = experts(tokens, 3, 12)
    check("MoE", inputs, constants=constants, k=2, activation_type="swiglu", swiglu_fusion=1, activation_alpha=1.3,
          activation_beta=0.5, normalize_routing_weights=1, **limits)  # fmt: skip


@pytest.mark.parametrize("tokens", [1, 4])
def test_an_expert_that_no_token_chooses_may_overflow(tokens: int) -> None:
    inputs, constants = experts(tokens, 3)
    inputs["router"][:, 1] = -9
    constants["fc1"][1] = np.inf
    del constants["bias1"]
    check("MoE", inputs, constants=constants, k=2, order=["x", "router", "fc1", "", "fc2", "bias2"])


def packed(values: Any, bits: int) -> Any:
    """Codes, several to a byte, the lowest bits first; the last byte of a row is filled up with zeros."""
    count = 8 // bits
    filled = np.pad(values, [(0, 0)] * (values.ndim - 1) + [(0, -values.shape[-1] % count)])
    parts = filled.reshape(*values.shape[:-1], -1, count)
    return (parts << bits * np.arange(count)).sum(axis=-1).astype(np.uint8)


@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize("block", [0, 16])
@pytest.mark.parametrize("zeros", [False, True])
def test_mixtures_of_experts_of_codes(bits: int, block: int, zeros: bool) -> None:
    generator = np.random.default_rng(5)
    inputs = {"x": random(3, 32), "router": random(3, 4, seed=4)}
    constants: dict[str, Any] = {}
    for layer, (columns, rows) in {"fc1": (48, 32), "fc2": (32, 48)}.items():
        shape = (4, columns, rows // block) if block else (4, columns)
        constants[layer] = packed(generator.integers(0, 1 << bits, (4, columns, rows)), bits)
        constants[f"scales_{layer}"] = generator.uniform(0.01, 0.1, shape).astype(np.float32)
        if zeros:
            constants[f"zeros_{layer}"] = packed(generator.integers(0, 1 << bits, shape), bits)
    order = ["x", "router", "fc1", "scales_fc1", "", "fc2", "scales_fc2", *([""] * 4 if zeros else []),
             *(name for name in constants if name.startswith("zeros"))]  # fmt: skip
    blocks = {"block_size": block} if block else {}
    limit = 2e-2 if bits == 8 and block else 1e-5  # onnxruntime rounds activations to 8 bits there
    check("QMoE", inputs, constants=constants, order=order, limit=limit, k=2, expert_weight_bits=bits, **blocks)


@pytest.mark.parametrize("normalized", [0, 1])
def test_experts_count_what_another_input_than_the_router_says(normalized: int) -> None:
    generator = np.random.default_rng(5)
    inputs = {"x": random(3, 16), "router": random(3, 4, seed=4),
              "mixing": generator.uniform(0.1, 1, (3, 4)).astype(np.float32)}  # fmt: skip
    constants = {name: packed(generator.integers(0, 16, (4, 16, 16)), 4) for name in ("fc1", "fc2")}
    constants["scales"] = generator.uniform(0.01, 0.1, (4, 16)).astype(np.float32)
    order = ["x", "router", "fc1", "scales", "", "fc2", "scales", *[""] * 7, "mixing"]
    check("QMoE", inputs, constants=constants, order=order, k=2, normalize_routing_weights=normalized)


@pytest.mark.parametrize(
    ("attributes", "reason"),
    [
        ({"k": 4}, r"attribute k=4: the model has 3 experts"),
        ({"use_sparse_mixer": 1}, r"attribute use_sparse_mixer is not supported"),
        ({"activation_type": "swiglu"}, r"activation_type=swiglu and swiglu_fusion=0: supported are relu, .* silu"),
        ({"swiglu_limit_after_activation": 1}, r"attribute swiglu_limit_after_activation is not supported"),
    ],
)
def test_mixtures_that_are_refused(attributes: dict[str, Any], reason: str) -> None:
    inputs, constants = experts(2, 3)
    model = one_node("MoE", inputs, constants=constants, domain=DOMAIN, **attributes)
    with pytest.raises(ModelError, match=reason):
        prepare(model, "m")


def test_a_third_product_of_experts_is_refused() -> None:
    inputs, constants = experts(2, 3)
    constants["fc3"] = constants["fc1"]
    order = [*inputs, *(name for name in constants if name != "fc3"), "fc3"]
    with pytest.raises(ModelError, match=r"input fc3 is not supported: export gate and up projection as one product"):
        prepare(one_node("MoE", inputs, constants=constants, order=order, domain=DOMAIN), "m")


# -- models of any number of tokens ------------------------------------------------------------------------------------


@pytest.mark.parametrize("operator", ["MatMulNBits", "MoE"])
def test_what_an_operator_becomes_serves_any_number_of_tokens(operator: str) -> None:
    """Decoders have it once, for the prompt and for each token (`toolchain.decoders.exported`)."""
    how: dict[str, Any] = {"domain": DOMAIN}
    if operator == "MoE":
        few, constants = experts(3, 3)
        many = experts(5, 3)[0]
        how |= {"k": 2}
    else:
        few, many = {"x": random(1, 3, 40)}, {"x": random(1, 5, 40)}
        constants = {"b": codes(16, 3, 8), "scales": np.full(48, 0.1, np.float32)}
        how |= {"K": 40, "N": 16, "bits": 4, "block_size": 16, "accuracy_level": 4}
    other = prepare(one_node(operator, few, constants=constants, **how), "m").proto
    del other.graph.value_info[:]
    other.graph.output[0].type.tensor_type.ClearField("shape")
    for value in other.graph.input:
        for dim, size in zip(value.type.tensor_type.shape.dim, many[value.name].shape, strict=True):
            dim.dim_value = size
    expected = by_us(one_node(operator, many, constants=constants, **how), many)[0]
    assert by_us(other, many)[0]["y"].tolist() == expected["y"].tolist()
