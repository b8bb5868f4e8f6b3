"""The files for Konata and for viewers of waveforms, read back by other readers and held against events and stamps."""

from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from kanata import Row, read
from shares import slow

from npu_device.trace.events import Cause, Kind, What
from npu_device.trace.records import joined
from pyv_ext.engines.core import Stop
from pyv_npu.config import load
from pyv_npu.observe.instruments import Instruments
from pyv_npu.observe.latency.rows import Submission
from pyv_npu.platform import Platform
from pyv_npu.result import Result
from pyv_npu.traces.konata import write_konata
from pyv_npu.traces.vcd_file import write_vcd
from pyv_npu.workloads.firmware import run_program
from pyv_npu.workloads.workload import Session

RUNS = {
    "loose": ("loose", "submit_latency", {"n": 12, "tile": 16, "phases": 1 | 4 | 16 | 32, "batch": 4}, {}),
    "tight": ("tight", "submit_latency", {"n": 12, "tile": 16, "phases": 1 | 4 | 16 | 32}, {"npu.spm.banks": 2}),
    "interrupts": ("loose", "irq_completion", {}, {}),
    "traps": ("loose", "fault_illegal", {}, {}),
}


@dataclass(frozen=True)
class Traced:
    """A run, and what its files say."""

    result: Result[Any]
    commits: list[int]
    """The address of each instruction that retired, from the log that is compared with Spike's."""
    rows: list[Row]
    signals: dict[str, list[tuple[int, str]]]
    """Signal -> (time, value) at each change, as another package reads them; states, which it does not read."""

    def of_thread(self, thread: int) -> list[Row]:
        return [row for row in self.rows if row.thread == thread]


