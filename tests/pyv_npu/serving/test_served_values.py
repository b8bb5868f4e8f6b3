"""Preemption and recomputation with real values: memory pressure changes no token."""

import json
from pathlib import Path

import onnx
import pytest

from pyv_npu.cli import main
from toolchain.examples.decoder_kv import decoder_kv

PRESSED = ["--block-size", "4", "--blocks", "6", "--max-num-seqs", "3", "--max-num-batched-tokens", "8"]


@pytest.fixture(name="decoder")
def made_decoder(tmp_path: Path) -> str:
    path = tmp_path / "decoder.onnx"
    onnx.save(decoder_kv(width=32, heads=4, kv_heads=2, vocab=32), path)
    return str(path)


def served(decoder: str, capsys: pytest.CaptureFixture[str], *more: str) -> dict[str, object]:
    work = ["--workload", "burst", "--first", "5", "--input", "uniform:3,5", "--output", "6"]
    assert main(["serve", decoder, *work, "--json", *more]) == 0
    made: dict[str, object] = json.loads(capsys.readouterr().out)
    assert made["answers_as_alone"] is True
    return made


def test_tokens_under_pressure_are_those_without(decoder: str, capsys: pytest.CaptureFixture[str]) -> None:
    free = served(decoder, capsys)
    assert free["preemptions"] == 0
    for more in ((), ("--scheduler", "firmware", "--mode", "loose"), ("--scheduler", "firmware", "--mode", "tight")):
        pressed = served(decoder, capsys, *PRESSED, *more)
        assert pressed["preemptions"] == 1
        assert pressed["answers"] == free["answers"]


@pytest.mark.slow
def test_answers_are_those_of_pyv_npu_run(decoder: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The other road through the same decoder, which is compared with onnx.reference."""
    trace = tmp_path / "one.jsonl"
    trace.write_text('{"input_toks": 3, "output_toks": 5, "arrival_time_ns": 0, "input_tok_ids": [3, 1, 4]}\n')
    assert main(["serve", decoder, "--workload", str(trace), "--json"]) == 0
    ours = json.loads(capsys.readouterr().out)["answers"]["0"]
    given = ["run", decoder, "--prompt", "3,1,4", "--generate", "5", "--sim-level", "IA", "--json"]
    assert main(given) == 0
    assert [3, 1, 4, *ours] == json.loads(capsys.readouterr().out)["generate"]["tokens"]


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--prefix-cache"], "--prefix-cache: each slot of a decoder with values has caches of its own; drop it"),
        (["--input", "5000"], "tokens of a request 5128: a decoder with values serves at most 4096; give less"),
        (["--mode", "tight"], "--mode tight: is how firmware submits; add --scheduler firmware"),
    ],
)
def test_what_cannot_be_is_one_line(
    decoder: str, more: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["serve", decoder, "--first", "1", *more]) == 64
    assert capsys.readouterr().err == f"pyv-npu: error: {message}\n"
