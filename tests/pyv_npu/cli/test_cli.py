"""The command line: options, exit codes, what goes where, one line for every error. The run itself is a stand-in."""

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import synthetic
import yaml

from npu_device.abi.errors import AbiError
from npu_device.trace.stream import EventStream
from pyv_ext.elf import Program
from pyv_ext.engines.core import Stop, StopReason
from pyv_ext.errors import PyvExtError
from pyv_npu.cli import main
from pyv_npu.config import Config
from pyv_npu.result import CoreRun, Detail, Result
from pyv_npu.workloads.workload import Session
from toolchain.errors import ToolchainError


@dataclass(frozen=True)
class Outcome(Result[Detail]):
    """A made-up result."""

    made_up: dict[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        return self.made_up


@dataclass
class Runner:
    """Stands in for the runs of firmware: remembers what it was asked for, answers what the test wants."""

    stop: Stop = field(default_factory=lambda: Stop(StopReason.EXIT, 0))
    error: Exception | None = None
    same: bool = True
    config: Config = field(default_factory=Config)
    program: str = ""
    args: dict[str, int] = field(default_factory=dict)

    def run_program(
        self, config: Config, program: Program, args: dict[str, int], session: Session, *, values: bool = True
    ) -> Outcome:
        if self.error is not None:
            raise self.error
        self.config, self.program, self.args = config, program.name, dict(args)
        if session.console is not None:
            session.console(b"guest ")
            session.console("sagt grüß\n".encode())
            session.console(b"no newline")
        mode = config.npu.mode
        latency = synthetic.latency(120, mode == "tight")
        outputs = "same" if self.same else mode
        json = synthetic.run(mode, exit_code=self.stop.code, stop_reason=self.stop.reason.value)
        core = CoreRun(program, self.stop, 456_789, "", latency, {}, outputs)
        return Outcome(program.name, config, Detail(), 1_234_567, {}, EventStream(keep=True), core, made_up=json)


@pytest.fixture
def runner(monkeypatch: pytest.MonkeyPatch) -> Iterator[Runner]:
    import pyv_npu.studies.break_even
    import pyv_npu.studies.phases
    import pyv_npu.studies.placement  # noqa: F401  # they take the function by its name when they are imported

    stand_in = Runner()
    monkeypatch.setattr("pyv_npu.workloads.firmware.run_program", stand_in.run_program)
    # programs that were not run have no distances: tests/pyv_npu/studies/test_placement.py
    monkeypatch.setattr("pyv_npu.cli.verbs.compare.run_placement", lambda config, program, both: None)
    yield stand_in


def compared(found: dict[str, Any]) -> dict[str, Any]:
    """The object of a comparison of made-up runs; its ratios are those of the made-up submissions."""
    assert found["ratio"]["t_submit_p50"] > 1 and found["ratio"]["t_submit_prebuilt_p50"] > 1
    return synthetic.compare(schema=1, ratio=found["ratio"])


def one_error_line(text: str) -> str:
    assert text.startswith("pyv-npu: error: ")
    assert text.endswith("\n")
    assert text.count("\n") == 1
    return text.removeprefix("pyv-npu: error: ").rstrip()


# -- options ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "key", "value"),
    [
        (["--mode", "loose"], "npu.mode", "loose"),
        (["--te-mode", "loose"], "npu.mode", "loose"),
        (["--te_mode", "loose"], "npu.mode", "loose"),
        (["--sim_level", "CA_HYBRID"], "run.sim_level", "CA_HYBRID"),
        (["--sim-level", "L2"], "run.sim_level", "CA_HYBRID"),
        (["--mmio-base", "0x41000000"], "platform.mmio_base", 0x4100_0000),
        (["--queue-size", "64"], "npu.queue.tight_size", 64),
        (["--queue-size", "64", "--mode", "loose"], "npu.queue.size", 64),
        (["--isa", "enqcmd,twait"], "core.custom", ("enqcmd", "twait")),
        (["--core", "reference"], "core.engine", "reference"),
        (["--preset", "ibex"], "preset", "ibex"),
        (["--set", "npu.te.count=4"], "npu.te.count", 4),
        (["--set", "npu.te.count=4", "--set", "npu.te.count=4"], "npu.te.count", 4),
        (["--mode", "loose", "--te-mode", "loose"], "npu.mode", "loose"),
        (["--set", "npu.queue.command_size=8", "--queue-size", "64"], "npu.device_queue", 64),
        (["--set", "npu.queue.command_size=8"], "npu.device_queue", 8),
        (["--max-cycles", "1000000"], "run.max_cycles", 1_000_000),
        (["--max-cycles", "1e9"], "run.max_cycles", 1_000_000_000),
        (["--set", "npu.dram.bytes_per_second=25.6e9"], "npu.dram.bytes_per_second", 25_600_000_000),
        (["--timeout", "5"], "run.timeout", 5),
        (["--seed", "7"], "run.seed", 7),
        (["--arg", "n=1000", "--arg", "m=0x10"], "run.args", {"n": 1000, "m": 16}),
    ],
)
def test_an_option_is_another_name_for_a_key(runner: Runner, options: list[str], key: str, value: object) -> None:
    assert main(["run", "hello", *options]) == 0
    found: Any = runner.config
    for part in key.split("."):
        found = getattr(found, part)
    assert found == value
    assert runner.args == runner.config.run.args
    assert runner.program == "hello"


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        ([], 64, "the following arguments are required: COMMAND; see pyv-npu --help"),
        (["fly"], 64, "fly: no such command; see pyv-npu --help"),
        (["rnu", "hello"], 64, "rnu: no such command; did you mean run?; see pyv-npu --help"),
        (["comprae", "hello"], 64, "comprae: no such command; did you mean compare?; see"),
        (["run", "hello", "--mode", "loose", "--te-mode", "tight"], 64, "--te-mode: npu.mode = tight, and it is loose"),
        (["run", "hello", "--set", "npu.te.count=4", "--set", "npu.te.count=3"], 64, "--set: npu.te.count = 3, and it"),
        (["run", "hello", "--arg", "n=4", "--arg", "n=5"], 64, "--arg: run.args.n = 5, and it is 4 on the same"),
        (
            ["run", "hello", "--queue-size", "64", "--set", "npu.queue.tight_size=32"],
            64,
            "queue_size = 64 and npu.queue.tight_size = 32: are one value in tight mode; drop one of them",
        ),
        (["run", "llama2-7b", "--context", "1e3", "--context", "5"], 64, "--context 5: 1000 is there already; drop"),
        (["run", "hello", "--max-cycles", "1.5e0"], 64, "command line: run.max_cycles = 1.5e0: must be an integer of"),
        (["run", "llama2-7b", "--context", "x"], 64, "argument --context: invalid integer value: 'x'; see"),
        (["run", "hello", "--report", "/proc/x"], 64, "--report /proc/x: No such file or directory; name another"),
        (["run", "nosuch", "--timing-only"], 65, "nosuch: neither a file, nor firmware or a model of this"),
        (["sweep", "sumit_latency", "n=1,2", "-o", "x"], 65, "sumit_latency: neither a file, nor firmware"),
        (["reproduce", "oakn"], 64, "reproduce oakn: unknown; there is chained-ve, oaken; did you mean oaken?"),
        (["run"], 64, "no firmware is named; give the path of an ELF or a name that `pyv-npu info` lists"),
        (["run", "hello", "--fast"], 64, "unrecognized arguments: --fast; "),
        (["run", "hello", "--mod", "loose"], 64, "unrecognized arguments: --mod loose; did you mean --mode?; see"),
        (["run", "hello", "--seed"], 64, "argument --seed: expected one argument; see pyv-npu run --help"),
        (["run", "hello", "--mode", "loos"], 64, "command line: npu.mode = loos: must be one of loose, tight; did"),
        (["run", "hello", "--queue-size", "0"], 64, "command line: npu.queue.tight_size = 0: must be an integer from "),
        (["compare", "hello", "--queue-size", "1000"], 64, "command line: npu.queue.size = 1000: must be an integer "),
        (["run", "hello", "--set", "npu.te.count"], 64, "--set npu.te.count: must have the form KEY=VALUE"),
        (["run", "hello", "--arg", "=3"], 64, "--arg =3: must have the form NAME=N"),
        (["run", "hello", "--core", "quick"], 64, "command line: core.engine = quick: must be one of fast"),
        (
            ["run", "hello", "--preset", "x"],
            64,
            "command line: preset: x: must be a file, or the name of a shipped one: cva6, ",
        ),
        (["run", "hello", "--config", "/no.yaml"], 65, "/no.yaml: must be a file, or the name of "),
        (["run", "hello", "--mode", "loose", "--isa", "twait"], 64, "--isa: names instructions of tight mode, and "),
        (
            ["run", "hello", "--sim_level", "IA_TIMING"],
            64,
            "--sim-level IA_TIMING: is an analytic model without a core",
        ),
        (
            ["run", "hello", "--sim_level", "L0"],
            64,
            "--sim-level IA: computes a model without a core; firmware runs at",
        ),
        (
            ["run", "hello", "--sim_level", "L3"],
            64,
            "sim_level CA_FULL: needs an engine outside, and npu.te.external.engine",
        ),
        (["run", "hello", "--sim_level", "L4"], 64, "command line: run.sim_level = L4: must be one of IA, IA_TIMING, "),
        (["run", "m.onnx"], 65, "m.onnx: No such file or directory: give the path of an ONNX model"),
        (["compare", "m.mlir"], 65, "m.mlir: No such file or directory: give the path of an MLIR module"),
        (["compare", "hello", "--mode", "tight"], 64, "unrecognized arguments: --mode tight; see"),
        (["disasm", "zz"], 64, "zz: neither an ELF nor a 32-bit word; give a file, a shipped firmware or 0x00000013"),
        (["disasm", "0x100000000"], 64, "0x100000000: neither an ELF nor a 32-bit word"),
        (["build-firmware", "out", "nope"], 64, "nope: no such program; there are hello, "),
    ],
)
def test_a_wrong_request_is_one_line(
    runner: Runner, capsys: pytest.CaptureFixture[str], arguments: list[str], code: int, message: str
) -> None:
    assert main(arguments) == code
    captured = capsys.readouterr()
    assert one_error_line(captured.err).startswith(message)
    assert captured.out == ""


