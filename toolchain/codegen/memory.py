"""DRAM layout: the address of every tensor (docs/bit-widths.md, R5, R6, R25, R26).

A tensor begins at a multiple of what the device widens accesses to: rows that straddle two of them would move one more.
Weights have addresses of their own. A tensor that the run writes has its range from the first layer that writes it to
the last that reads it; others use the range before and after.
"""

from collections.abc import Sequence
from typing import NamedTuple, NoReturn

from npu_device.abi import memory_map as mm
from npu_device.abi.memory_map import SPM_BASE
from npu_device.abi.opcodes import DataType
from npu_device.memory.bitwidth import offset_bytes
from toolchain.codegen.commands import Target
from toolchain.errors import CapacityError, ModelError
from toolchain.ir.graph import SPM, Graph, LayerIR, Role, TensorIR
from toolchain.ir.operations import on_core

FIRMWARE_BYTES = 8 << 20
"""DRAM that the submitting firmware may use; the model comes after it."""
MODEL_BASE = mm.DRAM_BASE + FIRMWARE_BYTES
PAGE = 4096
SLOT = 64
"""Alignment of what stays in the scratchpad."""
BEYOND = mm.DRAM_BASE + mm.DRAM_CORE_VISIBLE
"""Where constants begin that the core does not see."""


class DramMap(NamedTuple):
    """Addresses of the stored tensors, of encoded keys and values virtual; `commands` is where descriptors and their
    blocks begin."""

    addresses: dict[str, int]
    commands: int
    weights: tuple[int, int]
    """Where the constants begin and end."""
    end: int
    """Behind the constants, and what only the device touches where that comes behind them."""

    def address(self, graph: Graph, tensor: str) -> int:
        """Return the address of a tensor or a view."""
        entry = graph.tensors[tensor]
        return self.addresses[entry.view_of or tensor] + offset_bytes(entry.offset, entry.qbits)

    @property
    def beyond(self) -> bool:
        """True if the constants lie beyond the core's address space."""
        return self.weights[0] >= BEYOND


class StoredOperand(NamedTuple):
    """Bytes that a command may move, and the tensor that they belong to."""

    start: int
    end: int
    role: Role
    alignment: int
    """Of the accesses of DRAM where the tensor has its own, bytes; 0: that of the device."""


class StoredOperands:
    """The stored tensors that a layer names, by address."""

    def __init__(self, graph: Graph, layer: LayerIR, memory: DramMap) -> None:
        names = dict.fromkeys(map(graph.storage, (*layer.inputs, *layer.outputs)))
        tensors = [(memory.addresses[name], graph.tensors[name]) for name in names]
        self._stored = [StoredOperand(at, at + stored.size, stored.role, stored.alignment) for at, stored in tensors]
        self.aligned = any(operand.alignment for operand in self._stored)
        """Whether one of them has an alignment of its own."""

    def at(self, address: int) -> StoredOperand:
        """Return the operand at an address; without one an activation with the device's alignment."""
        for operand in self._stored:
            if operand.start <= address < operand.end:
                return operand
        return _UNKNOWN


_UNKNOWN = StoredOperand(0, 0, Role.ACTIVATION, 0)


class _Place(NamedTuple):
    start: int
    end: int
    last: int
    """The layer after which it is free."""


def place(graph: Graph, target: Target) -> DramMap:
    """Return an address for every stored tensor. Constants lie before the others while the core sees all of them, else
    behind what it sees, and so does what only the device touches where that is too much. ModelError names a tensor that
    does not fit."""
    dram_bytes, visible = target.dram_bytes, target.visible_bytes
    inside = {name: SPM_BASE + target.workspace + at for name, at in _resident(graph).addresses.items()}
    layout = _place(graph, target, MODEL_BASE, inside)
    if _end(layout) <= mm.DRAM_BASE + min(dram_bytes, visible):
        return layout
    if _end(layout) <= mm.DRAM_BASE + visible or dram_bytes <= visible:
        _refuse(graph, layout, dram_bytes, visible)
    far = _place(graph, target, BEYOND, inside)
    if far.commands > mm.DRAM_BASE + visible:
        far = _place(graph, target, BEYOND, inside, split=True)
    if far.end > mm.DRAM_BASE + dram_bytes or far.commands > mm.DRAM_BASE + visible:
        _refuse(graph, far, dram_bytes, visible)
    return far


def constants(graph: Graph) -> list[TensorIR]:
    """Return stored tensors that no layer writes and that are no inputs: weights, with values or without."""
    written = {graph.storage(layer.outputs[0]) for layer in graph.layers} | set(map(graph.storage, graph.inputs))

    def fixed(tensor: TensorIR) -> bool:
        return tensor.id in graph.constants or (tensor.role is Role.WEIGHT and tensor.id not in written)

    return [tensor for tensor in graph.tensors.values() if not tensor.view_of and fixed(tensor)]


def resident_bytes(graph: Graph) -> int:
    """Return bytes of the scratchpad that tensors take which stay there."""
    return _resident(graph).end


def remaining(graph: Graph, target: Target) -> Target:
    """Return the device without what tensors take that stay in the scratchpad."""
    return target._replace(resident=resident_bytes(graph))


class _Arena(NamedTuple):
    addresses: dict[str, int]
    end: int


