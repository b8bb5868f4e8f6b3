"""What a decoder in ONNX has to have, and what becomes of it."""

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

from npu_device.abi.opcodes import Opcode
from toolchain.codegen import Target
from toolchain.decoders.decoder import LOG, PROMPT, CompiledDecoder, compile_decoder, make_decoder
from toolchain.decoders.generation import merge_graphs
from toolchain.errors import ModelError
from toolchain.examples import DECODERS
from toolchain.examples.decoder_kv import decoder_kv
from toolchain.ir.graph import Graph, LayerIR, Role, TensorIR
from toolchain.ir.text import parse, render


def compiled(tokens: int = 4, t_max: int = 32, passes: str = "all", **settings: Any) -> CompiledDecoder:
    model = decoder_kv(**{"width": 64, "vocab": 96, **settings})
    return compile_decoder(make_decoder(model, "m"), Target(), tokens, t_max, passes=passes)


def test_caches_are_shared_and_have_their_role() -> None:
    made = compiled()
    graph = made.compiled.graph
    caches = [graph.tensors[cache.past] for cache in made.decoder.caches]
    assert [cache.shape for cache in caches] == [(1, 2, 32, 16)] * 4  # R11, R12
    assert {(cache.role, cache.storage_class) for cache in caches} == {(Role.KV, "DRAM")}
    assert all(made.address(cache.id) % 64 == 0 for cache in caches)
    assert not any(name.startswith(PROMPT + "w") for name in graph.constants)  # weights are there once


