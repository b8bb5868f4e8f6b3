"""The command line with the real machine behind it: files that are wrong, runs that end badly, reports that replay."""

import csv
import json
import re
import signal
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from npu_device.abi.memory_map import DRAM_BASE, UART_BASE
from pyv_ext.isa import Isa
from pyv_npu.boot import shipped_programs
from pyv_npu.cli import main

ENCODE = Isa("rv32im_zicsr").encode
SELF = ENCODE("jal", rd=0, imm=0)


def elf(*words: int, address: int = DRAM_BASE, entry: int | None = None) -> bytes:
    """An ELF32 RISC-V executable: one segment with these words."""
    code = struct.pack(f"<{len(words)}I", *words)
    identity = b"\x7fELF\x01\x01\x01" + bytes(9)
    start = address if entry is None else entry
    header = identity + struct.pack("<HHIIIIIHHHHHH", 2, 243, 1, start, 52, 0, 0, 52, 32, 1, 40, 0, 0)
    return header + struct.pack("<IIIIIIII", 1, 84, address, address, len(code), len(code), 5, 4) + code


def patched(at: int, value: int) -> Callable[[], bytes]:
    def make() -> bytes:
        data = bytearray(elf(SELF))
        data[at] = value
        return bytes(data)

    return make


# -- bad input -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "words"),
    [
        pytest.param(lambda: b"#!/bin/sh\n", "ELF", id="no ELF"),
        pytest.param(lambda: b"", "", id="empty"),
        pytest.param(patched(4, 2), "rows of a header table", id="ELF64 by its class only"),
        pytest.param(patched(5, 2), "endian", id="big-endian"),
        pytest.param(patched(18, 62), "", id="another machine"),
        pytest.param(lambda: elf(SELF)[:86], "", id="truncated segment"),
        pytest.param(lambda: elf(SELF)[:40], "", id="truncated header"),
        pytest.param(lambda: elf(SELF, address=0x2000_0000), "0x20000000", id="segment outside memory"),
        pytest.param(lambda: elf(SELF, entry=0x9000_0000), "0x90000000", id="entry outside every segment"),
    ],
)
@pytest.mark.parametrize("command", ["run", "compare", "disasm"])
def test_a_wrong_elf_is_one_line_and_65(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], make: Callable[[], bytes], words: str, command: str
) -> None:
    path = tmp_path / "x.elf"
    path.write_bytes(make())
    code = main([command, str(path)])
    captured = capsys.readouterr()
    if (command, words) == ("disasm", "0x20000000"):  # a listing needs no memory
        assert code == 0
        return
    assert code == 65
    assert captured.out == ""
    assert captured.err.startswith(f"pyv-npu: error: {path}")
    assert captured.err.count("\n") == 1
    assert words in captured.err


# -- how a run ends --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "options", "code", "reason", "text"),
    [
        ([SELF], ["--max-cycles", "1000"], 75, "limit", "1000"),
        ([SELF], ["--timeout", "1"], 75, "timeout", "1 s"),
        ([ENCODE("wfi")], [], 76, "deadlock", "pc"),
        ([ENCODE("jalr", rd=0, rs1=0, imm=0)], [], 77, "trap_loop", "trap loop at pc 0x00000000: cause 1"),
    ],
)
def test_a_run_that_does_not_end_well_says_why(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[int], options: list[str], code: int, reason: str,
    text: str,
) -> None:  # fmt: skip
    path = tmp_path / "x.elf"
    path.write_bytes(elf(*words))
    assert main(["run", str(path), "--json", *options]) == code
    captured = capsys.readouterr()
    result = json.loads(captured.out)
    assert (result["stop_reason"], result["exit_code"]) == (reason, None)
    assert text in captured.err
    assert captured.err.count("\n") == 1


