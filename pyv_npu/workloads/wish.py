"""What somebody wants of an ONNX decoder: a prompt, and tokens behind it."""

from pathlib import Path
from typing import NamedTuple

from pyv_npu.config.yaml_file import load_qconfig
from pyv_npu.errors import UsageError
from toolchain.decoders.decoder import CODES, Decoder
from toolchain.decoders.shapes import BY_BITS
from toolchain.quantize.precision import INT8
from toolchain.quantize.qconfig import QConfig


class Wish(NamedTuple):
    """What to generate."""

    prompt: tuple[int, ...]
    new: int
    """Tokens after the prompt."""
    given: tuple[int, ...] = ()
    """The first of them; the others are the largest logits."""
    t_max: int | None = None
    """Tokens that the caches hold; None: prompt and new tokens."""
    kv_bits: int | None = None
    """Of keys and values; None: the model's own type."""
    passes: str = "all"
    qconfig: Path | None = None
    """How wide weights are, `toolchain.quantize.qconfig`."""
    precision: str = ""
    """INT8: the model is quantized first; empty: it has its own."""
    calibration: tuple[Path, ...] = ()
    """Files with input_ids that show INT8 the ranges of the model."""

    @property
    def exact(self) -> bool:
        """Whether numbers are those of the model: the reference then judges them. Narrow weights of a model that an
        option quantizes are its own."""
        return self.kv_bits is None and (self.qconfig is None or self.precision == INT8)

    @property
    def total(self) -> int:
        """Tokens of the whole conversation."""
        return len(self.prompt) + self.new

    def check(self, decoder: Decoder) -> None:
        """UsageError for a wish that the decoder cannot fulfil."""
        for name, tokens in (("--prompt", self.prompt), ("--given", self.given)):
            for token in tokens:
                if not 0 <= token < decoder.vocab:
                    raise UsageError(f"{name}: token {token}: the vocabulary has 0..{decoder.vocab - 1}")
        if not self.prompt:
            raise UsageError("--prompt: must hold at least one token")
        if self.new < 1:
            raise UsageError(f"--generate {self.new}: must be at least 1")
        if len(self.given) > self.new:
            raise UsageError(f"--given: {len(self.given)} tokens, --generate asks for {self.new}")
        if self.kv_bits is not None and self.kv_bits not in BY_BITS:
            raise UsageError(f"--qbits-kv {self.kv_bits}: must be one of {', '.join(map(str, BY_BITS))}")
        kind = decoder.caches[0].kind
        if self.kv_bits is not None and kind in CODES:
            raise UsageError(f"--qbits-kv {self.kv_bits}: the model keeps keys and values as {kind.name}: drop it")
        if self.t_max is not None and self.total > self.t_max:
            raise UsageError(f"--t-max {self.t_max}: prompt and new tokens are {self.total}: they must fit the caches")

    def weights(self) -> QConfig:
        """The QConfig that is named, or an empty one. UsageError where it speaks of caches."""
        if self.qconfig is None:
            return QConfig()
        config = load_qconfig(self.qconfig)
        for name in config.override:
            if name.endswith(".kv"):
                raise UsageError(f"{self.qconfig}: override.{name}: a decoder's caches have one width, --qbits-kv")
        return config
