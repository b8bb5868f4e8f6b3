"""A model whose commands are timed: no core, no numbers, no reference (`--timing-only`)."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pyv_npu.config import Config
from pyv_npu.result import Detail, Result, Stopwatch
from pyv_npu.text import columns, lines_of
from pyv_npu.workloads.compiled import listing
from pyv_npu.workloads.model import Choices, compile_for
from pyv_npu.workloads.timing import Finished, check_level, run_commands
from pyv_npu.workloads.workload import PLAIN, Prepared, Session, Workload
from toolchain.compiler import Compiled


@dataclass(frozen=True)
class TimedModel(Workload["TimingDetail"]):
    """An ONNX model whose commands are timed."""

    path: Path
    choices: Choices = field(default_factory=Choices)

    @property
    def files(self) -> tuple[Path, ...]:
        return self.choices.files

    def check(self, config: Config) -> None:
        check_level(config.run.sim_level)

    def prepare(self, config: Config) -> "TimedCommands":
        self.check(config)
        host = Stopwatch()
        compiled = compile_for(config, self.path, self.choices)
        return TimedCommands(compiled, host.figures()["cpu_s"])


@dataclass(frozen=True)
class TimedCommands(Prepared["TimingDetail"]):
    """A compiled model that will be timed."""

    compiled: Compiled
    compile_cpu_s: float | None

    def run(self, config: Config, session: Session = PLAIN) -> "Result[TimingDetail]":
        host, commands = Stopwatch(), self.compiled.commands
        timed = run_commands(commands, config.npu, config.run.sim_level, keep=session.keep)
        return Result(
            self.compiled.model.name, config, TimingDetail(self.compiled, timed.layers, session.keep), timed.cycles,
            timed.counters, timed.events, host={"compile_cpu_s": self.compile_cpu_s, **host.figures()},
            commands=commands,
        )  # fmt: skip


@dataclass(frozen=True)
class TimingDetail(Detail):
    """When each layer was done, and what the cycles were spent on where the events are kept."""

    compiled: Compiled
    layers: tuple[Finished, ...]
    explained: bool

    def to_json(self, result: Result[Any]) -> dict[str, Any]:
        assert result.events is not None
        why = result.analysis.explanation.to_json() if self.explained and result.analysis is not None else None
        return {
            "timing_only": True,
            "events": result.events.count,
            "model": {"layers": len(self.compiled.graph.layers), "commands": len(result.commands), "checks": {}},
            "finished": [one._asdict() for one in self.layers],
            **({} if why is None else {"explanation": why}),
        }

    def text(self, result: Result[Any]) -> str:
        """Cycles layer by layer, and what they were spent on where that is known."""
        json = result.json
        rows = [
            ("layers", str(json["model"]["layers"])), ("commands", str(len(result.commands))),
            ("cycles", f"{result.cycles:,}"), ("events", f"{json['events']:,}"),
        ]  # fmt: skip
        text = lines_of(f"model {result.program}, {result.name}, timing only", rows)
        table, before = [], 0
        for layer, cycle in self.layers:
            table.append([layer, f"{cycle:,}", f"{cycle - before:,}"])
            before = max(before, cycle)
        text += "\n\n" + columns(["layer", "finished", "after the layer before"], table)
        if "explanation" in json:
            causes = sorted(json["explanation"]["causes"].items(), key=lambda item: -item[1])
            spent = [(name, f"{cycles:,}") for name, cycles in causes if cycles]
            text += "\n\n" + lines_of("where the cycles went", spent)
        return text + "\n"

    def files(self, result: Result[Any]) -> Mapping[str, bytes]:
        return listing(self.compiled, result.config.npu)
