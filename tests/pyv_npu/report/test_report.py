"""The files of a report: complete or absent, and right."""

import csv
import errno
import os
import subprocess
from pathlib import Path
from xml.etree import ElementTree

import pytest
import synthetic

from npu_device.abi.errors import TicketError
from npu_device.abi.opcodes import Opcode
from npu_device.trace.events import FRONTEND, Cause, Kind, Refusal, What, unit_code
from npu_device.trace.records import Batch
from npu_device.trace.run_spans import Spans
from npu_device.trace.spans import SpanBuilder
from npu_device.trace.stream import EventStream
from pyv_native.files import replacing, write_text
from pyv_npu import manifest
from pyv_npu.errors import UsageError
from pyv_npu.report.charts import MAX_POINTS, Line, distributions, lines, quantitative
from pyv_npu.report.folder import ReportFolder
from pyv_npu.report.pictures import cumulative
from pyv_npu.report.timeline import LATENCY_COLUMNS, write_latency_csv, write_timeline
from pyv_npu.report.vega import draw
from pyv_npu.sections import Chart

# -- folder ----------------------------------------------------------------------------------------------------


def report_of(folder: Path, **files: str) -> ReportFolder:
    """A complete report that lists its files, not yet in its place."""
    report = ReportFolder(folder)
    for name, text in files.items():
        (report.draft / name).write_text(text)
    manifest.write(report.draft, "report", {})
    return report


def test_a_file_with_the_name_of_the_folder_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "report"
    path.write_text("mine")
    with pytest.raises(UsageError, match=r"report: is not a folder; name a new one"):
        ReportFolder(path)
    assert path.read_text() == "mine"
    report_of(tmp_path / "a" / "b", x="1").put()
    assert (tmp_path / "a" / "b" / "x").read_text() == "1"


def test_a_report_takes_its_place_as_a_whole(tmp_path: Path) -> None:
    place = tmp_path / "out"
    report_of(place, first="1", same="1").put()
    second = report_of(place, second="2", same="2")
    assert (place / "same").read_text() == "1" and second.is_occupied  # nothing has happened yet
    second.put()
    assert {path.name for path in place.iterdir()} == {"second", "same", manifest.FILE}
    report_of(place, third="3").discard()
    assert (place / "same").read_text() == "2"
    assert list(tmp_path.iterdir()) == [place]


def test_a_folder_with_other_files_is_refused(tmp_path: Path) -> None:
    place = tmp_path / "out"
    report_of(place, mine="1").put()
    report = report_of(place, mine="2")
    (place / "notes.txt").write_text("mine")
    for attempt in (lambda: ReportFolder(place), report.put):
        with pytest.raises(UsageError, match=r"out: holds notes\.txt, which is not of a report; name another folder"):
            attempt()
    assert (place / "mine").read_text() == "1" and (place / "notes.txt").read_text() == "mine"
    report.discard()
    assert list(tmp_path.iterdir()) == [place]


