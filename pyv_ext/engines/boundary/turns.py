"""One thing that is due, which native code lets happen itself: `Clock.advance` where nothing else is.

A device that has an event is advanced by a call of Python. Native code then looks at its interrupt line and its next
event, and lets the clock know; where more has changed, Python does. So it is where a posted store arrives; a deferrable
one, of which few come here, is as any other.
"""

from collections.abc import Callable, Sequence

from pyv_ext.bus.clock import DUE, KIND, NEVER, SILENT, TOLD, Clock
from pyv_ext.engines.boundary.frame import FRAME, TURNS, address_of
from pyv_ext.engines.boundary.objects import Objects
from pyv_ext.engines.boundary.python_calls import (
    FRESH,
    api,
    call,
    call_method,
    cycle_of_event,
    fetch,
    free,
    function,
    integer,
    line_is_known,
    number_of,
    pointers,
    size,
)
from pyv_ext.hart.hart import Hart
from pyv_ext.protocols import Timed
from pyv_native.ir import Ir

TURN = "turn"
"""`turn(end) -> DONE`, `LEFT` or `FAILED`: let happen the next event, which is due at the start of cycle `end` or
earlier."""

DONE, LEFT, FAILED = 1, 0, -1
"""It has happened; nothing has been done; the device has raised an exception, which is held."""

_TOLD = "turn_told"
"""`turn_told(number of the device, cycle, end)`: the device has acted in that cycle. Python looks what has
changed, and lets happen all else up to cycle `end`, though the run may be about to stop."""

MOST = 64
"""Devices that native code advances; the events of others are for Python."""

_ATTRIBUTES = (
    *(("clock", name) for name in ("now", "next", "first", "soonest", "others", "changes", "posted", "due")),
    ("hart", "cycle"),
)  # fmt: skip

_DEVICE, _KNOWN = range(2)
_WORDS = 2
"""Of a row: the device, and the address of `Clock.known` of it, 0 where its events are for Python."""


