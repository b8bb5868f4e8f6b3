"""IR that calls Python functions by CPython's own interface, through pointers that are set for each process.

`read` and `write` of a device are called by the rows of `pyv_ext.bus.direct`. The clock is given the cycle in which the
call happens. Afterwards native code looks whether more has changed than what the device's own registers show: the
clock's count of changes, the device's interrupt line, its next event. Only then, or where the method has raised
something or returned something else than expected, Python has more to do.
"""

import ctypes
import sys
from collections.abc import Callable, Mapping, Sequence

from pyv_ext.bus import direct
from pyv_ext.bus.clock import ASKED, DUE, KIND, LEVEL, NEVER, SILENT
from pyv_ext.engines.near_code import CALLED, DEVICE_LOAD, DEVICE_PUT, DEVICE_STORE, Places
from pyv_native.compiler import variable
from pyv_native.ir import Ir

FRESH = "fresh"
"""A variable of native code: not 0 while nothing has run in Python since a fence.i. What has could have changed memory
unseen by the bus."""

HANDLER = "ask_handler"
"""`ask_handler(row of the table of calls, cycle in which it acts, rs1, rs2) -> what ask_call returns`: calls the
handler of a custom instruction (see `custom`) itself."""

RAISED = -(1 << 62)
"""Returned where the function has raised an exception; it must not return this itself."""

_PLACE_BEFORE = -(1 << 63)
"""Added to the number of arguments of a call: the called function may use the place before them."""

OPERANDS_ARE_MADE = sys.version_info < (3, 14)
"""Whether native code may fill a new tuple itself. Since Python 3.14 a tuple keeps its hash, and the allocation of a
derived class leaves it 0: handlers are called by Python there."""

_API = (
    "PyLong_FromLongLong", "PyLong_AsLongLong", "PyLong_AsUnsignedLongLongMask", "PyObject_Vectorcall",
    "PyObject_VectorcallMethod", "Py_DecRef", "Py_IncRef", "PyType_GenericAlloc", "PyTuple_SetItem",
    "PyObject_GetAttr", "PyObject_SetAttr", "PyErr_Occurred", "PyErr_Clear", "PyErr_Fetch",
    "PyErr_NormalizeException", "PyException_SetTraceback", "PyObject_IsInstance", "PyObject_Size",
    "PySequence_GetItem", "PyTuple_GetItem", "PyList_SetItem", "PyLong_Type", "_Py_FalseStruct", "_Py_TrueStruct",
    "_Py_NoneStruct",
)  # fmt: skip


def interface() -> str:
    """What the functions of a module need besides."""
    return "".join(map(variable, _API)) + f"@{FRESH} = internal global i64 0\n"


def pointers(called: Mapping[str, Callable[..., int]]) -> dict[str, int]:
    """What the variables of a module point to: `called` by the names of its functions, which the caller keeps alive."""
    api = {name: ctypes.cast(getattr(ctypes.pythonapi, name), ctypes.c_void_p).value or 0 for name in _API}
    return api | {_called(name): id(function) for name, function in called.items()}


def api(ir: Ir, name: str) -> str:
    """The pointer to a function or object of Python."""
    return ir.load("ptr", f"@{name}")


def integer(ir: Ir, value: str) -> str:
    """The Python object of an i64."""
    return ir.value(f"call ptr {api(ir, 'PyLong_FromLongLong')}(i64 {value})")


def number_of(ir: Ir, what: str) -> str:
    """The i64 of a Python object; -1, with an exception, where it is none."""
    return ir.value(f"call i64 {api(ir, 'PyLong_AsLongLong')}(ptr {what})")


def free(ir: Ir, what: str) -> None:
    """An object is not used any more."""
    ir.do(f"call void {api(ir, 'Py_DecRef')}(ptr {what})")


def is_integer(ir: Ir, what: str) -> str:
    """Whether an object is one (an i1)."""
    looks, kind = api(ir, "PyObject_IsInstance"), api(ir, "PyLong_Type")
    return ir.value(f"icmp eq i32 {ir.value(f'call i32 {looks}(ptr {what}, ptr {kind})')}, 1")


