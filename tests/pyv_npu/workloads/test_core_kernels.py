"""Layers that the core works on: C kernels in the firmware against numpy at IA, and their time in results."""

import csv
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from external_tools import need
from mlir_runner import LLC, TRANSLATE
from model_runs import execute, run_compiled
from onnx import TensorProto, helper

from npu_device.abi.opcodes import Kernel
from npu_device.config import NpuConfig
from npu_device.levels.explain import Blocker
from pyv_ext.engines.core import Stop, StopReason
from pyv_npu.cli import main
from pyv_npu.config import Config, with_values
from pyv_npu.platform import Platform
from pyv_npu.result import Result
from pyv_npu.sections import as_text
from pyv_npu.workloads.compiled import GENERATED
from pyv_npu.workloads.model import Model, ModelDetail
from pyv_npu.workloads.workload import Session
from toolchain.codegen import GRANULARITIES, Target
from toolchain.compiler import Compiled, compile_model
from toolchain.errors import ToolchainError
from toolchain.onnx_model.model import prepare
from toolchain.program_image import build_image

FLOAT, I64 = TensorProto.FLOAT, TensorProto.INT64
KINDS = {np.float32: FLOAT, np.float16: TensorProto.FLOAT16, np.int32: TensorProto.INT32, np.int8: TensorProto.INT8}
make = helper.make_node


def model(nodes: Any, inputs: Any, outputs: Any, granularity: str = "macro") -> Compiled:
    graph = helper.make_graph(
        nodes, "g",
        [helper.make_tensor_value_info(name, kind, shape) for name, (kind, shape) in inputs.items()],
        [helper.make_tensor_value_info(name, kind, None) for name, kind in outputs.items()],
    )  # fmt: skip
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return compile_model(prepare(proto, "m"), Target(), granularity=granularity)


def firmware(compiled: Compiled, given: Any, mode: str = "tight") -> Result[ModelDetail]:
    """A run through firmware that leaves what IA leaves, bit for bit."""
    expected = execute(compiled, NpuConfig(), given)
    result = run_compiled(with_values(Config(), {"npu.mode": mode}), compiled, given)
    assert result.core is not None and result.exit_code == 0 and result.correct
    for name, values in expected.items():
        assert result.detail.outputs[name].tobytes() == values.tobytes(), name
    return result


def places(mode: str = "tight", granularity: str = "macro") -> Result[ModelDetail]:
    """Relu, NonZero and a table lookup by what it finds."""
    nodes = [make("Relu", ["x"], ["r"], "relu"), make("NonZero", ["r"], ["n"], "places"),
             make("Transpose", ["n"], ["t"], "turn", perm=[1, 0]),
             make("GatherND", ["x", "t"], ["y"], "pick")]  # fmt: skip
    compiled = model(nodes, {"x": (FLOAT, [3, 5, 7])}, {"n": I64, "y": FLOAT}, granularity)
    x = np.random.default_rng(1).standard_normal((3, 5, 7)).astype(np.float32)
    result = firmware(compiled, {"x": x}, mode)
    (count,) = result.detail.outputs["n.count"].tolist()
    assert count == (x > 0).sum() and np.array_equal(result.detail.outputs["y"][:count], x[x > 0])
    return result


@pytest.mark.parametrize("granularity", GRANULARITIES)
@pytest.mark.parametrize("mode", ["loose", "tight"])
def test_places_are_found_by_the_core(mode: str, granularity: str) -> None:
    places(mode, granularity)


@pytest.mark.parametrize("mode", ["loose", "tight"])
def test_generated_code_has_the_core_do_its_work(mode: str) -> None:
    need(TRANSLATE, LLC, "riscv64-unknown-elf-gcc")
    nodes = [make("Relu", ["x"], ["r"], "relu"), make("NonZero", ["r"], ["n"], "places"),
             make("Transpose", ["n"], ["t"], "turn", perm=[1, 0]),
             make("GatherND", ["x", "t"], ["y"], "pick"), make("NonZero", ["x"], ["z"], "again")]  # fmt: skip
    compiled = model(nodes, {"x": (FLOAT, [3, 5, 7])}, {"n": I64, "y": FLOAT, "z": I64})
    x = np.random.default_rng(1).standard_normal((3, 5, 7)).astype(np.float32)
    expected = firmware(compiled, {"x": x}, mode)
    config = with_values(Config(), {"npu.mode": mode, "npu.queue.size": 4})
    result = run_compiled(config, compiled, {"x": x}, submit=GENERATED)
    assert result.exit_code == 0 and result.correct and expected.core is not None and result.core is not None
    assert result.core.outputs_sha256 == expected.core.outputs_sha256 and result.core.order == expected.core.order
    work = result.json["npu"]["core_kernels"]
    assert work["count"] == 2 and work["cycles"] > 1000
    spans = result.spans.core
    assert int(spans["end"][0]) <= int(spans["start"][1])


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("shape", [(9,), (2, 3, 1, 2, 2, 1, 2, 3)])
def test_element_types_of_the_kernel(kind: Any, shape: tuple[int, ...]) -> None:
    x = (np.random.default_rng(2).integers(-1, 2, shape) * np.float32(-1)).astype(kind)  # -0 among them
    firmware(model([make("NonZero", ["x"], ["y"])], {"x": (KINDS[kind], shape)}, {"y": I64}), {"x": x})


