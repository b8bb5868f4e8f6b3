"""One thing that is due, which native code lets happen itself: `Clock.advance` where nothing else is.

A device that has an event is advanced by a call of Python. Native code then looks at its interrupt line and its next
event, and lets the clock know; where more has changed, Python does. A posted store is for `Clock.arrive`.
"""

from collections.abc import Callable

from pyv_ext.bus.clock import ASKED, DUE, KIND, NEVER, Clock
from pyv_ext.engines.boundary.frame import FRAME, TURNS, address_of
from pyv_ext.engines.boundary.objects import Objects
from pyv_ext.engines.boundary.python_calls import (
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
from pyv_jit.ir import Ir

TURN = "turn"
"""`turn(end) -> DONE`, `LEFT` or `FAILED`: let happen the next event, which is due at the start of cycle `end` or
earlier."""

DONE, LEFT, FAILED = 1, 0, -1
"""It has happened; nothing has been done; the device has raised an exception, which is held."""

_TOLD = "turn_told"
"""`turn_told(number of the device, cycle, end)`: the device has been advanced in that cycle. Python looks what has
changed, and lets happen all else up to cycle `end`, though the run may be about to stop."""

_ARRIVED = "turn_arrived"
"""`turn_arrived(end)`: the only store on its way arrives, before any event; then all else happens up to cycle `end`."""

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
        names = {name: name for name in ("advance", "irq", "next_event")}
        self._objects = Objects(TURN, _ATTRIBUTES, clock=time, hart=hart, hold=hold, **names)
        self._table = memoryview(bytearray(8 * _WORDS * MOST)).cast("Q")
        frame[TURNS] = address_of(self._table)
        self._devices: list[Timed | None] = []
        self._called: dict[str, Callable[..., int]] = {_TOLD: self._told, _ARRIVED: self._arrived}

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

    def _arrived(self, end: int) -> int:
        self._clock.arrive(end)
        return 0

    def _set_cycle(self, ir: Ir, cycle: str) -> None:
        """Let the hart be in that cycle."""
        value = integer(ir, cycle)
        self._objects.set(ir, "hart", "cycle", value)
        free(ir, value)

    def text(self) -> str:
        """The IR."""
        ir, objects = Ir(), self._objects
        ir.block("entry")
        posted = objects.get(ir, "clock", "posted", "odd")
        ir.branch(ir.value(f"icmp eq i64 {size(ir, posted)}, 0"), ("single", (str(NEVER),)), ("posted", ()))
        ir.block("posted")
        store = ir.value(f"call ptr {api(ir, 'PySequence_GetItem')}(ptr {posted}, i64 0)")
        ir.unless(ir.value(f"icmp ne ptr {store}, null"), ("odd", ()))
        arrives = ir.value(f"call ptr {api(ir, 'PyTuple_GetItem')}(ptr {store}, i64 0)")
        arrival = number_of(ir, arrives)
        free(ir, store)
        ir.branch(ir.value(f"icmp slt i64 %end, {arrival}"), ("single", (arrival,)), ("arrives", ()))
        ir.block("arrives")
        alone = ir.value(f"icmp eq i64 {size(ir, posted)}, 1")
        first = ir.value(f"icmp slt i64 {arrival}, {objects.integer(ir, 'clock', 'soonest', 'odd')}")
        ir.unless(ir.value(f"and i1 {alone}, {first}"), ("left", ()))
        self._set_cycle(ir, "%end")
        arrived = ir.value(f"call i64 @{_ARRIVED}(i64 %end)")
        ir.branch(ir.value(f"icmp eq i64 {arrived}, 0"), ("gone", ()), ("raised", ()))

        (arrival,) = ir.block("single", "i64")
        others, now = (objects.integer(ir, "clock", name, "odd") for name in ("others", "soonest"))
        ir.unless(ir.value(f"icmp slt i64 %end, {others}"), ("left", ()))
        number = objects.integer(ir, "clock", "first", "odd")
        ir.unless(ir.value(f"icmp slt i64 {number}, {MOST}"), ("left", ()))
        table = ir.load("ptr", ir.load("ptr", f"@{FRAME}"), 8 * TURNS)
        row = ir.at(table, ir.value(f"mul i64 {number}, {8 * _WORDS}"))
        device, known = (ir.load("ptr", row, 8 * word) for word in (_DEVICE, _KNOWN))
        ir.unless(ir.value(f"icmp ne ptr {known}, null"), ("left", ()))
        ir.unless(ir.value(f"icmp eq i64 {ir.load('i64', known, 8 * KIND)}, {ASKED}"), ("left", ()))

        changes = objects.integer(ir, "clock", "changes", "odd")
        given = integer(ir, now)
        objects.set(ir, "clock", "now", given)
        self._set_cycle(ir, "%end")
        answer = call_method(ir, objects.load(ir, "advance"), device, given)
        free(ir, given)
        ir.unless(ir.value(f"icmp ne ptr {answer}, null"), ("raised", ()))
        free(ir, answer)
        ir.unless(ir.value(f"icmp eq i64 {objects.integer(ir, 'clock', 'changes', 'told')}, {changes}"), ("told", ()))
        line = ir.value(f"call ptr {api(ir, 'PyObject_GetAttr')}(ptr {device}, ptr {objects.load(ir, 'irq')})")
        ir.unless(ir.value(f"icmp ne ptr {line}, null"), ("raised", ()))
        ir.unless(line_is_known(ir, line, known), ("told", ()))
        event = call_method(ir, objects.load(ir, "next_event"), device)
        ir.unless(ir.value(f"icmp ne ptr {event}, null"), ("raised", ()))
        due = cycle_of_event(ir, event)
        ir.unless(ir.value(f"icmp sgt i64 {due}, {now}"), ("told", ()))
        ir.unless(ir.value(f"icmp slt i64 {due}, {others}"), ("told", ()))

        changed = integer(ir, ir.value(f"add i64 {changes}, 1"))
        objects.set(ir, "clock", "changes", changed)
        free(ir, changed)
        ir.store("i64", due, known, 8 * DUE)
        value = integer(ir, due)
        objects.set(ir, "clock", "soonest", value)
        sooner = ir.value(f"icmp slt i64 {arrival}, {due}")
        first = integer(ir, ir.value(f"select i1 {sooner}, i64 {arrival}, i64 {due}"))
        objects.set(ir, "clock", "next", first)
        free(ir, first)
        events = objects.get(ir, "clock", "due", "told")
        ir.value(f"call i32 {api(ir, 'PyList_SetItem')}(ptr {events}, i64 {number}, ptr {value})")
        ir.goto("done")
        ir.block("done")
        ir.branch(ir.value(f"icmp slt i64 {now}, %end"), ("late", ()), ("gone", ()))
        ir.block("late")
        later = integer(ir, "%end")
        objects.set(ir, "clock", "now", later)
        free(ir, later)
        ir.goto("gone")
        ir.block("gone")
        ir.do(f"ret i64 {DONE}")

        ir.block("told")
        ir.do(f"call void {api(ir, 'PyErr_Clear')}()")
        told = ir.value(f"call i64 @{_TOLD}(i64 {number}, i64 {now}, i64 %end)")
        ir.branch(ir.value(f"icmp eq i64 {told}, 0"), ("done", ()), ("raised", ()))
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
        called = function(_TOLD, 3) + function(_ARRIVED, 1)
        return self._objects.variables() + called + ir.text(f"i64 @{TURN}(i64 %end)")
