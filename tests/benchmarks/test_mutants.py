"""Mutants of a text, and what tests say of them."""

import ast
import importlib
import sys
from collections import Counter
from collections.abc import Collection, Mapping
from pathlib import Path

import pytest

from benchmarks import mutation
from benchmarks.mutation import runs
from benchmarks.mutation.defects import DEFECTS, Defect
from benchmarks.mutation.mutants import Mutant, mutants
from pyv_native.arena import Arena
from pyv_native.module import NativeModule
from pyv_native.records import record


@record
class Root:
    """Root record of compiled functions."""


SOURCE = '''"""A module."""
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    x: int = 1

def cut(a: int, b: int = 3) -> int:
    """Text stays."""
    if a < b and not a == 7:
        raise ValueError(f"{a + 1} is too small")
    note(a)
    return min(a << 2, b - 1).reshape(-1)
'''


def test_each_mutant_is_another_program_of_the_same_form() -> None:
    found = mutants(SOURCE)
    changes = {(one.before, one.after) for one in found}
    assert changes == {
        ("3", "4"), ("a < b and not a == 7", "(a < b or not a == 7)"), ("a < b", "(a <= b)"), ("7", "8"),
        ("not a == 7", "(a == 7)"), ("a == 7", "(a != 7)"), ("note(a)", "pass"), ("a << 2", "(a >> 2)"), ("2", "3"),
        ("min(a << 2, b - 1)", "max(a << 2, b - 1)"), ("b - 1", "(b + 1)"), ("1", "2"),
    }  # fmt: skip
    assert all(one.function == 7 for one in found)
    for one in found:
        assert ast.dump(ast.parse(one.source)) != ast.dump(ast.parse(SOURCE))
        assert one.source.count("\n") == SOURCE.count("\n")


def test_a_sample_stays_where_other_places_are_edited() -> None:
    path = mutation.ROOT / "m.py"
    before = [(path, one) for one in mutants("def f(a):\n    a += 1\n    a += 1\n    return a < 3 or a == 9\n")]
    after = [
        (path, one) for one in mutants("X = 4\n\n\ndef f(a):\n    a += 1\n    a += 1\n    return a < 3 or a == 9\n")
    ]

    def drawn(places: list[tuple[Path, Mutant]], seed: str, count: int = 4) -> list[tuple[str, str]]:
        return [(one.before, one.after) for _, one in mutation.draw(places, count, seed)]

    common = [change for change in drawn(after, "s", 99) if change[0] != "4"]
    assert common[:4] == drawn(before, "s") and len(common) == len(before)
    assert len({tuple(drawn(before, str(seed))) for seed in range(9)}) > 4


def test_functions_begin_with_their_decorators_and_modules_with_none() -> None:
    found = mutants("LIMIT = 4\n\n\n@cache\ndef f():\n    def g():\n        return 5\n    return g\n")
    assert [(one.line, one.function) for one in found] == [(1, 0), (7, 4)]


def test_what_a_test_notices_is_killed_and_what_none_notices_survives(tmp_path: Path) -> None:
    module, name = tmp_path / "counted_thing.py", "counted_thing"
    module.write_text("def least(a, b):\n    return min(a, b)\n\n\ndef twice(a):\n    return 2 * a\n")
    test = tmp_path / "test_counted_thing.py"
    test.write_text(
        f"import sys\nsys.path.insert(0, {str(tmp_path)!r})\nimport {name} as c\n\n\n"
        "def test_least():\n    assert c.least(1, 2) == 1\n\n\n"
        "def test_twice():\n    while c.twice(0):\n        pass\n\n\n"
        "def test_long():\n    try:\n        while True:\n            pass\n"
        "    except BaseException:\n        assert 0\n"
    )

    def fate(before: str) -> str:
        (one,) = [one for one in mutants(module.read_text()) if one.before == before]
        chosen = runs.select_tests(seen, module, one.function, 9, Counter())
        return runs.run_mutant(tmp_path, module, one.source, chosen)[0]

    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(tmp_path))
        patch.setattr(runs, "OPTIONS", ("-q", "-p", "no:cacheprovider", f"--rootdir={tmp_path}"))
        seen = runs.record_coverage(tmp_path, [test.name], [module], 0.5)  # without the long one
        assert len(seen.tests) == 2 and all(len(one.functions) == 1 for one in seen.tests.values())
        assert fate("min(a, b)").endswith("::test_least")
        assert fate("2") == ""


def test_tests_that_failed_come_first_then_callers_as_many_as_there_is_time_for() -> None:
    calls, other = frozenset({("/m.py", 3)}), frozenset({("/m.py", 9)})
    tests = {
        "a": runs.Coverage(2.0, calls), "b": runs.Coverage(1.0, calls), "c": runs.Coverage(3.0, calls),
        "d": runs.Coverage(0.5, other),
    }  # fmt: skip

    def selected(
        budget: float, killers: Mapping[str, int], native: Collection[str] = (), survived: Collection[str] = ()
    ) -> list[str]:
        suite = runs.Suite(tests, frozenset(native))
        return list(runs.select_tests(suite, Path("/m.py"), 3, budget, Counter(killers), survived))

    assert selected(3.5, {}) == ["b", "a"]
    assert selected(0.1, {}) == ["b"]
    assert selected(9, {"a": 1, "c": 2}) == ["c", "a", "b"]
    assert selected(9, {}, ["/m.py"]) == ["b", "a", "c", "d"], "native code may call it, too"
    assert selected(9, {"d": 1}, ["/m.py"]) == ["d", "b", "a", "c"]
    assert selected(3.5, {}, survived=["b"]) == ["a"]


def test_results_are_those_of_the_latest_run(tmp_path: Path) -> None:
    for result in ("", "test_b"):
        results = mutation.Results(tmp_path)
        results.add({**results.get("a"), "result": result, "survived": {"test_a": "1"}})
    assert mutation.Results(tmp_path).get("a")["result"] == "test_b"
    assert mutation.Results(tmp_path).get("b") == {"key": "b", "result": "", "seconds": 0.0, "survived": {}}


def test_functions_that_are_compiled_are_those_of_the_mutant(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "counted_subset.py"
    path.write_text("def least(a: int, b: int) -> int:\n    return a if a < b else b\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr("sys.meta_path", [runs.Finder(path, path.read_text().replace("<", ">")), *sys.meta_path])
    least = importlib.import_module("counted_subset").least
    assert NativeModule([least]).entry(least)(Arena(Root), 4, 9) == 9


@pytest.mark.parametrize("defect", DEFECTS, ids=[defect.title for defect in DEFECTS])
def test_known_defects_can_be_put_back(defect: Defect) -> None:
    """`scripts/bench mutation --defects` puts them back and runs their tests."""
    root = Path(__file__).resolve().parents[2]
    assert (root / defect.path).read_text(encoding="utf-8").count(defect.correct) == 1
    test, _, name = defect.test.partition("::")
    assert f"def {name}" in (root / test).read_text(encoding="utf-8") if name else (root / test).exists()


def test_the_page_names_the_tests_of_known_defects() -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "reliability.md").read_text(encoding="utf-8")
    for defect in DEFECTS:
        assert defect.test.partition("::")[0].removeprefix("tests/") in page, defect.title
