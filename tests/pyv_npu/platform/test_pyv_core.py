"""Firmware on the Py-V core: every figure of a run is that of the reference engine with preset `pyv`."""

import json
from typing import Any

import pytest

from pyv_ext.engines.core import StopReason
from pyv_ext.pyv_adapter import loader
from pyv_npu.boot import find_program
from pyv_npu.cli.main import main
from pyv_npu.config import load
from pyv_npu.platform import Platform
from pyv_npu.workloads.firmware import run_program

MISSING = loader.missing()
if MISSING is not None:
    pytest.skip(MISSING, allow_module_level=True)

SMALL = {"npu.queue.size": 8, "npu.queue.command_size": 4}
"""Makes programs that fill the queue short."""


def run(core: str, program: str, mode: str, **settings: Any) -> dict[str, Any]:
    """The JSON object of a run, without what may differ: the host's times and the name of the core."""
    overrides = {"core.engine": core, "npu.mode": mode, "run.max_cycles": 5_000_000, **settings}
    arguments = {"n": 100} if program == "submit_latency" else {}
    result = run_program(load(preset="pyv", overrides=overrides).config, program, arguments).json
    return {name: value for name, value in result.items() if name not in ("host", "core")}


@pytest.mark.parametrize(
    "length",
    [
        pytest.param(["--arg", "n=1"], id="short"),
        pytest.param([], id="all", marks=pytest.mark.slow),
    ],
)
def test_the_tables_of_submit_latency_are_those_of_the_reference(
    length: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    printed = {}
    for core, preset in (("pyv", []), ("reference", ["--preset", "pyv"]), ("fast", ["--preset", "pyv"])):
        assert main(["compare", "submit_latency", "--core", core, *preset, *length]) == 0
        printed[core] = capsys.readouterr().out
    assert "core pyv" in printed["pyv"]
    assert "t_submit" in printed["pyv"]
    for core, text in printed.items():
        assert text.replace(f"core {core}", "core pyv") == printed["pyv"]


QUICK = (
    ("hello", {}),
    ("hello", {"core.reset_pc": 0x1000}),
    ("irq_completion", {}),
    ("fault_illegal", {}),
    ("fault_access", {}),
    ("fault_timeout", {}),
)
LONG = (
    ("irq_completion", {"platform.irq": "plic"}),
    ("fault_doorbell", {}),
    ("fault_descriptor", {}),
    ("fault_queue_full", {}),
    ("fault_queue_full", SMALL),
    ("submit_latency", {}),
)


@pytest.mark.parametrize("mode", ["loose", "tight"])
@pytest.mark.parametrize(
    ("program", "settings"), [*QUICK, *(pytest.param(*row, marks=pytest.mark.slow) for row in LONG)]
)
def test_every_figure_is_that_of_the_reference(program: str, settings: dict[str, Any], mode: str) -> None:
    here = run("pyv", program, mode, **settings)
    assert (here["stop_reason"], here["exit_code"]) == (StopReason.EXIT, 0), here["uart"]
    assert here == run("reference", program, mode, **settings)


@pytest.mark.parametrize(("first", "second"), [("pyv", "pyv"), ("pyv", "reference"), ("reference", "pyv")])
def test_a_snapshot_goes_on_with_the_same_or_another_core(first: str, second: str) -> None:
    def platform(core: str) -> Platform:
        made = Platform(load(preset="pyv", overrides={"core.engine": core, "npu.mode": "tight"}).config)
        made.load(find_program("hello"))
        return made

    whole, cut, continued = platform("reference"), platform(first), platform(second)
    end = whole.run()
    cut.run(5000)
    continued.restore(cut.save())
    assert continued.run() == end
    assert continued.cycle == whole.cycle
    assert continued.console.text == whole.console.text


def test_the_command_line_says_in_one_line_what_the_core_cannot_do(capsys: pytest.CaptureFixture[str]) -> None:
    for options, says in (
        (["--preset", "soc-axi"], "core pyv: executes an instruction per cycle, its bus too: use preset pyv"),
        (["--set", "core.isa=rv32imac"], "core pyv: ISA rv32imac: it does not execute a"),
    ):
        assert main(["run", "hello", "--core", "pyv", *options]) == 65
        error = capsys.readouterr().err
        assert says in error
        assert error.count("\n") == 1


def test_json_names_the_core_and_the_preset_that_it_implies(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "hello", "--core", "pyv", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert (result["core"], result["preset"]) == ("pyv", "pyv")
