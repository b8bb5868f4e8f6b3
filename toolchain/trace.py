"""Lines of npu_ir.jsonl: layers after every pass, tensors, commands (docs/model-flow.md, "NPU-IR")."""

import json
from collections.abc import Iterator, Sequence
from typing import Any

from npu_device.abi import memory_map as mm
from npu_device.abi.descriptor import DESCRIPTOR_SIZE, Descriptor
from npu_device.abi.opcodes import BITS, DataType, Opcode
from toolchain.codegen.commands import Command, Target
from toolchain.ir.graph import Graph
from toolchain.passes.schedule import dependencies

TENSORS, COMMANDS = "tensors", "commands"
"""Stages after those of the passes."""
KV_READ, KV_WRITE = "kv_read", "kv_write"
_MOVES = {Opcode.KV_READ: Opcode.LOAD, Opcode.KV_APPEND: Opcode.STORE}
_TYPES = ("type_in0", "type_in1", "type_out", "type_kv")


def tensor_lines(graph: Graph) -> Iterator[str]:
    """Yield a JSON object per tensor."""
    for tensor in graph.tensors.values():
        line: dict[str, Any] = {
            "stage": TENSORS, "id": tensor.id, "role": tensor.role, "shape": tensor.shape,
            "dtype": tensor.dtype.name.lower(), "qbits": tensor.qbits, "layout": tensor.layout,
            "storage_class": tensor.storage_class, "alignment_bytes": tensor.alignment_bytes,
            "is_kv_head_split": tensor.is_kv_head_split,
        }  # fmt: skip
        if tensor.view_of:
            line |= {"view_of": tensor.view_of, "offset": tensor.offset, "pitch": tensor.pitch}
        yield json.dumps(line)


def command_lines(graph: Graph, commands: Sequence[Command], base: int, target: Target) -> Iterator[str]:
    """Yield a JSON object per instruction: WAIT for the tickets that a layer depends on, each operation with its
    submission ENQCMD_T, and finally TWAIT for the last ticket. Descriptors start at `base`; tickets start at 1."""
    last = {command.layer: index + 1 for index, command in enumerate(commands)}
    layers = {layer.id: layer for layer in graph.layers}
    before = _direct(graph)
    begun = set[str]()
    for index, command in enumerate(commands):
        if command.layer not in begun:
            begun.add(command.layer)
            waits = (last[name] for name in before.get(command.layer, ()) if name in last)
            for ticket in sorted(ticket for ticket in waits if ticket <= index):
                yield json.dumps({"stage": COMMANDS, "op": "WAIT", "ev": ticket, "layer": command.layer})
        layer_ir = layers.get(command.layer)
        yield json.dumps({"stage": COMMANDS, **_operation(command, layer_ir.op_type if layer_ir else "", target)})
        pointer = f"{base + index * DESCRIPTOR_SIZE:#x}"
        yield json.dumps({"stage": COMMANDS, "op": "ENQCMD_T", "desc_ptr": pointer, "ticket": index + 1})
    if commands:
        yield json.dumps({"stage": COMMANDS, "op": "TWAIT", "ticket": len(commands), "scope": "global"})


def _direct(graph: Graph) -> dict[str, list[str]]:
    """Return the direct dependencies of each layer, without transitive ones."""
    before = dependencies(graph)
    direct = {}
    for index, layer in enumerate(graph.layers):
        implied = set[int]().union(*(before[predecessor] for predecessor in before[index]))
        direct[layer.id] = [graph.layers[predecessor].id for predecessor in sorted(before[index] - implied)]
    return direct


def _operation(command: Command, op_type: str, target: Target) -> dict[str, Any]:
    d = command.descriptor
    opcode, macro = Opcode(d.opcode), command.block is not None
    if opcode is Opcode.BARRIER:
        return {"op": "BARRIER", "scope": d.function}
    if opcode in _MOVES:
        name = op_type if op_type == "KV_UPDATE" and macro else _MOVES[opcode].name
    else:
        name = opcode.name
    line: dict[str, Any] = {
        "op": name, "layer": command.layer, "src": [_place(d.in0_addr, target)], "dst": _place(d.out_addr, target),
        "tile_m": d.tile_m, "tile_n": d.tile_n, "tile_k": d.tile_k,
        "quant": [DataType(getattr(d, kind)).name for kind in _TYPES if getattr(d, kind)],
        "affinity": _unit(opcode),
    }  # fmt: skip
    if d.in1_addr:
        line["src"].append(_place(d.in1_addr, target))
    tiles = [] if op_type == "KV_APPEND" else _kv_tiles(command, d, opcode)
    return line | ({"kv_tiles": tiles} if tiles else {})


def _kv_tiles(command: Command, d: Descriptor, opcode: Opcode) -> list[dict[str, Any]]:
    """Return the tiles of keys and values that a command moves; for a macro command, the largest of each kind."""
    if not d.type_kv:
        return []
    qbits = BITS[DataType(d.type_kv)]

    def tile(kind: str, elements: int) -> dict[str, Any]:
        return {"tile_type": kind, "qbits_kv": qbits, "tile_elements": elements}

    if command.block is None:
        return [tile(KV_READ if opcode is Opcode.KV_READ else KV_WRITE, d.tile_m * d.tile_k)]
    per_op = command.block.words(opcode)
    size = per_op["head_dim"]
    if opcode is Opcode.KV_APPEND:
        return [tile(KV_WRITE, d.tile_m * size)]
    if opcode is Opcode.KV_READ:
        return [tile(KV_READ, d.tile_m * size)]
    return [
        tile(KV_READ, d.tile_n * size),
        *([tile(KV_WRITE, per_op["q_len"] * size)] if per_op["attn_flags"] & 2 else []),
    ]


def _unit(opcode: Opcode) -> str:
    """Return the engine that executes an operation."""
    if opcode in (Opcode.LOAD, Opcode.STORE, Opcode.GATHER, *_MOVES):
        return "DMA"
    if opcode is Opcode.CORE:
        return "core"
    return "TE" if opcode in (Opcode.GEMM_T, Opcode.CONV2D_T, Opcode.ATTN_T) else "VE"


def _place(address: int, target: Target) -> str:
    if address >= mm.DRAM_BASE:
        return f"DRAM+{address - mm.DRAM_BASE:#x}"
    bank, offset = divmod(address - mm.SPM_BASE, target.bank_bytes)
    return f"SPM[{bank}]+{offset:#x}"
