"""Load on one firmware: arrivals, full-queue policies with back-off, streams, background traffic, interrupts."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from shares import draws

from pyv_npu.config import load, presets
from pyv_npu.config.tree import LoadConfig
from pyv_npu.errors import UsageError
from pyv_npu.observe.latency.arrivals import bursty, distances, recorded
from pyv_npu.observe.latency.rows import Reason
from pyv_npu.result import Result
from pyv_npu.workloads.firmware import run_program

BUSY = {"npu.te.rows": 1, "npu.te.columns": 8, "npu.te.count": 1}
"""A slow engine: the queue fills."""


def run(mode: str, args: dict[str, int] | None = None, preset: str = "soc-axi", **overrides: Any) -> Result[Any]:
    config = load(preset=preset, overrides={"npu.mode": mode, "run.max_cycles": 10_000_000, **overrides}).config
    return run_program(config, "submit_load", {"n": 24, "tile": 16, **(args or {})})


def check(result: Result[Any]) -> None:
    assert result.exit_code == 0, result.json["uart"]
    for submission in result.latency.submissions:
        if submission.t0 is not None:  # background transfers have none
            assert sum(submission.reasons.values()) == submission.span("t0", "t2")
            assert all(cycles > 0 for cycles in submission.reasons.values())


# -- arrivals --------------------------------------------------------------------------------------------------


def test_periodic_arrivals_are_exact() -> None:
    assert distances("periodic", 100, 2, 5, seed=1) == [100, 100, 200, 200, 300]


def test_poisson_arrivals_have_the_mean_and_the_spread_of_their_process() -> None:
    made = distances("poisson", 1000, 1, 5000, seed=7)
    assert made == distances("poisson", 1000, 1, 5000, seed=7) != distances("poisson", 1000, 1, 5000, seed=8)
    gaps = [b - a for a, b in zip([0, *made], made, strict=False)]
    mean = sum(gaps) / len(gaps)
    assert mean == pytest.approx(1000, rel=0.05)
    assert sum((gap - mean) ** 2 for gap in gaps) / len(gaps) == pytest.approx(mean**2, rel=0.15)


@pytest.mark.parametrize("mode", ["loose", "tight"])
def test_response_is_arrival_to_accepted(mode: str) -> None:
    result = run(mode, **{"load.arrivals": "poisson", "load.interval": 300, "load.count": 120})
    check(result)
    stages = result.json["latency"]["stages"]
    assert stages["response"]["n"] == stages["arrival_wait"]["n"] == 120
    for submission in result.latency.submissions:
        assert submission.t_arr is not None and submission.t0 is not None and submission.t_arr <= submission.t0
        assert submission.span("t_arr", "t2") == submission.span("t_arr", "t0") + submission.span("t0", "t2")  # type: ignore[operator]
    arrivals = [submission.t_arr for submission in result.latency.submissions]
    made = distances("poisson", 300, 1, 120, seed=1)
    assert [arrival - arrivals[0] + made[0] for arrival in arrivals] == made  # type: ignore[operator]


def test_a_burst_of_arrivals_waits_for_itself_and_a_closed_loop_hides_it() -> None:
    result = run("tight", **{"load.arrivals": "periodic", "load.interval": 5000, "load.group": 8, "load.count": 32})
    waits = [submission.span("t_arr", "t0") for submission in result.latency.submissions]
    first = waits[:8]
    assert first == sorted(first) and first[7] > 6 * first[1] - 6 * first[0] > 0  # type: ignore[operator, type-var]
    stages = result.json["latency"]["stages"]
    assert stages["response"]["max"] > 3 * stages["t_submit"]["max"]
    assert run("tight").json["latency"]["stages"]["response"] is None


def test_arrivals_of_dropped_commands_are_theirs() -> None:
    result = run("tight", **BUSY, **{"load.arrivals": "periodic", "load.interval": 150, "load.count": 60,
                                     "npu.queue.tight_size": 2, "npu.queue.full_policy": "drop"})  # fmt: skip
    assert result.latency.rejected > 5
    assert result.json["latency"]["stages"]["response"]["n"] == 60 - result.latency.rejected
    for submission in result.latency.submissions:
        assert submission.t0 - submission.t_arr < 2000  # type: ignore[operator]


def test_bursts_keep_the_mean_and_crowd_arrivals() -> None:
    """Counts in windows: variance over mean is 1 for Poisson, and far above for bursts."""
    of = LoadConfig(arrivals="mmpp", interval=100, count=40_000, burst_ratio=20, burst_percent=10, burst_cycles=5000)
    found = bursty(of, 1)
    assert found == sorted(found)
    assert found == bursty(of, 1) != bursty(of, 2)
    assert 0.85 < found[-1] / (100 * len(found)) < 1.15

    def dispersion(cycles: list[int]) -> float:
        counts = np.bincount(np.array(cycles) // 2000)
        return float(counts.var() / counts.mean())

    assert dispersion(found) > 10
    assert 0.8 < dispersion(distances("poisson", 100, 1, 40_000, 1)) < 1.2
    assert 0.8 < dispersion(bursty(replace(of, burst_ratio=1), 1)) < 1.2


def test_recorded_arrivals_are_those_of_the_file(tmp_path: Path) -> None:
    file = tmp_path / "arrivals.txt"
    file.write_text("0\n7\n7\n4000\n", encoding="utf-8")
    assert recorded(str(file), 4) == [0, 7, 7, 4000]
    result = run("tight", **{"load.arrivals": "recorded", "load.file": str(file), "load.count": 4})
    arrivals = [submission.t_arr for submission in result.latency.submissions]
    assert [arrival - arrivals[0] for arrival in arrivals] == [0, 7, 7, 4000]  # type: ignore[operator]


@pytest.mark.parametrize(
    ("text", "message"),
    [("1\nx\n", "arrival 2 is 'x'"), ("5\n4\n", "arrival 2 is '4'"), (f"{1 << 31}\n1", "below 2^31"),
     ("1\n", "load.count = 2: .* has 1 arrivals"), ("-1\n2", "arrival 1 is '-1'"),
     ("9" * 5000, "arrival 1 is '9"), (None, "load.file = ")],
)  # fmt: skip
def test_a_file_that_holds_no_arrivals_is_refused(tmp_path: Path, text: str | None, message: str) -> None:
    file = tmp_path / "arrivals.txt"
    if text is not None:
        file.write_text(text, encoding="utf-8")
    with pytest.raises(UsageError, match=re.escape(message) if ".*" not in message else message):
        recorded(str(file), 2)
    with pytest.raises(UsageError, match=r"load\.file names no file"):
        recorded("", 2)


@pytest.mark.parametrize(
    ("program", "overrides", "message"),
    [
        ("hello", {}, "load.arrivals = periodic: hello has no symbol npu_arrivals; run submit_load"),
        ("submit_load", {"load.count": 10_000}, "load.count = 10000: npu_arrivals of submit_load has room for 8192"),
        ("submit_load", {"load.interval": 1 << 30}, "arrives after 2^31 cycles; shorten it"),
    ],
)
def test_impossible_arrivals_are_refused(program: str, overrides: dict[str, Any], message: str) -> None:
    config = load(overrides={"load.arrivals": "periodic", **overrides}).config
    with pytest.raises(UsageError) as caught:
        run_program(config, program)
    assert message in str(caught.value)


# -- full queues -----------------------------------------------------------------------------------------------


def test_policies_side_by_side() -> None:
    found = {}
    for policy in ("retry", "stall", "trap", "drop"):
        result = run(
            "tight",
            {"window": 0},
            **BUSY,
            **{"npu.queue.size": 2, "npu.queue.tight_size": 2, "npu.queue.full_policy": policy},
        )
        check(result)
        found[policy] = result
    reasons = {policy: result.json["latency"]["reasons"] for policy, result in found.items()}
    assert reasons["retry"]["retry"] > 0
    assert reasons["stall"]["issue"] > 0 and reasons["stall"]["full_wait"] + reasons["stall"]["retry"] >= 0
    assert reasons["trap"]["interrupted"] > 0 and reasons["retry"]["interrupted"] == 0
    assert found["drop"].latency.rejected > 0
    assert found["drop"].json["latency"]["n"] + found["drop"].latency.rejected == 24
    assert all(found[policy].latency.rejected == 0 for policy in ("retry", "stall", "trap"))
    assert all(found[policy].json["latency"]["n"] == 24 for policy in ("retry", "stall", "trap"))


@pytest.mark.parametrize("mode", ["loose", "tight"])
def test_back_off_trades_attempts_for_waiting(mode: str) -> None:
    eager, backing_off = (
        run(
            mode,
            {"window": 0, "backoff": backoff},
            **BUSY,
            **{"npu.queue.size": 2, "npu.queue.tight_size": 2, "npu.queue.command_size": 2},
        )
        for backoff in (0, 2000)
    )
    for result in (eager, backing_off):
        check(result)
        assert result.latency.rejected == 0 and result.json["latency"]["n"] == 24
        assert result.json["latency"]["reasons"]["retry"] > 0
    if mode == "tight":
        assert backing_off.json["npu"]["rejected"] < eager.json["npu"]["rejected"]
    worst = [max(s.span("t0", "t2") for s in result.latency.submissions) for result in (eager, backing_off)]  # type: ignore[type-var]
    assert worst[0] < worst[1]  # type: ignore[operator]


# -- other load ------------------------------------------------------------------------------------------------


def test_background_transfers_are_not_measured() -> None:
    alone, loaded = (run("loose", {"background": background}) for background in (0, 32_768))
    check(loaded)
    assert alone.json["latency"]["n"] == loaded.json["latency"]["n"] == 24
    fetched = 64 * loaded.json["npu"]["accepted"]
    assert loaded.json["npu"]["dram_bytes_read"] == 24 * 32_768 + fetched
    assert sum(loaded.json["npu"]["dma_busy"]) >= 24 * 32_768 // 128  # bytes of a channel's cycle
    assert loaded.json["cycles"] > alone.json["cycles"]


@pytest.mark.parametrize("mode", ["loose", "tight"])
def test_interrupts_hit_the_submit_path(mode: str) -> None:
    result = run(mode, {"interrupts": 1, "window": 0, "n": 60}, **BUSY)
    check(result)
    assert any(submission.reasons.get(Reason.INTERRUPTED) for submission in result.latency.submissions)


def test_commands_take_turns_in_streams() -> None:
    result = run("tight", {"streams": 3})
    assert sorted(result.core.order) == [0, 1, 2]
    assert all(count == 8 for count, _ in result.core.order.values())


@settings(max_examples=draws(12), suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(
    mode=st.sampled_from(["loose", "tight"]),
    preset=st.sampled_from(presets.NAMES),
    policy=st.sampled_from(["retry", "stall", "trap", "drop"]),
    size=st.sampled_from([2, 8]),
    arrivals=st.sampled_from(["none", "periodic", "poisson"]),
    interval=st.integers(1, 600),
    group=st.integers(1, 5),
    backoff=st.sampled_from([0, 70, 900]),
    background=st.sampled_from([0, 64, 4096]),
    interrupts=st.integers(0, 1),
    window=st.sampled_from([0, 1, 5]),
    streams=st.integers(1, 4),
)
def test_reasons_add_up_for_any_load_policy_and_preset(
    mode: str, preset: str, policy: str, size: int, arrivals: str, interval: int, group: int, **args: int
) -> None:
    check(run(mode, args, preset, **BUSY, **{
        "npu.queue.size": size, "npu.queue.tight_size": size, "npu.queue.full_policy": policy,
        "load.arrivals": arrivals,
        "load.interval": interval, "load.group": group, "load.count": 24,
    }))  # fmt: skip
