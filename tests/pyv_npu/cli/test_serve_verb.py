"""`pyv-npu serve` from the command line."""

import csv
import json
from hashlib import sha256
from pathlib import Path

import pytest

from pyv_npu.cli import main
from pyv_npu.cli.shared.work import KV_METHODS

SHORT = ["serve", "llama2-7b", "--layers", "1", "--workload", "poisson:40", "--first", "4", "--input", "32",
         "--output", "4", "--check-steps", "1"]  # fmt: skip


def test_a_report_holds_requests_steps_and_charts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*SHORT, "--kv", "uniform4", "--slo", "ttft=1s", "--json", "--report", str(tmp_path / "out")]) == 0
    made = json.loads(capsys.readouterr().out)
    assert (made["requests"], made["refused"], made["output_tokens"], made["good_requests"]) == (4, 0, 16, 4)
    assert made["blocks"]["allocated"] == made["blocks"]["released"] == 4 * 3
    assert made["step_time"]["largest_error"] < 0.05
    with (tmp_path / "out/requests.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0])[:12] == [
        "instance id", "request id", "model", "input", "output", "arrival", "end_time", "latency", "queuing_delay",
        "TTFT", "TPOT", "ITL",
    ]  # fmt: skip
    for row in rows:
        assert int(row["end_time"]) - int(row["arrival"]) == int(row["latency"])
        assert int(row["TTFT"]) + sum(json.loads(row["ITL"])) == int(row["latency"])
        # 32 tokens, then 1 at contexts 32, 33, 34: read 99, written 35, of 2 x 32 x 64 bytes
        assert int(row["kv_bytes"]) == (99 + 35) * 2 * 32 * 64
    with (tmp_path / "out/steps.csv").open() as file:
        steps = list(csv.DictReader(file))
    assert sum(int(step["tokens"]) for step in steps) == 4 * 35
    page = (tmp_path / "out/report.html").read_text()
    assert "requests that wait" in page and "Machine and parameters" in page and "npu.dram.bytes_per_second" in page


@pytest.mark.slow
def test_a_served_workload_is_a_result_like_others(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It can be replayed from elsewhere and compared; the parts of its cycles add up."""
    first, second = tmp_path / "first", tmp_path / "second"
    assert main([*SHORT, "--report", str(first)]) == 0
    assert main([*SHORT, "--rate", "1e5", "--report", str(second)]) == 0
    found = [json.loads((folder / "result.json").read_text()) for folder in (first, second)]
    for run in found:
        assert run["schema"] == 1 and run["program"] == "llama2-7b" and run["stop_reason"] == "exit"
        assert run["cycles"] == sum(run["cycles_parts"].values()) and run["core"] is None
    assert found[0]["cycles_parts"]["idle"] > found[1]["cycles_parts"]["idle"]
    assert abs(found[1]["offered_per_second"] - 1e5) < 1
    steps = (first / "steps.csv").read_bytes()
    assert found[0]["events_sha256"] == sha256(steps).hexdigest() != found[1]["events_sha256"]
    assert "npu.dram.size" in (first / "summary.txt").read_text()
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    capsys.readouterr()
    assert main(["run", "--replay", str(first), "--json"]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out) == found[0] and "the events are those of the recorded run" in err
    assert main(["diff", str(first), str(second), "--json", "-o", "diff.html", "--fail-if", "ttft_ns.p99 > +1%"]) == 1
    changed = json.loads(capsys.readouterr().out)
    assert changed["sentence"].startswith("cycles of the run ") and "idle -" in changed["sentence"]
    record = (first / "run.yaml").read_text()
    (first / "manifest.json").unlink()
    (first / "run.yaml").write_text(record.replace(found[0]["events_sha256"], "f" * 64))
    assert main(["run", "--replay", str(first)]) == 70
    assert "the events of run differ" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("more", "code", "message"),
    [
        (["--kv", "int3"], 64, f"--kv int3: must be one of {', '.join(KV_METHODS)}"),
        (["--blocks", "0"], 64, "--blocks 0: must be 1..268435456"),
        (["--blocks", "1"], 65, "poisson:40: no request can be served; request 0: 36 tokens need 3 blocks of 16: there "
         "are 1; raise --blocks or npu.dram.size"),
        (["--blocks", "300000000"], 64, "--blocks 300000000: 3853003 fit npu.dram.size 256.0 GB beside the weights and "
         "--swap-blocks 0; give less, or more DRAM"),
        (["--swap-blocks", "-1"], 64, "--swap-blocks -1: must be 0..268435456"),
        (["--swap-blocks", "100000000"], 65, "llama2-7b: weights 0.9 GB, --swap-blocks 100000000 6553.6 GB leave no "
         "room for a block of 16 tokens (0.1 MB) in npu.dram.size 256.0 GB: more DRAM, or less of these"),
        (["--no-full-isl-gate", "--policy", "token-batch"], 64, "--policy token-batch: a prompt has all engines until "
         "its end, so all of it must have room; drop --no-full-isl-gate"),
        (["--slo", "ttft=5"], 64, "--slo ttft=5: must be ttft, tpot or e2e = a time with its unit, like "
         "ttft=2s,tpot=50ms"),
        (["--rate", "0"], 64, "--rate 0: must be requests per second, above 0 and below 10^9"),
        (["--find-rate"], 64, "--find-rate: needs limits; add --slo ttft=2s,tpot=100ms"),
        (["--set", "compiler.mapper=search"], 64, "compiler.mapper: is for models that `run` compiles; serve maps all "
         "steps alike"),
        (["--overlong", "drop"], 64, "--overlong drop: must be one of refuse, cut-prompt, cut-both"),
        (["--set", "npu.dram.size=800000000"], 65, "llama2-7b: weights 0.9 GB leave no room for a block of 16 "
         "tokens (0.1 MB) in npu.dram.size 0.8 GB: more DRAM, or less of these"),
        (["--workload", "burst"], 64, "--workload burst: poisson:40 is there already; drop one of them; see "
         "pyv-npu serve --help"),
    ],
)  # fmt: skip
def test_bad_input_is_one_line(more: list[str], code: int, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*SHORT, *more]) == code
    assert capsys.readouterr().err == f"pyv-npu: error: {message}\n"


def test_an_unknown_workload_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    forms = "name a file, or arrivals: poisson:RATE, gamma:RATE,cv=CV, burst, closed:CLIENTS"
    for name, hint in (("nothing.csv", ""), ("poison:5", "; did you mean poisson?")):
        assert main(["serve", "llama2-7b", "--workload", name]) == 65
        assert capsys.readouterr().err == f"pyv-npu: error: --workload {name}: no such file: {forms}{hint}\n"
    assert main(["serve", "llama2-7b", "--workload", "burst", "--rate", "3"]) == 64
    assert "--workload burst: has no rate, requests arrive together or after" in capsys.readouterr().err
    assert main(["serve", "llama3", "--workload", "burst"]) == 65
    assert capsys.readouterr().err.endswith("; did you mean llama3-8b?\n")


@pytest.mark.slow
def test_more_load_than_capacity_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    job = (
        "serve",
        "llama2-7b",
        "--layers",
        "1",
        "--first",
        "40",
        "--input",
        "300",
        "--output",
        "4",
        "--check-steps",
        "0",
    )
    for rate, overload in (("1000", True), ("2", False)):
        assert main([*job, "--workload", f"poisson:{rate}"]) == 0
        assert ("later ones wait ever longer" in capsys.readouterr().out) is overload
