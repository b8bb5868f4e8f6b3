"""The memory through which Python and native code share a hart: one 64-bit word for each name."""

import ctypes

from pyv_ext.bus.bus import Bus
from pyv_ext.hart.hart import Hart
from pyv_jit.ir import Ir

PC, PROGRESS, X, RAM, CODE, LOAD_OK, TABLE, FUNCTIONS, CYCLES, CYCLES_ON, RETIRED, RETIRED_ON = range(12)
"""Words of the frame: where the hart is; the addresses of its registers, of memory and its maps (see `Ram.code` and
`Bus.load_ok`), of the table of entries and of the regions' functions; what the counters of cycles and of retired
instructions show at 0 of them, and whether they count (see `counters`)."""

FAR, FAR_COUNT, SHADOW, CHANGES, LOG, LOG_END = range(12, 18)
"""More words: the table of other memories and its length, the table of device registers that need not be read again
and what `Clock.changes` must be for that (see `far`); where the log of stores goes on and ends (see `log`)."""

LEFT, DONE = 18, 19
"""Signed words: the cycles that Python gives, and what is left of them, below 0 when the last instruction took longer;
the instructions that have retired."""

LIMIT, INSTRET = 20, 21
"""The cycle in which none are left, which Python may move while native code runs; the instructions that had retired
when it was entered."""

WORDS = 22

BIAS = 1 << 31
"""Added to the cycles left, so that an instruction that oversteps the budget does not borrow from the upper half."""


def advance(cycles: int, instructions: int = 1) -> int:
    """What is added to progress, which is: instructions retired << 32 | cycles left + BIAS."""
    return (instructions << 32) - cycles


def cycle_of(ir: Ir, progress: str) -> str:
    """The cycle (an i64) of an i64 progress. The frame is the function's argument."""
    left = ir.value(f"and i64 {progress}, {(1 << 32) - 1}")
    end = ir.value(f"add i64 {ir.load('i64', '%frame', 8 * LIMIT)}, {BIAS}")
    return ir.value(f"sub i64 {end}, {left}")


def address_of(buffer: object) -> int:
    """Where a writable buffer lies; whoever uses the number keeps the buffer alive."""
    return ctypes.addressof(ctypes.c_char.from_buffer(buffer))  # type: ignore[arg-type]


def make_frame(hart: Hart, bus: Bus, table: object, functions: object) -> memoryview:
    """The frame of a hart."""
    ram = bus.rams[0]
    frame = memoryview(bytearray(8 * WORDS)).cast("Q")
    for word, buffer in ((X, hart.x), (RAM, ram.data), (CODE, ram.code), (LOAD_OK, bus.load_ok)):
        frame[word] = address_of(buffer)
    frame[TABLE], frame[FUNCTIONS] = address_of(table), address_of(functions)
    return frame
