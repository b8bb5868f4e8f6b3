"""IR that calls Python functions by CPython's own interface, through pointers that are set for each process."""

import ctypes
from collections.abc import Callable, Mapping

from pyv_jit.compiler import variable
from pyv_jit.ir import Ir

FRESH = "fresh"
"""A variable of native code: not 0 while nothing has run in Python since a fence.i. What has could have changed memory
unseen by the bus."""

HANDLER = "ask_handler"
"""`ask_handler(row of the table of calls, cycle in which it acts, rs1, rs2) -> what ask_call returns`: calls the
handler of a custom instruction (see `custom`) itself."""

RAISED = -(1 << 62)
"""Returned where the function has raised an exception; it must not return this itself."""

_API = (
    "PyLong_FromLongLong", "PyLong_AsLongLong", "PyLong_AsUnsignedLongLongMask", "PyObject_Vectorcall", "Py_DecRef",
    "Py_IncRef", "PyType_GenericAlloc", "PyTuple_SetItem", "PyObject_GetAttr", "PyObject_SetAttr", "PyErr_Occurred",
    "PyErr_Clear", "PyErr_Fetch", "PyErr_NormalizeException", "PyException_SetTraceback", "PyObject_IsInstance",
    "PyLong_Type", "_Py_FalseStruct", "_Py_TrueStruct", "_Py_NoneStruct",
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


def free(ir: Ir, what: str) -> None:
    """An object is not used any more."""
    ir.do(f"call void {api(ir, 'Py_DecRef')}(ptr {what})")


def is_integer(ir: Ir, what: str) -> str:
    """Whether an object is one (an i1)."""
    looks, kind = api(ir, "PyObject_IsInstance"), api(ir, "PyLong_Type")
    return ir.value(f"icmp eq i32 {ir.value(f'call i32 {looks}(ptr {what}, ptr {kind})')}, 1")


def function(name: str, arguments: int, *, given: bool = False) -> str:
    """A module's function `name(i64, ...) -> i64` that calls what `pointers` gives it, or its own first argument."""
    ir = Ir()
    ir.block("entry")
    vector = ir.value(f"alloca [{arguments} x ptr]")
    ir.store("i64", "0", f"@{FRESH}")
    for number in range(arguments):
        ir.store("ptr", integer(ir, f"%a{number}"), vector, 8 * number)
    target = "%target" if given else ir.load("ptr", f"@{_called(name)}")
    answer = ir.value(
        f"call ptr {api(ir, 'PyObject_Vectorcall')}(ptr {target}, ptr {vector}, i64 {arguments}, ptr null)"
    )
    for number in range(arguments):
        free(ir, ir.load("ptr", vector, 8 * number))
    ir.unless(ir.value(f"icmp ne ptr {answer}, null"), ("raised", ()))
    value = ir.value(f"call i64 {api(ir, 'PyLong_AsLongLong')}(ptr {answer})")
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
    vector = ir.value("alloca [2 x ptr]")
    ir.store("i64", "0", f"@{FRESH}")
    handler, pc, word, load, kind, finish = (ir.load("ptr", "%row", 8 * index) for index in range(2, 8))
    operands = ir.value(f"call ptr {api(ir, 'PyType_GenericAlloc')}(ptr {kind}, i64 7)")
    ir.unless(ir.value(f"icmp ne ptr {operands}, null"), ("raised", ()))
    false = api(ir, "_Py_FalseStruct")
    for shared in (pc, word, load, false):
        ir.do(f"call void {api(ir, 'Py_IncRef')}(ptr {shared})")
    for index, part in enumerate((pc, word, integer(ir, "%a"), integer(ir, "%b"), integer(ir, "%acts"), load, false)):
        ir.value(f"call i32 {api(ir, 'PyTuple_SetItem')}(ptr {operands}, i64 {index}, ptr {part})")
    ir.store("ptr", operands, vector)
    outcome = ir.value(f"call ptr {api(ir, 'PyObject_Vectorcall')}(ptr {handler}, ptr {vector}, i64 1, ptr null)")
    free(ir, operands)
    ir.unless(ir.value(f"icmp ne ptr {outcome}, null"), ("raised", ()))
    ir.unless(is_integer(ir, outcome), ("finish", ()))
    value = ir.value(f"call i64 {api(ir, 'PyLong_AsLongLong')}(ptr {outcome})")
    ir.unless(ir.value(f"icmp ne i64 {value}, -1"), ("minus", ()))
    ir.goto("integer")
    ir.block("integer")
    free(ir, outcome)
    ir.do(f"ret i64 {ir.value(f'and i64 {value}, {(1 << 32) - 1}')}")
    ir.block("minus")
    error = ir.value(f"call ptr {api(ir, 'PyErr_Occurred')}()")
    ir.unless(ir.value(f"icmp ne ptr {error}, null"), ("integer", ()))
    ir.do(f"call void {api(ir, 'PyErr_Clear')}()")
    ir.goto("finish")
    ir.block("finish")
    acts = integer(ir, "%acts")
    ir.store("ptr", acts, vector)
    ir.store("ptr", outcome, vector, 8)
    answer = ir.value(f"call ptr {api(ir, 'PyObject_Vectorcall')}(ptr {finish}, ptr {vector}, i64 2, ptr null)")
    free(ir, acts)
    free(ir, outcome)
    ir.unless(ir.value(f"icmp ne ptr {answer}, null"), ("raised", ()))
    result = ir.value(f"call i64 {api(ir, 'PyLong_AsLongLong')}(ptr {answer})")
    free(ir, answer)
    ir.do(f"ret i64 {result}")
    ir.block("raised")
    ir.do(f"ret i64 {RAISED}")
    return ir.text(f"i64 @{HANDLER}(ptr %row, i64 %acts, i64 %a, i64 %b)")


def _called(name: str) -> str:
    return f"{name}.called"
