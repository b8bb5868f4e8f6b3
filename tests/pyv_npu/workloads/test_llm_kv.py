"""Keys and values of ONNX decoders: widths by layer and head, traffic by token and layer, errors."""

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from shares import slow

from npu_device.abi.opcodes import Opcode
from npu_device.trace.events import What
from pyv_npu.cli.main import main
from pyv_npu.config import load
from pyv_npu.errors import UsageError
from pyv_npu.result import Result
from pyv_npu.workloads.decoder import Generation
from pyv_npu.workloads.generation import GenerationDetail, GenerationRequest
from pyv_npu.workloads.kv_figures import cached
from toolchain.decoders.decoder import LOG, Decoder, make_decoder
from toolchain.decoders.reference import Reference
from toolchain.examples.decoder_kv import decoder_kv

PROMPT = (3, 1, 4)
NEW = 5
SIZE, HEADS, LAYERS = 16, 2, 2


def model(**settings: Any) -> Decoder:
    return make_decoder(decoder_kv(**{"width": 64, "vocab": 96, "layers": LAYERS, **settings}), "decoder_kv")


def generated(
    request: GenerationRequest, level: str = "IA", mode: str = "tight", **settings: Any
) -> Result[GenerationDetail]:
    of_heads = {"npu.kv_quant.scales": "head"}  # rows have their own bytes alone
    config = load(overrides={"run.sim_level": level, "npu.mode": mode, **of_heads}).config
    return Generation(model(**settings), request).run(config)


def qconfig(folder: Path, text: str) -> Path:
    path = folder / "q.yaml"
    path.write_text(text)
    return path


WIDTHS = "override:\n  layer_0: {kv: 8}\n  layer_1: {kv: 4, head_1: {kv: 16}}\n"
BITS = ((8, 8), (4, 16))


