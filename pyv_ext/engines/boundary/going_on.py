"""How far native code may go on after Python has done something for it, found by native code itself.

`Upcalls.left` says it in all cases. Mostly nothing is due, and nothing else has changed than what native code keeps in
caches: then native code looks at the attributes of the clock by CPython's interface, and Python is not called.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

from pyv_ext.bus import store_queue
from pyv_ext.engines.boundary.frame import (
    BIAS,
    CHANGES,
    COUNTED,
    END,
    EPOCH,
    FRAME,
    HOOKED_AT,
    HOOKED_PC,
    INSTRET,
    LIMIT,
    NEAR,
    NEAR_NUMBERS,
    OTHERS,
    PROTECTED,
    QUEUE,
    SHOWN,
    TOUCHED,
    TRACER,
    UNTIL,
    WATCHING,
    X,
)
from pyv_ext.engines.boundary.objects import Objects
from pyv_ext.engines.boundary.python_calls import api, function, size
from pyv_ext.engines.boundary.turns import DONE, FAILED, TURN
from pyv_ext.engines.slow import Core
from pyv_ext.hart import slots
from pyv_ext.hart.csr import MIE
from pyv_ext.hart.traps import MACHINE
from pyv_native.ir import Ir

GO_ON = "go_on"
"""`go_on(end, interrupts) -> cycles left`, as `Upcalls.left`."""

ALL, NONE = -1, 0
"""Interrupts that `GO_ON` looks at: all, or none where native code takes those that are pending itself."""

GOING = 2
"""A bit of what Python answers: native code goes on from cycle `END` of the frame."""

WAITING, HOOKED, REPROTECTED = 1, 2, 4
"""Bits of what Python must look at before it does something: what native code has done with devices; the hooks of the
instruction have been called; PMP has been written."""


class Going(NamedTuple):
    """How native code goes on: after answers from `least` on, of which it keeps the bits `kept`."""

    least: int
    shift: int
    """Of the cycles left in what is returned."""
    kept: int
    interrupts: int = ALL


_FOLLOWED = ("core", "tracer", TRACER), ("bus", "watching", WATCHING)
_ATTRIBUTES = (
    *(("clock", name) for name in ("next", "posted", "changes", "deferred", "first", "unheld")), ("core", "stopping"),
    *((owner, name) for owner, name, _ in _FOLLOWED),
)  # fmt: skip
_HART = (slots.PMP_WRITES, PROTECTED), (slots.COUNTER_WRITES, COUNTED)
_MOST_NUMBERS = 64
"""Devices whose numbers fit into the word `NEAR_NUMBERS`."""


def asked(name: str) -> str:
    """What calls Python for the function of that name."""
    return f"{name}.python"


class GoingOn:
    """The IR of `GO_ON` and of what calls it, and the objects that it looks at."""

    def __init__(self, core: Core, quiet: Sequence[list[Any]], more: str) -> None:
        """`quiet`: observers, which Python must look at if there are any; `more`: the function for all other cases."""
        self._more = more
        lists = {f"list{index}": observers for index, observers in enumerate(quiet)}
        self._lists = tuple(lists)
        self._objects = Objects(GO_ON, _ATTRIBUTES, clock=core.bus.clock, core=core, bus=core.bus, **lists)

    @property
    def pointers(self) -> dict[str, int]:
        """What the variables of the IR point to."""
        return self._objects.pointers

    def text(self) -> str:
        """The IR of `GO_ON`."""
        ir, objects = Ir(), self._objects
        ir.block("entry")
        ir.goto("look")
        ir.block("look")
        at = ir.load("ptr", f"@{FRAME}")
        more: tuple[str, tuple[str, ...]] = ("more", ())
        count = ir.load("i64", ir.load("ptr", at, 8 * QUEUE), 8 * store_queue.COUNT)
        waiting = ir.value(f"or i64 {count}, {ir.load('i64', at, 8 * TOUCHED)}")
        ir.unless(ir.value(f"icmp eq i64 {waiting}, 0"), more)
        stopping = objects.get(ir, "core", "stopping", "odd")
        ir.unless(ir.value(f"icmp eq ptr {stopping}, {api(ir, '_Py_NoneStruct')}"), more)
        for owner, name, word in _FOLLOWED:
            value = objects.get(ir, owner, name, "odd")
            ir.unless(ir.value(f"icmp eq ptr {value}, {ir.load('ptr', at, 8 * word)}"), more)
        until, due = ir.load("i64", at, 8 * UNTIL), objects.integer(ir, "clock", "next", "odd")
        ir.unless(ir.value(f"icmp slt i64 %end, {until}"), more)
        ir.branch(ir.value(f"icmp sle i64 {due}, %end"), ("due", ()), ("nothing", ()))
        ir.block("due")
        happened = ir.value(f"call i64 @{TURN}(i64 %end)")
        ir.switch("i64", happened, ((DONE, "look"), (FAILED, "failed")), more)
        ir.block("failed")
        for word in (LIMIT, OTHERS):
            ir.store("i64", "%end", at, 8 * word)
        ir.do("ret i64 0")
        ir.block("nothing")
        sooner = ir.value(f"icmp slt i64 {due}, {until}")
        limit = ir.value(f"select i1 {sooner}, i64 {due}, i64 {until}")
        x = ir.load("ptr", at, 8 * X)
        pending, enabled, mode, status = (
            ir.load("i64", x, 8 * slot) for slot in (slots.MIP, slots.MIE, slots.PRIV, slots.MSTATUS)
        )
        taken = ir.value(f"and i64 {ir.value(f'and i64 {pending}, {enabled}')}, %interrupts")
        none = ir.value(f"icmp eq i64 {taken}, 0")
        machine = ir.value(f"icmp eq i64 {mode}, {MACHINE}")
        off = ir.value(f"icmp eq i64 {ir.value(f'and i64 {status}, {MIE}')}, 0")
        ir.unless(ir.value(f"or i1 {none}, {ir.value(f'and i1 {machine}, {off}')}"), more)
        for slot, word in _HART:
            ir.unless(ir.value(f"icmp eq i64 {ir.load('i64', x, 8 * slot)}, {ir.load('i64', at, 8 * word)}"), more)

        epoch = ir.load("i64", at, 8 * EPOCH)
        ir.branch(ir.value(f"icmp ne i64 {epoch}, 0"), ("posts", ()), ("devices", ()))
        ir.block("posts")
        posted = objects.get(ir, "clock", "posted", "odd")
        ir.branch(ir.value(f"icmp eq i64 {size(ir, posted)}, 0"), ("devices", ()), ("held", ()))
        ir.block("held")
        ir.unless(ir.value(f"icmp slt i64 %end, {objects.integer(ir, 'clock', 'unheld', 'odd')}"), more)
        ir.goto("devices")

        ir.block("devices")
        near = ir.load("i64", at, 8 * NEAR)
        ir.branch(ir.value(f"icmp ne i64 {near}, 0"), ("near", ()), ("caches", ()))
        ir.block("near")
        first = objects.integer(ir, "clock", "first", "odd")
        ir.unless(ir.value(f"icmp ult i64 {first}, {_MOST_NUMBERS}"), more)
        numbers = ir.value(f"lshr i64 {ir.load('i64', at, 8 * NEAR_NUMBERS)}, {first}")
        ir.unless(ir.value(f"icmp eq i64 {ir.value(f'and i64 {numbers}, 1')}, 0"), more)
        ir.goto("caches")

        ir.block("caches")
        shown, changes = ir.load("i64", at, 8 * SHOWN), objects.integer(ir, "clock", "changes", "odd")
        same = ir.value(f"icmp eq i64 {shown}, {changes}")
        unused = ir.value(f"icmp eq i64 {shown}, 0")
        ir.branch(ir.value(f"or i1 {same}, {unused}"), ("on", ()), ("changed", ()))
        ir.block("changed")
        ir.unless(ir.value(f"icmp ne i64 {epoch}, 0"), more)
        for quiet in self._lists:
            ir.unless(ir.value(f"icmp eq i64 {size(ir, objects.load(ir, quiet))}, 0"), more)
        deferred = objects.integer(ir, "clock", "deferred", "odd")
        ir.store("i64", changes, at, 8 * CHANGES)
        ir.store("i64", changes, at, 8 * SHOWN)
        ir.store("i64", ir.value(f"sub i64 {changes}, {deferred}"), at, 8 * EPOCH)
        ir.goto("on")

        ir.block("on")
        ir.store("i64", limit, at, 8 * LIMIT)
        ir.store("i64", limit, at, 8 * OTHERS)
        ir.do(f"ret i64 {ir.value(f'sub i64 {limit}, %end')}")
        ir.block("odd")  # no i64: Python compares it
        ir.do(f"call void {api(ir, 'PyErr_Clear')}()")
        ir.goto("more")
        ir.block("more")
        ir.do(f"ret i64 {ir.value(f'call i64 @{self._more}(i64 %end, i64 %interrupts)')}")
        return objects.variables() + ir.text(f"i64 @{GO_ON}(i64 %end, i64 %interrupts)")

    # -- what calls it -----------------------------------------------------------------------------------------

    def access(self, name: str, given: int) -> str:
        """The IR of `name(i64, ..., cycles left)`, where Python accesses a device: cycles left after it << 32 | what
        Python answers, or what it answers below 0. Python is given the same, but for the cycles left the cycle in which
        the access starts, and what it must look at first."""
        ir, at = self._begin()
        start = ir.value(f"sub i64 {ir.load('i64', at, 8 * LIMIT)}, %a{given}")
        return self._ask(ir, at, name, given, (start, self._waiting(ir, at)), Going(0, 32, (1 << 32) - 1))

    def instruction(self, name: str, given: int, interrupts: int = ALL) -> str:
        """The same of `name(i64, ..., progress)`, where Python executes an instruction: cycles left after it << 1 | the
        lowest bit of what Python answers, or that itself where native code does not go on. For progress, Python is
        given the cycle and how many instructions have retired."""
        ir, at = self._begin()
        x, progress = ir.load("ptr", at, 8 * X), f"%a{given}"
        left = ir.value(f"and i64 {progress}, {(1 << 32) - 1}")
        limit = ir.load("i64", at, 8 * LIMIT)
        cycle = ir.value(f"sub i64 {ir.value(f'add i64 {limit}, {BIAS}')}, {left}")
        done = ir.value(f"lshr i64 {progress}, 32")
        retired = ir.value(f"add i64 {ir.load('i64', at, 8 * INSTRET)}, {done}")
        same_pc = ir.value(f"icmp eq i64 {ir.load('i64', at, 8 * HOOKED_PC)}, %a0")
        same = ir.value(f"icmp eq i64 {ir.load('i64', at, 8 * HOOKED_AT)}, {progress}")
        hooked = ir.value(f"select i1 {ir.value(f'and i1 {same_pc}, {same}')}, i64 {HOOKED}, i64 0")
        ir.store("i64", "-1", at, 8 * HOOKED_AT)
        shown = ir.load("i64", at, 8 * PROTECTED)
        other = ir.value(f"icmp ne i64 {ir.load('i64', x, 8 * slots.PMP_WRITES)}, {shown}")
        protected = ir.value(f"select i1 {other}, i64 {REPROTECTED}, i64 0")
        first = ir.value(f"or i64 {ir.value(f'or i64 {self._waiting(ir, at)}, {hooked}')}, {protected}")
        return self._ask(ir, at, name, given, (cycle, retired, first), Going(GOING, 1, 1, interrupts))

    @staticmethod
    def _begin() -> tuple[Ir, str]:
        ir = Ir()
        ir.block("entry")
        return ir, ir.load("ptr", f"@{FRAME}")

    @staticmethod
    def _waiting(ir: Ir, at: str) -> str:
        """`WAITING` or 0."""
        count = ir.load("i64", ir.load("ptr", at, 8 * QUEUE), 8 * store_queue.COUNT)
        any_of = ir.value(f"or i64 {count}, {ir.load('i64', at, 8 * TOUCHED)}")
        return ir.value(f"select i1 {ir.value(f'icmp ne i64 {any_of}, 0')}, i64 {WAITING}, i64 0")

    @staticmethod
    def _ask(ir: Ir, at: str, name: str, given: int, more: Sequence[str], going: Going) -> str:
        arguments = [*(f"%a{number}" for number in range(given)), *more]
        answer = ir.value(f"call i64 @{asked(name)}({', '.join(f'i64 {argument}' for argument in arguments)})")
        ir.unless(ir.value(f"icmp sge i64 {answer}, {going.least}"), ("as_it_is", (answer,)))
        left = ir.value(f"call i64 @{GO_ON}(i64 {ir.load('i64', at, 8 * END)}, i64 {going.interrupts})")
        ir.unless(ir.value(f"icmp sge i64 {left}, 0"), ("as_it_is", (left,)))
        kept, shifted = ir.value(f"and i64 {answer}, {going.kept}"), ir.value(f"shl i64 {left}, {going.shift}")
        ir.do(f"ret i64 {ir.value(f'or i64 {shifted}, {kept}')}")
        (result,) = ir.block("as_it_is", "i64")
        ir.do(f"ret i64 {result}")
        signature = ", ".join(f"i64 %a{number}" for number in range(given + 1))
        return function(asked(name), len(arguments)) + ir.text(f"i64 @{name}({signature})")
