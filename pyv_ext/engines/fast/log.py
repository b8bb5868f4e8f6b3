"""A log of stores and fences that the interpreter keeps for a batch tracer, so that it need not stop at each of them.

A record stands for instructions in a row that store to the same 64-byte line, whatever else retires between them.
"""

from collections.abc import Sequence

from pyv_ext.bus.memory import LINE
from pyv_ext.engines.fast.frame import LOG, LOG_END, address_of, cycle_of
from pyv_ext.engines.tracer import FENCE, Record
from pyv_jit.ir import Ir

NOTE = "note"
"""`note(frame, progress, what, cycles)`: an instruction that began at `progress` and took `cycles`; `what` is the
address of the line that it stored to, or `FENCE`."""

START, WHAT, CYCLES = range(3)
"""Words of a `Record`."""
WORDS = 3
RECORDS = 4096
_OFF, _NEVER = 0, (1 << 64) - 1


class Log:
    """The records of one hart. While it is off, it is not full."""

    def __init__(self, frame: memoryview) -> None:
        self._frame = frame
        self._table = memoryview(bytearray(8 * WORDS * (RECORDS + 1))).cast("Q")
        self._first = address_of(self._table) + 8 * WORDS
        """The record before it has no line and is never added to."""
        self._table[WHAT] = _NEVER
        self._frame[LOG], self._frame[LOG_END] = _OFF, self._first + 8 * WORDS * RECORDS

    def switch(self, on: bool) -> None:
        """Begin an empty log, or keep none."""
        self._frame[LOG] = self._first if on else _OFF

    def take(self) -> Sequence[Record]:
        """What was logged; the log is empty then."""
        length = self._frame[LOG] - self._first
        if not length:
            return ()
        self._frame[LOG] = self._first
        words = iter(self._table[WORDS : WORDS + length // 8].tolist())
        return list(zip(words, words, words, strict=True))


def function() -> str:
    """The IR of `NOTE`; to be called only while the log is on and not full."""
    ir = Ir()
    ir.block("entry")
    here = ir.load("ptr", "%frame", 8 * LOG)
    last = ir.at(here, -8 * WORDS)
    same = ir.value(f"icmp eq i64 {ir.load('i64', last, 8 * WHAT)}, %what")
    ir.branch(same, ("again", ()), ("fresh", ()))
    ir.block("again")
    ir.store("i64", ir.value(f"add i64 {ir.load('i64', last, 8 * CYCLES)}, %cycles"), last, 8 * CYCLES)
    ir.do("ret void")
    ir.block("fresh")
    for word, value in ((START, cycle_of(ir, "%progress")), (WHAT, "%what"), (CYCLES, "%cycles")):
        ir.store("i64", value, here, 8 * word)
    ir.store("ptr", ir.at(here, 8 * WORDS), "%frame", 8 * LOG)
    ir.do("ret void")
    return ir.text(f"void @{NOTE}(ptr %frame, i64 %progress, i64 %what, i64 %cycles)")


def what_of(ir: Ir, address: str) -> str:
    """The i64 that stands for a store to an i32 address."""
    return ir.value(f"zext i32 {ir.value(f'and i32 {address}, {-LINE}')} to i64")


assert FENCE % LINE, "a fence must not look like a line"