def call(ir: Ir, target: str, *arguments: str) -> str:
    """What a Python object returns that is called with these, null where it raises an exception."""
    given = f"ptr {target}, ptr {_vector(ir, *arguments)}, i64 {_PLACE_BEFORE + len(arguments)}, ptr null"
    return ir.value(f"call ptr {api(ir, 'PyObject_Vectorcall')}({given})")


def call_method(ir: Ir, name: str, owner: str, *arguments: str) -> str:
    """The same of an object's method."""
    given = f"ptr {name}, ptr {_vector(ir, owner, *arguments)}, i64 {_PLACE_BEFORE + len(arguments) + 1}, ptr null"
    return ir.value(f"call ptr {api(ir, 'PyObject_VectorcallMethod')}({given})")


def _vector(ir: Ir, *arguments: str) -> str:
    """The pointer to these objects, with a place before them."""
    vector = ir.value(f"alloca [{len(arguments) + 1} x ptr]")
    for number, argument in enumerate(arguments, 1):
        ir.store("ptr", argument, vector, 8 * number)
    return ir.at(vector, 8)


def line_is_known(ir: Ir, line: str, known: str) -> str:
    """Whether a device's interrupt line, an object that is not used any more, is as `Clock.known` has it (an i1)."""
    high = ir.value(f"icmp ne i64 {ir.load('i64', known, 8 * LEVEL)}, 0")
    level = ir.value(f"select i1 {high}, ptr {api(ir, '_Py_TrueStruct')}, ptr {api(ir, '_Py_FalseStruct')}")
    free(ir, line)
    return ir.value(f"icmp eq ptr {line}, {level}")


def cycle_of_event(ir: Ir, event: str) -> str:
    """The cycle (an i64) of what `next_event` has returned, which is not used any more: `NEVER` for None; -1, with an
    exception, where it is no i64."""
    never, some, known = (ir.fresh() for _ in range(3))
    ir.branch(ir.value(f"icmp eq ptr {event}, {api(ir, '_Py_NoneStruct')}"), (never, ()), (some, ()))
    ir.block(never)
    free(ir, event)
    ir.goto(known, (str(NEVER),))
    ir.block(some)
    cycle = number_of(ir, event)
    free(ir, event)
    ir.goto(known, (cycle,))
    (cycle,) = ir.block(known, "i64")
    return cycle


def size(ir: Ir, value: str) -> str:
    """How many items an object has (an i64)."""
    return ir.value(f"call i64 {api(ir, 'PyObject_Size')}(ptr {value})")


def function(name: str, arguments: int, *, given: bool = False) -> str:
    """A module's function `name(i64, ...) -> i64` that calls what `pointers` gives it, or its own first argument."""
    ir = Ir()
    ir.block("entry")
    ir.store("i64", "0", f"@{FRESH}")
    objects = [integer(ir, f"%a{number}") for number in range(arguments)]
    answer = call(ir, "%target" if given else ir.load("ptr", f"@{_called(name)}"), *objects)
    for made in objects:
        free(ir, made)
    ir.unless(ir.value(f"icmp ne ptr {answer}, null"), ("raised", ()))
    value = number_of(ir, answer)
    free(ir, answer)
    ir.do(f"ret i64 {value}")
    ir.block("raised")
    ir.do(f"ret i64 {RAISED}")
    signature = ", ".join(f"i64 %a{number}" for number in range(arguments))
    if given:
        return ir.text(f"i64 @{name}(ptr %target, {signature})")
    return variable(_called(name)) + ir.text(f"i64 @{name}({signature})")


