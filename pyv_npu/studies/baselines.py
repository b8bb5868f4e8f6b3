"""Figures of runs in files, compared exactly: runs are deterministic, so every difference has a cause."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyv_native.files import write_text

if TYPE_CHECKING:
    from pyv_npu.result import Result

KEYS = ("exit_code", "stop_reason", "cycles", "instret", "latency", "npu", "events_sha256")
SHOWN = 10
"""Maximum number of differences in a message."""


class Baseline:
    """Baseline file: a list with an object for each call of `check`."""

    def __init__(self, path: Path, update: bool) -> None:
        self._path = path
        self._update = update
        self._figures: list[dict[str, Any]] = []

    def check(self, run: "Result[Any]", *keys: str) -> None:
        """Raise AssertionError when a figure of `run.json` differs from the file, or the file lacks this run."""
        figures = json.loads(json.dumps({key: run.json[key] for key in keys or KEYS}))
        self._figures.append(figures)
        if self._update:
            return
        baseline = json.loads(self._path.read_text(encoding="utf-8")) if self._path.exists() else []
        if len(baseline) < len(self._figures):
            raise AssertionError(f"{self._path}: no baseline of this run; pytest --update-baselines writes it")
        deviations = list(differences(baseline[len(self._figures) - 1], figures))
        if deviations:
            more = [f"... and {len(deviations) - SHOWN} more"] if len(deviations) > SHOWN else []
            lines = "\n".join([*deviations[:SHOWN], *more])
            raise AssertionError(f"{self._path}: if it is right: pytest --update-baselines\n{lines}")

    def close(self) -> None:
        """Write the file if baselines are updated."""
        if self._update and self._figures:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            write_text(self._path, json.dumps(self._figures, indent=2) + "\n")


def differences(earlier: Any, now: Any, path: str = "") -> Iterator[str]:
    """Yield a line like `latency.stages.t_submit.p50: 39, was 38` for every leaf that differs."""
    if isinstance(earlier, dict) and isinstance(now, dict):
        for key in dict.fromkeys((*earlier, *now)):
            yield from differences(earlier.get(key), now.get(key), f"{path}.{key}" if path else key)
    elif earlier != now:
        yield f"{path}: {now}, was {earlier}"
