"""What a run of a workload gives: one typed object, from which JSON, summary, report and tests are made.

docs/results.md describes the keys of the JSON objects. Times are core cycles.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar, cast

from npu_device.abi.errors import TICKET_ERROR_TEXT, TicketError
from npu_device.trace.events import Batch, EventStream
from npu_device.trace.spans import Spans
from pyv_ext.elf import Program
from pyv_ext.engines.stop import Stop, StopReason
from pyv_npu.config import Config
from pyv_npu.errors import UsageError
from pyv_npu.observe.latency.table import Latency

if TYPE_CHECKING:
    from pyv_npu.observe.analysis.model import Analysis
    from toolchain.codegen import Command

SCHEMA = 1
SHOWN_ERRORS = 10
"""Tickets in error that a result lists; `latency.n_errors` counts all."""
ENDED = Stop(StopReason.EXIT, 0)
"""How a run without a core stops."""


class Detail:
    """What one kind of workload adds to a result; firmware adds nothing."""

    difference: ClassVar[str] = ""
    """What is said where the run differs from its reference."""

    def to_json(self, result: "Result[Any]") -> dict[str, Any]:
        """Keys of the result's JSON object besides those that every run has."""
        return {}

    def text(self, result: "Result[Any]") -> str:
        """Its part of the summary."""
        return ""

    def files(self, result: "Result[Any]") -> Mapping[str, bytes]:
        """Files of the report by name."""
        return {}

    def compared(self, loose: "Result[Any]", tight: "Result[Any]") -> tuple[dict[str, Any], str]:
        """Keys and text that a comparison of both modes gets."""
        return {}, ""


D = TypeVar("D", bound=Detail, covariant=True)
E = TypeVar("E", bound=Detail)


@dataclass(frozen=True)
class CoreRun:
    """What the core and its firmware left."""

    program: Program
    stop: Stop
    instret: int
    uart: str
    latency: Latency
    order: Mapping[int, tuple[int, ...]]
    """Stream -> acceptance numbers, within the stream, in the order of completion."""
    outputs_sha256: str
    """What the NPU left in memory."""

    @property
    def ticket_errors(self) -> list[dict[str, Any]]:
        """The first tickets that ended in an error, with where the program submitted them."""
        accepted = self.latency.accepted
        return [
            {
                "ticket": each.ticket,
                "code": each.error,
                "text": TICKET_ERROR_TEXT[TicketError(each.error)],
                "submitted_at": self.program.place(each.call_site) or None,
            }
            for each in accepted.where(accepted.column("error") != 0)[:SHOWN_ERRORS]
        ]


@dataclass(frozen=True)
class Result(Generic[D]):
    """One run."""

    program: str
    config: Config
    """As it ran, with the DRAM that the program asked for."""
    detail: D
    cycles: int | None = None
    """None: the level has no time."""
    counters: Mapping[str, Any] | None = None
    """Of the NPU, where it was simulated."""
    events: EventStream | None = None
    """With its records where they were kept; None: the level has no events."""
    core: CoreRun | None = None
    host: Mapping[str, float | None] = field(default_factory=dict)
    commands: "Sequence[Command]" = ()
    """Of a model, in the order of submission, where each is submitted once."""
    layers: Sequence[str] = ()
    """The layer of each submission, where it is not that of `commands`."""
    memory: Mapping[int, bytes] = field(default_factory=dict)
    """Bytes by address that commands read when they start."""

    @property
    def stop(self) -> Stop:
        return ENDED if self.core is None else self.core.stop

    @property
    def exit_code(self) -> int | None:
        """The guest's, None when it did not end by itself."""
        return self.stop.code

    @property
    def latency(self) -> Latency:
        """The submissions. UsageError without a core."""
        return self.on_core("latency").latency

    @property
    def correct(self) -> bool:
        """Whether everything that was compared with a reference agrees with it."""
        return agrees(self.json)

    @property
    def name(self) -> str:
        """The mode; without a core the level."""
        return self.config.npu.mode if self.core is not None else self.config.run.sim_level

    @property
    def layer_names(self) -> Sequence[str]:
        """The layer of each submission; empty for firmware."""
        return self.layers or [command.layer for command in self.commands]

    @property
    def batches(self) -> Iterator[Batch]:
        """The events of the run. UsageError where there are none."""
        if self.events is None:
            raise UsageError(f"no events: {self.config.run.sim_level} has no time; run at IA_TIMING or CA_HYBRID")
        return self.events.kept()

    @cached_property
    def spans(self) -> Spans:
        """What began and ended during the run. UsageError where there is no time."""
        return Spans(self.batches, self.cycles)

    @cached_property
    def analysis(self) -> "Analysis | None":
        """Where the time of a model went; None where it is not known what the commands are."""
        from pyv_npu.observe.analysis.model import analyse

        if not self.commands or self.cycles is None:
            return None
        return analyse(self.commands, self.spans, self.config.npu, self.memory)

    @cached_property
    def json(self) -> dict[str, Any]:
        """What `pyv-npu run --json` prints."""
        return self.to_json()

    def to_json(self) -> dict[str, Any]:
        """The run object of docs/results.md."""
        config, core = self.config, self.core
        return {
            "schema": SCHEMA,
            "program": self.program,
            "core": None if core is None else config.core.engine,
            "mode": None if core is None else config.npu.mode,
            "sim_level": config.run.sim_level,
            "preset": config.preset,
            "exit_code": self.exit_code,
            "stop_reason": self.stop.reason.value,
            "stop_text": self.stop.text,
            "cycles": self.cycles,
            "instret": None if core is None else core.instret,
            "uart": None if core is None else core.uart,
            "latency": None if core is None else core.latency.to_json(),
            "ticket_errors": [] if core is None else core.ticket_errors,
            "npu": None if self.counters is None else dict(self.counters),
            "outputs_sha256": None if core is None else core.outputs_sha256,
            "events_sha256": None if self.events is None else self.events.hexdigest(),
            **self.detail.to_json(self),
            **({"host": dict(self.host)} if self.host else {}),
        }

    def extended(
        self, detail: E, commands: "Sequence[Command]" = (), memory: Mapping[int, bytes] | None = None
    ) -> "Result[E]":
        """The same run with what the workload that it was part of knows."""
        return replace(cast("Result[Any]", self), detail=detail, commands=commands, memory=memory or {})

    def on_core(self, what: str) -> CoreRun:
        """What the core left. UsageError names what there is only with a core."""
        if self.core is None:
            raise UsageError(f"no {what}: nothing is submitted at {self.config.run.sim_level}; run at CA_HYBRID")
        return self.core


