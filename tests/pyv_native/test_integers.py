"""Operators of the native subset: what Python computes, or an error where 64 bits do not hold it.

The judge is Python's own arithmetic with a check after each operator, written apart from the compiler.
"""

import ast
import operator
import sys
import types
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from shares import draws

from pyv_native.arena import Arena
from pyv_native.errors import CheckError
from pyv_native.intrinsics import i32, u32, unsigned_less, wrapping_sub
from pyv_native.module import NativeModule
from pyv_native.records import record

LOWEST, HIGHEST = -(1 << 63), (1 << 63) - 1
BOUNDARIES = (0, 1, 2, 7, 31, 32, 62, 63, 64, 65, 1 << 31, 1 << 32, 1 << 62, HIGHEST)
VALUES = st.one_of(
    st.sampled_from([*BOUNDARIES, *(-value for value in BOUNDARIES), LOWEST]),
    st.integers(-100, 100),
    st.integers(LOWEST, HIGHEST),
)
BINARY = ("+", "-", "*", "//", "%", "<<", ">>", "&", "|", "^")
COMPARISONS = ("<", "<=", ">", ">=", "==", "!=")
_NUMBERS = count()


@record
class Empty:
    """A root without anything of interest."""

    word: int = 0


class LimitError(Exception):
    """A result that 64 bits do not hold, a shift by a negative amount, or a division by 0."""


