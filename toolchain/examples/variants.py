"""Example models in other types: fp16, or int8 by post-training quantization on random inputs of a fixed seed."""

from collections.abc import Callable
from typing import Any

import numpy as np

from toolchain.decoders import quantization
from toolchain.decoders.decoder import make_decoder
from toolchain.examples.builder import SEED
from toolchain.onnx_model.model import prepare
from toolchain.quantize.post_training import quantize_model

Make = Callable[..., Any]
SAMPLES = 2
PROMPT = 16
"""Prompt tokens for the calibration of a decoder."""


def in_fp16(make: Make) -> Make:
    """Wrap a builder to convert weights and activations to fp16."""

    def build(**options: Any) -> Any:
        return make(kind="float16", **options)

    return build


def in_int8(make: Make) -> Make:
    """Wrap a builder of an fp32 model to add QuantizeLinear and DequantizeLinear around its products."""

    def build(**options: Any) -> Any:
        proto = make(kind="float32", **options)
        random = np.random.default_rng(SEED)
        shape = [dim.dim_value for dim in proto.graph.input[0].type.tensor_type.shape.dim]
        samples = [{"x": random.uniform(-1, 1, shape).astype(np.float32)} for _ in range(SAMPLES)]
        return quantize_model(prepare(proto, proto.graph.name), samples).proto

    return build


def decoder_in_int8(make: Make, *, caches: bool = False) -> Make:
    """Wrap a builder of a decoder as `in_int8`, with calibration on random prompts. `caches`: quantize caches too."""

    def build(**options: Any) -> Any:
        proto = make(kind="float32", **options)
        decoder = make_decoder(proto, proto.graph.name)
        prompts = np.random.default_rng(SEED).integers(0, decoder.vocab, (SAMPLES, PROMPT))
        decoder = quantization.in_int8(decoder, prompts.tolist())
        return (quantization.with_int8_caches(decoder, prompts.tolist()) if caches else decoder).proto

    return build
