"""Where every tensor is in DRAM (docs/bit-widths.md, R5, R6, R25, R26).

Weights have addresses of their own. A tensor that the run writes has its range from the first layer that writes it to
the last that reads it; others use the range before and after.
"""

from typing import NamedTuple, NoReturn

from npu_device.abi import memory_map as mm
from toolchain.errors import ModelError
from toolchain.ir.graph import Graph, TensorIR

FIRMWARE_BYTES = 8 << 20
"""DRAM that the submitting firmware may use; the model comes after it."""
MODEL_BASE = mm.DRAM_BASE + FIRMWARE_BYTES
PAGE = 4096
BEYOND = mm.DRAM_BASE + mm.DRAM_CORE_VISIBLE
"""Where constants begin that the core does not see."""


class DramMap(NamedTuple):
    """Addresses of the stored tensors; `commands` is where descriptors and their blocks begin."""

    addresses: dict[str, int]
    commands: int
    weights: tuple[int, int]
    """Where the constants begin and end."""

    def address(self, graph: Graph, tensor: str) -> int:
        """Of a tensor or a view."""
        return self.addresses[graph.storage(tensor)]

    @property
    def beyond(self) -> bool:
        """Whether the constants lie where the core does not see them."""
        return self.weights[0] >= BEYOND


class _Place(NamedTuple):
    start: int
    end: int
    last: int
    """The layer after which it is free."""


def place(graph: Graph, dram_bytes: int, visible: int = mm.DRAM_CORE_VISIBLE) -> DramMap:
    """An address for every stored tensor. Constants lie before the others while the core sees all of them, else behind
    what it sees. ModelError names a tensor that does not fit."""
    near = _placed(graph, MODEL_BASE)
    if _end(near) <= mm.DRAM_BASE + min(dram_bytes, visible):
        return near
    if _end(near) <= mm.DRAM_BASE + visible or dram_bytes <= visible:
        _refuse(graph, near, dram_bytes, visible)
    far = _placed(graph, BEYOND)
    if far.weights[1] > mm.DRAM_BASE + dram_bytes or far.commands > mm.DRAM_BASE + visible:
        _refuse(graph, far, dram_bytes, visible)
    return far


def _end(placed: DramMap) -> int:
    return max(placed.commands, placed.weights[1])


def _placed(graph: Graph, weights: int) -> DramMap:
    """Constants from the address `weights` on."""
    stored = [tensor for tensor in graph.tensors.values() if not tensor.view_of]
    end, addresses = weights, {}
    for tensor in stored:
        if tensor.id in graph.constants:
            addresses[tensor.id] = _up(end, tensor.alignment_bytes)
            end = addresses[tensor.id] + tensor.size
    bounds = weights, end
    base = end = end if weights == MODEL_BASE else MODEL_BASE
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
    return DramMap(addresses, _up(end, PAGE), bounds)


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
    """The lowest address where the tensor fits between ranges that are in use."""
    at = _up(base, tensor.alignment_bytes)
    for one in used:
        if at + tensor.size <= one.start:
            break
        at = max(at, _up(one.end, tensor.alignment_bytes))
    return at


def _refuse(graph: Graph, placed: DramMap, dram_bytes: int, visible: int) -> NoReturn:
    """Name the first tensor that reaches beyond the DRAM, and a size that would do."""
    limit = mm.DRAM_BASE + (dram_bytes if placed.beyond else min(dram_bytes, visible))
    ends = sorted((at + graph.tensors[name].size, name) for name, at in placed.addresses.items())
    end, name = next((one for one in ends if one[0] > limit), ends[-1])
    near = placed.commands - (placed.weights[1] - placed.weights[0] if not placed.beyond else 0) - mm.DRAM_BASE
    if near > visible:
        raise ModelError(
            f"tensor {name}: its {graph.tensors[name].size} bytes: what the run writes, and commands, need {near} "
            f"bytes of DRAM that the core sees, which are {visible} at most: a smaller shape or batch"
        )
    used = _end(placed) - mm.DRAM_BASE
    if not placed.beyond and used > visible:
        used = visible + placed.weights[1] - placed.weights[0]
    raise ModelError(
        f"tensor {name}: its {graph.tensors[name].size} bytes end at {end - mm.DRAM_BASE} of DRAM, "
        f"npu.dram.size is {dram_bytes}: --set npu.dram.size={1 << (used - 1).bit_length()}"
    )


def _up(value: int, alignment: int) -> int:
    return -(-value // alignment) * alignment