class Turns:
    """The IR of `TURN`, and the devices that it advances."""

    def __init__(self, hart: Hart, time: Clock, frame: memoryview, hold: Callable[[BaseException], None]) -> None:
        """`hold` is given what a device has raised."""
        self._clock = time
        names = {name: name for name in ("advance", "irq", "next_event", "popleft", "write")}
        self._objects = Objects(TURN, _ATTRIBUTES, clock=time, hart=hart, hold=hold, **names)
        self._table = memoryview(bytearray(8 * _WORDS * MOST)).cast("Q")
        frame[TURNS] = address_of(self._table)
        self._devices: list[Timed | None] = []
        self._called: dict[str, Callable[..., int]] = {_TOLD: self._told}

    def follow(self) -> None:
        """Let native code know of devices that have been added."""
        devices = self._clock.alone
        for number, device in enumerate(devices[len(self._devices) : MOST], len(self._devices)):
            self._devices.append(device)
            if device is not None:
                self._table[_WORDS * number + _DEVICE] = id(device)
                self._table[_WORDS * number + _KNOWN] = self._clock.known[number].buffer_info()[0]

    @property
    def pointers(self) -> dict[str, int]:
        """What the variables of the IR point to."""
        return self._objects.pointers | pointers(self._called)

    def _told(self, number: int, cycle: int, end: int) -> int:
        self._clock.touched(number, cycle)
        self._clock.advance(end)
        return 0

    def _set_cycle(self, ir: Ir, cycle: str) -> None:
        """Let the hart be in that cycle."""
        value = integer(ir, cycle)
        self._objects.set(ir, "hart", "cycle", value)
        free(ir, value)

    def _row(self, ir: Ir, number: str) -> tuple[str, str]:
        """A device, and what the clock knows of it; to `left` where it is for Python."""
        ir.unless(ir.value(f"icmp slt i64 {number}, {MOST}"), ("left", ()))
        table = ir.load("ptr", ir.load("ptr", f"@{FRAME}"), 8 * TURNS)
        row = ir.at(table, ir.value(f"mul i64 {number}, {8 * _WORDS}"))
        device, known = (ir.load("ptr", row, 8 * word) for word in (_DEVICE, _KNOWN))
        ir.unless(ir.value(f"icmp ne ptr {known}, null"), ("left", ()))
        ir.unless(ir.value(f"icmp ne i64 {ir.load('i64', known, 8 * KIND)}, {TOLD}"), ("left", ()))
        return device, known

    def _set(self, ir: Ir, name: str, cycle: str) -> None:
        """Let an attribute of the clock be that number."""
        value = integer(ir, cycle)
        self._objects.set(ir, "clock", name, value)
        free(ir, value)

    def text(self) -> str:
        """The IR."""
        ir, objects = Ir(), self._objects
        ir.block("entry")
        ir.store("i64", "0", f"@{FRESH}")
        posted = objects.get(ir, "clock", "posted", "odd")
        ir.branch(ir.value(f"icmp eq i64 {size(ir, posted)}, 0"), ("event", (str(NEVER),)), ("posted", ()))
        ir.block("posted")
        parts = _first(ir, posted)
        arrival, target = (number_of(ir, part) for part in parts[:2])
        ir.branch(ir.value(f"icmp slt i64 %end, {arrival}"), ("event", (arrival,)), ("arrives", ()))
        self._arrival(ir, posted, parts, arrival, target)
        self._event(ir)
        self._acted(ir)
        ir.block("raised")
        fetch(ir, "failed")
        (error,) = ir.block("failed", "ptr")
        held = call(ir, objects.load(ir, "hold"), error)
        free(ir, error)
        ir.unless(ir.value(f"icmp ne ptr {held}, null"), ("raised", ()))  # Ctrl-C came before it had begun
        free(ir, held)
        ir.do(f"ret i64 {FAILED}")
        ir.block("odd")
        ir.do(f"call void {api(ir, 'PyErr_Clear')}()")
        ir.goto("left")
        ir.block("left")
        ir.do(f"ret i64 {LEFT}")
        return self._objects.variables() + function(_TOLD, 3) + ir.text(f"i64 @{TURN}(i64 %end)")

    def _arrival(self, ir: Ir, posted: str, parts: Sequence[str], arrival: str, target: str) -> None:
        """Blocks from `arrives` on: a posted store is due, of these objects, in cycle `arrival` at device `target`."""
        objects = self._objects
        ir.block("arrives")
        soonest, others = (objects.integer(ir, "clock", name, "odd") for name in ("soonest", "others"))
        ir.unless(ir.value(f"icmp slt i64 {arrival}, {soonest}"), ("left", ()))
        device, known = self._row(ir, target)
        changes = objects.integer(ir, "clock", "changes", "odd")
        self._set_cycle(ir, "%end")
        store = call_method(ir, objects.load(ir, "popleft"), posted)
        ir.unless(ir.value(f"icmp ne ptr {store}, null"), ("raised", ()))
        ir.branch(ir.value(f"icmp eq i64 {size(ir, posted)}, 0"), ("last", (str(NEVER),)), ("more", ()))
        ir.block("more")
        ir.goto("last", (number_of(ir, _first(ir, posted)[0]),))
        (following,) = ir.block("last", "i64")
        sooner = ir.value(f"icmp slt i64 {following}, {soonest}")
        self._set(ir, "now", arrival)
        self._set(ir, "next", ir.value(f"select i1 {sooner}, i64 {following}, i64 {soonest}"))
        acts = integer(ir, ir.value(f"sub i64 {arrival}, 1"))
        answer = call_method(ir, objects.load(ir, "write"), device, *parts[2:], acts)
        free(ir, acts)
        free(ir, store)
        ir.goto("acted", (answer, device, known, target, arrival, arrival, following, others, changes))

    def _event(self, ir: Ir) -> None:
        """Block `event`: one of a device is due, before the next posted store arrives."""
        objects = self._objects
        (arrival,) = ir.block("event", "i64")
        others, now = (objects.integer(ir, "clock", name, "odd") for name in ("others", "soonest"))
        ir.unless(ir.value(f"icmp slt i64 %end, {others}"), ("left", ()))
        number = objects.integer(ir, "clock", "first", "odd")
        device, known = self._row(ir, number)
        changes = objects.integer(ir, "clock", "changes", "odd")
        given = integer(ir, now)
        objects.set(ir, "clock", "now", given)
        self._set_cycle(ir, "%end")
        answer = call_method(ir, objects.load(ir, "advance"), device, given)
        free(ir, given)
        later = ir.value(f"add i64 {now}, 1")
        ir.goto("acted", (answer, device, known, number, now, later, arrival, others, changes))

    def _acted(self, ir: Ir) -> None:
        """Blocks from `acted` on: what a device has answered that has acted in cycle `now`; its next event is in cycle
        `least` or later, the next posted store arrives in cycle `arrival`."""
        objects = self._objects
        kinds = "ptr", "ptr", "ptr", "i64", "i64", "i64", "i64", "i64", "i64"
        answer, device, known, number, now, least, arrival, others, changes = ir.block("acted", *kinds)
        ir.unless(ir.value(f"icmp ne ptr {answer}, null"), ("raised", ()))
        free(ir, answer)
        told = "told", (number, now)
        ir.unless(ir.value(f"icmp eq i64 {objects.integer(ir, 'clock', 'changes', 'unknown')}, {changes}"), told)
        silent = ir.value(f"icmp eq i64 {ir.load('i64', known, 8 * KIND)}, {SILENT}")
        ir.branch(silent, ("settled", ()), ("asked", ()))
        ir.block("asked")
        line = ir.value(f"call ptr {api(ir, 'PyObject_GetAttr')}(ptr {device}, ptr {objects.load(ir, 'irq')})")
        ir.unless(ir.value(f"icmp ne ptr {line}, null"), ("raised", ()))
        ir.unless(line_is_known(ir, line, known), told)
        event = call_method(ir, objects.load(ir, "next_event"), device)
        ir.unless(ir.value(f"icmp ne ptr {event}, null"), ("raised", ()))
        due = cycle_of_event(ir, event)
        ir.unless(ir.value(f"icmp sge i64 {due}, {least}"), told)
        same = ir.value(f"icmp eq i64 {due}, {ir.load('i64', known, 8 * DUE)}")
        ir.branch(same, ("settled", ()), ("news", ()))
        ir.block("news")
        first = objects.integer(ir, "clock", "first", "unknown")
        is_first = ir.value(f"icmp eq i64 {first}, {number}")
        idle = ir.value(f"icmp eq i64 {others}, {NEVER}")
        most = ir.value(f"select i1 {idle}, i64 {NEVER}, i64 {ir.value(f'sub i64 {others}, 1')}")
        ir.unless(ir.value(f"and i1 {is_first}, {ir.value(f'icmp sle i64 {due}, {most}')}"), told)
        ir.store("i64", due, known, 8 * DUE)
        value = integer(ir, due)
        objects.set(ir, "clock", "soonest", value)
        sooner = ir.value(f"icmp slt i64 {arrival}, {due}")
        self._set(ir, "next", ir.value(f"select i1 {sooner}, i64 {arrival}, i64 {due}"))
        events = objects.get(ir, "clock", "due", "unknown")
        ir.value(f"call i32 {api(ir, 'PyList_SetItem')}(ptr {events}, i64 {number}, ptr {value})")
        ir.goto("settled")
        ir.block("settled")
        self._set(ir, "changes", ir.value(f"add i64 {changes}, 1"))
        ir.goto("done", (now,))
        ir.block("unknown")
        ir.goto("told", (number, now))

        (now,) = ir.block("done", "i64")
        ir.branch(ir.value(f"icmp slt i64 {now}, %end"), ("late", ()), ("gone", ()))
        ir.block("late")
        self._set(ir, "now", "%end")
        ir.goto("gone")
        ir.block("gone")
        ir.do(f"ret i64 {DONE}")

        number, now = ir.block("told", "i64", "i64")
        ir.do(f"call void {api(ir, 'PyErr_Clear')}()")
        answered = ir.value(f"call i64 @{_TOLD}(i64 {number}, i64 {now}, i64 %end)")
        ir.branch(ir.value(f"icmp eq i64 {answered}, 0"), ("done", (now,)), ("raised", ()))


def _first(ir: Ir, posted: str) -> list[str]:
    """The objects of the first of the posted stores, which the clock keeps alive until it has arrived."""
    store = ir.value(f"call ptr {api(ir, 'PySequence_GetItem')}(ptr {posted}, i64 0)")
    free(ir, store)
    return [ir.value(f"call ptr {api(ir, 'PyTuple_GetItem')}(ptr {store}, i64 {index})") for index in range(5)]
