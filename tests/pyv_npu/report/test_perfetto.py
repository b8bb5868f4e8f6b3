"""The Perfetto trace, read back with the schema of the perfetto package: slices, arrows and counters of a real run."""

from collections import defaultdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import onnx
import pytest

from pyv_npu import Simulator
from pyv_npu.config import load
from pyv_npu.report.perfetto import write_trace
from pyv_npu.result import Result
from pyv_npu.workloads.firmware import run_program
from toolchain.examples import EXAMPLES

schema = pytest.importorskip(
    "perfetto.protos.perfetto.trace.perfetto_trace_pb2", reason="pip install perfetto"
)  # fmt: skip
Kind = schema.TrackEvent


@pytest.fixture(scope="module", params=["loose", "tight"])
def run(request: pytest.FixtureRequest) -> Result[Any]:
    config = load(overrides={"npu.mode": request.param}).config
    return run_program(config, "submit_latency", {"n": 12, "tile": 16, "phases": 1 | 4 | 16 | 32, "batch": 4})


@pytest.fixture(scope="module")
def trace(run: Result[Any], tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("trace")
    write_trace(folder, run)
    read = schema.Trace()
    read.ParseFromString((folder / "trace.perfetto-trace").read_bytes())
    return read


def events(trace: Any) -> list[tuple[int, Any]]:
    return [(packet.timestamp, packet.track_event) for packet in trace.packet if packet.HasField("track_event")]


def tracks(trace: Any) -> dict[int, str]:
    descriptors = [packet.track_descriptor for packet in trace.packet if packet.HasField("track_descriptor")]
    return {descriptor.uuid: descriptor.name for descriptor in descriptors}


def test_every_event_is_on_a_track_and_in_order(trace: Any) -> None:
    named = tracks(trace)
    assert {"core: submit", "accept", "done", "firmware knows", "te0", "queue depth", "TE busy"} <= set(named.values())
    assert all(event.track_uuid in named for _, event in events(trace))
    stamps = [stamp for stamp, _ in events(trace)]
    assert stamps == sorted(stamps)


def test_slices_of_a_track_begin_and_end_in_turn(trace: Any) -> None:
    depth: dict[int, int] = defaultdict(int)
    for _, event in events(trace):
        if event.type == Kind.TYPE_SLICE_BEGIN:
            depth[event.track_uuid] += 1
        elif event.type == Kind.TYPE_SLICE_END:
            depth[event.track_uuid] -= 1
        assert depth[event.track_uuid] in (0, 1)
    assert set(depth.values()) == {0}


def test_arrows_follow_each_submission_from_stamp_to_stamp(run: Result[Any], trace: Any) -> None:
    steps: dict[int, list[tuple[int, str]]] = defaultdict(list)
    ended = set()
    for stamp, event in events(trace):
        for flow in event.flow_ids:
            steps[flow].append((stamp, event.name.split()[0]))
        for flow in event.terminating_flow_ids:
            steps[flow].append((stamp, event.name.split()[0]))
            ended.add(flow)
    submissions = run.latency.submissions
    assert set(steps) == set(range(1, len(submissions) + 1)) == ended
    for flow, submission in enumerate(submissions, 1):
        found = {name: stamp for stamp, name in steps[flow]}
        begin = "submit" if "submit" in found else "stage"
        assert found[begin] == submission.t0
        assert found["accept"] == submission.t2
        assert found.get("GEMM_T", found.get("LOAD")) == submission.t3
        assert found["done"] == submission.t4
        assert found["knows"] == submission.t7


def test_counters_count(run: Result[Any], trace: Any) -> None:
    named = tracks(trace)
    values: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for stamp, event in events(trace):
        if event.type == Kind.TYPE_COUNTER:
            values[named[event.track_uuid]].append((stamp, event.counter_value))
    assert all(value >= 0 for rows in values.values() for _, value in rows)
    assert all(rows[-1][1] == 0 for rows in values.values())
    busy = values["TE busy"]
    total = sum(value * (after - before) for (before, value), (after, _) in pairwise(busy))
    assert total == sum(run.json["npu"]["te_busy"])


def test_equal_runs_give_equal_bytes(run: Result[Any], tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        write_trace(tmp_path / name, run)
    first, second = ((tmp_path / name / "trace.perfetto-trace").read_bytes() for name in ("a", "b"))
    assert first == second


MOVES = {"LOAD", "STORE"}


@pytest.mark.parametrize(
    ("model", "tensor", "vector"),
    [
        ("cnn", {"CONV2D_T", "GEMM_T"}, set()),
        ("cnn_int8", {"CONV2D_T", "GEMM_T"}, {"COPY", "POOL", "ELTWISE"}),
        ("decoder", {"GEMM_T"}, {"COPY", "LAYERNORM", "SOFTMAX", "ELTWISE"}),
    ],
)
def test_slices_of_a_model_are_called_by_what_the_engine_does(
    model: str, tensor: set[str], vector: set[str], tmp_path: Path
) -> None:
    path = tmp_path / "model.onnx"
    onnx.save(EXAMPLES[model](), path)
    run = Simulator(path, mode="tight").run()._result
    assert run is not None
    write_trace(tmp_path, run)
    read = schema.Trace()
    read.ParseFromString((tmp_path / "trace.perfetto-trace").read_bytes())
    named = tracks(read)
    slices: dict[str, set[str]] = defaultdict(set)
    for _, event in events(read):
        if event.type == Kind.TYPE_SLICE_BEGIN:
            slices[named[event.track_uuid][:2]].add(event.name.split()[0])
    assert slices["te"] == tensor
    assert slices["ve"] >= vector and not slices["ve"] & (tensor | MOVES)
    assert slices["dm"] == MOVES
