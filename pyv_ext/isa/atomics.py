"""A: atomic instructions on words (RISC-V unprivileged manual, version 2.1).

One hart and devices that act between its instructions: acquire and release bits order nothing further, so the four
spellings of a row differ in their text alone. LR and AMOs cost a load, SC a store.
"""

from pyv_ext.isa.formats import AMO, LR
from pyv_ext.isa.row import InstructionDef, OpClass

_ORDERS = (("", "0 0"), (".rl", "0 1"), (".aq", "1 0"), (".aqrl", "1 1"))

_COMBINE = (
    ("amoadd.w", "00000", "(old + b) & M"),
    ("amoswap.w", "00001", "b & M"),
    ("amoxor.w", "00100", "(old ^ b) & M"),
    ("amoor.w", "01000", "(old | b) & M"),
    ("amoand.w", "01100", "(old & b) & M"),
    ("amomin.w", "10000", "(old if S(old) < S(b) else b) & M"),
    ("amomax.w", "10100", "(old if S(old) > S(b) else b) & M"),
    ("amominu.w", "11000", "(old if old < b else b) & M"),
    ("amomaxu.w", "11100", "(old if old > b else b) & M"),
)

ROWS = (
    *(
        InstructionDef(
            "lr.w" + order, LR, f"00010 {bits} 00000 ----- 010 ----- 0101111", OpClass.LR, "load", size=4, signed=True
        )
        for order, bits in _ORDERS
    ),
    *(
        InstructionDef("sc.w" + order, AMO, f"00011 {bits} ----- ----- 010 ----- 0101111", OpClass.SC, "store", size=4)
        for order, bits in _ORDERS
    ),
    *(
        InstructionDef(
            name + order, AMO, f"{funct5} {bits} ----- ----- 010 ----- 0101111", OpClass.AMO, "load", expr, 4, True
        )
        for name, funct5, expr in _COMBINE
        for order, bits in _ORDERS
    ),
)
