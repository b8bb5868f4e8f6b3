"""The memory through which Python and native code share a hart: one 64-bit word for each name."""

from typing import Final

from pyv_ext.bus.bus import Bus
from pyv_ext.hart.hart import Hart
from pyv_native.intrinsics import address_of
from pyv_native.ir import Ir

(
    PC, PROGRESS, X, RAM, CODE, LOAD_OK, SPACE, LEFT, DONE, LIMIT, INSTRET,
    CUSTOM, MARKED, END, FLAGS, STORE_PCS, STORE_CYCLES, STORE_PAGES, WRITTEN, FENCED, MARKED_PC, MARKED_AT, RECORDS_AT,
) = range(23)  # fmt: skip
"""Words of the frame, in groups:

- `PC` and `PROGRESS`: where the hart is; addresses of its registers, `X`; of memory and its maps (see `Ram.code` and
  `Bus.load_ok`); of the words of the current `space.Space`.
- `LEFT`, `DONE`, signed: the cycles that Python gives, and what is left of them, below 0 when the last instruction took
  longer; the instructions that have retired. `LIMIT`: the cycle in which none are left, which moves while native code
  runs. `INSTRET`: the instructions that had retired when it was entered.
- `CUSTOM`, `MARKED`: addresses of the tables of calls of custom instructions (see `custom`) and of
  `entries.MarkedEntries`. `END`: the cycle in which native code goes on after what it has asked Python for.
- `FLAGS` to `FENCED`: the tables of a sanitizer (`pyv_ext.bus.shadow`), 0 without one.
- `MARKED_PC`, `MARKED_AT`: the instruction that was marked last, and progress then.
- `RECORDS_AT`: the address of the machine's records (`pyv_ext.machine.state`).
"""

WORDS = RECORDS_AT + 1

FRAME = "frame"
"""The variable of native code that points to the frame."""

BIAS = 1 << 31
"""Added to the cycles left, so that an instruction that oversteps the budget does not borrow from the upper half."""


class Exit:
    """Why native code returned."""

    BUDGET: Final = 0
    """No cycles are left for the next instruction, or something else comes before it."""
    DECODE: Final = 1
    """The next instruction has no entry yet."""
    HOT: Final = 2
    """The next instruction begins a block that is worth a translation."""
    FAULT: Final = 3
    """The next instruction has run into a fault of a device, or of Python: then the status says so."""
    WAITING: Final = 4
    """A WFI goes on waiting."""


class Left:
    """Why a region returned to the interpreter."""

    JUMP: Final = 0
    """The next instruction is in no block of the region."""
    STEP: Final = 1
    """The interpreter executes the next instruction, or finds that it cannot: it is not for regions, or its block does
    not fit into the cycles left."""
    INTERRUPT: Final = 2
    """An interrupt, or another privilege mode, may come before the next instruction."""


def advance(cycles: int, instructions: int = 1) -> int:
    """What is added to progress, which is: instructions retired << 32 | cycles left + BIAS."""
    return (instructions << 32) - cycles


def with_left(ir: Ir, progress: str, left: str) -> str:
    """Progress with so many cycles left (an i64) instead."""
    done = ir.value(f"and i64 {progress}, {-1 << 32}")
    return ir.value(f"or i64 {done}, {ir.value(f'add i64 {left}, {BIAS}')}")


def cycle_of(ir: Ir, progress: str) -> str:
    """The cycle (an i64) of an i64 progress. The frame is the function's argument."""
    left = ir.value(f"and i64 {progress}, {(1 << 32) - 1}")
    end = ir.value(f"add i64 {ir.load('i64', '%frame', 8 * LIMIT)}, {BIAS}")
    return ir.value(f"sub i64 {end}, {left}")


def retired(ir: Ir, progress: str) -> str:
    """Count of instructions (an i64) that have retired at an i64 progress."""
    return ir.value(f"add i64 {ir.load('i64', '%frame', 8 * INSTRET)}, {ir.value(f'lshr i64 {progress}, 32')}")


def make_frame(hart: Hart, bus: Bus) -> memoryview:
    """The frame of a hart that has no `space.Space` yet."""
    ram = bus.rams[0]
    frame = memoryview(bytearray(8 * WORDS)).cast("Q")
    for word, buffer in ((X, hart.x), (RAM, ram.data), (CODE, ram.code), (LOAD_OK, bus.load_ok)):
        frame[word] = address_of(buffer)
    frame[RECORDS_AT] = bus.clock.arena.address
    if bus.shadow is not None:
        own = bus.shadow.tables[0]
        tables = (own.flags, own.pcs, own.cycles, own.pages, own.written, bus.shadow.fenced)
        for word, part in zip(range(FLAGS, FENCED + 1), tables, strict=True):
            frame[word] = 0 if part is None else address_of(part)
    return frame
