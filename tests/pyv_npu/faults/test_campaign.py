"""Campaigns: many runs with one drawn fault each, from snapshots of one machine."""

import html
import json
import re
import shlex
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyv_npu.cli.main import main
from pyv_npu.cli.shared.output import write_file
from pyv_npu.config import load
from pyv_npu.errors import UsageError
from pyv_npu.faults.plan import Fault, make_fault, read_plan
from pyv_npu.studies.campaign import Campaign, interval, rows, run_campaign, to_json
from pyv_npu.studies.fault_outcomes import DRIVER_TIMEOUT, Outcome, evidence_of, judge
from pyv_npu.workloads.firmware import Firmware, run_program
from pyv_npu.workloads.workload import Session

FAULTS = Path(__file__).resolve().parents[3] / "pyv_npu" / "examples" / "campaign.yaml"
ARGS = {"run.args.n": 17, "run.args.phases": 31, "run.args.tile": 16}
NEVER_A_HANG = (
    "interrupt_",
    "doorbell_",
    "dma_",
    "unit_stuck",
    "queue_full",
    "status_lost",
    "dram_slow",
    "clock_ratio",
)


def campaign(mode: str, count: int, plan: tuple[Fault, ...] = (), **more: object) -> Campaign:
    values = {"npu.mode": mode, "driver.timeout": DRIVER_TIMEOUT, **ARGS, **more}
    config = load([], None, values).config
    prepared = Firmware("submit_latency").prepare(config)
    return run_campaign(prepared, config, plan or read_plan(FAULTS, drawn=True), count, 7)


@pytest.mark.parametrize("mode", ["loose", "tight"])
def test_a_driver_with_a_time_out_hangs_for_no_lost_or_late_thing(mode: str) -> None:
    plan = tuple(one for one in read_plan(FAULTS, drawn=True) if one.do.startswith(NEVER_A_HANG))
    found = campaign(mode, 14, plan)
    assert len(found.counted) == 14
    assert found.total()[Outcome.HANG] == found.total()[Outcome.CRASH] == 0
    assert {run.fault.do for run in found.runs if run.verdict.outcome is Outcome.RECOVERED} >= {
        "interrupt_lost", "dma_error", "unit_stuck"
    }  # fmt: skip


def test_equal_seeds_draw_equal_faults_and_each_run_can_be_repeated_alone() -> None:
    plan = tuple(
        one for one in read_plan(FAULTS, drawn=True) if one.do in ("doorbell_lost", "flip_memory", "dma_error")
    )
    first, second = (campaign("loose", 3, plan) for _ in range(2))
    assert list(rows(first)) == list(rows(second))
    for run in first.runs:
        config = load([], None, {"npu.mode": "loose", "driver.timeout": DRIVER_TIMEOUT, **ARGS}).config
        reference, alone = (
            run_program(config, "submit_latency", config.run.args, Session(faults=faults))
            for faults in ((), (run.fault,))
        )
        assert judge(evidence_of(reference), evidence_of(alone)) == run.verdict
        assert alone.core is not None and alone.core.record is not None
        assert alone.core.record.injected[0].fired[0].cycle == run.acted


@given(st.integers(0, 500), st.integers(1, 500))
def test_intervals_hold_the_share(hits: int, count: int) -> None:
    low, high = interval(min(hits, count), count)
    assert low + 1e-12 >= 0 and low - 1e-12 <= min(hits, count) / count <= high + 1e-12 and high <= 1 + 1e-12


