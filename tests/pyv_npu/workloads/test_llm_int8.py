"""Decoders whose products and caches are of integers: prompt and generation at every level, against onnx.reference."""

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from shares import slow

from npu_device.abi.opcodes import Opcode
from pyv_npu.cli.main import main
from pyv_npu.config import load
from pyv_npu.errors import UsageError
from pyv_npu.result import Result
from pyv_npu.workloads.compiled import target_of
from pyv_npu.workloads.decoder import Generation, ReadyDecoder
from pyv_npu.workloads.generation import GenerationDetail, GenerationRequest
from pyv_npu.workloads.ia import FunctionalMachine
from toolchain.decoders.decoder import Decoder, compile_decoder, make_decoder
from toolchain.decoders.reference import Reference
from toolchain.errors import ModelError
from toolchain.examples import DECODERS
from toolchain.ir.operations import PRODUCTS, append_operands

REQUEST = GenerationRequest((3, 1, 4, 1, 5), 4, given=(9, 2))
WAYS = (("IA_TIMING", "tight"), ("CA_HYBRID", "loose"), ("CA_HYBRID", "tight"))
INT8 = [name for name in DECODERS if "int8" in name]
CACHED = "decoder_kv_int8_cache"
CONFIG = load().config


@cache
def decoder(name: str) -> Decoder:
    return make_decoder(DECODERS[name](width=64, vocab=96), name)


def changed(change: Callable[[Any], object]) -> Decoder:
    """The decoder with caches of INT8, after a change."""
    proto = onnx.ModelProto.FromString(decoder(CACHED).proto.SerializeToString())
    change(proto)
    return make_decoder(proto, "m")


def generated(
    made: Decoder, level: str = "IA", mode: str = "tight", request: GenerationRequest = REQUEST
) -> Result[GenerationDetail]:
    return Generation(made, request).run(load(overrides={"run.sim_level": level, "npu.mode": mode}).config)


@cache
def ready(name: str) -> ReadyDecoder:
    return Generation(decoder(name), REQUEST).prepare(CONFIG)


@cache
def at_ia(name: str) -> Result[GenerationDetail]:
    return ready(name).run(load(overrides={"run.sim_level": "IA"}).config)


@pytest.mark.parametrize("name", [CACHED, *slow(*(name for name in INT8 if name != CACHED))])
def test_every_token_is_that_of_the_reference_at_every_level(name: str) -> None:
    first = at_ia(name)
    assert first.correct
    assert first.detail.tokens[:7] == (*REQUEST.prompt, *REQUEST.given)
    for level, mode in WAYS:
        one = ready(name).run(load(overrides={"run.sim_level": level, "npu.mode": mode}).config)
        assert one.correct
        assert one.detail.tokens == first.detail.tokens
        assert one.json["generate"]["outputs_sha256"] == first.json["generate"]["outputs_sha256"]
        assert one.json["generate"]["codes"] == first.json["generate"]["codes"]


@pytest.mark.parametrize("name", INT8)
def test_the_codes_of_every_step_are_checked(name: str) -> None:
    made = at_ia(name).json["generate"]
    tensors = sum(node.op_type == "QuantizeLinear" for node in decoder(name).proto.graph.node)
    tensors -= 4 * name.endswith("cache")  # the present is the cache
    assert made["codes"]["ok"] and made["codes"]["tensors"] == tensors * REQUEST.new
    assert {step["limit"] for step in made["steps"]} == {1e-5}


@pytest.mark.parametrize("name", INT8)
def test_every_product_is_one_of_integers(name: str) -> None:
    graph = ready(name).compiled.graph
    products = [layer for layer in graph.layers if layer.op_type in PRODUCTS]
    assert len(products) == 2 * (2 * 7 + 1)  # of the prompt and of a step: seven in each layer, and the logits
    assert {graph.tensors[tensor].dtype.name for layer in products for tensor in layer.inputs[:2]} == {"INT8"}
    assert not [layer for layer in graph.layers if layer.text("function") == "DEQUANT"]  # attention reads floats


