"""Decoders at tile granularity: attention as tile commands, with the keys and values of the new token on chip (R23)."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from shares import slow, slow_rows

from npu_device.abi.opcodes import Opcode
from npu_device.trace.events import What
from pyv_npu.cli.main import main
from pyv_npu.config import load
from pyv_npu.result import Result
from pyv_npu.workloads.built_in import BuiltIn, Phase, PhaseRequest
from pyv_npu.workloads.decoder import Generation
from pyv_npu.workloads.generation import GenerationDetail, GenerationRequest
from toolchain.codegen import Target
from toolchain.codegen.cmdq import document
from toolchain.decoders.decoder import make_decoder
from toolchain.examples.decoder_kv import decoder_kv

PROMPT = (3, 1, 4)
NEW = 4


def generated(
    level: str = "IA", mode: str = "tight", new: int = NEW, granularity: str = "tile", bits: int | None = None,
    **settings: Any,
) -> Result[GenerationDetail]:  # fmt: skip
    decoder = make_decoder(decoder_kv(**{"width": 64, "vocab": 96, **settings}), "decoder_kv")
    request = GenerationRequest(PROMPT, new, kv_bits=bits, granularity=granularity)
    return Generation(decoder, request).run(load(overrides={
        "run.sim_level": level, "npu.mode": mode, "npu.kv_quant.scales": "head",  # as tile commands have them
    }).config)  # fmt: skip


@pytest.mark.parametrize("bits", [None, 4, *slow(16, 8)])
@pytest.mark.parametrize(
    "settings",
    [
        pytest.param({}, id="GQA"),
        *slow({"kv_heads": 4}, {"kind": "float16"}, {"window": 3}, ids=("MHA", "fp16", "window")),
    ],
)
def test_tiles_agree_with_the_reference_and_with_themselves_at_every_level(
    bits: int | None, settings: dict[str, Any]
) -> None:
    if settings.get("kind") == "float16" and bits == 16:
        pytest.skip("the model's own type")
    first = generated(bits=bits, **settings)
    wanted = first.json["generate"]
    if bits is None:
        assert first.correct and all(step["ok"] for step in wanted["steps"])
    macro = generated(bits=bits, granularity="macro", **settings).json["generate"]
    errors = [max(step["error"] for step in made["steps"]) for made in (wanted, macro)]
    assert errors[0] <= 1.5 * errors[1] + 2e-3  # widths make the error, not the form
    assert macro["kv_bytes_used"] == wanted["kv_bytes_used"]
    for level, mode in (("IA_TIMING", "tight"), ("CA_HYBRID", "loose"), ("CA_HYBRID", "tight")):
        again = generated(level, mode, bits=bits, **settings).json["generate"]
        assert again["outputs_sha256"] == wanted["outputs_sha256"]
        assert again["tokens"] == wanted["tokens"]


@pytest.mark.parametrize("bits", [16, 4])
def test_the_list_loads_what_came_before_and_stores_rows(bits: int) -> None:
    """R18 to R20: KV_READ of whole tokens of one head, KV_APPEND of one token of one head; nothing is read back."""
    layers, heads, size = 2, 2, 16
    made = generated(bits=bits).detail.compiled
    listed = document(made.compiled.commands, Target())["commands"]
    kv = [one for one in listed if one.get("tensor_role") == "kv"]
    loads, stores = ([one for one in kv if one["opcode"] == f"DMA_{way}_TILE"] for way in ("LOAD", "STORE"))
    assert {one["qbits"] for one in kv} == {bits}
    assert {one["head_dim"] for one in kv} == {size}
    tokens = len(PROMPT) + NEW - 1
    assert [one["num_elements"] for one in stores] == [size] * (2 * layers * heads * tokens)
    before = sum(range(len(PROMPT), tokens))
    assert sum(one["num_elements"] for one in loads) == 2 * layers * heads * before * size
    assert all(one["spm_offset"] % 32 == 0 for one in kv)  # R7


def test_the_new_row_is_written_while_attention_goes_on() -> None:
    made = generated("CA_HYBRID", new=2)
    compiled = made.detail.compiled
    step = compiled.prompt_commands
    (layer,) = {one.id for one in compiled.compiled.graph.layers if one.integer("tiles") and one.id == "attention.0.1"}
    numbers = [step + i + 1 for i, one in enumerate(compiled.step(0)) if one.layer == layer]
    assert made.events is not None
    events = np.concatenate([batch[np.isin(batch["ticket"], numbers)] for batch in made.events.batches()])
    writes = events[(events["what"] == What.DMA_BEGIN) & ((events["aux"] & 0xFF) == Opcode.KV_APPEND)]
    ended = events[events["what"] == What.TE_END]["cycle"]
    assert len(writes) == 4  # keys and values of two heads
    assert (writes["cycle"] < ended.max()).all()


@pytest.mark.parametrize(
    ("name", "context", "bits"),
    [
        ("llama2-7b", 100, 4), ("llama2-7b", 0, 16), ("mistral-7b", 5000, 4),
        *slow_rows(("llama2-7b", 100, 16), ("llama2-7b", 0, 4), ("mistral-7b", 5000, 16)),
    ],
)  # fmt: skip
def test_built_in_models_move_the_same_keys_and_values_in_both_forms(name: str, context: int, bits: int) -> None:
    config = BuiltIn.defaults | {"run.sim_level": "CA_HYBRID"}
    effective = load(overrides=dict(config)).config
    request = PhaseRequest(name, Phase.DECODE, context=context, layers=1, kv_bits=bits)
    macro, tile = (BuiltIn(request._replace(granularity=form)).run(effective).json["llm"] for form in ("macro", "tile"))
    row = 2 * (1024 if name == "mistral-7b" else 4096) * bits // 8
    seen = min(context, 4095) if name == "mistral-7b" else context
    (layer,) = tile["kv_layers"]
    assert (layer["kv_bytes_read"], layer["kv_bytes_written"]) == (seen * row, row)
    assert macro["kv_layers"][0]["kv_bytes_written"] == row
    if name != "mistral-7b":  # a macro command's window begins with the tile that its first key is in
        assert macro["kv_layers"] == tile["kv_layers"]


def test_the_command_line_compiles_tiles(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "decoder.onnx"
    onnx.save(decoder_kv(width=64, vocab=96), path)
    words = [str(path), "--generate", "2", "--prompt", "3,1", "--qbits-kv", "4", "--granularity", "tile"]
    assert main(["compile", *words, "-o", str(tmp_path / "out")]) == 0
    capsys.readouterr()
    listed = json.loads((tmp_path / "out" / "cmdq.json").read_text())["commands"]
    roles = {one["opcode"] for one in listed if one.get("tensor_role") == "kv"}
    assert roles == {"DMA_LOAD_TILE", "DMA_STORE_TILE"}
    lines = [json.loads(line) for line in (tmp_path / "out" / "npu_ir.jsonl").read_text().splitlines()]
    tiles = [tile for line in lines for tile in line.get("kv_tiles", ())]
    assert {tile["tile_type"] for tile in tiles} == {"kv_read", "kv_write"}
    assert {tile["qbits_kv"] for tile in tiles} == {4}
    assert main(["run", str(tmp_path / "out" / "image.elf"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["npu"]["errors"] == 0


def test_heads_whose_rows_no_transfer_can_begin_at_stay_macro_commands() -> None:
    made = generated(kind="float16", width=32, heads=4, kv_heads=2)  # rows of 8 x 2 bytes
    assert made.correct
    opcodes = {Opcode(one.descriptor.opcode) for one in made.detail.compiled.compiled.commands}
    assert Opcode.ATTN_T in opcodes
