"""Generated example models with random weights of a fixed seed, for tests and documentation."""

from collections.abc import Callable
from functools import partial
from typing import Any

from toolchain.examples.decoder import decoder
from toolchain.examples.decoder_concat import decoder_concat, decoder_concat_learned
from toolchain.examples.decoder_kv import decoder_kv
from toolchain.examples.networks import cnn, gemm, mlp, mobilenet_v2, qdq_mlp, resnet18
from toolchain.examples.variants import decoder_in_int8, in_fp16, in_int8

_FLOAT: dict[str, Callable[..., Any]] = {
    "gemm": gemm, "mlp": mlp, "cnn": cnn, "resnet18": resnet18, "mobilenet_v2": mobilenet_v2, "decoder": decoder,
}  # fmt: skip

EXAMPLES: dict[str, Callable[..., Any]] = {
    **_FLOAT,
    "mlp_qdq": qdq_mlp,
    **{f"{name}_fp16": in_fp16(make) for name, make in _FLOAT.items()},
    **{f"{name}_int8": in_int8(make) for name, make in _FLOAT.items()},
}
"""Name -> function that builds the ONNX model."""

LARGE = ("resnet18", "mobilenet_v2")
"""Name prefixes of large models."""

_DECODERS: dict[str, Callable[..., Any]] = {
    "decoder_kv": decoder_kv,
    "decoder_kv_mha": partial(decoder_kv, kv_heads=4),
}

DECODERS: dict[str, Callable[..., Any]] = {
    **_DECODERS,
    **{f"{name}_fp16": in_fp16(make) for name, make in _DECODERS.items()},
    **{f"{name}_int8": decoder_in_int8(make) for name, make in _DECODERS.items()},
    **{f"{name}_int8_cache": decoder_in_int8(make, caches=True) for name, make in _DECODERS.items()},
    "decoder_concat": decoder_concat,
    "decoder_concat_learned": decoder_concat_learned,
}
"""Models with a key/value cache, for `--generate` (docs/llm.md)."""