def test_a_folder_that_cannot_be_renamed_gets_the_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A mount point, as a container has."""
    place = tmp_path / "out"
    report_of(place, old="1").put()

    def refuse(*args: object) -> None:
        raise OSError(errno.EBUSY, "is busy")

    report = report_of(place, new="2")
    with monkeypatch.context() as patched:
        patched.setattr(os, "rename", refuse)
        report.put()
    assert {path.name for path in place.iterdir()} == {"new", manifest.FILE}
    assert list(tmp_path.iterdir()) == [place]


def test_what_a_killed_process_left_is_removed(tmp_path: Path) -> None:
    gone = subprocess.Popen(["true"])
    gone.wait()
    for process in (gone.pid, os.getppid()):
        (tmp_path / f".out.{process}.part").mkdir()
    report = ReportFolder(tmp_path / "out")
    assert set(tmp_path.iterdir()) == {report.draft, tmp_path / f".out.{os.getppid()}.part"}


def test_a_file_is_replaced_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "x.txt"
    write_text(path, "first")
    with pytest.raises(RuntimeError), replacing(path) as file:
        file.write("half")
        raise RuntimeError
    assert path.read_text() == "first"
    assert [each.name for each in tmp_path.iterdir()] == ["x.txt"]


# -- latency.csv -----------------------------------------------------------------------------------------------


def test_latency_csv_has_a_line_per_submission_whose_reasons_add_up(tmp_path: Path) -> None:
    made = synthetic.submissions(25, tight=False)
    write_latency_csv(tmp_path / "latency.csv", synthetic.as_rows(made))
    rows = list(csv.DictReader((tmp_path / "latency.csv").open()))
    assert len(rows) == 25
    assert tuple(rows[0]) == LATENCY_COLUMNS
    reasons = LATENCY_COLUMNS[LATENCY_COLUMNS.index("t7") + 1 :]
    for submission, row in zip(made, rows, strict=True):
        assert sum(int(row[reason]) for reason in reasons) == int(row["t2"]) - int(row["t0"])
        assert int(row["ticket"]) == submission.ticket
        assert (row["mode"], row["t7"]) == ("loose", "")


# -- timeline.csv ----------------------------------------------------------------------------------------------


def timeline(folder: Path, *records: tuple[int, ...]) -> list[list[str]]:
    stream, batches = EventStream(), list[Batch]()
    stream.subscribe(batches.append)
    for record in records:
        stream.emit(*record)
    stream.flush()
    write_timeline(folder / "timeline.csv", Spans(batches))
    return list(csv.reader((folder / "timeline.csv").open()))


TE0, DMA1 = unit_code(Kind.TE, 0), unit_code(Kind.DMA, 1)


def test_timeline_pairs_begin_and_end_of_each_unit(tmp_path: Path) -> None:
    rows = timeline(
        tmp_path,
        (10, FRONTEND, What.SUBMIT, 0, 0, 0x8000_0040, 1),
        (20, FRONTEND, What.ACCEPT, 7, 0, 12, 3),
        (25, FRONTEND, What.STALL, 7, 0, 3, Cause.HAZARD),
        (25, FRONTEND, What.STALL, 7, 0, 2, Cause.BARRIER),
        (25, FRONTEND, What.READY, 7, 0, 0, 2),
        (25, TE0, What.TE_BEGIN, 7, 1, 64, Opcode.GEMM_T | 1 << 8),
        (26, DMA1, What.DMA_BEGIN, 8, 0, 100, Opcode.LOAD),
        (30, DMA1, What.DMA_END, 8, 0, 100, 128),
        (40, TE0, What.TE_END, 7, 1, 64, 0),
        (40, TE0, What.DONE, 7),
        (41, FRONTEND, What.ERROR, 9, 0, 0, TicketError.OPCODE),
        (42, FRONTEND, What.REJECT, 0, 0, 0, Refusal.RETRY),
        (43, DMA1, What.DMA_BEGIN, 10, 0, 100, Opcode.STORE),
    )
    assert rows == [
        ["unit", "what", "ticket", "tile", "stream", "start", "end", "bytes", "cause", "layer"],
        ["frontend", "SUBMIT", "0", "0", "", "10", "10", "", "", ""],
        ["frontend", "ACCEPT", "7", "0", "", "12", "20", "", "", ""],
        ["frontend", "STALL", "7", "0", "2", "20", "23", "", "hazard", ""],
        ["frontend", "STALL", "7", "0", "2", "23", "25", "", "barrier", ""],
        ["frontend", "READY", "7", "0", "2", "25", "25", "", "", ""],
        ["dma1", "LOAD", "8", "0", "", "26", "30", "100", "", ""],
        ["te0", "GEMM_T", "7", "1", "2", "25", "40", "64", "", ""],
        ["te0", "DONE", "7", "0", "2", "40", "40", "", "", ""],
        ["frontend", "ERROR", "9", "0", "", "41", "41", "", "opcode", ""],
        ["frontend", "REJECT", "0", "0", "", "42", "42", "", "retry", ""],
        ["dma1", "STORE", "10", "0", "", "43", "", "", "", ""],
    ]


def test_timeline_pairs_barriers_by_scope_oldest_first(tmp_path: Path) -> None:
    rows = timeline(
        tmp_path,
        (1, FRONTEND, What.BARRIER_OPEN, 0, 0, 0, 2),
        (2, FRONTEND, What.BARRIER_OPEN, 0, 0, 0, 0x10),
        (3, FRONTEND, What.BARRIER_OPEN, 0, 0, 0, 2),
        (9, FRONTEND, What.BARRIER_CLOSE, 0, 0, 0, 2),
        (10, FRONTEND, What.BARRIER_CLOSE, 0, 0, 0, 0x10),
        (11, FRONTEND, What.BARRIER_CLOSE, 0, 0, 0, 2),
    )
    assert [(row[5], row[6]) for row in rows[1:]] == [("1", "9"), ("2", "10"), ("3", "11")]


def test_spans_hold_only_what_is_under_way() -> None:
    stream, builder = EventStream(), SpanBuilder()
    stream.subscribe(builder.take)
    for ticket in range(1, 20_000):
        stream.emit(ticket, FRONTEND, What.READY, ticket)
        stream.emit(ticket, TE0, What.TE_BEGIN, ticket, 0, 0, Opcode.GEMM_T)
        stream.emit(ticket, TE0, What.TE_END, ticket)
        stream.emit(ticket, TE0, What.DONE, ticket)
    stream.flush()
    assert builder.open == 0


# -- charts ----------------------------------------------------------------------------------------------------


def curves(chart: Chart) -> dict[tuple[str, str], list[tuple[float, float]]]:
    """Curve and style -> its points."""
    return {
        (row["curve"], row.get("style", "")): list(zip(row["x"], row["y"], strict=True))
        for row in chart.spec["data"]["values"]
    }


def test_cdf_draws_both_stages_of_both_modes() -> None:
    latencies = {"loose": synthetic.latency(500, False), "tight": synthetic.latency(500, True)}
    (chart,) = cumulative(latencies, "submit_latency <&> preset")
    assert chart.caption == "submit_latency <&> preset"
    shown = curves(chart)
    assert {(mode, stage) for mode in ("loose", "tight") for stage in ("t_submit", "core_busy")} <= set(shown)
    for (mode, stage), points in shown.items():
        steps = latencies[mode].stage(stage).cdf()
        assert points[0] == (steps[0][0], 0) and points[-1] == (steps[-1][0], 100)
        assert all(100 * rank / 450 == pytest.approx(dict(steps)[at] / 4.5) for at, rank in steps)
    texts = drawn_texts(chart)
    for text in ("loose", "tight", "t_submit", "core_busy", "latency (core cycles)", "cumulative submissions (%)"):
        assert text in texts


def drawn_texts(chart: Chart) -> set[str]:
    """Texts of the SVG file of a chart."""
    file = draw(chart, "svg")
    assert file == draw(chart, "svg")
    root = ElementTree.fromstring(file)
    return {(element.text or "").strip() for element in root.iter("{http://www.w3.org/2000/svg}text")}


def test_a_long_distribution_keeps_its_ends_and_its_shape() -> None:
    points = [(cycle, cycle / 100) for cycle in range(1, 10_001)]
    shown = curves(distributions("x", "x", "", [Line("tight", points)]))["tight", ""]
    assert len(shown) <= MAX_POINTS + 2 and shown[0] == (1, 0) and shown[-1] == (10_000, 100)
    assert all(y == pytest.approx(x / 100, abs=0.3) for x, y in shown[1:])


def test_cdf_without_submissions_is_no_chart() -> None:
    assert cumulative({"tight": synthetic.latency(0, True)}, "x") == []


@pytest.mark.parametrize(("least", "most"), [(0, 0), (5, 5), (0, 3), (7, 90), (30, 3000), (1, 10**6), (10**6, 10**9)])
def test_an_axis_spans_its_values_and_is_logarithmic_over_decades(least: int, most: int) -> None:
    axis = quantitative("x", "core cycles", [least, most])
    logarithmic = least > 0 and most >= 20 * least
    assert axis["title"] == ("core cycles, logarithmic" if logarithmic else "core cycles")
    low, high = axis["scale"].get("domain", (least, most))
    assert low <= least and most <= high
    chart = lines("x", "x", "", [Line("row", [("row", least), ("x", most)])], "x", "core cycles")
    labels = {text.replace("\u2212", "-") for text in drawn_texts(chart)} - {"row", "x", axis["title"], ""}
    assert 1 <= len(labels) <= 14
    assert not logarithmic or all(label[0] in "125" for label in labels)


def test_a_file_of_a_chart_reads_nothing(tmp_path: Path) -> None:
    (tmp_path / "secret.csv").write_text("a\n12345\n")
    for url in ((tmp_path / "secret.csv").as_uri(), str(tmp_path / "secret.csv"), "http://127.0.0.1:9/x.csv"):
        spec = {"data": {"url": url}, "mark": "text", "encoding": {"text": {"field": "a"}}}
        try:
            assert b"12345" not in draw(Chart("x", "x", "", spec), "svg")
        except ValueError as error:
            assert "not allowed" in str(error)
