"""Firmware under test: fixtures `platform`, `npu`, `uart` and `baseline` for pytest (docs/testing.md).

    def test_a_submission_is_quick(platform, npu, uart):
        run = platform.run("submit_latency", preset="rocket", args={"n": 100})
        assert run.exit_code == 0 and run.latency.p99 <= 320
        assert npu.errors == 0 and "ok" in uart.text

pytest loads this file in every session, so it imports the machine only when a fixture is used.
"""

from collections.abc import Callable, Generator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from pathlib import Path

    from pyv_npu.config import Config
    from pyv_npu.instruction_sets import Program
    from pyv_npu.platform import Placed, Platform
    from pyv_npu.result import Result

UPDATE = "--update-baselines"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option that rewrites baseline files."""
    parser.getgroup("pyv-npu").addoption(UPDATE, action="store_true", help="write baselines instead of comparing")


class Bench:
    """Factory of platforms, with the last platform for the fixtures `npu` and `uart`."""

    def __init__(self) -> None:
        self.last: Platform | None = None

    def load(
        self, program: "str | Path | Program", args: Mapping[str, int] | None = None, *,
        devices: "Sequence[Placed]" = (), instructions: Sequence[Any] = (), **configuration: Any,
    ) -> "Platform":  # fmt: skip
        """Return a platform with `program` loaded: a name that `pyv-npu info` lists, a path, or one of `assemble`.

        `configuration`: `mode`, `preset`, `config` (files), `settings` (a mapping of keys). The errors of `Platform`
        and `Platform.load`.
        """
        from pathlib import Path

        from pyv_npu.boot import find_program
        from pyv_npu.platform import Platform

        self.last = Platform(_config(**configuration), devices=devices, instructions=instructions)
        self.last.load(find_program(str(program)) if isinstance(program, str | Path) else program, args)
        return self.last

    def run(
        self, program: "str | Path | Program", args: Mapping[str, int] | None = None, *,
        devices: "Sequence[Placed]" = (), instructions: Sequence[Any] = (), **configuration: Any,
    ) -> "Result[Any]":  # fmt: skip
        """Run firmware to its end: `exit_code`, `stop`, `latency.p99`, `json`. Arguments as in `load`."""
        from pyv_npu.platform import Platform
        from pyv_npu.workloads.firmware import run_program

        def make(config: "Config", **arguments: Any) -> "Platform":
            self.last = Platform(config, devices=devices, instructions=instructions, **arguments)
            return self.last

        return run_program(_config(**configuration), program, args, make=make)

    def assemble(
        self, text: str, *, instructions: Sequence[Any] = (), name: str = "program.s", **configuration: Any
    ) -> "Program":
        """Assemble a program (docs/assembler.md), for `run`. Instructions are those of `core.isa`, of the NPU, and
        `instructions`. ToolchainError names the wrong line."""
        from pyv_npu.instruction_sets import assemble_for

        return assemble_for(text, _config(**configuration).core, instructions, name)

    def load_assembly(
        self, text: str, *, devices: "Sequence[Placed]" = (), instructions: Sequence[Any] = (), **configuration: Any
    ) -> "Platform":
        """Load assembly text, like `load`."""
        program = self.assemble(text, instructions=instructions, **configuration)
        return self.load(program, devices=devices, instructions=instructions, **configuration)

    def errors(self) -> str:
        """Return the table of error tickets of the last platform; empty without errors, and without a platform."""
        machine = self.last
        if machine is None or machine.program is None or not machine.npu.error_log:
            return ""
        from pyv_npu.result import error_rows
        from pyv_npu.run_sections.findings import errors
        from pyv_npu.sections import Section, as_text

        log = error_rows(machine.npu.error_log, machine.result(), machine.program)
        return as_text([Section("errors", "", errors({machine.config.npu.mode: {"npu": {"error_log": log}}}))])

    @property
    def machine(self) -> "Platform":
        """Last platform; UsageError without a platform."""
        if self.last is None:
            from pyv_npu.errors import UsageError

            raise UsageError("no platform yet: call platform.run(...) or platform.load(...) first")
        return self.last


def _config(
    mode: str | None = None, preset: str | None = None, config: "str | Path | Sequence[str | Path]" = (),
    settings: Mapping[str, object] | None = None,
) -> "Config":  # fmt: skip
    from pathlib import Path

    from pyv_npu.config import load

    files = [config] if isinstance(config, str | Path) else config
    overrides = {**(settings or {}), **({} if mode is None else {"npu.mode": mode})}
    return load(files, preset, overrides, {"npu.mode": "mode"}).config


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Show the error tickets of the last platform, with their reasons, in a failed test."""
    report = yield
    bench = getattr(item, "funcargs", {}).get("platform")
    if report.failed and isinstance(bench, Bench) and (text := bench.errors()):
        report.sections.append(("NPU error tickets", text))
    return report


class Npu:
    """Counters of the last platform's NPU as attributes: `npu.completed`, `npu.te_busy`, ..."""

    def __init__(self, bench: Bench) -> None:
        self._bench = bench

    @property
    def counters(self) -> dict[str, Any]:
        """All counters, as the `npu` object of the JSON schema."""
        return self._bench.machine.npu.counters.to_json()

    def __getattr__(self, name: str) -> Any:
        counters = self.counters
        if name not in counters:
            raise AttributeError(f"{name}: the NPU has no such counter; there are {', '.join(counters)}")
        return counters[name]


class Uart:
    """Text that the guest of the last platform printed."""

    def __init__(self, bench: Bench) -> None:
        self._bench = bench

    @property
    def text(self) -> str:
        return self._bench.machine.console.text

    @property
    def lines(self) -> list[str]:
        return self.text.splitlines()


@pytest.fixture
def platform() -> Bench:
    """Provide `platform.run(program, ...)` and `platform.load(program, ...)`."""
    return Bench()


@pytest.fixture
def npu(platform: Bench) -> Npu:
    """Return the NPU of the test's last platform."""
    return Npu(platform)


@pytest.fixture
def uart(platform: Bench) -> Uart:
    """Return the UART of the test's last platform."""
    return Uart(platform)


@pytest.fixture
def baseline(request: pytest.FixtureRequest) -> Callable[..., None]:
    """Provide `baseline(run)`: its figures must equal those of baselines/TEST.json in the folder of the test.

    `baseline(run, "cycles", "latency")` compares only these keys of its JSON; each call in a test has a separate entry
    in the file. `pytest --update-baselines` writes the files.
    """
    from pyv_npu.studies.baselines import Baseline

    instance = Baseline(
        request.path.parent / "baselines" / f"{request.node.name}.json", request.config.getoption(UPDATE)
    )
    request.addfinalizer(instance.close)
    return instance.check
