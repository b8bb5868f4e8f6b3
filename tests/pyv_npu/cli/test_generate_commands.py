"""`compile` and `compare` with `--generate`: what `run` makes of a decoder, in both modes and as an image."""

import json
from pathlib import Path
from typing import Any

import onnx
import pytest

from pyv_npu.cli.main import main
from pyv_npu.run_sections.latency import token_steps
from toolchain.examples.decoder_kv import decoder_kv

TOKENS = ["--prompt", "3,1,4", "--generate", "4"]


@pytest.fixture(scope="module")
def decoder(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("decoder") / "decoder.onnx"
    onnx.save(decoder_kv(width=64, vocab=96), path)
    return str(path)


def result(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    capsys.readouterr()
    assert main([*words, "--json"]) == 0
    return dict(json.loads(capsys.readouterr().out))


@pytest.mark.slow
def test_compare_makes_the_same_tokens_and_reports_each(
    decoder: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = result(capsys, "compare", decoder, *TOKENS, "--report", str(tmp_path))
    alone = {mode: result(capsys, "run", decoder, *TOKENS, "--mode", mode) for mode in ("loose", "tight")}
    assert made["generate"]["same_tokens"] and made["same_results"]
    assert made["generate"]["tokens"] == alone["tight"]["generate"]["tokens"]
    for mode, run in alone.items():
        assert made[mode]["events_sha256"] == run["events_sha256"]
        assert [step[mode] for step in made["generate"]["steps"]] == run["cycles_by_step"]
    assert [step["makes"] for step in made["generate"]["steps"]] == made["generate"]["tokens"][3:]
    assert all(step["loose"] > step["tight"] > 0 for step in made["generate"]["steps"])
    lines = (tmp_path / "tokens.csv").read_text().splitlines()
    assert len(lines) == 1 + 4 and lines[1].startswith(f"prompt of 3,{made['generate']['tokens'][3]},")
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert 'id="tokens"' in page and "loose / tight" in (tmp_path / "summary.txt").read_text()


def test_a_step_takes_what_the_firmware_measures(decoder: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The program reads the cycle counter around each step, which adds its own instructions and nothing else."""
    made = result(capsys, "run", decoder, *TOKENS)
    words = [line.replace(",", "").split() for line in made["uart"].splitlines()]
    measured = [int(line[-2]) for line in words][:4]
    for own, seen in zip(measured, made["cycles_by_step"], strict=True):
        assert 0 <= own - seen < 200


def test_an_image_generates_by_itself(decoder: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    wanted = result(capsys, "run", decoder, *TOKENS)
    images = {}
    for name, more in (("in", ()), ("apart", ("--weights-bin",))):
        assert main(["compile", decoder, *TOKENS, "-o", str(tmp_path / name), *more]) == 0
        policy = ("--set", "npu.queue.full_policy=stall")  # the default of models, not of firmware
        images[name] = result(capsys, "run", str(tmp_path / name / "image.elf"), *policy)
        assert images[name]["events_sha256"] == wanted["events_sha256"]
        assert images[name]["uart"] == wanted["uart"]
    assert (tmp_path / "apart/weights.bin").stat().st_size > 100_000
    described = json.loads((tmp_path / "in/model.json").read_text())
    assert described["generate"] == {
        "prompt": [3, 1, 4], "given": [], "new": 4, "t_max": 7, "commands": wanted["generate"]["commands"],
    }  # fmt: skip
    assert json.loads((tmp_path / "in/cmdq.json").read_text())["schema"] == 1


def test_runs_without_time_have_no_steps() -> None:
    whole = {"generate": {"prompt": [1], "tokens": [1, 2, 3]}}
    assert token_steps({}) == [] == token_steps({"tight": whole | {"cycles_by_step": []}})
    assert [step["tight"] for step in token_steps({"tight": whole | {"cycles_by_step": [7, 5]}})] == [7, 5]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["compile", "x.onnx", "-o", "d", *TOKENS, "--explain-passes"],
            "--explain-passes: is for models that run once",
        ),
        (["compile", "cnn", "-o", "d", "--prompt", "1"], "--prompt: is for ONNX decoders that run with --generate"),
        (["compile", "cnn", "-o", "d", "--t-max", "9"], "--t-max: is for ONNX decoders that run with --generate"),
        (
            ["compile", "decoder_kv", "-o", "d", *TOKENS, "--shape", "x=1"],
            "--shape: a decoder that generates",
        ),
        (
            ["compare", "submit_latency", "--qbits-kv", "8"],
            "--qbits-kv: is for built-in models (llama2-7b, ...) and for ONNX decoders",
        ),
        (["compare", "x.onnx", "--generate", "3"], "x.onnx: No such file or directory"),
        (["compare", "x.onnx", *TOKENS, "--sim-level", "IA"], "--sim-level IA: computes a model without a core"),
        (["compare", "x.onnx", *TOKENS], "x.onnx: No such file or directory"),
    ],
)
def test_bad_arguments_are_one_line(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) in (64, 65)
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1
