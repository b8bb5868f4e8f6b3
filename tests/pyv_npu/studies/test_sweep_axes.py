"""Axes: ranges, lists, what crosses and what advances together, samples, files; wrong ones are one line."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from pyv_npu.errors import BadInputError, UsageError
from pyv_npu.studies.sweep.axes import Axis, axis, plan, read


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("k=1:64:x2", "1 2 4 8 16 32 64"),
        ("k=3:50:x3", "3 9 27"),
        ("k=0:100:25", "0 25 50 75 100"),
        ("k=0:10:+4", "0 4 8"),
        ("k=5:2:-1", "5 4 3 2"),
        ("k=1:3", "1 2 3"),
        ("k=0x10:0x12", "16 17 18"),
        ("k=a,b", "a b"),
        ("k=1:3,8:32:x2,off", "1 2 3 8 16 32 off"),
        ("k=[a,b],[c]", "[a,b] [c]"),
        ("k=-2:2:2", "-2 0 2"),
        ("k=tcp:x", "tcp:x"),
        ("k=1e3,25.6e9", "1000 25600000000"),
        ("k=1e3:1e5:x10", "1000 10000 100000"),
        ("k=1.5e0", "1.5e0"),
    ],
)
def test_values_of_an_axis(text: str, values: str) -> None:
    assert axis(text) == Axis("k", tuple(values.split(" ")))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("k", "axis k: must have the form KEY=1:64:x2"),
        ("=1", "axis =1: must have the form"),
        ("k=", "axis k=: has no value; give some"),
        ("k=,", "has no value"),
        ("k=8:1", "axis k=8:1: 8:1 runs from 8 to 1 and holds no value; turn it round"),
        ("k=1:8:-1", "holds no value"),
        ("k=1:8:0", "never ends; give another step than 0"),
        ("k=1:8:x1", "never ends; give a factor of at least 2, from at least 1"),
        ("k=0:8:x2", "never ends"),
        ("k=1:100000000000", "has more than 10,000 values; take a larger step"),
        ("k=1,2,1", "gives 1 twice; keep one"),
        ("k=1:4,3", "gives 3 twice"),
    ],
)
def test_a_wrong_axis_is_one_line(text: str, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        axis(text)
    assert message in str(caught.value) and "\n" not in str(caught.value)


@given(st.integers(0, 300), st.integers(1, 40), st.integers(0, 300))
def test_a_range_is_that_of_python_with_its_end(low: int, step: int, more: int) -> None:
    assert axis(f"k={low}:{low + more}:{step}").values == tuple(map(str, range(low, low + more + 1, step)))


def test_axes_cross_and_the_last_moves_fastest() -> None:
    assert plan(["a=1,2", "b=x,y"]).points() == [
        {"a": "1", "b": "x"}, {"a": "1", "b": "y"}, {"a": "2", "b": "x"}, {"a": "2", "b": "y"},
    ]  # fmt: skip


def test_axes_advance_together() -> None:
    made = plan(["a=1,2", "c=p,q", "b=x,y"], ["a,b"])
    assert [tuple(point[name] for name in "abc") for point in made.points()] == [
        ("1", "x", "p"), ("1", "x", "q"), ("2", "y", "p"), ("2", "y", "q"),
    ]  # fmt: skip
    assert made.names == ("a", "c", "b")


@pytest.mark.parametrize(
    ("texts", "together", "message"),
    [
        ([], [], "a sweep needs an axis"),
        (["a=1", "a=2"], [], "axis a: is given twice"),
        (["a=1,2", "b=1"], ["a,b"], "equally many values: a has 2, b has 1"),
        (["a=1,2"], ["a,c"], "--zip a,c: there is no axis c; axes are a"),
        (["a=1", "b=1"], ["a,b", "b"], "b advances with others already"),
        (["a=0:9999", "b=0:9999"], [], "a sweep of 100,000,000 points: there may be 100,000; sample it"),
    ],
)
def test_axes_that_do_not_fit_together(texts: list[str], together: list[str], message: str) -> None:
    with pytest.raises(UsageError) as caught:
        plan(texts, together).points()
    assert message in str(caught.value)


def document(tmp_path: Path, **words: Any) -> Path:
    path = tmp_path / "sweep.yaml"
    path.write_text(yaml.safe_dump({"program": "hello", **words}))
    return path


def test_a_file_says_the_same(tmp_path: Path) -> None:
    found = read(
        document(
            tmp_path, base={"preset": "pcie", "npu.l2.enabled": True}, axes={"a": "1:4:x2", "b": ["x", 3, None]},
            zip=[["a", "b"]], points=[{"a": 9, "b": "z"}], figures=["cycles"],
        )
    )  # fmt: skip
    assert found.base == {"preset": "pcie", "npu.l2.enabled": "true"} and found.figures == ("cycles",)
    assert found.plan.points() == [
        {"a": "1", "b": "x"}, {"a": "2", "b": "3"}, {"a": "4", "b": "none"}, {"a": "9", "b": "z"},
    ]  # fmt: skip


def test_sizes_are_integers_in_the_unit_of_the_key(tmp_path: Path) -> None:
    assert axis("npu.spm.size=256KiB:1MiB:x2,3 MiB").values == ("262144", "524288", "1048576", "3145728")
    assert axis("npu.noc.bytes_per_second=12.8GB/s:25.6GB/s:12.8GB/s").values == ("12800000000", "25600000000")
    rates = axis("npu.noc.bytes_per_second=12.8 GB/s:51.2 GB/s:x2").values
    assert rates == ("12800000000", "25600000000", "51200000000")
    assert axis("npu.spm.size=1KiB:4KiB:x2KiB").values == ("1KiB:4KiB:x2KiB",), "a factor has no unit"
    assert axis("n=1MiB").values == ("1MiB",), "an axis without a unit has words"
    plan = read(
        document(tmp_path, base={"npu.dram.size": "1GiB"}, axes={"npu.spm.size": ["1MiB", "1e6"]},
                 points=[{"npu.spm.size": "2MiB"}])
    )  # fmt: skip
    assert plan.base == {"npu.dram.size": str(1 << 30)}
    assert [point["npu.spm.size"] for point in plan.plan.points()] == ["1048576", "1000000", "2097152"]


def test_repeating_is_an_axis_of_seeds(tmp_path: Path) -> None:
    assert [point["run.seed"] for point in read(document(tmp_path, axes={"a": [1]}, repeat=3)).plan.points()] == [
        "1", "2", "3",
    ]  # fmt: skip


@pytest.mark.parametrize("method", ["latin", "random"])
def test_a_sample_is_of_the_grid_and_the_same_again(tmp_path: Path, method: str) -> None:
    sample = {"count": 10, "method": method, "seed": 4}
    path = document(tmp_path, axes={"a": "0:99", "b": "0:9999"}, sample=sample)
    points = read(path).plan.points()
    assert points == read(path).plan.points() and len(points) == 10
    assert all(0 <= int(point["a"]) <= 99 and 0 <= int(point["b"]) <= 9999 for point in points)
    if method == "latin":  # one in each tenth of each axis
        assert sorted(int(point["a"]) // 10 for point in points) == list(range(10))
        assert sorted(int(point["b"]) // 1000 for point in points) == list(range(10))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"axis": {"a": [1]}}, "axis: unknown; a sweep has program, base, axes"),
        ({"axes": [1]}, "axes: must be a dict"),
        ({"axes": {"a": []}}, "axis a: has no value"),
        ({"axes": {"a": "4:1"}}, "holds no value"),
        ({"axes": {"a": [1]}, "repeat": 0}, "repeat 0: must be from 1 to 10000"),
        ({"axes": {"a": [1]}, "sample": {"count": 0}}, "sample: count: must be an integer from 1 to 100000"),
        ({"axes": {"a": [1]}, "sample": {"count": 3, "method": "x"}}, "method must be one of random, latin"),
        ({"axes": {"a": [1]}, "sample": {"size": 3}}, "sample: size: unknown"),
        ({"points": [3]}, "points: must be a list of tables"),
        ({"program": ""}, "program: is missing"),
        ({}, "a sweep needs an axis"),
    ],
)
def test_a_wrong_file_is_one_line(tmp_path: Path, words: dict[str, Any], message: str) -> None:
    with pytest.raises(BadInputError) as caught:
        read(document(tmp_path, **words))
    assert message in str(caught.value) and str(caught.value).startswith(str(tmp_path / "sweep.yaml"))


@pytest.mark.parametrize("text", ["[", "- 1", "\x00", ""])
def test_a_file_that_is_no_table(tmp_path: Path, text: str) -> None:
    (tmp_path / "sweep.yaml").write_text(text)
    with pytest.raises(BadInputError):
        read(tmp_path / "sweep.yaml")
    with pytest.raises(BadInputError, match="No such file"):
        read(tmp_path / "none.yaml")
