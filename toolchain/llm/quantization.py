"""Decoders in INT8: post-training quantization of their products, calibrated on prompts."""

from collections.abc import Sequence
from typing import Any

from toolchain.llm.decoder import Decoder, make_decoder
from toolchain.llm.reference import Reference
from toolchain.post_training import quantized


def in_int8(decoder: Decoder, prompts: Sequence[Sequence[int]]) -> Decoder:
    """The decoder with QuantizeLinear and DequantizeLinear around its products; caches keep their type.

    `prompts`: tokens on which the ranges are observed. ModelError as `toolchain.post_training.quantized`.
    """
    reference = Reference(decoder)
    samples = [reference.feeds(prompt, reference.empty()) for prompt in prompts]
    made = quantized(decoder.model(len(prompts[0])), samples).proto
    _free(made, decoder.proto)
    return make_decoder(made, decoder.name)


def _free(proto: Any, original: Any) -> None:
    """Inputs and outputs as in the original: the numbers of tokens stay open."""
    for field, given in ((proto.graph.input, original.graph.input), (proto.graph.output, original.graph.output)):
        del field[:]
        field.extend(given)
    del proto.graph.value_info[:]