def expressions() -> st.SearchStrategy[str]:
    """Expressions of the parameters a, b and c."""
    leaves = st.one_of(st.sampled_from(["a", "b", "c"]), st.sampled_from(BOUNDARIES).map(str))

    def wider(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
        pair = st.tuples(inner, inner)
        chain = st.tuples(inner, st.sampled_from(COMPARISONS), inner, st.sampled_from(COMPARISONS), inner)
        return st.one_of(
            st.tuples(inner, st.sampled_from(BINARY), inner).map(lambda part: f"({part[0]} {part[1]} {part[2]})"),
            st.tuples(st.sampled_from(["-", "~", "not "]), inner).map(lambda part: f"({part[0]}{part[1]})"),
            st.tuples(inner, st.sampled_from(["and", "or"]), inner).map(lambda part: f"({' '.join(part)})"),
            chain.map(lambda part: f"({' '.join(part)})"),
            st.tuples(inner, inner, inner).map(lambda part: f"({part[0]} if {part[1]} else {part[2]})"),
            st.tuples(st.sampled_from(["min", "max"]), inner, inner, inner).map(
                lambda part: f"{part[0]}({part[1]}, {part[2]}, {part[3]})"
            ),
            st.tuples(st.sampled_from(["u32", "i32"]), inner).map(lambda part: f"{part[0]}({part[1]})"),
            pair.map(lambda part: f"unsigned_less({part[0]}, {part[1]})"),
            pair.map(lambda part: f"wrapping_sub({part[0]}, {part[1]})"),
        )

    return st.recursive(leaves, wider, max_leaves=6)


_OPERATORS: dict[type[ast.AST], Callable[..., Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod, ast.LShift: operator.lshift, ast.RShift: operator.rshift, ast.BitAnd: operator.and_,
    ast.BitOr: operator.or_, ast.BitXor: operator.xor, ast.USub: operator.neg, ast.Invert: operator.invert,
    ast.Not: operator.not_, ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt, ast.GtE: operator.ge,
    ast.Eq: operator.eq, ast.NotEq: operator.ne,
}  # fmt: skip
_FUNCTIONS: dict[str, Callable[..., int]] = {
    "min": min, "max": max, "u32": u32, "i32": i32, "unsigned_less": unsigned_less,
    "wrapping_sub": wrapping_sub,
}  # fmt: skip


def evaluate(node: ast.AST, names: dict[str, int]) -> int:
    """Value of an expression by Python. LimitError: an operator leaves 64 bits."""
    if isinstance(node, ast.Expression):
        return evaluate(node.body, names)
    if isinstance(node, ast.Constant):
        return int(node.value)  # type: ignore[arg-type]
    if isinstance(node, ast.Name):
        return names[node.id]
    if isinstance(node, ast.BoolOp):
        result = 0
        for operand in node.values:
            result = evaluate(operand, names)
            if bool(result) is isinstance(node.op, ast.Or):
                break
        return result
    if isinstance(node, ast.IfExp):
        return evaluate(node.body if evaluate(node.test, names) else node.orelse, names)
    if isinstance(node, ast.Compare):
        left, outcome = evaluate(node.left, names), 1
        for comparison, operand in zip(node.ops, node.comparators, strict=True):
            right = evaluate(operand, names)
            if not _OPERATORS[type(comparison)](left, right):
                return 0
            left = right
        return outcome
    if isinstance(node, ast.Call):
        assert isinstance(node.func, ast.Name)
        return _FUNCTIONS[node.func.id](*(evaluate(argument, names) for argument in node.args))
    if isinstance(node, ast.UnaryOp):
        return within(_OPERATORS[type(node.op)](evaluate(node.operand, names)))
    assert isinstance(node, ast.BinOp)
    left, right = evaluate(node.left, names), evaluate(node.right, names)
    shift = isinstance(node.op, ast.LShift | ast.RShift)
    if (shift and right < 0) or (isinstance(node.op, ast.FloorDiv | ast.Mod) and not right):
        raise LimitError
    if isinstance(node.op, ast.LShift) and right > 64:
        if left:
            raise LimitError
        return 0
    if isinstance(node.op, ast.RShift):
        right = min(right, 64)
    return within(_OPERATORS[type(node.op)](left, right))


def within(value: int) -> int:
    """A value that 64 bits hold. LimitError: they do not."""
    if not LOWEST <= value <= HIGHEST:
        raise LimitError
    return int(value)


def functions_of(texts: list[str], folder: Path) -> list[types.FunctionType]:
    """A function for each expression, in a module of its own; the n-th in line 2 n + 3."""
    name = f"native_integers_{next(_NUMBERS)}"
    lines = ["from pyv_native.intrinsics import i32, u32, unsigned_less, wrapping_sub"]
    for index, text in enumerate(texts):
        lines += [f"def f{index}(a: int, b: int, c: int) -> int:", f"    return {text}"]
    path = folder / f"{name}.py"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    module = types.ModuleType(name)
    module.__file__ = str(path)
    sys.modules[name] = module
    exec(compile(path.read_text(encoding="utf-8"), str(path), "exec"), module.__dict__)
    return [getattr(module, f"f{index}") for index in range(len(texts))]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("native")


@settings(max_examples=draws(60), deadline=None)
@given(
    st.lists(expressions(), min_size=24, max_size=24),
    st.lists(st.tuples(VALUES, VALUES, VALUES), min_size=6, max_size=6),
)
def test_native_computes_what_python_computes(
    folder: Path, texts: list[str], operands: list[tuple[int, int, int]]
) -> None:
    functions = functions_of(texts, folder)
    arena = Arena(Empty)
    release, checked = (NativeModule(functions, checked=build) for build in (False, True))
    for index, (text, function) in enumerate(zip(texts, functions, strict=True)):
        tree = ast.parse(text, mode="eval")
        calls = release.entry(function), checked.entry(function)
        for a, b, c in operands:
            try:
                expected = evaluate(tree, {"a": a, "b": b, "c": c})
            except LimitError:
                with pytest.raises(CheckError, match=f"line {2 * index + 3}:"):
                    calls[1](arena, a, b, c)
                continue
            assert [call(arena, a, b, c) for call in calls] == [expected] * 2, (text, a, b, c)
            assert function(a, b, c) == expected


@pytest.mark.parametrize("checked", [False, True])
@pytest.mark.parametrize("text", ["a // b", "a % b", "1 // (a - a)"])
def test_division_by_zero_is_an_error_in_every_build(text: str, checked: bool, folder: Path) -> None:
    (function,) = functions_of([text], folder)
    with pytest.raises(CheckError, match=r"line 3: .*divided by 0"):
        NativeModule([function], checked=checked).entry(function)(Arena(Empty), 5, 0, 0)


def test_lowest_integer_by_minus_one(folder: Path) -> None:
    """The processor would end the process."""
    quotient, remainder = functions_of(["a // b", "a % b"], folder)
    arena = Arena(Empty)
    module = NativeModule([quotient, remainder])
    assert module.entry(quotient)(arena, LOWEST, -1, 0) == LOWEST  # wraps; an error in the checked build
    assert module.entry(remainder)(arena, LOWEST, -1, 0) == 0
    with pytest.raises(CheckError, match="64 bits"):
        NativeModule([quotient], checked=True).entry(quotient)(arena, LOWEST, -1, 0)
