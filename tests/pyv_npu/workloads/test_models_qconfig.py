"""--qconfig: weights of 8, 4 and 2 bits, against onnx.reference with what their codes stand for."""

import json
from pathlib import Path

import onnx
import pytest

from npu_device.config import NpuConfig
from pyv_npu import Simulator
from pyv_npu.cli import main
from pyv_npu.config import Config, with_values
from pyv_npu.config.yaml_file import load_qconfig
from pyv_npu.errors import BadInputError
from pyv_npu.workloads import ia
from pyv_npu.workloads.checks import compare, converted_error, precision
from pyv_npu.workloads.data import random_inputs
from pyv_npu.workloads.model import run_compiled
from toolchain.codegen import GRANULARITIES, Target
from toolchain.compiler import Compiled, compile_model
from toolchain.examples import EXAMPLES
from toolchain.onnx_model.model import prepare
from toolchain.quantize.qconfig import QConfig


def compiled(name: str, config: QConfig, **options: str) -> Compiled:
    return compile_model(prepare(EXAMPLES[name](), name), Target(qconfig=config), **options)  # type: ignore[arg-type]


def write(folder: Path, text: str) -> Path:
    path = folder / "q.yaml"
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize("kind", ["", "fp16"])
@pytest.mark.parametrize("bits", [8, 4, 2])
@pytest.mark.parametrize("name", ["mlp", "cnn", "decoder"])
def test_narrow_weights_compute_what_their_codes_stand_for(name: str, bits: int, kind: str) -> None:
    model = compiled(name, QConfig(weight=bits), precision=kind)
    inputs = random_inputs(model, 2)
    outputs, codes = ia.observed(model, NpuConfig(), inputs)
    for check in compare(model, outputs, inputs, codes).outputs.values():
        assert check["ok"] and check["limit"] <= 2e-3, check
    assert f"{kind or 'fp32'} x int{bits}" in precision(model)["products"]
    assert all(error is not None and error > 1e-3 for error in converted_error(model, outputs, inputs).values())


@pytest.mark.parametrize("granularity", GRANULARITIES)
def test_without_folding_and_fusion_it_is_the_same(granularity: str) -> None:
    model = compiled("cnn", QConfig(weight=4), granularity=granularity, passes="-batchnorm-folding,-fusion")
    inputs = random_inputs(model, 2)
    outputs, codes = ia.observed(model, NpuConfig(), inputs)
    assert compare(model, outputs, inputs, codes).outputs["y"]["ok"]


def test_every_mode_gives_the_same() -> None:
    model = compiled("cnn", QConfig(weight=4))
    seen = set()
    for values in ({"run.sim_level": "IA"}, {"npu.mode": "loose"}, {"npu.mode": "tight"}):
        result = run_compiled(with_values(Config(), values), model)
        assert result.correct
        seen.add(result.detail.outputs["y"].tobytes())
    assert len(seen) == 1


def test_one_width_decides_bytes_and_rates(tmp_path: Path) -> None:
    """R9: with half the bits half of the bytes of weights move, and the engine takes half of the cycles (f_w)."""
    path = tmp_path / "gemm.onnx"
    onnx.save(EXAMPLES["gemm"](512, 512, 512), path)
    busy, sizes = {}, {}
    for bits in (8, 4, 2):
        qconfig = write(tmp_path, f"qbits_weight_default: {bits}\n")
        run = Simulator(path, level="L1", qconfig=qconfig, settings={"npu.te.count": 1, "npu.spm.port": 1 << 16})
        found = run.run()
        busy[bits] = round(found.utilization["te0"] * found.cycles)
        graph = run.compiled.graph
        sizes[bits] = graph.tensors[graph.layers[0].inputs[1]].size
    assert sizes == {8: 512 * 512, 4: 512 * 256, 2: 512 * 128}
    assert busy[8] == pytest.approx(2 * busy[4], rel=0.02) and busy[4] == pytest.approx(2 * busy[2], rel=0.02)


def test_the_documented_file_is_read(tmp_path: Path) -> None:
    config = load_qconfig(
        write(
            tmp_path,
            """
bitwidths:
  weight: [2, 4, 8]
  activation: [4, 8]
  kv: [4, 8]
packing:
  use_packed_int4: false
  use_packed_int2: false
alignment:
  default_alignment_bytes: 32
  weight_alignment_bytes: 64
  kv_alignment_bytes: 64
spm:
  bank_size_bytes: 262144
  num_banks: 8
qbits_kv_default: 4
override:
  layer_3: {kv: 4}
  layer_4:
    kv: 8
    head_2: {kv: 4}
  layer_5.head_0.kv: 8
""",
        )
    )
    assert [config.kv_bits(*one) for one in ((0, 0), (4, 0), (4, 2), (5, 0), (5, 1))] == [4, 8, 4, 8, 4]
    compiled("mlp", config)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("qbits_weight: 4\n", ":1: qbits_weight: no such key; keys are qbits_weight_default, "),
        ("override:\n  layer_0:\n    timestep_1: {kv: 4}\n", ":3: override.layer_0.timestep_1.kv: no such override; "),
        ("layer_0.x: {kv: 4}\n", ":1: layer_0.x.kv: no such override; "),
        ("qbits_weight_default: 3\n", ":1: qbits_weight_default: 3 bits: must be one of 2, 4, 8, 16, 32"),
        ("spm: 4\n", ":1: spm: must be a table of keys and values"),
    ],
)
def test_a_wrong_file_is_one_line(tmp_path: Path, text: str, message: str) -> None:
    path = write(tmp_path, text)
    with pytest.raises(BadInputError) as caught:
        load_qconfig(path)
    assert str(caught.value).startswith(f"{path}{message}") and "\n" not in str(caught.value)


def test_the_command_line_takes_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "mlp.onnx"
    onnx.save(EXAMPLES["mlp"](), path)
    qconfig = write(tmp_path, "qbits_weight_default: 4\noverride: {layer_2.weight: 8}\n")
    assert main(["run", str(path), "--qconfig", str(qconfig), "--sim-level", "IA", "--json"]) == 0
    model = json.loads(capsys.readouterr().out)["model"]
    assert model["precision"]["products"] == ["fp32 x int4", "fp32 x int8"]
    assert model["original_error"]["y"] > model["checks"]["y"]["limit"] > model["checks"]["y"]["error"]
    write(tmp_path, "override: {layer_3.weight: 8}\n")
    assert main(["run", str(path), "--qconfig", str(qconfig)]) == 65
    assert "the model has 3 products with constant weights, layer_0 to layer_2" in capsys.readouterr().err
    assert main(["run", str(path), "--qconfig", str(qconfig), "--precision", "int8"]) == 65
    assert "the model has 3 products with constant weights" in capsys.readouterr().err
    assert main(["run", "hello", "--qconfig", str(qconfig)]) == 64
    assert "--qconfig: says how a model is compiled, and no ONNX model is named" in capsys.readouterr().err
