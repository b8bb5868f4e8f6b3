"""The sanitizer of the boundary: no false alarm on what ships, both sides of the example with a missing fence."""

import json
import linecache
import re
import shutil
import sys
from collections import Counter
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from model_runs import run_compiled

from pyv_ext.engines.core import Stop
from pyv_ext.engines.fast.access import RamAccess
from pyv_npu.cli.main import main
from pyv_npu.config import Config, load, with_values
from pyv_npu.errors import BadInputError, UsageError
from pyv_npu.platform import Platform
from pyv_npu.workloads.firmware import run_program
from pyv_npu.workloads.workload import Session
from tests.external_tools import GCC
from toolchain import gnu
from toolchain.codegen import Target
from toolchain.compiler import compile_model
from toolchain.examples import EXAMPLES, LARGE
from toolchain.onnx_model.model import prepare

ROOT = Path(__file__).resolve().parents[3]
ARGS = {"submit_latency": {"n": 100}, "irq_completion": {"n": 8}}


@pytest.fixture(scope="session")
def racy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The example racy.c as a program."""
    if shutil.which(GCC) is None:
        pytest.skip(f"{GCC} is not there")
    out = tmp_path_factory.mktemp("racy") / "racy.elf"
    return gnu.build_program(out, [ROOT / "pyv_npu/examples/racy.c"], flags=["-g"])


MODES = ("loose", "tight")
SHIPPED = [(application.name, MODES[index % 2]) for index, application in enumerate(gnu.APPLICATIONS)]
OTHERS = [pytest.param(name, MODES[MODES[0] == mode], marks=pytest.mark.slow) for name, mode in SHIPPED]


@pytest.mark.parametrize(("name", "mode"), [*SHIPPED, *OTHERS])
def test_no_false_alarm_on_a_program_that_ships(name: str, mode: str) -> None:
    config = load(overrides={"npu.mode": mode, "run.sanitize": ("boundary",)}).config
    run = run_program(config, name, ARGS.get(name))
    assert run.core is not None and run.core.findings is not None
    rules = [finding.rule.key for finding in run.core.findings.findings]
    assert rules == (["ticket-reused"] if (name, mode) == ("fault_descriptor", "loose") else [])  # what it is there for
    assert run.exit_code == 0


@pytest.mark.parametrize("engine", ["fast", "reference"])
@pytest.mark.parametrize("mode", ["loose", "tight"])
@pytest.mark.parametrize("name", ["fault_timeout", "irq_completion"])
def test_looking_changes_nothing(name: str, mode: str, engine: str) -> None:
    """Cycles, instructions, events and memory are those of the run without."""
    left = []
    for sanitize in ((), ("boundary",)):
        config = load(overrides={"npu.mode": mode, "core.engine": engine, "run.sanitize": sanitize}).config
        run = run_program(config, name, ARGS.get(name))
        assert run.core is not None and run.events is not None
        left.append((run.cycles, run.core.instret, run.events.hexdigest(), run.core.outputs_sha256, run.core.uart))
    assert left[0] == left[1]


@pytest.mark.parametrize("mode", ["loose", "tight"])
def test_a_run_without_it_has_next_to_nothing_of_it(mode: str) -> None:
    """Native code has nothing, and few of the lines of Python that a run executes ask for it."""
    executed: Counter[tuple[str, int]] = Counter()

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        executed[frame.f_code.co_filename, frame.f_lineno] += event == "line"
        return trace

    def drive(platform: Platform) -> Stop:
        assert platform.sanitizer is None and platform.bus.shadow is None
        assert RamAccess(platform.hart, platform.bus).is_unobserved
        platform.run(until=30_000)  # the driver has opened the device
        before = sys.gettrace()
        sys.settrace(trace)
        try:
            return platform.run()
        finally:
            sys.settrace(before)

    config = load(overrides={"npu.mode": mode}).config
    run_program(config, "submit_latency", {"n": 8}, Session(drive=drive))
    asked = [place for place in executed if re.search(r"shadow|sanitizer", linecache.getline(*place))]
    assert asked and not [place for place in executed if "sanitizer" in place[0] or place[0].endswith("shadow.py")]
    assert sum(executed[place] for place in asked) < 0.01 * executed.total()


def test_a_missing_fence_names_both_sides_and_the_remedy(racy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", str(racy), "--mode", "loose", "--sanitize"]) == 0
    text = capsys.readouterr().out
    source = (ROOT / "pyv_npu/examples/racy.c").read_text(encoding="utf-8").splitlines()
    stores = [number for number, line in enumerate(source, 1) if "slot->" in line]
    assert "sanitizer: 1 finding (unordered-doorbell 1)" in text
    assert "racy.c:" in text.split("  store     ")[1].splitlines()[0]
    assert int(text.split("racy.c:")[1].split(")")[0]) in stores
    doorbell = text.split("doorbell  ")[1].splitlines()[0]
    assert "main" in doorbell and "npu_driver.h:" in doorbell and "ticket 1" in doorbell
    assert "(npu_ring)" in text and "remedy    put `fence w, o` between" in text
    assert "Core cycles of a submission by reason" not in text, "no submission begins at npu_submit"


CALLERS = """
#include "npu_driver.h"
#include "runtime.h"

