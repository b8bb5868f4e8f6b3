"""Native code that calls a Python function: an access of a device without leaving the interpreter.

CPython's own calling interface is used, at the addresses that it has in this process. The interpreter is entered with
the GIL held (`ctypes.PYFUNCTYPE`), which also raises what a called function has raised.
"""

import ctypes
from collections.abc import Callable

from pyv_ext.engines.fast.ir import Ir

RAISED = -(1 << 62)
"""Returned where the function has raised an exception; it must not return this itself."""

_API = {
    name: ctypes.cast(getattr(ctypes.pythonapi, name), ctypes.c_void_p).value
    for name in ("PyLong_FromLongLong", "PyLong_AsLongLong", "PyObject_Vectorcall", "Py_DecRef")
}


def function(name: str, called: Callable[..., int], arguments: int) -> str:
    """A module's function `name(i64, ...) -> i64` that calls `called`, which the caller keeps alive."""
    ir = Ir()
    ir.block("entry")
    vector = ir.value(f"alloca [{arguments} x ptr]")
    for number in range(arguments):
        made = ir.value(f"call ptr {_api(ir, 'PyLong_FromLongLong')}(i64 %a{number})")
        ir.store("ptr", made, vector, 8 * number)
    target = ir.value(f"inttoptr i64 {id(called)} to ptr")
    answer = ir.value(
        f"call ptr {_api(ir, 'PyObject_Vectorcall')}(ptr {target}, ptr {vector}, i64 {arguments}, ptr null)"
    )
    for number in range(arguments):
        ir.do(f"call void {_api(ir, 'Py_DecRef')}(ptr {ir.load('ptr', vector, 8 * number)})")
    ir.unless(ir.value(f"icmp ne ptr {answer}, null"), ("raised", ()))
    value = ir.value(f"call i64 {_api(ir, 'PyLong_AsLongLong')}(ptr {answer})")
    ir.do(f"call void {_api(ir, 'Py_DecRef')}(ptr {answer})")
    ir.do(f"ret i64 {value}")
    ir.block("raised")
    ir.do(f"ret i64 {RAISED}")
    return ir.text(f"i64 @{name}({', '.join(f'i64 %a{number}' for number in range(arguments))})")


def _api(ir: Ir, name: str) -> str:
    return ir.value(f"inttoptr i64 {_API[name]} to ptr")