def _resident(graph: Graph) -> _Arena:
    """Return addresses from 0 on of the tensors that stay in the scratchpad, the largest first: few gaps."""
    stored = [tensor for tensor in graph.tensors.values() if not tensor.view_of and tensor.storage_class == SPM]
    addresses, spans, end = dict[str, int](), lives(graph) if stored else {}, 0
    for tensor in sorted(stored, key=lambda candidate: (-candidate.size, spans[candidate.id])):
        first, last = spans[tensor.id]
        occupied = sorted(
            _Place(at, at + graph.tensors[name].size, spans[name][1])
            for name, at in addresses.items()
            if spans[name][0] <= last and first <= spans[name][1]
        )
        addresses[tensor.id] = at = _gap(occupied, 0, tensor.size, max(SLOT, tensor.alignment_bytes))
        end = max(end, at + tensor.size)
    return _Arena(addresses, _up(end, SLOT))


def _end(placed: DramMap) -> int:
    return max(placed.commands, placed.end)


def _virtual(graph: Graph, alignment: int) -> dict[str, int]:
    """Return addresses of encoded keys and values: the device gives them pages of DRAM where they are touched."""
    end, addresses = mm.KV_BASE, dict[str, int]()
    for tensor in graph.tensors.values():
        if tensor.dtype is DataType.ENCODED and not tensor.view_of:
            addresses[tensor.id] = _up(end, max(alignment, tensor.alignment_bytes))
            end = addresses[tensor.id] + tensor.size
    return addresses


def _place(graph: Graph, target: Target, weights: int, inside: dict[str, int], *, split: bool = False) -> DramMap:
    """Return the layout with constants from the address `weights` on; `split`: what only the device touches comes
    behind them."""
    end, addresses = weights, inside | _virtual(graph, target.alignment)
    fixed = constants(graph)
    for tensor in fixed:
        addresses[tensor.id] = _up(end, max(target.alignment, tensor.alignment_bytes))
        end = addresses[tensor.id] + tensor.size
    bounds = weights, end
    outside = set(map(graph.storage, (*graph.inputs, *graph.outputs))) | on_core(graph)
    written = [tensor for tensor in graph.tensors.values() if not tensor.view_of and tensor.id not in addresses]
    visible = _shared(graph, [activation for activation in written if not split or activation.id in outside],
                   end if weights == MODEL_BASE else MODEL_BASE, target.alignment)  # fmt: skip
    hidden = _shared(
        graph, [activation for activation in written if split and activation.id not in outside], end, target.alignment
    )
    return DramMap(
        addresses | visible.addresses | hidden.addresses, _up(visible.end, PAGE), bounds, max(end, hidden.end)
    )  # fmt: skip


def _shared(graph: Graph, tensors: Sequence[TensorIR], base: int, alignment: int) -> _Arena:
    """Return addresses of tensors that the run writes, from `base` on: each has its bytes while it lives."""
    end, addresses, occupied = base, dict[str, int](), list[_Place]()
    spans = lives(graph)
    for tensor in sorted(tensors, key=lambda candidate: spans[candidate.id]):
        first, last = spans[tensor.id]
        occupied = [interval for interval in occupied if interval.last >= first]
        at = _gap(occupied, base, tensor.size, max(alignment, tensor.alignment_bytes))
        occupied = sorted([*occupied, _Place(at, at + tensor.size, last)])
        addresses[tensor.id] = at
        end = max(end, at + tensor.size)
    return _Arena(addresses, end)


def lives(graph: Graph) -> dict[str, tuple[int, int]]:
    """Return (first layer that writes it, last that touches it) of each tensor; inputs, outputs and caches of keys and
    values live for the whole run."""
    spans: dict[str, tuple[int, int]] = {}
    for index, layer in enumerate(graph.layers):
        for name in (*layer.outputs, *layer.inputs):
            stored = graph.storage(name)
            spans[stored] = spans.get(stored, (index, index))[0], index
    caches = [tensor.id for tensor in graph.tensors.values() if tensor.role is Role.KV]
    for name in (*graph.inputs, *graph.outputs, *caches):
        spans[graph.storage(name)] = -1, len(graph.layers)
    return spans


def _gap(occupied: list[_Place], base: int, size: int, alignment: int) -> int:
    """Return the lowest address where `size` bytes fit between ranges that are in use."""
    at = _up(base, alignment)
    for interval in occupied:
        if at + size <= interval.start:
            break
        at = max(at, _up(interval.end, alignment))
    return at


def _refuse(graph: Graph, placed: DramMap, dram_bytes: int, visible: int) -> NoReturn:
    """Name the first tensor that reaches beyond the DRAM, and a size that would do."""
    limit = mm.DRAM_BASE + (dram_bytes if placed.beyond else min(dram_bytes, visible))
    ends = sorted((at + graph.tensors[name].size, name) for name, at in placed.addresses.items() if at < mm.KV_BASE)
    end, name = next((end for end in ends if end[0] > limit), ends[-1])
    visible_bytes = placed.commands - (placed.weights[1] - placed.weights[0] if not placed.beyond else 0) - mm.DRAM_BASE
    if visible_bytes > visible:
        raise ModelError(
            f"tensor {name}: its {graph.tensors[name].size} bytes: what the run writes, and commands, need "
            f"{visible_bytes} bytes of DRAM that the core sees, which are {visible} at most: a smaller shape or batch"
        )
    size_used = _end(placed) - mm.DRAM_BASE
    if not placed.beyond and size_used > visible:
        size_used = visible + placed.weights[1] - placed.weights[0]
    size = 1 << (size_used - 1).bit_length()
    raise CapacityError(
        f"tensor {name}: its {graph.tensors[name].size} bytes end at {end - mm.DRAM_BASE} of DRAM, "
        f"npu.dram.size is {dram_bytes}: --set npu.dram.size={size}", size,
    )  # fmt: skip


def _up(value: int, alignment: int) -> int:
    return -(-value // alignment) * alignment