@pytest.mark.parametrize(("level", "mode"), [("IA_TIMING", "tight"), ("CA_HYBRID", "loose"), ("CA_HYBRID", "tight")])
def test_the_traffic_of_each_token_and_layer_is_that_of_its_widths(level: str, mode: str, tmp_path: Path) -> None:
    """The prompt writes its tokens; each step reads those before and writes its own (R18, R23)."""
    request = GenerationRequest(PROMPT, NEW, qconfig=qconfig(tmp_path, WIDTHS))
    made = generated(request, level, mode).json["generate"]
    rows = [sum(bits) * SIZE // 8 for bits in BITS]
    row, tokens = sum(rows), [len(PROMPT), *range(len(PROMPT) + 1, len(PROMPT) + NEW)]
    moved = [count * row for count in tokens]  # a prompt of three stays on chip
    assert made["kv_tokens"] == [
        {"token": count - 1, "bytes_k": size, "bytes_v": size} for count, size in zip(tokens, moved, strict=True)
    ]
    last = tokens[-1]
    for layer, bits in enumerate(BITS):
        read = 2 * rows[layer] * sum(count - 1 for count in tokens[1:])
        assert made["kv_layers"][layer] == {
            "layer": layer, "qbits_kv": "/".join(map(str, sorted(set(bits)))), "kv_bytes_total": 2 * rows[layer] * last,
            "kv_bytes_alloc": 2 * rows[layer] * (last + 1), "kv_bytes_read": read,
            "kv_bytes_written": 2 * rows[layer] * last,
        }  # fmt: skip
    assert made["kv_bytes_used"] == 2 * row * last
    assert made["kv_capacity"]["kv_bytes_per_token"] == 2 * row


@pytest.mark.parametrize("passes", ["all", "-kv-forwarding", "-residency"])
def test_the_sums_are_those_of_the_dma_events(passes: str) -> None:
    made = generated(GenerationRequest(PROMPT, NEW, kv_bits=4, passes=passes), "CA_HYBRID")
    figures, compiled = made.json["generate"], made.detail.compiled
    log = compiled.compiled.graph.tensors[LOG].size // compiled.t_max
    moved = {Opcode.KV_READ: 0, Opcode.KV_APPEND: 0}
    assert made.events is not None
    for batch in made.events.batches():
        for one in batch[batch["what"] == What.DMA_BEGIN]:
            if one["aux"] & 0xFF in moved:
                moved[Opcode(one["aux"] & 0xFF)] += int(one["bytes"])
    moved[Opcode.KV_APPEND] -= log * (len(PROMPT) + NEW - 1)  # the log of logits is appended to as well
    by_layer = [sum(layer[f"kv_bytes_{way}"] for layer in figures["kv_layers"]) for way in ("read", "written")]
    by_token = sum(token["bytes_k"] + token["bytes_v"] for token in figures["kv_tokens"])
    assert by_layer == list(moved.values())
    assert by_token == sum(moved.values())


def test_results_do_not_depend_on_where_the_new_token_is_taken_from(tmp_path: Path) -> None:
    path = qconfig(tmp_path, WIDTHS)
    made = {
        passes: generated(GenerationRequest(PROMPT, NEW, qconfig=path, passes=passes)).json["generate"][
            "outputs_sha256"
        ]
        for passes in ("all", "-kv-forwarding", "-residency", "-residency,-kv-forwarding")
    }
    first = made["all"]
    assert made["-kv-forwarding"] == first
    assert made["-residency,-kv-forwarding"] == made["-residency"]  # other tiles of products, other sums


@pytest.mark.slow
def test_results_do_not_depend_on_level_and_mode(tmp_path: Path) -> None:
    request = GenerationRequest(PROMPT, NEW, qconfig=qconfig(tmp_path, WIDTHS))
    first = generated(request).json["generate"]["outputs_sha256"]
    for level, mode in (("IA_TIMING", "tight"), ("CA_HYBRID", "loose"), ("CA_HYBRID", "tight")):
        assert generated(request, level, mode).json["generate"]["outputs_sha256"] == first


@pytest.mark.parametrize("bits", [4, *slow(16, 8, 2)])
def test_one_width_by_option_or_by_file_is_the_same(bits: int, tmp_path: Path) -> None:
    path = qconfig(tmp_path, f"qbits_kv_default: {bits}\n")
    option, file = (
        generated(request)
        for request in (GenerationRequest(PROMPT, NEW, kv_bits=bits), GenerationRequest(PROMPT, NEW, qconfig=path))
    )
    assert option.json["generate"] == file.json["generate"]


def test_the_first_layer_s_keys_are_those_of_the_reference_rounded(tmp_path: Path) -> None:
    """Its keys depend on no cache: every head is off by half a step of its own width at most."""
    widths = "override:\n  layer_0: {kv: 8, head_0: {kv: 4}}\n"
    made = generated(GenerationRequest(PROMPT, NEW, qconfig=qconfig(tmp_path, widths), given=(9, 2, 6, 5, 3)))
    compiled, tokens = made.detail.compiled, made.detail.tokens
    *_, last = Reference(model()).steps(tokens, len(PROMPT))
    keys = compiled.decoder.caches[0].past
    data = made.json["generate"]["outputs_sha256"]
    assert set(data) == {LOG, *(cache.past for cache in compiled.decoder.caches)}
    wanted = last.past[keys]
    for head, bits in enumerate((4, 8)):
        scale = compiled.scales[keys][head]
        limit = scale * ((1 << bits - 1) - 1)
        clipped = np.clip(wanted[0, head], -limit - scale, limit)
        worst = np.abs(clipped - wanted[0, head]).max() + scale / 2
        rounded = np.clip(np.rint(wanted[0, head] / scale), -(1 << bits - 1), (1 << bits - 1) - 1) * scale
        assert np.abs(rounded - wanted[0, head]).max() <= worst * 1.001
    errors = made.json["generate"]["kv_errors"][0]
    steps = compiled.scales[keys]
    rounded = np.concatenate(
        [
            np.clip(np.rint(wanted[:, [h]] / steps[h]), -(1 << b - 1), (1 << b - 1) - 1) * steps[h]
            for h, b in enumerate((4, 8))
        ],
        axis=1,
    )
    assert errors["error_k"] == pytest.approx(np.linalg.norm(rounded - wanted) / np.linalg.norm(wanted), rel=1e-3)


def test_errors_follow_the_widths() -> None:
    made = {bits: generated(GenerationRequest(PROMPT, NEW, kv_bits=bits)).json["generate"] for bits in (16, 8, 4, 2)}
    for name in ("error_k", "error_v", "error_attention"):
        for layer in range(LAYERS):
            errors = [made[bits]["kv_errors"][layer][name] for bits in (16, 8, 4, 2)]
            assert errors == sorted(errors), name
            assert 0 < errors[0] < 1e-3 and errors[-1] > 0.1
    assert made[16]["logits_error"] < made[4]["logits_error"] < made[2]["logits_error"]
    assert "kv_errors" not in generated(GenerationRequest(PROMPT, NEW)).json["generate"]


def test_an_untouched_head_has_no_error(tmp_path: Path) -> None:
    """Only a head of layer 1 is narrow: layer 0 is the reference's."""
    path = qconfig(tmp_path, "override:\n  layer_1: {head_1: {kv: 2}}\n")
    made = generated(GenerationRequest(PROMPT, NEW, qconfig=path))
    first, second = made.json["generate"]["kv_errors"]
    assert (first["qbits_kv"], second["qbits_kv"]) == ("32", "2/32")
    assert max(first["error_k"], first["error_v"], first["error_attention"]) < 1e-5
    assert second["error_k"] > 0.1
    graph = made.detail.compiled.compiled.graph
    names = [one.id for one in made.detail.compiled.stored(made.detail.compiled.decoder.caches[2].past)]
    assert [graph.tensors[name].is_kv_head_split for name in names] == [True, True]
    assert made.detail.compiled.stored(made.detail.compiled.decoder.caches[0].past)[0].layout == "[B, H, T, D]"


def test_the_report_has_the_tables(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "decoder.onnx"
    onnx.save(decoder_kv(width=64, vocab=96), path)
    words = [
        "run",
        str(path),
        "--generate",
        "3",
        "--prompt",
        "3,1,4",
        "--qbits-kv",
        "4",
        "--report",
        str(tmp_path / "r"),
    ]
    assert main(words) == 0
    text = capsys.readouterr().out
    assert "error of attention" in text and "relative error of logits" in text
    tables = {name: list(csv.DictReader((tmp_path / "r" / f"{name}.csv").open())) for name in (
        "kv_tokens", "kv_layers", "kv_errors")}  # fmt: skip
    made = json.loads((tmp_path / "r" / "result.json").read_text())["generate"]
    for name, rows in tables.items():
        assert rows == [{key: str(value) for key, value in row.items()} for row in made[name]]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("override:\n  layer_2: {kv: 8}\n", r"override.layer_2.kv: decoder_kv has layers 0 to 1 of KV heads 0 to 1"),
        ("override:\n  layer_0: {head_2: {kv: 8}}\n", r"override.layer_0.head_2.kv: decoder_kv has layers 0 to 1"),
    ],
)
def test_a_layer_or_head_that_is_not_there(text: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=message):
        generated(GenerationRequest(PROMPT, 1, qconfig=qconfig(tmp_path, text)))


