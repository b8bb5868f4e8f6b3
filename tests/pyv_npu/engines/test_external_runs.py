"""CA_FULL: firmware and models on engines outside, the template in Python here; built engines are in the slow tests."""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from external_tools import built_or_skip
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from npu_device.config import TeConfig
from npu_device.cost.tensor import product
from npu_device.external.client import Client
from npu_device.external.protocol import Event, Happening, Hello, Start
from pyv_npu.cli.main import main
from pyv_npu.config import load
from pyv_npu.engines.build import TEMPLATE, build
from pyv_npu.errors import UsageError
from pyv_npu.platform import Platform

SAME = ("npu.te.kind=systolic_os", "npu.te.form=rtl", "npu.te.rows=16", "npu.te.columns=16")
"""What CA_HYBRID takes to be equal to the array."""


def run(capsys: pytest.CaptureFixture[str], *words: str, code: int = 0) -> dict[str, Any]:
    assert main(["run", *words, "--json"]) == code
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def outside(engine: str, *keys: str) -> list[str]:
    timeout = () if any("timeout" in key for key in keys) else ("npu.te.external.timeout=120",)
    named = ("run.sim_level=CA_FULL", f"npu.te.external={engine}", *timeout, *keys)
    return [word for key in named for word in ("--set", key)]


def settings_of(*keys: str) -> list[str]:
    return [word for key in keys for word in ("--set", key)]


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("python")
    build("python", folder)
    return str(folder)


def liar(folder: Path, old: str, new: str) -> str:
    """An engine that differs from the template in one place."""
    text = TEMPLATE.read_text(encoding="utf-8")
    assert old in text
    (folder / "liar.py").write_text(text.replace(old, new, 1), encoding="utf-8")
    return f"{sys.executable},{folder / 'liar.py'}"


def test_firmware_runs_on_an_engine_outside(template: str, capsys: pytest.CaptureFixture[str]) -> None:
    hybrid = run(capsys, "gemm", *settings_of(*SAME))
    full = run(capsys, "gemm", *outside(template))
    assert full["events_sha256"] == hybrid["events_sha256"] and full["cycles"] == hybrid["cycles"]
    assert full["outputs_sha256"] == hybrid["outputs_sha256"]
    folds = (128 // 16) ** 2 * (64 + 16 + 16 - 2)
    assert full["external"] == {
        "name": "python 16x16", "rows": 16, "columns": 16, "engines": 2, "checked": True, "steps": 16,
        "cycles": 16 * (folds - 1), "read_bytes": [1 << 20, 1 << 20],
    }  # fmt: skip
    assert full["host"]["link_round_trips"] == 16


@pytest.mark.slow
@settings(max_examples=4, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    grant=st.sampled_from([1, 2, 61, 5000]),
    ratio=st.sampled_from(["1,1", "2,3", "5,2"]),
    ports=st.sampled_from(["16", "64"]),
)
def test_grants_do_not_change_what_happens(
    template: str, capsys: pytest.CaptureFixture[str], grant: int, ratio: str, ports: str
) -> None:
    keys = (f"npu.clock_ratio={ratio}", f"npu.spm.port={ports}")
    largest = run(capsys, "gemm", *outside(template, *keys))
    small = run(capsys, "gemm", *outside(template, f"npu.te.external.grant={grant}", *keys))
    hybrid = run(capsys, "gemm", *settings_of(*SAME, *keys))
    assert small["events_sha256"] == largest["events_sha256"] == hybrid["events_sha256"]
    assert small["cycles"] == largest["cycles"]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("c = (a", "c = 1 + (a", "command 2, tile 0: row 0, column 0 is "),
        ("return [*events, event(now - 1, DONE)]", "raise SystemExit(5)", "ended with exit code 5 before "),
        (
            "event(now - 1, DONE)",
            "event(now - 1, DONE, 0, 0xFFFFFFFF)",
            "DONE in cycle 6015, its result 4,294,967,295 cycles later: more than 16,777,216 cycles "
            "(npu.te.external.limit)",
        ),
    ],
)
def test_a_fault_of_the_engine_ends_the_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], old: str, new: str, message: str
) -> None:
    report = tmp_path / "report"
    engine = liar(tmp_path, old, new)
    assert main(["run", "gemm", *outside(engine), "--report", str(report)]) == 70
    error = [line for line in capsys.readouterr().err.splitlines() if "engine outside" in line]
    assert len(error) == 1 and message in error[0]
    kept = json.loads((report / "result.json").read_text(encoding="utf-8"))
    assert message in json.dumps(kept) and kept["stop_reason"] == "engine"


