"""Native code that calls a Python function: an access of a device without leaving the interpreter.

CPython's own calling interface is used, through pointers that are set for each process. The interpreter is entered
with the GIL held (`ctypes.PYFUNCTYPE`), which also raises what a called function has raised.
"""

import ctypes
from collections.abc import Callable, Mapping

from pyv_jit.compiler import variable
from pyv_jit.ir import Ir

RAISED = -(1 << 62)
"""Returned where the function has raised an exception; it must not return this itself."""

_API = ("PyLong_FromLongLong", "PyLong_AsLongLong", "PyObject_Vectorcall", "Py_DecRef")


def interface() -> str:
    """What the functions of a module need besides."""
    return "".join(map(variable, _API))


def pointers(called: Mapping[str, Callable[..., int]]) -> dict[str, int]:
    """What the variables of a module point to: `called` by the names of its functions, which the caller keeps alive."""
    api = {name: ctypes.cast(getattr(ctypes.pythonapi, name), ctypes.c_void_p).value or 0 for name in _API}
    return api | {_called(name): id(function) for name, function in called.items()}


def function(name: str, arguments: int) -> str:
    """A module's function `name(i64, ...) -> i64` that calls what `pointers` gives it."""
    ir = Ir()
    ir.block("entry")
    vector = ir.value(f"alloca [{arguments} x ptr]")
    for number in range(arguments):
        made = ir.value(f"call ptr {ir.load('ptr', '@PyLong_FromLongLong')}(i64 %a{number})")
        ir.store("ptr", made, vector, 8 * number)
    target, call = ir.load("ptr", f"@{_called(name)}"), ir.load("ptr", "@PyObject_Vectorcall")
    answer = ir.value(f"call ptr {call}(ptr {target}, ptr {vector}, i64 {arguments}, ptr null)")
    for number in range(arguments):
        ir.do(f"call void {ir.load('ptr', '@Py_DecRef')}(ptr {ir.load('ptr', vector, 8 * number)})")
    ir.unless(ir.value(f"icmp ne ptr {answer}, null"), ("raised", ()))
    value = ir.value(f"call i64 {ir.load('ptr', '@PyLong_AsLongLong')}(ptr {answer})")
    ir.do(f"call void {ir.load('ptr', '@Py_DecRef')}(ptr {answer})")
    ir.do(f"ret i64 {value}")
    ir.block("raised")
    ir.do(f"ret i64 {RAISED}")
    signature = ", ".join(f"i64 %a{number}" for number in range(arguments))
    return variable(_called(name)) + ir.text(f"i64 @{name}({signature})")


def _called(name: str) -> str:
    return f"{name}.called"
