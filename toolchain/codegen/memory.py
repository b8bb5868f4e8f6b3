"""DRAM layout: the address of every tensor (docs/bit-widths.md, R5, R6, R25, R26).

A tensor starts at a multiple of the device's access granularity: rows that straddle it would cost an extra access.
Weights have exclusive addresses. A tensor that the run writes occupies its range from the first layer that writes it to
the last that reads it; other tensors reuse the range before and after.
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
"""DRAM reserved for the submitting firmware; the model follows it."""
MODEL_BASE = mm.DRAM_BASE + FIRMWARE_BYTES
PAGE = 4096
SLOT = 64
"""Alignment of resident tensors in the scratchpad."""
RESIDENT_SHARE = 4
"""Denominator of the maximum share of the scratchpad for resident activations."""
BEYOND = mm.DRAM_BASE + mm.DRAM_CORE_VISIBLE
"""Start address of constants outside the core's address space."""


class DramMap(NamedTuple):
    """Address of every stored tensor; encoded keys and values have virtual addresses. `commands`: start of the
    descriptors and their extended blocks."""

    addresses: dict[str, int]
    commands: int
    weights: tuple[int, int]
    """Start and end of the constants."""
    end: int
    """End of the constants and of the device-only tensors placed after them."""

    def address(self, graph: Graph, tensor: str) -> int:
        """Return the address of a tensor or a view."""
        entry = graph.tensors[tensor]
        return self.addresses[entry.view_of or tensor] + offset_bytes(entry.offset, entry.qbits)

    @property
    def beyond(self) -> bool:
        """Whether the constants lie outside the core's address space."""
        return self.weights[0] >= BEYOND


class StoredOperand(NamedTuple):
    """Byte range of a tensor that a command accesses."""

    start: int
    end: int
    role: Role
    alignment: int
    """Alignment of DRAM accesses specific to the tensor, bytes; 0 for that of the device."""


class StoredOperands:
    """Stored tensors of a layer, by address."""

    def __init__(self, graph: Graph, layer: LayerIR, memory: DramMap) -> None:
        names = dict.fromkeys(map(graph.storage, (*layer.inputs, *layer.outputs)))
        tensors = [(memory.addresses[name], graph.tensors[name]) for name in names]
        self._stored = [StoredOperand(at, at + stored.size, stored.role, stored.alignment) for at, stored in tensors]
        self.aligned = any(operand.alignment for operand in self._stored)
        """Whether an operand has its own alignment."""

    def at(self, address: int) -> StoredOperand:
        """Return the operand at an address; by default an activation with the device's alignment."""
        for operand in self._stored:
            if operand.start <= address < operand.end:
                return operand
        return _UNKNOWN


_UNKNOWN = StoredOperand(0, 0, Role.ACTIVATION, 0)


class _Place(NamedTuple):
    start: int
    end: int
    last: int
    """Index of the last layer that uses the range."""


def place(graph: Graph, target: Target) -> DramMap:
    """Assign an address to every stored tensor. Constants precede the other tensors if the core can address all of
    them; otherwise they follow the core's address space. Device-only tensors move there too if space is still short.
    ModelError names a tensor that does not fit."""
    dram_bytes, visible = target.dram_bytes, target.visible_bytes
    arena = _resident(graph, target)
    if 0 < target.resident < arena.end:
        raise ModelError(
            f"tensors in the scratchpad take {arena.end:,} bytes of the {target.resident:,} reserved for them"
        )
    residents = {name: SPM_BASE + target.spm_bytes - distance for name, distance in arena.addresses.items()}
    layout = _assign(graph, target, MODEL_BASE, residents)
    if _end(layout) <= mm.DRAM_BASE + min(dram_bytes, visible):
        return layout
    if _end(layout) <= mm.DRAM_BASE + visible or dram_bytes <= visible:
        _refuse(graph, layout, dram_bytes, visible)
    far = _assign(graph, target, BEYOND, residents)
    if far.commands > mm.DRAM_BASE + visible:
        far = _assign(graph, target, BEYOND, residents, split=True)
    if far.end > mm.DRAM_BASE + dram_bytes or far.commands > mm.DRAM_BASE + visible:
        _refuse(graph, far, dram_bytes, visible)
    return far


def constants(graph: Graph) -> list[TensorIR]:
    """Return stored tensors that are not inputs and that no layer writes: weights, with or without values."""
    written = {graph.storage(layer.outputs[0]) for layer in graph.layers} | set(map(graph.storage, graph.inputs))

    def fixed(tensor: TensorIR) -> bool:
        return tensor.id in graph.constants or (tensor.role is Role.WEIGHT and tensor.id not in written)

    return [tensor for tensor in graph.tensors.values() if not tensor.view_of and fixed(tensor)]


def reserve_residents(graph: Graph, target: Target) -> Target:
    """Return the target with the scratchpad bytes of resident tensors reserved."""
    return target._replace(resident=_resident(graph, target).end)


class _Arena(NamedTuple):
    addresses: dict[str, int]
    end: int


def _resident(graph: Graph, target: Target) -> _Arena:
    """Return the distance of each resident tensor's start from the end of the scratchpad. Tensors are placed in the
    order of their live ranges, which shares the fewest banks; if they exceed the share of residents, largest first,
    which packs tighter. A layer that is compiled alone has the bytes that the target reserves for the whole graph: if
    its tensors exceed them, they are packed without regard to banks."""
    stored = [tensor for tensor in graph.tensors.values() if not tensor.view_of and tensor.storage_class == SPM]
    if not stored:
        return _Arena({}, 0)
    spans, limit = live_ranges(graph), target.spm_bytes // RESIDENT_SHARE
    arena = _assign_banks(graph, target, sorted(stored, key=lambda tensor: spans[tensor.id]), spans, limit)
    largest_first = sorted(stored, key=lambda tensor: (-tensor.size, spans[tensor.id]))
    if arena.end > limit:
        arena = _assign_banks(graph, target, largest_first, spans, limit)
    if 0 < target.resident < arena.end:
        arena = _assign_banks(graph, target, largest_first, spans, SLOT)
    return arena