def test_int8_takes_a_quarter_of_the_bytes_of_the_matrices() -> None:
    sizes = [len(DECODERS[name]().SerializeToString()) for name in ("decoder_kv", "decoder_kv_int8")]
    assert sizes[1] < 0.45 * sizes[0]  # embedding and rotary tables stay floats


@pytest.mark.parametrize("name", ["decoder_kv_int8_cache", "decoder_kv_mha_int8_cache"])
def test_the_caches_hold_the_codes_of_the_reference(name: str) -> None:
    model = decoder(name)
    made = compile_decoder(model, target_of(CONFIG.npu), len(REQUEST.prompt), 13)
    machine = FunctionalMachine(made.compiled, CONFIG.npu, ReadyDecoder(REQUEST, made).inputs)
    machine.run(made.compiled.commands[: made.prompt_commands])
    present = Reference(model).step(REQUEST.prompt, Reference(model).empty()).past
    for one in model.caches:
        cached = np.frombuffer(machine.read(one.past), np.int8).reshape(1, one.heads, 13, one.head_dim)
        assert present[one.past].dtype == np.int8
        assert np.array_equal(cached[:, :, :5], present[one.past])
        assert len(np.unique(cached[:, :, :5])) > 32


def test_codes_are_appended_as_they_are_and_take_a_quarter_of_the_bytes() -> None:
    wide, narrow = (at_ia(name) for name in ("decoder_kv_int8", CACHED))
    sizes = [made.json["generate"]["kv_bytes_alloc"] for made in (wide, narrow)]
    assert sizes[0] == 4 * sizes[1]
    graph = narrow.detail.compiled.compiled.graph
    appending = [layer for layer in graph.layers if append_operands(layer)]
    assert appending
    assert {
        graph.tensors[name].dtype.name for one in appending for name in (*append_operands(one), *one.outputs[1:])
    } == {"INT8"}
    commands = narrow.detail.compiled.compiled.commands[narrow.detail.compiled.prompt_commands :]
    assert Opcode.KV_READ not in {Opcode(command.descriptor.opcode) for command in commands}
    quantized = [layer for layer in graph.layers if layer.text("function") in ("QUANT", "DEQUANT")]
    assert not any(graph.tensors[name].role == "kv" for layer in quantized for name in layer.inputs)


def _grids(proto: Any) -> list[Any]:
    """The zero points of all keys and values."""
    attentions = [node for node in proto.graph.node if node.op_type == "Attention"]
    makers = {node.output[0]: node for node in proto.graph.node}
    names = {makers[node.input[at]].input[2] for node in attentions for at in (1, 2)}
    return [one for one in proto.graph.initializer if one.name in names]


def _unsigned(proto: Any) -> None:
    """The same numbers as UINT8, with the zero point in the middle."""
    for zero in _grids(proto):
        zero.CopyFrom(numpy_helper.from_array(np.uint8(128), zero.name))
    for value in (*proto.graph.input, *proto.graph.output):
        if value.type.tensor_type.elem_type == onnx.TensorProto.INT8:
            value.type.tensor_type.elem_type = onnx.TensorProto.UINT8


def test_codes_may_have_a_zero_point() -> None:
    made = generated(changed(_unsigned), "CA_HYBRID")
    assert made.correct
    assert np.array_equal(made.detail.logits, at_ia(CACHED).detail.logits)


def _other_scale(proto: Any) -> None:
    """New keys have another scale than their cache."""
    node = next(node for node in proto.graph.node if node.name == "rotaryembedding6.quantize")
    back = next(node for node in proto.graph.node if node.name == "rotaryembedding6.dequantize")
    proto.graph.initializer.append(numpy_helper.from_array(np.float32(0.5), "other"))
    node.input[1] = back.input[1] = "other"


def _float_present(proto: Any) -> None:
    value = next(value for value in proto.graph.output if value.name == "present.0.key")
    value.type.tensor_type.elem_type = onnx.TensorProto.FLOAT


