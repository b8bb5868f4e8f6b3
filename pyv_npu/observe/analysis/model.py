"""Analysis of a model's run: layers, bounds, critical path, occupancy of the scratchpads."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from npu_device.config import NpuConfig
from npu_device.levels.critical_path import CriticalPath, Path
from npu_device.levels.explain import Blocker, Explanation, explain
from npu_device.levels.runner import Listed, Runner
from npu_device.trace.run_spans import Spans
from npu_device.trace.spans import Table
from pyv_npu.observe.analysis.layers import Layer, layers
from pyv_npu.observe.analysis.work import CommandWork, spm_occupancy
from toolchain.codegen import Command


@dataclass(frozen=True)
class Analysis:
    """Analysis of a run of a list of commands."""

    names: Sequence[str]
    """Layer of each command, in the order of acceptance."""
    layers: Sequence[Layer]
    explanation: Explanation
    scratchpad: Table
    """Occupancy of the scratchpads: spans with `bytes`."""
    waits: Sequence[Sequence[int]] = ()
    """Indices of older commands that each command depends on, in the order of acceptance."""

    @property
    def bottlenecks(self) -> list[tuple[str, Blocker, int]]:
        """Tuples (layer, cause, cycles of the critical chain), the largest first."""
        rows = [(layer.name, cause, cycles) for layer in self.layers for cause, cycles in layer.chain.items()]
        return sorted(rows, key=lambda row: -row[2])

    @property
    def peak_scratchpad(self) -> int:
        """Maximum of occupied bytes."""
        rows = self.scratchpad
        size = rows["bytes"].astype(np.int64)
        moments = np.concatenate([rows["start"], rows["end"]])
        change = np.concatenate([size, -size])
        order = np.lexsort((change, moments))
        return int(np.cumsum(change[order]).max(initial=0))


def analyse(
    commands: Sequence[Command], done: Sequence[CommandWork], spans: Spans, config: NpuConfig,
    memory: Mapping[int, bytes] | None = None,
) -> Analysis:  # fmt: skip
    """Analyse a run of `commands` with their work; `memory`: address -> bytes that commands read when they start."""
    listed = [Listed(command.descriptor, 0, command.block) for command in commands]
    names = [command.layer for command in commands]
    path = _critical_path(listed, spans, config, memory)
    explanation = explain(spans, config, path)
    by_layer = layers(spans, names, done, explanation.chain)
    return Analysis(names, by_layer, explanation, spm_occupancy(spans, done), path.waits)


def _critical_path(
    listed: Sequence[Listed], spans: Spans, config: NpuConfig, memory: Mapping[int, bytes] | None
) -> Path:
    """Return the critical path of the commands at their cycles of acceptance, with an unlimited number of units."""
    accepted = spans.commands["accepted"].tolist()
    commands = listed[: len(accepted)]
    runner = Runner(config, values=False)
    for address, data in (memory or {}).items():
        runner.memory.write_bytes(address, data)
    return CriticalPath(config, runner.memory).walk(runner.place(commands), accepted[: len(commands)])