@pytest.mark.parametrize("x", [np.zeros(6, np.float32), np.array([np.nan, np.inf, 1e-45, -0.0, 0, 1], np.float32)])
def test_values_at_the_edge(x: Any) -> None:
    firmware(model([make("NonZero", ["x"], ["y"])], {"x": (FLOAT, x.shape)}, {"y": I64}), {"x": x})


@pytest.mark.parametrize("centres", [0, 1])
@pytest.mark.parametrize(("most", "overlap", "least"), [(5, 0.3, 0.4), (40, 0.0, -1.0), (40, 0.9, 0.0)])
def test_boxes_are_selected_by_the_core(most: int, overlap: float, least: float, centres: int) -> None:
    """Equal scores, corners in any order, boxes without area, -0 and numbers that are none."""
    random = np.random.default_rng(most + centres)
    boxes = random.integers(0, 12, (2, 40, 4)).astype(np.float32) / 2
    scores = random.integers(-2, 6, (2, 3, 40)).astype(np.float32) / np.float32(5)
    scores[:, :, :4] = [-0.0, 0.0, np.nan, np.inf]
    constants = [("most", np.array([most], np.int64)), ("overlap", np.array([overlap], np.float32)),
                 ("least", np.array([least], np.float32))]  # fmt: skip
    nodes = [make("Constant", [], [name], value_ints=values.tolist()) if values.dtype == np.int64
             else make("Constant", [], [name], value_floats=values.tolist()) for name, values in constants]  # fmt: skip
    nodes.append(make("NonMaxSuppression", ["b", "s", "most", "overlap", "least"], ["y"], center_point_box=centres))
    compiled = model(nodes, {"b": (FLOAT, boxes.shape), "s": (FLOAT, scores.shape)}, {"y": I64})
    (count,) = firmware(compiled, {"b": boxes, "s": scores}).detail.outputs["y.count"].tolist()
    assert 0 < count <= 2 * 3 * most


@pytest.mark.parametrize("kind", [*KINDS, np.uint8], ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("largest", [0, 1])
def test_the_largest_are_found_by_the_core(kind: Any, largest: int) -> None:
    """Equal elements, -0, infinities, and numbers that are none."""
    x = np.random.default_rng(6).integers(-9, 9, (2, 3, 40)).astype(kind)
    x[:, :, :2] = np.iinfo(kind).max if np.dtype(kind).kind != "f" else [-0.0, 0.0]
    if np.dtype(kind).kind == "f":
        x[:, :, 5:8] = [np.nan, np.inf, -np.inf]
    nodes = [make("Constant", [], ["k"], value_ints=[20]), make("TopK", ["x", "k"], ["v", "i"], largest=largest)]
    name = KINDS.get(kind, TensorProto.UINT8)
    firmware(model(nodes, {"x": (name, x.shape)}, {"v": name, "i": I64}), {"x": x})


def test_the_time_of_the_core_is_shown_as_such(tmp_path: Path) -> None:
    result = places()
    assert result.core is not None and result.analysis is not None
    (span,) = result.spans.core
    took = int(span["end"] - span["start"])
    layers = {layer.name: layer for layer in result.analysis.layers}
    worked = next(layer for name, layer in layers.items() if name.startswith("places"))
    assert took > 1000 and worked.busy["core"] == took == worked.active and worked.start == span["start"]
    assert worked.chain[Blocker.CORE] == took == result.analysis.explanation.causes[Blocker.CORE]
    assert sum(layer.busy["core"] for layer in layers.values()) == took
    assert result.json["npu"]["core_kernels"] == {"count": 1, "cycles": took}
    assert layers["relu"].end <= span["start"]
    assert span["end"] <= min(layer.start for name, layer in layers.items() if name.startswith(("turn", "pick")))
    assert f"kernels on the core  1, {took:,} cycles" in as_text(result.detail.sections(result))


def test_more_elements_take_the_core_longer() -> None:
    times = []
    for size in (64, 128):
        compiled = model([make("NonZero", ["x"], ["y"])], {"x": (FLOAT, [size])}, {"y": I64})
        result = firmware(compiled, {"x": np.ones(size, np.float32)})
        times.append(result.json["npu"]["core_kernels"]["cycles"])
    assert 1.6 * times[0] < times[1] < 2.1 * times[0]


def saved(folder: Path) -> Path:
    import onnx

    nodes = [make("NonZero", ["x"], ["y"], "places")]
    graph = helper.make_graph(nodes, "g", [helper.make_tensor_value_info("x", FLOAT, [4, 4])],
                              [helper.make_tensor_value_info("y", I64, None)])  # fmt: skip
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), folder / "m.onnx")
    return folder / "m.onnx"