@pytest.mark.parametrize(("passes", "appends"), [("all", 0), ("-kv-forwarding", 2)])
def test_a_token_attends_once_per_layer_and_appends_there_or_twice(passes: str, appends: int) -> None:
    made = compiled(layers=3, passes=passes)
    step = made.compiled.commands[made.prompt_commands :]
    opcodes = [Opcode(command.descriptor.opcode) for command in step]
    assert opcodes.count(Opcode.ATTN_T) == 3
    assert opcodes.count(Opcode.KV_APPEND) == appends * 3 + 1  # the last one logs the logits
    assert Opcode.KV_READ not in opcodes  # R18: appending loads nothing
    assert [(one.layer, one.side) for one in made.caches] == [(i // 2, i % 2) for i in range(6)]


def test_the_trace_has_tensors_and_every_submission() -> None:
    made = compiled(layers=2, tokens=1).compiled
    lines = [json.loads(line) for line in made.trace]
    caches = [line for line in lines if line["stage"] == "tensors" and line["role"] == "kv" and "past" in line["id"]]
    assert len(caches) == 4
    assert {(line["layout"], line["storage_class"], line["qbits"]) for line in caches} == {("[B, H, T, D]", "DRAM", 32)}
    updates = [line for line in lines if line["stage"] == "import" and line["op"] == "KV_UPDATE"]
    assert [line["qbits_kv"] for line in updates] == [32] * 4  # two layers, of the prompt and of a step
    submitted = [line for line in lines if line["stage"] == "commands"]
    pointers = [int(line["desc_ptr"], 16) for line in submitted if line["op"] == "ENQCMD_T"]
    assert pointers == [made.memory.commands + 64 * index for index in range(len(made.commands))]
    done = 0
    for line in submitted:
        if line["op"] == "ENQCMD_T":
            done += 1
            assert line["ticket"] == done
        elif line["op"] == "WAIT":
            assert 1 <= line["ev"] <= done
    assert submitted[-1] == {"stage": "commands", "op": "TWAIT", "ticket": done, "scope": "global"}
    (attention, *_) = (line for line in submitted if line["op"] == "ATTN_T")
    assert [tile["tile_type"] for tile in attention["kv_tiles"]] == ["kv_read", "kv_write"]
    assert attention["kv_tiles"][1]["tile_elements"] == 16  # D, for each head


def test_commands_do_not_depend_on_the_position() -> None:
    step = [compiled(tokens=tokens) for tokens in (2, 3)]
    words = [
        [(c.layer, c.descriptor.opcode, c.block.per_op[:24] if c.block else b"")
         for c in one.compiled.commands[one.prompt_commands :]]
        for one in step
    ]  # fmt: skip
    assert words[0] == words[1]


def test_the_graph_can_be_read_back() -> None:
    graph = compiled().compiled.graph
    again = parse(render(graph))
    assert [layer.op_type for layer in again.layers] == [layer.op_type for layer in graph.layers]
    assert again.tensors[LOG].role is Role.KV


def test_merging_keeps_one_copy_of_equal_constants() -> None:
    def graph(weight: float) -> Graph:
        made = Graph("g")
        for name, role in (("x", Role.ACTIVATION), ("w", Role.WEIGHT), ("c", Role.WEIGHT), ("y", Role.ACTIVATION)):
            made.tensors[name] = TensorIR(
                name, role, (2, 2), next(iter(compiled().compiled.graph.tensors.values())).dtype
            )
        made.constants = {"w": np.full((2, 2), weight), "c": np.ones((2, 2))}
        made.layers = [LayerIR("l", "ELTWISE", ("x", "w"), ("y",), {"function": "ADD", "m": 2, "n": 2})]
        made.inputs, made.outputs = ("x",), ("y",)
        return made

    both = merge_graphs(graph(1.0), graph(2.0), "p.", ())
    assert sorted(both.constants) == ["c", "p.w", "w"]
    assert [(layer.id, layer.inputs) for layer in both.layers] == [("p.l", ("p.x", "p.w")), ("l", ("x", "w"))]
    assert (both.inputs, both.outputs) == (("p.x", "x"), ("p.y", "y"))
    assert sorted(merge_graphs(graph(1.0), graph(1.0), "p.", ("x",)).tensors) == ["c", "p.y", "w", "x", "y"]


def _rename(model: Any, old: str, new: str) -> None:
    for value in (*model.graph.input, *model.graph.output):
        value.name = new if value.name == old else value.name
    for node in model.graph.node:
        node.input[:] = [new if name == old else name for name in node.input]
        node.output[:] = [new if name == old else name for name in node.output]


def _input(model: Any, name: str) -> None:
    model.graph.input.append(helper.make_tensor_value_info(name, 1, [1, 4]))


def _attention(model: Any) -> Any:
    return next(node for node in model.graph.node if node.op_type == "Attention")


def _reads(model: Any, tensor: str) -> None:
    model.graph.node.append(helper.make_node("Shape", [tensor], ["length"], name="length"))


def _caches(model: Any, heads: int, size: int, side: str = "") -> None:
    for value in (*model.graph.input, *model.graph.output):
        dims = value.type.tensor_type.shape.dim
        if len(dims) == 4 and side in value.name:
            dims[1].dim_value, dims[3].dim_value = heads, size


def _attribute(model: Any, name: str, value: Any) -> None:
    kept = [one for one in _attention(model).attribute if one.name != name]
    del _attention(model).attribute[:]
    _attention(model).attribute.extend([*kept, helper.make_attribute(name, value)])


def _mask(model: Any) -> None:
    mask = onnx.numpy_helper.from_array(np.ones((4, 5), np.bool_), "mask")
    model.graph.initializer.append(mask)
    _attention(model).input[3] = "mask"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda m: _rename(m, "input_ids", "ids"), "no input input_ids: a decoder has one"),
        (lambda m: _rename(m, "logits", "scores"), "no output logits: a decoder has one"),
        (lambda m: _input(m, "images"), "input images: a decoder has input_ids, position_ids and caches"),
        (lambda m: m.graph.output.append(helper.make_tensor_value_info("more", 1, [1])), "output more: a decoder has"),
        (lambda m: [n.input.__delitem__(slice(4, None)) for n in m.graph.node if n.op_type == "Attention"],
         "no Attention whose past_key and past_value are inputs"),
        (lambda m: _attention(m).output.__delitem__(slice(1, None)), "present_key and present_value must be outputs"),
        (lambda m: _attribute(m, "is_causal", 0), "only causal attention is supported"),
        (_mask, "no causal attention of its cache past_key_values.0.key"),
        (lambda m: _caches(m, 4, 8), r"Q, K and V of \[64, 32, 32\] elements with 4 heads: with a cache of 4 heads"),
        (lambda m: _caches(m, 1 << 40, 8), r"heads: must be at most 1,048,576 in all layers"),
        (lambda m: _caches(m, 1 << 40, 8, "value"), r"heads: must be at most 1,048,576 in all layers"),
        (lambda m: _reads(m, "past_key_values.0.key"), r"\(Shape\) reads past_key_values.0.key: a cache is read by"),
        (lambda m: _reads(m, "present.1.value"), r"\(Shape\) reads present.1.value: a cache is read by"),
        (lambda m: _attention(m).input.__setitem__(5, "past_key_values.0.key"), "is the past of two inputs"),
    ],
)  # fmt: skip
def test_what_is_no_decoder_is_refused_in_one_line(change: Callable[[Any], object], message: str) -> None:
    model = decoder_kv(width=64, vocab=96)
    change(model)
    with pytest.raises(ModelError, match=message) as caught:
        compile_decoder(make_decoder(model, "m"), Target(), 4, 16)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("prompt", [-1, 17])
def test_a_prompt_must_fit_the_caches(prompt: int) -> None:
    with pytest.raises(ModelError, match=r"must be 0\.\.16"):
        compiled(prompt, 16)


@pytest.mark.parametrize(("name", "heads", "kind"), [("decoder_kv_mha", 4, "float"), ("decoder_kv_fp16", 2, "float16")])
def test_the_examples_differ_in_heads_and_type(name: str, heads: int, kind: str) -> None:
    graph = DECODERS[name]().graph
    (attention, *_) = (node for node in graph.node if node.op_type == "Attention")
    options = {attribute.name: attribute.i for attribute in attention.attribute}
    assert (options["q_num_heads"], options["kv_num_heads"]) == (4, heads)
    cache = next(value for value in graph.input if value.name == "past_key_values.0.key")
    assert cache.type.tensor_type.elem_type == {"float": 1, "float16": 10}[kind]
