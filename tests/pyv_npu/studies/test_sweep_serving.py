"""`pyv-npu sweep "serve MODEL ..."`: points of a served workload."""

import csv
import json
import re
from pathlib import Path
from typing import Any

import pytest
from shares import slow

from pyv_npu.cli import main
from pyv_npu.serving.study import Serving
from pyv_npu.studies.sweep.effects import pareto
from pyv_npu.studies.sweep.figures import select_figures
from pyv_npu.studies.sweep.table import Table

SMALL = """
layers: 4
width: 256
heads: 4
kv_heads: 4
head_dim: 64
ffn: 512
vocab: 512
gated: false
norm: LAYER
activation: GELU
qkv_bias: true
parallel: false
"""
LLAMA = "serve llama2-7b --first 2"
MORE = "--first 2 --input 8 --output 2 --check-steps 0 --slo ttft=100ms,tpot=50ms"
AXES = ["kv=fp16", "rate=20,40", "npu.dram.size=64000000,900000"]


@pytest.fixture
def serve(tmp_path: Path) -> str:
    """A command that serves a small model."""
    (tmp_path / "small.yaml").write_text(SMALL)
    return f"serve {tmp_path / 'small.yaml'} {MORE}"


def rows_of(folder: Path) -> list[dict[str, str]]:
    with (folder / "table.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize("program", ["nomodel", "hello", "decoder_kv"])
def test_a_model_that_is_not_there_is_one_line_with_the_models(
    program: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["sweep", f"serve {program}", "rate=1,2", "-o", str(tmp_path)]) == 65
    error = capsys.readouterr().err
    assert error.startswith(f"pyv-npu: error: {program}: no built-in model; there are llama2-7b, ")
    assert "run_model" not in error and error.count("\n") == 1


def test_points_of_a_served_workload_are_its_runs(
    serve: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Equal products are simulated once for all points; a server without room is a row with its reason."""
    products: list[Any] = []
    original = Serving.run

    def run(self: Serving, known: Any, *rest: Any) -> Any:
        products.append(known)
        return original(self, known, *rest)

    monkeypatch.setattr(Serving, "run", run)
    sweep = ["sweep", serve, *AXES, "--workers", "1", "-o", str(tmp_path / "out")]
    assert main(sweep) == 0
    assert len(products) == 2 and products[0] is products[1]
    rows = rows_of(tmp_path / "out")
    assert [(row["kv"], row["rate"], bool(row["error"])) for row in rows] == [
        ("fp16", "20", False), ("fp16", "20", True), ("fp16", "40", False), ("fp16", "40", True)
    ]  # fmt: skip
    assert "leave no room for a block" in rows[1]["error"]
    text = capsys.readouterr().out
    assert "has the most goodput" in text and "Change rate first: it moves the mean of goodput" in text
    assert main([*sweep, "--point", "3", "--report", str(tmp_path / "point")]) == 0
    single = json.loads((tmp_path / "point/result.json").read_text())
    assert (single["kv"], single["goodput"]) == ("fp16", float(rows[2]["goodput"]))
    assert single["ttft_ns"]["p99"] / 1e9 == float(rows[2]["ttft_p99"])
    assert single["blocks"]["total"] == int(rows[2]["blocks_total"])
    before = len(products)
    assert main([*sweep, "--pareto", "goodput,ttft_p99"]) == 0 and len(products) == before
    caption = r"[12] of 2 points are beaten by no other in goodput \(large is good\), ttft_p99 \(small is good\)"
    assert re.search(caption, (tmp_path / "out/report.html").read_text())


def test_a_large_rate_is_good_on_the_front() -> None:
    figures = select_figures(["goodput", "ttft_p99"])
    values = ((1, 1.0, 0.1), (2, 2.0, 0.2), (3, 2.0, 0.3), (4, 0.5, 0.1), (5, 3.0, 0.9))
    rows = [{"point": point, "goodput": rate, "ttft_p99": time, "error": None} for point, rate, time in values]
    assert [row["point"] for row in pareto(Table((), figures, rows), "goodput", "ttft_p99")] == [5, 2, 1]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([LLAMA, "colour=red"], "axis colour: names no key of the configuration (--print-config lists them), "
         "no option of serve, and no argument of the program"),
        ([LLAMA, "first=1,2"], "axis first: first is set for all points too; drop one of them"),
        ([LLAMA, "rate=1,2", "--layers", "2"], "--layers: is for points of run; write it behind serve "
         "llama2-7b"),
        ([LLAMA, "rate=1,2", "--set", "npu.te.count=2"], "--set: is for points of run; write it behind serve "
         "llama2-7b"),
        (["serve llama2-7b --colour red", "rate=1,2"], "unrecognized arguments: --colour red; see pyv-npu serve "
         "--help"),
        (["serve llama2-7b --mode loose", "rate=1,2"], "--mode loose: is how firmware submits; add --scheduler "
         "firmware"),
    ],
)  # fmt: skip
def test_a_wrong_sweep_is_one_line(
    words: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["sweep", *words, "-o", str(tmp_path / "out")]) in (64, 65)
    error = capsys.readouterr().err
    assert message in error and error.splitlines()[-1].startswith("pyv-npu: "), error


@pytest.mark.parametrize("scheduler", slow("firmware"))
def test_firmware_that_schedules_submits_in_both_modes(scheduler: str, serve: str, tmp_path: Path) -> None:
    words = f"{serve} --workload burst --scheduler {scheduler}"
    assert main(["sweep", words, "max-num-seqs=1,4", "--figures", "control", "-o", str(tmp_path / "out")]) == 0
    rows = rows_of(tmp_path / "out")
    assert [row["mode"] for row in rows] == ["loose", "tight"] * 2
    assert all(
        float(loose["control"]) > float(tight["control"]) for loose, tight in zip(rows[::2], rows[1::2], strict=True)
    )