LIES = [
    (
        "events.append(event(now - 1, WRITE",
        "events.append(event(now + 10**6, WRITE",
        "READ in cycle 94, and it had come to 1000094",
    ),
    ("(row, part.shape[0], column", "(row + 200, part.shape[0], column", "WRITE of rows 200..215"),
    ("part.tobytes()", "part.tobytes()[4:]", "WRITE has 1020 bytes for 16 x 16 elements of 4 bytes"),
    ("event(now, READ, 0", "event(now, READ, 2", "READ of operand 2: 0 and 1 exist"),
    ("event(0, BEGIN)", "event(0, 9)", "an event of kind 9"),
    ("for row in range(0, m, ROWS)", "for row in range(0, m - 16, ROWS)", "DONE after 14336 of 16384 elements"),
    ("limit = limit if events else at", "pass", "went on after DONE"),
    ("[*events, event(now - 1, DONE)]", "events", "without DONE, and was granted"),
    ("send(EVENT, data)", "send(EVENT, data); import time; time.sleep(60)", "has not answered for 4 s"),
    ("at, data = events.pop(0)", "at, data = event(1, READ)", "has not answered for 4 s"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("old", "new", "message"), LIES)
def test_lies_are_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], old: str, new: str, message: str
) -> None:
    engine = liar(tmp_path, old, new)
    silent = ("npu.te.external.timeout=4",) if "has not answered" in message else ()
    found = run(capsys, "gemm", *outside(engine, *silent), code=70)
    assert found["stop_reason"] == "engine" and message in found["stop_text"], found["stop_text"]


@pytest.mark.slow
def test_without_the_check_the_engine_s_results_are_those_of_the_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    engine = liar(tmp_path, "c = (a", "c = 1 + (a")
    found = run(capsys, "gemm", *outside(engine, "npu.te.external.check=off"), code=1)
    assert "FAIL" in found["uart"] and found["stop_reason"] == "exit"


def int8_cnn(path: Path) -> str:
    """A small convolutional network of integers: a convolution with pads, one by groups, a product."""
    random = np.random.default_rng(5)
    weights = {
        "w1": random.integers(-128, 128, (8, 3, 3, 3), np.int8),
        "w2": random.integers(-128, 128, (8, 1, 3, 3), np.int8),
        "w3": random.integers(-128, 128, (8 * 64, 10), np.int8),
        "z": np.array(7, np.uint8), "zw": np.array(-3, np.int8),
        "shape": np.array([1, 512]), "s": np.array(0.01, np.float32),
    }  # fmt: skip
    node = onnx.helper.make_node
    nodes = [
        node("ConvInteger", ["x", "w1", "z"], ["c1"], pads=[1, 1, 1, 1]),
        node("Cast", ["c1"], ["f1"], to=onnx.TensorProto.FLOAT), node("Mul", ["f1", "s"], ["g1"]),
        node("QuantizeLinear", ["g1", "s", "z"], ["q1"]),
        node("ConvInteger", ["q1", "w2", "z"], ["c2"], pads=[1, 1, 1, 1], group=8),
        node("Cast", ["c2"], ["f2"], to=onnx.TensorProto.FLOAT), node("Mul", ["f2", "s"], ["g2"]),
        node("QuantizeLinear", ["g2", "s", "z"], ["q2"]), node("Reshape", ["q2", "shape"], ["r"]),
        node("MatMulInteger", ["r", "w3", "z", "zw"], ["y"]),
    ]  # fmt: skip
    graph = onnx.helper.make_graph(
        nodes, "cnn", [onnx.helper.make_tensor_value_info("x", onnx.TensorProto.UINT8, (1, 3, 8, 8))],
        [onnx.helper.make_tensor_value_info("y", onnx.TensorProto.INT32, (1, 10))],
        [onnx.numpy_helper.from_array(value, name) for name, value in weights.items()],
    )  # fmt: skip
    onnx.save(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=9), path)
    return str(path)