def _read_twice(proto: Any) -> None:
    proto.graph.node.append(onnx.helper.make_node("Shape", ["past_key_values.0.key.dq"], ["length"], name="length"))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (_other_scale, r"node attention.0 \(Attention\): the new keys must be quantized as their past: INT8, with its"),
        (_float_present, "past_key_values.0.key is INT8 and present.0.key FLOAT: both must have one type"),
        (_read_twice, r"node length \(Shape\) reads past_key_values.0.key.dq: a cache is read by its Attention only"),
    ],
)
def test_a_cache_with_other_codes_is_refused_in_one_line(change: Callable[[Any], object], message: str) -> None:
    with pytest.raises(ModelError, match=message) as caught:
        generated(changed(change))
    assert "\n" not in str(caught.value)


def test_the_width_of_codes_cannot_be_chosen() -> None:
    with pytest.raises(UsageError, match="--qbits-kv 8: the model keeps keys and values as INT8: drop it"):
        generated(decoder(CACHED), request=GenerationRequest((1,), 1, kv_bits=8))


def test_a_float_decoder_is_quantized_by_an_option(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "decoder.onnx"
    onnx.save(DECODERS["decoder_kv"](width=64, vocab=96), path)
    words = ["run", str(path), "--generate", "3", "--prompt", "3,1,4", "--precision", "int8", "--json"]
    assert main([*words, "--report", str(tmp_path / "out")]) == 0
    assert 'data-figure="tight.outputs as the reference">yes<' in (tmp_path / "out/report.html").read_text()
    made = json.loads(capsys.readouterr().out)["generate"]
    assert made["codes"]["ok"] and all(step["ok"] for step in made["steps"])
    assert 1e-3 < made["original_error"] < 0.2
    assert made["floats"] == {f"attention.{at}": "Attention: converted are Conv, Gemm, MatMul" for at in (0, 1)}
    np.savez(tmp_path / "ids.npz", input_ids=np.array([[1, 2, 3]]))
    assert main([*words, "--calibration", str(tmp_path / "ids.npz")]) == 0
    assert json.loads(capsys.readouterr().out)["generate"]["original_error"] != made["original_error"]


def test_weights_may_be_narrower_than_activations(tmp_path: Path) -> None:
    """W4A8, and one product of 8 bits: in the prompt and in a step."""
    path = tmp_path / "q.yaml"
    path.write_text("qbits_weight_default: 4\noverride:\n  layer_2: {weight: 8}\n")
    made = generated(decoder("decoder_kv"), request=REQUEST._replace(precision="int8", qconfig=path))
    assert made.correct and made.json["generate"]["codes"]["ok"]
    graph = made.detail.compiled.compiled.graph
    products = [layer for layer in graph.layers if layer.op_type in PRODUCTS]
    kinds = {layer.id: graph.tensors[layer.inputs[1]].dtype.name for layer in products}
    assert {name for name, kind in kinds.items() if kind == "INT8"} == {"prompt.matmul4", "matmul4"}
    assert {kind for name, kind in kinds.items() if "matmul4" not in name} == {"INT4"}


@pytest.mark.parametrize(
    ("name", "words", "message"),
    [
        ("decoder_kv_int8", ["--precision", "int8"], "--precision int8: the model is quantized already: drop the"),
        ("decoder_kv_fp16", ["--precision", "int8"], "--precision int8: no product of floats to quantize: drop the"),
        (
            "decoder_kv",
            ["--precision", "fp16"],
            "takes --passes, --granularity, --submit, --qconfig and --precision int8 of",
        ),
        ("decoder_kv", ["--precision", "int8", "--calibration", "x.npz"], "must hold input_ids, tokens of 0..95"),
        ("decoder_kv", ["--calibration", "x.npz"], "--calibration: a decoder that generates takes"),
    ],
)
def test_what_cannot_be_quantized_is_one_line(
    name: str, words: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    np.savez("x.npz", input_ids=np.array([[96]]))
    onnx.save(DECODERS[name](width=64, vocab=96), "decoder.onnx")
    assert main(["run", "decoder.onnx", "--generate", "3", "--prompt", "3,1,4", *words]) in (64, 65)
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1