def _assign_banks(
    graph: Graph, target: Target, stored: Sequence[TensorIR], spans: dict[str, tuple[int, int]], limit: int
) -> _Arena:
    """Assign distances from the end of the scratchpad, downwards, one by one: `starts` of the nearer end of a tensor,
    `ends` of the farther, its first byte. If possible below `limit`, a tensor shares no bank with other operands of its
    layers, which engines read and write in place at the same time."""
    starts, ends, bank = dict[str, int](), dict[str, int](), target.bank_bytes
    neighbours: dict[str, set[str]] = {tensor.id: set() for tensor in stored}
    for layer in graph.layers:
        operands = neighbours.keys() & set(map(graph.storage, (*layer.inputs, *layer.outputs)))
        for name in operands:
            neighbours[name] |= operands - {name}

    def shared_bytes(start: int, end: int, names: set[str]) -> int:
        """Return the bytes of the tensors `names` that share a bank with `start` to `end`."""
        first, last = start // bank, (end - 1) // bank
        placed = [(starts[name], ends[name]) for name in names & starts.keys()]
        return sum(high - low for low, high in placed if low // bank <= last and first <= (high - 1) // bank)

    for tensor in stored:
        first, last = spans[tensor.id]
        occupied = sorted(
            _Place(start, ends[name], spans[name][1])
            for name, start in starts.items()
            if spans[name][0] <= last and first <= spans[name][1]
        )
        alignment = max(SLOT, tensor.alignment_bytes)
        size = _round_up(tensor.size, alignment)
        candidates = [_gap(occupied, base, size, alignment) for base in range(0, limit, bank)]
        fitting = [start for start in candidates if start + size <= limit]
        start = min(
            fitting or candidates[:1],
            key=lambda start: (shared_bytes(start, start + size, neighbours[tensor.id]), start),
        )
        starts[tensor.id], ends[tensor.id] = start, start + size
    return _Arena(ends, max(ends.values()))


def _end(placed: DramMap) -> int:
    return max(placed.commands, placed.end)


def _virtual(graph: Graph, alignment: int) -> dict[str, int]:
    """Assign virtual addresses to encoded keys and values. The device allocates pages of DRAM on first access."""
    end, addresses = mm.KV_BASE, dict[str, int]()
    for tensor in graph.tensors.values():
        if tensor.dtype is DataType.ENCODED and not tensor.view_of:
            addresses[tensor.id] = _round_up(end, max(alignment, tensor.alignment_bytes))
            end = addresses[tensor.id] + tensor.size
    return addresses


def _assign(graph: Graph, target: Target, weights: int, residents: dict[str, int], *, split: bool = False) -> DramMap:
    """Return a layout with constants from the address `weights`. `split`: place device-only tensors after them."""
    end, addresses = weights, residents | _virtual(graph, target.alignment)
    fixed = constants(graph)
    for tensor in fixed:
        addresses[tensor.id] = _round_up(end, max(target.alignment, tensor.alignment_bytes))
        end = addresses[tensor.id] + tensor.size
    bounds = weights, end
    outside = set(map(graph.storage, (*graph.inputs, *graph.outputs))) | on_core(graph)
    written = [tensor for tensor in graph.tensors.values() if not tensor.view_of and tensor.id not in addresses]
    visible = _share_bytes(graph, [activation for activation in written if not split or activation.id in outside],
                   end if weights == MODEL_BASE else MODEL_BASE, target.alignment)  # fmt: skip
    hidden = _share_bytes(
        graph, [activation for activation in written if split and activation.id not in outside], end, target.alignment
    )
    return DramMap(
        addresses | visible.addresses | hidden.addresses, _round_up(visible.end, PAGE), bounds, max(end, hidden.end)
    )  # fmt: skip


def _share_bytes(graph: Graph, tensors: Sequence[TensorIR], base: int, alignment: int) -> _Arena:
    """Assign addresses from `base` to tensors that the run writes. A tensor owns its bytes during its live range."""
    end, addresses, occupied = base, dict[str, int](), list[_Place]()
    spans = live_ranges(graph)
    for tensor in sorted(tensors, key=lambda candidate: spans[candidate.id]):
        first, last = spans[tensor.id]
        occupied = [interval for interval in occupied if interval.last >= first]
        at = _gap(occupied, base, tensor.size, max(alignment, tensor.alignment_bytes))
        occupied = sorted([*occupied, _Place(at, at + tensor.size, last)])
        addresses[tensor.id] = at
        end = max(end, at + tensor.size)
    return _Arena(addresses, end)


def live_ranges(graph: Graph) -> dict[str, tuple[int, int]]:
    """Return the live range of each tensor: (first layer that writes it, last layer that accesses it). Inputs, outputs
    and caches of keys and values live for the whole run."""
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
    """Return the lowest address with `size` free bytes between occupied ranges."""
    at = _round_up(base, alignment)
    for interval in occupied:
        if at + size <= interval.start:
            break
        at = max(at, _round_up(interval.end, alignment))
    return at


def _refuse(graph: Graph, placed: DramMap, dram_bytes: int, visible: int) -> NoReturn:
    """Raise an error that names the first tensor beyond the DRAM, and a sufficient size."""
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


def _round_up(value: int, alignment: int) -> int:
    return -(-value // alignment) * alignment