def handler_call() -> str:
    """The IR of `HANDLER`. Operands are made here, in a third of the time that Python takes for them."""
    ir = Ir()
    ir.block("entry")
    ir.store("i64", "0", f"@{FRESH}")
    handler, pc, word, load, kind, finish = (ir.load("ptr", "%row", 8 * index) for index in range(2, 8))
    operands = ir.value(f"call ptr {api(ir, 'PyType_GenericAlloc')}(ptr {kind}, i64 7)")
    ir.unless(ir.value(f"icmp ne ptr {operands}, null"), ("raised", ()))
    false = api(ir, "_Py_FalseStruct")
    for shared in (pc, word, load, false):
        ir.do(f"call void {api(ir, 'Py_IncRef')}(ptr {shared})")
    for index, part in enumerate((pc, word, integer(ir, "%a"), integer(ir, "%b"), integer(ir, "%acts"), load, false)):
        ir.value(f"call i32 {api(ir, 'PyTuple_SetItem')}(ptr {operands}, i64 {index}, ptr {part})")
    outcome = call(ir, handler, operands)
    free(ir, operands)
    ir.unless(ir.value(f"icmp ne ptr {outcome}, null"), ("raised", ()))
    ir.unless(is_integer(ir, outcome), ("finish", ()))
    value = number_of(ir, outcome)
    ir.unless(ir.value(f"icmp ne i64 {value}, -1"), ("minus", ()))
    ir.goto("integer")
    ir.block("integer")
    free(ir, outcome)
    ir.do(f"ret i64 {ir.value(f'and i64 {value}, {(1 << 32) - 1}')}")
    ir.block("minus")
    error = ir.value(f"call ptr {api(ir, 'PyErr_Occurred')}()")
    ir.branch(ir.value(f"icmp ne ptr {error}, null"), ("finish", ()), ("integer", ()))
    ir.block("finish")
    ir.do(f"call void {api(ir, 'PyErr_Clear')}()")  # of one that is no i64, or does not say what it is
    acts = integer(ir, "%acts")
    answer = call(ir, finish, acts, outcome)
    free(ir, acts)
    free(ir, outcome)
    ir.unless(ir.value(f"icmp ne ptr {answer}, null"), ("raised", ()))
    result = number_of(ir, answer)
    free(ir, answer)
    ir.do(f"ret i64 {result}")
    ir.block("raised")
    ir.do(f"ret i64 {RAISED}")
    return ir.text(f"i64 @{HANDLER}(ptr %row, i64 %acts, i64 %a, i64 %b)")


def fetch(ir: Ir, target: str) -> None:
    """Go to a block with the exception that has been raised, which is so no more; `ir` may have one such place."""
    parts = [ir.value("alloca ptr") for _ in range(3)]
    given = ", ".join(f"ptr {part}" for part in parts)
    for name in ("PyErr_Fetch", "PyErr_NormalizeException"):
        ir.do(f"call void {api(ir, name)}({given})")
    kind, error, traceback = (ir.load("ptr", part) for part in parts)
    free(ir, kind)
    ir.branch(ir.value(f"icmp ne ptr {traceback}, null"), ("traced", ()), (target, (error,)))
    ir.block("traced")
    ir.value(f"call i32 {api(ir, 'PyException_SetTraceback')}(ptr {error}, ptr {traceback})")
    free(ir, traceback)
    ir.goto(target, (error,))


def _called(name: str) -> str:
    return f"{name}.called"


# -- methods of devices -----------------------------------------------------------------------------------------

_WORD = (1 << 32) - 1


def device_calls(places: Places) -> str:
    """The IR of `DEVICE_LOAD`, `DEVICE_STORE` and `DEVICE_PUT`."""
    return _load(places) + _store(places, DEVICE_STORE, posted=True) + _store(places, DEVICE_PUT, posted=False)


def _load(places: Places) -> str:
    ir = Ir()
    ir.block("entry")
    now = integer(ir, "%cycle")
    reply = _call(ir, places, now, [now])
    free(ir, now)
    ir.unless(ir.value(f"icmp ne ptr {reply}, null"), ("raised", ()))
    value = ir.value(f"call i64 {api(ir, 'PyLong_AsUnsignedLongLongMask')}(ptr {reply})")
    ir.unless(ir.value(f"icmp ne i64 {value}, -1"), ("more", (reply,)))  # it may be no integer: TypeError is set
    _unless_more(ir, places, reply)
    free(ir, reply)
    ir.do(f"ret i64 {ir.value(f'and i64 {value}, {_WORD}')}")
    _more(ir)
    return ir.text(f"i64 @{DEVICE_LOAD}(ptr %frame, ptr %row, i64 %cycle)")


