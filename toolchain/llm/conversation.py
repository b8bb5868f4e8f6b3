"""What firmware/apps/generate.c and the host share: where a step reads and writes, and the tokens."""

import struct
from collections.abc import Sequence

import numpy as np

GENERATE = "generate"
"""The program of this package that submits the commands of a decoder."""
HEAD = struct.Struct("<7I")


def conversation(
    position: int, ids: int, first: int, following: int, *, prompt: int, total: int, tokens: Sequence[int] = ()
) -> bytes:
    """The words of `struct conversation`.

    `position`, `ids`: addresses that a step reads; `first`, `following`: addresses of the token that the prompt, and a
    step, lead to; `prompt`, `total`: how many tokens; `tokens`: those that are known, the prompt's first.
    """
    head = HEAD.pack(position, ids, first, following, prompt, len(tokens), total)
    return head + np.asarray(tokens, "<u4").tobytes()


def tokens_of(words: bytes) -> list[int]:
    """All tokens that a run left there, the prompt's first."""
    total = HEAD.unpack_from(words)[-1]
    return [int(token) for token in np.frombuffer(words, "<u4", total, HEAD.size)]
