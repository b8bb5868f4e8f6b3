"""The latency probe on real firmware: stamps in order, sums exact, figures that follow from the preset."""

import csv
import gc
import tracemalloc
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from shares import draws

from pyv_ext import elf
from pyv_native.spool import Spool
from pyv_npu.boot import find_program
from pyv_npu.config import load, presets
from pyv_npu.observe.latency import STAGES, spilled
from pyv_npu.observe.latency.rows import Reason, Submissions
from pyv_npu.observe.latency.table import Latency
from pyv_npu.platform import Platform
from pyv_npu.report.timeline import write_latency_csv
from pyv_npu.result import Result
from pyv_npu.workloads.firmware import run_program

BURST, PACED, INTERRUPTS, PREBUILT, TILES, BATCHES = 1, 2, 4, 8, 16, 32


def run(mode: str, preset: str = "soc-axi", args: dict[str, int] | None = None, **overrides: Any) -> Result[Any]:
    config = load(preset=preset, overrides={"npu.mode": mode, **overrides}).config
    return run_program(config, "submit_latency", {"n": 8, "tile": 16, **(args or {})})


def check(result: Result[Any]) -> None:
    """What holds for every submission of every run."""
    assert result.latency.submissions
    assert result.exit_code == 0, result.json["uart"]
    for submission in result.latency.submissions:
        stamps = [submission.t0, submission.t2, submission.t3, submission.t4]
        assert None not in stamps
        assert stamps == sorted(stamps)  # type: ignore[type-var]
        assert submission.t1 is not None and submission.t0 is not None and submission.t1 > submission.t0
        assert sum(submission.reasons.values()) == submission.span("t0", "t2")
        assert all(cycles > 0 for cycles in submission.reasons.values())
        if submission.t7 is not None:
            assert submission.t7 > submission.t4
        if submission.t5 is not None:
            assert submission.t5 >= submission.t4
        if submission.t6 is not None:
            assert submission.t7 is not None and submission.t5 <= submission.t6 < submission.t7


@pytest.mark.parametrize("mode", ["loose", "tight"])
@pytest.mark.parametrize("preset", presets.NAMES)
def test_the_message_takes_what_the_preset_says(preset: str, mode: str) -> None:
    result = run(mode, preset, {"phases": PACED, "gap": 20_000})
    check(result)
    timing, frontend = result.config.core.timing, result.config.npu.frontend
    for submission in result.latency.submissions:
        reasons = submission.reasons
        assert reasons.get(Reason.VALIDATE, 0) == frontend.validate
        assert reasons.get(Reason.FULL_WAIT, 0) == 0
        if mode == "tight":
            assert reasons.get(Reason.ISSUE, 0) == timing.custom
            assert reasons.get(Reason.FETCH, 0) == frontend.fetch_tight
            assert reasons.get(Reason.MMIO, 0) == 0
        else:
            assert reasons.get(Reason.BUS, 0) == timing.mmio_one_way
            assert reasons.get(Reason.FETCH, 0) == frontend.fetch_loose
            assert reasons[Reason.MMIO] == timing.mmio_write
            assert reasons[Reason.FENCE] == timing.fence
        assert reasons[Reason.DESCRIPTOR_STORE] == 16 * timing.store


@pytest.mark.parametrize("mode", ["loose", "tight"])
def test_an_interrupt_is_followed_to_its_handler(mode: str) -> None:
    result = run(mode, args={"phases": INTERRUPTS, "n": 30})
    check(result)
    assert all(submission.t5 is not None for submission in result.latency.submissions)
    assert sum(submission.t6 is not None for submission in result.latency.submissions) >= 10
    first = result.latency.submissions[0]
    assert first.t5 == first.t4
    assert first.t6 is not None and first.t4 is not None
    assert first.t6 - first.t4 >= result.config.core.timing.irq


def test_a_program_without_symbols_is_measured_from_its_first_store() -> None:
    program = elf.read_elf(find_program("submit_latency"))
    with_symbols = run("tight", args={"phases": PACED})
    bare = replace(program, symbols={}, functions=())
    config = load(overrides={"npu.mode": "tight"}).config
    result = run_program(config, bare, {"n": 8, "tile": 16, "phases": PACED})
    assert result.json["latency"]["t0_source"] == "first_store"
    assert with_symbols.json["latency"]["t0_source"] == "symbol"
    assert result.json["events_sha256"] == with_symbols.json["events_sha256"]
    for submission, named in zip(result.latency.submissions, with_symbols.latency.submissions, strict=True):
        assert submission.t2 == named.t2
        assert sum(submission.reasons.values()) == submission.span("t0", "t2")
    later = zip(result.latency.submissions[1:], with_symbols.latency.submissions[1:], strict=True)
    assert all(s.t0 >= n.t0 and s.t1 <= n.t1 for s, n in later)  # type: ignore[operator]


