"""Decoders: NPU-IR with caches as a module and back; generated code that patches position and token."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from external_tools import missing, need
from golden_stages import FOLDER
from mlir_rig import PROGRAMS, assert_equal
from mlir_runner import LLC, OPT, TRANSLATE, verified

from pyv_npu.cli import main
from pyv_npu.config import load
from pyv_npu.workloads.compiled import GENERATED
from pyv_npu.workloads.decoder import Generation
from pyv_npu.workloads.generation import GenerationRequest
from toolchain.decoders.decoder import load_decoder, make_decoder
from toolchain.decoders.layers import load_layers
from toolchain.decoders.reference import Reference
from toolchain.examples.decoder_kv import decoder_kv
from toolchain.mlir.npu.graph import graph_of, module_of
from toolchain.mlir.text.dialect import print_module
from toolchain.mlir.text.source import MlirSource

PROMPT = (3, 1, 4, 1, 5)
SMALL: dict[str, Any] = {"layers": 1, "width": 32, "heads": 2, "kv_heads": 1, "vocab": 32}
REQUESTS = {
    "macro": GenerationRequest(PROMPT, 3),
    "tile": GenerationRequest(PROMPT, 3, granularity="tile"),
    "int4 caches": GenerationRequest(PROMPT, 3, kv_bits=4),
    "int8": GenerationRequest(PROMPT, 3, precision="int8"),
}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow) if name == "int8" else name for name in REQUESTS]
)
def test_a_graph_with_caches_comes_back_as_it_was(name: str) -> None:
    decoder = make_decoder(decoder_kv(**SMALL), "decoder_kv")
    program = Generation(decoder, REQUESTS[name]).prepare(load().config).compiled
    for graph in (program.stages[0][1], program.graph):
        for generic in (False, True):
            text = print_module(module_of(graph), generic=generic)
            if generic and not missing(OPT):
                text = verified(text, "--allow-unregistered-dialect")
            assert_equal(graph_of(MlirSource(text, "graph.mlir")), graph)


@pytest.mark.parametrize(
    ("name", "mode"),
    [
        pytest.param("macro", "loose", marks=pytest.mark.slow),
        ("macro", "tight"),
        pytest.param("tile", "tight", marks=pytest.mark.slow),
    ],
)
def test_generated_code_patches_position_and_token(name: str, mode: str) -> None:
    need(TRANSLATE, LLC, "riscv64-unknown-elf-gcc")
    decoder = make_decoder(decoder_kv(**SMALL), "decoder_kv")
    config = load(overrides={"npu.mode": mode, "npu.queue.command_size": 256}).config
    request = REQUESTS[name]
    firmware = Generation(decoder, request).run(config)
    generated = Generation(decoder, request._replace(submit=GENERATED)).run(config)
    assert generated.correct and generated.exit_code == 0
    assert generated.detail.tokens == firmware.detail.tokens
    figures = generated.json["generate"]
    assert figures["outputs_sha256"] == firmware.json["generate"]["outputs_sha256"]
    assert firmware.core is not None and generated.core is not None
    assert generated.core.order == firmware.core.order
    assert generated.core.outputs_sha256 == firmware.core.outputs_sha256
    assert len(figures["steps"]) == len(PROMPT) + 2
    assert len(generated.json["cycles_by_step"]) == 3
    submission = figures["submission"]
    assert submission["commands"] == figures["commands"]["prompt"] + 2 * figures["commands"]["step"]
    assert submission["generated_cycles"] < submission["firmware_cycles"]


def test_a_decoder_at_every_stage(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    need(TRANSLATE, LLC, "riscv64-unknown-elf-gcc")
    model = tmp_path / "decoder.onnx"
    onnx.save(decoder_kv(**SMALL), str(model))
    asked = [str(model), "--prompt", "3,1,4,1,5", "--generate", "3"]
    made = {}
    for stage in ("npu-mlir", "isa-mlir", "llvm", "asm", "elf"):
        out = tmp_path / f"decoder.{stage}"
        options = ["--submit", "generated"] if stage == "elf" else []
        assert main(["compile", *asked, "--emit", stage, *options, "-o", str(out)]) == 0
        made[stage] = out
    isa = made["isa-mlir"].read_text()
    assert "func.func @prompt() -> !npu.ticket" in isa
    assert "func.func @step(%position: i32, %token: i32) -> !npu.ticket" in isa
    assert isa.count("npu.patch %position") == isa.count("npu.patch %token") == 1
    assert "npu.kv_append" in made["npu-mlir"].read_text()
    assert "npu_generated_loose_tail_step" in made["asm"].read_text()
    need(OPT)
    verified(made["llvm"].read_text())
    capsys.readouterr()
    seen = []
    for command in (["run", *asked], ["run", str(made["elf"])]):
        assert main([*command, "--mode", "tight", "--json"]) == 0
        run = json.loads(capsys.readouterr().out)
        seen.append(run["outputs_sha256"])
    assert seen[0] == seen[1]


def emitted(folder: Path, **settings: Any) -> tuple[Path, Path]:
    """A decoder, and its NPU-IR for a prompt of 3 tokens and 3 more."""
    model, module = folder / "decoder.onnx", folder / "decoder.mlir"
    onnx.save(decoder_kv(**{**SMALL, **settings}), str(model))
    asked = ["--prompt", "3,1,4", "--generate", "3"]
    assert main(["compile", str(model), *asked, "--emit", "npu-mlir", "-o", str(module)]) == 0
    return model, module


@pytest.mark.parametrize("settings", [{}, pytest.param({"kind": "float16", "window": 2}, marks=pytest.mark.slow)])
def test_a_module_generates_what_its_decoder_generates(
    settings: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    seen = []
    for path in emitted(tmp_path, **settings):
        for level in (["--sim-level", "IA"], ["--mode", "tight"]):
            capsys.readouterr()
            assert main(["run", str(path), "--prompt", "3,1,4", "--generate", "3", *level, "--json"]) == 0
            run = json.loads(capsys.readouterr().out)
            figures = run["generate"]
            assert len(figures["steps"]) == 5 and all(step["ok"] for step in figures["steps"])
            hashes = sorted(figures["outputs_sha256"].values())
            seen.append((figures["tokens"], hashes, run.get("cycles_by_step")))
    assert seen[:2] == seen[2:]


def test_the_reference_of_layers_is_that_of_the_model(tmp_path: Path) -> None:
    model, module = emitted(tmp_path)
    tokens = [3, 1, 4, 1, 5]
    layers = [step.logits for step in load_layers(module).steps(tokens)]
    wanted = [step.logits for step in Reference(load_decoder(model)).steps(tokens, 3)]
    assert [len(one) for one in layers] == [len(one) for one in wanted] == [3, 1]
    for got, want in zip(layers, wanted, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ([], "uses a cache of keys and values: run it with --generate and --prompt"),
        (["--prompt", "3", "--generate", "3"], "--prompt: 1 tokens: "),
        (["--prompt", "3,1,4", "--generate", "4"], "--generate 4: the caches of"),
        (["--prompt", "3,1,4", "--generate", "3", "--t-max", "9"], "--t-max: 9 tokens: "),
        (["--prompt", "3,1,4", "--generate", "3", "--qbits-kv", "4"], "--qbits-kv: NPU-IR of a decoder is behind that"),
        (["--prompt", "3,1,4", "--generate", "3", "--granularity", "tile"], "--granularity: NPU-IR of a decoder"),
    ],
)
def test_a_module_of_a_decoder_is_for_one_prompt(
    options: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, module = emitted(tmp_path)
    assert main(["run", str(module), *options]) != 0
    found = capsys.readouterr().err
    assert said in found and found.count("\n") == 1


def test_a_module_without_caches_does_not_generate(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for path in (PROGRAMS[0], FOLDER / "submission.npu.mlir"):
        assert main(["run", str(path), "--prompt", "3", "--generate", "1"]) != 0
        found = capsys.readouterr().err
        assert "decoder" in found and found.count("\n") == 1


def test_generated_code_needs_a_core(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = tmp_path / "decoder.onnx"
    onnx.save(decoder_kv(**SMALL), str(model))
    asked = [str(model), "--prompt", "3", "--generate", "1", "--submit", "generated"]
    assert main(["run", *asked, "--sim-level", "IA"]) != 0
    assert "--submit generated: sim_level IA has no core" in capsys.readouterr().err
    assert main(["compile", *asked, "--weights-bin", "-o", str(tmp_path / "out")]) != 0
    assert "--submit generated makes one file; drop one of them" in capsys.readouterr().err
