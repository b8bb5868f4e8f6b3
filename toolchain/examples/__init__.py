"""Models made here, with random weights of a fixed seed: what the tests and the documentation run."""

from collections.abc import Callable
from typing import Any

from toolchain.examples.decoder import decoder
from toolchain.examples.decoder_kv import decoder_kv
from toolchain.examples.dense import gemm, mlp, qdq_mlp
from toolchain.examples.vision import cnn, resnet18

EXAMPLES: dict[str, Callable[[], Any]] = {
    "gemm": gemm,
    "mlp": mlp,
    "mlp_qdq": qdq_mlp,
    "cnn": cnn,
    "resnet18": resnet18,
    "decoder": decoder,
}
"""Name -> a function that makes the ONNX model."""

DECODERS: dict[str, Callable[[], Any]] = {"decoder_kv": decoder_kv}
"""Models with a key/value cache: they run with `--generate` (docs/llm.md)."""
