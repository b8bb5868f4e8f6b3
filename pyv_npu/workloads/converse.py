"""A conversation with a decoder at IA: what firmware/apps/generate.c does, without a core and without time."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import NamedTuple

import numpy as np

from npu_device.config import NpuConfig
from pyv_npu.workloads.codes import Codes
from pyv_npu.workloads.data import Values
from pyv_npu.workloads.ia import Machine
from pyv_npu.workloads.wish import Wish
from toolchain.decoders.decoder import CONVERSATION, IDS, NEXT, POSITION, POSITIONS, PROMPT, CompiledDecoder
from toolchain.onnx_model.reference import rounded


class Conversation(NamedTuple):
    """A conversation that took place."""

    tokens: list[int]
    read: Callable[[str], bytes]
    """The bytes that a tensor has at the end."""
    codes: list[dict[str, Values]]
    """What the prompt, and then each step, rounded numbers to; empty where caches or weights have another type than the
    model's, so that no numbers are its own."""


def inputs_of(made: CompiledDecoder, wish: Wish) -> dict[str, bytes]:
    """What is in memory when a run begins."""
    positions = np.arange(len(wish.prompt), dtype="<i4").tobytes()
    return {
        PROMPT + IDS: np.asarray(wish.prompt, "<i4").tobytes(),
        PROMPT + (POSITIONS if made.decoder.positions else POSITION): positions,
        CONVERSATION: made.conversation((*wish.prompt, *wish.given), wish.total),
    }


def converse(made: CompiledDecoder, config: NpuConfig, wish: Wish, inputs: Mapping[str, bytes]) -> Conversation:
    """The prompt at once, then token by token."""
    machine = Machine(made.compiled, config, inputs)
    commands, split = made.compiled.commands, made.prompt_commands
    first, later = _codes(made, wish)
    tokens = [*wish.prompt, *wish.given]
    machine.run(commands[:split], partial(first.take, machine.read))
    codes, following = [first.values], _words(machine.read(PROMPT + NEXT))[-1]
    for position in range(len(wish.prompt), wish.total):
        if position == len(tokens):
            tokens.append(following)
        if position + 1 < wish.total:
            machine.memory.write_bytes(made.address(POSITION), position.to_bytes(4, "little"))
            machine.memory.write_bytes(made.address(IDS), tokens[position].to_bytes(4, "little"))
            machine.run(commands[split:], partial(later.take, machine.read))
            codes.append(dict(later.values))
            following = _words(machine.read(NEXT))[0]
    return Conversation(tokens, machine.read, codes)


def _codes(made: CompiledDecoder, wish: Wish) -> tuple[Codes, Codes]:
    """Of the prompt and of a step: the tensors that both have."""
    graph = made.compiled.graph
    names = rounded(made.decoder.proto) if wish.exact else []
    both = Codes(graph, names, PROMPT).names & Codes(graph, names).names
    return Codes(graph, both, PROMPT), Codes(graph, both)


def _words(data: bytes) -> list[int]:
    return [int(word) for word in np.frombuffer(data, "<u4")]
