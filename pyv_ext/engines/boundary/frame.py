"""The memory through which Python and native code share a hart: one 64-bit word for each name.

Native code answers reads of the counters of cycles and retired instructions from it, and finds there where PMP permits
loads and stores: the range used last, before the table of all ranges. Fetches are looked at when an instruction
is decoded; there is native code of its own for each map of fetches.
"""

import ctypes
from collections.abc import Sequence
from typing import Final, NamedTuple

from pyv_ext.bus.bus import Bus
from pyv_ext.hart import slots
from pyv_ext.hart.csr import WRAP, Csrs
from pyv_ext.hart.hart import Hart
from pyv_ext.hart.pmp import ENTRIES, EXECUTE, READ, WRITE, PmpMap
from pyv_ext.hart.traps import MACHINE, USER
from pyv_ext.isa import Instruction, Kind
from pyv_ext.isa.csr_names import ADDRESSES
from pyv_native.ir import Ir, Target

PC, PROGRESS, X, RAM, CODE, LOAD_OK, TABLE, FUNCTIONS, CYCLES, CYCLES_ON, RETIRED, RETIRED_ON = range(12)
"""Words of the frame: where the hart is; the addresses of its registers, of memory and its maps (see `Ram.code` and
`Bus.load_ok`), of the table of entries and of the regions' functions; what the counters of cycles and of retired
instructions show at 0 of them, and whether they count (see `show_counters`)."""

MEMORIES, MEMORY_COUNT = 12, 13
"""More words: the table of other memories and its length (see `elsewhere`)."""

LEFT, DONE = 16, 17
"""Signed words: the cycles that Python gives, and what is left of them, below 0 when the last instruction took longer;
the instructions that have retired."""

LIMIT, INSTRET = 18, 19
"""The cycle in which none are left, which moves while native code runs; the instructions that had retired when it was
entered."""

CUSTOM, VOLATILE, MARKED = range(20, 23)
"""Addresses: of the table of calls of custom instructions (see `custom`); of where the address of the table of
`entries.VolatileEntries` is; of the table of `entries.MarkedEntries`."""

END = 23
"""The cycle in which native code goes on after what it has asked Python for."""

FLAGS, STORE_PCS, STORE_CYCLES, STORE_PAGES, WRITTEN, FENCED = range(24, 30)
"""More words: the tables of a sanitizer (`pyv_ext.bus.shadow`), 0 without one."""

READABLE, WRITABLE = 30, 33
"""The first of three words each, of where PMP permits loads and stores: a range, and the address of the table of all
ranges (see `Permissions`)."""

MODES = {MACHINE: 36, USER: 37}
"""The addresses of what is loaded into the frame when the hart goes to a privilege mode; 0: Python must do that."""

PROTECTED, COUNTED = 38, 39
"""How often PMP had been written when native code was shown `MODES`: a write removes them, the next MRET needs them
anew. How often the counters had been, when it was shown these."""

MARKED_PC, MARKED_AT = 40, 41
"""The instruction that was marked last, and progress then."""

RECORDS_AT = 42
"""The address of the machine's records (`pyv_ext.machine.state`)."""

WORDS = 43

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
    """An interrupt may come before the next instruction."""


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


def address_of(buffer: object) -> int:
    """Where a writable buffer lies; the caller keeps the buffer alive."""
    return ctypes.addressof(ctypes.c_char.from_buffer(buffer))  # type: ignore[arg-type]


def make_frame(hart: Hart, bus: Bus) -> memoryview:
    """The frame of a hart that is in no privilege mode yet (see `Mode`)."""
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


def reading_of(instruction: Instruction) -> Reading | None:
    """What the instruction reads, if all it does is to read a counter, as machine mode may."""
    writes = instruction.word >> 15 & 31
    if instruction.row.kind is not Kind.CSR_UPDATE or writes:
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


# -- where PMP permits loads and stores ---------------------------------------------------------------------------

LOW, HIGH, RANGES = range(3)
"""Words of the frame from `READABLE` and `WRITABLE`. A row of the table is a range: LOW, HIGH; the last has HIGH 0."""
ROW = 2
ROWS = 2 * ENTRIES + 2
PERMITTED = "permitted"
"""`permitted(pointer to such words, address, address of the end) -> i1`; the range is then the one used last."""


