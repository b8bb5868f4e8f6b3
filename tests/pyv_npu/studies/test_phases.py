"""A tail of one run may be an accident of its phase: compare shows the spread over several, seeded."""

import json
import re

import pytest

from pyv_npu.boot import requirements
from pyv_npu.cli import main
from pyv_npu.config import load
from pyv_npu.studies.phases import arguments
from pyv_npu.workloads.firmware import load as find

QUICK = ["--arg", "n=200", "--arg", "phases=4"]


def test_phases_are_seeded_and_stay_near_what_was_asked() -> None:
    program = find("submit_latency")
    defaults = {one.name: one.default for one in requirements(program).arguments}
    config = load().config
    made = arguments(program, config, 50)
    assert made == arguments(program, config, 50)
    assert made != arguments(program, load(overrides={"run.seed": 7}).config, 50)
    for name in ("burst", "gap"):
        seen = {one[name] for one in made}
        assert len(seen) >= min(40, defaults[name] // 4 * 2 + 1)
        assert 0.75 * defaults[name] <= min(seen) <= max(seen) <= 1.25 * defaults[name]
    assert arguments(find("hello"), config, 5) == []


def test_the_tail_of_one_phase_is_no_verdict(capsys: pytest.CaptureFixture[str]) -> None:
    """With interrupts the ratio of P99 lies on both sides of 1; that of P50 does not move."""
    assert main(["compare", "submit_latency", *QUICK, "--phases", "8", "--json"]) == 0
    both = json.loads(capsys.readouterr().out)
    phases = both["phases"]
    assert len(phases["args"]) == 8
    assert all(len(values) == 9 and values[0] == both["ratio"][name] for name, values in phases["ratios"].items())
    known = {name: values for name, values in phases["ratios"].items() if None not in values}
    assert {"t_submit_p50", "t_submit_p99"} <= known.keys()
    assert all(phases["spread"][name] == [min(values), max(values)] for name, values in known.items())
    low, high = phases["spread"]["t_submit_p99"]
    assert low < 1 < high
    low, high = phases["spread"]["t_submit_p50"]
    assert low > 1 and high / low < 1.05


def test_the_text_says_which_way_a_ratio_points(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", "submit_latency", *QUICK, "--phases", "8"]) == 0
    text = capsys.readouterr().out
    assert max(map(len, text.splitlines())) <= 130
    spread = r"over 9 phases {}\.\d\d to \d\.\d\d \({}\)"
    for figure, low, way in (
        ("t_submit P50", 4, "loose longer"), ("t_submit P99", 0, "neither longer in all"),
        ("whole run", 1, "loose longer"),
    ):  # fmt: skip
        assert re.search(rf"loose / tight, {figure} +\d\.\d\d; {spread.format(low, way)}", text), figure


@pytest.mark.parametrize("value", ["-1", "x", "1001"])
def test_a_wrong_number_of_phases_is_a_usage_error(value: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", "submit_latency", f"--phases={value}"]) == 64
    assert "must be an integer from 0 to 1000" in capsys.readouterr().err


def test_no_phases_were_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", "submit_latency", *QUICK, "--phases", "0", "--json"]) == 0
    assert "phases" not in json.loads(capsys.readouterr().out)
    assert main(["compare", "hello", "--phases", "3"]) == 0
    assert "one phase" in capsys.readouterr().err
