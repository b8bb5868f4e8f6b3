"""Decoders whose products are of integers: prompt and generation at every level, judged by onnx.reference."""

from functools import cache

import pytest

from pyv_npu.config import load
from pyv_npu.models.generate import Generated, Wish, generate_decoder
from toolchain.examples import DECODERS
from toolchain.ir.operations import PRODUCTS
from toolchain.llm.decoder import Decoder, make_decoder

WISH = Wish((3, 1, 4, 1, 5), 4, given=(9, 2))
WAYS = (("IA_TIMING", "tight"), ("CA_HYBRID", "loose"), ("CA_HYBRID", "tight"))
INT8 = [name for name in DECODERS if "int8" in name]


@cache
def decoder(name: str) -> Decoder:
    return make_decoder(DECODERS[name](width=64, vocab=96), name)


def generated(name: str, level: str = "IA", mode: str = "tight", wish: Wish = WISH) -> Generated:
    return generate_decoder(load(overrides={"run.sim_level": level, "npu.mode": mode}).config, decoder(name), wish)


@pytest.mark.parametrize("name", INT8)
def test_every_token_is_that_of_the_reference_at_every_level(name: str) -> None:
    first = generated(name)
    assert first.correct
    assert first.tokens[:7] == (*WISH.prompt, *WISH.given)
    for level, mode in WAYS:
        made = generated(name, level, mode)
        assert made.correct
        assert made.tokens == first.tokens
        assert made.json["generate"]["outputs_sha256"] == first.json["generate"]["outputs_sha256"]


@pytest.mark.parametrize("name", INT8)
def test_every_product_is_one_of_integers(name: str) -> None:
    graph = generated(name).compiled.compiled.graph
    products = [layer for layer in graph.layers if layer.op_type in PRODUCTS]
    assert len(products) == 2 * (2 * 7 + 1)  # of the prompt and of a step: seven in each layer, and the logits
    assert {graph.tensors[tensor].dtype.name for layer in products for tensor in layer.inputs[:2]} == {"INT8"}
    results = {graph.tensors[layer.outputs[0]].dtype.name for layer in products if "head" not in layer.id}
    assert results == {"INT8"}  # requantized on the way out


def test_int8_takes_a_quarter_of_the_bytes_of_the_matrices() -> None:
    sizes = [len(DECODERS[name]().SerializeToString()) for name in ("decoder_kv", "decoder_kv_int8")]
    assert sizes[1] < 0.45 * sizes[0]  # embedding and rotary tables stay floats
