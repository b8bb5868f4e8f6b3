"""Function and source line of addresses of the program: submissions, profile, errors, stops."""

import csv
import re
from dataclasses import replace
from html import unescape
from pathlib import Path

import pytest

from npu_device.abi.errors import TicketError
from pyv_ext.elf import Program, read_elf
from pyv_ext.engines.core import Stop
from pyv_ext.source_lines import SourceLines
from pyv_npu.boot import find_program
from pyv_npu.cli import main
from pyv_npu.config import Config, load
from pyv_npu.observe.instruments import Instruments
from pyv_npu.platform import Platform
from pyv_npu.report.write import write_lines
from pyv_npu.result import Detail, Result
from pyv_npu.run_sections import sections_of
from pyv_npu.sections import as_text
from pyv_npu.workloads.firmware import run_program
from pyv_npu.workloads.workload import Session
from toolchain.gnu import firmware_folder

NAME = "fault_descriptor"
REASON = "unknown opcode: opcode 19: must be 0..18"


def source_text(place: str) -> str:
    """What stands in the source of the package at `firmware/...:line`."""
    path, _, line = place.rpartition(":")
    return (firmware_folder().parent / path).read_text(encoding="utf-8").splitlines()[int(line) - 1]


def config(**values: object) -> Config:
    return load([], None, {f"run.{name}": value for name, value in values.items()}).config


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("report")


@pytest.fixture(scope="module")
def result(folder: Path) -> Result[Detail]:
    made = run_program(config(), NAME, {})
    write_lines(folder, made)
    return made


def test_latency_csv_says_where_each_submission_was_made(result: Result[Detail], folder: Path) -> None:
    rows = list(csv.DictReader((folder / "latency.csv").open()))
    assert len(rows) == len(result.latency.submissions) > 0
    assert {"expect_good", "busy_count", "main"} <= {row["function"] for row in rows}
    assert all("npu_submit" in source_text(row["source"]) for row in rows)


def test_the_report_has_a_row_for_each_place(folder: Path) -> None:
    assert main(["run", NAME, "--report", str(folder / "page"), "--json"]) == 0
    page = (folder / "page" / "report.html").read_text(encoding="utf-8")
    sites = page.partition('<section id="sites">')[2].partition("</section>")[0]
    rows = list(csv.DictReader((folder / "page" / "latency.csv").open()))
    for place in {f"{row['function']}, {row['source']}" for row in rows}:
        assert place in sites


def test_the_page_says_why_tickets_ended_in_errors(result: Result[Detail], folder: Path) -> None:
    log = result.json["npu"]["error_log"]
    page = unescape((folder / "page" / "report.html").read_text(encoding="utf-8"))
    errors = page.partition('<section id="errors">')[2].partition("</section>")[0]
    assert len(log) > 10
    for row in log[:10]:
        assert row["reason"] in errors and (row["submitted_at"] or "an unknown place") in errors
    assert errors.count("<tr") == 11
    assert f"and {len(log) - 10} more" in errors


def test_the_timeline_says_why_tickets_ended_in_errors(result: Result[Detail], folder: Path) -> None:
    rows = [row for row in csv.DictReader((folder / "timeline.csv").open()) if row["what"] == "ERROR"]
    found = [(int(row["ticket"]), int(row["start"]), row["cause"]) for row in rows]
    log = result.json["npu"]["error_log"]
    assert found == [(row["ticket"], row["cycle"], f"{row['name'].lower()}: {row['reason']}") for row in log]


def test_ticket_errors_say_where_they_were_submitted(result: Result[Detail]) -> None:
    errors = result.json["ticket_errors"]
    assert len(errors) == 10 < result.json["latency"]["n_errors"]
    first = dict(errors[0])
    function, _, source = first.pop("submitted_at").partition(", ")
    assert first == {"ticket": 2, "code": 258, "text": "unknown opcode", "reason": REASON}
    assert function == "expect_row"
    assert "npu_submit_prebuilt(" in source_text(source)
    text = as_text(sections_of({result.name: result.json}, result.config))
    text = " ".join(text[text.index("\nError tickets") :].split())
    assert f"{REASON}" in text and f"expect_row, {source}" in text
    assert f"and {result.json['npu']['errors'] - 10} more" in text


def test_the_error_log_names_command_opcode_reason_cycle_and_place(result: Result[Detail]) -> None:
    log = result.json["npu"]["error_log"]
    assert len(log) == result.json["npu"]["errors"] == result.json["latency"]["n_errors"]
    assert [each["cycle"] for each in log] == sorted(each["cycle"] for each in log)
    first = log[0]
    assert (first["ticket"], first["code"], first["name"]) == (2, 258, "OPCODE")
    assert (first["opcode"], first["command"]) == (19, 1)
    assert "npu_submit_prebuilt(" in source_text(first["submitted_at"].partition(", ")[2])
    assert result.core is not None and result.core.program.place(first["pc"]) == first["submitted_at"]
    assert {each["opcode"] for each in log} > {"GEMM_T"}
    for each in log:
        text = "soft reset" if each["name"] == "RESET" else TicketError(each["code"]).text
        assert each["reason"].startswith(text)


def test_without_submit_symbols_it_is_where_the_doorbell_or_enqcmd_is() -> None:
    program = read_elf(find_program(NAME))
    functions = tuple(f for f in program.functions if not f.name.startswith("npu_submit"))
    for mode in ("loose", "tight"):
        chosen = load([], None, {"npu.mode": mode}).config
        ran = run_program(chosen, replace(program, functions=functions), {})
        words = {source_text(str(program.line_of(each.call_site))) for each in ran.latency.accepted}
        assert len(words) == 1
        assert {"loose": "(npu.base + reg) = value;", "tight": ".insn"}[mode] in words.pop()


def test_a_profile_row_has_its_hottest_line() -> None:
    instruments = Instruments(profile=True)

    def observed(platform: Platform) -> Stop:
        with instruments.on(platform):
            return platform.run()

    run_program(config(), "hello", {}, Session(drive=observed))
    assert instruments.profiled is not None
    rows = {line.split()[0]: line.split()[-1] for line in instruments.profiled.text().splitlines() if line.strip()}
    assert rows["function"] == "line"
    assert re.fullmatch(r"console\.c:\d+", rows["console_flush"])
    assert rows["_start"].startswith("crt0.S:")


def test_a_stop_names_function_and_line() -> None:
    stop = run_program(config(max_cycles=5000), "hello", {}).stop
    found = re.fullmatch(r"cycle limit 5000 reached at pc 0x[0-9a-f]{8} \((\w+), (firmware/\S+:\d+)\)", stop.text)
    assert found
    assert source_text(found[2])


def test_a_stop_without_debug_information_names_the_function() -> None:

    program: Program = replace(read_elf(find_program("hello")), lines=SourceLines())
    stop = run_program(config(max_cycles=5000), program, {}).stop
    assert re.fullmatch(r"cycle limit 5000 reached at pc 0x[0-9a-f]{8} \(\w+\)", stop.text)
