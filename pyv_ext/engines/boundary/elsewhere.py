"""Loads and stores elsewhere than in the RAM of the fast path, in LLVM IR: other memories (scratchpads, ROM), devices.

Registers that need not be read again are in the MMIO read cache; stores wait in the queue of the clock. Devices in
Python are called where nothing else comes before.
"""

from pyv_ext.bus import store_queue, window
from pyv_ext.bus.bus import Bus
from pyv_ext.bus.memory import LINE_BITS
from pyv_ext.engines import near_code
from pyv_ext.engines.boundary import frame
from pyv_ext.engines.boundary.frame import CHANGES, MEMORIES, MEMORY_COUNT, READ_CACHE, address_of
from pyv_native.ir import Ir

LOAD, STORE = "load_elsewhere", "store_elsewhere"
"""`load_elsewhere(frame, address, size, cycles left) -> value | cycles << 32` and
`store_elsewhere(frame, address, size, value, cycles left) -> cycles`; 0 cycles: the bus must do it. A store to a device
that is left in the queue may move `LIMIT`: then the cycles take that into account."""

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
        frame[READ_CACHE] = address_of(bus.read_cache.table)
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


def functions(arriving: frozenset[int] = frozenset()) -> str:
    """The IR of `LOAD` and `STORE`; `arriving`: devices at which native code lets stores arrive itself."""
    return _load() + _store(arriving)


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


def _register(ir: Ir, serve: str, cache: int, words: int, tag_word: int) -> tuple[str, str, str, str]:
    """Block `register`: return what the call `serve` gives for a device that is native itself, or find the register in
    a cache, whose address is a word of the frame: number and address of its slot, the tag of the access, and whether
    the slot has it."""
    ir.block("register")
    served = ir.value(serve)
    ir.branch(ir.value(f"icmp ne i64 {served}, 0"), ("served", ()), ("cached", ()))
    ir.block("served")
    ir.do(f"ret i64 {served}")
    ir.block("cached")
    mixed = ir.value("xor i64 %address, " + ir.value("lshr i64 %address, 6"))
    slot = ir.value(f"and i64 {mixed}, {window.SLOTS - 1}")
    at = ir.at(ir.load("ptr", "%frame", 8 * cache), ir.value(f"mul i64 {slot}, {8 * words}"))
    tag = ir.value(f"or i64 %address, {ir.value('shl i64 %size, 32')}")
    return slot, at, tag, ir.value(f"icmp eq i64 {ir.load('i64', at, 8 * tag_word)}, {tag}")


def _load() -> str:
    ir = Ir()
    row, offset = _find(ir, LOADABLE, "register")
    place = ir.at(ir.load("ptr", row, 8 * DATA), offset)
    cycles = ir.value(f"shl i64 {ir.load('i64', row, 8 * LOAD_CYCLES)}, 32")
    ir.switch("i64", "%size", ((1, "byte"), (2, "half")), ("word", ()))
    for label, kind in (("byte", "i8"), ("half", "i16"), ("word", "i32")):
        ir.block(label)
        value = ir.value(f"zext {kind} {ir.load(kind, place)} to i64")
        ir.do(f"ret i64 {ir.value(f'or i64 {value}, {cycles}')}")
    served = f"call i64 @{near_code.LOAD}(ptr %frame, i64 %address, i64 %size, i64 %left)"
    _, at, _, same = _register(ir, served, READ_CACHE, window.WORDS, window.TAG)
    after = ir.load("i64", at, 8 * window.ACTS)
    ir.unless(same, ("bus", ()))
    undisturbed = ir.value(f"icmp ult i64 {after}, %left")
    call = ir.load("ptr", at, 8 * window.CALL)
    ir.branch(ir.value(f"icmp eq ptr {call}, null"), ("kept", ()), ("called", ()))
    _call(ir, at, call, after, undisturbed)
    ir.block("kept")
    ir.unless(undisturbed, ("bus", ()))
    ir.goto("shown")
    ir.block("shown")
    arrived, acts = ir.load("i64", at, 8 * window.ARRIVES), ir.value(f"add i64 {_start(ir)}, {after}")
    ir.unless(ir.value(f"icmp ule i64 {arrived}, {acts}"), ("bus", ()))
    queued = ir.load("i64", ir.load("ptr", "%frame", 8 * frame.QUEUE), 8 * store_queue.COUNT)
    fresh = ir.value(f"icmp eq i64 {ir.load('i64', at, 8 * window.CHANGES)}, {ir.load('i64', '%frame', 8 * CHANGES)}")
    quiet = ir.value(f"and i1 {fresh}, {ir.value(f'icmp eq i64 {queued}, 0')}")
    since, epoch = ir.load("i64", at, 8 * window.SINCE), ir.load("i64", "%frame", 8 * frame.EPOCH)
    on = ir.value(f"icmp ne i64 {since}, 0")
    recalled = ir.value(f"and i1 {on}, {ir.value(f'icmp eq i64 {since}, {epoch}')}")
    ir.unless(ir.value(f"or i1 {quiet}, {recalled}"), ("bus", ()))
    cycles = ir.value(f"shl i64 {ir.load('i64', at, 8 * window.CYCLES)}, 32")
    ir.do(f"ret i64 {ir.value(f'or i64 {cycles}, ' + ir.load('i64', at, 8 * window.VALUE))}")
    ir.block("bus")
    ir.do("ret i64 0")
    return ir.text(f"i64 @{LOAD}(ptr %frame, i64 %address, i64 %size, i64 %left)")


