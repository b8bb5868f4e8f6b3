"""Command list as JSON, schema 1 (docs/model-flow.md, "CMDQ"): its fields, their rules, and the faults of a list.

A list is `{"schema": 1, "commands": [...]}`. A command is one of

- DMA_LOAD_TILE, DMA_STORE_TILE: tensor_role, qbits, dram_addr, num_elements, spm_bank, spm_offset; optionally dtype,
  the element type (of qbits bits), alignment, to which DRAM accesses are widened (default dma.alignment), bank_mask,
  and rows of equal length with dram_stride and spm_stride bytes between them (0: packed). With role kv they are
  KV_READ and KV_APPEND, and may instead have head_dim (the elements must then be D, or c x D of a load), tokens (the
  maximum of c), src_qbits (width in the scratchpad, default qbits) and params [scale as f32 bits, zero point];
- KV_UPDATE: the keys and values of one head and token, as two KV_APPENDs: qbits, num_elements, k and v with dram_addr,
  spm_bank and spm_offset each, and head_dim, src_qbits, params as above; k and v may have layout, with which dram_addr
  must be base + (head x t_max + token) x row;
- a computation by the name of its opcode: in, out, tile [m, n, k], flags, params [param0, param1], and for the macro
  form `macro`, the words of the extended block by name;
- BARRIER with scope, NOP.

An operand is {"bank", "offset", "dtype"} in the scratchpad or {"dram", "dtype"} in DRAM; without dtype its type is that
of keys and values, the flag kv_dtype. DRAM addresses are offsets from its base. All commands may have id, deps, stream,
prio, rank, affinity, cluster, layer, and at, the cycle of acceptance.
"""

from collections.abc import Callable, Iterator, Mapping
from enum import StrEnum
from typing import Any, NamedTuple

from npu_device.abi.memory_map import MAX_CLUSTERS
from npu_device.abi.opcodes import DataType, Opcode, Scope

SCHEMA = 1
LOAD_TILE, STORE_TILE, KV_UPDATE = "DMA_LOAD_TILE", "DMA_STORE_TILE", "KV_UPDATE"
KV = "kv"
ROLES = ("activation", "weight", "kv")
MOVED_AS = {2: DataType.INT2, 4: DataType.INT4, 8: DataType.INT8, 16: DataType.FP16, 32: DataType.FP32}
"""qbits -> element type of a move."""
TYPES = tuple(dtype.name for dtype in DataType if dtype)
COMPUTE = tuple(op.name for op in Opcode if op not in (Opcode.NOP, Opcode.LOAD, Opcode.STORE, Opcode.BARRIER))
OPCODES = (LOAD_TILE, STORE_TILE, KV_UPDATE, *COMPUTE, Opcode.BARRIER.name, Opcode.NOP.name)
SCOPES = tuple(scope.name.lower() for scope in Scope)

MAX_32 = (1 << 32) - 1
MAX_64 = (1 << 64) - 1
MAX_COMMANDS = 1 << 20


class Code(StrEnum):
    """Classes of faults of a list."""

    SCHEMA = "SCHEMA"
    TYPE = "TYPE"
    MISSING = "MISSING"
    UNKNOWN = "UNKNOWN"
    RANGE = "RANGE"
    CHOICE = "CHOICE"
    DUPLICATE = "DUPLICATE"
    DEPENDENCY = "DEPENDENCY"
    COMMAND = "COMMAND"


class Fault(NamedTuple):
    """Fault of a list; its text is one line."""

    code: Code
    field: str
    value: object
    rule: str

    def __str__(self) -> str:
        return f"{self.code}: {self.field} = {self.value!r}: {self.rule}"


Check = Callable[[str, Any], Iterator[Fault]]


def _integer(low: int, high: int) -> Check:
    def check(field: str, value: Any) -> Iterator[Fault]:
        if type(value) is not int:
            yield Fault(Code.TYPE, field, value, "must be an integer")
        elif not low <= value <= high:
            yield Fault(Code.RANGE, field, value, f"must be from {low} to {high}")

    return check


def _one_of(*choices: Any) -> Check:
    def check(field: str, value: Any) -> Iterator[Fault]:
        if value not in choices or isinstance(value, bool):
            yield Fault(Code.CHOICE, field, value, f"must be one of {', '.join(map(str, choices))}")

    return check


