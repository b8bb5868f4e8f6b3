"""Preemption with real values, by computing again and by copies to swap space: memory pressure changes no token."""

import csv
import json
from pathlib import Path
from typing import Any

import onnx
import pytest

from pyv_npu.cli import main
from pyv_npu.config import load
from pyv_npu.config.shape_file import shape_of
from pyv_npu.serving.scheduler import SchedulerConfig
from pyv_npu.serving.step_parts import Simulator
from pyv_npu.serving.step_time import StepTimes
from pyv_npu.serving.study import kv_storage
from pyv_npu.serving.with_values import DecoderServer, SlotRequest
from pyv_npu.workloads.timing import run_commands
from toolchain.examples.decoder_kv import decoder_kv

LAYERS, TOKEN = 2, 2 * 2 * 8 * 4
"""Bytes of keys and values of a token in a layer: 2 heads of 8 numbers in fp32."""
PRESSED = ["--block-size", "4", "--blocks", "6", "--max-num-seqs", "3", "--max-num-batched-tokens", "8"]


WORK = ["--workload", "burst", "--first", "5", "--input", "uniform:3,5", "--output", "6"]


def saved(folder: Path) -> str:
    path = folder / "decoder.onnx"
    onnx.save(decoder_kv(width=32, heads=4, kv_heads=2, vocab=32), path)
    return str(path)


@pytest.fixture(name="decoder")
def made_decoder(tmp_path: Path) -> str:
    return saved(tmp_path)


def served(decoder: str, capsys: pytest.CaptureFixture[str], *more: str) -> dict[str, Any]:
    assert main(["serve", decoder, *WORK, "--json", *more]) == 0
    made: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert made["answers_as_alone"] is True
    return made


FIRMWARE = "--scheduler", "firmware", "--mode"
SWAP = "--swap-blocks", "4"


@pytest.fixture(name="free", scope="module")
def made_free(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The answers of a run without pressure."""
    folder = tmp_path_factory.mktemp("free")
    result = folder / "out"
    assert main(["serve", saved(folder), *WORK, "--report", str(result)]) == 0
    made = json.loads((result / "result.json").read_text())
    assert made["preemptions"] == 0 and made["answers_as_alone"] is True
    return made["answers"]


@pytest.mark.parametrize(
    "more",
    [
        (), SWAP, (*SWAP, *FIRMWARE, "tight"),
        *(pytest.param(one, marks=pytest.mark.slow)
          for one in ((*FIRMWARE, "loose"), (*FIRMWARE, "tight"), (*SWAP, *FIRMWARE, "loose"))),
    ],
    ids=" ".join,
)  # fmt: skip
def test_tokens_under_pressure_are_those_without(
    decoder: str, free: Any, more: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report = tmp_path / "out"
    pressed = served(decoder, capsys, *PRESSED, "--report", str(report), *more)
    assert pressed["answers"] == free
    swaps = int("--swap-blocks" in more)
    assert (pressed["preemptions"], pressed["swaps"], pressed["recomputed_tokens"] == 0) == (1, swaps, swaps > 0)
    with (report / "steps.csv").open() as file:
        steps = list(csv.DictReader(file))
    out, back = ([one[name] for one in steps if one[name]] for name in ("swapped_out", "swapped_in"))
    assert out == back and len(out) == swaps
    tokens = sum(int(one.split(":")[1]) for one in out)
    assert pressed["swap_out_bytes"] == pressed["swap_in_bytes"] == tokens * LAYERS * TOKEN
    assert pressed["swap_cycles"] == sum(int(one["swap_cycles"]) for one in steps)
    assert (pressed["swap_cycles"] > 0) == (swaps > 0)


@pytest.mark.parametrize("back", [True, False])
def test_keys_and_values_come_back_from_swap_space(
    decoder: str, free: Any, back: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whatever is in the caches of the slot; without the copies back an answer is another one, and that is noticed."""
    real = DecoderServer.swap

    def spoiled(self: DecoderServer, one: SlotRequest, tokens: int, out: bool) -> None:
        if out or back:
            real(self, one, tokens, out)
        if out:
            for cache in self.decoder.caches:
                self.slots[one.slot].memory.write_bytes(cache.start, b"\x55" * (cache.end - cache.start))

    monkeypatch.setattr(DecoderServer, "swap", spoiled)
    code = main(["serve", decoder, *WORK, "--json", *PRESSED, *SWAP])
    made = json.loads(capsys.readouterr().out)
    assert (code, made["answers"] == free, made["answers_as_alone"]) == (
        (0, True, True) if back else (70, False, False)
    )


@pytest.mark.parametrize("out", [True, False])
def test_the_dma_moves_the_bytes_of_a_swap(decoder: str, out: bool) -> None:
    """Read once and written once, of so many tokens; a time that the DRAM allows."""
    npu, tokens = load().config.npu, 7
    server = DecoderServer(Path(decoder), npu, 11, SchedulerConfig(6, 4, max_num_seqs=2, swap_blocks=9), 3)
    cycles = server.swap_cycles(tokens, out)
    run = run_commands(server.copies(tokens, server.take_blocks(tokens), out), npu)
    assert sum(way[0] for role in run.traffic.moved for way in role) == 2 * tokens * LAYERS * TOKEN
    assert cycles == run.cycles > 2 * tokens * LAYERS * TOKEN * npu.clock_hz // npu.dram.bytes_per_second


def test_swapped_layers_of_a_built_in_model_take_what_the_dram_allows() -> None:
    """64 tokens of 8 KiB of keys and 8 of values in a layer, read and written."""
    npu = load().config.npu
    times = StepTimes(Simulator(npu, shape_of("llama2-7b"), 16), kv_storage("fp16"), 3)
    least = 3 * 2 * 64 * 16384 * npu.clock_hz // npu.dram.bytes_per_second
    for out in (True, False):
        assert least < times.swap(64, out, 16) < 1.5 * least
    assert times.swap(0, True, 16) == 0


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
        (
            ["--swap-blocks", "4", "--prefix-cache"],
            "--swap-blocks: a swapped request has no blocks that others share; drop --prefix-cache",
        ),
        (
            ["--swap-blocks", "100", "--set", "npu.dram.size=8800000"],
            "--swap-blocks 100: 40 of 4096 bytes end behind npu.dram.size 8800000; give fewer, or more DRAM",
        ),
        (["--mode", "tight"], "--mode tight: is how firmware submits; add --scheduler firmware"),
    ],
)
def test_what_cannot_be_is_one_line(
    decoder: str, more: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["serve", decoder, "--first", "1", *more]) == 64
    assert capsys.readouterr().err == f"pyv-npu: error: {message}\n"