def checks(run: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Everything in a run object that was compared with the ONNX reference: outputs of a model or steps of a decoder,
    and codes. `ok` None: only reported."""
    model, generated = run.get("model", {}), run.get("generate", {})
    yield from model.get("checks", {}).values()
    yield from generated.get("steps", ())
    yield from (part["codes"] for part in (model, generated) if part.get("codes"))


def agrees(run: Mapping[str, Any]) -> bool:
    """Whether nothing that was compared differs."""
    return all(check["ok"] is not False for check in checks(run))


class Stopwatch:
    """Time of the host since it was made."""

    def __init__(self) -> None:
        self._wall, self._cpu = time.perf_counter(), time.process_time()

    def figures(self, instret: int | None = None) -> dict[str, float | None]:
        """The `host` object: seconds, and million instructions per CPU second."""
        wall, cpu = time.perf_counter() - self._wall, round(time.process_time() - self._cpu, 3)
        mips = round(instret / cpu / 1e6, 3) if instret is not None and cpu else None
        return {"wall_s": round(wall, 3), "cpu_s": cpu, "mips": mips}


RATIOS = (("t_submit", "p50"), ("t_submit", "p99"), ("core_busy", "p50"), ("t_submit_prebuilt", "p50"))
"""Stages and figures of `ratio`."""


@dataclass(frozen=True)
class Comparison:
    """The same workload on the core, loose and tight."""

    loose: Result[Any]
    tight: Result[Any]
    sweeps: Sequence[Mapping[str, Any]] = ()
    """As `pyv_npu.studies.sweeps.run_sweep` makes them."""

    @property
    def runs(self) -> dict[str, Result[Any]]:
        return {"loose": self.loose, "tight": self.tight}

    @property
    def same_results(self) -> bool:
        """Whether exit codes, what the NPU left in memory and the order of completion agree."""
        loose, tight = (run.on_core("comparison") for run in self.runs.values())
        return (loose.stop.code, loose.outputs_sha256, loose.order) == (
            tight.stop.code, tight.outputs_sha256, tight.order,
        )  # fmt: skip

    @cached_property
    def json(self) -> dict[str, Any]:
        """What `pyv-npu compare --json` prints."""
        return {
            "schema": SCHEMA,
            **{mode: run.json for mode, run in self.runs.items()},
            "same_results": self.same_results,
            "ratio": {f"{stage}_{figure}": self._ratio(stage, figure) for stage, figure in RATIOS},
            **({"sweeps": list(self.sweeps)} if self.sweeps else {}),
            **self.loose.detail.compared(self.loose, self.tight)[0],
        }

    def _ratio(self, stage: str, figure: str) -> float | None:
        """Loose over tight, None where one is missing or tight is 0."""
        values = []
        for run in self.runs.values():
            summary = run.latency.stage(stage).summary()
            values.append(None if summary is None else summary[figure])
        if values[0] is None or not values[1]:
            return None
        return round(values[0] / values[1], 3)