def _list(item: Check, low: int, high: int) -> Check:
    def check(field: str, value: Any) -> Iterator[Fault]:
        if not isinstance(value, list) or not low <= len(value) <= high:
            yield Fault(Code.TYPE, field, value, f"must be a list of {low} to {high}")
            return
        for index, item_value in enumerate(value):
            yield from item(f"{field}[{index}]", item_value)

    return check


def _text(field: str, value: Any) -> Iterator[Fault]:
    if not isinstance(value, str):
        yield Fault(Code.TYPE, field, value, "must be text")


def _words(field: str, value: Any) -> Iterator[Fault]:
    """Yield faults of the macro form's words. `extended` checks their names and ranges."""
    if not isinstance(value, dict):
        yield Fault(Code.TYPE, field, value, "must be a table of the extended block's words")
        return
    for name, word in value.items():
        if name == "own":
            if not isinstance(word, dict) or "own" in word:
                yield Fault(Code.TYPE, f"{field}.own", word, "must be a table of the operation's own words")
            else:
                yield from _words(f"{field}.own", word)
        elif name == "per_op":
            yield Fault(Code.UNKNOWN, f"{field}.per_op", word, "no such field; give the operation's words in own")
        elif not all(type(part) is int for part in (word if isinstance(word, list) else [word])):
            yield Fault(Code.TYPE, f"{field}.{name}", word, "must be an integer, or a list of integers")


_OPERAND: Mapping[str, Check] = {
    "bank": _integer(0, 63), "offset": _integer(0, MAX_32), "dram": _integer(0, MAX_64), "dtype": _one_of(*TYPES),
}  # fmt: skip
_FLAGS: Mapping[str, Check] = {
    "accumulate": _integer(0, 1), "in1_nk": _integer(0, 1), "irq": _integer(0, 1), "function": _integer(0, 255),
    "bank_mask": _integer(0, 255), "prefetch_dist": _integer(0, 15), "kv_dtype": _one_of(*TYPES),
}  # fmt: skip


def _table(rules: Mapping[str, Check], required: tuple[str, ...] = ()) -> Check:
    def check(field: str, value: Any) -> Iterator[Fault]:
        if not isinstance(value, dict):
            yield Fault(Code.TYPE, field, value, "must be a table")
            return
        yield from _fields(field + ".", value, rules, required)

    return check


def _operand(field: str, value: Any) -> Iterator[Fault]:
    yield from _table(_OPERAND)(field, value)
    if isinstance(value, dict):
        forms = ({"bank", "offset"}, {"dram"})
        if (value.keys() & {"bank", "offset", "dram"}) not in forms:
            yield Fault(Code.MISSING, field, value, "must be in the scratchpad by bank and offset, or in DRAM by dram")


_COMMON: Mapping[str, Check] = {
    "id": _integer(0, MAX_32), "opcode": _one_of(*OPCODES), "deps": _list(_integer(0, MAX_32), 0, MAX_COMMANDS),
    "stream": _integer(0, 15), "prio": _integer(0, 15), "rank": _integer(0, 1023), "affinity": _integer(0, 15),
    "cluster": _integer(0, MAX_CLUSTERS - 1), "layer": _text, "at": _integer(0, MAX_64),
}  # fmt: skip
_DMA: Mapping[str, Check] = {
    "tensor_role": _one_of(*ROLES), "qbits": _one_of(*MOVED_AS), "dram_addr": _integer(0, MAX_64),
    "num_elements": _integer(1, MAX_32), "spm_bank": _integer(0, 63), "spm_offset": _integer(0, MAX_32),
}  # fmt: skip
_MOVE: Mapping[str, Check] = {
    "dtype": _one_of(*TYPES), "alignment": _integer(1, MAX_32), "bank_mask": _integer(0, 255),
}  # fmt: skip
"""Optional fields of all moves."""
_ROWS: Mapping[str, Check] = {
    "rows": _integer(1, MAX_32), "dram_stride": _integer(0, MAX_32), "spm_stride": _integer(0, MAX_32),
}  # fmt: skip
"""Optional fields of moves of roles other than kv."""
_KV: Mapping[str, Check] = {
    "head_dim": _integer(1, MAX_32), "tokens": _integer(1, MAX_32), "src_qbits": _one_of(*MOVED_AS),
    "params": _list(_integer(0, MAX_32), 2, 2),
}  # fmt: skip
"""Optional fields of moves of role kv."""
_LOCATION = tuple(name for name in _DMA if name.startswith(("dram_", "spm_")))
_COMPUTE: Mapping[str, Check] = {
    "in": _list(_operand, 0, 2), "out": _operand, "tile": _list(_integer(0, MAX_32), 3, 3), "flags": _table(_FLAGS),
    "params": _list(_integer(0, MAX_32), 2, 2), "macro": _words,
}  # fmt: skip


