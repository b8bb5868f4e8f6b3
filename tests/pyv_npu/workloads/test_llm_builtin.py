"""Built-in decoder models: traffic of keys and values in closed form, bounds, sweeps, bad input."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from npu_device.abi.memory_map import DRAM_BASE, SPM_BASE
from npu_device.abi.opcodes import Opcode
from npu_device.config import DramConfig, NpuConfig, SpmConfig, TeConfig
from pyv_npu.cli.main import main
from pyv_npu.config import Config, with_values
from pyv_npu.workloads.built_in import BuiltIn, Phase, PhaseRequest, build
from toolchain.decoders.shapes import MODELS
from toolchain.errors import ModelError

CONFIG = NpuConfig(dram=DramConfig(size=256_000_000_000))
ALL = tuple(MODELS)


def run(config: NpuConfig, request: PhaseRequest, level: str = "CA_HYBRID") -> dict[str, Any]:
    return BuiltIn(request).run(replace(with_values(Config(), {"run.sim_level": level}), npu=config)).json


def macs(config: NpuConfig, request: PhaseRequest) -> int:
    return sum(c.block.m * c.block.n * c.block.k for c in build(config, request).commands
               if c.block is not None and c.descriptor.opcode == Opcode.GEMM_T)  # fmt: skip


PHASES = [(name, Phase.DECODE) for name in ALL] + [
    pytest.param(name, Phase.PREFILL, marks=(pytest.mark.slow,) * (name not in ("llama2-7b", "opt-6.7b", "mistral-7b")))
    for name in ALL
]
"""A prefill of each family, and of mixtures of experts what a token does."""


@pytest.mark.parametrize(("name", "phase"), PHASES)
def test_every_model_runs_in_both_phases_with_the_products_of_its_shape(name: str, phase: Phase) -> None:
    shape, requests, tokens = MODELS[name], 2, 32 if phase is Phase.PREFILL else 1
    request = PhaseRequest(name, phase, context=300, tokens=32, layers=1, requests=requests)
    made = run(CONFIG, request)
    assert made["npu"]["errors"] == 0
    assert made["npu"]["completed"] == made["llm"]["commands"]
    assert made["cycles"] >= max(made["llm"]["bound"].values()) > 0
    rows = requests * tokens
    want = rows * (shape.attention_parameters + shape.active * shape.ffn_parameters)
    want += requests * shape.vocab * shape.width + rows * shape.width * shape.experts * (shape.experts > 1)
    assert macs(CONFIG, request) == want


@pytest.mark.parametrize(
    ("name", "seen", "bits"),
    [("llama2-7b", 5001, 2), ("llama2-7b", 5001, 8), ("mistral-7b", 4096, 4), ("mistral-7b", 4096, 16)],
)
def test_one_token_moves_the_keys_that_it_sees_and_its_own(name: str, seen: int, bits: int) -> None:
    shape = MODELS[name]
    made = run(CONFIG, PhaseRequest(name, context=5000, layers=2, requests=2, kv_bits=bits))["llm"]
    row = shape.kv_width * bits // 8
    per_layer = 2 * seen * row  # all but its own are read, its own is written (R23)
    (token,) = made["kv_tokens"]
    assert token == {"token": 5000, "bytes_k": 2 * per_layer, "bytes_v": 2 * per_layer}
    for index, layer in enumerate(made["kv_layers"]):
        written = 2 * 2 * row
        assert layer == {
            "layer": index, "qbits_kv": str(bits), "kv_bytes_total": 2 * 2 * seen * row,
            "kv_bytes_alloc": 2 * 2 * seen * row, "kv_bytes_read": 2 * per_layer - written, "kv_bytes_written": written,
        }  # fmt: skip
    assert made["kv_bytes_alloc"] == 2 * 2 * 2 * seen * row


def test_narrow_keys_halve_their_bytes_and_the_time_of_a_long_context() -> None:
    request = PhaseRequest("llama2-7b", context=8191, layers=1, requests=2)
    eight, four = (run(CONFIG, request._replace(kv_bits=bits)) for bits in (8, 4))
    moved = [one["llm"]["kv_layers"][0]["kv_bytes_read"] for one in (eight, four)]
    assert moved[0] == 2 * moved[1]
    assert 0.5 <= four["cycles"] / eight["cycles"] < 1  # R17


def test_the_time_of_keys_follows_their_bits_where_the_bandwidth_bounds() -> None:
    config = replace(CONFIG, spm=SpmConfig(interleave="64B"))
    request = PhaseRequest("llama2-7b", context=8191, layers=1, requests=2)
    wide, eight, four = (run(config, request._replace(kv_bits=bits))["cycles"] for bits in (16, 8, 4))
    assert (wide - eight) / (eight - four) == pytest.approx(2, rel=0.02)  # R17: nothing but the bits changes


def test_attentions_of_many_requests_share_the_engines() -> None:
    """Estimates with all engines for each attention chose tiles whose engines met in the banks: 24,950,717 cycles."""
    result = run(CONFIG, PhaseRequest("llama2-7b", context=8191, layers=1, requests=16, kv_bits=8))
    assert result["cycles"] < 22_000_000


def test_activations_of_a_step_stay_on_the_chip() -> None:
    small, large = (build(CONFIG, PhaseRequest("llama2-7b", layers=1, requests=count)).program for count in (1, 64))
    name = "layer0.attention.qkv.out"
    assert SPM_BASE <= small.address(name) < SPM_BASE + CONFIG.spm.size
    assert large.address(name) >= DRAM_BASE
    assert all(c.block is None or c.block.workspace + c.block.workspace_bytes <= small.address(name)
               for c in small.commands)  # fmt: skip


def test_every_token_of_a_prefill_is_appended_once() -> None:
    request = PhaseRequest("mistral-7b", Phase.PREFILL, tokens=200, layers=1, kv_bits=16)
    made, program = run(CONFIG, request), build(CONFIG, request).program
    appends = [c.descriptor for c in program.commands if c.descriptor.opcode == Opcode.KV_APPEND]
    caches = [program.address(f"layer0.attention.0.{kept}.cache") for kept in ("keys", "values")]
    assert [d.out_addr for d in appends] == caches
    assert made["llm"]["kv_bytes_used"] == made["llm"]["kv_bytes_alloc"] == 2 * 200 * 1024 * 2


def test_decoding_is_the_same_commands_for_every_token_and_for_a_prompt_of_one() -> None:
    one, other = (build(CONFIG, PhaseRequest("llama2-7b", context=at, layers=1, t_max=64)) for at in (5, 40))
    assert one.commands == other.commands
    prompt = build(CONFIG, PhaseRequest("llama2-7b", Phase.PREFILL, tokens=1, layers=1, t_max=64))
    assert prompt.commands == one.commands


def test_heads_of_their_own_width_are_commands_of_their_own() -> None:
    request = PhaseRequest(
        "mistral-7b", context=99, layers=2, kv_bits=lambda layer, head: 8 if layer and head < 4 else 4
    )
    made = run(CONFIG, request)["llm"]
    row = 1024 // 2
    moved = [one["kv_bytes_read"] + one["kv_bytes_written"] for one in made["kv_layers"]]
    assert moved == [one["kv_bytes_total"] for one in made["kv_layers"]] == [2 * 100 * row, 2 * 100 * row * 3 // 2]
    assert made["qbits_kv"] == [4, 8]


def test_a_qconfig_names_layers_and_heads(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "q.yaml"
    path.write_text("qbits_weight_default: 8\nqbits_kv_default: 2\noverride:\n  layer_1: {kv: 8, head_3: {kv: 16}}\n")
    words = ["run", "mistral-7b", "--context", "99", "--layers", "2", "--qconfig", str(path)]
    assert main([*words, "--json"]) == 0
    made = json.loads(capsys.readouterr().out)["llm"]
    head = 128 // 8
    assert [one["kv_bytes_total"] for one in made["kv_layers"]] == [
        2 * 100 * head * 8 * 2, 2 * 100 * head * (7 * 8 + 16),
    ]  # fmt: skip
    assert (made["qbits_weight"], made["qbits_kv"]) == (8, [2, 8, 16])
    for text, message in (
        ("layer_32: {kv: 8}", "layers 0 to 31 of KV heads 0 to 7"),
        ("layer_0: {head_8: {kv: 8}}", "layers 0 to 31 of KV heads 0 to 7"),
        ("layer_0: {activation: 8}", "they have one width: qbits_activation_default"),
    ):
        path.write_text(f"override:\n  {text}\n")
        assert main(words) == 65
        assert message in capsys.readouterr().err
    assert main([*words, "--qbits-kv", "4"]) == 64
    assert "--qbits-kv: --qconfig says it already" in capsys.readouterr().err


def test_the_bound_of_one_token_is_weights_and_keys_over_the_bandwidth() -> None:
    shape = MODELS["llama2-7b"]
    made = run(CONFIG, PhaseRequest("llama2-7b", context=1023, layers=2))["llm"]
    weights = 2 * (2 * (4 * 4096 * 4096 + 3 * 4096 * 11008) + 32000 * 4096)
    assert made["bound"]["dram_cycles"] == -(-(weights + shape.kv_bytes(1024, bits=4) // 16) * 3 // 256)
    assert made["bound_share"] > 0.94


def test_narrow_weights_move_fewer_bytes() -> None:
    wide, narrow = (run(CONFIG, PhaseRequest("llama2-7b", layers=2, weight_bits=bits)) for bits in (16, 4))
    saved = 2 * (MODELS["llama2-7b"].attention_parameters + MODELS["llama2-7b"].ffn_parameters) * 12 // 8
    read = wide["npu"]["dram_bytes_read"] - narrow["npu"]["dram_bytes_read"]
    assert read == pytest.approx(saved, rel=0.01)


def test_both_levels_move_the_same_bytes() -> None:
    request = PhaseRequest("mistral-7b", context=100, layers=1)
    fast, full = (run(CONFIG, request, level)["llm"] for level in ("IA_TIMING", "CA_HYBRID"))
    assert fast["kv_tokens"] == full["kv_tokens"]


@pytest.mark.parametrize(
    ("request_", "config", "message"),
    [
        (PhaseRequest("llama2-7b", context=-1), CONFIG, "context -1: must be at least 0"),
        (PhaseRequest("llama2-7b", Phase.PREFILL, tokens=0), CONFIG, "tokens 0: must be at least 1"),
        (PhaseRequest("opt-6.7b", context=2048), CONFIG, r"position 2048: the table has 0\.\.2047"),
        (PhaseRequest("llama2-7b", context=64, t_max=64), CONFIG, r"tokens 64\.\.64 do not fit caches of 64"),
        (PhaseRequest("llama2-7b"), NpuConfig(), "weights 13.5 GB .* npu.dram.size is 0.1 GB"),
        (PhaseRequest("llama2-7b", layers=0), CONFIG, "layers 0: must be at least 1"),
        (PhaseRequest("llama2-7b", t_max=0), CONFIG, r"do not fit caches of 0"),
        (PhaseRequest("llama2-7b"), replace(CONFIG, te=TeConfig(acc_bytes=0)), "a larger npu.te.acc_bytes"),
        (PhaseRequest("llama2-7b"), replace(CONFIG, spm=SpmConfig(size=65536)), "bytes of scratchpad.* npu.spm.size="),
        (PhaseRequest("llama2-7b", context=1 << 20), CONFIG, r"\(ATTN_T\).* npu.spm.size="),
    ],
)
def test_what_cannot_run_says_why_in_one_line(request_: PhaseRequest, config: NpuConfig, message: str) -> None:
    with pytest.raises(ModelError, match=message) as caught:
        run(config, request_)
    assert "\n" not in str(caught.value)


def test_the_command_line_runs_a_model(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "llama2-7b", "--phase", "decode", "--context", "100", "--layers", "1", "--json"]) == 0
    made = json.loads(capsys.readouterr().out)
    assert (made["program"], made["llm"]["context"], made["llm"]["qbits_kv"]) == ("llama2-7b", 100, 4)
    assert main(["run", "mistral-7b", "--layers", "1", "--qbits-kv", "16"]) == 0
    assert "KV in DRAM         4.004 MiB used of 4.004 MiB, 16 bits" in capsys.readouterr().out


def test_a_report_shows_layers_and_bytes(tmp_path: Path) -> None:
    assert main(["run", "mistral-7b", "--context", "99", "--layers", "2", "--report", str(tmp_path)]) == 0
    assert (tmp_path / "kv_layers.csv").read_text() == (
        "layer,qbits_kv,kv_bytes_total,kv_bytes_alloc,kv_bytes_read,kv_bytes_written\n"
        "0,4,102400,102400,101376,1024\n1,4,102400,102400,101376,1024\n"
    )
    assert (tmp_path / "kv_tokens.csv").read_text() == "token,bytes_k,bytes_v\n99,102400,102400\n"
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "layer1.attention" in page
    assert "roofline" in page
    assert main(["run", "--replay", str(tmp_path)]) == 0


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["llama2-7b", "--qbits-kv", "three"], 64, "argument --qbits-kv: invalid integer value: 'three'"),
        (["llama2-7b", "--qbits-kv", "3"], 65, "llama2-7b: 3 bits: must be one of 16, 8, 4, 2"),
        (["llama2-7b", "--phase", "prefill", "--context", "3"], 64, "--context: says nothing about phase prefill"),
        (["hello", "--context", "3"], 64, "--context: is for built-in models"),
        (["llama2-7b", "--shape", "x=1"], 64, "--shape: says how a model is compiled"),
        (
            ["llama2-13b", "--context", "8191", "--requests", "16", "--qbits-kv", "16", "--set",
             "npu.dram.size=80000000000"], 65, "133.4 GB, npu.dram.size is 80.0 GB",
        ),
    ],
)  # fmt: skip
def test_bad_arguments_are_one_line(
    arguments: list[str], code: int, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", *arguments]) == code
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_a_sliding_window_bounds_the_caches(capsys: pytest.CaptureFixture[str]) -> None:
    """4,096 tokens of 8 heads of 128 at 4 bits, keys and values: 4 MiB at any context beyond."""
    found = []
    for context in ("4095", "16383"):
        words = "run", "mistral-7b", "--layers", "1", "--context", context, "--sim-level", "IA_TIMING", "--json"
        assert main([*words]) == 0
        found.append(json.loads(capsys.readouterr().out))
    short, long = found
    assert short["cycles"] == long["cycles"]
    assert long["llm"]["kv_bytes_alloc"] == long["llm"]["kv_bytes_used"] == 4 << 20