def test_the_command_counts_in_both_modes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    line = [
        "campaign",
        str(FAULTS),
        "-n",
        "10",
        "--arg",
        "n=4",
        "--arg",
        "tile=16",
        "--csv",
        str(tmp_path / "runs.csv"),
    ]
    assert main([*line, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["program"] == "submit_latency" and set(found["modes"]) == {"loose", "tight"}
    for mode in found["modes"].values():
        assert mode["n"] + mode["n_without_effect"] == 10 == len(mode["runs"])
        acted = Counter(run["outcome"] for run in mode["runs"] if run["acted"] is not None)
        assert {outcome: mode["total"][outcome]["n"] for outcome in mode["total"]} == {
            outcome.value: acted[outcome.value] for outcome in Outcome
        }
    assert len((tmp_path / "runs.csv").read_text().splitlines()) == 1 + 2 * 10
    assert main(["campaign", str(FAULTS), "-n", "0"]) == 64
    assert main(["campaign", str(FAULTS), "--timing-only"]) == 64
    assert "--timing-only: what a fault leads to shows in results" in capsys.readouterr().err
    assert main(["campaign", str(FAULTS), "--max-cycles", "5"]) == 64
    capsys.readouterr()
    assert main(["campaign", str(FAULTS), "mlp", "--sim-level", "IA_TIMING"]) == 64
    assert "campaign: IA_TIMING has no core" in capsys.readouterr().err


def test_a_row_of_the_page_leads_to_a_run_by_itself(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "out"
    line = ["campaign", str(FAULTS), "-n44", "--arg=n=8", "--mode", "loose", "--arg", "tile=16", "-o", str(folder)]
    assert main([*line, "--json"]) == 0
    captured = capsys.readouterr()
    runs = json.loads(captured.out)["modes"]["loose"]["runs"]
    assert str(folder / "report.html") in captured.err
    text = html.unescape((folder / "report.html").read_text(encoding="utf-8"))
    links = re.findall(r'<a href="(faults/[^"]+)">', text)
    assert len(links) == len([run for run in runs if run["acted"] is not None]) > 30
    assert all(len(read_plan(folder / link)) == 1 for link in links)
    shown = dict(re.findall(r'data-figure="loose\.(\d+)\.outcome">([^<]+)</td>', text))
    assert shown == {str(run["run"]): run["outcome"] for run in runs if run["acted"] is not None}
    (command,) = re.findall(r"where the campaign was run: pyv-npu (run .*) --report DIR", text)
    for outcome in ("recovered", "detected"):
        run = next(run for run in runs if run["outcome"] == outcome)
        assert main([*shlex.split(command.replace("loose-N", f"loose-{run['run']}")), "--json"]) in (0, 1)
        found = json.loads(capsys.readouterr().out)["faults"]
        assert (found["outcome"], found["cycles_lost"]) == (outcome, run["cycles_lost"])
    assert main(["campaign", str(FAULTS), "-n", "1", "--mode", "tight", "--arg", "n=8", "-o", str(folder)]) == 0
    assert [path.name for path in (folder / "faults").iterdir()] == ["tight-0.yaml"], "the earlier campaign is gone"
    (tmp_path / "mine").write_text("")
    assert main(["campaign", str(FAULTS), "-n", "1", "-o", str(tmp_path)]) == 64
    assert "which is not of a campaign; name another folder" in capsys.readouterr().err


def test_places_that_cannot_be_written_are_refused_before_the_work(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pyv_npu.studies.campaign.run_campaign", lambda *args: pytest.fail("it has begun"))
    nowhere = tmp_path / "no" / "runs.csv"
    assert main(["campaign", str(FAULTS), "--csv", str(nowhere)]) == 64
    assert capsys.readouterr().err.endswith(f"--csv {nowhere}: No such file or directory: choose another place\n")
    assert main(["campaign", str(FAULTS), "--csv", str(tmp_path)]) == 64
    assert f"--csv {tmp_path}: Is a directory: choose another place" in capsys.readouterr().err
    file = tmp_path / "file"
    file.write_text("kept")
    assert main(["campaign", str(FAULTS), "-o", str(file / "out")]) != 0
    assert "Not a directory" in capsys.readouterr().err
    assert main(["campaign", str(FAULTS), "--csv", str(file), "--max-cycles", "5"]) == 64
    assert file.read_text() == "kept" and [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_full_disk_is_one_line_with_the_option() -> None:
    with pytest.raises(UsageError, match=r"^--csv /dev/full: No space left on device: choose another place$"):
        write_file(Path("/dev/full"), "--csv", "a line")


def test_json_has_every_run() -> None:
    found = campaign("tight", 5)
    assert [run["run"] for run in to_json([found])["tight"]["runs"]] == list(range(5))


@pytest.mark.nightly
@pytest.mark.parametrize("mode", ["loose", "tight"])
def test_a_long_campaign(mode: str) -> None:
    found = campaign(mode, 1000)
    hung = {run.fault.do for run in found.runs if run.verdict.outcome is Outcome.HANG}
    assert not {do for do in hung if do.startswith(NEVER_A_HANG)}, hung


@pytest.mark.parametrize(
    ("program", "mode", "do", "cycle"),
    [
        ("fault_timeout", "loose", "doorbell_lost", 22_780),  # a wait with a limit of 67 million cycles
        ("fault_timeout", "tight", "unit_stuck", 79_000),  # TWAIT without a limit
        ("fault_queue_full", "loose", "unit_stuck", 288_000),  # after waits that had become long
        ("fault_queue_full", "tight", "unit_stuck", 157_000),  # ENQCMD_T that stalls
        ("fault_descriptor", "loose", "doorbell_lost", 457_000),
    ],
)
def test_waits_of_test_programs_end_too(program: str, mode: str, do: str, cycle: int) -> None:
    config = load([], None, {"npu.mode": mode, "driver.timeout": DRIVER_TIMEOUT}).config
    fault = make_fault({"do": do, "at": {"cycle": cycle}} | ({"cycles": 0} if do == "unit_stuck" else {}))
    (run,) = run_campaign(Firmware(program).prepare(config), config, (fault,), 1, 1).counted
    assert run.verdict.outcome in (Outcome.RECOVERED, Outcome.DETECTED) and "time-out" in run.verdict.detected_by


QUIET = ("interrupt_lost", "interrupt_late", "doorbell_lost", "doorbell_late", "dma_error", "dma_late", "queue_full")
FAULT_TESTS = ("fault_descriptor", "fault_doorbell", "fault_queue_full", "fault_timeout")
PROGRAMS = (("gemm", {}), ("irq_completion", {}), ("submit_load", {"n": 60, "background": 4096, "interrupts": 1}))


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["loose", "tight"])
@pytest.mark.parametrize("program", FAULT_TESTS)
def test_no_test_program_hangs(program: str, mode: str) -> None:
    config = load([], None, {"npu.mode": mode, "driver.timeout": DRIVER_TIMEOUT}).config
    plan = tuple(one for one in read_plan(FAULTS, drawn=True) if one.do.startswith(NEVER_A_HANG))
    found = run_campaign(Firmware(program).prepare(config), config, plan, 80, 1)
    assert found.total()[Outcome.HANG] == found.total()[Outcome.CRASH] == 0


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["loose", "tight"])
@pytest.mark.parametrize(("program", "args"), PROGRAMS, ids=[name for name, _ in PROGRAMS])
def test_no_shipped_program_hangs(mode: str, program: str, args: dict[str, int]) -> None:
    values = {f"run.args.{name}": value for name, value in args.items()}
    config = load([], None, {"npu.mode": mode, "driver.timeout": DRIVER_TIMEOUT, **values}).config
    plan = tuple(one for one in read_plan(FAULTS, drawn=True) if one.do in QUIET)
    found = run_campaign(Firmware(program).prepare(config), config, plan, 35, 1)
    assert found.total()[Outcome.HANG] == found.total()[Outcome.CRASH] == found.total()[Outcome.SILENT] == 0
    assert len(found.counted) == 35


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "args", "expected"),
    [
        ("lost_doorbell", {}, Outcome.RECOVERED),
        ("lost_interrupt", {}, Outcome.RECOVERED),
        ("dma", {"phases": 16}, Outcome.RECOVERED),
        ("stuck_engine", {}, Outcome.RECOVERED),
        ("bit_flip", {"n": 100}, Outcome.DETECTED),
    ],
)
def test_examples_lead_to_what_they_say(name: str, args: dict[str, int], expected: Outcome) -> None:
    config = load([], None, {"npu.mode": "loose", "driver.timeout": DRIVER_TIMEOUT}).config
    plan = read_plan(FAULTS.with_name(f"{name}.yaml"))
    reference, run = (run_program(config, "submit_latency", args, Session(faults=one)) for one in ((), plan))
    assert judge(evidence_of(reference), evidence_of(run)).outcome is expected
