"""Results as text: every figure where it belongs, with its unit."""

import pytest
import synthetic

from pyv_npu.config import load
from pyv_npu.tables import provenance, queues, render_compare, render_run
from pyv_npu.text import columns

CONFIG = load(preset="rocket").config


def row(text: str, name: str) -> list[str]:
    """The cells of the line that starts with `name`."""
    line = next(line for line in text.splitlines() if line.startswith(name + " "))
    return line.replace("|", " ").split()


def test_a_run_shows_summary_parameters_stages_and_reasons() -> None:
    text = render_run(synthetic.run(), CONFIG)
    assert "submit_latency: tight, core reference, CA_HYBRID, 1200 MHz" in text
    assert "stopped  exit, exit code 0" in text
    assert "core     1,234,567 cycles, 456,789 instructions, 0.370 per cycle" in text
    assert "1,003 commands submitted, 1,000 accepted, 1,000 completed (2 with errors), 3 rejected" in text
    assert "DRAM 64,000 bytes read, 0 bytes written" in text
    assert "busy     TE 50.0 0.0 %" in text
    assert "parameters: preset rocket, in core cycles" in text
    assert "MMIO       write 1 busy + 8 one way, read 20" in text
    assert row(text, "core cycles") == ["core", "cycles", "n", "P50", "P95", "P99", "min", "max"]
    assert row(text, "t_submit") == ["t_submit", "1,000", "21", "41", "51", "11", "61"]
    assert row(text, "descriptor_store") == ["descriptor_store", "16.00"]


def test_the_reasons_table_adds_up_to_the_mean() -> None:
    text = render_compare(synthetic.compare(), CONFIG)
    table = text[text.index("mean core cycles by reason") :].splitlines()
    total = [float(cell) for cell in table[4].split()[1:]]
    parts = [[float(cell) for cell in line.split()[1:]] for line in table[2:4]]
    assert table[4].startswith("t_submit ")
    assert [sum(column) for column in zip(*parts, strict=True)] == total == [189.0, 21.0]


def test_a_comparison_puts_loose_left_and_tight_right() -> None:
    text = render_compare(synthetic.compare(), CONFIG)
    assert " ".join(row(text, "t_submit")[1:]) == "1,000 189 209 219 179 229 1,000 21 41 51 11 61"
    assert " ".join(row(text, "core_busy")[1:]) == "1,000 30 50 60 20 70 1,000 30 50 60 20 70"
    for name in ("t_submit_prebuilt", "queue_wait", "execute", "notify"):
        assert len(row(text, name)) == 13
    heads = next(line for line in text.splitlines() if "loose" in line and "tight" in line and "|" in line)
    assert heads.index("loose") < heads.index("|") < heads.index("tight")
    assert "loose / tight: t_submit P50 9.00, t_submit P99 4.29, core_busy P50 1.00" in text
    assert "same results in both modes: yes" in text
    assert max(map(len, text.splitlines())) <= 130


def test_too_few_samples_for_p99_are_said_to_be_so() -> None:
    text = render_run(synthetic.run(n=99), CONFIG)
    assert row(text, "t_submit") == ["t_submit", "99", "21", "41", "-", "11", "61"]
    assert "P99 needs at least 100 submissions" in text
    assert "P99 needs" not in render_run(synthetic.run(n=100), CONFIG)


def test_a_run_without_submissions_has_no_table() -> None:
    text = render_run(synthetic.run(latency=None), CONFIG)
    assert "t_submit" not in text
    both = synthetic.compare(loose=synthetic.run("loose", latency=None), same_results=False)
    both["ratio"] = dict.fromkeys(both["ratio"])
    text = render_compare(both, CONFIG)
    assert "loose: nothing was submitted" in text
    assert " ".join(row(text, "t_submit")[1:]) == "- - - - - - 1,000 21 41 51 11 61"
    assert "loose / tight: t_submit P50 -, t_submit P99 -, core_busy P50 -" in text
    assert "same results in both modes: NO" in text


def test_an_open_loop_leads_with_the_response() -> None:
    run = synthetic.run()
    run["latency"]["stages"]["response"] = synthetic.stage(1000, 500)
    run["latency"]["stages"]["arrival_wait"] = synthetic.stage(1000, 400)
    text = render_run(run, CONFIG)
    assert text.index("\nresponse ") < text.index("\narrival_wait ") < text.index("\nt_submit ")


def test_a_run_that_did_not_end_by_itself_has_no_exit_code() -> None:
    run = synthetic.run(exit_code=None, stop_reason="deadlock", cycles=0, instret=0)
    text = render_run(run, CONFIG)
    assert "stopped  deadlock\n" in text
    assert "- per cycle" in text


def test_provenance_lists_what_is_not_at_its_default() -> None:
    text = provenance(load(preset="rocket", overrides={"npu.te.count": "4"}))
    assert "npu.te.count" in text
    assert "4 engines -- command line" in text
    assert "20 cycles -- preset rocket: chosen by us" in text
    assert "npu.ve.count" not in text


@pytest.mark.parametrize("groups", [(), ("one", "two")])
def test_columns_align(groups: tuple[str, ...]) -> None:
    text = columns(["name", "a", "b"], [["x", "1", "22"], ["long name", "333", "4"]], groups)
    lines = [line for line in text.splitlines()[len(groups) // 2 :] if not line.startswith("-")]
    assert len(set(map(len, lines))) == 1


def test_the_device_holds_as_much_in_both_modes_unless_it_is_told_otherwise() -> None:
    same = queues(load().config)
    assert same == ("loose: ring of 1,024 commands before 16 in the device; tight: 16 in the device; when full: retry")
    other = queues(load(overrides={"npu.queue.tight_size": 64}).config)
    assert "tight: 64 in the device" in other
    assert other.endswith(
        "The device holds more commands in tight mode: a comparison of the modes compares storage too"
    )
    assert "more commands in loose mode" in queues(load(overrides={"npu.queue.tight_size": 2}).config)