def test_the_option_and_the_file_do_not_both_say_it(tmp_path: Path) -> None:
    path = qconfig(tmp_path, WIDTHS)
    with pytest.raises(UsageError, match="names widths of keys and values: give one of them"):
        generated(GenerationRequest(PROMPT, 1, qconfig=path, kv_bits=4))


def test_cached_numbers_have_the_shape_of_the_cache() -> None:
    made = generated(GenerationRequest(PROMPT, NEW, kv_bits=8)).detail.compiled
    past = made.decoder.caches[1].past
    data = bytes(made.stored(past)[0].size)
    assert np.array_equal(cached(made, lambda name: data, past), np.zeros((1, HEADS, made.t_max, SIZE)))


@pytest.mark.parametrize(("bits", "share"), [("8", 0.3), ("4", 0.7)])
def test_scales_of_tokens_do_not_depend_on_the_prompt(
    bits: str, share: float, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With a prompt of one token, scales of heads know nothing of what follows; those of tokens take 4 bytes each, and
    move with them. All levels, and both ways to take new tokens, have the same numbers."""
    path = tmp_path / "decoder.onnx"
    onnx.save(decoder_kv(width=64, vocab=96, layers=LAYERS), path)

    def run(scales: str, *more: str) -> dict[str, Any]:
        words = "run", str(path), "--prompt", "3", "--generate", "6", "--qbits-kv", bits, "--json", *more
        assert main([*words, "--set", f"npu.kv_quant.scales={scales}"]) == 0
        made: dict[str, Any] = json.loads(capsys.readouterr().out)
        return made

    runs = [run("token", *more) for more in ((), ("--sim-level", "IA"), ("--passes=-kv-forwarding",))]
    token, head = runs[0]["generate"], run("head", "--sim-level", "IA")["generate"]
    for side in ("error_k", "error_v"):
        assert max(one[side] for one in token["kv_errors"]) < share * max(one[side] for one in head["kv_errors"])
    assert token["kv_bytes_used"] - head["kv_bytes_used"] == 4 * 6 * 2 * LAYERS * HEADS
    moved = sum(one["bytes_k"] + one["bytes_v"] for one in token["kv_tokens"])
    assert moved == runs[0]["traffic"]["kv"]["bytes_total"]
    assert len({json.dumps(one["generate"]["outputs_sha256"]) for one in runs}) == 1
