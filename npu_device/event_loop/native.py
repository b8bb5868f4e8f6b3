"""Native code from functions of a small subset of Python, so that one text is both the model and its fast form.

The subset: module-level functions whose parameters are `int` or `Ints` (a list of integers, or an int64 array in native
form), that return an `int` or nothing; assignment to names and elements, `if`, `while`, `return`, arithmetic and
comparison of integers, `and`/`or`/`not`, conditional expressions, `min` and `max` of two, calls of each other, and
integers of the module by name. Values are 64-bit; `//` and `%` are for operands that are not negative.
"""

import ast
import ctypes
import inspect
from collections.abc import Callable, Collection, Mapping
from types import ModuleType

import numpy as np
from numpy.typing import NDArray

from npu_device.event_loop.lowering import Function, Lowering
from pyv_jit.compiler import make_compiler

Array = NDArray[np.int64]
ARRAYS = 8
"""How many arrays' addresses are remembered; they are kept alive."""


class NativeModule:
    """The functions of Python modules, compiled. `function(name)` takes arrays and integers as the original does."""

    def __init__(
        self, *modules: ModuleType, only: Collection[str] | None = None, known: Mapping[str, int] | None = None
    ) -> None:
        """Names of functions are unique over all modules. NpuDeviceError, with module and line, where a source leaves
        the subset.

        `only`: the functions that will be asked for; None: all. `known`: elements, as the source names them, that
        always have a value: what they rule out costs nothing.
        """
        functions: dict[str, Function] = {}
        for module in modules:
            constants = _constants(module) | dict(known or {})
            for node in ast.parse(inspect.getsource(module)).body:
                if isinstance(node, ast.FunctionDef):
                    arrays = tuple(map(_is_array, node.args.args))
                    functions[node.name] = Function(module.__name__, node, constants, arrays)
        called = [name for name in functions if only is None or name in only]
        self._code = make_compiler().load(_text(functions, called), *called)
        self._functions = functions
        self._places: dict[int, tuple[Array, int]] = {}
        """Address of each array that was given lately, by its id."""

    def entry(self, name: str) -> Callable[..., int]:
        """The compiled function, called with addresses of int64 arrays and integers."""
        kinds = [ctypes.c_void_p if array else ctypes.c_int64 for array in self._functions[name].arrays]
        native = ctypes.CFUNCTYPE(ctypes.c_int64, *kinds)(self._code.address(name))
        native.code = self._code  # type: ignore[attr-defined] # it lives as long as its functions
        return native

    def function(self, name: str) -> Callable[..., int]:
        """The compiled function, called with int64 arrays and integers."""
        native, places = self.entry(name), self._places

        def call(*arguments: Array | int) -> int:
            values = []
            for one in arguments:
                if isinstance(one, int):
                    values.append(one)
                    continue
                place = places.get(id(one))
                values.append(self._place(one) if place is None or place[0] is not one else place[1])
            return native(*values)

        return call

    def _place(self, array: Array) -> int:
        """The address of an array, which takes numpy a microsecond to tell."""
        if len(self._places) >= ARRAYS:
            self._places.clear()
        address: int = array.ctypes.data
        self._places[id(array)] = array, address
        return address


def _text(functions: Mapping[str, Function], called: Collection[str]) -> str:
    """The functions that are called, from outside or by each other."""
    texts: dict[str, str] = {}
    waiting = list(called)
    while waiting:
        name = waiting.pop(0)
        if name not in texts:
            lowering = Lowering(functions[name], functions)
            texts[name] = lowering.text(public=name in called)
            waiting += lowering.called
    return "".join(texts.values())


def _is_array(parameter: ast.arg) -> bool:
    return isinstance(parameter.annotation, ast.Name) and parameter.annotation.id == "Ints"


def _constants(module: ModuleType) -> dict[str, int]:
    """Integers that the functions may name: the module's own, and those of modules that it imports as `name.X`."""
    found = {name: value for name, value in vars(module).items() if isinstance(value, int)}
    for alias, other in vars(module).items():
        if isinstance(other, ModuleType):
            found |= {f"{alias}.{name}": value for name, value in vars(other).items() if isinstance(value, int)}
    return found