def _call(ir: Ir, at: str, call: str, after: str, undisturbed: str) -> None:
    """Block `called`: the device reads the register, if there is nothing else that Python must be told of before. What
    is due up to then happens before, if it is for native code; then nothing is left of the cycles after the load."""
    ir.block("called")
    start, cycles = _start(ir), ir.load("i64", at, 8 * window.CYCLES)
    acts = ir.value(f"add i64 {start}, {after}")
    ir.unless(ir.value(f"icmp ne i64 {ir.load('i64', '%frame', 8 * frame.EPOCH)}, 0"), ("bus", ()))
    ir.branch(undisturbed, ("direct", (cycles,)), ("events", ()))
    ir.block("events")
    limit = ir.value(f"call i64 @{near_code.EVENT}(ptr %frame, i64 {acts}, i32 0)")
    ir.unless(ir.value(f"icmp ne i64 {limit}, 0"), ("bus", ()))
    ir.store("i64", ir.value(f"add i64 {start}, %left"), "%frame", 8 * frame.LIMIT)
    ir.goto("direct", ("%left",))
    (taken,) = ir.block("direct", "i64")
    _unless_waiting(ir, ir.load("ptr", "%frame", 8 * frame.QUEUE))
    ir.unless(near_code.untouched(ir, 8 * frame.TOUCHED), ("bus", ()))
    value = ir.value(f"call i64 @{near_code.DEVICE_LOAD}(ptr %frame, ptr {call}, i64 {acts})")
    ir.unless(ir.value(f"icmp sge i64 {value}, 0"), ("bus", ()))
    end = ir.value(f"add i64 {start}, {cycles}")
    ir.store("i64", ir.value(f"add i64 {end}, {ir.value(f'sub i64 %left, {taken}')}"), "%frame", 8 * frame.LIMIT)
    ir.do(f"ret i64 {ir.value(f'or i64 {value}, ' + ir.value(f'shl i64 {taken}, 32'))}")


def _unless_waiting(ir: Ir, queue: str) -> None:
    """To `bus` where deferrable stores wait: they come before anything in Python. All others come in their cycle."""
    count, loud = (ir.load("i64", queue, 8 * word) for word in (store_queue.COUNT, store_queue.LOUD))
    ir.unless(ir.value(f"icmp eq i64 {count}, {loud}"), ("bus", ()))


def _put(ir: Ir, row: str, value: str, start: str, cycles: str, queue: str) -> None:
    """Block `put`: a store that arrives in its last cycle, likewise. Nothing that is due comes before."""
    ir.block("put")
    ir.unless(ir.value(f"icmp ule i64 {cycles}, %left"), ("bus", ()))
    _unless_waiting(ir, queue)
    ir.unless(near_code.untouched(ir, 8 * frame.TOUCHED), ("bus", ()))
    acts = ir.value(f"sub i64 {ir.value(f'add i64 {start}, {cycles}')}, 1")
    answer = ir.value(f"call i64 @{near_code.DEVICE_PUT}(ptr %frame, ptr {row}, i64 {value}, i64 {acts})")
    ir.unless(ir.value(f"icmp eq i64 {answer}, 0"), ("bus", ()))
    ir.do(f"ret i64 {cycles}")


