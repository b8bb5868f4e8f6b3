"""Graph and words for generation: the merged graph of prompt and step, and the words shared by firmware/apps/generate.c
and the host (addresses of a step, and the tokens)."""

import struct
from collections.abc import Collection, Sequence
from dataclasses import replace

import numpy as np

from toolchain.ir.graph import Graph

GENERATE = "generate"
"""Packaged firmware program that submits the commands of a decoder."""
WITH_KERNELS = "generate_kernels"
"""Program for decoders with commands that the core executes."""
HEAD = struct.Struct("<7I")


def conversation(
    position: int, ids: int, first: int, following: int, *, prompt: int, total: int, tokens: Sequence[int] = ()
) -> bytes:
    """Return the words of `struct conversation`.

    `position`, `ids`: addresses that a step reads; `first`, `following`: addresses of the next token after the prompt
    and after a step; `prompt`, `total`: token counts; `tokens`: known tokens, the prompt's first.
    """
    head = HEAD.pack(position, ids, first, following, prompt, len(tokens), total)
    return head + np.asarray(tokens, "<u4").tobytes()


def tokens_of(words: bytes) -> list[int]:
    """Return all tokens of a run, the prompt's first."""
    total = HEAD.unpack_from(words)[-1]
    return [int(token) for token in np.frombuffer(words, "<u4", total, HEAD.size)]


def merge_graphs(first: Graph, second: Graph, prefix: str, shared: Collection[str]) -> Graph:
    """Merge `first`, with `prefix` on its names, and `second`. Tensors in `shared` and equal constants of the same name
    are merged into one."""
    same = {*shared, *(name for name in first.constants if _equal(first, second, name))}

    def renamed(name: str) -> str:
        return name if name in same else prefix + name

    graph = second.copy()
    for name, tensor in first.tensors.items():
        if name not in same:
            view = renamed(tensor.view_of) if tensor.view_of else ""
            graph.tensors[renamed(name)] = replace(tensor, id=renamed(name), view_of=view)
    graph.constants |= {renamed(name): values for name, values in first.constants.items() if name not in same}
    layers = [
        replace(
            layer, id=prefix + layer.id, inputs=tuple(map(renamed, layer.inputs)),
            outputs=tuple(map(renamed, layer.outputs)),
        )
        for layer in first.layers
    ]  # fmt: skip
    graph.layers = layers + [layer.having(phase=1) for layer in graph.layers]
    graph.inputs = tuple(dict.fromkeys((*map(renamed, first.inputs), *second.inputs)))
    graph.outputs = tuple(dict.fromkeys((*map(renamed, first.outputs), *second.outputs)))
    return graph


def _equal(first: Graph, second: Graph, name: str) -> bool:
    values = second.constants.get(name)
    if values is None or first.tensors[name] != second.tensors[name]:
        return False
    return values is first.constants[name] or np.array_equal(values, first.constants[name], equal_nan=True)
