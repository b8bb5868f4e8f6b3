"""The table of cycles adds up, and the sentences on top of a page name the mode whose figures are smaller."""

import json
import re
from pathlib import Path

import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyv_npu.cli import main
from pyv_npu.config import Config, load
from pyv_npu.config.schema import keys_of
from pyv_npu.run_sections.totals import cycles
from pyv_npu.units import quantity
from pyv_npu.verdict import ADVICE, key_figures, sentences
from toolchain.examples import EXAMPLES


def run(cycles: int, p50: int, before: int = 0, after: int = 0) -> dict[str, object]:
    stages = {"t_submit": {"n": 1, "p50": p50, "mean": float(p50)}, "core_busy": None}
    parts = {"before_submission": before, "work": cycles - before - after, "after_completion": after}
    npu = {"te_busy": [cycles // 2], "ve_busy": [], "dma_busy": [0]}
    return {"stop_reason": "exit", "cycles": cycles, "cycles_parts": parts, "latency": {"stages": stages}, "npu": npu}


def test_the_table_explains_every_figure_of_a_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(tmp_path / "model.onnx")
    onnx.save(EXAMPLES["cnn"](), path)
    assert main(["run", path, "--timing-only", "--json"]) == 0
    alone = json.loads(capsys.readouterr().out)["cycles"]
    assert main(["compare", path]) == 0
    text = capsys.readouterr().out
    table = text[text.index("\nwhole run: start") + 1 :].split("\nThe phases")[0].splitlines()
    rows = {line[:44].strip(): [int(word.replace(",", "")) for word in line[44:].split()[:2]] for line in table}
    assert rows["the same commands without firmware"] == [alone, alone]
    whole, before, work, _, added, after, makespan = rows.values()
    for mode in (0, 1):
        assert before[mode] + work[mode] + after[mode] == whole[mode]
        assert alone + added[mode] == work[mode]
        assert before[mode] + work[mode] == makespan[mode]


@given(*[st.integers(1, 10**9)] * 4)
def test_the_winner_is_the_mode_with_fewer_cycles(loose: int, tight: int, loose_p50: int, tight_p50: int) -> None:
    first = sentences({"loose": run(loose, loose_p50), "tight": run(tight, tight_p50)}, {})[0]
    for text, one, other in (("over the whole run", loose, tight), ("per submission (P50)", loose_p50, tight_p50)):
        (sentence,) = (part for part in first.split(". ") if text in part)
        close = abs(one - other) <= 0.005 * max(one, other)
        word = "The modes are equal" if close else "Loose wins" if one < other else "Tight wins"
        assert sentence.startswith(word)


def test_what_limits_a_run_is_said() -> None:
    found = sentences({"tight": run(1000, 5, 100, 100)}, {"tight": {"stalled: DRAM bandwidth": 600, "other": 300}})
    assert found == [
        "Tight: limited by DRAM bandwidth; of the 800 cycles from first submission to last completion, "
        "stalled: DRAM bandwidth 75%, other 38%. Try more DRAM bandwidth (npu.dram.bytes_per_second), or narrower "
        "weights (--qbits-weight) first."
    ]
    (found,) = (sentences({"tight": run(1000, 5, 600, 0)}, {"tight": {"stalled: NoC": 400}}),)
    assert found[0].startswith("Tight: firmware around the NPU's work limits the run: 600 of 1,000 cycles (60%)")
    assert "limited by the busiest tensor engine" not in sentences({"tight": run(1000, 5, 0, 0)}, {})[0]
    assert sentences({"tight": {**run(9, 1), "stop_reason": "interrupted"}}, {}) == []


def test_nothing_submitted_has_no_table() -> None:
    assert cycles({"tight": {"cycles": 5, "cycles_parts": None}}, Config(), {}) == []


def test_advice_names_keys_of_the_configuration() -> None:
    named = [key for text in ADVICE.values() for key in re.findall(r"npu\.[a-z_.]+", text)]
    assert len(named) >= 8 and set(named) <= set(keys_of(Config))


def test_the_advice_of_a_decoder_makes_it_faster(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    line = ["run", "llama2-7b", "--layers", "1", "--json", "--report", str(tmp_path)]
    assert main(line) == 0
    first = json.loads(capsys.readouterr().out)
    assert "Try more DRAM bandwidth (npu.dram.bytes_per_second)" in (tmp_path / "report.html").read_text()
    key = "npu.dram.bytes_per_second"
    bandwidth = re.search(f"{key}: ([0-9_]+)", (tmp_path / "run.yaml").read_text().replace("\n", " "))
    value = load().config.npu.dram.bytes_per_second if bandwidth is None else int(bandwidth[1])
    assert value is not None and main([*line[:5], "--set", f"{key}={2 * value}"]) == 0
    assert json.loads(capsys.readouterr().out)["cycles"] < 0.8 * first["cycles"]


def test_key_figures_are_those_of_the_run() -> None:
    hertz = {"npu.clock_hz": 1_000_000_000}
    configs = {"tight": load(overrides=hertz).config}
    figures = key_figures({"tight": {**run(3000, 39), "instret": 1500, "exit_code": 0}}, configs, {})
    assert [(each.name, each.value) for each in figures] == [
        ("tight.t_submit.p50.time", "39 ns"), ("tight.time", "3 us"), ("tight.ipc", "0.5"), ("tight.stop", "exit"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (39e-9, "s", "39 ns"), (0.0123456, "s", "12.35 ms"), (75, "s", "75 s"), (1536, "bytes", "1.5 KiB"),
        (3 * 2**30, "bytes", "3 GiB"), (512, "bytes", "512 bytes"), (1.2e12, "ops/s", "1.2 TOPS"),
        (204.8e9, "bytes/s", "204.8 GB/s"), (0.7233, "share", "72.3 %"), (0.0, "share", "0 %"), (3.2e-3, "J", "3.2 mJ"),
        (104_972, "cycles", "104,972 cycles"), (56_912.4, "cycles", "56,912 cycles"),
        (None, "s", "-"),
    ],
)  # fmt: skip
def test_a_quantity_has_its_prefix_and_no_exponent(value: float | None, unit: str, text: str) -> None:
    assert quantity(value, unit) == text
