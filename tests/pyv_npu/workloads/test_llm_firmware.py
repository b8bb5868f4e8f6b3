"""Built-in decoder models through the core: the same commands in DRAM that the core does not see to its end."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from shares import slow

from npu_device.abi.memory_map import DRAM_BASE, DRAM_CORE_VISIBLE
from pyv_npu.boot import find_program
from pyv_npu.cli.main import main
from pyv_npu.config import load
from pyv_npu.config.tree import Config
from pyv_npu.errors import UsageError
from pyv_npu.platform import Platform
from pyv_npu.workloads.built_in import DRAM_BYTES, BuiltIn, PhaseRequest, build

REQUEST = PhaseRequest("mistral-7b", context=99, layers=2, requests=2)


def config(mode: str) -> Config:
    return load(overrides={"npu.mode": mode, "npu.dram.size": DRAM_BYTES}).config


@pytest.mark.parametrize("layers", [1, *slow(2)])
@pytest.mark.parametrize("mode", ["loose", "tight"])
def test_firmware_submits_the_same_commands(mode: str, layers: int) -> None:
    request = REQUEST._replace(layers=layers)
    alone = BuiltIn(request).run(config(mode)).json
    ran = BuiltIn(request, through_firmware=True).run(config(mode))
    made = ran.json
    assert ran.core is not None
    assert ran.stop.code == 0
    assert made["npu"]["errors"] == 0
    assert made["npu"]["completed"] == alone["llm"]["commands"]
    for figure in ("kv_tokens", "kv_layers", "bound"):
        assert made["llm"][figure] == alone["llm"][figure]
    fetched = 64 * made["npu"]["accepted"] if mode == "loose" else 0
    assert made["npu"]["dram_bytes_read"] == alone["npu"]["dram_bytes_read"] + fetched
    assert made["cycles"] > alone["cycles"]


def test_nothing_lies_across_the_end_of_what_the_core_sees() -> None:
    request = REQUEST._replace(name="llama2-70b")
    program = build(config("tight").npu, request).program
    edge = DRAM_BASE + DRAM_CORE_VISIBLE
    tensors = [one for one in program.graph.tensors.values() if not one.view_of]
    ends = {one.id: (program.address(one.id), program.address(one.id) + one.size) for one in tensors}
    assert max(end for _, end in ends.values()) > edge >= program.end
    assert not any(begin < edge < end for begin, end in ends.values())
    assert all(program.address(name) < edge for name in program.graph.inputs)
    assert BuiltIn(request._replace(layers=1), through_firmware=True).run(config("tight")).json["npu"]["errors"] == 0


def test_a_prefill_goes_through_firmware_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["run", "llama3-8b", "--phase", "prefill", "--tokens", "8", "--layers", "1", "--mode", "loose"]
    assert main([*words, "--json", "--report", str(tmp_path)]) == 0
    made = json.loads(capsys.readouterr().out)
    assert (made["mode"], made["llm"]["phase"]) == ("loose", "prefill")
    assert "layer0.ffn" in (tmp_path / "timeline.csv").read_text()
    assert main(["run", "--replay", str(tmp_path / "run.yaml"), "--json"]) == 0
    assert "the events are those of the recorded run" in capsys.readouterr().err


@pytest.mark.slow
def test_loose_against_tight(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["compare", "mistral-7b", "--context", "99", "--layers", "1", "--json"]
    assert main([*words, "--report", str(tmp_path)]) == 0
    made = json.loads(capsys.readouterr().out)
    assert made["same_results"] is True
    for mode in ("loose", "tight"):
        run = BuiltIn(PhaseRequest("mistral-7b", context=99, layers=1), through_firmware=True).run(config(mode)).json
        assert (made[mode]["cycles"], made[mode]["llm"]) == (run["cycles"], run["llm"])
    assert "layer0.ffn" in (tmp_path / "loose" / "timeline.csv").read_text()
    assert main(["run", "--replay", str(tmp_path), "--json"]) == 0
    assert "the events are those of the recorded run" in capsys.readouterr().err


def test_what_needs_no_core_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "llama2-7b", "--mode", "tight", "--sim-level", "IA_TIMING"]) == 64
    assert "--sim-level IA_TIMING: firmware runs at CA_HYBRID; drop --mode" in capsys.readouterr().err


def test_a_snapshot_of_more_dram_than_the_core_sees_is_refused() -> None:
    big = config("tight")
    platform = Platform(replace(big, run=replace(big.run, max_cycles=100)))
    platform.load(find_program("hello"))
    with pytest.raises(UsageError, match="a snapshot holds what the core sees"):
        platform.save()
