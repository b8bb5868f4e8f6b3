"""How often Python is called in the core's part of a submission: a program that submits without pause, or paced."""

from pathlib import Path

import pytest
from work_count import calls_within

import pyv_ext
from pyv_npu.boot import find_program
from pyv_npu.config import load
from pyv_npu.platform import Platform

CORE = f"{Path(pyv_ext.__file__).parent}/"
DEVICES = f"{CORE}devices/"
BURST, PACED, INTERRUPTS, PREBUILT = 1, 2, 4, 8
MOST = {
    ("loose", BURST): 11.1, ("loose", PACED): 12.9, ("loose", INTERRUPTS): 11.3, ("loose", PREBUILT): 10.9,
    ("tight", BURST): 5.7, ("tight", PACED): 7.6, ("tight", INTERRUPTS): 11.1, ("tight", PREBUILT): 5.7,
}  # fmt: skip
"""Calls of Python functions, 5 % above what they were on November 30, 2026: events of which the NPU decides, and
doorbells, after which the core log is read."""


def of_the_core(file: str) -> bool:
    return file.startswith(CORE) and not file.startswith(DEVICES)


@pytest.mark.parametrize(("mode", "phase"), MOST, ids=lambda value: str(value))
def test_a_submission_needs_few_calls(mode: str, phase: int) -> None:
    platform = Platform(load([], "soc-axi", {"core.engine": "fast", "npu.mode": mode}).config)
    platform.load(find_program("submit_latency"), {"n": 1 << 30, "phases": phase})
    platform.run(until=400_000)
    before = platform.npu.counters.completed
    counted = calls_within(of_the_core, lambda: platform.run(until=platform.hart.cycle + 100_000))
    submissions = platform.npu.counters.completed - before
    assert submissions >= 200
    assert counted / submissions <= MOST[mode, phase]
