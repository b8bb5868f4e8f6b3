"""Loops as decoders of PaddlePaddle have them, and a Slice to an end that the run computes: onnxruntime judges."""

from typing import Any

import numpy as np
import pytest
from onnx import parser
from onnxruntime_reference import by_onnxruntime, by_us, near

from toolchain.errors import ModelError

DECODER = """<ir_version: 8, opset_import: ["" : 16]>
g (float[1, 3] x, float least) => (float[1, N, 3] rows, float[1, K, 3] chances, float[] last) {
  most = Constant <value_int: int = 9> ()
  zero = Constant <value_int: int = 0> ()
  no = Constant <value = bool {0}> ()
  go = Not(no)
  undefined = Constant <value_float: float = 0.0> ()
  width = Constant <value = int64[3] {1, 12, 3}> ()
  table = ConstantOfShape(width)
  end_now, count, end_stop, filled, last = Loop(most, go, x, zero, no, table, undefined) <
    body = b (int64 i, bool c, float[1, 3] now, int64 at, bool ended, float[1, 12, 3] made, float[] unset)
        => (bool[] more, float[1, 3] next, int64 behind, bool[] stop, float[1, 12, 3] left, float[] set) {
      one = Constant <value_int: int = 1> ()
      vector = Constant <value = int64[1] {1}> ()
      behind = Add(at, one)
      start = Reshape(at, vector)
      end = Reshape(behind, vector)
      f = Cast <to: int = 1> (at)
      next = Add(now, f)
      old = Slice(made, start, end, vector)
      shape = Shape(old)
      wide = Unsqueeze(next, vector)
      placed = Expand(wide, shape)
      ones = Constant <value = int64[3] {1, 1, 1}> ()
      place = Reshape(at, ones)
      places = Expand(place, shape)
      left = ScatterElements <axis: int = 1> (made, places, placed)
      sum = ReduceSum <keepdims: int = 0> (next)
      large = Greater(sum, least)
      stop = If(large) <
        then_branch = t () => (bool[] yes) { yes = Constant <value = bool {1}> () },
        else_branch = e () => (bool[] was) {
          n = Constant <value = int64[1] {0}> ()
          number = Cast <to: int = 7> (ended)
          numbers = Add(number, n)
          was = Cast <to: int = 9> (numbers)
        }
      >
      more = Not(stop)
      set = Mul(next, next)
    }
  >
  zeros = Constant <value = int64[1] {0}> ()
  axis = Constant <value = int64[1] {1}> ()
  until = Reshape(count, axis)
  rows = Slice(filled, zeros, until, axis)
  chances = Softmax <axis: int = 2> (rows)
}
"""
"""A state that is a scalar before the first step and a vector of one element behind it, another that has no value
before the first step, a counter at whose place each step writes a row, and the rows up to the counter."""


@pytest.mark.parametrize("least", [-100, 5, 30, 1e9])
def test_a_decoder_gives_the_rows_that_it_has_written(least: float) -> None:
    proto = parser.parse_model(DECODER)
    feeds = {"x": np.array([[1, -2, 3]], np.float32), "least": np.array(least, np.float32)}
    got, want = by_us(proto, feeds)[0], by_onnxruntime(proto, feeds)
    count = int(got["rows.count"][0])
    assert count == want["rows"].shape[1] and got["rows"].shape == (1, 12, 3)
    near(got["rows"][:, :count], want["rows"], 0, "rows")
    near(got["chances"][:, :count], want["chances"], 1e-6, "chances")
    near(got["last"], want["last"], 1e-6, "last")
    assert (got["rows"][:, count:] == -1).all()


def test_the_first_step_must_be_certain_where_a_state_changes_its_shape() -> None:
    text = DECODER.replace("float least)", "float least, bool go)", 1).replace("go = Not(no)", "")
    with pytest.raises(ModelError, match="a step changes the shape of"):
        by_us(parser.parse_model(text), {})


def test_more_steps_than_there_may_be_nodes_are_refused_with_what_to_say(monkeypatch: pytest.MonkeyPatch) -> None:
    """After the first of them: nodes of all would take half a minute."""
    for module in ("rewriter", "control_flow"):
        monkeypatch.setattr(f"toolchain.onnx_model.{module}.MAX_NODES", 300)
    proto = parser.parse_model(DECODER.replace("int = 9>", "int = 900>", 1))
    feeds = {"x": np.array([[1, -2, 3]], np.float32), "least": np.array(5, np.float32)}
    match = (
        r"up to 900 steps of \d+ nodes, as the run decides: more than 300 nodes; say how many steps there are at most, "
    )
    with pytest.raises(ModelError, match=match + r"1\.\.\d: --shape Loop_end_now=N") as refused:
        by_us(proto, feeds)
    most = int(str(refused.value).split("1..")[1].split(":")[0])
    assert by_us(proto, feeds, shapes={"Loop_end_now": (most,)})[0]["Loop_end_now.unfinished"].tolist() == [0]


SLICE = """<ir_version: 8, opset_import: ["" : 16]>
g (float[2, 5] x, int64 n) => ({kind}[2, K] y) {{
  values = Cast <to: int = {code}> (x)
  starts = Constant <value = int64[1] {{{start}}}> ()
  axis = Constant <value = int64[1] {{1}}> ()
  vector = Constant <value = int64[1] {{1}}> ()
  step = Constant <value = int64[1] {{{step}}}> ()
  ends = Reshape(n, vector)
  y = Slice(values, starts, ends, axis, step)
}}
"""


