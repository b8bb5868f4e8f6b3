"""The mutation suite of the sanitizers: a program that keeps every rule, and each rule broken on purpose."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pyv_npu.config import load
from pyv_npu.workloads.firmware import run_program
from tests.external_tools import GCC
from toolchain import gnu

SOURCE = Path(__file__).with_name("boundary_probe.c")
SETTINGS = {"npu.queue.size": 4, "run.max_cycles": 2_000_000}
INCOHERENT = {"npu.l2.enabled": True, "npu.l2.coherence": "none", "npu.l2.bypass_bytes": 1 << 20}
LOOSE, TIGHT = ("loose",), ("tight",)
BOTH = (*LOOSE, *TIGHT)

MUTATIONS: dict[str, tuple[str, tuple[str, ...]]] = {
    "RACE_FENCE": ("unordered-doorbell", LOOSE),
    "RACE_WEAK_FENCE": ("unordered-doorbell", LOOSE),
    "RACE_LATE_OPERAND": ("unordered-doorbell", LOOSE),
    "RACE_RESULT": ("unobserved-result", BOTH),
    "RACE_OPERAND": ("overwritten-in-flight", BOTH),
    "RACE_OUTPUT": ("overwritten-in-flight", BOTH),
    "RACE_DESCRIPTOR": ("overwritten-in-flight", TIGHT),
    "RACE_SLOT": ("ring-slot-reused", LOOSE),
    "RACE_STREAMS": ("unordered-scratchpad", BOTH),
    "RACE_STATUS": ("status-not-written-back", BOTH),
    "RACE_TICKET": ("ticket-reused", LOOSE),
    "RACE_ACKNOWLEDGE": ("interrupt-lost", BOTH),
    "RACE_FREED": ("freed-in-flight", BOTH),
    "RACE_OUTSIDE": ("outside-symbol", BOTH),
    "RACE_STALE": ("stale-line", BOTH),
    "RACE_UNWRITTEN": ("uninitialised-read", BOTH),
}
"""Macro -> the rule that it breaks, and the modes in which it can be broken."""

Build = Callable[[str], Path]


@pytest.fixture(scope="session")
def build(tmp_path_factory: pytest.TempPathFactory) -> Build:
    """The program with one macro, built once."""
    if shutil.which(GCC) is None:
        pytest.skip(f"{GCC} is not there")
    folder = tmp_path_factory.mktemp("mutations")

    def built(macro: str) -> Path:
        out = folder / f"{macro or 'correct'}.elf"
        flags = ["-g", *([f"-D{macro}"] if macro else [])]
        return out if out.exists() else gnu.build_program(out, [SOURCE], flags=flags)

    return built


def found(program: Path, mode: str, settings: dict[str, Any]) -> list[dict[str, Any]]:
    config = load(overrides={**SETTINGS, **settings, "npu.mode": mode, "run.sanitize": ("memory",)}).config
    run = run_program(config, program)
    findings: list[dict[str, Any]] = run.json["sanitizer"]["findings"]
    return findings


@pytest.mark.parametrize("mode", BOTH)
@pytest.mark.parametrize("engine", ["fast", "reference"])
def test_the_program_that_keeps_the_rules_has_no_finding(build: Build, mode: str, engine: str) -> None:
    assert found(build(""), mode, {"core.engine": engine}) == []


QUICK = ("RACE_FENCE", "RACE_RESULT", "RACE_UNWRITTEN")
"""Those of every run of the suite; building one takes a second."""
CASES = [
    pytest.param(macro, rule, mode, marks=() if macro in QUICK else pytest.mark.slow)
    for macro, (rule, modes) in MUTATIONS.items()
    for mode in modes
]


@pytest.mark.parametrize(("macro", "rule", "mode"), CASES)
def test_each_broken_rule_is_found_with_both_sides(build: Build, macro: str, rule: str, mode: str) -> None:
    settings = INCOHERENT if macro == "RACE_STALE" else {}
    matching = [each for each in found(build(macro), mode, settings) if each["rule"] == rule]
    assert matching
    for side in (matching[0]["first"], matching[0]["second"]):
        assert "boundary_probe.c:" in (side["place"] or "") or ".h:" in side["place"] or "lib/" in side["place"]
    assert matching[0]["remedy"]
    if macro == "RACE_STALE":  # the copy in the L2 is clean: to clean it changes nothing
        assert matching[0]["remedy"].startswith("flush the lines first: cbo.flush, CTRL.FLUSH_L2 (cbo.clean")


def test_every_rule_has_a_mutation() -> None:
    from pyv_npu.observe.sanitizer.findings import Rule

    assert {rule.key for rule in Rule} == {rule for rule, _ in MUTATIONS.values()}
