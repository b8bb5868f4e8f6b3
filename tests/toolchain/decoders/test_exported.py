"""Decoders as exporters write them: onnxruntime makes the tokens that a run has to make."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from pyv_npu.config import load
from pyv_npu.workloads import generation
from pyv_npu.workloads.decoder import Generation
from pyv_npu.workloads.generation import GenerationRequest
from toolchain.decoders.decoder import make_decoder
from toolchain.errors import ModelError
from toolchain.examples.decoder_concat import decoder_concat, decoder_concat_learned
from toolchain.examples.decoder_kv import decoder_kv

PROMPT, NEW = (3, 1, 4), 6
SMALL: dict[str, Any] = {"width": 32, "vocab": 64, "layers": 2}


def by_onnxruntime(proto: Any, prompt: Sequence[int], new: int) -> tuple[list[int], Any]:
    """The tokens, and the logits of all but the last."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
    kinds = {"tensor(float)": np.float32, "tensor(float16)": np.float16}
    inputs = {one.name: one for one in session.get_inputs()}
    past = {key: np.zeros((1, one.shape[1], 0, 16 if isinstance(one.shape[3], str) else one.shape[3]), kinds[one.type])
            for key, one in inputs.items() if len(one.shape) == 4}  # fmt: skip
    tokens, step, logits = list(prompt), list(prompt), []
    names = [one.name for one in session.get_outputs()]
    while len(tokens) < len(prompt) + new:
        seen = next(iter(past.values())).shape[2]
        given = {
            "input_ids": np.array([step], np.int64), "attention_mask": np.ones((1, seen + len(step)), np.int64),
            "position_ids": np.arange(seen, seen + len(step))[None],
        }  # fmt: skip
        feeds = {key: values for key, values in given.items() if key in inputs}
        results = dict(zip(names, session.run(None, {**feeds, **past}), strict=True))
        past = {key: results[key.replace("past_key_values", "present")] for key in past}
        logits.append(results["logits"][0])
        step = [int(results["logits"][0, -1].argmax())]
        tokens += step
    return tokens, np.concatenate(logits)


def grouped(**settings: Any) -> Any:
    """A decoder of onnxruntime's builder: GroupQueryAttention turns and attends, the mask tells the lengths."""
    proto = decoder_kv(**{**SMALL, **settings, "width": 64})
    graph, nodes = proto.graph, list[Any]()
    turned = {node.output[0]: node for node in graph.node if node.op_type == "RotaryEmbedding"}
    constants = {"one": np.array(1), "place": np.array(1), "axis": np.array([1])}
    graph.initializer.extend(numpy_helper.from_array(values, key) for key, values in constants.items())
    lengths: tuple[tuple[str, list[str], str, dict[str, Any]], ...] = (
        ("ReduceSum", ["attention_mask", "axis"], "sum", {"keepdims": 1}), ("Sub", ["sum", "one"], "last", {}),
        ("Cast", ["last"], "seqlens", {"to": 6}), ("Shape", ["attention_mask"], "shape", {}),
        ("Gather", ["shape", "place"], "whole", {}), ("Cast", ["whole"], "total", {"to": 6}),
    )  # fmt: skip
    for operator, inputs, output, attributes in lengths:
        nodes.append(helper.make_node(operator, inputs, [output], **attributes))
    for node in graph.node:
        if node.op_type == "RotaryEmbedding":
            continue
        if node.op_type == "Attention":
            q, k = (turned[name] for name in node.input[:2])
            heads = {one.name: one.i for one in node.attribute}
            inputs = [q.input[0], k.input[0], *node.input[2:3], *node.input[4:6], "seqlens", "total", *q.input[1:3]]
            node = helper.make_node(
                "GroupQueryAttention", inputs, list(node.output), name=node.name, domain="com.microsoft",
                num_heads=heads["q_num_heads"], kv_num_heads=heads["kv_num_heads"], do_rotary=1,
            )  # fmt: skip
        nodes.append(node)
    results = [onnx.NodeProto.FromString(node.SerializeToString()) for node in nodes]
    del graph.node[:]
    graph.node.extend(results)
    kept = [value for value in graph.input if value.name != "position_ids"]
    value = helper.make_tensor_value_info("attention_mask", 7, ["batch", "past_and_tokens"])
    del graph.input[:]
    graph.input.extend([*kept[:1], value, *kept[1:]])
    for node in graph.node:
        if node.op_type == "RMSNormalization":
            node.op_type = "SimplifiedLayerNormalization"
    del proto.opset_import[:]
    proto.opset_import.extend([helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)])
    proto.ir_version = 8
    return proto


