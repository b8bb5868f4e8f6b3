"""Where every tensor is in DRAM (specification 55, R5, R6, R25, R26).

Weights have places of their own. A tensor that the run writes has its place from the first layer that writes it to the
last that reads it; others use the place before and after.
"""

from typing import NamedTuple

from npu_device.abi import memory_map as mm
from toolchain.errors import ModelError
from toolchain.ir.graph import Graph, TensorIR

FIRMWARE_BYTES = 8 << 20
"""DRAM that the submitting firmware may use; the model comes after it."""
MODEL_BASE = mm.DRAM_BASE + FIRMWARE_BYTES
PAGE = 4096


class DramMap(NamedTuple):
    """Addresses of the stored tensors; `commands` is where descriptors and their blocks begin."""

    addresses: dict[str, int]
    commands: int

    def address(self, graph: Graph, tensor: str) -> int:
        """Of a tensor or a view."""
        return self.addresses[graph.storage(tensor)]


class _Place(NamedTuple):
    start: int
    end: int
    last: int
    """The layer after which it is free."""


def place(graph: Graph, dram_bytes: int) -> DramMap:
    """An address for every stored tensor. ModelError names the tensor that does not fit."""
    stored = [tensor for tensor in graph.tensors.values() if not tensor.view_of]
    end, addresses = MODEL_BASE, {}
    for tensor in stored:
        if tensor.id in graph.constants:
            addresses[tensor.id] = _up(end, tensor.alignment_bytes)
            end = addresses[tensor.id] + tensor.size
            _check(tensor, end, dram_bytes)
    base = end
    used: list[_Place] = []
    lives = _lives(graph)
    written = [tensor for tensor in stored if tensor.id not in graph.constants]
    for tensor in sorted(written, key=lambda one: lives[one.id]):
        first, last = lives[tensor.id]
        used = [one for one in used if one.last >= first]
        at = _gap(used, base, tensor)
        used = sorted([*used, _Place(at, at + tensor.size, last)])
        addresses[tensor.id] = at
        end = max(end, at + tensor.size)
        _check(tensor, end, dram_bytes)
    return DramMap(addresses, _up(end, PAGE))


def _lives(graph: Graph) -> dict[str, tuple[int, int]]:
    """Tensor -> (first layer that writes it, last that touches it); inputs and outputs live for the whole run."""
    lives: dict[str, tuple[int, int]] = {}
    for index, layer in enumerate(graph.layers):
        for name in (*layer.outputs, *layer.inputs):
            stored = graph.storage(name)
            lives[stored] = lives.get(stored, (index, index))[0], index
    for name in (*graph.inputs, *graph.outputs):
        lives[graph.storage(name)] = -1, len(graph.layers)
    return lives


def _gap(used: list[_Place], base: int, tensor: TensorIR) -> int:
    """The lowest address where the tensor fits between places that are in use."""
    at = _up(base, tensor.alignment_bytes)
    for one in used:
        if at + tensor.size <= one.start:
            break
        at = max(at, _up(one.end, tensor.alignment_bytes))
    return at


def _check(tensor: TensorIR, end: int, dram_bytes: int) -> None:
    used = end - mm.DRAM_BASE
    if used > dram_bytes:
        raise ModelError(
            f"tensor {tensor.id}: its {tensor.size} bytes end at {used} of DRAM, npu.dram.size is {dram_bytes}: "
            f"--set npu.dram.size={1 << (used - 1).bit_length()}"
        )


def _up(value: int, alignment: int) -> int:
    return -(-value // alignment) * alignment
