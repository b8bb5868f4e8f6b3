"""The sanitizers against programs with races: each is found, and none is found where the program is repaired."""

import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from pyv_ext.elf import read_elf
from pyv_npu.config import load
from pyv_npu.observe.sanitizer.findings import SanitizerRule
from pyv_npu.workloads.firmware import run_program
from tests.external_tools import GCC
from toolchain import gnu

SOURCE = Path(__file__).with_name("races.c")
SETTINGS = {"npu.queue.size": 4, "run.max_cycles": 2_000_000, "run.sanitize": ("memory",)}
INCOHERENT = {"npu.l2.enabled": True, "npu.l2.coherence": "none", "npu.l2.bypass_bytes": 1 << 20}
MODES = {"LOOSE": ("loose",), "TIGHT": ("tight",), "BOTH": ("loose", "tight")}
RULES = {rule.key for rule in SanitizerRule}


def races() -> dict[str, tuple[str, tuple[str, ...]]]:
    """Name -> (rule, modes) of each race of the source."""
    text = SOURCE.read_text(encoding="utf-8")
    found = {name: (rule, modes) for modes, rule, name in re.findall(r"^RACE\((\w+), (\w+), (\w+)\)", text, re.M)}
    for macro, parameters, body in re.findall(r"^#define (\w+_RACE)\((.*?)\).*\n((?:.*\\\n)+)", text, re.M):
        modes, rule = re.findall(r"RACE\((\w+), (\w+), name\)", body)[0]
        assert parameters.startswith("name")
        found |= dict.fromkeys(re.findall(rf"^{macro}\((\w+),", text, re.M), (rule, modes))
    return {name: (rule.replace("_", "-"), MODES[modes]) for name, (rule, modes) in found.items()}


RACES = races()
QUICK = ("late_operand", "result_row", "one_too_many", "writers_of_memory", "unwritten_row", "reset_not_read_back",
         "line_of_result")  # fmt: skip
"""Races of the default suite, in one mode."""
CASES = [
    pytest.param(name, mode, marks=() if name in QUICK and mode == modes[-1] else pytest.mark.slow)
    for name, (_, modes) in RACES.items()
    for mode in modes
]


@pytest.fixture(scope="session")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All races, built once."""
    if shutil.which(GCC) is None:
        pytest.skip(f"{GCC} is not there")
    return gnu.build_program(tmp_path_factory.mktemp("races") / "races.elf", [SOURCE], flags=["-g"], march="rv32ima")


def findings(program: Path, name: str, mode: str, *, correct: bool, engine: str = "fast") -> list[dict[str, Any]]:
    """What the sanitizers find in a race, or in its repaired twin."""
    rule, _ = RACES[name]
    settings = (
        SETTINGS | (INCOHERENT if rule == SanitizerRule.STALE.key else {}) | {"npu.mode": mode, "core.engine": engine}
    )
    function = read_elf(program).symbols[name].address
    run = run_program(load(overrides=settings).config, program, {"race": function, "correct": int(correct)})
    assert run.exit_code == 0
    found: list[dict[str, Any]] = run.json["sanitizer"]["findings"]
    return found


@pytest.mark.parametrize(("name", "mode"), CASES)
def test_a_race_is_found_and_its_repaired_twin_has_none(name: str, mode: str, program: Path) -> None:
    rule, _ = RACES[name]
    found = findings(program, name, mode, correct=False)
    assert {one["rule"] for one in found} >= {rule}
    first = next(one for one in found if one["rule"] == rule)
    for side in (first["first"], first["second"]):
        assert re.search(r"races\.c:|\.h:|lib/", side["place"] or "") or side["what"] == "L2"
    assert first["remedy"]
    assert findings(program, name, mode, correct=True) == []


@pytest.mark.parametrize("correct", [False, True])
def test_the_reference_engine_finds_the_same(correct: bool, program: Path) -> None:
    fast, reference = (
        findings(program, "reset_without_fence", "tight", correct=correct, engine=engine)
        for engine in ("fast", "reference")
    )
    assert fast == reference


def test_a_clean_copy_is_told_to_be_flushed(program: Path) -> None:
    """The copy in the L2 is clean: to clean it changes nothing."""
    (found,) = findings(program, "line_cleaned", "tight", correct=False)
    assert found["remedy"].startswith("flush the lines first: cbo.flush, CTRL.FLUSH_L2 (cbo.clean")


def test_every_rule_has_a_race_and_there_are_sixty() -> None:
    assert {rule for rule, _ in RACES.values()} == RULES
    assert len(RACES) >= 60
