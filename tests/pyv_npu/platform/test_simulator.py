"""The Python interface: the documented examples, and arguments that are wrong."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import pyv_npu
from pyv_npu import Simulator
from pyv_npu.cli import main
from pyv_npu.errors import PyvNpuError, UsageError
from toolchain.examples import EXAMPLES


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("model") / "model.onnx"
    onnx.save(EXAMPLES["cnn"](), path)
    return str(path)


def test_the_documented_examples(model: str) -> None:
    loose = Simulator(model=model, level="L2", mode="loose", mmio_base=0x4000_0000, queue_size=1024).run()
    sim = Simulator(model=model, sim_level="CA_HYBRID", mode="tight", te_isa=["enqcmd", "twait", "tbar", "tstat"])
    tight = sim.run()
    again = Simulator(model=model, level="L2", te_mode="tight").run()
    assert loose.correct and tight.correct
    assert loose.outputs["y"].tobytes() == tight.outputs["y"].tobytes() == again.outputs["y"].tobytes()
    assert loose.latency.p50 > tight.latency.p50 == again.latency.p50
    assert loose.cycles > tight.cycles == again.cycles
    assert tight.json["events_sha256"] == again.json["events_sha256"] != loose.json["events_sha256"]


def test_a_result_tells_the_same_as_the_json(model: str) -> None:
    result = Simulator(model=model, mode="tight").run()
    npu, names = result.json["npu"], list(result.utilization)
    assert names == ["te0", "te1", "ve0", "ve1", "ve2", "ve3", "dma0", "dma1"]
    busy = [cycles / result.cycles for kind in ("te", "ve", "dma") for cycles in npu[f"{kind}_busy"]]
    assert list(result.utilization.values()) == pytest.approx(busy)
    assert result.latency.p50 == result.json["latency"]["stages"]["t_submit_prebuilt"]["p50"]
    layers = dict.fromkeys(row.layer for row in result.timeline if row.what == "ACCEPT")
    assert list(layers) == [layer.id for layer in Simulator(model).compiled.graph.layers]
    spans = [row for row in result.timeline if row.unit == "te0" and row.end is not None and row.start < row.end]
    assert sum(row.end - row.start for row in spans if row.end is not None) == npu["te_busy"][0]
    assert {row.layer for row in spans} <= set(layers)


def test_p99_of_few_commands_is_none(model: str) -> None:
    latency = Simulator(model=model).run().latency
    with pytest.warns(UserWarning, match=r"p99 is None: 6 samples, below 100"):
        assert latency.p99 is None


MODULE = """func.func @main(%a: tensor<4x8xf32>, %b: tensor<4x8xf32>) -> tensor<4x8xf32> {
  %c = arith.addf %a, %b : tensor<4x8xf32>
  return %c : tensor<4x8xf32>
}
"""


def test_a_model_is_a_name_a_proto_or_a_text(model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    named, loaded = Simulator("cnn").run(), Simulator(onnx.load(model)).run()
    for result in (named, loaded):
        assert result.correct and result.json["events_sha256"] == Simulator(model).run().json["events_sha256"]
    text = Simulator(MODULE)
    added = text.run({"a": np.ones((4, 8), np.float32), "b": np.full((4, 8), 2, np.float32)})
    assert np.array_equal(next(iter(added.outputs.values())), np.full((4, 8), 3, np.float32))
    assert repr(text) == "<Simulator: model.mlir, CA_HYBRID, tight, 1 layers, 1 commands>"
    assert repr(loaded) == f"<Simulation: model.onnx, tight, {loaded.cycles:,} cycles, outputs as the reference>"
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    for name, result in (("proto", loaded), ("text", added)):
        result.report(tmp_path / name)
        assert main(["run", "--replay", str(tmp_path / name), "--json"]) == 0


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ("cnm", "cnm: neither a file, nor firmware or a model of this package; did you mean cnn?"),
        ("hello", "hello: is no ONNX model or MLIR module; `pyv-npu run hello` runs it"),
        ("llama2-7b", "llama2-7b: is no ONNX model or MLIR module; `pyv-npu run llama2-7b` runs it"),
        (3, "model: is of type int; give a path, the name of an example model, an onnx.ModelProto, or the text of an "),
        ("module {\n x }", "model.mlir:2:4: "),
        (onnx.ModelProto(), "model.onnx: "),
    ],
)
def test_what_is_no_model_is_one_line(wrong: Any, message: str) -> None:
    with pytest.raises(PyvNpuError) as caught:
        Simulator(wrong)
    assert str(caught.value).startswith(message) and "\n" not in str(caught.value)


def test_own_inputs(model: str) -> None:
    sim = Simulator(model=model, level="IA")
    zeros = np.zeros((1, 1, 28, 28), np.float32)
    first, second = sim.run({"x": zeros}), sim.run({"x": zeros.astype(np.float64)})
    assert first.correct and first.outputs["y"].tobytes() == second.outputs["y"].tobytes()
    assert first.outputs["y"].tobytes() != sim.run().outputs["y"].tobytes()


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({"z": np.zeros(1)}, "input z: the model has no such input; inputs are x"),
        ({"x": np.zeros((2, 2))}, r"input x: has shape \(2, 2\); the model takes \(1, 1, 28, 28\)"),
        ({"x": np.zeros((1, 1, 28, 28), complex)}, "input x: has type complex128; the model takes float32: convert it"),
    ],
)
def test_inputs_that_do_not_fit_are_named(model: str, inputs: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        Simulator(model=model, level="IA").run(inputs)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"level": "L9"}, "argument sim_level: run.sim_level = L9: must be one of IA, IA_TIMING, CA_HYBRID, CA_FULL"),
        ({"level": "L3"}, "sim_level CA_FULL: needs an engine outside, and npu.te.external.engine is empty; "),
        ({"mode": "medium"}, "argument mode: npu.mode = medium: must be one of loose, tight"),
        ({"level": "L1", "sim_level": "L2"}, "level = L1 and sim_level = L2: are one argument; give one of them"),
        ({"mode": "loose", "te_mode": "tight"}, "mode = loose and te_mode = tight: are one argument"),
        ({"queue_size": 0}, "argument queue_size: npu.queue.tight_size = 0: must be an integer from 1 to 65536 or "),
        ({"queue_size": 1000, "mode": "loose"}, "argument queue_size: npu.queue.size = 1000: must be an integer from "),
        ({"mmio_base": 1}, "argument mmio_base: platform.mmio_base = 0x1: must be an integer from 0x0 to "),
        ({"te_isa": ["enqcmd", "twat"]}, "argument te_isa: core.custom = .*did you mean twait"),
        ({"te_isa": ["enqcmd"], "mode": "loose"}, "te_isa: names instructions of tight mode, and npu.mode is loose"),
        ({"preset": "fast"}, "fast: must be a file, or the name of a shipped one: "),
    ],
)
def test_wrong_arguments_are_named(model: str, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        Simulator(model=model, **arguments)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("level", "missing"), [("IA", "cycles"), ("IA", "timeline"), ("IA_TIMING", "latency")])
def test_what_a_level_does_not_have_is_refused(model: str, level: str, missing: str) -> None:
    result = Simulator(model=model, level=level).run()
    with pytest.raises(UsageError, match=f"{level}.*run at"):
        getattr(result, missing)


def test_levels_agree_and_timing_has_a_timeline(model: str) -> None:
    function, timing = (Simulator(model=model, level=level).run() for level in ("L0", "L1"))
    assert function.outputs["y"].tobytes() == timing.outputs["y"].tobytes()
    assert timing.cycles == max(row.end for row in timing.timeline if row.end is not None)
    assert 0 < timing.utilization["dma0"] <= 1


def test_the_command_line_prints_the_same(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", model, "--mode", "loose", "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    own = Simulator(model=model, mode="loose").run().json
    assert {**own, "host": None} == {**printed, "host": None}


def test_a_model_is_compiled_as_the_command_line_would(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    np.savez(tmp_path / "c.npz", x=np.linspace(-1, 1, 784, dtype=np.float32).reshape(1, 1, 28, 28))
    for precision, files in (("fp16", []), ("int8", [str(tmp_path / "c.npz")])):
        options = [f"--calibration={file}" for file in files]
        assert main(["run", model, "--sim-level", "IA", "--precision", precision, *options, "--json"]) == 0
        printed = json.loads(capsys.readouterr().out)
        result = Simulator(model, level="IA", precision=precision, calibration=files).run()
        assert result.json["model"] == printed["model"]
        result.report(tmp_path / precision)
        assert main(["run", "--replay", str(tmp_path / precision), "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["model"] == printed["model"]


def test_importing_the_package_imports_no_machine() -> None:
    program = (
        "import sys, pyv_npu; print(sorted({'numpy', 'onnx', 'llvmlite', 'pyv_ext', 'toolchain'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout == "[]\n"
    assert set(pyv_npu.__all__) <= set(dir(pyv_npu))
    assert Path(pyv_npu.Platform.__module__.replace(".", "/")).name == "platform"
    assert isinstance(pyv_npu.Config(), pyv_npu.Config)
    with pytest.raises(AttributeError, match="has no attribute 'Simulater'"):
        _ = pyv_npu.Simulater