def masked(rank: int = 3, cap: float = 0, window: int = 0, **settings: Any) -> Any:
    """A decoder whose Attention has caches and a mask of `attention_mask`; rows of tokens (rank 3) or of heads (4)."""
    proto = decoder_kv(**{**SMALL, **settings})
    graph, nodes = proto.graph, list[Any]()

    def node(operator: str, *inputs: str, **attributes: Any) -> str:
        nodes.append(helper.make_node(operator, inputs, [f"{operator}.{len(nodes)}"], **attributes))
        return str(nodes[-1].output[0])

    constants = {"zero": np.array(0), "one": np.array(1), "first": np.array([0]), "second": np.array([1]),
                 "window": np.array(window), "pair": np.array([0, 1])}  # fmt: skip
    for heads in (4, 2):
        constants[f"rows.{heads}"] = np.array([0, 0, heads, 8])
    constants["flat"] = np.array([0, 0, -1])
    graph.initializer.extend(numpy_helper.from_array(values, key) for key, values in constants.items())
    total, tokens = (node("Gather", node("Shape", name), "one") for name in ("attention_mask", "input_ids"))
    past = node("Sub", total, tokens)
    own = node("Unsqueeze", node("Add", node("Range", "zero", tokens, "one"), past), "second")
    keys = node("Unsqueeze", node("Range", "zero", total, "one"), "first")
    seen = node("And", node("LessOrEqual", keys, own), node("Cast", "attention_mask", to=9))
    if window:
        seen = node("And", seen, node("Greater", keys, node("Sub", own, "window")))
    mask = node("Unsqueeze", seen, "pair")
    for one in graph.node:
        if one.op_type != "Attention":
            nodes.append(one)
            continue
        inputs, output = list(one.input[:3]), one.output[0]
        attributes: dict[str, Any] = {"q_num_heads": 4, "kv_num_heads": 2} if rank == 3 else {}
        if rank == 4:
            inputs = [node("Transpose", node("Reshape", name, f"rows.{heads}"), perm=[0, 2, 1, 3])
                      for name, heads in zip(inputs, (4, 2, 2), strict=True)]  # fmt: skip
            output = f"{output}.heads"
        attributes |= {"softcap": cap} if cap else {}
        nodes.append(
            helper.make_node("Attention", [*inputs, mask, *one.input[4:6]], [output, *one.output[1:]], one.name,
                             scale=1.5, **attributes)
        )  # fmt: skip
        if rank == 4:
            turned = node("Transpose", output, perm=[0, 2, 1, 3])
            nodes.append(helper.make_node("Reshape", [turned, "flat"], [one.output[0]]))
    ordered = [onnx.NodeProto.FromString(one.SerializeToString()) for one in nodes]
    del graph.node[:]
    graph.node.extend(ordered)
    graph.input.append(helper.make_tensor_value_info("attention_mask", 7, ["batch", "past_and_tokens"]))
    return proto


def copied(**settings: Any) -> Any:
    """As TorchScript writes a cache of transformers: joined with nothing first, and its size read from the present."""
    proto = decoder_concat(**settings)
    nodes = list[Any]()
    for node in proto.graph.node:
        if node.op_type == "Concat" and node.input[0].startswith("past_key_values"):
            nodes.append(helper.make_node("Concat", [node.input[0]], [f"{node.input[0]}.joined"], axis=-2))
            node.input[0] = f"{node.input[0]}.joined"
        nodes.append(node)
        if node.output[0] == "present.1.value":
            nodes.append(helper.make_node("Shape", [node.output[0]], ["present.shape"]))
            nodes.append(helper.make_node("Gather", ["present.shape", "last"], ["size"], axis=0))
    proto.graph.initializer.extend(
        numpy_helper.from_array(np.array(values), key) for key, values in (("last", [3]), ("axes", [0, 1]))
    )
    norm = nodes[-1]
    nodes[-1:] = [
        helper.make_node("Cast", ["size"], ["number"], to=1), helper.make_node("Div", ["number", "number"], ["unit"]),
        helper.make_node("Mul", [norm.input[0], "unit"], ["scaled"]),
        helper.make_node("MatMul", ["scaled", norm.input[1]], list(norm.output)),
    ]  # fmt: skip
    ordered = [onnx.NodeProto.FromString(one.SerializeToString()) for one in nodes]
    del proto.graph.node[:]
    proto.graph.node.extend(ordered)
    return proto


