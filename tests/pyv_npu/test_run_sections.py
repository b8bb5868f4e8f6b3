"""Sections of runs, and the forms in which a terminal, a notebook and files show them."""

import synthetic

from pyv_npu.config import load
from pyv_npu.config.render import provenance
from pyv_npu.report.page import render_fragment
from pyv_npu.run_sections import sections_of
from pyv_npu.run_sections.latency import queues
from pyv_npu.sections import Cell, Facts, Section, Table, as_text, layout
from pyv_npu.text import columns

CONFIG = load(preset="rocket").config


def text_of(run: dict[str, object]) -> str:
    return as_text(sections_of({"tight": run}, CONFIG))


def text_of_both(both: dict[str, object]) -> str:
    return as_text(sections_of({mode: both[mode] for mode in ("loose", "tight")}, CONFIG, comparison=both))  # type: ignore[misc]


def row(text: str, *names: str) -> list[str]:
    """The cells of the line that starts with these words."""
    line = next(line for line in text.splitlines() if line.split()[: len(names)] == list(names))
    return line.split()


def test_a_run_shows_summary_parameters_stages_and_reasons() -> None:
    text = text_of(synthetic.run())
    assert "submit_latency: tight, core reference, CA_HYBRID, 1200 MHz" in text
    assert row(text, "stopped")[1:] == ["exit,", "exit", "code", "0"]
    for words, value in (
        ("run (core cycles)", "1,234,567"), ("instructions", "456,789"), ("instructions per cycle", "0.37"),
        ("commands submitted", "1,003"), ("commands accepted", "1,000"), ("commands completed", "1,000"),
        ("commands with errors", "2"), ("commands rejected", "3"), ("DRAM read (bytes)", "64,000"),
    ):  # fmt: skip
        assert row(text, *words.split())[len(words.split()) :] == [value], words
    assert row(text, "TE", "busy")[-2:] == ["50.0", "0.0"]
    assert "Parameters in core cycles: preset rocket" in text and "MMIO       write 1 busy + 8 one way, read 20" in text
    assert row(text, "t_submit", "tight")[2:11] == ["1,000", "21", "41", "51", "-", "-", "11", "61", "21.5"]
    assert row(text, "descriptor_store")[1:] == ["16", "16,000"]


def test_the_reasons_add_up_to_the_mean() -> None:
    text = text_of_both(synthetic.compare())
    table = text[text.index("\nreason ") :].split("\nThe reasons")[0].splitlines()
    for at, mean in ((1, 189.0), (2, 21.0)):
        assert sum(float(line.split()[at]) for line in table[3:]) == mean


def test_a_comparison_has_a_row_for_each_stage_and_mode() -> None:
    text = text_of_both(synthetic.compare())
    assert " ".join(row(text, "t_submit", "loose")[2:10]) == "1,000 189 209 219 - - 179 229"
    assert " ".join(row(text, "t_submit", "tight")[2:10]) == "1,000 21 41 51 - - 11 61"
    for name in ("t_submit_prebuilt", "queue_wait", "execute", "notify"):
        assert [len(row(text, name, mode)) > 8 for mode in ("loose", "tight")] == [True, True]
    assert row(text, "loose", "/", "tight,", "t_submit", "P99")[-1] == "4.29"
    assert row(text, *["same", "results", "in", "both", "modes"])[-1] == "yes"
    assert max(map(len, text.splitlines())) <= 130


def test_too_few_samples_for_p99_are_said_to_be_so() -> None:
    text = text_of(synthetic.run(n=99))
    assert row(text, "t_submit", "tight")[2:10] == ["99", "21", "41", "-", "-", "-", "11", "61"]
    assert "P99 needs at least 100 submissions" in text
    assert "P99 needs" not in text_of(synthetic.run(n=100))


def test_a_run_without_submissions_has_no_table() -> None:
    assert "t_submit" not in text_of(synthetic.run(latency=None))
    both = synthetic.compare(loose=synthetic.run("loose", latency=None), same_results=False)
    both["ratio"] = dict.fromkeys(both["ratio"])
    text = text_of_both(both)
    assert "loose: nothing was submitted" in text and "t_submit           loose" not in text
    assert row(text, "loose", "/", "tight,", "t_submit", "P50")[-1] == "-"
    assert row(text, *["same", "results", "in", "both", "modes"])[-1] == "NO"


