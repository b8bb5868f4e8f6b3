"""Mutated bytes, and what an input must not lead to."""

import random
from functools import cache
from typing import Any

from pyv_npu.cli.shared.output import MODEL_BUG, of_error
from pyv_npu.config import Config
from pyv_npu.workloads.model_file import Choices, compile_loaded
from toolchain.examples import EXAMPLES
from toolchain.onnx_model.model import prepare

INTERESTING = (0, 1, 2, 3, 7, 8, 63, 64, 127, 128, 255, 1 << 15, (1 << 16) - 1, 1 << 29, 1 << 31, (1 << 32) - 1)


class FoundError(AssertionError):
    """An input that led to something else than an answer or a clear line."""


def flipped(data: bytes, chance: random.Random, most: int = 4) -> bytes:
    """Some bits, bytes or 32-bit words of `data` changed."""
    changed = bytearray(data)
    for _ in range(chance.randint(1, most)):
        at = chance.randrange(len(changed))
        kind = chance.randrange(4)
        if kind == 0:
            changed[at] ^= 1 << chance.randrange(8)
        elif kind == 1:
            changed[at] = chance.choice((0, 1, 0x7F, 0x80, 0xFF, chance.randrange(256)))
        else:
            at &= ~3
            word = chance.choice(INTERESTING) if kind == 2 else chance.getrandbits(32)
            changed[at : at + 4] = word.to_bytes(4, "little")[: len(changed) - at]
    return bytes(changed)


def refused(error: Exception) -> bool:
    """Whether an error is one clear line; FoundError where it is a bug of ours."""
    if of_error(error) in (None, MODEL_BUG) or isinstance(error, OSError):
        raise FoundError(f"{type(error).__name__}: {error}") from error
    if not str(error):
        raise FoundError(f"{type(error).__name__} without a message") from error
    return True


@cache
def compiled(name: str) -> Any:
    """An example model, for the default device."""
    return compile_loaded(Config(), prepare(EXAMPLES[name](), name), Choices())
