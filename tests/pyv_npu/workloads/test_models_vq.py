"""Weights in vector quantization through the product: ONNX models and built-in shapes."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from model_runs import execute, run_compiled
from shares import slow

from npu_device.config import NpuConfig
from pyv_npu.cli import main
from pyv_npu.config import Config, with_values
from pyv_npu.workloads import ia
from pyv_npu.workloads.checks import compare, converted_error
from pyv_npu.workloads.data import random_inputs
from toolchain.codegen import GRANULARITIES, Target
from toolchain.compiler import Compiled, compile_model
from toolchain.decoders.shapes import MODELS
from toolchain.examples import EXAMPLES
from toolchain.onnx_model.model import prepare
from toolchain.program_image import pieces
from toolchain.quantize.codebook import VQ_BITS, VectorQuantization
from toolchain.quantize.qconfig import QConfig


def compiled(name: str, config: QConfig, **options: str) -> Compiled:
    return compile_model(prepare(EXAMPLES[name](), name), Target(qconfig=config), **options)  # type: ignore[arg-type]


VQ = QConfig(weight=VQ_BITS, vectors=VectorQuantization(2))


@pytest.mark.parametrize("kind", ["", "fp16", "bf16"])
@pytest.mark.parametrize("name", ["mlp", "cnn", "decoder"])
def test_a_model_computes_what_its_vectors_stand_for(name: str, kind: str) -> None:
    model = compiled(name, VQ, precision=kind)
    inputs = random_inputs(model, 2)
    outputs, codes = ia.observed(model, NpuConfig(), inputs)
    for check in compare(model, outputs, inputs, codes).outputs.values():
        assert check["ok"], check
    assert all(error is not None and error > 1e-3 for error in converted_error(model, outputs, inputs).values())


def test_the_image_holds_what_numpy_expands_to_the_products_that_run() -> None:
    """Codes and codebooks as they lie in DRAM, expanded here; the product of the first layer from them alone."""
    model = compiled("gemm", VQ)
    data = dict(pieces(model, {}))
    (layer,) = model.graph.layers
    codes_at, books_at = (model.memory.address(model.graph, layer.inputs[i]) for i in (1, -1))
    rows, columns = model.graph.tensors[layer.inputs[1]].shape
    codes = np.frombuffer(data[codes_at], np.uint8).reshape(rows, columns // 8)
    books = np.frombuffer(data[books_at], np.float16).reshape(2, 256, 8)
    assert len(data[codes_at]) + len(data[books_at]) == rows * columns // 8 + 2 * 2**8 * 8 * 2
    weights = np.stack([books[row * 2 // rows][codes[row]].reshape(-1) for row in range(rows)])
    inputs = random_inputs(model, 2)
    (x,), (y,) = inputs.values(), execute(model, NpuConfig(), inputs).values()
    bias = model.graph.constant(layer.inputs[2])
    assert layer.text("epilogue") == "bias" and bias is not None
    expected = x.astype(np.float64) @ weights.astype(np.float64) + bias
    assert y.dtype == np.float16 and np.abs(y - expected).max() <= 2**-11 * np.abs(expected).max()


@pytest.mark.parametrize("granularity", GRANULARITIES)
@pytest.mark.parametrize("name", ["mlp", "cnn"])
def test_every_level_mode_and_form_gives_the_same(name: str, granularity: str) -> None:
    model = compiled(name, VQ, granularity=granularity)
    seen = set()
    for values in (
        {"run.sim_level": "IA"}, {"run.sim_level": "IA_TIMING"}, {"npu.mode": "loose"}, {"npu.mode": "tight"},
        {"npu.te.kind": "systolic_ws_pipe"}, {"npu.te.conv_lowering": "kernel_position"},
    ):  # fmt: skip
        result = run_compiled(with_values(Config(), values), model)
        assert result.correct, values
        seen.add(result.detail.outputs["y"].tobytes())
    assert len(seen) == 1


def test_groups_of_filters_that_are_no_vectors_keep_their_weights(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rng = np.random.default_rng(1)
    weights = rng.standard_normal((8, 1, 3, 3)).astype(np.float32)
    node = onnx.helper.make_node("Conv", ["x", "w"], ["y"], group=8)
    value = onnx.helper.make_tensor_value_info
    kinds = value("x", 1, [1, 8, 6, 6]), value("y", 1, [1, 8, 4, 4])
    graph = onnx.helper.make_graph([node], "g", kinds[:1], kinds[1:], [onnx.numpy_helper.from_array(weights, "w")])
    path, config = tmp_path / "m.onnx", tmp_path / "q.yaml"
    onnx.save(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)]), path)
    config.write_text("qbits_weight_default: vq\n")
    words = ["run", str(path), "--qconfig", str(config), "--sim-level", "IA"]
    assert main([*words, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["model"]["precision"]["products"] == ["fp32"]
    config.write_text("override: {layer_0: {weight: vq}}\n")
    assert main(words) == 65
    assert "1 filters of a group, vectors have 8: override.layer_0.weight: 16" in capsys.readouterr().err


def phase(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    assert main(["run", *words, "--json"]) == 0
    made: dict[str, Any] = json.loads(capsys.readouterr().out)
    return made


@pytest.mark.parametrize("name", ["llama2-7b", *slow("opt-6.7b")])
def test_a_built_in_model_has_the_bytes_of_the_formula(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Against FP16: n x 2 bytes of each matrix become n / 8 and the codebooks, in DRAM, and about so on the bus."""
    (tmp_path / "q.yaml").write_text("qbits_weight_default: vq\nvq: {d: 8, codebook_bits: 8, codebooks: 3}\n")
    shape = MODELS[name]
    words = [name, "--layers", "1", "--context", "63"]
    wide = phase(capsys, *words)
    narrow = phase(capsys, *words, "--qconfig", str(tmp_path / "q.yaml"))
    elements = shape.attention_parameters + shape.ffn_parameters
    matrices = 5 if shape.gated else 4
    saved = elements * 2 - (elements // 8 + matrices * 3 * 2**8 * 8 * 2)
    assert wide["llm"]["weight_bytes"] - narrow["llm"]["weight_bytes"] == saved
    moved = wide["npu"]["dram_bytes_read"] - narrow["npu"]["dram_bytes_read"]
    assert 0.9 * saved < moved <= saved  # accesses to short rows of codes are widened
    one = phase(capsys, *words, "--qbits-weight", "vq")
    assert narrow["llm"]["weight_bytes"] - one["llm"]["weight_bytes"] == matrices * 2 * 4096
    assert (one["llm"]["qbits_weight"], one["llm"]["codebooks"]) == (1, 1)
    assert one["llm"]["bound"]["lookup_cycles"] == elements // 128
    assert max(one["llm"]["bound"].values()) < one["cycles"] < wide["cycles"]


def test_expansion_is_the_limit_where_it_is_slow(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["llama2-7b", "--layers", "1", "--context", "63", "--qbits-weight", "vq", "--set", "npu.spm.port=none"]
    fast, slow = (phase(capsys, *words, "--set", f"npu.dma.vq_elements_per_cycle={rate}") for rate in (64, 8))
    assert slow["llm"]["bound"]["lookup_cycles"] == 8 * fast["llm"]["bound"]["lookup_cycles"]
    assert slow["cycles"] > slow["llm"]["bound"]["lookup_cycles"] > fast["cycles"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("qbits_weight_default: vq\nvq: {d: 4}\n", ":2: vq.d: 4: must be 8, the device has no other"),
        ("qbits_weight_default: vq\nvq: {codebook_bits: 4}\n", "vq.codebook_bits: 4: must be 8, the device has no"),
        ("qbits_weight_default: vq\nvq: {codebooks: 0}\n", "vq.codebooks: 0: must be a whole number 1..1024"),
        ("qbits_weight_default: vq\nvq: {codebooks: 1.5}\n", "vq.codebooks: 1.5: must be a whole number 1..1024"),
        ("qbits_weight_default: vq\nvq: {seed: -1}\n", "vq.seed: -1: must be a whole number 0..4294967295"),
        ("qbits_weight_default: vq\nvq: {size: 8}\n", ":2: vq.size: no such key"),
        ("qbits_weight_default: 4\nvq: {codebooks: 2}\n", ":2: vq.codebooks: no weights are vq"),
        ("qbits_kv_default: vq\n", ":1: qbits_kv_default: vq bits: must be one of 2, 4, 8, 16"),
        ("qbits_weight_default: vq\nvq: {codebooks: 1024}\n", "1024 codebooks for 256 rows of weights: fewer vq.codeb"),
    ],
)
def test_what_cannot_be_is_one_line(
    text: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    onnx.save(EXAMPLES["gemm"](256, 256, 256), tmp_path / "m.onnx")
    (tmp_path / "q.yaml").write_text(text)
    assert main(["run", str(tmp_path / "m.onnx"), "--qconfig", str(tmp_path / "q.yaml")]) == 65
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1


def test_codes_are_not_coded_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    onnx.save(EXAMPLES["mlp"](), tmp_path / "m.onnx")
    onnx.save(EXAMPLES["mlp_int8"](), tmp_path / "q.onnx")
    (tmp_path / "q.yaml").write_text("qbits_weight_default: vq\n")
    config = ["--qconfig", str(tmp_path / "q.yaml"), "--sim-level", "IA"]
    assert main(["run", str(tmp_path / "m.onnx"), "--precision", "int8", *config]) == 65
    assert "--precision int8 with QConfig weights vq: vectors are of floats" in capsys.readouterr().err
    assert main(["run", str(tmp_path / "q.onnx"), *config]) == 65
    assert "its weights are codes of 8 bits already: drop vq" in capsys.readouterr().err