def test_an_open_loop_leads_with_the_response() -> None:
    run = synthetic.run()
    run["latency"]["stages"]["response"] = synthetic.stage(1000, 500)
    run["latency"]["stages"]["arrival_wait"] = synthetic.stage(1000, 400)
    text = text_of(run)
    assert text.index("\nresponse ") < text.index("\narrival_wait ") < text.index("\nt_submit ")


def test_a_run_that_did_not_end_by_itself_has_no_exit_code() -> None:
    text = text_of(synthetic.run(exit_code=None, stop_reason="deadlock", cycles=0, instret=0))
    assert row(text, "stopped")[1:] == ["deadlock"]
    assert "instructions per cycle" not in text


def test_provenance_lists_what_is_not_at_its_default() -> None:
    text = provenance(load(preset="rocket", overrides={"npu.te.count": "4"}))
    assert "npu.te.count" in text
    assert "4 engines -- command line" in text
    assert "20 cycles -- preset rocket: chosen by us" in text
    assert "npu.ve.count" not in text


def test_columns_align() -> None:
    lines = columns(["name", "a", "b"], [["x", "1", "22"], ["long name", "333", "4"]]).splitlines()
    assert len(set(map(len, lines))) == 1
    assert columns(["a", "b"], [["x", "y"]], text=[True, True]).splitlines()[2] == "x  y"


MIXED = Table(
    ("name", "time", "size", "share", "text"),
    [("a", 0.0015, 3 * 2**20, 0.25, "one"), ("b", 2e-6, None, 1.0, Cell("two", kind="text"))],
    units=("", "s", "bytes", "share", ""), figures="{0}.{head}",
)  # fmt: skip


def test_a_column_has_one_prefix_and_the_page_keeps_the_value() -> None:
    shown = layout(MIXED)
    assert shown.heads == ["name", "time (ms)", "size (MiB)", "share (%)", "text"]
    assert shown.bare == ["name", "time (s)", "size (bytes)", "share (%)", "text"]
    assert [[cell.text for cell in cells] for cells in shown.rows] == [
        ["a", "1.5", "3", "25.0", "one"], ["b", "0.002", "-", "100.0", "two"],
    ]  # fmt: skip
    assert (shown.rows[0][1].name, shown.rows[0][1].value) == ("a.time", 0.0015)
    assert shown.text == [False, False, False, False, True]


def test_a_table_that_is_too_wide_is_written_row_by_row() -> None:
    text = as_text([Section("s", "Title", [Table(("name", "long"), [("a", "x" * 60 + " " + "y" * 80), ("b", "")])])])
    assert text == f"Title\nname: a\nlong: {'x' * 60}\n  {'y' * 80}\n\nname: b\n"


def test_a_terminal_shows_the_first_rows_and_counts_the_others() -> None:
    text = as_text([Section("s", "", [Facts([("a", "b")]), Table(("n",), [(n,) for n in range(9)])])], rows=2)
    assert text == "  a  b\n\nn\n-\n0\n1\nand 7 more rows\n"


def test_a_notebook_escapes_and_shows_the_same_cells() -> None:
    html = render_fragment([Section("s", "<b>", [MIXED, Facts([("<i>", "&")])])])
    assert (
        "&lt;b&gt;" in html
        and "&lt;i&gt;" in html
        and 'data-value="0.0015">1.5</td>' in html
        and ">time (ms)</th>" in html
    )


def test_the_device_holds_as_much_in_both_modes_unless_it_is_told_otherwise() -> None:
    same = queues(load().config)
    assert same == ("loose: ring of 1,024 commands before 16 in the device; tight: 16 in the device; when full: retry")
    other = queues(load(overrides={"npu.queue.tight_size": 64}).config)
    assert "tight: 64 in the device" in other
    assert other.endswith(
        "The device holds more commands in tight mode: a comparison of the modes compares storage too"
    )
    assert "more commands in loose mode" in queues(load(overrides={"npu.queue.tight_size": 2}).config)
