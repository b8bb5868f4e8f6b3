"""Native code from functions of a small subset of Python, so that one text is both the model and its fast form.

The subset: module-level functions whose parameters are `int`, records or `list[int]`, and that return one of these or
nothing; assignment to names, fields and items; `if`, `while`, `for` over `range` or a list, `break`, `continue`,
`return`; arithmetic and comparison of integers, `is` and `is not`, `and`/`or`/`not`, conditional expressions, `min` and
`max` of two; `len`, `append`, `extend` with a tuple, `clear` and `del items[length:]` of lists; calls of each other;
integers and members of integer enumerations by name. Values are 64-bit; `//` and `%` are for operands that are not
negative, and so are indices.
"""

import ast
import ctypes
import enum
import inspect
from collections.abc import Callable, Collection, Mapping
from types import ModuleType
from typing import get_type_hints

from npu_device.native.lowering import Function, Lowering
from npu_device.native.records import shape_of
from pyv_jit.compiler import make_compiler


class NativeModule:
    """The functions of Python modules, compiled."""

    def __init__(
        self,
        *modules: ModuleType,
        root: type | None = None,
        only: Collection[str] | None = None,
        known: Mapping[str, int] | None = None,
    ) -> None:
        """Names of functions are unique over all modules. NpuDeviceError, with module and line, where a source leaves
        the subset.

        `root`: the record that all words begin with. `only`: the functions that will be asked for; None: all. `known`:
        fields, as Record.field, that always have a value: what they rule out costs nothing.
        """
        functions: dict[str, Function] = {}
        for module in modules:
            constants = _constants(module)
            for node in ast.parse(inspect.getsource(module)).body:
                if isinstance(node, ast.FunctionDef):
                    shapes = {name: shape_of(hint) for name, hint in get_type_hints(getattr(module, node.name)).items()}
                    result = shapes.pop("return")
                    functions[node.name] = Function(
                        module.__name__, node, constants, dict(known or {}), root, shapes, result
                    )
        called = [name for name in functions if only is None or name in only]
        self._code = make_compiler().load(_text(functions, called), *called)
        self._functions = functions

    def entry(self, name: str) -> Callable[..., int]:
        """The compiled function: called with the address of the words, in place of the root record, and with integers;
        a record or a list is the index of its first word."""
        kinds = [ctypes.c_void_p, *[ctypes.c_int64] * len(self._functions[name].passed())]
        native = ctypes.CFUNCTYPE(ctypes.c_int64, *kinds)(self._code.address(name))
        native.code = self._code  # type: ignore[attr-defined] # it lives as long as its functions
        return native


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


def _constants(module: ModuleType) -> dict[str, int]:
    """Integers that the functions may name: the module's own, and members of enumerations as `name.MEMBER`."""
    found: dict[str, int] = {}
    for name, value in vars(module).items():
        if isinstance(value, int):
            found[name] = int(value)
        elif isinstance(value, type) and issubclass(value, enum.IntEnum):
            found |= {f"{name}.{member.name}": int(member) for member in value}
    return found
