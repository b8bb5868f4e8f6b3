"""The IR of devices that native code serves (`pyv_ext.engines.near`), made from their programs."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from pyv_ext.bus import store_queue
from pyv_ext.bus.clock import NEVER
from pyv_ext.bus.store_queue import NOT_DEFERRABLE, what_of
from pyv_ext.devices import interrupts
from pyv_ext.devices.interrupts import MEIP
from pyv_ext.devices.plic import SET_LEVELS
from pyv_ext.devices.programs import NativeForm
from pyv_ext.hart import slots
from pyv_ext.hart.csr import MIE
from pyv_ext.hart.traps import MACHINE
from pyv_native.ir import Ir

if TYPE_CHECKING:
    from pyv_ext.engines.program_code import Lowered

LOAD, STORE, EVENT = "load_near", "store_near", "near_event"
"""`load_near(frame, address, size, cycles left) -> value | cycles << 32` and
`store_near(frame, address, size, value, cycles left) -> cycles`, as in `access`: 0 where Python must do it.
`near_event(frame, cycle, bits) -> limit`: what is due by the cycle, if it is all of these devices; then how far native
code may go. 0 where Python must do what is left. With `bits` of mip: the event must raise one of them, and 0 says that
nothing has changed."""
DRAIN = "near_drain"
"""`near_drain(frame, cycle) -> i1`: deferrable stores arrive that are first in the queue and due at the start of the
cycle, if they are for these devices. False: there is no room for what Python must be told of."""
_SETTLE, _SETTLE_LINE = "near_settle", "near_settle_line"
DEVICE_LOAD, DEVICE_STORE, DEVICE_PUT = "device_load", "device_store", "device_put"
"""`device_load(frame, row of pyv_ext.bus.direct, cycle) -> value`: what the device's `read` returns in that cycle;
`device_store(frame, row, value, cycle) -> 0`: a posted store arrives at the start of the cycle; `device_put(frame, row,
value, cycle) -> 0`: one that acts in the cycle. Below 0 where Python has more to do: after `device_load` and
`device_put`, the same access."""
CALLED = -1
"""In the place of the cycle from which on devices have changed: all that has happened is that some were called."""

CLINT, PLIC, UART, WIRING, SENT, TOLD = range(6)
"""Words of the table: where the words of each are; how many characters the UART has sent, and how often MEIP has
changed, that Python has not been told of; these follow."""
MOST = 4096
"""Of either."""
CHARACTERS = 6
"""A byte of each."""
CHANGES = CHARACTERS + MOST // 8
TABLE_WORDS = CHANGES + MOST


class Places(NamedTuple):
    """The words of the frame that are used here, by their offsets in bytes."""

    x: int
    limit: int
    others: int
    touched: int
    table: int
    epoch: int
    changes: int
    queue: int
    shown: int


Registry = Mapping[int, str]
"""Programs by offset."""


class Registers(NamedTuple):
    """A device on the bus, whose words are at `place` of the table."""

    place: int
    form: NativeForm
    base: int
    number: int
    """Of the device at the clock."""
    load_cycles: int
    load_acts: int
    store_cycles: int
    posted: bool
    """Whether stores arrive later than they leave the core."""


class NearCode:
    """Makes the functions for these devices."""

    def __init__(self, devices: Sequence[Registers], forms: Mapping[int, NativeForm], source: int, at: Places) -> None:
        """`forms`: of `CLINT`, `PLIC` and, if it is served, `UART`, whose source at the PLIC is `source`."""
        self._devices = devices
        self._forms = forms
        self._source = source
        self._at = at

    def text(self) -> str:
        """The IR of all functions."""
        served = self._settle() + (self._settle_line() if UART in self._forms else "")
        return served + self._load() + self._store() + self._event() + self._drain() + _pop()

    # -- parts ---------------------------------------------------------------------------------------------------

    def _begin(self, ir: Ir) -> str:
        """The pointer to the table; to `python` while Python serves the devices."""
        ir.block("entry")
        on = ir.value(f"icmp ne i64 {ir.load('i64', '%frame', self._at.epoch)}, 0")
        ir.unless(on, ("python", ()))
        table = ir.load("ptr", "%frame", self._at.table)
        ir.unless(ir.value(f"icmp ne ptr {table}, null"), ("python", ()))
        return table

    def _unless_full(self, ir: Ir, table: str, full: str = "python") -> None:
        """To `full` where there is no room for what Python must be told of."""
        for count in (SENT, TOLD):
            room = ir.value(f"icmp ult i64 {ir.load('i64', table, 8 * count)}, {MOST}")
            ir.unless(room, (full, ()))

    def _words(self, ir: Ir, table: str, place: int) -> "Lowered":
        names = interrupts.WORDS if place == WIRING else self._forms[place].names
        from pyv_ext.engines.program_code import Lowered  # not where the cache has the code

        return Lowered(ir, names, ir.load("ptr", table, 8 * place))

    def _python(self, ir: Ir) -> None:
        ir.block("python")
        ir.do("ret i64 0")

    def _guard(self, ir: Ir, made: "Lowered", form: NativeForm, program: str) -> None:
        if program in form.python:
            held = made.execute(form.python[program])
            ir.unless(ir.value(f"icmp eq i64 {held}, 0"), ("python", ()))

    def _changed(self, ir: Ir) -> None:
        """Nothing holds that caches know of the device."""
        epoch = ir.load("i64", "%frame", self._at.epoch)
        ir.store("i64", ir.value(f"add i64 {epoch}, 1"), "%frame", self._at.epoch)
        ir.store("i64", "0", "%frame", self._at.changes)

    def _is_posted(self, place: int) -> bool:
        """Whether a device is served whose stores arrive later than they leave the core."""
        return any(device.place == place and device.posted for device in self._devices)

    def _follow(self, ir: Ir, table: str, clint: "Lowered", cycle: str) -> "tuple[Lowered, str]":
        """The wiring as `InterruptWiring` executes it, and the bits of mip (an i64); nothing is written."""
        wiring, plic = self._words(ir, table, WIRING), self._words(ir, table, PLIC)
        local = clint.execute(self._forms[CLINT].lines)
        output = plic.execute(self._forms[PLIC].lines)
        return wiring, wiring.execute(interrupts.FOLLOW, now=cycle, value=ir.value(f"or i64 {local}, {output}"))

    def _show(self, ir: Ir, table: str, wiring: "Lowered", lines: str, cycle: str) -> None:
        """Write wiring and mip; take note of MEIP."""
        wiring.save()
        x = ir.load("ptr", "%frame", self._at.x)
        bits = ir.value(f"trunc i64 {lines} to i32")
        before = ir.load("i32", x, 8 * slots.MIP)
        news = ir.value(f"and i32 {ir.value(f'xor i32 {before}, {bits}')}, {MEIP}")
        ir.store("i32", bits, x, 8 * slots.MIP)
        ir.store("i64", cycle, "%frame", self._at.touched)
        count = ir.load("i64", table, 8 * TOLD)
        level = ir.value(f"and i64 {ir.value(f'lshr i64 {lines}, {MEIP.bit_length() - 1}')}, 1")
        seen = wiring.values["seen"]
        change = ir.value(f"or i64 {ir.value(f'shl i64 {seen}, 1')}, {level}")
        place = ir.value(f"add i64 {ir.value(f'shl i64 {count}, 3')}, {8 * CHANGES}")
        ir.store("i64", change, ir.at(table, place))
        changed = ir.value(f"zext i1 {ir.value(f'icmp ne i32 {news}, 0')} to i64")
        ir.store("i64", ir.value(f"add i64 {count}, {changed}"), table, 8 * TOLD)

    def _least(self, ir: Ir, one: str, *others: str) -> str:
        for other in others:
            one = ir.value(f"select i1 {ir.value(f'icmp ult i64 {other}, {one}')}, i64 {other}, i64 {one}")
        return one

    def _due(self, ir: Ir, table: str) -> tuple[str, str]:
        """When the devices change by themselves, and when the next store arrives up to which native code may go."""
        wiring, clint = self._words(ir, table, WIRING), self._words(ir, table, CLINT)
        due = wiring.execute(f"due if due > seen else {NEVER}")
        queue = ir.load("ptr", "%frame", self._at.queue)
        first = ir.load("i64", queue, 8 * (store_queue.FIRST + store_queue.ARRIVAL))
        none = ir.value(f"icmp eq i64 {ir.load('i64', queue, 8 * store_queue.LOUD)}, 0")
        arrival = ir.value(f"select i1 {none}, i64 {NEVER}, i64 {first}")
        return self._least(ir, clint.execute(self._forms[CLINT].due), due), arrival

    def _settle(self) -> str:
        """`near_settle(frame, cycle)`: a device has changed, with effect from the cycle on."""
        ir = Ir()
        ir.block("entry")
        table = ir.load("ptr", "%frame", self._at.table)
        wiring, lines = self._follow(ir, table, self._words(ir, table, CLINT), "%cycle")
        self._show(ir, table, wiring, lines, "%cycle")
        ir.do("ret void")
        return ir.text(f"void @{_SETTLE}(ptr %frame, i64 %cycle)")

    def _settle_line(self) -> str:
        """`near_settle_line(frame, cycle)`: the UART has changed; nothing follows it unless its line has."""
        ir = Ir()
        ir.block("entry")
        table = ir.load("ptr", "%frame", self._at.table)
        ir.store("i64", "%cycle", "%frame", self._at.touched)
        line = self._words(ir, table, UART).execute(self._forms[UART].lines)
        plic = self._words(ir, table, PLIC)
        levels = plic.execute("levels")
        known = ir.value(f"and i64 {ir.value(f'lshr i64 {levels}, {self._source}')}, 1")
        ir.branch(ir.value(f"icmp eq i64 {line}, {known}"), ("same", ()), ("news", ()))
        ir.block("news")
        plic.execute(SET_LEVELS, value=ir.value(f"xor i64 {levels}, {1 << self._source}"))
        plic.save()
        ir.do(f"call void @{_SETTLE}(ptr %frame, i64 %cycle)")
        ir.goto("same")
        ir.block("same")
        ir.do("ret void")
        return ir.text(f"void @{_SETTLE_LINE}(ptr %frame, i64 %cycle)")

    def _done(self, ir: Ir, device: Registers, made: "Lowered", cycle: str) -> None:
        """A register has been accessed, with effect from the cycle on."""
        made.save()
        if device.place == UART:
            self._changed(ir)
        function = _SETTLE_LINE if device.place == UART else _SETTLE
        ir.do(f"call void @{function}(ptr %frame, i64 {cycle})")

    def _send(self, ir: Ir, table: str, device: Registers, made: "Lowered", offset: int, value: str) -> None:
        if offset not in device.form.sends:
            return
        leaves, count = made.execute(device.form.sends[offset]), ir.load("i64", table, 8 * SENT)
        place = ir.at(table, ir.value(f"add i64 {count}, {8 * CHARACTERS}"))
        ir.store("i8", ir.value(f"trunc i64 {value} to i8"), place)
        ir.store("i64", ir.value(f"add i64 {count}, {leaves}"), table, 8 * SENT)

    # -- accesses --------------------------------------------------------------------------------------------------

    def _dispatch(
        self,
        ir: Ir,
        key: str,
        case: Callable[[Registers, int], int],
        accesses: Iterable[tuple[Registers, Registry]],
        default: str = "python",
    ) -> Iterator[tuple[Registers, int, str]]:
        """Device, offset and program of each register, whose block has been begun; registers that have the program
        share it. `case`: what an i64 `key` is for a register."""
        blocks, cases = dict[tuple[int, str], tuple[str, Registers, int]](), list[tuple[int, str]]()
        for device, programs in accesses:
            for offset, program in programs.items():
                new = f"r{len(blocks)}", device, offset
                label, _, _ = blocks.setdefault((device.place, program), new)
                cases.append((case(device, offset), label))
        ir.switch("i64", key, cases, (default, ()))
        for (_, program), (label, device, offset) in blocks.items():
            ir.block(label)
            yield device, offset, program

    def _accessed(self, ir: Ir, stores: bool) -> Iterator[tuple[Registers, int, str]]:
        """The registers that a load or store may access."""
        key = ir.value(f"or i64 %address, {ir.value('shl i64 %size, 32')}")
        devices = [device for device in self._devices if not (stores and device.posted)]
        return self._dispatch(
            ir,
            key,
            lambda device, offset: device.base + offset | device.form.size << 32,
            [(device, device.form.stores if stores else device.form.loads) for device in devices],
        )

    def _offset(self, ir: Ir, device: Registers) -> str:
        return ir.value(f"sub i64 %address, {device.base}")

    def _start(self, ir: Ir) -> str:
        return ir.value(f"sub i64 {ir.load('i64', '%frame', self._at.limit)}, %left")

    def _free(self, ir: Ir, device: Registers, acts: int) -> None:
        """To `python` where something is due up to the cycle in which the access acts, or stores are on their way that
        matter."""
        ir.unless(ir.value(f"icmp ult i64 {acts}, %left"), ("python", ()))
        if device.place == UART:
            queue = ir.load("ptr", "%frame", self._at.queue)
            ir.unless(ir.value(f"icmp eq i64 {ir.load('i64', queue, 8 * store_queue.COUNT)}, 0"), ("python", ()))

    def _load(self) -> str:
        ir = Ir()
        table = self._begin(ir)
        self._unless_full(ir, table)
        for device, offset, program in self._accessed(ir, stores=False):
            self._free(ir, device, device.load_acts)
            now = ir.value(f"add i64 {self._start(ir)}, {device.load_acts}")
            made = self._words(ir, table, device.place)
            self._guard(ir, made, device.form, program)
            value = made.execute(program, now=now, place=self._offset(ir, device))
            if offset not in device.form.quiet:
                self._done(ir, device, made, ir.value(f"add i64 {now}, 1"))
            ir.do(f"ret i64 {ir.value(f'or i64 {value}, {device.load_cycles << 32}')}")
        self._python(ir)
        return ir.text(f"i64 @{LOAD}(ptr %frame, i64 %address, i64 %size, i64 %left)")

    def _store(self) -> str:
        """Of devices whose stores arrive when they leave the core."""
        ir = Ir()
        table = self._begin(ir)
        self._unless_full(ir, table)
        for device, offset, program in self._accessed(ir, stores=True):
            cycles = device.store_cycles
            self._free(ir, device, cycles - 1)
            old = ir.load("i64", "%frame", self._at.limit)
            after = ir.value(f"add i64 {ir.value(f'sub i64 {old}, %left')}, {cycles}")
            made = self._words(ir, table, device.place)
            self._guard(ir, made, device.form, program)
            mask = (1 << 8 * device.form.size) - 1
            low = ir.value(f"and i64 {ir.value('zext i32 %value to i64')}, {mask}")
            self._send(ir, table, device, made, offset, low)
            made.execute(program, now=after, value=low, place=self._offset(ir, device))
            made.execute(device.form.settle, now=after)
            self._done(ir, device, made, after)
            limit = self._least(ir, *self._due(ir, table), ir.load("i64", "%frame", self._at.others))
            limit = ir.value(f"select i1 {self._interrupts(ir)}, i64 {after}, i64 {limit}")
            busy = ir.value(f"sub i64 {ir.value(f'add i64 {old}, {cycles}')}, {limit}")
            none = ir.value(f"icmp eq i64 {busy}, 0")  # it would say that nothing was done
            limit = ir.value(f"sub i64 {limit}, {ir.value(f'zext i1 {none} to i64')}")
            ir.store("i64", limit, "%frame", self._at.limit)
            ir.do(f"ret i64 {ir.value(f'select i1 {none}, i64 1, i64 {busy}')}")
        self._python(ir)
        return ir.text(f"i64 @{STORE}(ptr %frame, i64 %address, i64 %size, i32 %value, i64 %left)")

    def _interrupts(self, ir: Ir) -> str:
        """Whether an interrupt comes before the next instruction."""
        x = ir.load("ptr", "%frame", self._at.x)
        get = {slot: ir.load("i32", x, 8 * slot) for slot in (slots.MIP, slots.MIE, slots.MSTATUS, slots.PRIV)}
        pending = ir.value(f"and i32 {get[slots.MIP]}, {get[slots.MIE]}")
        user = ir.value(f"icmp ne i32 {get[slots.PRIV]}, {MACHINE}")
        enabled = ir.value(f"icmp ne i32 {ir.value(f'and i32 {get[slots.MSTATUS]}, {MIE}')}, 0")
        taken = ir.value(f"or i1 {user}, {enabled}")
        return ir.value(f"and i1 {ir.value(f'icmp ne i32 {pending}, 0')}, {taken}")

    # -- time ------------------------------------------------------------------------------------------------------

    def _event(self) -> str:
        ir = Ir()
        table = self._begin(ir)
        others = ir.load("i64", "%frame", self._at.others)
        ir.unless(ir.value(f"icmp ugt i64 {others}, %cycle"), ("python", ()))
        ir.goto("look", ("false",))
        (raised,) = ir.block("look", "i1")
        self._unless_full(ir, table)
        due, arrival = self._due(ir, table)
        ir.branch(ir.value(f"icmp ule i64 {arrival}, {due}"), ("first", ()), ("passes", ()))
        self._passes(ir, table, due)
        ir.block("first")
        ir.branch(ir.value(f"icmp ule i64 {arrival}, %cycle"), ("arrives", ()), ("known", (arrival,)))
        self._arrives(ir, table, arrival)
        (soonest,) = ir.block("known", "i64")
        known = ir.value(f"or i1 {raised}, {ir.value('icmp eq i32 %bits, 0')}")
        ir.unless(known, ("python", ()))
        limit = self._least(ir, soonest, others)
        ir.store("i64", limit, "%frame", self._at.limit)
        ir.do(f"ret i64 {limit}")
        self._python(ir)
        return ir.text(f"i64 @{EVENT}(ptr %frame, i64 %cycle, i32 %bits)")

    def _passes(self, ir: Ir, table: str, due: str) -> None:
        """Block `passes`: the time of the CLINT or of the wiring may have come."""
        ir.block("passes")
        ir.branch(ir.value(f"icmp ule i64 {due}, %cycle"), ("comes", ()), ("known", (due,)))
        ir.block("comes")
        ticks = self._words(ir, table, CLINT).execute(self._forms[CLINT].due)
        ir.branch(ir.value(f"icmp eq i64 {ticks}, {due}"), ("ticks", ()), ("rises", ()))
        for label, settle in (("ticks", self._forms[CLINT].settle), ("rises", "")):
            ir.block(label)
            clint = self._words(ir, table, CLINT)
            clint.execute(settle, now=due)
            wiring, lines = self._follow(ir, table, clint, due)
            asked = ir.value(f"and i32 {ir.value(f'trunc i64 {lines} to i32')}, %bits")
            none = ir.value("icmp eq i32 %bits, 0")
            ir.unless(ir.value(f"or i1 {none}, {ir.value(f'icmp ne i32 {asked}, 0')}"), ("python", ()))
            clint.save()
            self._show(ir, table, wiring, lines, due)
            ir.goto("look", ("true",))

    def _arrives(self, ir: Ir, table: str, arrival: str) -> None:
        """Block `arrives`: a posted store is at its device."""
        ir.block("arrives")
        ir.unless(ir.value("icmp eq i32 %bits, 0"), ("python", ()))
        queue = ir.load("ptr", "%frame", self._at.queue)
        what = ir.load("i64", queue, 8 * (store_queue.FIRST + store_queue.WHAT_OF_STORE))
        value = ir.load("i64", queue, 8 * (store_queue.FIRST + store_queue.VALUE))
        posted = [(device, device.form.stores) for device in self._devices if device.posted]
        for device, offset, program in self._dispatch(ir, what, _what, posted, "user"):
            made = self._words(ir, table, device.place)
            self._guard(ir, made, device.form, program)
            self._send(ir, table, device, made, offset, value)
            made.execute(program, now=arrival, value=value, place=_offset_of(ir, what))
            self._done(ir, device, made, arrival)
            ir.goto("taken")
        ir.block("taken")
        _pop_loud(ir, queue)
        ir.goto("look", ("true",))
        self._user(ir, queue, value, arrival)

    def _user(self, ir: Ir, queue: str, value: str, arrival: str) -> None:
        """Block `user`: the store is at a device in Python that may be called, if it need not be told of anything else
        before."""
        ir.block("user")
        call = ir.load("ptr", queue, 8 * (store_queue.FIRST + store_queue.CALL))
        ir.unless(untouched(ir, self._at.touched), ("python", ()))
        ir.unless(ir.value(f"icmp ne ptr {call}, null"), ("python", ()))
        _pop_loud(ir, queue)
        answer = ir.value(f"call i64 @{DEVICE_STORE}(ptr %frame, ptr {call}, i64 {value}, i64 {arrival})")
        ir.branch(ir.value(f"icmp eq i64 {answer}, 0"), ("look", ("true",)), ("python", ()))

    def _drain(self) -> str:
        """The UART alone has deferrable stores; its line changes with none of them. What caches know of it holds: the
        store that follows is in the queue."""
        if not self._is_posted(UART):
            return _no_drain()
        ir = Ir()
        table = self._begin(ir)
        queue = ir.load("ptr", "%frame", self._at.queue)
        ir.goto("look", ("0", "0"))
        done, last = ir.block("look", "i64", "i64")
        at_end = "end", (done, last)
        ir.unless(ir.value(f"icmp ult i64 {done}, {ir.load('i64', queue, 8 * store_queue.COUNT)}"), at_end)
        self._unless_full(ir, table, "other")
        words = ir.at(queue, ir.value(f"mul i64 {done}, {8 * store_queue.STORE_WORDS}"))
        arrival, what, value = (
            ir.load("i64", words, 8 * (store_queue.FIRST + word))
            for word in (store_queue.ARRIVAL, store_queue.WHAT_OF_STORE, store_queue.VALUE)
        )
        ir.unless(ir.value(f"icmp ule i64 {arrival}, %cycle"), at_end)
        posted = [(device, device.form.stores) for device in self._devices if device.place == UART]
        for device, offset, program in self._dispatch(ir, what, _what_deferrable, posted, "other"):
            made = self._words(ir, table, UART)
            self._send(ir, table, device, made, offset, value)
            made.execute(program, now=arrival, value=value, place=_offset_of(ir, what))
            made.save()
            ir.goto("look", (ir.value(f"add i64 {done}, 1"), arrival))
        ir.block("other")
        ir.goto("end", (done, last))
        number, cycle = ir.block("end", "i64", "i64")
        ir.unless(ir.value(f"icmp ne i64 {number}, 0"), ("none", ()))
        ir.do(f"call void @{_POP}(ptr {queue}, i64 {number})")
        ir.store("i64", cycle, "%frame", self._at.touched)
        ir.goto("none")
        ir.block("none")
        self._unless_full(ir, table, "full")
        ir.do("ret i1 true")
        for label, answer in (("python", "true"), ("full", "false")):
            ir.block(label)
            ir.do(f"ret i1 {answer}")
        return ir.text(f"i1 @{DRAIN}(ptr %frame, i64 %cycle)")


def _offset_of(ir: Ir, what: str) -> str:
    """The offset of the register of a store in the queue."""
    return ir.value(f"and i64 {what}, {(1 << 32) - 1}")


def _what_deferrable(device: Registers, offset: int) -> int:
    """A deferrable store in the queue."""
    return what_of(device.number, offset, device.form.size)


def _what(device: Registers, offset: int) -> int:
    """A store that is not deferrable in the queue; as a signed number."""
    return (NOT_DEFERRABLE | _what_deferrable(device, offset)) - (1 << 64)


def untouched(ir: Ir, touched: int) -> str:
    """Whether nothing has changed of which the clock must be told before it calls a device (an i1); `touched`: the
    offset of that word of the frame."""
    word = ir.load("i64", "%frame", touched)
    return ir.value(f"or i1 {ir.value(f'icmp eq i64 {word}, 0')}, {ir.value(f'icmp eq i64 {word}, {CALLED}')}")


_POP = "near_pop"


def _pop() -> str:
    """`near_pop(queue, number)`: so many stores, the first ones, leave it."""
    ir = Ir()
    ir.block("entry")
    left = ir.value(f"sub i64 {ir.load('i64', '%queue', 8 * store_queue.COUNT)}, %number")
    ir.store("i64", left, "%queue", 8 * store_queue.COUNT)
    words = ir.value(f"mul i64 {left}, {store_queue.STORE_WORDS}")
    distance = ir.value(f"mul i64 %number, {8 * store_queue.STORE_WORDS}")
    ir.goto("look", ("0",))
    (at,) = ir.block("look", "i64")
    ir.unless(ir.value(f"icmp ult i64 {at}, {words}"), ("end", ()))
    place = ir.at("%queue", ir.value(f"add i64 {ir.value(f'shl i64 {at}, 3')}, {8 * store_queue.FIRST}"))
    ir.store("i64", ir.load("i64", ir.at(place, distance)), place)
    ir.goto("look", (ir.value(f"add i64 {at}, 1"),))
    ir.block("end")
    ir.do("ret void")
    return ir.text(f"void @{_POP}(ptr %queue, i64 %number)")


def _pop_loud(ir: Ir, queue: str) -> None:
    """The first store, which is not deferrable, leaves the queue."""
    ir.store("i64", ir.value(f"sub i64 {ir.load('i64', queue, 8 * store_queue.LOUD)}, 1"), queue, 8 * store_queue.LOUD)
    ir.do(f"call void @{_POP}(ptr {queue}, i64 1)")


def stubs() -> str:
    """The IR where no device has a native form."""
    text = ""
    for name, given in (
        (LOAD, "i64 %a, i64 %s, i64 %l"),
        (STORE, "i64 %a, i64 %s, i32 %v, i64 %l"),
        (EVENT, "i64 %c, i32 %b"),
    ):
        text += f"define i64 @{name}(ptr %frame, {given}) nounwind {{\nentry:\nret i64 0\n}}\n"
    return text + _no_drain()


def _no_drain() -> str:
    return f"define i1 @{DRAIN}(ptr %frame, i64 %c) nounwind {{\nentry:\nret i1 true\n}}\n"
