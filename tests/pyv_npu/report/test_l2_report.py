"""A model with an L2 and several DRAM channels: the same results, and reports that add up."""

import csv
import json
from pathlib import Path

import onnx
import pytest

from pyv_npu.cli import main
from toolchain.examples import EXAMPLES

L2 = ["--set", "npu.l2.enabled=true", "--set", "npu.l2.bytes=65536", "--set", "npu.dram.channels=2"]


@pytest.mark.parametrize("mode", ["tight", "loose"])
def test_layers_add_up_to_the_counters(tmp_path: Path, capsys: pytest.CaptureFixture[str], mode: str) -> None:
    model = tmp_path / "model.onnx"
    onnx.save(EXAMPLES["cnn"](), model)
    out = tmp_path / "out"
    assert main(["run", str(model), "--sim_level", "CA_HYBRID", "--mode", mode, *L2, "--report", str(out)]) == 0
    assert "\nL2 hits (lines)  " in capsys.readouterr().out
    npu = json.loads((out / "result.json").read_text())["npu"]
    assert npu["l2"]["hits"] and npu["l2"]["misses"] and not npu["l2"]["stale"]
    assert sum(npu["dram_channel_bytes"]) == npu["dram_bytes_read"] + npu["dram_bytes_written"]
    rows = list(csv.DictReader((out / "metrics.csv").open()))
    for metric, total in (("dram_read", npu["dram_bytes_read"]), ("dram_written", npu["dram_bytes_written"])):
        layers = [float(row["value"]) for row in rows if row["scope"] == "layer" and row["metric"] == metric]
        fetched = 64 * npu["accepted"] if mode == "loose" and metric == "dram_read" else 0
        assert sum(layers) + fetched == total
    causes = {row["name"]: float(row["value"]) for row in rows if row["scope"] == "cause"}
    assert causes["l2"] > 0
    assert sum(causes.values()) == next(float(row["value"]) for row in rows if row["metric"] == "npu_makespan")
