"""Command list cmdq.json of a model, which runs without a core (docs/model-flow.md, "CMDQ")."""

from collections.abc import Iterator
from typing import Any

from npu_device.abi import memory_map as mm
from npu_device.abi.cmdq import KV, LOAD_TILE, MOVED_AS, SCHEMA, STORE_TILE, faults
from npu_device.abi.descriptor import Descriptor
from npu_device.abi.extended import Extended
from npu_device.abi.opcodes import BITS, Carried, DataType, Opcode, Scope
from toolchain.codegen import Command, Target
from toolchain.errors import ToolchainError

_FLAGS = ("accumulate", "in1_nk", "function", "prefetch_dist")
_MOVES = (Opcode.LOAD, Opcode.STORE, Opcode.KV_READ, Opcode.KV_APPEND)
_WORDS = ("zero_point", "per_op")


def document(commands: tuple[Command, ...], target: Target) -> dict[str, Any]:
    """Return the validated command list. ToolchainError: it violates the schema, which is a compiler fault."""
    listed = [entry for command in commands for entry in _entries(command, target)]
    for index, record in enumerate(listed):
        record["id"] = index
    result = {"schema": SCHEMA, "commands": listed}
    errors = faults(result)
    if errors:
        raise ToolchainError(f"cmdq.json: {errors[0]}; a bug of the compiler")
    return result


def _entries(command: Command, target: Target) -> Iterator[dict[str, Any]]:
    d = command.descriptor
    usual = {"layer": command.layer, "rank": d.rank, **({"cluster": d.cluster} if d.cluster else {})}
    opcode = Opcode(d.opcode)
    if command.block is None and opcode in _MOVES and _by_width(d):
        yield {**usual, **_move(d, opcode, target)}
        return
    if opcode is Opcode.BARRIER:
        yield {**usual, "opcode": opcode.name, "scope": Scope(d.function).name.lower()}
        return
    entry: dict[str, Any] = {
        **usual,
        "opcode": opcode.name,
        "in": [_operand(d.in0_addr, d.type_in0, target)],
        "out": _operand(d.out_addr, d.type_out, target),
        "tile": [d.tile_m, d.tile_n, d.tile_k],
        "flags": {name: int(getattr(d, name)) for name in _FLAGS if getattr(d, name)},
    }
    if d.type_kv:
        entry["flags"]["kv_dtype"] = DataType(d.type_kv).name
    if d.type_in1 or d.in1_addr:
        entry["in"].append(_operand(d.in1_addr, d.type_in1, target))
    if command.block is None:
        entry["params"] = [d.param0, d.param1]
    else:
        entry["params"] = [d.param0, 0]
        entry["macro"] = _words(command.block, opcode)
    yield entry


def _move(d: Descriptor, opcode: Opcode, target: Target) -> dict[str, Any]:
    """Return a transfer in tile form. Transfers of keys and values include the type in the cache."""
    load = opcode in (Opcode.LOAD, Opcode.KV_READ)
    dram, spm = (d.in0_addr, d.out_addr) if load else (d.out_addr, d.in0_addr)
    bank, offset = divmod(spm - mm.SPM_BASE, target.bank_bytes)
    kind = DataType(d.type_kv or d.type_in0)
    move: dict[str, Any] = {
        "opcode": LOAD_TILE if load else STORE_TILE,
        "tensor_role": KV if d.type_kv else Carried(d.function).name.lower(),
        "qbits": BITS[kind],
        "dram_addr": dram - mm.DRAM_BASE,
        "num_elements": d.tile_m * d.tile_k,
        "spm_bank": bank,
        "spm_offset": offset,
    }
    if d.tile_n:
        move["alignment"] = d.tile_n
    if d.type_kv:
        move |= {"head_dim": d.tile_k, "src_qbits": BITS[DataType(d.type_out if load else d.type_in0)]}
        return move | ({"params": [d.param0, d.param1]} if d.param0 or d.param1 else {})
    strided = {"rows": d.tile_m, "dram_stride": d.param0, "spm_stride": d.param1}
    return move | (strided if d.param0 or d.param1 else {})


def _by_width(d: Descriptor) -> bool:
    """Check whether bit widths alone identify the types of a transfer, as the list requires; true for a plain copy."""
    kinds = [DataType(kind) for kind in (d.type_in0, d.type_out, d.type_kv) if kind]
    return not d.type_kv or all(MOVED_AS[BITS[kind]] is kind for kind in kinds)


def _operand(address: int, kind: int, target: Target) -> dict[str, Any]:
    typed = {"dtype": DataType(kind).name} if kind else {}
    if address >= mm.DRAM_BASE:
        return {"dram": address - mm.DRAM_BASE, **typed}
    bank, offset = divmod(address - mm.SPM_BASE, target.bank_bytes)
    return {"bank": bank, "offset": offset, **typed}


def _words(block: Extended, opcode: Opcode) -> dict[str, Any]:
    words: dict[str, Any] = {name: value for name, value in block._asdict().items() if name not in _WORDS and value}
    if any(block.zero_point):
        words["zero_point"] = list(block.zero_point)
    per_op = {name: list(value) if isinstance(value, tuple) else value for name, value in block.words(opcode).items()}
    return words | ({"own": per_op} if any(block.per_op) else {})