def test_isa_from_a_file_may_stay_when_the_mode_is_loose(runner: Runner, tmp_path: Path) -> None:
    config = tmp_path / "c.yaml"
    config.write_text("core: {custom: [twait]}\n")
    assert main(["run", "hello", "--mode", "loose", "--config", str(config)]) == 0
    assert main(["compare", "hello", "--isa", "enqcmd"]) == 0


def test_print_config_runs_nothing_and_can_be_read_back(
    runner: Runner, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert main(["run", "hello", "--preset", "cva6", "--print-config"]) == 0
    printed = capsys.readouterr().out
    assert runner.program == ""
    config = tmp_path / "c.yaml"
    config.write_text(printed)
    assert main(["run", "--config", str(config)]) == 0
    assert runner.program == "hello"
    assert runner.config.core.timing.irq == 120


# -- exit codes ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("stop", "code"),
    [
        (Stop(StopReason.EXIT, 0), 0),
        (Stop(StopReason.EXIT, 3), 3),
        (Stop(StopReason.EXIT, 77), 77),
        (Stop(StopReason.EXIT, 255), 255),
        (Stop(StopReason.EXIT, 256), 255),
        (Stop(StopReason.EXIT, 0xFFFF_FFFF), 255),
        (Stop(StopReason.LIMIT), 75),
        (Stop(StopReason.TIMEOUT), 75),
        (Stop(StopReason.DEADLOCK, text="wfi with nothing pending"), 76),
        (Stop(StopReason.TRAP_LOOP, text="trap loop at pc 0x0"), 77),
        (Stop(StopReason.INTERRUPTED), 130),
    ],
)
@pytest.mark.parametrize("command", ["run", "compare"])
def test_the_exit_code_says_how_it_ended(
    runner: Runner, capsys: pytest.CaptureFixture[str], command: str, stop: Stop, code: int
) -> None:
    runner.stop = stop
    assert main([command, "hello"]) == code
    assert stop.text in capsys.readouterr().err


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (PyvExtError("x: not ELF; give one"), 65),
        (AbiError("x"), 65),
        (ToolchainError("riscv64-unknown-elf-gcc is missing"), 69),
        (PermissionError(13, "Permission denied", "out"), 65),
        (ZeroDivisionError("two\nlines"), 70),
    ],
)
def test_an_error_is_one_line_without_traceback(
    runner: Runner, capsys: pytest.CaptureFixture[str], error: Exception, code: int
) -> None:
    runner.error = error
    assert main(["run", "hello"]) == code
    captured = capsys.readouterr()
    line = one_error_line(captured.err)
    assert captured.out == ""
    assert (code == 70) == line.startswith("internal error: ZeroDivisionError: two lines; a bug of PyV-NPU")
    main(["run", "hello", "--traceback"])
    assert "Traceback (most recent call last)" in capsys.readouterr().err