def test_a_report_has_the_core(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", str(saved(tmp_path)), "--report", str(tmp_path / "out")]) == 0
    assert "kernels on the core" in capsys.readouterr().out
    rows = list(csv.DictReader(io.StringIO((tmp_path / "out" / "metrics.csv").read_text())))
    busy = {row["run"]: int(row["value"]) for row in rows if row["metric"] == "core_busy" and row["scope"] == "layer"}
    assert set(busy) == {"loose", "tight"} and min(busy.values()) > 100


def suppressed(folder: Path) -> Path:
    """A model with two kernels, the second on what the first and an engine leave."""
    import onnx

    nodes = [make("Relu", ["s"], ["scores"]), make("NonMaxSuppression", ["b", "scores", "most"], ["r"], "boxes"),
             make("NonZero", ["scores"], ["n"], "places"), make("Cast", ["n"], ["f"], to=FLOAT),
             make("Mul", ["f", "f"], ["y"])]  # fmt: skip
    inputs = [
        helper.make_tensor_value_info("b", FLOAT, [1, 40, 4]),
        helper.make_tensor_value_info("s", FLOAT, [1, 2, 40]),
    ]
    outputs = [helper.make_tensor_value_info(name, kind, None) for name, kind in (("r", I64), ("y", FLOAT))]
    most = helper.make_tensor("most", I64, [1], [7])
    graph = helper.make_graph(nodes, "g", inputs, outputs, [most])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), folder / "m.onnx")
    return folder / "m.onnx"


def test_command_lists_have_every_kernel(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """NON_MAX_SUPPRESSION, which is not 0, in the files of `compile` and of a report, and as a run of its own."""
    path, lists = str(suppressed(tmp_path)), []
    assert main(["compile", path, "-o", str(tmp_path / "files")]) == 0
    assert main(["run", path, "--sim-level", "IA_TIMING", "--report", str(tmp_path / "report")]) == 0
    for folder in ("files", "report"):
        commands = json.loads((tmp_path / folder / "cmdq.json").read_text())["commands"]
        lists.append([command.get("flags") for command in commands if command["opcode"] == "CORE"])
    assert lists == [[{}, {"function": Kernel.NON_MAX_SUPPRESSION}]] * 2
    capsys.readouterr()
    assert main(["run", str(tmp_path / "files" / "cmdq.json"), "--sim-level", "IA_TIMING"]) == 0
    assert "without 2 kernels on the core" in capsys.readouterr().out


@pytest.mark.parametrize(("level", "whole"), [("IA_TIMING", True), ("IA_TIMING", False), ("CA_HYBRID", False)])
def test_levels_without_a_core_time_its_kernels(level: str, whole: bool, tmp_path: Path) -> None:
    """As a run through firmware does, to the cycle; the rest of that run is submission."""
    work = Model(suppressed(tmp_path), values=whole)
    prepared = work.prepare(Config())
    firmware = Model(suppressed(tmp_path)).run(with_values(Config(), {"npu.mode": "tight"}))
    result = prepared.run(with_values(Config(), {"npu.mode": "tight", "run.sim_level": level}), Session(keep=True))
    took = firmware.json["npu"]["core_kernels"]["cycles"]
    lasted = [(run.spans.core["end"] - run.spans.core["start"]).tolist() for run in (firmware, result)]
    assert lasted[0] == lasted[1] and sum(lasted[0]) == took and len(lasted[0]) == 2
    parts = firmware.json["cycles_parts"]
    assert result.cycles is not None and took < result.cycles <= parts["work"] < result.cycles + 1500
    assert result.analysis is not None and result.analysis.explanation.causes[Blocker.CORE] == took
    assert f"kernels on the core  2, {took:,} cycles" in as_text(result.detail.sections(result))


def test_kernels_are_timed_on_the_core_that_is_configured(tmp_path: Path) -> None:
    prepared, cycles = Model(saved(tmp_path), values=False).prepare(Config()), []
    for latency in (1, 5):
        config = with_values(Config(), {"run.sim_level": "IA_TIMING", "core.timing.load": latency})
        cycles.append(prepared.run(config).cycles)
    assert cycles[0] < cycles[1]


def test_ctrl_c_while_a_kernel_is_timed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    prepared = Model(saved(tmp_path), values=False).prepare(Config())
    monkeypatch.setattr(Platform, "run", lambda platform: Stop(StopReason.INTERRUPTED, None))
    with pytest.raises(KeyboardInterrupt):
        prepared.run(Config())


def test_what_does_not_run_kernels_says_so() -> None:
    compiled = model([make("NonZero", ["x"], ["y"], "places")], {"x": (FLOAT, [4])}, {"y": I64})
    with pytest.raises(
        ToolchainError, match="layer places/NonZero: is a kernel on the core, which this firmware does not run"
    ):
        build_image(b"firmware of another kind", compiled, {})