def _start(ir: Ir) -> str:
    """The cycle in which the access starts."""
    return ir.value(f"sub i64 {ir.load('i64', '%frame', 8 * frame.LIMIT)}, %left")


def _recall(ir: Ir, slot: str, tag: str, value: str, arrival: str) -> None:
    """Let the MMIO read cache know what is stored."""
    offset = ir.value(f"mul i64 {slot}, {8 * window.WORDS}")
    at = ir.at(ir.load("ptr", "%frame", 8 * READ_CACHE), offset)
    same, other = ir.fresh(), ir.fresh()
    kept = ir.value(f"icmp eq i64 {ir.load('i64', at, 8 * window.TAG)}, {tag}")
    ir.branch(kept, (same, ()), (other, ()))
    ir.block(same)
    bits, old = ir.load("i64", at, 8 * window.RECALLED), ir.load("i64", at, 8 * window.VALUE)
    kept = ir.value(f"and i64 {old}, {ir.value(f'xor i64 {bits}, -1')}")
    ir.store("i64", ir.value(f"or i64 {kept}, {ir.value(f'and i64 {value}, {bits}')}"), at, 8 * window.VALUE)
    ir.store("i64", arrival, at, 8 * window.ARRIVES)
    ir.goto(other)
    ir.block(other)


def _store(arriving: frozenset[int]) -> str:
    ir = Ir()
    row, offset = _find(ir, STORABLE, "register")
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
    _defer(ir, arriving)
    ir.block("bus")
    ir.do("ret i64 0")
    return ir.text(f"i64 @{STORE}(ptr %frame, i64 %address, i64 %size, i32 %value, i64 %left)")