def test_ctrl_c_before_the_run_is_130(runner: Runner, capsys: pytest.CaptureFixture[str]) -> None:
    runner.error = KeyboardInterrupt()  # type: ignore[assignment]
    assert main(["run", "hello"]) == 130
    assert one_error_line(capsys.readouterr().err) == "interrupted"


# -- what goes where -------------------------------------------------------------------------------------------


def test_text_shows_the_uart_as_it_comes_then_the_tables(runner: Runner, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "hello"]) == 0
    captured = capsys.readouterr()
    assert captured.out.startswith("guest sagt grüß\nno newline\nsubmit_latency: tight, ")
    assert "\nt_submit " in captured.out
    assert captured.err == ""


@pytest.mark.parametrize("command", ["run", "compare"])
def test_json_is_one_object_and_nothing_else(
    runner: Runner, capsys: pytest.CaptureFixture[str], tmp_path: Path, command: str
) -> None:
    assert main([command, "hello", "--json", "--report", str(tmp_path / "r")]) == 0
    captured = capsys.readouterr()
    found = json.loads(captured.out)
    assert found == (synthetic.run() if command == "run" else compared(found))
    assert captured.err == f"pyv-npu: the report is in {tmp_path / 'r'}\n"


def test_a_comparison_says_when_results_differ(runner: Runner, capsys: pytest.CaptureFixture[str]) -> None:
    runner.same = False
    assert main(["compare", "hello"]) == 0
    captured = capsys.readouterr()
    assert re.search(r"same results in both modes +NO", captured.out)
    assert "the modes left different results" in captured.err


