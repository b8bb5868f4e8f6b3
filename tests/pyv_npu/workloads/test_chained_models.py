"""Models and decoders on chains of vector engines: the ONNX reference at every level, in both modes and forms."""

import json
from pathlib import Path
from typing import Any

import onnx
import pytest
from onnx import TensorProto, helper
from shares import slow

from pyv_npu.boot import find_program
from pyv_npu.cli.main import main
from pyv_npu.config import load
from pyv_npu.platform import Platform
from pyv_npu.snapshot import Snapshot
from toolchain.examples import DECODERS, EXAMPLES

CHAINED = ["--set", "npu.te.kind=chained_ve"]
RUNS = [("IA", "tight"), ("IA_TIMING", "tight"), ("CA_HYBRID", "loose"), ("CA_HYBRID", "tight")]


def told(capsys: pytest.CaptureFixture[str], model: Path, *more: str) -> Any:
    assert main(["run", str(model), *CHAINED, "--json", *more]) == 0
    return json.loads(capsys.readouterr().out)


def attention(path: Path, tokens: int = 40, mask: bool = False, **attributes: Any) -> Path:
    """One Attention of four heads on two of keys and values; `mask`: a tensor says which pairs count."""
    value = helper.make_tensor_value_info
    inputs = [
        value(name, TensorProto.FLOAT, [1, tokens, 16 * heads]) for name, heads in zip("qkv", (4, 2, 2), strict=True)
    ]
    if mask:
        inputs.append(value("mask", TensorProto.FLOAT, [tokens, tokens]))
    node = helper.make_node(
        "Attention", [one.name for one in inputs], ["y"], name="a", q_num_heads=4, kv_num_heads=2, **attributes
    )
    outputs = [value("y", TensorProto.FLOAT, [1, tokens, 64])]
    opset = 25 if any("window" in name for name in attributes) else 23
    made = helper.make_model(
        helper.make_graph([node], "g", inputs, outputs), opset_imports=[helper.make_opsetid("", opset)], ir_version=11
    )
    onnx.save(made, str(path))
    return path


@pytest.mark.parametrize("granularity", ["macro", *slow("tile")])
@pytest.mark.parametrize("name", ["decoder", "decoder_fp16", "cnn"])
def test_models_equal_the_reference(
    name: str, granularity: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "model.onnx"
    onnx.save(EXAMPLES[name](), str(path))
    hashes = set()
    for level, mode in RUNS:
        made = told(capsys, path, "--granularity", granularity, "--sim-level", level, "--mode", mode)
        assert all(check["ok"] for check in made["model"]["checks"].values()), (level, mode)
        hashes.add(json.dumps(made["model"]["outputs_sha256"]))
    assert len(hashes) == 1, "the same outputs at every level"


@pytest.mark.parametrize("skip", ["none", "tile", "dataflow"])
@pytest.mark.parametrize("attributes", [{"is_causal": 1, "left_window_size": 9}, *slow({}, {"is_causal": 1})], ids=str)
def test_attention_with_every_mask_equals_the_reference(
    attributes: dict[str, Any], skip: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = attention(tmp_path / "a.onnx", **attributes)
    for level, mode in RUNS:
        chain = ["--set", f"npu.te.chained.mask_skip={skip}", "--set", "npu.te.chained.T=4"]
        made = told(capsys, path, *chain, "--sim-level", level, "--mode", mode)
        assert all(check["ok"] for check in made["model"]["checks"].values()), (level, mode)


def test_only_masks_that_the_command_has_save_time(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def cycles(path: Path, skip: str) -> int:
        chain = ["--set", f"npu.te.chained.mask_skip={skip}", "--sim-level", "IA_TIMING"]
        return int(told(capsys, path, *chain)["cycles"])

    causal, given = attention(tmp_path / "c.onnx", 128, is_causal=1), attention(tmp_path / "m.onnx", 128, mask=True)
    none, tile, dataflow = (cycles(causal, skip) for skip in ("none", "tile", "dataflow"))
    assert none > tile > dataflow
    assert len({cycles(given, skip) for skip in ("none", "tile", "dataflow")}) == 1, "products have no mask to skip"


@pytest.mark.parametrize("name", ["decoder_kv_int8_cache", *slow("decoder_kv", "decoder_kv_mha_fp16")])
def test_decoders_generate_the_tokens_of_the_reference(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Prefill of eleven tokens, then tokens one by one, with caches of floats and of codes."""
    path = tmp_path / "decoder.onnx"
    onnx.save(DECODERS[name](), str(path))
    tokens = set()
    for level, mode in RUNS:
        asked = ["--prompt", "3,1,4,1,5,9,2,6,5,3,5", "--generate", "3", "--sim-level", level, "--mode", mode]
        made = told(capsys, path, *asked)["generate"]
        assert all(step["ok"] for step in made["steps"]), (level, mode)
        assert [step["next"] for step in made["steps"]] == [step["reference_next"] for step in made["steps"]]
        tokens.add(tuple(made["tokens"]))
    assert len(tokens) == 1


def test_a_run_can_be_saved_while_a_chain_works(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The same events after a snapshot in the midst of attention."""
    path = attention(tmp_path / "a.onnx", 64, is_causal=1)
    assert main(["compile", str(path), "-o", str(tmp_path / "out"), *CHAINED]) == 0
    capsys.readouterr()
    settings = {"npu.te.kind": "chained_ve", "npu.te.count": 3, "npu.te.chained.T": 4}

    def machine() -> Platform:
        platform = Platform(load(overrides=settings).config)
        platform.load(find_program(str(tmp_path / "out" / "image.elf")))
        return platform

    whole = machine()
    whole.run()
    half, middle = machine(), machine()
    half.run(until=whole.cycle // 2)
    assert any(half.npu.counters.busy(unit, half.cycle) for unit in (0x100, 0x101, 0x102)), "a chain is at work"
    middle.restore(Snapshot.from_bytes(half.save().to_bytes()))
    middle.run()
    assert (middle.cycle, middle.events.hexdigest()) == (whole.cycle, whole.events.hexdigest())


def test_the_report_names_what_a_chain_lost(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = attention(tmp_path / "a.onnx", 64, is_causal=1)
    told(capsys, path, "--set", "npu.te.chained.double_buffer=false", "--report", str(tmp_path / "report"))
    page = (tmp_path / "report" / "report.html").read_text(encoding="utf-8")
    for cause in ("query load of a chain", "tile restart of a chain"):
        assert cause in page
    rows = (tmp_path / "report" / "timeline.csv").read_text(encoding="utf-8").splitlines()
    causes = {row.split(",")[8] for row in rows if row.startswith("te") and ",STALL," in row}
    assert {"query_load", "tile_restart"} <= causes
