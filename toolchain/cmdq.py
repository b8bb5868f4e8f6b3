"""cmdq.json: the commands of a model as a list that runs without a core (specification 50, "CMDQ").

A strided LOAD or STORE becomes one DMA command per row: that is all the list's moves can say.
"""

from collections.abc import Iterator
from typing import Any

from npu_device.abi import memory_map as mm
from npu_device.abi.cmdq import LOAD_TILE, SCHEMA, STORE_TILE, faults
from npu_device.abi.descriptor import Descriptor
from npu_device.abi.extended import Extended
from npu_device.abi.opcodes import BITS, DataType, Opcode
from toolchain.codegen import Command, Target
from toolchain.errors import ToolchainError

_FLAGS = ("accumulate", "in1_nk", "function", "prefetch_dist")
_OWN_WORDS = ("zero_point", "per_op")


def document(commands: tuple[Command, ...], target: Target) -> dict[str, Any]:
    """The list, validated as a whole. ToolchainError: it breaks the schema, which is a fault of the compiler."""
    listed = [one for command in commands for one in _entries(command, target)]
    for index, one in enumerate(listed):
        one["id"] = index
    made = {"schema": SCHEMA, "commands": listed}
    found = faults(made)
    if found:
        raise ToolchainError(f"cmdq.json: {found[0]}; a bug of the compiler")
    return made


def _entries(command: Command, target: Target) -> Iterator[dict[str, Any]]:
    d = command.descriptor
    usual = {"layer": command.layer, "rank": d.rank}
    opcode = Opcode(d.opcode)
    if opcode in (Opcode.LOAD, Opcode.STORE):
        yield from ({**usual, **move} for move in _moves(d, target))
        return
    entry: dict[str, Any] = {
        **usual,
        "opcode": opcode.name,
        "in": [_operand(d.in0_addr, d.type_in0, target)],
        "out": _operand(d.out_addr, d.type_out, target),
        "tile": [d.tile_m, d.tile_n, d.tile_k],
        "flags": {name: getattr(d, name) for name in _FLAGS if getattr(d, name)},
    }
    if d.type_in1:
        entry["in"].append(_operand(d.in1_addr, d.type_in1, target))
    if command.block is None:
        entry["params"] = [d.param0, d.param1]
    else:
        entry["params"] = [d.param0, 0]
        entry["macro"] = _words(command.block, opcode)
    yield entry


def _moves(d: Descriptor, target: Target) -> Iterator[dict[str, Any]]:
    kind = DataType(d.type_in0)
    load = d.opcode == Opcode.LOAD
    dram, spm = (d.in0_addr, d.out_addr) if load else (d.out_addr, d.in0_addr)
    row = d.tile_k * BITS[kind] // 8
    whole = not d.param0
    count, elements = (1, d.tile_m * d.tile_k) if whole else (d.tile_m, d.tile_k)
    for index in range(count):
        bank, offset = divmod(spm + index * row - mm.SPM_BASE, target.bank_bytes)
        yield {
            "opcode": LOAD_TILE if load else STORE_TILE,
            "tensor_role": "activation",
            "qbits": BITS[kind],
            "dram_addr": dram + index * d.param0 - mm.DRAM_BASE,
            "num_elements": elements,
            "spm_bank": bank,
            "spm_offset": offset,
        }


def _operand(address: int, kind: int, target: Target) -> dict[str, Any]:
    if address >= mm.DRAM_BASE:
        return {"dram": address - mm.DRAM_BASE, "dtype": DataType(kind).name}
    bank, offset = divmod(address - mm.SPM_BASE, target.bank_bytes)
    return {"bank": bank, "offset": offset, "dtype": DataType(kind).name}


def _words(block: Extended, opcode: Opcode) -> dict[str, Any]:
    words: dict[str, Any] = {name: value for name, value in block._asdict().items() if name not in _OWN_WORDS and value}
    if any(block.zero_point):
        words["zero_point"] = list(block.zero_point)
    own = {name: list(value) if isinstance(value, tuple) else value for name, value in block.own(opcode).items()}
    return words | ({"own": own} if any(block.per_op) else {})