_LAYOUT: Mapping[str, Check] = {
    "base": _integer(0, MAX_64), "head": _integer(0, MAX_32), "token": _integer(0, MAX_32), "t_max": _integer(1, MAX_32)
}  # fmt: skip


def _tile_of_cache(field: str, value: Any) -> Iterator[Fault]:
    """Yield faults of k or v of KV_UPDATE."""
    rules = {name: _DMA[name] for name in _LOCATION} | {"layout": _table(_LAYOUT, tuple(_LAYOUT))}
    yield from _table(rules, _LOCATION)(field, value)


def _fields(
    prefix: str, table: Mapping[str, Any], rules: Mapping[str, Check], required: tuple[str, ...]
) -> Iterator[Fault]:
    for name in required:
        if name not in table:
            yield Fault(Code.MISSING, prefix + name, None, "must be given")
    for name, value in table.items():
        rule = rules.get(name)
        if rule is None:
            yield Fault(Code.UNKNOWN, prefix + name, value, f"no such field; fields are {', '.join(rules)}")
        else:
            yield from rule(prefix + name, value)


def faults(document: Any) -> list[Fault]:
    """Return all faults of a list that do not depend on a configuration. Dependencies refer to `id`."""
    if not isinstance(document, dict) or document.get("schema") != SCHEMA:
        errors = document.get("schema") if isinstance(document, dict) else document
        return [Fault(Code.SCHEMA, "schema", errors, f"must be {SCHEMA}")]
    errors = [
        Fault(Code.UNKNOWN, name, document[name], "no such field; fields are schema, commands")
        for name in document
        if name not in ("schema", "commands")
    ]
    commands = document.get("commands")
    if not isinstance(commands, list) or not 0 < len(commands) <= MAX_COMMANDS:
        return [*errors, Fault(Code.TYPE, "commands", commands, f"must be a list of 1 to {MAX_COMMANDS}")]
    ids: set[int] = set()
    for index, command in enumerate(commands):
        field = f"commands[{index}]"
        if not isinstance(command, dict):
            errors.append(Fault(Code.TYPE, field, command, "must be a table"))
            continue
        errors += _command(field + ".", command)
        errors += _references(field + ".", command, ids)
    return errors


def _command(prefix: str, command: Mapping[str, Any]) -> Iterator[Fault]:
    opcode = command.get("opcode")
    rules: dict[str, Check] = dict(_COMMON)
    required: tuple[str, ...] = ("opcode",)
    if opcode in (LOAD_TILE, STORE_TILE):
        rules |= {**_DMA, **_MOVE, **(_KV if command.get("tensor_role") == KV else _ROWS)}
        required += tuple(_DMA)
    elif opcode == KV_UPDATE:
        fields = ("qbits", "num_elements", "k", "v")
        rules |= {name: _DMA[name] for name in fields[:2]} | {"k": _tile_of_cache, "v": _tile_of_cache, **_KV}
        rules |= {name: _MOVE[name] for name in ("dtype", "alignment")}
        required += fields
    elif opcode == Opcode.BARRIER.name:
        rules["scope"] = _one_of(*SCOPES)
        required += ("scope",)
    elif opcode in COMPUTE:
        rules |= _COMPUTE
        required += ("in", "out", "tile")
    yield from _fields(prefix, command, rules, required)
    count, rows = command.get("num_elements"), command.get("rows", 1)
    if "rows" in rules and isinstance(count, int) and isinstance(rows, int) and rows > 0 and count % rows:
        yield Fault(Code.RANGE, prefix + "num_elements", count, f"must be a multiple of rows {rows}")


def _references(prefix: str, command: Mapping[str, Any], ids: set[int]) -> Iterator[Fault]:
    deps = command.get("deps", ())
    for dep in deps if isinstance(deps, list) else ():
        if isinstance(dep, int) and dep not in ids:
            yield Fault(Code.DEPENDENCY, prefix + "deps", dep, "must be the id of an earlier command")
    command_id = command.get("id")
    if isinstance(command_id, int):
        if command_id in ids:
            yield Fault(Code.DUPLICATE, prefix + "id", command_id, "must not be given twice")
        ids.add(command_id)