def capped(**settings: Any) -> Any:
    """Gemma 2's scores, cap * tanh(scores / cap), as primitives."""
    proto = decoder_concat(**settings)
    proto.graph.initializer.append(numpy_helper.from_array(np.array(2, np.float32), "cap"))
    nodes = list[Any]()
    masks = {one.input[0] for one in proto.graph.node if one.op_type == "Softmax"}
    for node in proto.graph.node:
        if node.output[0] in masks:
            name = node.input[0]
            nodes += [
                helper.make_node("Div", [name, "cap"], [f"{name}.ratio"]),
                helper.make_node("Tanh", [f"{name}.ratio"], [f"{name}.bent"]),
                helper.make_node("Mul", [f"{name}.bent", "cap"], [f"{name}.capped"]),
            ]
            node.input[0] = f"{name}.capped"
        nodes.append(node)
    ordered = [onnx.NodeProto.FromString(one.SerializeToString()) for one in nodes]
    del proto.graph.node[:]
    proto.graph.node.extend(ordered)
    return proto


def unnamed_size(**settings: Any) -> Any:
    """As onnxruntime-genai's builder has written it since 0.18: the size of a head in the caches is a name."""
    proto = grouped(**settings)
    for value in (*proto.graph.input, *proto.graph.output):
        if len(value.type.tensor_type.shape.dim) == 4:
            value.type.tensor_type.shape.dim[3].dim_param = "kv_cache_dim"
    return proto


FORMS: dict[str, Callable[..., Any]] = {
    "masked": masked, "masked heads": partial(masked, rank=4), "masked window": partial(masked, cap=3.0, window=3),
    "copied": copied, "capped": capped, "named size": unnamed_size,
    "GQA": decoder_concat, "MHA": partial(decoder_concat, kv_heads=4), "MQA": partial(decoder_concat, kv_heads=1),
    "learned": decoder_concat_learned,
    "operator": grouped,
}  # fmt: skip


def _generated(proto: Any, level: str = "IA", mode: str = "tight", **options: Any) -> Any:
    """Generates on one tensor engine: nothing is measured while a step is compiled."""
    config = load(overrides={"run.sim_level": level, "npu.mode": mode, "npu.te.count": 1}).config
    return Generation(make_decoder(proto, "m"), GenerationRequest(PROMPT, NEW, **options)).run(config)


@pytest.mark.parametrize("form", list(FORMS))
def test_tokens_and_logits_are_those_of_onnxruntime(form: str) -> None:
    proto = FORMS[form](**SMALL)
    tokens, logits = by_onnxruntime(proto, PROMPT, NEW)
    results = _generated(proto)
    assert results.correct
    assert list(results.detail.tokens) == tokens
    np.testing.assert_allclose(results.detail.logits, logits, atol=1e-5 * np.abs(logits).max())


@pytest.mark.parametrize("form", [pytest.param("GQA", marks=pytest.mark.slow), "learned"])
def test_all_levels_and_modes_make_the_same_tokens(form: str) -> None:
    proto = FORMS[form](**{**SMALL, "layers": 1})
    runs = [_generated(proto, level, mode).json["generate"] for level, mode in
            (("IA", "tight"), ("CA_HYBRID", "loose"), ("CA_HYBRID", "tight"))]  # fmt: skip
    assert len({tuple(one["tokens"]) for one in runs}) == 1
    assert len({str(one["outputs_sha256"]) for one in runs}) == 1


def wide_logits(**settings: Any) -> Any:
    """As exporters write it where the head is computed in fp32: the logits are converted."""
    proto = decoder_concat(**settings)
    next(node for node in proto.graph.node if node.output[0] == "logits").output[0] = "narrow"
    proto.graph.node.append(helper.make_node("Cast", ["narrow"], ["logits"], to=1))
    logits = next(value for value in proto.graph.output if value.name == "logits")
    logits.type.tensor_type.elem_type = onnx.TensorProto.FLOAT
    return proto


@pytest.mark.parametrize("form", [decoder_concat, wide_logits, grouped, unnamed_size])
def test_decoders_in_fp16(form: Callable[..., Any]) -> None:
    proto = form(kind="float16", **SMALL)
    results = _generated(proto)
    assert results.correct
    assert list(results.detail.tokens) == by_onnxruntime(proto, PROMPT, NEW)[0]


def test_other_logits_in_fp16_differ() -> None:
    """Double precision judges where a rounding of fp16 does more than the limit; a fault does more than that."""
    proto = grouped(kind="float16", **{**SMALL, "layers": 8})
    results = _generated(proto)
    rounding = results.json["generate"]["rounding"]
    assert results.correct and rounding["ok"]
    assert rounding["error"] <= rounding["limit"] <= 8 * rounding["arithmetic"]
    logits = results.detail.logits.copy()
    logits[-1] *= np.float16(0.99)
    request = GenerationRequest(PROMPT, NEW)
    compared = generation.compare_logits(make_decoder(proto, "m"), request, results.detail.tokens, logits, [{}] * NEW)
    assert not compared["rounding"]["ok"]
    assert not compared["steps"][-1]["ok"]


