"""Mutated bytes, and what an input must not lead to."""

import random
from functools import cache
from typing import Any

from npu_device.abi.opcodes import DataType, Opcode
from pyv_npu.cli.shared.output import MODEL_BUG, exit_code_of_error
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
    if exit_code_of_error(error) in (None, MODEL_BUG) or isinstance(error, OSError):
        raise FoundError(f"{type(error).__name__}: {error}") from error
    if not str(error):
        raise FoundError(f"{type(error).__name__} without a message") from error
    return True


def change(value: Any, chance: random.Random) -> None:
    """Change, drop or double something somewhere in JSON data."""
    while isinstance(value, dict | list) and value:
        key = chance.choice(list(value)) if isinstance(value, dict) else chance.randrange(len(value))
        inner = value[key]
        if isinstance(inner, dict | list) and inner and chance.random() < 0.9:
            value = inner
            continue
        kind = chance.randrange(12)
        if kind == 0:
            del value[key]
        elif kind == 1 and isinstance(value, list):
            value.append(inner)
        elif kind < 9 and isinstance(inner, int):
            near = (inner - 1, inner + 1, inner // 2, 2 * inner, inner + 64, inner - 64, inner & -16, inner ^ 1)
            value[key] = chance.choice((*near, *INTERESTING))
        elif kind < 9 and isinstance(inner, str):
            value[key] = chance.choice((*Opcode.__members__, *DataType.__members__))
        else:
            value[key] = chance.choice((None, -1, 1.5, "x", [], {}, True, 1 << 70, *INTERESTING))
        return


@cache
def compiled(name: str) -> Any:
    """An example model, for the default device."""
    return compile_loaded(Config(), prepare(EXAMPLES[name](), name), Choices())
