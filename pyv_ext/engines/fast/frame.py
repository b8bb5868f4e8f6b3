"""The memory through which Python and native code share a hart: one 64-bit word for each name.

Native code answers reads of the counters of cycles and retired instructions from it.
"""

import ctypes
from typing import NamedTuple

from pyv_ext.bus.bus import Bus
from pyv_ext.hart.csr import WRAP, Csrs
from pyv_ext.hart.hart import Hart
from pyv_ext.isa import Instruction, Isa, Kind
from pyv_ext.isa.csr_names import ADDRESSES
from pyv_jit.ir import Ir

PC, PROGRESS, X, RAM, CODE, LOAD_OK, TABLE, FUNCTIONS, CYCLES, CYCLES_ON, RETIRED, RETIRED_ON = range(12)
"""Words of the frame: where the hart is; the addresses of its registers, of memory and its maps (see `Ram.code` and
`Bus.load_ok`), of the table of entries and of the regions' functions; what the counters of cycles and of retired
instructions show at 0 of them, and whether they count (see `show_counters`)."""

MEMORIES, MEMORY_COUNT, READ_CACHE, CHANGES, LOG, LOG_END = range(12, 18)
"""More words: the table of other memories and its length, the MMIO read cache and what `Clock.changes` must be for its
entries to hold (see `access`); where the log of stores goes on and ends (see `log`)."""

FLAGS, STORE_PCS, STORE_CYCLES, STORE_PAGES, WRITTEN, FENCED = range(22, 28)
"""More words: the tables of a sanitizer (`pyv_ext.bus.shadow`), 0 without one."""

LEFT, DONE = 18, 19
"""Signed words: the cycles that Python gives, and what is left of them, below 0 when the last instruction took longer;
the instructions that have retired."""

LIMIT, INSTRET = 20, 21
"""The cycle in which none are left, which Python may move while native code runs; the instructions that had retired
when it was entered."""

CUSTOM = 28
"""The address of the table of calls of custom instructions (see `custom`)."""

WORDS = 29

BIAS = 1 << 31
"""Added to the cycles left, so that an instruction that oversteps the budget does not borrow from the upper half."""


def advance(cycles: int, instructions: int = 1) -> int:
    """What is added to progress, which is: instructions retired << 32 | cycles left + BIAS."""
    return (instructions << 32) - cycles


def left_of(ir: Ir, progress: str) -> str:
    """The cycles (an i64) that are left by an i64 progress."""
    low = ir.value(f"and i64 {progress}, {(1 << 32) - 1}")
    return ir.value(f"sub i64 {low}, {BIAS}")


def with_left(ir: Ir, progress: str, left: str) -> str:
    """Progress with so many cycles left (an i64) instead."""
    done = ir.value(f"and i64 {progress}, {-1 << 32}")
    return ir.value(f"or i64 {done}, {ir.value(f'add i64 {left}, {BIAS}')}")


def cycle_of(ir: Ir, progress: str) -> str:
    """The cycle (an i64) of an i64 progress. The frame is the function's argument."""
    left = ir.value(f"and i64 {progress}, {(1 << 32) - 1}")
    end = ir.value(f"add i64 {ir.load('i64', '%frame', 8 * LIMIT)}, {BIAS}")
    return ir.value(f"sub i64 {end}, {left}")


def address_of(buffer: object) -> int:
    """Where a writable buffer lies; the caller keeps the buffer alive."""
    return ctypes.addressof(ctypes.c_char.from_buffer(buffer))  # type: ignore[arg-type]


def make_frame(hart: Hart, bus: Bus, table: object, functions: object) -> memoryview:
    """The frame of a hart."""
    ram = bus.rams[0]
    frame = memoryview(bytearray(8 * WORDS)).cast("Q")
    for word, buffer in ((X, hart.x), (RAM, ram.data), (CODE, ram.code), (LOAD_OK, bus.load_ok)):
        frame[word] = address_of(buffer)
    frame[TABLE], frame[FUNCTIONS] = address_of(table), address_of(functions)
    if bus.shadow is not None:
        own = bus.shadow.tables[0]
        tables = (own.flags, own.pcs, own.cycles, own.pages, own.written, bus.shadow.fenced)
        for word, part in zip(range(FLAGS, FENCED + 1), tables, strict=True):
            frame[word] = 0 if part is None else address_of(part)
    return frame


# -- counters --------------------------------------------------------------------------------------------------


class Reading(NamedTuple):
    """Which counter, and which half of it."""

    retired: bool
    high: bool


READINGS = tuple(Reading(retired, high) for retired in (False, True) for high in (False, True))

_NAMES = {
    Reading(retired, high): tuple(prefix + name + ("h" if high else "") for prefix in ("", "m"))
    for retired, high in READINGS
    for name in ("instret" if retired else "cycle",)
}
_READ_BY = {ADDRESSES[name]: reading for reading, names in _NAMES.items() for name in names}


def reading_of(instruction: Instruction, isa: Isa) -> Reading | None:
    """What the instruction reads, if all it does is to read a counter that every mode of the hart may read."""
    writes = instruction.word >> 15 & 31
    if instruction.row.kind is not Kind.CSR_UPDATE or writes or isa.user_mode:
        return None
    return _READ_BY.get(instruction.csr)


def read_counter(ir: Ir, reading: Reading, progress: str, cycles: int = 0, instructions: int = 0) -> str:
    """The register value, `cycles` and `instructions` after `progress`. The frame is the function's argument."""
    base, on = (RETIRED, RETIRED_ON) if reading.retired else (CYCLES, CYCLES_ON)
    mask, start = ir.load("i64", "%frame", 8 * on), ir.load("i64", "%frame", 8 * base)
    if reading.retired:
        done = ir.value(f"add i64 {ir.value(f'lshr i64 {progress}, 32')}, {instructions}")
        counted = ir.value(f"add i64 {done}, {ir.load('i64', '%frame', 8 * INSTRET)}")
    else:
        counted = ir.value(f"add i64 {cycle_of(ir, progress)}, {cycles}")
    now = ir.value(f"add i64 {start}, {ir.value(f'and i64 {counted}, {mask}')}")
    half = ir.value(f"lshr i64 {now}, 32") if reading.high else now
    return ir.value(f"trunc i64 {half} to i32")


def show_counters(csrs: Csrs, frame: memoryview) -> None:
    """Let native code see them as they are now."""
    frame[CYCLES], frame[RETIRED] = csrs.mcycle.value(0), csrs.minstret.value(0)
    frame[CYCLES_ON] = 0 if csrs.mcycle.inhibited else WRAP
    frame[RETIRED_ON] = 0 if csrs.minstret.inhibited else WRAP
