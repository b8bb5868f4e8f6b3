"""Encoding of a parsed instruction as a machine word, by the instruction table."""

import re
from collections.abc import Callable, Mapping

from pyv_ext.isa import Isa
from pyv_ext.isa.csr_names import NAMES
from pyv_ext.isa.formats import F0
from pyv_ext.isa.text import ABI_NAMES, F_ABI_NAMES, F_NUMERIC_NAMES, NUMERIC_NAMES
from toolchain.assembler.pseudo import Simple
from toolchain.errors import did_you_mean

REGISTERS: Mapping[str, int] = {
    **{name: number for names in (ABI_NAMES, NUMERIC_NAMES) for number, name in enumerate(names)},
    "fp": 8,
    **{name: F0 + number for names in (F_ABI_NAMES, F_NUMERIC_NAMES) for number, name in enumerate(names)},
}
CSRS = {name: address for address, name in NAMES.items()}
_RELOCATED = re.compile(r"%(\w+)\s*\((.*)\)")
_BASED = re.compile(r"(.*?)\(\s*(\w+)\s*\)")
_MODES = {name: code for code, name in enumerate(("rne", "rtz", "rdn", "rup", "rmm"))} | {"dyn": 7}
_EXACT = "mode!"

Value = Callable[[str], int]
"""Function that evaluates an expression. ValueError: the expression has no value."""


def encode(isa: Isa, simple: Simple, address: int, value: Value, halves: Value) -> int:
    """Return the machine word of an instruction at `address`. ValueError: the operands cannot be encoded.

    `halves` maps the label of an auipc to the distance to its %pcrel_hi target.
    """
    row = isa.by_name.get(simple.name)
    if row is None:
        hint = did_you_mean(simple.name, isa.by_name)
        raise ValueError(f"{simple.name}: {isa.name} has no such instruction{hint}")
    parts = row.format.text.split(",") if row.format.text else []
    optional = sum(part.startswith("mode") for part in parts)
    if not len(parts) - optional <= len(simple.operands) <= len(parts):
        operands = ", ".join(part for part in parts if not part.startswith("mode")) or "no operands"
        raise ValueError(f"{simple.name}: takes {operands}; {len(simple.operands)} operands are given")
    fields = {"imm": 0 if parts and parts[-1] == _EXACT else 7} if optional else {}
    at = address - simple.pair
    for part, text in zip(parts, simple.operands, strict=False):
        if part in _ORDERINGS:
            fields["imm"] = fields.get("imm", 0) | _ordering(text) << _ORDERINGS[part]
        else:
            fields |= _field(part, text, address, at, value, halves)
    for field in row.format.written:
        number = fields.get(field, 0)
        if not getattr(row.format, field).fits(number) or (number == 0 and field in row.nonzero):
            raise ValueError(f"{simple.name} {', '.join(simple.operands)}: {field} cannot be {number}")
    return isa.encode(row.name, **fields)


def register(text: str) -> int:
    number = REGISTERS.get(text.strip().lower())
    if number is None:
        raise ValueError(f"{text!r} is no register; a0 or x10 is one")
    return number


def _field(part: str, text: str, address: int, at: int, value: Value, halves: Value) -> dict[str, int]:
    """Return the instruction fields that one operand sets."""
    if part in ("rd", "rs1", "rs2", "rs3"):
        return {part: register(text)}
    if part in ("(rs1)", "imm(rs1)"):
        match = _BASED.fullmatch(text)
        if match is None or match[2].lower() not in REGISTERS:
            raise ValueError(f"{text!r}: must be an offset and a register, for example 8(sp)")
        offset = _immediate(match[1].strip() or "0", at, value, halves)
        if part == "(rs1)" and offset:
            raise ValueError(f"{text!r}: has an offset, and must be a register in parentheses")
        return {"rs1": register(match[2]), **({"imm": offset} if part == "imm(rs1)" else {})}
    if part == "target":
        return {"imm": _wrap(value(text) - address)}
    if part == "upper":
        upper = _upper(text, at, value)
        return {"imm": (upper << 12 ^ 0x8000_0000) - 0x8000_0000}
    if part == "csr":
        name = text.lower()
        return {"csr": CSRS[name] if name in CSRS else value(text)}
    if part.startswith("mode"):
        if text not in _MODES:
            raise ValueError(f"{text!r}: must be a rounding mode, {', '.join(_MODES)}")
        return {"imm": _MODES[text]}
    return {"imm": _immediate(text, at, value, halves)}


_ORDER = {"i": 8, "o": 4, "r": 2, "w": 1}
_ORDERINGS = {"pred": 4, "succ": 0}
"""Operands of fence -> position in its immediate."""


def _ordering(text: str) -> int:
    if not re.fullmatch(r"i?o?r?w?", text) or not text:
        raise ValueError(f"{text!r}: must be letters of iorw in this order")
    return sum(_ORDER[letter] for letter in text)


def _immediate(text: str, at: int, value: Value, halves: Value) -> int:
    match = _RELOCATED.fullmatch(text)
    if match is None:
        return _wrap(value(text))
    match match[1]:
        case "lo":
            return _low(value(match[2]))
        case "pcrel_lo":
            return _low(halves(match[2].strip()))
        case "pair_lo":
            return _low(value(match[2]) - at)
    raise ValueError(f"%{match[1]}: must be %lo or %pcrel_lo here")


def _upper(text: str, at: int, value: Value) -> int:
    match = _RELOCATED.fullmatch(text)
    if match is None:
        number = value(text)
        if not 0 <= number < 1 << 20:
            raise ValueError(f"{text}: must be 0..{(1 << 20) - 1}")
        return number
    if match[1] not in ("hi", "pcrel_hi"):
        raise ValueError(f"%{match[1]}: must be %hi or %pcrel_hi here")
    distance = value(match[2]) - (at if match[1] == "pcrel_hi" else 0)
    return (distance + 0x800 >> 12) & 0xFFFFF


def _low(distance: int) -> int:
    return (distance & 0xFFF ^ 0x800) - 0x800


def _wrap(number: int) -> int:
    """Return a 32-bit constant as a signed number."""
    return number - (1 << 32) if 1 << 31 <= number < 1 << 32 else number
