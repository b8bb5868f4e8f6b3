"""The same workload served in several ways, side by side: one table, one page."""

import argparse
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any

from pyv_npu.config import Effective
from pyv_npu.errors import PyvNpuError
from pyv_npu.result import Result
from pyv_npu.serving.figures import ledger_csv, requests_csv
from pyv_npu.serving.page import page
from pyv_npu.serving.study import Products, ServedWorkload
from pyv_npu.text import columns
from toolchain.errors import ModelError


@dataclass(frozen=True)
class Point:
    """Serving configuration of a comparison."""

    values: Mapping[str, str]
    args: argparse.Namespace
    effective: Effective

    @property
    def name(self) -> str:
        return " ".join(f"{key}={value}" for key, value in self.values.items())


@dataclass
class Comparison:
    """Results of all serving configurations."""

    workload: str
    made: dict[str, ServedWorkload] = field(default_factory=dict)
    results: dict[str, Result[ServedWorkload]] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    """Way -> why it cannot serve: weights that do not fit, no room for one request."""
    _products: Products = field(default_factory=dict)

    def add(self, point: Point, serve: Callable[[Products], ServedWorkload]) -> None:
        """Serve in another way."""
        try:
            self.made[point.name] = served = serve(self._products)
            config = point.effective.config
            self.results[point.name] = Result(config.run.program, config, served, served.run.end)
        except (PyvNpuError, ModelError) as error:
            self.failed[point.name] = str(error)

    @property
    def json(self) -> dict[str, Any]:
        runs = {name: self.results[name].json for name in self.made}
        events = "".join(run["events_sha256"] for run in runs.values())
        return {"workload": self.workload, "runs": runs, "failed": dict(self.failed),
                "events_sha256": sha256(events.encode()).hexdigest()}  # fmt: skip

    @property
    def text(self) -> str:
        """A row for each way."""
        heads = ("", "tokens/s", "TTFT P50", "P99", "TPOT P50", "P99", "E2E P50", "P99", "goodput", "preempted",
                 "blocks", "control", "error")  # fmt: skip
        rows = []
        for name, run in self.made.items():
            made = run.figures
            cells = [name, f"{made['output_tokens_per_second']:,.2f}"]
            for figure in ("ttft", "tpot", "e2e"):
                found = made[f"{figure}_ns"]
                cells += ["-", "-"] if found is None else [f"{found[key] / 1e6:,.1f}" for key in ("p50", "p99")]
            cells += ["-" if made["goodput"] is None else f"{made['goodput']:,.3f}"]
            cells += [
                f"{made['preemptions']:,}",
                f"{run.serving.scheduler.blocks:,}",
                "-" if run.control is None else f"{run.control:.3%}",
                "-" if run.worst is None else f"{run.worst:.2%}",
            ]
            rows.append(cells)
        lines = [f"{self.workload}: times in ms, goodput in requests/s, control in TPOT"]
        if rows:
            lines.append(columns(heads, rows))
        lines += [f"{name}: {why}" for name, why in self.failed.items()]
        return "\n".join(lines) + "\n"

    def files(self) -> dict[str, str]:
        """Return the report page, and the tables of each configuration by its index."""
        made = {"report.html": page(list(self.made.values()), list(self.made), self.failed)}
        for index, run in enumerate(self.made.values(), 1):
            kv = run.serving.kv_bytes
            made[f"requests-{index}.csv"] = requests_csv(run.run, run.serving.shape.name, run.hz, kv)
            made[f"steps-{index}.csv"] = ledger_csv(run.run.ledger)
        return made
