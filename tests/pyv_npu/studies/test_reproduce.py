"""`pyv-npu reproduce chained-ve`: the paper's tables, its experiment, the sweep, the report, the page."""

import csv
import json
import re
from pathlib import Path
from typing import Any

import pytest

from npu_device.config import ChainedConfig, NpuConfig, SpmConfig, TeConfig
from pyv_npu.cli.main import main
from pyv_npu.config.shape_file import shape_of
from pyv_npu.report.vega import draw
from pyv_npu.studies.reproductions.chained_ve import LENGTHS, SIZES, STEPS, case, crossover, grid
from pyv_npu.studies.reproductions.chained_ve_page import dataflow_picture

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "chained-ve.md"


def told(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> str:
    assert main(["reproduce", *arguments]) == code
    shown = capsys.readouterr()
    return shown.out if not code else shown.err


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("reproduce") / "report"
    assert main(["reproduce", "chained-ve", "--json", "--report", str(folder)]) == 0
    return folder


def result(made: Path) -> Any:
    return json.loads((made / "result.json").read_text(encoding="utf-8"))


def test_the_tables_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    text = told(capsys, "chained-ve")
    for row in (
        "16              24 -> 17", "256       4,224 -> 4,112      2,176 -> 2,056    1,152 -> 1,028",
        "2048  263,168 -> 262,272  132,096 -> 131,136  66,560 -> 65,568", "plain engines     4,224          1",
        "mask skip           272          8", "constants: lanes 16, channel_bytes 32, lat 16, restart 2",
        "plain engines  102,432", "chained         34,848", "mask skip       33,168",
        "chained over plain, published about 3  2.94 x", "mask skip, published about 5 %         5.1 %",
    ):  # fmt: skip
        assert row in text, row


def test_the_result_says_what_is_exact_and_what_is_calibrated(made: Path) -> None:
    got = result(made)
    assert got["exact"] is True
    assert got["key_accesses"] == {"plain": 4224, "tile": 528, "dataflow": 272}
    experiment = got["experiment"]
    assert experiment["cycles"] == {"plain": 102_432, "tile": 34_848, "dataflow": 33_168}
    assert experiment["calibrated"] == {
        "lanes": 16, "channel_bytes": 32, "lat": 16, "restart": 2, "double_buffer": True
    }  # fmt: skip
    assert len(got["table"]) == 21


def test_the_sweep_covers_lengths_and_engines(made: Path) -> None:
    rows = result(made)["sweep"]
    assert [(row["length"], row["engines"]) for row in rows] == [(length, t) for length in LENGTHS for t in SIZES]
    for row in rows:
        length, t = row["length"], row["engines"]
        assert row["cycles_plain"] > row["cycles_tile"] >= row["cycles_dataflow"]
        assert row["key_accesses_plain"] == t * row["key_accesses_tile"]
        assert row["utilization_plain"] < row["utilization_tile"] <= row["utilization_dataflow"] <= 1
        assert row["gain"] == row["cycles_tile"] / row["cycles_dataflow"]
        if length >= 2 * t:
            assert row["key_accesses_dataflow"] < row["key_accesses_tile"]
            assert row["buffer_bytes_dataflow"] == 4 * t * 256 == 2 * row["buffer_bytes_tile"]
    with (made / "sweep.csv").open(encoding="utf-8") as file:
        assert [float(row["gain"]) for row in csv.DictReader(file)] == [row["gain"] for row in rows]


@pytest.mark.parametrize("engines", SIZES)
def test_the_crossover_by_steps_is_that_of_the_closed_form(engines: int) -> None:
    """(L + T) / (L + 1) - 1 < 1 %."""
    length = crossover(STEPS, engines, 1)
    assert length is not None
    assert (engines - 1) / (length + 1) < 0.01 <= (engines - 1) / (length - 2 * engines + 1)


def test_the_crossover_with_constants_is_where_the_gain_crosses() -> None:
    length = crossover(ChainedConfig(), 32, 128)
    assert length == 7488
    around = [case(ChainedConfig(), one, 32, 128).gain - 1 < 0.01 for one in (length - 64, length)]
    assert around == [False, True]
    assert crossover(ChainedConfig(), 8, 128) is None, "a restart in 66 cycles, or in 258"


def test_key_bandwidth_ends_the_scaling_of_chains(made: Path) -> None:
    rows = result(made)["grid"]
    assert [row["chains"] for row in rows] == [1, 2, 4, 8, 16]
    speed = [rows[0]["cycles"] / row["cycles"] for row in rows]
    assert speed == sorted(speed)
    assert speed[2] > 3.5 and speed[4] < 0.75 * 16, "nearly free up to four chains, far from it with 16"
    assert all(row["bytes_per_cycle"] <= 8 * 64 for row in rows)
    wide = grid(NpuConfig(te=TeConfig(kind="chained_ve"), spm=SpmConfig(port=1024)), shape_of("opt-6.7b"), 256)
    assert wide[0].cycles / wide[4].cycles > speed[4] + 3, "with wider ports 16 chains are worth more"


def test_the_report_shows_all_of_it(made: Path) -> None:
    page = (made / "report.html").read_text(encoding="utf-8")
    for text in ("263,168 -&gt; 262,272", "102,432", "2.94 x", "Gain of the mask skip", "engine 3", "calibrated"):
        assert text in page, text
    assert {path.name for path in made.iterdir()} == {
        "report.html", "result.json", "run.yaml", "summary.txt", "manifest.json", "sweep.csv",
    }  # fmt: skip
    assert main(["reproduce", "chained-ve", "--json", "--report", str(made)]) == 0, "a report takes the place of one"


@pytest.mark.parametrize("shape", ["llama3-8b", "mistral-7b"])
def test_any_built_in_shape(shape: str, capsys: pytest.CaptureFixture[str]) -> None:
    got = json.loads(told(capsys, "chained-ve", "--json", "--shape", shape, "--set", "npu.te.chained.restart=0"))
    assert got["experiment"]["shape"] == shape
    assert got["experiment"]["calibrated"]["restart"] == 0
    assert got["experiment"]["cycles"]["dataflow"] == 33_168 - 2 * 136


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("oven",), 64, "reproduce oven: unknown; there is chained-ve"),
        (("chained-ve", "--shape", "gpt-9"), 65, "gpt-9: no built-in model; there are llama2-7b, "),
        (("chained-ve", "--set", "npu.te.chained.lanes=0"), 64,
         "command line: npu.te.chained.lanes = 0: must be an integer from 1 to 4096 (default 16)"),
        (("chained-ve", "--set", "npu.te.chained.T=-1"), 64,
         "command line: npu.te.chained.T = -1: must be an integer from 1 to 256 (default 8)"),
        (("chained-ve", "--set", "npu.te.chained.mask_skip=all"), 64,
         "command line: npu.te.chained.mask_skip = all: must be one of none, tile, dataflow"),
        (("chained-ve", "--set", "npu.te.chained.lanes=48"), 64,
         "opt-6.7b: heads of 128 elements must be a multiple of npu.te.chained.lanes = 48; set another number"),
        (("chained-ve", "--set", "npu.te.chained.engines=8"), 64, "command line: npu.te.chained.engines: unknown key"),
        (("chained-ve", "--report", "/dev/null"), 64, "--report /dev/null: is not a folder; name a new one"),
    ],
)  # fmt: skip
def test_bad_input_is_one_line(
    arguments: tuple[str, ...], code: int, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    text = told(capsys, *arguments, code=code)
    assert text.startswith(f"pyv-npu: error: {message}")
    assert text.count("\n") == 1


# -- the page ----------------------------------------------------------------------------------------------------------


def cells(svg: str) -> list[str]:
    """What stands in the cells of the picture."""
    return re.findall(r">(q\d+ k\d+)</text>", svg)


def test_the_picture_of_the_page_is_the_simulation() -> None:
    kept = (ROOT / "docs" / "chained_ve.svg").read_text(encoding="utf-8")
    assert "(chained_ve.svg)" in PAGE.read_text(encoding="utf-8")
    assert cells(kept) == cells(draw(dataflow_picture(), "svg").decode())
    assert len(cells(kept)) == 4 * 9
    met = [tuple(map(int, re.findall(r"\d+", cell))) for cell in cells(kept)]
    assert sorted(met) == [(query, key) for query in range(8) for key in range(query + 1)]


def test_the_figures_of_the_page_are_those_of_the_command(made: Path) -> None:
    text, got = PAGE.read_text(encoding="utf-8"), result(made)
    speed = [got["grid"][0]["cycles"] / row["cycles"] for row in got["grid"]]
    for figure in (f"{got['grid'][0]['cycles']:,} cycles", f"{speed[3]:.1f} times", f"{speed[4]:.1f} times"):
        assert figure in text.replace("\n", " "), figure
    for cycles in got["experiment"]["cycles"].values():
        assert f"{cycles:,}" in text


def test_the_parameters_of_the_page_are_the_configuration() -> None:
    text, default = PAGE.read_text(encoding="utf-8"), ChainedConfig()
    for name in ("T", "lanes", "channel_bytes", "lat", "restart", "mask_skip", "double_buffer"):
        assert f"| `{name}` | {str(getattr(default, name)).lower()} |" in text
