"""External data of a model: mapped from their files, never in it, with the results of the model in one file."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from npu_device.abi.memory_map import DRAM_BASE, DRAM_CORE_VISIBLE
from pyv_npu.cli import main
from pyv_npu.config import Config, with_values
from pyv_npu.workloads.compiled import target_of, write_folder
from pyv_npu.workloads.decoder import Generation, ReadyDecoder
from pyv_npu.workloads.firmware import run_program
from pyv_npu.workloads.generation import GenerationRequest
from toolchain.codegen import Target
from toolchain.compiler import compile_model
from toolchain.decoders.decoder import compile_decoder, load_decoder, make_decoder
from toolchain.errors import ModelError
from toolchain.examples import EXAMPLES
from toolchain.examples.decoder_kv import decoder_kv
from toolchain.onnx_model import file
from toolchain.onnx_model.model import OnnxModel, load_model

ROOT = Path(__file__).resolve().parents[3]
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
    made = []
    for apart, small in ((False, 1 << 30), (False, 64), (True, 64)):
        monkeypatch.setattr(file, "SMALL", small)
        path = saved(tmp_path, EXAMPLES[name](), apart=apart)
        assert bool(load_model(path).external) == (small == 64)
        made.append(ran(capsys, str(path), *options)["model"])
    assert made[0] == made[1] == made[2]
    assert all(check["ok"] for check in made[0]["checks"].values())


def test_what_is_mapped_is_given_back_and_read_again(tmp_path: Path) -> None:
    (tmp_path / "values").write_bytes(bytes(range(256)) * (1 << 14))
    values = np.asarray(np.memmap(tmp_path / "values", np.uint8, "r")).view(np.uint32).reshape(64, -1)

    def resident() -> int:
        """Bytes of files in memory."""
        (line,) = (one for one in Path("/proc/self/status").read_text().splitlines() if one.startswith("RssFile"))
        return int(line.split()[1]) << 10

    total = int(values.sum())
    before = resident()
    file.give_back([values, np.zeros(4)])
    assert before - resident() > values.nbytes // 2
    assert int(values.sum()) == total


def test_weights_are_held_once(tmp_path: Path) -> None:
    """Neither in the protobuf too, nor as they were between two passes."""
    proto = EXAMPLES["cnn"]()
    before = proto.ByteSize()
    model = load_model(saved(tmp_path, proto, apart=False))
    assert model.external and 3 * model.proto.ByteSize() < before
    compiled = compile_model(model, Target())
    stages = [graph.constants for _, graph in compiled.stages]
    quantized = [stage for stage, _ in compiled.stages].index("quantization")
    asked = {id(values) for at in (0, quantized - 1, -1) for values in stages[at].values()}
    assert {id(values) for constants in stages for values in constants.values()} == asked
    assert stages[0] and stages[quantized - 1] and stages[-1]


def test_a_weight_that_a_node_only_renames_stays_a_constant(tmp_path: Path) -> None:
    """Tied weights, as exporters write them."""
    make, random = helper.make_node, np.random.default_rng(1)
    weights = random.standard_normal((8, 8)).astype(np.float32)
    graph = helper.make_graph(
        [make("Identity", ["w"], ["tied"]), make("MatMul", ["x", "tied"], ["y"])], "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 8])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)], [numpy_helper.from_array(weights, "w")],
    )  # fmt: skip
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    model = load_model(saved(tmp_path, proto, apart=False))
    assert [layer.op_type for layer in compile_model(model, Target()).stages[0][1].layers] == ["GEMM_T"]


@pytest.mark.slow
def test_resnet18_takes_twice_the_model_and_300_megabytes(tmp_path: Path) -> None:
    """And its activations, some 20 MB with the patches of a convolution. The cache of native code is empty."""
    path = tmp_path / "resnet18.onnx"
    onnx.save(EXAMPLES["resnet18"](), path)
    code = "import sys; from benchmarks.host import peak_memory; from pyv_npu.cli import main; "
    code += "assert main(sys.argv[1:]) == 0; print(peak_memory())"
    command = [sys.executable, "-c", code, "run", str(path)]
    env = {**os.environ, "XDG_CACHE_HOME": str(tmp_path), "PYTHONPATH": str(ROOT / "scripts")}
    process = subprocess.run(command, capture_output=True, text=True, check=True, env=env)
    used = int(process.stdout.splitlines()[-1]) << 20
    assert used < 2 * path.stat().st_size + 20_000_000 + 300_000_000


def test_a_decoder_makes_the_same_tokens(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--prompt", "3,1,4", "--generate", "3"]
    one, two = (ran(capsys, str(saved(tmp_path, decoder_kv(**SMALL), apart=apart)), *words) for apart in (False, True))
    assert load_decoder(tmp_path / "apart.onnx").external
    assert one["generate"] == two["generate"]


@pytest.mark.slow
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
    whole = model.with_initializers()
    assert set(whole.initializers) == set(model.initializers) and not whole.external
    monkeypatch.setattr("toolchain.onnx_model.model.MAX_PROTOBUF", 1000)
    with pytest.raises(ModelError, match=r"apart.onnx: a protobuf of \d+ bytes: a conversion of weights takes at most"):
        model.with_initializers()


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
