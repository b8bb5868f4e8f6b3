"""Modules of the native subset: functions compiled together, and links between separately compiled functions."""

import ast
import ctypes
import inspect
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import IntEnum
from functools import cache
from types import FunctionType, ModuleType
from typing import Any, get_type_hints

from pyv_native.arena import LINKS, MAX_LINKS, STATUS, Arena, is_callback
from pyv_native.compiler import make_compiler
from pyv_native.digest import sha256
from pyv_native.emitter import Context, Definition, SubsetFunction, is_root
from pyv_native.errors import NativeError, SubsetError
from pyv_native.ir import INLINE, Ir
from pyv_native.lowering import Lowering
from pyv_native.records import WORD, Scalar, Shape, shape_of

_INTRINSICS = "".join(
    f"declare {{i64, i1}} @llvm.s{name}.with.overflow.i64(i64, i64)\n" for name in ("add", "sub", "mul")
) + "declare void @llvm.memmove.p0.p0.i64(ptr, ptr, i64, i1)\n"  # fmt: skip


class Linkage:
    """Slots of functions that native code calls through the buffer: functions of other modules, and callbacks."""

    def __init__(self, *functions: Definition) -> None:
        if len(functions) > MAX_LINKS:
            raise NativeError(f"{len(functions)} links: at most {MAX_LINKS}")
        self.slots = {function: slot for slot, function in enumerate(functions)}

    def connect(
        self, arena: Arena, modules: Iterable["NativeModule"], callbacks: Mapping[Definition, Callable[..., int]]
    ) -> None:
        """Link each slot of a buffer to the module that defines the function, or to its callback."""
        providers = {function: module for module in modules for function in module.functions}
        for function, slot in self.slots.items():
            if is_callback(function):
                arena.link_callback(slot, function, callbacks[function])
            elif function in providers:
                arena.link(slot, providers[function].address(function), providers[function])
            else:
                raise NativeError(f"{function.__module__}.{function.__name__}: no module has this function")


class NativeModule:
    """Compiled functions and their callees."""

    def __init__(
        self,
        functions: Sequence[Definition],
        root: type | None = None,
        *,
        linkage: Linkage | None = None,
        constants: Mapping[str, int] | None = None,
        checked: bool = False,
    ) -> None:
        """Compile functions or load them from the cache. SubsetError names module and line of unsupported source.

        `root`: the record at the beginning of the buffer; it is not passed. `linkage`: functions of other modules.
        `constants`: fields, as Record.field, with a value that never changes; code that is dead then is omitted.
        `checked`: overflow, shifts by negative amounts, fields of None and lost bits are errors.
        """
        slots = {} if linkage is None else linkage.slots
        links = {function: slot for function, slot in slots.items() if function not in functions}
        self.functions = tuple(functions)
        self._root = root
        context = module_context(self.functions, root, constants or {}, links, checked)
        self._code = make_compiler().load(
            cache_key(self.functions, context), lambda: module_text(self.functions, context), *map(symbol, functions)
        )

    def address(self, function: Definition) -> int:
        """Return the address of a function's code."""
        return self._code.address(symbol(function))

    def entry(self, function: Definition) -> Callable[..., int]:
        """Return a Python callable `f(arena, *arguments)`; arguments are integers and offsets of records."""
        count = sum(not is_root(shape, self._root) for shape in shapes_of(function)[0].values())
        native = ctypes.PYFUNCTYPE(ctypes.c_int64, ctypes.c_void_p, *[ctypes.c_int64] * count)(self.address(function))
        code = self._code

        def call(arena: Arena, *arguments: int) -> int:
            result: int = native(arena.address, *arguments)
            if arena.words[STATUS]:
                arena.raise_error()
            return result

        call.__dict__["code"] = code  # keeps the code alive
        return call


def interpreted(function: Definition, root: type | None = None) -> Callable[..., int]:
    """Return the function, run by CPython, with the signature of a module's entry."""
    shapes = shapes_of(function)[0]

    def call(arena: Arena, *arguments: int) -> int:
        values, integers = [], iter(arguments)
        for shape in shapes.values():
            if is_root(shape, root):
                values.append(arena.root)
            elif isinstance(shape, Scalar) and shape.record is not None:
                values.append(arena.reference(shape.record, next(integers)))
            else:
                values.append(next(integers))
        result: Any = function(*values)
        return int(result.offset) if hasattr(result, "offset") else int(result or 0)

    return call


def module_context(
    functions: Sequence[Definition],
    root: type | None,
    constants: Mapping[str, int],
    links: Mapping[Definition, int],
    checked: bool,
) -> Context:
    """Return the context of functions that are compiled together."""
    packages = frozenset(function.__module__.partition(".")[0] for function in functions)
    return Context(root, constants, links, packages, checked, function_of, {})