@pytest.mark.parametrize("check", ["on", "off"])
def test_a_network_runs_on_an_engine_outside(
    template: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], check: str
) -> None:
    model = int8_cnn(tmp_path / "cnn.onnx")
    full = run(capsys, model, *outside(template, f"npu.te.external.check={check}", *SAME))
    hybrid = run(capsys, model, *settings_of(*SAME))
    assert full["model"]["checks"]["y"]["ok"]
    assert full["events_sha256"] == hybrid["events_sha256"] and full["outputs_sha256"] == hybrid["outputs_sha256"]
    assert full["external"]["steps"] > 2


def test_floats_are_refused_in_one_line(template: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    value = onnx.helper.make_tensor_value_info
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node("MatMul", ["x", "w"], ["y"])], "mm", [value("x", onnx.TensorProto.FLOAT, (4, 4))],
        [value("y", onnx.TensorProto.FLOAT, (4, 4))], [onnx.numpy_helper.from_array(np.eye(4, dtype=np.float32), "w")],
    )  # fmt: skip
    onnx.save(
        onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=9),
        tmp_path / "m.onnx",
    )
    found = run(capsys, str(tmp_path / "m.onnx"), *outside(template), code=70)
    assert (
        "in0 is FP32, and the link carries integers of up to 8 bits; compile with --precision int8"
        in found["stop_text"]
    )


# -- built engines -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module", params=["rtl", "systemc"])
def built(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp(request.param)
    built_or_skip(request.param, folder)
    return str(folder)


@pytest.mark.slow
def test_built_engines_are_cycle_identical(built: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for program in ("gemm", int8_cnn(tmp_path / "cnn.onnx")):
        hybrid = run(capsys, program, *settings_of(*SAME))
        for grant in ("none", "1000"):
            full = run(capsys, program, *outside(built, f"npu.te.external.grant={grant}", *SAME))
            assert full["events_sha256"] == hybrid["events_sha256"]
            assert full["outputs_sha256"] == hybrid["outputs_sha256"]


@pytest.mark.slow
@pytest.mark.parametrize(("rows", "columns"), [(4, 4), (8, 32)])
@pytest.mark.parametrize("kind", ["rtl", "systemc"])
def test_cycles_are_those_of_f1(kind: str, rows: int, columns: int, tmp_path: Path) -> None:
    built_or_skip(kind, tmp_path, rows, columns)
    client = Client([str(tmp_path)], Hello(1, 1, 0), 120)
    te = TeConfig(kind="systolic_os", rows=rows, columns=columns)
    random = np.random.default_rng(1)
    extents = [1, 2, 3, 4, 5, 15, 16, 17, 33, 64, 130]
    for m, n, k in [(e, e, e) for e in extents] + [tuple(random.integers(1, 131, 3).tolist()) for _ in range(40)]:
        a, b = random.integers(-128, 128, (m, k), np.int8), random.integers(-128, 128, (k, n), np.int8)
        client.start(Start(0, 0, 0, m, n, k, a.tobytes(), b.tobytes()))
        events: list[Event] = []
        reached = client.run_until(1 << 40, events.append)
        done = events[-1]
        f1 = -(-m // rows) * -(-n // columns) * (k + rows + columns - 2) - 1
        assert done.kind == Happening.DONE and done.cycle == reached == f1
        assert product(te, m, n, k, 8, 8).cycles - 1 == f1, "the closed form, whose -1 is once per command"
        result = np.zeros((m, n), np.int32)
        for event in events:
            if event.kind == Happening.WRITE:
                block = np.frombuffer(event.data, "<i4").reshape(event.rows, event.columns)
                result[event.row : event.row + event.rows, event.column : event.column + event.columns] = block
        assert (result == a.astype(np.int32) @ b.astype(np.int32)).all()
    client.close()


def test_a_platform_without_an_engine_outside_is_refused() -> None:
    with pytest.raises(UsageError, match="sim_level CA_FULL: "):
        Platform(load(overrides={"run.sim_level": "CA_FULL"}).config)