static uint8_t bytes[64] __attribute__((aligned(64)));

__attribute__((noinline)) static void spoil(void)
{
    (void)npu_submit(NPU_DESC(OPCODE, NPU_OPCODE_LOAD), 0, (uint32_t)(uintptr_t)bytes, 0, boot->spm_base, NPU_MN(1, 0),
                     NPU_K(64, 0), NPU_DESC(TYPE_IN0, NPU_TYPE_INT8)); /* line 10 */
    bytes[0] = 1; /* line 11 */
}

int main(void)
{
    (void)npu_open(NPU_MODE_AUTO);
    spoil();
    return (int)npu_drain();
}
"""


@pytest.mark.skipif(shutil.which(GCC) is None, reason=f"{GCC} is not there")
def test_a_command_that_the_driver_hands_over_names_its_caller(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, program = tmp_path / "callers.c", tmp_path / "callers.elf"
    source.write_text(CALLERS)
    gnu.build_program(program, [source], flags=["-g"])
    for mode, engine in (("loose", "fast"), ("tight", "fast"), ("loose", "reference")):
        assert main(["run", str(program), "--mode", mode, "--core", engine, "--sanitize", "--json"]) == 0
        (finding,) = json.loads(capsys.readouterr().out)["sanitizer"]["findings"]
        first, second = finding["first"], finding["second"]
        assert first["place"].startswith(f"npu_submit_{mode}, ")
        assert first["caller"].startswith("spoil, ") and first["caller"].endswith(("callers.c:9", "callers.c:10"))
        assert second["place"].startswith("spoil, ") and second["place"].endswith("callers.c:11")
        assert (second["caller"] or "main, ").startswith("main, "), "no other function called it"
    assert main(["run", str(program), "--sanitize"]) == 0
    assert "called from spoil, " in capsys.readouterr().out


def test_findings_fail_the_run_only_where_that_was_asked_for(racy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", str(racy), "--mode", "loose", "--sanitize=error", "--json"]) == 71
    found = json.loads(capsys.readouterr().out)["sanitizer"]["findings"]
    assert [(each["rule"], each["first"]["what"], each["second"]["what"]) for each in found] == [
        ("unordered-doorbell", "store", "doorbell")
    ]
    assert main(["run", "hello", "--mode", "loose", "--sanitize=error", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["sanitizer"]["findings"] == []


def test_the_report_has_a_section(racy: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", str(racy), "--mode", "loose", "--sanitize", "--report", str(tmp_path / "out")]) == 0
    page = (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
    assert "unordered-doorbell" in page and "racy.c:" in page


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["loose", "tight"])
@pytest.mark.parametrize("name", [name for name in EXAMPLES if not name.startswith(LARGE)])
def test_no_false_alarm_on_an_example_model(name: str, mode: str) -> None:
    model = compile_model(prepare(EXAMPLES[name](), name), Target())
    result = run_compiled(with_values(Config(), {"npu.mode": mode, "run.sanitize": ("memory",)}), model)
    assert result.json["sanitizer"]["findings"] == []


def test_the_py_v_core_and_levels_without_a_core_are_refused() -> None:
    with pytest.raises(BadInputError, match="engines fast and reference"):
        load(overrides={"core.engine": "pyv", "run.sanitize": "boundary"})
    model = compile_model(prepare(EXAMPLES["gemm"](), "gemm"), Target())
    with pytest.raises(UsageError, match="looks at firmware on the core"):
        run_compiled(with_values(Config(), {"run.sim_level": "IA", "run.sanitize": ("boundary",)}), model)


def test_a_run_without_a_core_has_nothing_to_sanitize(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "llama2-7b", "--timing-only", "--layers", "1", "--sanitize"]) == 64
    assert "--sanitize: is about the core, and this run has none" in capsys.readouterr().err
