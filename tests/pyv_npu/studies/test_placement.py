"""The device at equal distances in both modes: what remains of the difference is the interface."""

import json
from typing import Any

import pytest

from pyv_npu.cli import main

SHORT = ["--arg", "n=10", "--arg", "phases=1", "--phases", "0"]


def compared(capsys: pytest.CaptureFixture[str], *options: str) -> Any:
    assert main(["compare", "submit_latency", *SHORT, *options, "--json"]) == 0
    return json.loads(capsys.readouterr().out).get("placement")


def test_17_of_128_cycles_remain_at_equal_distances(capsys: pytest.CaptureFixture[str]) -> None:
    assert compared(capsys) == {
        "stage": "t_submit",
        "preset": {"loose": 167, "tight": 39},
        "near": {"there": 1, "back": 4, "fetch": 8, "loose": 56, "tight": 39},
        "far": {"there": 60, "back": 60, "fetch": 60, "loose": 167, "tight": 150},
    }


def test_the_rows_stand_beside_the_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", "submit_latency", *SHORT]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "near: loose as tight 1 4 8 56 39 17" in text
    assert "far: tight as loose 60 60 60 167 150 17" in text
    assert "Of 128 cycles of difference 17 remain with both near, 17 with both far" in text


def test_no_rows_where_distances_are_equal(capsys: pytest.CaptureFixture[str]) -> None:
    equal = ["core.timing.mmio_one_way=1", "core.timing.mmio_read=5", "npu.frontend.fetch_loose=8"]
    assert compared(capsys, *(f"--set={value}" for value in equal)) is None


def test_no_rows_where_nothing_is_submitted(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", "hello", "--json"]) == 0
    assert "placement" not in json.loads(capsys.readouterr().out)