@pytest.mark.parametrize("mode", ["loose", "tight"])
def test_retries_and_full_queues_are_attributed(mode: str) -> None:
    result = run(
        mode,
        args={"phases": BURST, "n": 60, "burst": 0, "tile": 128},
        **{"npu.queue.size": 4, "npu.queue.tight_size": 4, "npu.te.rows": 8},
    )
    check(result)
    reasons = result.json["latency"]["reasons"]
    assert reasons["retry"] > 0
    assert reasons["full_wait"] > 0 or mode == "tight"


@pytest.mark.parametrize("mode", ["loose", "tight"])
def test_figures_are_those_of_latency_csv(mode: str, tmp_path: Path) -> None:
    """Recomputes n, percentiles, means and sums of reasons from the file, by NumPy's own order statistics."""
    result = run(mode, args={"phases": 15, "n": 110})
    write_latency_csv(tmp_path / "latency.csv", result.latency.submissions, result.core.program)
    lines = list(csv.DictReader((tmp_path / "latency.csv").open()))
    assert len(lines) == 440 and [row["number"] for row in lines] == [str(number) for number in range(440)]
    shown = result.json["latency"]
    for name, (first, last, prebuilt) in STAGES.items():
        spans = [
            int(row[last]) - int(row[first])
            for row in lines
            if row[first] and row[last] and (prebuilt is None or row["prebuilt"] == str(int(prebuilt)))
        ]
        stage = shown["stages"][name]
        if not spans:
            assert stage is None
            continue
        p50, p95, p99 = np.percentile(spans, (50, 95, 99), method="inverted_cdf").tolist()
        expected = {
            "n": len(spans), "p50": p50, "p95": p95, "p99": p99, "min": min(spans), "max": max(spans),
            "mean": round(sum(spans) / len(spans), 3),
        }  # fmt: skip
        assert {key: stage[key] for key in expected} == expected
    for key, prebuilt in (("reasons", "0"), ("reasons_prebuilt", "1")):
        chosen = [row for row in lines if row["prebuilt"] == prebuilt and row["t0"]]
        assert shown[key] == {reason: sum(int(row[reason]) for row in chosen) for reason in shown[key]}
        assert sum(shown[key].values()) == sum(int(row["t2"]) - int(row["t0"]) for row in chosen)


def test_chunks_of_submissions_are_one_file(tmp_path: Path) -> None:
    result = run("tight", args={"phases": 15, "n": 10})
    submissions = result.latency.submissions
    matrix = np.concatenate([*submissions.chunks()])
    parts = Submissions(lambda: [matrix[:7], matrix[7:7], matrix[7:]])
    write_latency_csv(tmp_path / "whole.csv", submissions, result.core.program)
    write_latency_csv(tmp_path / "parts.csv", parts, result.core.program)
    assert (tmp_path / "parts.csv").read_text() == (tmp_path / "whole.csv").read_text()
    for warmup in (0, 3, 7, 20, 50):
        whole, again = (Latency(each, 0, "symbol", warmup) for each in (Submissions(lambda: [matrix]), parts))
        assert again.to_json() == whole.to_json() and again.warmup == whole.warmup == min(warmup, 40)
        assert [*again.submissions] == [*whole.submissions] == [*submissions][warmup:]
        assert again.parts(10**6) == whole.parts(10**6)
        sites = [[(site, cycles.cdf()) for site, cycles in each.by_call_site()] for each in (again, whole)]
        assert sites[0] == sites[1]


@pytest.mark.parametrize("mode", ["loose", "tight"])
def test_commands_that_warm_up_are_in_no_figure(mode: str) -> None:
    result = run(mode, args={"phases": 5, "n": 6, "warmup": 4})
    latency = result.latency
    assert latency.warmup == 4 and len(latency.accepted) == 16
    assert [row.ticket for row in latency.submissions] == list(range(5, 17))
    shown = result.to_json()["latency"]
    assert (shown["n_warmup"], shown["n"]) == (4, 12)
    alone = run(mode, args={"phases": 0, "n": 6, "warmup": 4}).to_json()["latency"]
    assert (alone["n_warmup"], alone["n"], alone["stages"]["t_submit"]) == (4, 0, None)