def test_logits_of_the_last_token_alone_are_refused() -> None:
    """As onnxruntime-genai's builder writes them with `prune_lm_head`."""
    proto = decoder_concat(**SMALL)
    head = next(node for node in proto.graph.node if node.output[0] == "logits")
    proto.graph.initializer.append(numpy_helper.from_array(np.array([-1]), "last_token"))
    proto.graph.node.insert(
        list(proto.graph.node).index(head),
        helper.make_node("Gather", [head.input[0], "last_token"], ["pruned"], axis=1),
    )
    head.input[0] = "pruned"
    with pytest.raises(ModelError, match=r"output logits has shape \[1, 1, 64\] for 3 tokens: must be \[1, 3, 64\]: "):
        _generated(proto)


def test_what_is_compiled_has_an_attention_and_positions() -> None:
    """The mask is part of the Attention; learned positions, which the model counts, come from outside."""
    decoder = make_decoder(decoder_concat_learned(**SMALL), "m")
    operators = [node.op_type for node in decoder.proto.graph.node]
    assert operators.count("Attention") == SMALL["layers"]
    assert not {"Softmax", "Where", "Range"}.intersection(operators)
    assert {"input_ids", "position_ids"} <= {value.name for value in decoder.proto.graph.input}
    assert decoder.positions
    assert decoder.source is not None


@pytest.mark.slow
def test_narrow_caches() -> None:
    proto = decoder_concat(**SMALL)
    assert _generated(proto, kv_bits=8).json["generate"]["logits_error"] < 0.05


def test_products_in_int8_serve_other_numbers_of_tokens_than_the_samples() -> None:
    proto = decoder_concat(**{**SMALL, "layers": 1})
    assert _generated(proto, precision="int8").json["generate"]["original_error"] < 0.2


def _node(model: Any, operator: str) -> Any:
    return next(node for node in model.graph.node if node.op_type == operator)


def _everything_is_seen(model: Any) -> None:
    """The mask is left out."""
    for node in model.graph.node:
        if node.op_type == "Softmax":
            add = next(one for one in model.graph.node if one.output[0] == node.input[0])
            node.input[0] = add.input[0]


def _no_softmax(model: Any) -> None:
    for node in model.graph.node:
        if node.op_type == "Softmax":
            node.op_type = "LogSoftmax"


def _one_token(model: Any) -> None:
    """As torch.onnx.export writes it without dynamic shapes."""
    for dim in next(value for value in model.graph.input if value.name == "input_ids").type.tensor_type.shape.dim:
        dim.dim_value = 1


def _mask_is_added(model: Any) -> None:
    """A length that is neither a position nor a mask reaches the logits."""
    nodes = [
        helper.make_node("Shape", ["past_key_values.0.key"], ["sizes"]),
        helper.make_node("Cast", ["sizes"], ["lengths"], to=1),
        helper.make_node("ReduceMax", ["lengths"], ["length"], keepdims=0),
        helper.make_node("Add", ["scores", "length"], ["logits"]),
    ]
    next(node for node in model.graph.node if node.output[0] == "logits").output[0] = "scores"
    model.graph.node.extend(nodes)


def _positions_of_bytes(model: Any) -> None:
    positions = next(value for value in model.graph.input if value.name == "position_ids")
    positions.type.tensor_type.elem_type = onnx.TensorProto.UINT8


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (_everything_is_seen, r"node concat.present.0.key \(Concat\): no causal attention of its cache past_key"),
        (_no_softmax, "no causal attention of its cache past_key_values.0.key: supported are MatMul, scale"),
        (_mask_is_added, r"node Shape_sizes \(Shape\): sizes depends on the length of the past, and is no function"),
        (lambda m: m.graph.input.append(helper.make_tensor_value_info("images", 1, [1, 4])),
         r"input images has shape \[1, 4\]: an exported decoder has input_ids, attention_mask, position_ids and"),
        (_positions_of_bytes, r"input position_ids is UINT8: must be INT64 or INT32"),
        (_one_token, r"input input_ids has shape \[1, 1\]: a decoder that generates has any number of tokens"),
    ],
)  # fmt: skip
def test_what_is_no_such_decoder_is_refused_in_one_line(change: Callable[[Any], object], message: str) -> None:
    model = decoder_concat(**SMALL)
    change(model)
    with pytest.raises(ModelError, match=message) as caught:
        make_decoder(model, "m")
    assert "\n" not in str(caught.value)
