"""Everything that is known about a model's run beyond the run itself."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from npu_device.config import NpuConfig
from npu_device.levels.analytic import Analytic
from npu_device.levels.explain import Blocker, Explanation, explain
from npu_device.levels.runner import Listed, Runner
from npu_device.trace.events import What
from pyv_npu.observe.analysis.layers import Layer, layers
from pyv_npu.observe.analysis.scratchpad import occupied
from pyv_npu.observe.analysis.work import Work, works
from pyv_npu.report.spans import Integers, Records, Spans
from toolchain.codegen import Command


@dataclass(frozen=True)
class Analysis:
    """Of one run of a list of commands."""

    names: Sequence[str]
    """The layer of each command, in the order of acceptance."""
    layers: Sequence[Layer]
    explanation: Explanation
    scratchpad: tuple[Spans, Integers]
    """Spans and bytes of what the scratchpads held."""

    @property
    def bottlenecks(self) -> list[tuple[str, Blocker, int]]:
        """(layer, cause, cycles of the critical chain), the most first."""
        found = [(layer.name, cause, cycles) for layer in self.layers for cause, cycles in layer.chain.items()]
        return sorted(found, key=lambda row: -row[2])

    @property
    def peak_scratchpad(self) -> int:
        """The most bytes that were occupied at once."""
        spans, size = self.scratchpad
        moments = np.concatenate([spans.start, spans.end])
        change = np.concatenate([size, -size])
        order = np.lexsort((change, moments))
        return int(np.cumsum(change[order]).max(initial=0))


def analyse(
    commands: Sequence[Command],
    records: Records,
    config: NpuConfig,
    cycles: int,
    memory: Mapping[int, bytes] | None = None,
) -> Analysis:
    """Analyse a run of `commands` that lasted `cycles`; `memory`: what commands read when they start."""
    listed = [Listed(command.descriptor, 0, command.block) for command in commands]
    names = [command.layer for command in commands]
    done: list[Work] = works(listed, config, memory)
    explanation = explain(records, config, _critical_path(listed, records, config, memory))
    found = layers(records, names, done, cycles, explanation.chain)
    return Analysis(names, found, explanation, occupied(records, done, cycles))


def _critical_path(
    listed: Sequence[Listed], records: Records, config: NpuConfig, memory: Mapping[int, bytes] | None
) -> int:
    """The end of the longest chain of commands that were accepted when they were, with units without end."""
    accepted = records["cycle"][records["what"] == What.ACCEPT].astype(np.int64).tolist()
    known = listed[: len(accepted)]
    runner = Runner(config, values=False)
    for address, data in (memory or {}).items():
        runner.memory.write_bytes(address, data)
    return Analytic(config, runner.memory, unlimited=True).run(runner.place(known), accepted[: len(known)]).cycles
