"""Loose (ring and doorbell) against tight (custom instructions) at equal distances: the share of placement in the
difference of their median submission latency.

A preset places the device of loose mode behind a bus and that of tight mode beside the core. Two more runs exchange
the distances: loose as near as tight, and tight as far as loose.
"""

from typing import Any, NamedTuple

from pyv_ext.elf import Program
from pyv_npu.config import Config, with_values
from pyv_npu.result import Comparison, headline, stage_of
from pyv_npu.workloads.firmware import run_whole


class Distance(NamedTuple):
    """Core cycles between core and device."""

    there: int
    """Latency of a write or a custom instruction."""
    back: int
    """Latency of an answer."""
    fetch: int
    """Latency of the device's read of a descriptor."""


def distances(config: Config) -> dict[str, Distance]:
    """Return the distance of the device by mode."""
    timing, frontend = config.core.timing, config.npu.frontend
    back = max(0, timing.mmio_read - timing.mmio_one_way)
    return {
        "loose": Distance(max(1, timing.mmio_one_way), back, frontend.fetch_loose),  # an instruction takes a cycle
        "tight": Distance(timing.custom, timing.custom_response, frontend.fetch_tight),
    }


def with_distance(config: Config, mode: str, distance: Distance) -> Config:
    """Return a configuration of a mode with its device at a distance."""
    out, back, fetch = distance
    values = {
        "core.timing.mmio_one_way": out,
        "core.timing.mmio_read": out + back,
        "npu.frontend.fetch_loose": fetch,
    }
    if mode == "tight":
        values = {"core.timing.custom": out, "core.timing.custom_response": back, "npu.frontend.fetch_tight": fetch}
    return with_values(config, {**values, "npu.mode": mode})


def run_placement(config: Config, program: Program, comparison: Comparison) -> dict[str, Any] | None:
    """Return the object `placement` of the JSON result; None if nothing was submitted or the distances are equal.
    KeyboardInterrupt on Ctrl-C."""
    runs = {mode: run.json for mode, run in comparison.runs.items()}
    stage = headline(runs)
    medians = {mode: stage_of(run, stage).get("p50") for mode, run in runs.items()}
    near, far = distances(config)["tight"], distances(config)["loose"]
    if None in medians.values() or near == far:
        return None
    loose = _median(config, program, "loose", near, stage)
    tight = _median(config, program, "tight", far, stage)
    return {
        "stage": stage,
        "preset": medians,
        "near": {**near._asdict(), "loose": loose, "tight": medians["tight"]},
        "far": {**far._asdict(), "loose": medians["loose"], "tight": tight},
    }


def _median(config: Config, program: Program, mode: str, distance: Distance, stage: str) -> float | None:
    """Return the P50 of a stage in a run of a mode with its device at a distance."""
    return stage_of(run_whole(with_distance(config, mode, distance), program).json, stage).get("p50")