def _store(places: Places, name: str, *, posted: bool) -> str:
    """A posted store takes effect in the cycle before its arrival; what `write` returns for it is not used."""
    ir = Ir()
    ir.block("entry")
    now, value = integer(ir, "%cycle"), integer(ir, "%value")
    acts = integer(ir, ir.value("sub i64 %cycle, 1")) if posted else now
    reply = _call(ir, places, now, [value, acts])
    for made in {now: 0, value: 0, acts: 0}:
        free(ir, made)
    ir.unless(ir.value(f"icmp ne ptr {reply}, null"), ("raised", ()))
    none = api(ir, "_Py_NoneStruct")
    if posted:
        free(ir, reply)
        ir.do(f"call void {api(ir, 'Py_IncRef')}(ptr {none})")
        reply = none
    else:
        ir.unless(ir.value(f"icmp eq ptr {reply}, {none}"), ("more", (reply,)))
    _unless_more(ir, places, reply)
    free(ir, reply)
    ir.do("ret i64 0")
    _more(ir)
    return ir.text(f"i64 @{name}(ptr %frame, ptr %row, i64 %value, i64 %cycle)")


def _row(ir: Ir, word: int) -> str:
    return ir.load("ptr", "%row", 8 * word)


def _call(ir: Ir, places: Places, now: str, objects: Sequence[str]) -> str:
    """What the method returns for the register and these objects; `now` is the cycle of the clock."""
    ir.store("i64", "0", f"@{FRESH}")
    ir.store("i64", str(CALLED), "%frame", places.touched)
    epoch = ir.load("i64", "%frame", places.epoch)
    ir.store("i64", ir.value(f"add i64 {epoch}, 1"), "%frame", places.epoch)
    ir.store("i64", "0", "%frame", places.changes)
    attribute = f"ptr {_row(ir, direct.CLOCK)}, ptr {_row(ir, direct.NOW)}"
    ir.value(f"call i32 {api(ir, 'PyObject_SetAttr')}({attribute}, ptr {now})")
    return call(ir, _row(ir, direct.METHOD), _row(ir, direct.OFFSET), _row(ir, direct.SIZE), *objects)


def _get(ir: Ir, owner: int, name: int) -> str:
    """An attribute of an object of the row."""
    return ir.value(f"call ptr {api(ir, 'PyObject_GetAttr')}(ptr {_row(ir, owner)}, ptr {_row(ir, name)})")


def _unless_more(ir: Ir, places: Places, reply: str) -> None:
    """To `more` where more than registers of the device has changed, to `odd` where looking has raised something."""
    more = "more", (reply,)
    known = _row(ir, direct.KNOWN)
    kind = ir.load("i64", known, 8 * KIND)
    ir.branch(ir.value(f"icmp eq i64 {kind}, {SILENT}"), ("settled", ()), ("noisy", ()))

    ir.block("noisy")
    ir.unless(ir.value(f"icmp eq i64 {kind}, {ASKED}"), more)
    line = _get(ir, direct.DEVICE, direct.IRQ)
    ir.unless(ir.value(f"icmp ne ptr {line}, null"), ("odd", ()))
    ir.unless(line_is_known(ir, line, known), more)
    event, due = call(ir, _row(ir, direct.NEXT_EVENT)), ir.load("i64", known, 8 * DUE)
    ir.unless(ir.value(f"icmp ne ptr {event}, null"), ("odd", ()))
    cycle = cycle_of_event(ir, event)
    here = ir.value(f"icmp eq i64 {cycle}, {due}")
    cycle_at_all = ir.value(f"icmp sge i64 {cycle}, 0")  # -1 where it is no i64: an exception is set
    ir.branch(ir.value(f"and i1 {here}, {cycle_at_all}"), ("settled", ()), more)

    ir.block("odd")
    free(ir, reply)
    ir.goto("raised")
    ir.block("settled")
    changes = _get(ir, direct.CLOCK, direct.CHANGES)  # the last, since line and event may be asked for with effect
    count = number_of(ir, changes)
    free(ir, changes)
    shown = ir.load("i64", "%frame", places.shown)
    ir.unless(ir.value(f"icmp eq i64 {count}, {shown}"), more)


def _more(ir: Ir) -> None:
    """Block `raised`: what the method has raised takes the place of what it has returned; block `more`: Python is given
    that, and has more to do."""
    ir.block("raised")
    fetch(ir, "more")
    (outcome,) = ir.block("more", "ptr")
    ir.do(f"call void {api(ir, 'PyErr_Clear')}()")  # of what is no integer
    finished = call(ir, _row(ir, direct.FINISH), outcome)
    free(ir, outcome)
    ir.unless(ir.value(f"icmp ne ptr {finished}, null"), ("raised", ()))  # Ctrl-C came before it had begun
    free(ir, finished)
    ir.do("ret i64 -1")