def _defer(ir: Ir, arriving: frozenset[int]) -> None:
    """From block `register` on: leave a store to a device in the queue, if that is possible, as `Window` posts it."""
    served = f"call i64 @{near_code.STORE}(ptr %frame, i64 %address, i64 %size, i32 %value, i64 %left)"
    slot, at, tag, same = _register(ir, served, frame.STORE_CACHE, window.SLOT_WORDS, window.STORE_TAG)
    now, epoch = ir.load("i64", "%frame", 8 * frame.EPOCH), ir.load("i64", at, 8 * window.EPOCH)
    always = ir.value(f"icmp eq i64 {epoch}, {window.ALWAYS}")
    holds = ir.value(f"or i1 {always}, {ir.value(f'icmp eq i64 {epoch}, {now}')}")
    on = ir.value(f"and i1 {holds}, {ir.value(f'icmp ne i64 {now}, 0')}")
    queue = ir.load("ptr", "%frame", 8 * frame.QUEUE)
    count = ir.load("i64", queue, 8 * store_queue.COUNT)
    room = ir.value(f"icmp ult i64 {count}, {store_queue.CAPACITY}")
    ir.unless(ir.value(f"and i1 {same}, {ir.value(f'and i1 {on}, {room}')}"), ("bus", ()))

    limit, posted = ir.load("i64", "%frame", 8 * frame.LIMIT), ir.load("ptr", "%frame", 8 * frame.POSTED)
    start = ir.value(f"sub i64 {limit}, %left")
    ir.branch(ir.value(f"icmp ult i64 {count}, {store_queue.CROWDED}"), ("room", (count,)), ("crowded", ()))
    ir.block("crowded")
    ir.unless(ir.value(f"call i1 @{near_code.DRAIN}(ptr %frame, i64 {start})"), ("bus", ()))
    ir.goto("room", (ir.load("i64", queue, 8 * store_queue.COUNT),))
    (count,) = ir.block("room", "i64")
    behind = ir.value(f"icmp ne i64 {ir.load('i64', queue, 8 * store_queue.LOUD)}, 0")
    loud = ir.value(f"or i1 {always}, {behind}")
    busy, one_way = ir.load("i64", at, 8 * window.STORE_CYCLES), ir.load("i64", at, 8 * window.ONE_WAY)
    given = ir.value(f"and i64 {ir.value('zext i32 %value to i64')}, {ir.load('i64', at, 8 * window.MASK)}")
    row = ir.load("ptr", at, 8 * window.STORE_CALL)
    called = ir.value(f"and i1 {ir.value(f'icmp ne ptr {row}, null')}, {ir.value(f'icmp eq i64 {one_way}, 0')}")
    ir.branch(called, ("put", ()), ("queued", ()))
    _put(ir, row, given, start, busy, queue)
    ir.block("queued")
    ring = ir.load("i64", posted, 8 * window.NEXT)
    place = ir.at(posted, ir.value(f"shl i64 {ir.value(f'add i64 {ring}, {window.RING}')}, 3"))
    oldest = ir.load("i64", place)
    waits = ir.value(f"icmp ugt i64 {oldest}, {start}")
    leaves = ir.value(f"select i1 {waits}, i64 {oldest}, i64 {start}")
    end = ir.value(f"add i64 {leaves}, {busy}")
    arrival = ir.value(f"add i64 {end}, {one_way}")
    entry = ir.at(queue, ir.value(f"mul i64 {count}, {8 * store_queue.STORE_WORDS}"))
    what = ir.load("i64", at, 8 * window.WHAT)
    flag = ir.value(f"select i1 {loud}, i64 {store_queue.NOT_DEFERRABLE - (1 << 64)}, i64 0")
    marked = ir.value(f"or i64 {what}, {flag}")
    call = ir.load("i64", at, 8 * window.STORE_CALL) if arriving else "0"
    for word, value in (
        (store_queue.ARRIVAL, arrival),
        (store_queue.WHAT_OF_STORE, marked),
        (store_queue.VALUE, given),
        (store_queue.CALL, call),
    ):
        ir.store("i64", value, entry, 8 * (store_queue.FIRST + word))
    ir.store("i64", ir.value(f"add i64 {count}, 1"), queue, 8 * store_queue.COUNT)
    _recall(ir, slot, tag, given, arrival)
    cycles = ir.value(f"sub i64 {end}, {start}")
    ir.branch(ir.value(f"icmp ne i64 {one_way}, 0"), ("posted", ()), ("gone", ()))
    ir.block("gone")
    ir.do(f"ret i64 {cycles}")

    ir.block("posted")
    ir.store("i64", arrival, place)
    ir.store("i64", arrival, posted, 8 * window.DRAINED)
    after = ir.value(f"add i64 {ring}, 1")
    wraps = ir.value(f"icmp eq i64 {after}, {ir.load('i64', posted, 8 * window.DEPTH)}")
    ir.store("i64", ir.value(f"select i1 {wraps}, i64 0, i64 {after}"), posted, 8 * window.NEXT)
    sooner = ir.value(f"and i1 {loud}, {ir.value(f'icmp ult i64 {arrival}, {limit}')}")
    first = ir.value(f"select i1 {sooner}, i64 {arrival}, i64 {limit}")
    ir.store("i64", first, "%frame", 8 * frame.LIMIT)
    others = ir.load("i64", "%frame", 8 * frame.OTHERS)
    asks = ir.value(f"and i1 {loud}, {ir.value(f'icmp eq i64 {call}, 0')}")
    for number in sorted(arriving):
        other = ir.value(f"icmp ne i64 {ir.value(f'lshr i64 {what}, 40')}, {number}")
        asks = ir.value(f"and i1 {asks}, {other}")
    sooner = ir.value(f"and i1 {asks}, {ir.value(f'icmp ult i64 {arrival}, {others}')}")
    ir.store("i64", ir.value(f"select i1 {sooner}, i64 {arrival}, i64 {others}"), "%frame", 8 * frame.OTHERS)
    louder = ir.value(f"add i64 {ir.load('i64', queue, 8 * store_queue.LOUD)}, {ir.value(f'zext i1 {loud} to i64')}")
    ir.store("i64", louder, queue, 8 * store_queue.LOUD)
    ir.do(f"ret i64 {ir.value(f'add i64 {cycles}, ' + ir.value(f'sub i64 {limit}, {first}'))}")
