"""Loads and stores of other memories than the RAM of the fast path, in LLVM IR: scratchpads, ROM."""

from pyv_ext.bus.bus import Bus
from pyv_ext.bus.memory import LINE_BITS
from pyv_ext.engines.boundary.frame import MEMORIES, MEMORY_COUNT, address_of
from pyv_native.ir import Ir

LOAD, STORE = "load_elsewhere", "store_elsewhere"
"""`load_elsewhere(frame, address, size) -> value | cycles << 32` and `store_elsewhere(frame, address, size, value) ->
cycles`; 0 cycles: no such memory, or the bus must do it."""

BASE, LOADABLE, STORABLE, DATA, LINES, LOAD_CYCLES, STORE_CYCLES = range(7)
"""Words of a row of the table of memories: base; bytes that may be loaded and stored, 0 while the bus must see it;
addresses of data and `Ram.code`; cycles."""
WORDS = 7
MOST_MEMORIES = 16


class OtherMemories:
    """The table, filled anew whenever the map of the bus changes; memories beyond `MOST_MEMORIES` are for the bus."""

    def __init__(self, bus: Bus, frame: memoryview) -> None:
        self._bus = bus
        self._frame = frame
        self._table = memoryview(bytearray(8 * WORDS * MOST_MEMORIES)).cast("Q")
        frame[MEMORIES] = address_of(self._table)
        bus.on_map.append(self._fill)
        self._fill()

    def close(self) -> None:
        """The frame is not used any more."""
        self._bus.on_map.remove(self._fill)

    def _fill(self) -> None:
        bus, timing = self._bus, self._bus.timing
        rams = bus.rams[1 : 1 + MOST_MEMORIES]
        for index, ram in enumerate(rams):
            extra = timing.near_extra if ram.near else 0
            unseen = bus.shadow is None or not ram.writable
            loadable = 0 if bus.watched_in(ram) or not unseen else ram.size
            storable = ram.size if ram.writable and unseen else 0
            row = (ram.base, loadable, storable, address_of(ram.data), address_of(ram.code),
                   timing.load + extra, timing.store + extra)  # fmt: skip
            for word, value in enumerate(row):
                self._table[WORDS * index + word] = value
        self._frame[MEMORY_COUNT] = len(rams)


def functions() -> str:
    """The IR of `LOAD` and `STORE`."""
    return _load() + _store()


def _find(ir: Ir, limit: int, nowhere: str) -> tuple[str, str]:
    """(row, offset) of the memory that holds the access, else to the block `nowhere`."""
    ir.block("entry")
    table, count = ir.load("ptr", "%frame", 8 * MEMORIES), ir.load("i64", "%frame", 8 * MEMORY_COUNT)
    ir.goto("look", ("0",))
    (index,) = ir.block("look", "i64")
    ir.unless(ir.value(f"icmp ult i64 {index}, {count}"), (nowhere, ()))
    row = ir.value(f"getelementptr i8, ptr {table}, i64 {ir.value(f'mul i64 {index}, {8 * WORDS}')}")
    offset = ir.value(f"sub i64 %address, {ir.load('i64', row, 8 * BASE)}")
    inside = ir.value(f"icmp ult i64 {offset}, {ir.load('i64', row, 8 * limit)}")
    low = ir.value(f"and i64 {offset}, {ir.value('sub i64 %size, 1')}")
    aligned = ir.value(f"icmp eq i64 {low}, 0")
    found = ir.value(f"and i1 {inside}, {aligned}")
    after = ir.value(f"add i64 {index}, 1")
    ir.branch(found, ("found", ()), ("look", (after,)))
    ir.block("found")
    return row, offset


def _load() -> str:
    ir = Ir()
    row, offset = _find(ir, LOADABLE, "bus")
    place = ir.at(ir.load("ptr", row, 8 * DATA), offset)
    cycles = ir.value(f"shl i64 {ir.load('i64', row, 8 * LOAD_CYCLES)}, 32")
    ir.switch("i64", "%size", ((1, "byte"), (2, "half")), ("word", ()))
    for label, kind in (("byte", "i8"), ("half", "i16"), ("word", "i32")):
        ir.block(label)
        value = ir.value(f"zext {kind} {ir.load(kind, place)} to i64")
        ir.do(f"ret i64 {ir.value(f'or i64 {value}, {cycles}')}")
    ir.block("bus")
    ir.do("ret i64 0")
    return ir.text(f"i64 @{LOAD}(ptr %frame, i64 %address, i64 %size)")


def _store() -> str:
    ir = Ir()
    row, offset = _find(ir, STORABLE, "bus")
    line = ir.value(f"lshr i64 {offset}, {LINE_BITS}")
    code = ir.load("i8", ir.at(ir.load("ptr", row, 8 * LINES), line))
    ir.unless(ir.value(f"icmp eq i8 {code}, 0"), ("bus", ()))
    place = ir.at(ir.load("ptr", row, 8 * DATA), offset)
    cycles = ir.load("i64", row, 8 * STORE_CYCLES)
    ir.switch("i64", "%size", ((1, "byte"), (2, "half")), ("word", ()))
    for label, kind in (("byte", "i8"), ("half", "i16"), ("word", "i32")):
        ir.block(label)
        ir.store(kind, "%value" if kind == "i32" else ir.value(f"trunc i32 %value to {kind}"), place)
        ir.do(f"ret i64 {cycles}")
    ir.block("bus")
    ir.do("ret i64 0")
    return ir.text(f"i64 @{STORE}(ptr %frame, i64 %address, i64 %size, i32 %value)")