class Permissions:
    """The tables of ranges of one privilege mode, and where it may fetch."""

    def __init__(self, permitted: PmpMap, mode: int) -> None:
        self._tables = [memoryview(bytearray(8 * ROW * ROWS)).cast("Q") for _ in range(2)]
        for right, table in zip((READ, WRITE), self._tables, strict=True):
            for index, (low, high) in enumerate((*permitted.spans(mode, right), (0, 0))):
                table[ROW * index + LOW], table[ROW * index + HIGH] = low, high
        self.addresses = tuple(map(address_of, self._tables))
        """Of the tables for loads and stores."""
        self.fetches = permitted.spans(mode, EXECUTE)
        self.fetchable = self.fetches if permitted.restricts[mode] else None
        """The same; None where nothing at all is forbidden."""


def permit(ir: Ir, word: int, address: str, size: int, leave: Target) -> None:
    """To `leave` unless all bytes of an access at an i64 address are permitted; `%frame` is the frame."""
    end = ir.value(f"add i64 {address}, {size}")
    inside = _inside(
        ir, ir.load("i64", "%frame", 8 * (word + LOW)), ir.load("i64", "%frame", 8 * (word + HIGH)), address, end
    )
    seek, fine = ir.new_label(), ir.new_label()
    ir.branch(inside, (fine, ()), (seek, ()))
    ir.block(seek)
    found = ir.value(f"call i1 @{PERMITTED}(ptr {ir.at('%frame', 8 * word)}, i64 {address}, i64 {end})")
    ir.unless(found, leave)
    ir.goto(fine)
    ir.block(fine)


def permission() -> str:
    """The IR of `PERMITTED`."""
    ir = Ir()
    ir.block("entry")
    ir.goto("look", (ir.load("ptr", "%words", 8 * RANGES),))
    (row,) = ir.block("look", "ptr")
    low, high = ir.load("i64", row, 8 * LOW), ir.load("i64", row, 8 * HIGH)
    ir.unless(ir.value(f"icmp ne i64 {high}, 0"), ("nowhere", ()))
    inside = _inside(ir, low, high, "%address", "%end")
    ir.branch(inside, ("found", ()), ("look", (ir.at(row, 8 * ROW),)))
    ir.block("found")
    ir.store("i64", low, "%words", 8 * LOW)
    ir.store("i64", high, "%words", 8 * HIGH)
    ir.do("ret i1 true")
    ir.block("nowhere")
    ir.do("ret i1 false")
    return ir.text(f"i1 @{PERMITTED}(ptr %words, i64 %address, i64 %end)")


def _inside(ir: Ir, low: str, high: str, address: str, end: str) -> str:
    return ir.value(f"and i1 {ir.value(f'icmp uge i64 {address}, {low}')}, {ir.value(f'icmp ule i64 {end}, {high}')}")


# -- privilege modes ---------------------------------------------------------------------------------------------

_LOADED = (TABLE, FUNCTIONS, VOLATILE, READABLE + RANGES, WRITABLE + RANGES)
"""The words of the frame that a privilege mode has of its own, in their order in its row; `Hart.guarded` follows."""
_FORGOTTEN = tuple(word + part for word in (READABLE, WRITABLE) for part in (LOW, HIGH))
"""What is 0 when a mode begins: the ranges used last."""


class Mode:
    """What is loaded into the frame when a hart goes to a privilege mode."""

    def __init__(self) -> None:
        self._row = memoryview(bytearray(8 * (len(_LOADED) + 1))).cast("Q")
        self.address = address_of(self._row)

    def fill(self, space: Sequence[int], permissions: Permissions, guarded: bool) -> None:
        """`space`: the addresses that `space.Space` has."""
        for index, value in enumerate((*space, *permissions.addresses, guarded)):
            self._row[index] = value

    def load(self, frame: memoryview) -> None:
        """Let the hart be in this mode."""
        for index, word in enumerate(_LOADED):
            frame[word] = self._row[index]
        for word in _FORGOTTEN:
            frame[word] = 0


def load_mode(ir: Ir, row: str, x: str) -> None:
    """The same in native code; `x` is the pointer to `Hart.x`."""
    for index, word in enumerate(_LOADED):
        ir.store("i64", ir.load("i64", row, 8 * index), "%frame", 8 * word)
    for word in _FORGOTTEN:
        ir.store("i64", "0", "%frame", 8 * word)
    ir.store("i64", ir.load("i64", row, 8 * len(_LOADED)), x, 8 * slots.GUARDED)
