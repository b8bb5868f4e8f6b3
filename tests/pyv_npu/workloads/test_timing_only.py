"""Timing without numbers: the same cycles and events as with them, on memory that need not be there."""

import json
from dataclasses import replace
from pathlib import Path

import onnx
import pytest

from npu_device.config import NpuConfig
from npu_device.levels import command_list
from npu_device.levels.runner import Listed
from pyv_native.arena import zeros
from pyv_npu.boot import find_program
from pyv_npu.cli import main
from pyv_npu.config import load
from pyv_npu.errors import BadInputError
from pyv_npu.platform import Platform
from pyv_npu.workloads.timing import run_commands
from toolchain.codegen import Target
from toolchain.compiler import Compiled, compile_model
from toolchain.examples import EXAMPLES
from toolchain.onnx_model.model import prepare


def compiled(name: str, granularity: str = "macro") -> Compiled:
    return compile_model(prepare(EXAMPLES[name](), name), Target(), granularity=granularity)


@pytest.mark.parametrize("granularity", ["macro", "tile"])
@pytest.mark.parametrize("level", ["IA_TIMING", "CA_HYBRID"])
def test_cycles_and_events_are_those_of_a_run_with_numbers(level: str, granularity: str) -> None:
    commands = compiled("mlp", granularity).commands
    listed = [Listed(command.descriptor, 0, command.block) for command in commands]
    with_numbers = command_list.run(listed, NpuConfig(), level, values=True)
    made = run_commands(commands, NpuConfig(), level, explained=True)
    assert made.events.hexdigest() == with_numbers.events.hexdigest() and made.events.count == with_numbers.events.count
    assert made.cycles == with_numbers.cycles == max(finished.cycle for finished in made.layers)
    assert made.explanation == with_numbers.explanation
    assert sum(with_numbers.explanation.causes.values()) == made.cycles


def test_layers_finish_in_the_order_of_the_graph() -> None:
    model = compiled("decoder")
    made = run_commands(model.commands, NpuConfig())
    assert [finished.layer for finished in made.layers] == [layer.id for layer in model.graph.layers]
    cycles = [finished.cycle for finished in made.layers]
    assert cycles == sorted(cycles) and made.counters is not None
    assert made.counters["completed"] == len(model.commands)


def test_memory_may_be_larger_than_the_host_has() -> None:
    config = NpuConfig()
    large = replace(config, dram=replace(config.dram, size=256 << 30))
    made = run_commands(compiled("mlp").commands, large)
    assert made.events.hexdigest() == run_commands(compiled("mlp").commands, config).events.hexdigest()
    memory = zeros(1 << 38)
    memory[-1] = 7
    assert memory[-1] == 7 and not any(memory[:4096])


def save(folder: Path) -> str:
    onnx.save(EXAMPLES["mlp"](), folder / "mlp.onnx")
    return str(folder / "mlp.onnx")


def test_the_command_line_times_a_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", save(tmp_path), "--timing-only", "--json", "--report", str(tmp_path / "out")]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["timing_only"] and result["cycles"] == result["finished"][-1]["cycle"]
    assert sum(result["explanation"]["causes"].values()) == result["cycles"]
    text = (tmp_path / "out/summary.txt").read_text()
    assert f"{result['cycles']:,}" in text
    _, causes = text.split("Core cycles by cause\n")
    rows = [line.rsplit(maxsplit=1) for line in causes.lstrip().split("\n\n")[0].splitlines()[2:]]
    assert dict(rows) == {name: f"{cycles:,}" for name, cycles in result["explanation"]["causes"].items() if cycles}


@pytest.mark.parametrize("mode", ["loose", "tight"])
@pytest.mark.parametrize("program", ["gemm", "submit_latency"])
def test_firmware_without_values_has_the_same_events_and_passes(
    capsys: pytest.CaptureFixture[str], program: str, mode: str
) -> None:
    results = []
    for more in ([], ["--timing-only"]):
        assert main(["run", program, "--mode", mode, "--json", *more]) == 0
        results.append(json.loads(capsys.readouterr().out))
    with_values, without = results
    for key in ("events_sha256", "latency", "npu"):
        assert with_values[key] == without[key]
    assert "timing_only" not in with_values and without["timing_only"]
    assert "wrong" in with_values["uart"] and "wrong" not in without["uart"] and "PASS" in without["uart"]
    assert with_values["outputs_sha256"] != without["outputs_sha256"]


def test_the_summary_of_firmware_says_that_values_are_missing(capsys: pytest.CaptureFixture[str]) -> None:
    heads = []
    for more in ([], ["--timing-only"]):
        assert main(["run", "gemm", "--mode", "tight", *more]) == 0
        heads.append(next(line for line in capsys.readouterr().out.splitlines() if line.startswith("gemm: tight")))
    assert heads == [f"gemm: tight, core fast, {words}CA_HYBRID, 1200 MHz" for words in ("", "timing only, ")]


def test_a_snapshot_goes_on_with_values_only_where_it_was_taken_with_them() -> None:
    platforms = [Platform(load().config, values=values) for values in (True, False)]
    for platform in platforms:
        platform.load(find_program("irq_completion"))
        platform.run(until=60_000)
    snapshots = [platform.save() for platform in platforms]
    for platform, snapshot in zip(platforms, snapshots, strict=True):
        platform.restore(snapshot)
    with pytest.raises(BadInputError, match="taken without values, here the run is with them"):
        platforms[0].restore(snapshots[1])
    with pytest.raises(BadInputError, match="taken with values, here the run is without them"):
        platforms[1].restore(snapshots[0])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["submit_latency", "--timing-only", "--faults", "lost_doorbell"],
            "--timing-only: what a fault leads to shows",
        ),
        (
            ["gemm", "--timing-only", "--sim-level", "CA_FULL", "--set=npu.te.external.engine=x"],
            "--timing-only: engines outside compute values",
        ),
        (["", "--timing-only", "--sim-level", "IA"], "--sim-level IA: timing alone is for IA_TIMING and CA_HYBRID"),
    ],
)
def test_what_has_no_timing_alone_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    assert main(["run", arguments[0] or save(tmp_path), *arguments[1:]]) == 64
    assert message in capsys.readouterr().err
