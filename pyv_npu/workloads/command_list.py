"""Command list (cmdq.json): commands on the NPU without a core."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from npu_device.abi.cmdq import KV_UPDATE
from npu_device.abi.errors import NpuDeviceError
from npu_device.abi.opcodes import Opcode
from npu_device.levels.command_list import LEVELS, load, run
from npu_device.levels.explain import Explanation
from npu_device.levels.runner import Listed
from pyv_native.files import MAX_RESULT, check_input
from pyv_npu import manifest
from pyv_npu.config import Config
from pyv_npu.errors import BadInputError, UsageError
from pyv_npu.observe.analysis.traffic import traffic_of
from pyv_npu.result import Detail, Result, Stopwatch
from pyv_npu.sections import Note, Section, Table
from pyv_npu.workloads.workload import PLAIN, PreparedWorkload, Session, Workload
from toolchain.codegen import Command


@dataclass(frozen=True)
class CommandList(Workload["ListDetail"]):
    """File with a command list."""

    name: str

    def check(self, config: Config) -> None:
        level = config.run.sim_level
        if level not in LEVELS:
            raise UsageError(f"--sim-level {level}: a command list runs at {' or '.join(LEVELS)}; choose one")

    def prepare(self, config: Config) -> "LoadedList":
        self.check(config)
        host, document = Stopwatch(), self._read()
        try:
            listed = load(document, config.npu)
        except NpuDeviceError as error:
            raise BadInputError(f"{self.name}: {error}") from None
        names = [
            str(command.get("layer", command["opcode"]))
            for command in document["commands"]
            for _ in range(2 if command["opcode"] == KV_UPDATE else 1)  # one command for keys, one for values
        ]
        return LoadedList(self.name, names, listed, host)

    def _read(self) -> Any:
        try:
            check_input(self.name, MAX_RESULT)
            manifest.check(Path(self.name))
            return json.loads(Path(self.name).read_text(encoding="utf-8"))
        except OSError as error:
            rule = "give the name of a command list or of a model's config.json"
            raise BadInputError(f"{self.name}: {error.strerror}; {rule}") from None
        except UnicodeDecodeError:
            raise BadInputError(f"{self.name}: not UTF-8 text; give a command list") from None
        except (ValueError, RecursionError) as error:
            raise BadInputError(f"{self.name}: not JSON: {error}; correct it") from None


@dataclass(frozen=True)
class LoadedList(PreparedWorkload["ListDetail"]):
    """List whose commands are all valid for the device."""

    name: str
    layers: Sequence[str]
    listed: Sequence[Listed]
    host: Stopwatch

    def run(self, config: Config, session: Session = PLAIN) -> "Result[ListDetail]":
        try:
            outcome = run(self.listed, config.npu, config.run.sim_level)
        except NpuDeviceError as error:
            raise BadInputError(f"{self.name}: {error}") from None
        named = zip(self.layers, self.listed, strict=True)
        commands = [Command(name, entry.descriptor, entry.block) for name, entry in named]
        return Result(
            self.name, config, ListDetail(outcome.explanation), outcome.cycles, outcome.counters, outcome.events,
            host=self.host.figures(), commands=commands, moved=traffic_of(outcome.events.batches()),
        )  # fmt: skip


@dataclass(frozen=True)
class ListDetail(Detail):
    """Bounds of a command list, and causes of its cycles."""

    explanation: Explanation

    def to_json(self, result: Result[Any]) -> dict[str, Any]:
        return {"explanation": self.explanation.to_json()}

    def sections(self, result: Result[Any]) -> list[Section]:
        kernels = sum(command.descriptor.opcode == Opcode.CORE for command in result.commands)
        note = f"without {kernels} kernels on the core: a list has no core; run the model"
        explanation, makespan = self.explanation, max(self.explanation.makespan, 1)
        causes = sorted(explanation.causes.items(), key=lambda item: -item[1])
        rows = [
            ("makespan", explanation.makespan, 1.0),
            *((f"lower bound: {name}", cycles, cycles / makespan) for name, cycles in explanation.bounds.items()),
            *((f"cause: {name}", cycles, cycles / makespan) for name, cycles in causes),
        ]
        table = Table(("bound or cause", "core cycles", "of the makespan"), rows, units=("", "", "share"))
        return [Section("list", "Bounds and causes", [*([Note(note)] if kernels else []), table])]
