"""A: atomic instructions on words, and on double words where registers have 64 bits.

Source: RISC-V unprivileged manual, version 2.1 of the extension.

There is one hart, and devices act between its instructions: acquire and release bits have no effect, and the four
variants of a row differ only in their text. LR and AMOs cost a load, SC a store.
"""

from pyv_ext.isa.formats import AMO, LR
from pyv_ext.isa.row import InstructionDef, OpClass

_ORDERS = (("", "0 0"), (".rl", "0 1"), (".aq", "1 0"), (".aqrl", "1 1"))

_COMBINE = (
    ("amoadd", "00000", "(old + b) & M"),
    ("amoswap", "00001", "b & M"),
    ("amoxor", "00100", "(old ^ b) & M"),
    ("amoor", "01000", "(old | b) & M"),
    ("amoand", "01100", "(old & b) & M"),
    ("amomin", "10000", "(old if S(old) < S({b}) else {b}) & M"),
    ("amomax", "10100", "(old if S(old) > S({b}) else {b}) & M"),
    ("amominu", "11000", "(old if old < {b} else {b}) & M"),
    ("amomaxu", "11100", "(old if old > {b} else {b}) & M"),
)
"""Names, encodings and meanings of AMOs; `{b}` is the operand compared with the old value, extended like it."""


def _rows(suffix: str, size: int, compared: str, xlen: int) -> tuple[InstructionDef, ...]:
    """Return the rows with operands of a size in bytes."""
    fixed = f"01{size.bit_length() - 3:01b} ----- 0101111"
    rows = []
    for order, bits in _ORDERS:
        load = f"00010 {bits} 00000 ----- {fixed}"
        rows.append(
            InstructionDef(f"lr{suffix}{order}", LR, load, OpClass.LR, "load", size=size, signed=True, xlen=xlen)
        )
    for order, bits in _ORDERS:
        store = f"00011 {bits} ----- ----- {fixed}"
        rows.append(InstructionDef(f"sc{suffix}{order}", AMO, store, OpClass.SC, "store", size=size, xlen=xlen))
    for name, funct5, expr in _COMBINE:
        meaning = expr.format(b=compared)
        for order, bits in _ORDERS:
            code = f"{funct5} {bits} ----- ----- {fixed}"
            rows.append(
                InstructionDef(f"{name}{suffix}{order}", AMO, code, OpClass.AMO, "load", meaning, size, True, xlen=xlen)
            )
    return tuple(rows)


ROWS = (*_rows(".w", 4, "(W(b) & M)", 0), *_rows(".d", 8, "b", 64))
