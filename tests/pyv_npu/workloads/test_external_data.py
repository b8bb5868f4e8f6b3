"""External data of a model: mapped from their files, never in it, with the results of the model in one file."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from npu_device.abi.memory_map import DRAM_BASE, DRAM_CORE_VISIBLE
from pyv_npu.cli import main
from pyv_npu.config import Config, with_values
from pyv_npu.workloads.compiled import target_of, write_folder
from pyv_npu.workloads.decoder import Generation, ReadyDecoder
from pyv_npu.workloads.firmware import run_program
from pyv_npu.workloads.generation import GenerationRequest
from toolchain.decoders.decoder import compile_decoder, load_decoder, make_decoder
from toolchain.errors import ModelError
from toolchain.examples import EXAMPLES
from toolchain.examples.decoder_kv import decoder_kv
from toolchain.onnx_model import file
from toolchain.onnx_model.model import OnnxModel, load_model

LARGE = DRAM_CORE_VISIBLE + (16 << 20)
FEW = (8 << 20) + (256 << 10)
"""Bytes that the core sees in a test: enough for caches and commands, not for weights."""
SMALL = {"width": 64, "vocab": 96}


@pytest.fixture(autouse=True)
def tensors_are_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file, "SMALL", 64)


def saved(folder: Path, proto: Any, *, apart: bool) -> Path:
    path = folder / f"{'apart' if apart else 'whole'}.onnx"
    onnx.save(proto, path, save_as_external_data=apart, location="weights.data", size_threshold=0)
    return path


def ran(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    capsys.readouterr()
    assert main(["run", *words, "--sim-level", "IA", "--json"]) == 0
    return dict(json.loads(capsys.readouterr().out))


@pytest.mark.parametrize(
    ("name", "options"),
    [("mlp", []), ("cnn", []), ("mlp_fp16", []), ("mlp_int8", []), ("mlp", ["--precision", "int8"]),
     ("cnn", ["--qconfig", "q.yaml"])],
)  # fmt: skip
def test_a_model_computes_the_same(
    name: str, options: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("q.yaml").write_text("qbits_weight_default: 4\n")
    one, two = (ran(capsys, str(saved(tmp_path, EXAMPLES[name](), apart=apart)), *options) for apart in (False, True))
    assert load_model(tmp_path / "apart.onnx").external
    assert one["model"] == two["model"]
    assert all(check["ok"] for check in two["model"]["checks"].values())


def test_a_decoder_makes_the_same_tokens(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--prompt", "3,1,4", "--generate", "3"]
    one, two = (ran(capsys, str(saved(tmp_path, decoder_kv(**SMALL), apart=apart)), *words) for apart in (False, True))
    assert load_decoder(tmp_path / "apart.onnx").external
    assert one["generate"] == two["generate"]


def test_a_decoder_with_weights_out_of_sight_generates(tmp_path: Path) -> None:
    """Firmware, an image that finds weights.bin by itself, and IA, against the decoder that the core sees."""
    decoder, request = make_decoder(decoder_kv(width=128, vocab=96), "decoder"), GenerationRequest((3, 1, 4), 3)
    config = with_values(Config(), {"npu.dram.size": LARGE})
    device = target_of(config.npu)._replace(visible_bytes=FEW)
    made = compile_decoder(decoder, device, 3, request.total)
    assert made.compiled.memory.weights[0] == DRAM_BASE + DRAM_CORE_VISIBLE
    far = ReadyDecoder(request, made)
    near = Generation(decoder, request).run(Config())
    assert near.detail.compiled.compiled.memory.weights[0] < DRAM_BASE + FEW
    for level in ("IA", "CA_HYBRID"):
        found = far.run(with_values(config, {"run.sim_level": level}))
        assert found.correct and found.detail.tokens == near.detail.tokens
        assert found.json["generate"]["outputs_sha256"] == near.json["generate"]["outputs_sha256"]
    write_folder(far.compiled, far.image(), tmp_path, config.npu)
    alone = run_program(Config(), tmp_path / "image.elf")
    assert alone.exit_code == 0 and alone.json["events_sha256"] == found.json["events_sha256"]


def test_a_conversion_of_weights_beside_has_a_limit(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    model = load_model(saved(tmp_path, EXAMPLES["mlp"](), apart=True))
    assert set(model.whole().initializers) == set(model.initializers) and not model.whole().external
    monkeypatch.setattr("toolchain.onnx_model.model.MAX_PROTOBUF", 1000)
    with pytest.raises(ModelError, match=r"apart.onnx: a protobuf of \d+ bytes: a conversion of weights takes at most"):
        model.whole()


@pytest.mark.parametrize("change", ["short", "missing", "outside"])
def test_a_file_that_is_not_right_is_one_line(change: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "m").mkdir()
    path = saved(tmp_path / "m", EXAMPLES["mlp"](), apart=True)
    data = path.with_name("weights.data")
    if change == "short":
        data.write_bytes(data.read_bytes()[:1000])
    elif change == "missing":
        data.unlink()
    else:
        data.rename(tmp_path / "weights.data")
        proto = onnx.load(path, load_external_data=False)
        for tensor in proto.graph.initializer:
            tensor.external_data[0].value = "../weights.data"
        onnx.save(proto, path)
    assert main(["run", str(path)]) == 65
    error = capsys.readouterr().err
    assert error.startswith(f"pyv-npu: error: {path}: ") and error.count("\n") == 1
    assert error.endswith(": put its external data into the folder of the model\n")


def test_the_values_are_those_of_onnx(tmp_path: Path) -> None:
    path = saved(tmp_path, EXAMPLES["mlp_fp16"](), apart=True)
    whole, apart = onnx.load(path), load_model(path)
    for tensor in whole.graph.initializer:
        values = apart.initializers[tensor.name]
        assert np.array_equal(values, onnx.numpy_helper.to_array(tensor)) and isinstance(apart, OnnxModel)


def test_a_vocabulary_beyond_a_word_is_logged_in_parts() -> None:
    decoder = make_decoder(decoder_kv(layers=1, width=32, heads=2, kv_heads=1, vocab=70_000), "large")
    made = Generation(decoder, GenerationRequest((69_999, 5), 2)).run(with_values(Config(), {"run.sim_level": "IA"}))
    assert made.correct and made.detail.logits.shape == (3, 70_000)
    firmware = Generation(decoder, GenerationRequest((69_999, 5), 2)).run(Config())
    assert firmware.detail.tokens == made.detail.tokens and np.array_equal(firmware.detail.logits, made.detail.logits)
    prime = make_decoder(decoder_kv(layers=1, width=32, heads=2, kv_heads=1, vocab=65_537), "prime")
    with pytest.raises(
        ModelError, match=r"^prime: a vocabulary of 65537: above 65535 .*: pad the output logits to 65538"
    ):
        Generation(prime, GenerationRequest((1,), 1)).run(Config())