@pytest.fixture(scope="module", params=["tight", "traps", *slow("loose", "interrupts")])
def traced(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Traced:
    mode, program, arguments, keys = RUNS[request.param]
    folder = tmp_path_factory.mktemp("traces")
    watch = Instruments(commits=folder / "commits.log", instructions=True)

    def drive(platform: Platform) -> Stop:
        with watch.on(platform):
            return platform.run()

    config = load(overrides={"npu.mode": mode, **keys}).config
    result = run_program(config, program, arguments, Session(drive=drive))
    assert watch.log is not None
    write_konata(folder, result, watch.log)
    write_vcd(folder, result, watch.log)
    committed = [int(line.split()[3], 16) for line in (folder / "commits.log").read_text().splitlines()]
    return Traced(result, committed, read((folder / "trace.kanata").read_text()), dump(folder / "trace.vcd"))


def dump(path: Path) -> dict[str, list[tuple[int, str]]]:
    vcdvcd = pytest.importorskip("vcdvcd", reason="pip install vcdvcd")
    found = vcdvcd.VCDVCD(str(path))
    assert found.timescale["timescale"] * 10**9 == 1
    signals = {name.partition("[")[0]: found[name].tv for name in found.signals}
    states = {found.references_to_ids[name]: signals[name] for name in signals if name.endswith(".state")}
    now = 0
    for line in path.read_text().partition("$enddefinitions $end")[2].splitlines():
        if line.startswith("#"):
            now = int(line[1:])
        elif line.startswith("s"):
            state, code = line[1:].split()
            if code in states:
                states[code].append((now, state))
    return signals


def test_konata_has_each_instruction_in_its_cycles(traced: Traced) -> None:
    result, rows = traced.result, traced.of_thread(0)
    retired = [row for row in rows if not row.flushed]
    assert [int(row.label.partition(":")[0], 16) for row in retired] == traced.commits
    assert len(retired) == result.json["instret"]
    stages = [stage for row in rows for stage in row.stages]
    assert all(before[2] <= after[1] for before, after in pairwise(stages))
    assert {name for name, _, _ in stages} <= {"X", "T"}
    assert sum(end - start for _, start, end in stages) <= result.json["cycles"]
    assert not any("\t" in row.label or not row.label for row in rows)


def named(stages: list[tuple[str, int, int]]) -> dict[str, tuple[int, int]]:
    assert len({name for name, _, _ in stages}) == len(stages)
    return {name: (start, end) for name, start, end in stages}


def test_konata_has_the_stamps_of_each_submission(traced: Traced) -> None:
    result, everything = traced.result, traced.rows
    submissions = list(result.latency.accepted)
    rows = {int(row.label.split(":")[0].removeprefix("ticket ")): row for row in everything if row.thread == 1}
    assert len(rows) == len(submissions)
    for submission in submissions:
        row = rows[submission.ticket]
        stages = named(row.stages)
        assert row.flushed == bool(submission.error)
        check_stages(submission, stages)
        assert [name for name in stages if name in ("fetch", "validate")] == ["fetch", "validate"]
        (producer,) = row.producers
        ((name, start, end),) = everything[producer].stages
        assert name == "X"
        assert start <= submission.leave <= end
        word = everything[producer].label.split()[1]
        assert word == "enqcmd_t" if submission.tight else word in ("sw", "c.sw")


def check_stages(submission: Submission, stages: dict[str, tuple[int, int]]) -> None:
    """A stage reaches from stamp to stamp; one that took no cycle is not there."""
    for name, first, last in (
        ("submit", submission.t0, submission.leave),
        ("send", submission.leave, submission.arrival),
        ("queue", submission.t2, submission.t3),
        ("execute", submission.t3, submission.t4),
        ("notify", submission.t4, submission.t7),
    ):
        if first is not None and last is not None:
            assert stages.get(name, (first, first)) == (first, last), name
    assert stages["validate"][1] == submission.t2


def levels(changes: list[tuple[int, str]]) -> list[tuple[int, int, str]]:
    """(from, to, value) of each value but the last."""
    return [(start, end, value) for (start, value), (end, _) in pairwise(changes)]


def test_vcd_follows_the_program_counter(traced: Traced) -> None:
    addresses = [int(value, 2) for _, value in traced.signals["core.pc"]]
    expected = traced.commits
    steps = [address for at, address in enumerate(expected) if at == 0 or expected[at - 1] != address]
    trapped = [row for row in traced.of_thread(0) if row.flushed]
    if not trapped:
        assert addresses == steps
    assert set(addresses) == set(steps) | {int(row.label.partition(":")[0], 16) for row in trapped}
    traps = [(start, end) for start, end, value in levels(traced.signals["core.trap"]) if value == "1"]
    assert traps == [stage[1:] for row in trapped for stage in row.stages]


def test_vcd_shows_what_each_unit_did(traced: Traced) -> None:
    result, signals = traced.result, traced.signals
    records = joined(result.events.batches())  # type: ignore[arg-type]
    for kind, name in ((Kind.TE, "te"), (Kind.VE, "ve"), (Kind.DMA, "dma")):
        mine = records[records["unit"] >> 8 == kind]
        for unit in set((mine["unit"] & 255).tolist()):
            events = mine[mine["unit"] & 255 == unit]
            expected = set[int]()
            begin = 0
            for cycle, what in zip(events["cycle"].tolist(), events["what"].tolist(), strict=True):
                if what in (What.TE_BEGIN, What.VE_BEGIN, What.DMA_BEGIN):
                    begin = cycle
                elif what in (What.TE_END, What.VE_END, What.DMA_END):
                    expected |= set(range(begin, cycle))
            busy = {cycle for start, end, value in levels(signals[f"npu.{name}{unit}.busy"]) if value == "1"
                    for cycle in range(start, end)}  # fmt: skip
            state = {cycle for start, end, value in levels(signals[f"npu.{name}{unit}.state"]) if value != "idle"
                     for cycle in range(start, end)}  # fmt: skip
            ticket = {cycle for start, end, value in levels(signals[f"npu.{name}{unit}.ticket"]) if int(value, 2)
                      for cycle in range(start, end)}  # fmt: skip
            assert busy == expected == state == ticket


def test_vcd_adds_up_queue_and_conflicts(traced: Traced) -> None:
    """Areas below the curves: cycles in the queue, and cycles by which conflicts lengthened steps."""
    result, signals = traced.result, traced.signals
    records = joined(result.events.batches())  # type: ignore[arg-type]

    def area(name: str) -> int:
        return sum((end - start) * int(value, 2) for start, end, value in levels(signals[name]))

    waited = sum((s.t3 if s.t3 is not None else s.t4) - s.t2 for s in result.latency.accepted)  # type: ignore[operator]
    assert area("npu.queue_depth") == waited
    stalls = records[(records["what"] == What.STALL) & (records["unit"] >> 8 == Kind.BANK)]
    conflicts = int(stalls["bytes"][stalls["aux"] == Cause.BANK_CONFLICT].sum())
    assert area("npu.bank_conflicts") == conflicts
    banks = [name for name in signals if name.startswith("npu.bank") and name.endswith(".conflicts")]
    assert sum(map(area, banks)) == conflicts
