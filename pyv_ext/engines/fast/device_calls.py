"""IR that calls `read` and `write` of a device in Python, by the rows of `pyv_ext.bus.direct`.

The clock is given the cycle in which the call happens. Afterwards native code looks whether more has changed than what
the device's own registers show: the clock's count of changes, the device's interrupt line, its next event. Only then,
or where the method has raised something or returned something else than expected, Python has more to do.
"""

from collections.abc import Sequence

from pyv_ext.bus import direct
from pyv_ext.bus.clock import ASKED, DUE, KIND, LEVEL, NEVER, SILENT
from pyv_ext.engines.fast import frame
from pyv_ext.engines.fast.python_calls import FRESH, api, free, integer, is_integer
from pyv_ext.engines.near_code import CALLED, DEVICE_LOAD, DEVICE_PUT, DEVICE_STORE
from pyv_jit.ir import Ir

_PLACE_BEFORE = -(1 << 63)
"""Added to the number of arguments: the called function may use the place before them."""
_WORD = (1 << 32) - 1


def functions() -> str:
    """The IR of all of them."""
    return _load() + _store(DEVICE_STORE, posted=True) + _store(DEVICE_PUT, posted=False)


def _load() -> str:
    ir = Ir()
    ir.block("entry")
    now = integer(ir, "%cycle")
    reply = _call(ir, now, [now])
    free(ir, now)
    ir.unless(ir.value(f"icmp ne ptr {reply}, null"), ("raised", ()))
    ir.unless(is_integer(ir, reply), ("more", (reply,)))
    value = ir.value(f"call i64 {api(ir, 'PyLong_AsUnsignedLongLongMask')}(ptr {reply})")
    _unless_more(ir, reply)
    free(ir, reply)
    ir.do(f"ret i64 {ir.value(f'and i64 {value}, {_WORD}')}")
    _more(ir)
    return ir.text(f"i64 @{DEVICE_LOAD}(ptr %frame, ptr %row, i64 %cycle)")


def _store(name: str, *, posted: bool) -> str:
    """A posted store has acted in the cycle before it arrives, and nobody sees what `write` returns for it."""
    ir = Ir()
    ir.block("entry")
    now, value = integer(ir, "%cycle"), integer(ir, "%value")
    acts = integer(ir, ir.value("sub i64 %cycle, 1")) if posted else now
    reply = _call(ir, now, [value, acts])
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
    _unless_more(ir, reply)
    free(ir, reply)
    ir.do("ret i64 0")
    _more(ir)
    return ir.text(f"i64 @{name}(ptr %frame, ptr %row, i64 %value, i64 %cycle)")


def _row(ir: Ir, word: int) -> str:
    return ir.load("ptr", "%row", 8 * word)


def _vector(ir: Ir, function: str, arguments: Sequence[str]) -> str:
    """What a function returns."""
    vector = ir.value(f"alloca [{len(arguments) + 1} x ptr]")
    for number, argument in enumerate(arguments, 1):
        ir.store("ptr", argument, vector, 8 * number)
    given = f"ptr {function}, ptr {ir.at(vector, 8)}, i64 {_PLACE_BEFORE + len(arguments)}, ptr null"
    return ir.value(f"call ptr {api(ir, 'PyObject_Vectorcall')}({given})")


def _call(ir: Ir, now: str, objects: Sequence[str]) -> str:
    """What the method returns for the register and these objects; `now` is the cycle of the clock."""
    ir.store("i64", "0", f"@{FRESH}")
    ir.store("i64", str(CALLED), "%frame", 8 * frame.TOUCHED)
    epoch = ir.load("i64", "%frame", 8 * frame.EPOCH)
    ir.store("i64", ir.value(f"add i64 {epoch}, 1"), "%frame", 8 * frame.EPOCH)
    ir.store("i64", "0", "%frame", 8 * frame.CHANGES)
    attribute = f"ptr {_row(ir, direct.CLOCK)}, ptr {_row(ir, direct.NOW)}"
    ir.value(f"call i32 {api(ir, 'PyObject_SetAttr')}({attribute}, ptr {now})")
    return _vector(
        ir, _row(ir, direct.METHOD), [_row(ir, direct.OFFSET), _row(ir, direct.SIZE), *objects]
    )  # fmt: skip


