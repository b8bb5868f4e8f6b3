"""Traffic by role, keys and values, and the comparison over widths: sums against the events, pages in a browser."""

import csv
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from browser import chromium, open_page
from hypothesis import given, settings
from hypothesis import strategies as st
from shares import draws

from npu_device.abi import DESCRIPTOR_SIZE, EXTENDED_SIZE
from npu_device.trace.events import ROLE, WRITES, What
from npu_device.trace.records import RECORD
from pyv_npu import Simulator
from pyv_npu.cli import main
from pyv_npu.observe.analysis.traffic import ROLES, RoleTraffic
from pyv_npu.report.memory import NAMES
from pyv_npu.report.page import render
from pyv_npu.report.vega import charts_of
from pyv_npu.sections import Chart, Section
from pyv_npu.units import quantity
from toolchain.examples import EXAMPLES
from toolchain.examples.decoder_kv import decoder_kv

GENERATE = ["--generate", "3", "--prompt", "1,2,3", "--set", "npu.te.count=1"]
"""With one engine nothing is measured while a step is compiled."""


def plainly(records: Any) -> dict[str, dict[str, int]]:
    """The same figures, record by record."""
    found = {role: dict.fromkeys(("read", "written", "bytes_total", "bytes_aligned"), 0) for role in ROLES}
    begun: dict[int, int] = {}
    for record in records:
        unit, what, aux = int(record["unit"]), int(record["what"]), int(record["aux"])
        if what == What.DMA_BEGIN:
            begun[unit] = aux
        elif what == What.DMA_END:
            of = found[ROLES[begun[unit] // ROLE % 8]]
            of["written" if begun[unit] & WRITES else "read"] += aux
            of["bytes_total"] += int(record["bytes"])
            of["bytes_aligned"] += aux
    return found


def shown(traffic: dict[str, Any]) -> dict[str, dict[str, int]]:
    return {
        role: {key: traffic[role][key] for key in ("read", "written", "bytes_total", "bytes_aligned")} for role in ROLES
    }


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    onnx.save(EXAMPLES["cnn"](), folder / "cnn.onnx")
    onnx.save(decoder_kv(), folder / "decoder.onnx")
    return folder


@pytest.mark.parametrize("arguments", [
    {"mode": "tight"}, {"mode": "loose"}, {"mode": "tight", "granularity": "tile"},
    {"mode": "tight", "settings": {"npu.dma.partial_write": "rmw", "npu.dma.alignment": 256}},
])  # fmt: skip
def test_traffic_is_that_of_the_events_exactly(models: Path, arguments: dict[str, Any]) -> None:
    made = Simulator(models / "cnn.onnx", **arguments).run()
    traffic = made.json["traffic"]
    assert shown(traffic) == plainly(record for batch in made._result.batches for record in batch)
    for key in ("read", "written", "bytes_total", "bytes_aligned"):
        assert traffic["total"][key] == sum(traffic[role][key] for role in ROLES)
    npu = made.json["npu"]
    ring = DESCRIPTOR_SIZE * npu["accepted"] if arguments["mode"] == "loose" else 0
    assert traffic["total"]["read"] + ring == npu["dram_bytes_read"]
    assert traffic["total"]["written"] == npu["dram_bytes_written"]
    assert traffic["weight"]["written"] == traffic["kv"]["bytes_total"] == 0 < traffic["weight"]["bytes_total"]
    blocks = sum(command.block is not None for command in made._result.commands)
    assert traffic["descriptors"] == DESCRIPTOR_SIZE * npu["accepted"] + EXTENDED_SIZE * blocks


@settings(max_examples=draws(40), deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(1, 60), st.lists(st.integers(1, 59), max_size=6))
def test_batches_may_be_cut_anywhere(seed: int, count: int, cuts: list[int]) -> None:
    """Channels that work one transfer after the other, their records mixed, in batches of any size."""
    rng = np.random.default_rng(seed)
    records, busy = [], dict[int, int]()
    for _ in range(count):
        unit = 0x300 + int(rng.integers(3))
        if unit in busy:
            records.append((unit, What.DMA_END, 1, busy.pop(unit), int(rng.integers(0, 999))))
        else:
            busy[unit] = int(rng.integers(1, 999))
            aux = int(rng.integers(3)) * ROLE | int(rng.integers(2)) * WRITES | 1
            records.append((unit, What.DMA_BEGIN, 1, busy[unit], aux))
    table = np.zeros(count, RECORD)
    for name, column in zip(("unit", "what", "ticket", "bytes", "aux"), zip(*records, strict=True), strict=True):
        table[name] = column
    traffic = RoleTraffic()
    for batch in np.split(table, sorted(cut for cut in cuts if cut < count)):
        traffic.add(batch)
    assert shown(traffic.to_json()) == plainly(table)


def test_the_timed_levels_move_the_same(models: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = []
    for more in (["--sim-level", "IA_TIMING"], ["--timing-only"], []):
        assert main(["run", str(models / "cnn.onnx"), "--json", *more]) == 0
        found.append(shown(json.loads(capsys.readouterr().out)["traffic"]))
    assert found[0] == found[1] == found[2]
    assert main(["run", str(models / "cnn.onnx"), "--json", "--sim-level", "IA"]) == 0
    assert json.loads(capsys.readouterr().out)["traffic"] is None


@pytest.mark.parametrize("level", ["IA_TIMING", "CA_HYBRID"])
def test_keys_and_values_are_the_transfers_of_their_role(
    models: Path, level: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Per token and per layer the payload of role kv, of ONNX decoders and built-in models. The log of a decoder's
    logits is activations."""
    for words, key in (
        ([str(models / "decoder.onnx"), *GENERATE], "generate"),
        (["llama2-7b", "--layers", "1"], "llm"),
    ):
        assert main(["run", *words, "--sim-level", level, "--json"]) == 0
        run = json.loads(capsys.readouterr().out)
        tokens, layers, traffic = run[key]["kv_tokens"], run[key]["kv_layers"], run["traffic"]["kv"]
        moved = traffic["bytes_total"]
        assert sum(one["bytes_k"] + one["bytes_v"] for one in tokens) == moved > 0
        assert sum(one["kv_bytes_read"] + one["kv_bytes_written"] for one in layers) == moved


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with chromium(tmp_path_factory.mktemp("profile")) as page:
        yield page


def figures(report: Path, browser: Any) -> dict[str, str]:
    """What a page shows, by the name of each figure; it opens without an error."""
    open_page(browser, report / "report.html")
    found: dict[str, str] = browser.execute_script(
        "return Object.fromEntries([...document.querySelectorAll('[data-figure]')]"
        ".map((cell) => [cell.dataset.figure, cell.dataset.value ?? cell.innerText]))"
    )
    assert not [entry for entry in browser.get_log("browser") if entry["level"] in ("SEVERE", "WARNING")]
    return found


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_a_report_shows_roles_layers_tokens_and_capacity(
    tmp_path: Path, browser: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "out"
    assert main(["run", "mistral-7b", "--layers", "2", "--context", "63", "--json", "--report", str(folder)]) == 0
    run = json.loads(capsys.readouterr().out)
    page = figures(folder, browser)
    for role in (*ROLES, "total"):
        for key in ("read", "written", "bytes_total", "bytes_aligned"):
            assert page[f"CA_HYBRID.traffic.{role}.{key}"] == str(run["traffic"][role][key])
    for role in ROLES:
        layers = [row for row in rows(folder / "metrics.csv") if row["metric"] == f"moved_{role}"]
        assert sum(int(row["value"]) for row in layers) == run["traffic"][role]["bytes_aligned"]
        assert all(page[f"CA_HYBRID.traffic.{row['name']}.{NAMES[role]}, aligned"] == row["value"] for row in layers)
    for key, value in run["llm"]["kv_capacity"].items():
        assert page[f"CA_HYBRID.capacity.{key}"] == quantity(value, "bytes" if "bytes" in key else "")
    (token,) = run["llm"]["kv_tokens"]
    assert page["CA_HYBRID.token.63.keys moved"] == str(token["bytes_k"])
    for layer in run["llm"]["kv_layers"]:
        for key, head in (("kv_bytes_read", "traffic: read"), ("kv_bytes_alloc", "footprint: t_max")):
            assert page[f"CA_HYBRID.kv_layer.{layer['layer']}.{head}"] == str(layer[key])
    written = {row["role"]: row for row in rows(folder / "traffic.csv")}
    assert all(int(written[role]["bytes_total"]) == run["traffic"][role]["bytes_total"] for role in written)


def test_tokens_of_a_conversation_are_drawn(models: Path, tmp_path: Path, browser: Any) -> None:
    folder = tmp_path / "out"
    assert main(["run", str(models / "decoder.onnx"), *GENERATE, "--json", "--report", str(folder)]) == 0
    page = figures(folder, browser)
    run = json.loads((folder / "result.json").read_text())
    for one in run["generate"]["kv_tokens"]:
        for key, head in (("bytes_k", "keys moved"), ("bytes_v", "values moved")):
            assert page[f"tight.token.{one['token']}.{head}"] == str(one[key])
    assert "Keys and values by token, tight" in (folder / "report.html").read_text(encoding="utf-8")


WIDTHS = "cycles,dma_cycles,bw_usage,tokens_per_second,kv_bytes_moved,kv_capacity,logits_error"


def test_widths_of_a_built_in_model_are_points(tmp_path: Path) -> None:
    words = ["llama2-7b", "--layers", "2", "--context", "8192"]
    assert main(["sweep", *words, "qbits-kv=16,2,8,4", "--figures", WIDTHS, "-o", str(tmp_path / "bits")]) == 0
    table = {int(row["qbits-kv"]): row for row in rows(tmp_path / "bits" / "table.csv")}
    least = int(table[2]["kv_bytes_moved"])
    assert [int(table[bits]["kv_bytes_moved"]) for bits in (2, 4, 8, 16)] == [least, 2 * least, 4 * least, 8 * least]
    tokens = [int(table[bits]["kv_capacity"]) for bits in (2, 4, 8, 16)]
    assert [tokens[0] // one for one in tokens] == [1, 2, 4, 8]
    assert main(["run", *words, "--qbits-kv", "8", "--report", str(tmp_path / "run")]) == 0
    run = json.loads((tmp_path / "run" / "result.json").read_text())
    row, seconds = table[8], run["cycles"] / 1.2e9
    assert int(row["cycles"]) == run["cycles"] and int(row["dma_cycles"]) == sum(run["npu"]["dma_busy"])
    assert float(row["bw_usage"]) == pytest.approx(run["traffic"]["total"]["bytes_aligned"] / seconds / 102.4e9)
    assert float(row["tokens_per_second"]) == pytest.approx(1 / seconds)
    assert int(row["kv_bytes_moved"]) == run["traffic"]["kv"]["bytes_total"] and row["logits_error"] == ""


@pytest.mark.slow
def test_widths_of_a_decoder_have_an_error(models: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = [str(models / "decoder.onnx"), *GENERATE, "--sim-level", "IA_TIMING"]
    assert main(["sweep", *words, "qbits-kv=2,4,8,16", "--figures", WIDTHS, "-o", str(tmp_path)]) == 0
    table = rows(tmp_path / "table.csv")
    errors = [float(row["logits_error"]) for row in table]
    assert errors == sorted(errors, reverse=True) and errors[0] > 10 * errors[2] > 0
    capsys.readouterr()
    assert main(["run", *words, "--qbits-kv", "4", "--json"]) == 0
    run = json.loads(capsys.readouterr().out)
    assert errors[1] == max(step["error"] for step in run["generate"]["steps"])
    rate = (len(run["generate"]["tokens"]) - 1) * 1.2e9 / sum(run["cycles_by_step"])
    assert float(table[1]["tokens_per_second"]) == pytest.approx(rate)
    moved = [int(row["kv_bytes_moved"]) for row in table]
    row, scales = moved[3] // 8, moved[0] - moved[3] // 8  # integers have 4 bytes more for each head and token
    assert moved == [row + scales, 2 * row + scales, 4 * row + scales, 8 * row] and scales == 384


def test_charts_of_runs_with_any_name_are_files() -> None:
    chart = Chart("kv_tokens_2 bits/x", "t", "c", {"mark": "bar"})
    (shown,) = charts_of(render("page", [], [], [Section("s", "S", [chart])]))
    assert shown == chart._replace(name="kv_tokens_2-bits-x")
