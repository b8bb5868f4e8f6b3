"""Operators that are arithmetic of others, on numbers that break arithmetic: infinities, NaN, denormals, both zeros,
the ends of integers. onnxruntime judges.

Not here, because there is a choice: the largest of elements with a NaN (docs/onnx-coverage.md), what Clip without a
limit makes of an infinity (onnxruntime: the largest finite number), the sign of a zero that is the larger of two, NaN
as a code, and sums that overflow on the way to a finite one.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto
from onnxruntime_reference import by_onnxruntime, by_us, one_node

from pyv_npu.config import load as load_config
from pyv_npu.errors import BadModelError
from pyv_npu.workloads.model import Model
from toolchain.errors import ModelError

MOST = float(np.finfo(np.float32).max)
FLOATS = np.array(
    [0, -0.0, 1, -1, 0.5, 1.5, 2.5, -2.5, 3.7, -7.3, np.inf, -np.inf, np.nan, 1e-45, -1e-45, 1e-40, MOST, -MOST,
     np.finfo(np.float32).tiny, 88.8, -104, 20, -20, 1e8, -1e8, 100.5], np.float32,
)  # fmt: skip
A, B = (np.ascontiguousarray(one) for one in np.meshgrid(FLOATS, FLOATS, indexing="ij"))
ROWS = np.array(
    [[1, 2, 3, 4], [np.inf, 1, 2, 3], [-np.inf, 1, 2, 3], [1, np.nan, 2, 3], [np.inf, -np.inf, 0, 1], [-np.inf] * 4,
     [np.inf] * 4, [0, -0.0, 0, -0.0], [1e-45, 1e-45, 0, 0], [88, 89, 100, -100], [np.nan] * 4], np.float32,
)  # fmt: skip
UNARY = ("Abs", "Acos", "Acosh", "Asin", "Asinh", "Atan", "Atanh", "Ceil", "Celu", "Cos", "Cosh", "Elu", "Erf", "Exp",
         "Floor", "Gelu", "HardSigmoid", "HardSwish", "LeakyRelu", "Log", "Mish", "Neg", "Reciprocal", "Relu", "Round",
         "Selu", "Shrink", "Sigmoid", "Sign", "Sin", "Sinh", "Softplus", "Softsign", "Sqrt", "Tan", "Tanh",
         "ThresholdedRelu")  # fmt: skip
INTEGERS = (np.int8, np.uint8, np.int32, np.int64)
BOOL, INT64 = TensorProto.BOOL, TensorProto.INT64
TRIANGLES = [pytest.param(upper, id=f"upper={upper}") for upper in (0, 1)]


def same(got: Any, want: Any, absolute: float = 1e-7) -> None:
    """AssertionError where elements differ by more than 1e-5 of themselves, or are not finite alike."""
    assert got.shape == want.shape and got.dtype == want.dtype
    if want.dtype.kind != "f":
        assert np.array_equal(got, want)
        return
    np.testing.assert_allclose(got.astype(np.float64), want, 1e-5, absolute)


def agree(proto: Any, feeds: dict[str, Any]) -> None:
    want, (got, _) = by_onnxruntime(proto, feeds), by_us(proto, feeds)
    for name, values in want.items():
        same(got[name], values)


def integers(kind: type) -> tuple[Any, Any]:
    """Pairs of the ends of a type and numbers between them; INT64 as far as the device has it."""
    limits = np.iinfo(np.int32 if kind is np.int64 else kind)
    values = np.array([x for x in (limits.min, limits.min + 1, -7, -2, -1, 0, 1, 2, 3, 7, 31, 33, 46341, limits.max)
                       if limits.min <= x <= limits.max], kind)  # fmt: skip
    first, second = np.meshgrid(values, values, indexing="ij")
    return first.ravel(), second.ravel()


@pytest.mark.parametrize("operator", UNARY)
def test_one_operand(operator: str) -> None:
    with np.errstate(all="ignore"):
        agree(one_node(operator, {"x": FLOATS}), {"x": FLOATS})


@pytest.mark.parametrize("operator", ["IsInf", "IsNaN"])
def test_what_is_no_number(operator: str) -> None:
    agree(one_node(operator, {"x": FLOATS}, kinds=[BOOL]), {"x": FLOATS})


@pytest.mark.parametrize(
    "operator", ["Add", "Div", "Equal", "Greater", "Less", "Max", "Min", "Mod", "Mul", "Pow", "PRelu", "Sub"]
)
def test_two_operands(operator: str) -> None:
    kinds = [BOOL] if operator in ("Equal", "Greater", "Less") else []
    how = {"fmod": 1} if operator == "Mod" else {}
    agree(one_node(operator, {"a": A, "b": B}, kinds=kinds, **how), {"a": A, "b": B})


def test_a_choice_between_any_numbers() -> None:
    feeds = {"c": np.arange(A.size).reshape(A.shape) % 2 == 0, "a": A, "b": B}
    agree(one_node("Where", feeds), feeds)


@pytest.mark.parametrize("kind", INTEGERS)
@pytest.mark.parametrize("operator", ["Div", "Mod", "fmod", "Max", "Min", "Equal", "Less", "Add", "Sub", "Mul"])
def test_two_integers(operator: str, kind: type) -> None:
    """Of one type they wrap; what INT64 has and INT32 has not is refused (below)."""
    a, b = integers(kind)
    if operator in ("Div", "Mod", "fmod"):
        keep = (b != 0) & ~((b.astype(np.int64) == -1) & (a == a.min()))
        a, b = a[keep], b[keep]
    elif kind is np.int64 and operator in ("Add", "Sub", "Mul"):
        made = {"Add": np.add, "Sub": np.subtract, "Mul": np.multiply}[operator](a, b)
        keep = made == made.astype(np.int32)
        a, b = a[keep], b[keep]
    code = (
        BOOL
        if operator in ("Equal", "Less")
        else {np.int8: TensorProto.INT8, np.uint8: TensorProto.UINT8, np.int32: TensorProto.INT32, np.int64: INT64}[
            kind
        ]
    )
    how = {"fmod": 1} if operator == "fmod" else {}
    agree(one_node("Mod" if how else operator, {"a": a, "b": b}, kinds=[code], **how), {"a": a, "b": b})


@pytest.mark.parametrize("upper", TRIANGLES)
def test_a_triangle_has_nothing_of_the_other(upper: int) -> None:
    agree(one_node("Trilu", {"x": A}, upper=upper), {"x": A})


REDUCED = ("ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMean", "ReduceProd", "ReduceSum",
           "ReduceSumSquare")  # fmt: skip


@pytest.mark.parametrize("operator", REDUCED)
def test_rows(operator: str) -> None:
    agree(one_node(operator, {"x": ROWS}, constants={"axes": np.array([1])}, keepdims=0), {"x": ROWS})


@pytest.mark.parametrize("operator", ["LogSoftmax", "Softmax"])
def test_rows_that_are_masked(operator: str) -> None:
    agree(one_node(operator, {"x": ROWS}, axis=1), {"x": ROWS})


@pytest.mark.parametrize("how", [{}, {"exclusive": 1}, {"reverse": 1}, {"exclusive": 1, "reverse": 1}], ids=str)
def test_sums_so_far(how: dict[str, int]) -> None:
    agree(one_node("CumSum", {"x": ROWS}, constants={"axis": np.array(1)}, **how), {"x": ROWS})


def test_places_outside_of_an_image_are_zeros() -> None:
    image = np.array([[np.inf, 1, 2], [3, np.nan, 4], [5, 6, -np.inf]], np.float32).reshape(1, 1, 3, 3)
    grid = np.array([[-3, -3], [2, 0], [0, 4], [-1.9, 1.9]], np.float32).reshape(1, 2, 2, 2)
    agree(one_node("GridSample", {"x": image, "g": grid}), {"x": image, "g": grid})


@pytest.mark.parametrize("reduction", ["none", "add", "mul"])
def test_scattered(reduction: str) -> None:
    x, places = FLOATS[:24].reshape(2, 12), np.array([[1, -1, 3], [0, 2, 5]])
    feeds = {"x": x, "i": places, "u": np.array([[np.nan, np.inf, 5], [-0.0, 1, -np.inf]], np.float32)}
    agree(one_node("ScatterElements", feeds, axis=1, reduction=reduction), feeds)


def cases() -> Iterator[tuple[str, Callable[[], Any]]]:
    x = np.array([[1 << 30, 1 << 30, 4]], np.int64)
    yield "Mul", lambda: one_node("Mul", {"x": x}, constants={"w": np.array(2)}, kinds=[INT64])
    yield "Add", lambda: one_node("Add", {"x": x}, constants={"w": np.array((1 << 31) - 1)}, kinds=[INT64])
    yield "ReduceSum", lambda: one_node("ReduceSum", {"x": x}, constants={"a": np.array([1])}, kinds=[INT64])
    yield "ReduceProd", lambda: one_node("ReduceProd", {"x": x}, constants={"a": np.array([1])}, kinds=[INT64])
    yield "CumSum", lambda: one_node("CumSum", {"x": x}, constants={"a": np.array(1)}, kinds=[INT64])


@pytest.mark.parametrize(("operator", "make"), list(cases()), ids=lambda one: one if isinstance(one, str) else "")
def test_integers_that_leave_int32_are_refused_by_name(operator: str, make: Callable[[], Any], tmp_path: Path) -> None:
    path, inputs = tmp_path / "m.onnx", tmp_path / "x.npy"
    path.write_bytes(make().SerializeToString())
    np.save(inputs, np.array([[1 << 30, 1 << 30, 4]], np.int64))
    config = load_config([], None, {"run.sim_level": "IA"}).config
    with pytest.raises(BadModelError, match=rf"node n \({operator}\): makes \d+ of these inputs, which INT32 does not"):
        Model(path, single={"x": inputs}).prepare(config).run(config)


def test_a_remainder_that_is_no_rest_of_a_division_is_refused() -> None:
    with pytest.raises(ModelError, match="attribute fmod=0 with floats: supported is 1"):
        by_us(one_node("Mod", {"a": A, "b": B}), {"a": A, "b": B})