def test_memory_does_not_grow_with_the_submissions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows, stamps and events of 1,500 more submissions leave less than 20 bytes each where buffers are small."""
    monkeypatch.setattr(Spool.__init__, "__defaults__", (0,))
    monkeypatch.setattr(spilled.Table.__init__, "__defaults__", (64,))
    platform = Platform(load().config, values=False)
    platform.load(find_program("submit_latency"), {"n": 1 << 20, "op": 0, "phases": BURST})
    counters, filters = (
        platform.npu.counters,
        [tracemalloc.Filter(True, f"*/{name}/*") for name in ("observe", "trace")],
    )
    tracemalloc.start()
    try:
        sizes = []
        for submissions in (1_000, 2_500):
            while counters.up_to_date().completed < submissions:
                platform.run(until=platform.cycle + 50_000)
            snapshot = tracemalloc.take_snapshot().filter_traces(filters)
            sizes.append(sum(trace.size for trace in snapshot.traces))
    finally:
        tracemalloc.stop()
    assert sizes[1] - sizes[0] < 30_000


def test_prebuilt_descriptors_have_a_line_of_their_own() -> None:
    result = run("tight", args={"phases": PACED | PREBUILT, "n": 20})
    stages = result.json["latency"]["stages"]
    assert stages["t_submit"]["n"] == stages["t_submit_prebuilt"]["n"] == 20
    assert stages["t_submit_prebuilt"]["p50"] < stages["t_submit"]["p50"]


@settings(max_examples=draws(15), suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(
    mode=st.sampled_from(["loose", "tight"]),
    preset=st.sampled_from(presets.NAMES),
    policy=st.sampled_from(["retry", "stall"]),
    size=st.sampled_from([2, 4, 16]),
    phases=st.integers(1, 63),
    gap=st.integers(1, 500),
    n=st.integers(1, 25),
    burst=st.integers(0, 20),
    batch=st.integers(1, 16),
    prefetch=st.integers(0, 4),
)
def test_reasons_add_up_for_any_load(mode: str, preset: str, policy: str, size: int, batch: int, **args: int) -> None:
    overrides = {
        "npu.queue.size": size,
        "npu.queue.tight_size": size,
        "npu.queue.full_policy": policy,
        "npu.te.rows": 16,
    }
    check(run(mode, preset, {"batch": min(batch, size), **args}, **overrides))


def test_descriptors_under_one_doorbell_share_its_end() -> None:
    args = {"phases": BATCHES, "batch": 4, "n": 12, "burst": 4}
    result = run("loose", args=args)
    check(result)
    waves = [result.latency.submissions[index : index + 4] for index in (0, 4, 8)]
    for wave in waves:
        assert len({submission.t1 for submission in wave}) == 1
        begins = [submission.t0 for submission in wave]
        assert begins == sorted(set(begins))  # type: ignore[type-var]
        batched = [submission.reasons.get(Reason.BATCH, 0) for submission in wave]
        assert batched == sorted(batched, reverse=True) and batched[0] > 0
        assert all(submission.reasons[Reason.MMIO] == 1 for submission in wave)
    single = run("tight", args=args)
    check(single)
    assert len({submission.t1 for submission in single.latency.submissions}) == 12


def test_a_batch_costs_one_way_to_the_device_for_all() -> None:
    """Loose: the core's share of a doorbell and a fence goes down with their number."""
    busy = []
    for batch in (1, 8):
        submissions = run("loose", args={"phases": BATCHES, "batch": batch, "n": 8, "burst": 8}).latency.submissions
        assert submissions[0].t0 is not None and submissions[-1].t1 is not None
        busy.append(submissions[-1].t1 - submissions[0].t0)
    assert busy[1] < busy[0]


def test_loads_that_run_ahead_hide_the_way_from_memory() -> None:
    cycles = []
    for prefetch in (0, 2):
        result = run("tight", args={"phases": TILES, "prefetch": prefetch, "n": 16, "tile": 64})
        check(result)
        done = [submission.t4 for submission in result.latency.submissions]
        cycles.append(max(done) - min(done))  # type: ignore[type-var, operator]
    assert cycles[1] < cycles[0]


def test_however_many_there_are_python_has_no_more_objects_to_look_through() -> None:
    found = []
    for n in (50, 50, 250):  # the first run makes what lasts
        platform = Platform(load(preset="soc-axi").config)
        platform.load(find_program("submit_latency"), {"n": n, "tile": 16})
        platform.run()
        assert len(platform.result().submissions) == 4 * n
        gc.collect()
        found.append(len(gc.get_objects()))
    assert found[2] - found[1] < 400  # of 800 submissions


def test_a_reset_begins_the_ring_anew() -> None:
    result = run_program(load(preset="soc-axi", overrides={"npu.mode": "loose"}).config, "fault_descriptor", {})
    assert result.exit_code == 0, result.json["uart"]
    assert result.latency.rejected == 0
    assert all(s.t0 is None or s.t0 < s.arrival < s.t2 for s in result.latency.accepted)
