"""Firmware on the core, with the NPU: a workload, and the way models and decoders run at CA_HYBRID."""

import re
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from pyv_ext import elf
from pyv_ext.elf import Program
from pyv_ext.engines.core import Stop, StopReason
from pyv_npu import boot
from pyv_npu.boot import MODEL_SUFFIXES, find_program
from pyv_npu.config import Config
from pyv_npu.errors import BadInputError, UsageError
from pyv_npu.platform import Platform, check_engine, sized_for
from pyv_npu.result import CoreRun, Detail, Result, Stopwatch
from pyv_npu.workloads.workload import PLAIN, PreparedWorkload, Session, Workload

if TYPE_CHECKING:
    from pathlib import Path

LEVEL = "CA_HYBRID"
_NO_CORE = {"IA": "computes a model without a core", "IA_TIMING": "is an analytic model without a core"}
"""Reasons why levels of models cannot run firmware."""


class FirmwareTimingDetail(Detail):
    """Detail of a firmware run without values."""

    def to_json(self, result: Result[Any]) -> dict[str, Any]:
        return {"timing_only": True}


@dataclass(frozen=True)
class Firmware(Workload[Detail]):
    """ELF by its path, or firmware of the package by its name; arguments are in `run.args`."""

    name: str
    values: bool = True
    """Whether the NPU computes results."""

    def uses_core(self, config: Config) -> bool:
        return True

    def check(self, config: Config) -> None:
        if not self.name:
            raise UsageError("no firmware is named; give the path of an ELF or a name that `pyv-npu info` lists")
        if self.name.endswith(MODEL_SUFFIXES):
            raise BadInputError(
                f"{self.name}: this version runs RISC-V ELF files; give one or a name that `pyv-npu info` lists"
            )
        check_core(config)
        if not self.values and config.run.sim_level == "CA_FULL":
            raise UsageError(f"--timing-only: engines outside compute values; run at {LEVEL}")

    def sees(self, config: Config) -> Hashable:
        return None

    def prepare(self, config: Config) -> "LoadedFirmware":
        self.check(config)
        return LoadedFirmware(load(self.name), self.values)


@dataclass(frozen=True)
class LoadedFirmware(PreparedWorkload[Detail]):
    """Loaded firmware."""

    loaded: Program
    values: bool = True

    def program(self) -> Program:
        return self.loaded

    def run(self, config: Config, session: Session = PLAIN) -> Result[Detail]:
        return run_program(config, self.loaded, config.run.args, session, values=self.values)


def check_core(config: Config) -> None:
    """Raise UsageError for a level without a core."""
    level = config.run.sim_level
    if level in _NO_CORE:
        raise UsageError(f"--sim-level {level}: {_NO_CORE[level]}; firmware runs at {LEVEL} and CA_FULL")
    check_engine(config)


def load(program: "str | Path | Program") -> Program:
    """Load a program, named as in the argument, so that results do not depend on the package's path."""
    if isinstance(program, Program):
        return program
    return replace(elf.read_elf(find_program(str(program))), name=str(program))


def run_program(
    config: Config,
    program: "str | Path | Program",
    args: Mapping[str, int] | None = None,
    session: Session = PLAIN,
    *,
    layers: Sequence[str] = (),
    values: bool = True,
    make: Callable[..., Platform] = Platform,
    after: Callable[[Platform], None] | None = None,
) -> Result[Detail]:
    """Run firmware (a name that ships with the package, a path, or a loaded Program) to its end or limit.

    `layers` names the layer of each command. Without `values` the NPU computes nothing. `make` constructs the platform,
    with the arguments of `Platform`, for a platform with additional devices. `after` is called with the platform at the
    end of the run. The errors of `Platform.load`.
    """
    loaded = load(program)
    config = replace(config, npu=sized_for(config.npu, boot.requirements(loaded).dram_bytes))
    host = Stopwatch()
    check_engine(config)
    platform = make(config, console=session.console, values=values)
    platform.load(loaded, args)
    injection = None if session.faults is None else platform.inject(*session.faults)
    stop = _located(platform.run() if session.drive is None else session.drive(platform), loaded)
    platform.deliver()
    latency = platform.result()
    if after is not None:
        after(platform)
    figures = host.figures(platform.hart.instret)
    external = None
    if platform.external is not None:
        external = platform.external.to_json()
        figures |= {f"link_{name}": value for name, value in platform.external.host.items()}
        platform.external.close()
    record = None
    if injection is not None:
        from pyv_npu.faults.record import record_of  # imports NumPy, which most programs do not need

        record = record_of(platform, injection, loaded)
    hart, events = platform.hart, platform.events
    core = CoreRun(
        loaded,
        stop,
        hart.instret,
        platform.console.text,
        latency,
        platform.completion_order(),
        platform.outputs.sha256(),
        platform.npu.error_log,
        record,
        None if platform.sanitizer is None else platform.sanitizer.findings(),
        external,
    )
    detail, counters = Detail() if values else FirmwareTimingDetail(), platform.npu.counters.to_json()
    events.close()
    return Result(loaded.name, config, detail, hart.cycle, counters, events, core, figures, layers=layers)


def run_whole(config: Config, program: "str | Path | Program") -> Result[Detail]:
    """Run firmware with the arguments of the configuration. KeyboardInterrupt on Ctrl-C."""
    run = run_program(config, program, config.run.args)
    if run.stop.reason is StopReason.INTERRUPTED:
        raise KeyboardInterrupt
    return run


def _located(stop: Stop, program: Program) -> Stop:
    """Return the stop with function and source line after each address of the program in its text."""
    if "pc 0x" not in stop.text:  # faster than to compile the pattern
        return stop

    def located(match: re.Match[str]) -> str:
        place = program.place(int(match[1], 16))
        return f"{match[0]} ({place})" if place else match[0]

    return stop._replace(text=re.sub(r"\bpc (0x[0-9a-f]{8})", located, stop.text))