def _get(ir: Ir, owner: int, name: int) -> str:
    """An attribute of an object of the row."""
    return ir.value(f"call ptr {api(ir, 'PyObject_GetAttr')}(ptr {_row(ir, owner)}, ptr {_row(ir, name)})")


def _unless_more(ir: Ir, reply: str) -> None:
    """To `more` where more than registers of the device has changed, to `odd` where looking has raised something."""
    more = "more", (reply,)
    changes = _get(ir, direct.CLOCK, direct.CHANGES)
    count = ir.value(f"call i64 {api(ir, 'PyLong_AsLongLong')}(ptr {changes})")
    free(ir, changes)
    shown = ir.load("i64", "%frame", 8 * frame.SHOWN)
    ir.unless(ir.value(f"icmp eq i64 {count}, {shown}"), more)
    known = _row(ir, direct.KNOWN)
    kind = ir.load("i64", known, 8 * KIND)
    ir.branch(ir.value(f"icmp eq i64 {kind}, {SILENT}"), ("settled", ()), ("noisy", ()))

    ir.block("noisy")
    ir.unless(ir.value(f"icmp eq i64 {kind}, {ASKED}"), more)
    line = _get(ir, direct.DEVICE, direct.IRQ)
    ir.unless(ir.value(f"icmp ne ptr {line}, null"), ("odd", ()))
    high = ir.value(f"icmp ne i64 {ir.load('i64', known, 8 * LEVEL)}, 0")
    level = ir.value(f"select i1 {high}, ptr {api(ir, '_Py_TrueStruct')}, ptr {api(ir, '_Py_FalseStruct')}")
    free(ir, line)
    ir.unless(ir.value(f"icmp eq ptr {line}, {level}"), more)
    event, due = _vector(ir, _row(ir, direct.NEXT_EVENT), []), ir.load("i64", known, 8 * DUE)
    ir.unless(ir.value(f"icmp ne ptr {event}, null"), ("odd", ()))
    ir.branch(ir.value(f"icmp eq ptr {event}, {api(ir, '_Py_NoneStruct')}"), ("never", ()), ("some", ()))
    ir.block("never")
    free(ir, event)
    ir.branch(ir.value(f"icmp eq i64 {due}, {NEVER}"), ("settled", ()), more)
    ir.block("some")
    ir.branch(is_integer(ir, event), ("known", ()), ("other", ()))
    ir.block("other")
    free(ir, event)
    ir.goto(*more)
    ir.block("known")
    cycle = ir.value(f"call i64 {api(ir, 'PyLong_AsLongLong')}(ptr {event})")
    free(ir, event)
    ir.do(f"call void {api(ir, 'PyErr_Clear')}()")  # of one that is no i64, and then below 0
    here = ir.value(f"icmp eq i64 {cycle}, {due}")
    ir.branch(ir.value(f"and i1 {here}, {ir.value(f'icmp sge i64 {cycle}, 0')}"), ("settled", ()), more)

    ir.block("odd")
    free(ir, reply)
    ir.goto("raised")
    ir.block("settled")


def _more(ir: Ir) -> None:
    """Block `raised`: what the method has raised takes the place of what it has returned; block `more`: Python is given
    that, and has more to do."""
    ir.block("raised")
    parts = [ir.value("alloca ptr") for _ in range(3)]
    given = ", ".join(f"ptr {part}" for part in parts)
    for name in ("PyErr_Fetch", "PyErr_NormalizeException"):
        ir.do(f"call void {api(ir, name)}({given})")
    kind, error, traceback = (ir.load("ptr", part) for part in parts)
    free(ir, kind)
    ir.branch(ir.value(f"icmp ne ptr {traceback}, null"), ("traced", ()), ("more", (error,)))
    ir.block("traced")
    ir.value(f"call i32 {api(ir, 'PyException_SetTraceback')}(ptr {error}, ptr {traceback})")
    free(ir, traceback)
    ir.goto("more", (error,))
    (outcome,) = ir.block("more", "ptr")
    free(ir, _vector(ir, _row(ir, direct.FINISH), [outcome]))
    free(ir, outcome)
    ir.do("ret i64 -1")