def test_ctrl_c_leaves_a_partial_report(tmp_path: Path) -> None:
    path = tmp_path / "x.elf"
    words = [ENCODE("lui", rd=1, imm=UART_BASE), ENCODE("addi", rd=2, rs1=0, imm=ord("!")),
             ENCODE("sb", rs1=1, rs2=2, imm=0)]  # fmt: skip
    path.write_bytes(elf(*words, SELF))
    report = tmp_path / "r"
    command = [sys.executable, "-m", "pyv_npu", "run", str(path), "--report", str(report)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stdout.read(1) == "!"
    process.send_signal(signal.SIGINT)
    out, error = process.communicate(timeout=60)
    assert process.returncode == 130
    assert re.search(r"^stopped +interrupted$", out, re.MULTILINE)
    assert "Traceback" not in error
    assert json.loads((report / "result.json").read_text())["stop_reason"] == "interrupted"
    assert {each.name for each in report.iterdir()} >= {
        "latency.csv", "report.html", "result.json", "run.yaml", "summary.txt", "timeline.csv",
    }  # fmt: skip


# -- results ---------------------------------------------------------------------------------------------------

RUN_KEYS = {
    "schema", "program", "core", "mode", "sim_level", "preset", "exit_code", "stop_reason", "cycles", "instret", "uart",
    "latency", "npu", "events_sha256", "host",
}  # fmt: skip
STAGES = {
    "t_submit", "t_submit_prebuilt", "core_busy", "queue_wait", "execute", "notify", "arrival_wait", "response",
}  # fmt: skip
REASONS = {
    "setup", "descriptor_store", "fence", "mmio", "batch", "bus", "issue", "full_wait", "fetch", "validate", "retry",
    "interrupted",
}  # fmt: skip
NPU_KEYS = {
    "submitted", "accepted", "completed", "errors", "rejected", "queue_depth_max", "dram_bytes_read",
    "dram_bytes_written", "te_busy", "ve_busy", "dma_busy", "bank_busy", "bank_conflict_stall", "barrier_wait",
}  # fmt: skip


@pytest.fixture(scope="module")
def comparison(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a report of `compare submit_latency`."""
    if "submit_latency" not in shipped_programs():
        pytest.skip("no prebuilt firmware: pyv-npu build-firmware firmware/prebuilt")
    folder = tmp_path_factory.mktemp("report")
    assert main(["compare", "submit_latency", "--arg", "n=60", "--no-sweeps", "--json", "--report", str(folder)]) == 0
    return folder


def load(folder: Path) -> dict[str, Any]:
    return dict(json.loads((folder / "result.json").read_text()))


def without_host(result: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in result.items() if key != "host"}


def test_json_has_the_keys_of_the_schema_and_reasons_that_add_up(comparison: Path) -> None:
    result = load(comparison)
    assert {"loose", "tight", "same_results", "ratio"} <= set(result)
    assert set(result["ratio"]) == {"cycles", "t_submit_p50", "t_submit_p99", "core_busy_p50", "t_submit_prebuilt_p50"}
    assert result["same_results"] is True
    for mode in ("loose", "tight"):
        run = result[mode]
        assert set(run) >= RUN_KEYS
        assert run["mode"] == mode
        assert set(run["npu"]) >= NPU_KEYS
        assert set(run["host"]) >= {"wall_s", "cpu_s", "mips"}
        latency = run["latency"]
        assert set(latency["stages"]) == STAGES
        assert set(latency["reasons"]) == REASONS
        stage = latency["stages"]["t_submit"]
        assert set(stage) == {"n", "p50", "p95", "p99", "p99_9", "p99_99", "ci95", "min", "max", "mean"}
        assert 100 <= stage["n"] < 1000 and stage["p99_9"] is stage["p99_99"] is None
        assert stage["ci95"]["p95"] is stage["ci95"]["p99"] is None
        low, high = stage["ci95"]["p50"] or [stage["p50"]] * 2
        assert (stage["n"] < 320) == (stage["ci95"]["p50"] is None)
        assert stage["min"] <= low <= stage["p50"] <= high <= stage["max"]
        assert sum(latency["reasons"].values()) == pytest.approx(stage["mean"] * stage["n"], abs=stage["n"] / 1000)
        assert stage["min"] <= stage["p50"] <= stage["p95"] <= stage["p99"] <= stage["max"]


def test_latency_csv_and_json_tell_the_same(comparison: Path) -> None:
    result = load(comparison)
    for mode in ("loose", "tight"):
        rows = list(csv.DictReader((comparison / mode / "latency.csv").open()))
        direct = [int(row["t2"]) - int(row["t0"]) for row in rows if row["prebuilt"] == "0"]
        stage = result[mode]["latency"]["stages"]["t_submit"]
        assert len(direct) == stage["n"]
        assert sorted(direct)[(50 * len(direct) + 99) // 100 - 1] == stage["p50"]
        for reason, total in result[mode]["latency"]["reasons"].items():
            assert sum(int(row[reason]) for row in rows if row["prebuilt"] == "0") == total
        for row in rows:
            assert sum(int(row[reason]) for reason in REASONS) == int(row["t2"]) - int(row["t0"])


def test_timeline_and_counters_tell_the_same(comparison: Path) -> None:
    result = load(comparison)
    for mode in ("loose", "tight"):
        rows = list(csv.DictReader((comparison / mode / "timeline.csv").open()))
        npu = result[mode]["npu"]
        for index, busy in enumerate(npu["te_busy"]):
            work = [row for row in rows if row["unit"] == f"te{index}" and row["start"] != row["end"]]
            assert sum(int(row["end"]) - int(row["start"]) for row in work) == busy
        assert sum(row["what"] == "ACCEPT" for row in rows) == npu["accepted"]
        assert sum(row["what"] in ("DONE", "ERROR") for row in rows) == npu["completed"]


@pytest.mark.slow
def test_run_yaml_replays_to_the_same_bytes(
    comparison: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    again = ["compare", "--config", str(comparison / "run.yaml"), "--no-sweeps"]
    assert main([*again, "--report", str(tmp_path), "--json"]) == 0
    capsys.readouterr()
    first, second = load(comparison), load(tmp_path)
    for mode in ("loose", "tight"):
        assert without_host(first[mode]) == without_host(second[mode])
        for name in ("timeline.csv", "latency.csv"):
            assert (comparison / mode / name).read_bytes() == (tmp_path / mode / name).read_bytes()
    assert (comparison / "latency_cdf.csv").read_bytes() == (tmp_path / "latency_cdf.csv").read_bytes()


def test_the_uart_is_on_the_terminal_or_in_the_json(capsys: pytest.CaptureFixture[str]) -> None:
    if "hello" not in shipped_programs():
        pytest.skip("no prebuilt firmware: pyv-npu build-firmware firmware/prebuilt")
    assert main(["run", "hello", "--json"]) == 0
    uart = json.loads(capsys.readouterr().out)["uart"]
    assert uart.startswith("hello")
    assert main(["run", "hello"]) == 0
    assert capsys.readouterr().out.startswith(uart)