def slice_to(n: int, kind: str = "float", code: int = 1, start: int = 0, step: int = 1) -> tuple[Any, Any]:
    """(our outputs, onnxruntime's y) of a Slice to a computed end."""
    proto = parser.parse_model(SLICE.format(kind=kind, code=code, start=start, step=step))
    feeds = {"x": np.arange(10, dtype=np.float32).reshape(2, 5), "n": np.array(n)}
    return by_us(proto, feeds)[0], by_onnxruntime(proto, feeds)["y"]


@pytest.mark.parametrize("start", [0, 2, -2, -9])
@pytest.mark.parametrize("n", [0, 1, 4, 5, 99, -1, -3, -9])
def test_a_slice_to_a_computed_end(n: int, start: int) -> None:
    got, want = slice_to(n, start=start)
    count = int(got["y.count"][0])
    assert np.array_equal(got["y"][:, :count], want) and (got["y"][:, count:] == -1).all()


@pytest.mark.parametrize(("kind", "code"), [("int64", 7), ("int32", 6), ("float16", 10), ("uint8", 2)])
def test_a_slice_of_other_types_to_a_computed_end(kind: str, code: int) -> None:
    got, want = slice_to(3, kind, code)
    assert got["y.count"].tolist() == [3] and np.array_equal(got["y"][:, :3], want)


@pytest.mark.parametrize(("start", "step"), [*((start, step) for start in (0, 1, -1, -9) for step in (2, 9, -1, -2)),
                                             (99, -2)])  # fmt: skip
@pytest.mark.parametrize("n", [0, 1, 2, 5, 99, -1, -3, -9])
def test_a_slice_to_a_computed_end_by_steps(n: int, start: int, step: int) -> None:
    got, want = slice_to(n, start=start, step=step)
    count = int(got["y.count"][0])
    assert np.array_equal(got["y"][:, :count], want) and (got["y"][:, count:] == -1).all()


SEVERAL = """<ir_version: 8, opset_import: ["" : 16]>
g (float[4, 5, 6] x, int32[1] n) => (float[J, K, L] y) {
  starts = Constant <value = int64[3] {1, 0, 5}> ()
  steps = Constant <value = int64[3] {2, 1, -2}> ()
  axes = Constant <value = int64[3] {0, 1, -1}> ()
  first = Constant <value = int32[1] {9}> ()
  last = Constant <value = int32[1] {-9}> ()
  narrow = Concat <axis: int = 0> (ENDS)
  ends = Cast <to: int = 7> (narrow)
  y = Slice(x, starts, ends, axes, steps)
}
"""
"""As strided slices of TensorFlow are exported."""


@pytest.mark.parametrize("n", [0, 1, 3, 9, -1, -2, -9])
@pytest.mark.parametrize(("ends", "axis"), [("n, first, last", 0), ("first, n, last", 1), ("first, first, n", 2)])
def test_a_slice_of_several_dimensions_of_which_one_has_a_computed_end(n: int, ends: str, axis: int) -> None:
    proto = parser.parse_model(SEVERAL.replace("ENDS", ends))
    feeds = {"x": np.arange(120, dtype=np.float32).reshape(4, 5, 6), "n": np.array([n], np.int32)}
    got, want = by_us(proto, feeds)[0], by_onnxruntime(proto, feeds)["y"]
    count = int(got["y.count"][0])
    assert count == want.shape[axis]
    assert np.array_equal(got["y"].take(range(count), axis), want)
    assert (got["y"].take(range(count, got["y"].shape[axis]), axis) == -1).all()


def test_a_slice_of_which_two_dimensions_have_a_computed_end_is_refused() -> None:
    proto = parser.parse_model(SEVERAL.replace("ENDS", "n, n, last"))
    with pytest.raises(ModelError, match="the shape of y is not known before the run"):
        by_us(proto, {})


FOUND = """<ir_version: 8, opset_import: ["" : 16]>
g (float[2, 5] x, int64[1] n) => (int64[R, K] y) {
  places = NonZero(x)
  starts = Constant <value = int64[1] {0}> ()
  axis = Constant <value = int64[1] {AXIS}> ()
  y = Slice(places, starts, n, axis)
}"""


@pytest.mark.parametrize("n", [-20, -2, 0, 3, 20])
def test_a_slice_of_rows_that_the_run_counts_has_a_computed_end(n: int) -> None:
    proto = parser.parse_model(FOUND.replace("AXIS", "1"))
    feeds = {"x": np.arange(10, dtype=np.float32).reshape(2, 5) % 3, "n": np.array([n])}
    got, want = by_us(proto, feeds)[0], by_onnxruntime(proto, feeds)["y"]
    assert np.array_equal(got["y"][:, : int(got["y.count"][0])], want)


def test_a_slice_of_another_dimension_than_that_of_rows_has_none() -> None:
    with pytest.raises(
        ModelError, match="joins rows of places, of which the run decides how many count: cut the model"
    ):
        by_us(parser.parse_model(FOUND.replace("AXIS", "0")), {})