def cache_key(functions: Sequence[Definition], context: Context) -> str:
    """Digest all inputs of the functions' IR: the compiler, their modules, and integers by name."""
    modules = {function.__module__: sys.modules[function.__module__] for function in functions}
    worklist = list(modules.values())
    integers: list[tuple[str, str, object]] = []
    while worklist:
        module = worklist.pop()
        for name, value in vars(module).items():
            if isinstance(value, int):
                integers.append((module.__name__, name, int(value)))
            elif isinstance(value, type) and issubclass(value, IntEnum):
                integers.append((module.__name__, name, [(member.name, int(member)) for member in value]))
            source = getattr(value, "__module__", None)
            if (
                isinstance(source, str) and source not in modules and source.partition(".")[0] in context.packages
                and (isinstance(value, FunctionType) or hasattr(value, "__dataclass_fields__"))
            ):  # fmt: skip
                modules[source] = sys.modules[source]
                worklist.append(modules[source])
    digest = sha256(
        repr((_compiler_digest(), sorted(integers, key=lambda row: row[:2]), list(map(symbol, functions)))).encode()
    )
    links = [(symbol(function), slot, is_callback(function)) for function, slot in context.links.items()]
    digest.update(repr((context.root, sorted(context.constants.items()), links, context.checked)).encode())
    for name in sorted(modules):
        digest.update(_source(modules[name]))
    return str(digest.hexdigest())


@cache
def _compiler_digest() -> str:
    """Digest the sources of this package."""
    digest = sha256()
    folder = os.path.dirname(__file__)
    for name in sorted(os.listdir(folder)):
        if name.endswith(".py"):
            with open(os.path.join(folder, name), "rb") as file:
                digest.update(file.read())
    return str(digest.hexdigest())


@cache
def _source(module: ModuleType) -> bytes:
    """Return the text that a module was imported from."""
    return inspect.getsource(module).encode()


def symbol(function: Definition) -> str:
    """Return the name of a function in the IR."""
    return f"{function.__module__}.{function.__name__}"


def module_text(
    functions: Sequence[Definition], context: Context, *, outlined: Mapping[Definition, int] | None = None
) -> str:
    """Return the IR of functions and their callees. With `outlined` (function -> slot) it is part of another module:
    these functions are called through slots of the links, all others are inlined."""
    texts: dict[Definition, str] = {}
    worklist = list(functions)
    while worklist:
        function = worklist.pop(0)
        if function not in texts:
            if outlined is not None and function in outlined:
                texts[function] = _call_text(function_of(function), context, outlined[function])
                continue
            lowering = Lowering(function_of(function), context)
            inline = outlined is not None
            texts[function] = lowering.text(public=not inline and function in functions, inline=inline)
            worklist += lowering.callees
    sites = "".join(
        f"{name} = private constant [{len(text.encode()) + 1} x i8] c\"{_escape(text)}\\00\"\n"
        for text, name in context.sites.items()
    )  # fmt: skip
    return "".join(texts.values()) + sites + _INTRINSICS


def _call_text(function: SubsetFunction, context: Context, slot: int) -> str:
    """Return the IR of a function that calls the function in a slot of the links."""
    operands = ", ".join(["ptr %base", *(f"i64 %arg.{name}" for name in function.arguments(context.root))])
    ir = Ir()
    ir.block("entry")
    address = ir.load("ptr", "%base", LINKS + WORD * slot)
    ir.do(f"ret i64 {ir.value(f'call i64 {address}({operands})')}")
    return ir.text(f"internal i64 @{function.symbol}({operands})", f"nounwind {INLINE}")


def _escape(text: str) -> str:
    """Escape text for a string constant of LLVM."""
    return "".join(chr(byte) if 32 <= byte < 127 and byte not in b'"\\' else f"\\{byte:02x}" for byte in text.encode())


@cache
def shapes_of(function: Definition) -> tuple[Mapping[str, Shape], Shape]:
    """Return the shapes of the parameters and of the result."""
    try:
        shapes = {key: shape_of(hint) for key, hint in get_type_hints(function, include_extras=True).items()}
    except NativeError as error:
        raise _subset_error(function, str(error)) from None
    result = shapes.pop("return", None)
    parameters = inspect.signature(function).parameters.values()
    if result is None or len(shapes) != len(parameters):
        raise _subset_error(function, "annotate parameters and result")
    if any(
        parameter.kind is not parameter.POSITIONAL_OR_KEYWORD or parameter.default is not parameter.empty
        for parameter in parameters
    ):
        raise _subset_error(function, "parameters are plain and have no defaults")
    return shapes, result


def _subset_error(function: Definition, remedy: str) -> SubsetError:
    """Return the error of a function's definition."""
    line = getattr(inspect.unwrap(function), "__code__").co_firstlineno  # noqa: B009 - a function, not any callable
    return SubsetError(f"{function.__module__}, line {line}: {function.__name__}: outside the native subset: {remedy}")


@cache
def function_of(function: Definition) -> SubsetFunction:
    """Return source and shapes of a function."""
    node = _definitions(sys.modules[function.__module__]).get(function.__name__)
    if node is None:
        raise _subset_error(function, "define it at the top of a module")
    return SubsetFunction(function.__module__, function.__globals__, node, *shapes_of(function))


@cache
def _definitions(module: ModuleType) -> dict[str, ast.FunctionDef]:
    """Return the functions of a module by name."""
    tree = ast.parse(_source(module))
    return {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
