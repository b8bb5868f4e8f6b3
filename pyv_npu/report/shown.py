"""A run as a report shows it, with or without a core."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from npu_device.trace.events import Batch, unit_counts
from npu_device.trace.spans import UNITS, Spans
from pyv_npu.config import Config
from pyv_npu.observe.analysis.model import Analysis, analyse
from pyv_npu.observe.latency.table import Latency

if TYPE_CHECKING:
    from pyv_npu.results import RunResult
    from toolchain.codegen import Command


@dataclass(frozen=True)
class Shown:
    """One run."""

    json: Mapping[str, Any]
    """The run object of the JSON schema; `latency` and `npu` may be None."""
    config: Config
    spans: Spans
    latency: Latency | None = None
    analysis: Analysis | None = None
    """None where it is not known what the commands are."""

    @classmethod
    def of(
        cls, json: Mapping[str, Any], config: Config, batches: Iterable[Batch], commands: "Sequence[Command]",
        latency: Latency | None = None,
    ) -> "Shown":  # fmt: skip
        """A run of the commands of a model, analysed; without commands it is any run."""
        spans = Spans(batches, int(json["cycles"]))
        analysis = analyse(commands, spans, config.npu) if commands else None
        return cls(json, config, spans, latency, analysis)

    @property
    def name(self) -> str:
        """The mode; without a core the level."""
        return str(self.json["mode"] or self.json["sim_level"])

    @property
    def cycles(self) -> int:
        return int(self.json["cycles"])

    @property
    def engines(self) -> dict[str, int]:
        """Engines of each kind, of all clusters."""
        npu = self.config.npu
        return {kind.name.lower(): unit_counts(npu)[kind] * npu.clusters for kind in UNITS}


def shown(result: "RunResult", commands: "Sequence[Command]" = ()) -> Shown:
    """A run on the core; `commands`: of the model that it ran."""
    return Shown.of(result.json, result.config, result.events.kept(), commands, result.latency)