def test_a_report_can_be_replayed(runner: Runner, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "out" / "r"
    command_line = ["compare", "hello", "--preset", "rocket", "--arg", "n=7", "--report", str(folder)]
    assert main(command_line) == 0
    text = capsys.readouterr().out
    first = runner.config
    assert {path.name for path in folder.iterdir()} >= {"run.yaml", "result.json", "summary.txt", "report.html"}
    result = json.loads((folder / "result.json").read_text())
    assert result == compared(result)
    assert (folder / "summary.txt").read_text().startswith(text)
    assert "20 cycles -- preset rocket: chosen by us" in (folder / "summary.txt").read_text()
    record = yaml.safe_load((folder / "run.yaml").read_text())["record"]
    assert record["command_line"] == ["pyv-npu", *command_line]
    assert record["versions"]["python"] == ".".join(map(str, sys.version_info[:3]))
    assert main(["compare", "--config", str(folder / "run.yaml")]) == 0
    assert (runner.config, runner.program) == (first, "hello")


def test_a_report_needs_a_folder(runner: Runner, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "file"
    path.write_text("")
    assert main(["run", "hello", "--report", str(path)]) == 64
    assert one_error_line(capsys.readouterr().err) == f"--report {path}: is not a folder; name a new one"
    assert main(["run", "hello", "--report", str(path / "below")]) == 64
    assert one_error_line(capsys.readouterr().err) == f"--report {path}/below: lies below a file; name another folder"


# -- the other commands ----------------------------------------------------------------------------------------


def test_info_lists_firmware_presets_versions(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["info"]) == 0
    text = capsys.readouterr().out
    for name in ("submit_latency", "fault_queue_full", "neorv32-2024", "soc-axi", "ml_dtypes"):
        assert f"\n  {name} " in text
    assert main(["info", "--json"]) == 0
    blocks = json.loads(capsys.readouterr().out)
    assert blocks["schema"] == 1 and {"hello", "fault_queue_full"} <= blocks["firmware"].keys()
    assert "soc-axi" in blocks["presets"] and "numpy" in blocks["versions"]


def test_doctor_says_how_to_get_what_is_missing(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    assert main(["doctor"]) == 0
    text = capsys.readouterr().out
    assert "absent   riscv64-unknown-elf-gcc      apt-get install gcc-riscv64-unknown-elf (builds firmware)" in text
    doctor = "pyv_npu.cli.verbs.doctor"
    monkeypatch.setattr(f"{doctor}.installed_version", lambda name: "missing" if name in ("numpy", "xdsl") else "1.0")
    assert main(["doctor"]) == 69
    captured = capsys.readouterr()
    assert "MISSING  numpy                        python -m pip install numpy" in captured.out
    mlir = "pip install 'pyv-npu[mlir]' (MLIR modules, code that submits commands)"
    assert f"absent   xdsl                         {mlir}" in captured.out
    assert "cannot run firmware without numpy" in captured.err
    assert main(["doctor", "--json"]) == 69
    checks = {check["name"]: check for check in json.loads(capsys.readouterr().out)["checks"]}
    assert checks["numpy"]["state"] == "MISSING" and checks["numpy"]["required"] and checks["xdsl"]["state"] == "absent"
    assert checks["onnx"]["found"] == "1.0" and checks["onnx"]["state"] == "ok"


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["0x00000013"], "addi\tzero,zero,0\n"),
        (["5cb5050b"], "enqcmd_t\ta0,a0,a1\n"),
        (["0x5cb5052b", "--slot", "1"], "enqcmd_t\ta0,a0,a1\n"),
        (["0xffffffff"], ".4byte\t0xffffffff\n"),
    ],
)
def test_disasm_of_a_word(capsys: pytest.CaptureFixture[str], arguments: list[str], text: str) -> None:
    assert main(["disasm", *arguments]) == 0
    assert capsys.readouterr().out == text


def test_version_and_help_are_not_errors(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert main(["run", "--help"]) == 0
    assert main(["--help"]) == 0
    assert "76 deadlock" in capsys.readouterr().out


def test_the_command_starts_without_what_it_does_not_need() -> None:
    program = "import sys, pyv_npu.cli as c; c.main(['--help']); print(*sys.modules, file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert not {"numpy", "yaml", "elftools", "llvmlite"} & set(done.stderr.split())


def test_a_reader_that_leaves_early_is_no_error() -> None:
    program = "import sys, pyv_npu.cli; sys.exit(pyv_npu.cli.main(['info']))"
    line = f'{sys.executable} -c "{program}" | true; echo ${{PIPESTATUS[0]}}'
    done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() in ("0", "141")
    assert done.stderr == ""
