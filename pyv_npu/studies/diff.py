"""Difference between two results, with its breakdown."""

import csv
import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from pyv_native.files import MAX_RESULT, check_input
from pyv_native.state import LATEST
from pyv_npu import manifest
from pyv_npu.config import Config
from pyv_npu.config.schema import sections_of
from pyv_npu.config.yaml_file import read_entries
from pyv_npu.errors import BadInputError, UsageError
from pyv_npu.studies.sweep.figures import FIGURES, at
from pyv_npu.studies.sweep.folder import CSV, POINTS, SWEEP, read_point
from pyv_npu.studies.sweep.table import ADDRESS, SHORT

RESULT, RECORD, METRICS = "result.json", "run.yaml", "metrics.csv"
REMEDY = "name a folder of --report or of a sweep, or a JSON file"
NAMED = 3
"""Maximum number of contributors in a sentence."""
UNCOMPARED = ("host", "uart", "error_log", "ticket_errors", "schema", "checks", "codes")
"""Parts of a result that are no figures, or that vary between equal runs."""

Run = Mapping[str, Any]
Number = int | float


@dataclass(frozen=True)
class LoadedResult:
    """Result of `--report` or a sweep: runs by name, and their configuration."""

    name: str
    runs: Mapping[str, Run]
    """`loose` and `tight` of a comparison, rows of a sweep, or "" for one run."""
    keys: Mapping[str, object] = field(default_factory=dict)
    """Configuration; empty if unknown."""
    record: Mapping[str, Any] = field(default_factory=dict)
    parts: Mapping[str, Mapping[str, Mapping[str, int]]] = field(default_factory=dict)
    """Run -> breakdown -> component of the NPU makespan -> cycles, from metrics.csv."""
    folder: Path | None = None
    """Folder of `--report`, with timeline.csv and latency.csv of each run."""


def load(path: Path) -> LoadedResult:
    """Load a folder of `--report`, a folder of a sweep, or the JSON file of a run. BadInputError, one line."""
    if path.is_dir():
        _check_written(path)
    if path.is_dir() and (path / POINTS).is_dir():
        return LoadedResult(str(path), dict(_rows(path)))
    file = path / RESULT if path.is_dir() else path
    try:
        runs = _check_runs(_runs(_document(file)))
    except OSError as error:
        raise BadInputError(f"{file}: {error.strerror}; {REMEDY}") from None
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        raise BadInputError(f"{file}: holds no result of a run ({error}); {REMEDY}") from None
    if not runs:
        raise BadInputError(f"{file}: holds no result of a run; {REMEDY}")
    if not path.is_dir():
        return LoadedResult(str(path), runs)
    entries = {entry.path: entry.value for entry in _record(path / RECORD)}
    record = entries.pop("record", None)
    tables = record if isinstance(record, dict) else {}
    parts = {name: value for name, value in tables.items() if isinstance(value, dict)}
    try:
        return LoadedResult(str(path), runs, entries, parts, _metrics(path / METRICS), path)
    except (OSError, ValueError, KeyError, TypeError, csv.Error) as error:
        raise BadInputError(
            f"{path / METRICS}: no table of metrics ({_reason(error)}); make the report again"
        ) from None


def _check_written(folder: Path) -> None:
    """Raise BadInputError when a file of a folder differs from its manifest."""
    contents = manifest.read(folder)
    lines = [] if contents is None else manifest.problems(folder, contents._replace(inputs={}))
    if lines:
        raise BadInputError(f"{folder}: {lines[0]}; make it again, or remove {manifest.FILE} if that is meant")


def _reason(error: Exception) -> str:
    """Return the text of an error, or its class name if it has none."""
    text = error.strerror if isinstance(error, OSError) else str(error)
    return text or type(error).__name__


ENERGY = {"energy.units_pj": "energy by unit, pJ (estimate)", "energy.roles_pj": "energy by tensor role, pJ (estimate)",
          "energy.layers_pj": "energy by layer, pJ (estimate)"}  # fmt: skip
"""Tables of energy -> name of their total."""
COUNTED = ("cycles_parts", "explanation.causes", "latency.reasons", "latency.reasons_prebuilt", *ENERGY)
"""Tables of numbers in a run."""
INTERVALS = "ci95"
"""Confidence intervals of a stage's percentiles, which are not compared."""
LISTED = ("npu.te_busy", "npu.ve_busy", "npu.dma_busy", "npu.bank_conflict_stall")
COUNTS = ("cycles", "npu.completed")
WORDS = ("mode", "sim_level", "program")


def _check_runs(runs: Mapping[str, Any]) -> dict[str, Run]:
    """Return the runs. TypeError, with the path, for a value of the wrong type."""

    def rule(path: str, holds: bool, expected: str) -> None:
        if not holds:
            raise TypeError(f"{path}: must be {expected}")

    for name, run in runs.items():
        head = f"{name}." if name else ""
        rule(name or "the file", isinstance(run, dict), "a table")
        for path in COUNTED:
            table = at(run, path)
            numbers = isinstance(table, dict) and all(map(_is_number, table.values()))
            rule(head + path, table is None or numbers, "a table of numbers")
        for path in LISTED:
            values = at(run, path)
            is_numbers = isinstance(values, list) and all(map(_is_number, values))
            rule(head + path, values is None or is_numbers, "a list of numbers")
        for path in COUNTS:
            value = at(run, path)
            rule(head + path, value is None or _is_number(value), "a number")
        for path in WORDS:
            rule(head + path, run.get(path) is None or isinstance(run[path], str), "a word")
        stages = at(run, "latency.stages")
        rule(f"{head}latency", run.get("latency") is None or isinstance(run["latency"], dict), "a table")
        rule(f"{head}latency.stages", stages is None or isinstance(stages, dict), "a table")
        for stage, points in (stages or {}).items():
            table = isinstance(points, dict) and points.get("n") is not None
            numbers = table and all(
                value is None or _is_number(value) for key, value in points.items() if key != INTERVALS
            )
            rule(f"{head}latency.stages.{stage}", points is None or numbers, "a table of numbers")
    return dict(runs)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _runs(document: Any) -> dict[str, Run]:
    """Return the run objects of a result."""
    if not isinstance(document, dict):
        return {}
    if "loose" in document and "tight" in document:
        return {mode: document[mode] for mode in ("loose", "tight") if document[mode]}
    return {"": document} if "cycles" in document else {}


def _record(path: Path) -> Iterator[Any]:
    if path.exists():
        yield from read_entries(path, sections_of(Config))


def _document(path: Path) -> Any:
    """Read a JSON file. OSError, ValueError, RecursionError."""
    check_input(path, MAX_RESULT)
    return json.loads(path.read_text(encoding="utf-8"), parse_int=_integer, parse_float=_finite, parse_constant=_finite)


def _integer(text: str) -> int:
    """Parse an integer of at most 64 bits."""
    if len(text) > 20 or abs(int(text)) > LATEST:
        raise ValueError(f"{text[:20]}: is beyond 64 bits")
    return int(text)


def _finite(text: str) -> float:
    if not math.isfinite(float(text)):
        raise ValueError(f"{text[:20]}: is no number")
    return float(text)


def _rows(folder: Path) -> Iterator[tuple[str, Run]]:
    """Yield the runs of a sweep, named by the values of their axes."""
    try:
        axes = _document(folder / SWEEP)["axes"]
        check_input(folder / CSV, MAX_RESULT)
        with (folder / CSV).open(encoding="utf-8", newline="") as file:
            rows = list(csv.DictReader(file))
    except (OSError, ValueError, KeyError, TypeError, RecursionError, csv.Error):
        raise BadInputError(f"{folder}: is a sweep without a table; let it come to its end") from None
    records = {path.stem[:SHORT]: path for path in (folder / POINTS).glob("*.json")}
    for row in rows:
        path = records.get(row.get(ADDRESS, ""))
        if path is not None:
            name = ", ".join(f"{axis} = {row.get(axis)}" for axis in axes)
            try:
                yield name, _check_runs({"": read_point(path)["result"]})[""]
            except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
                raise BadInputError(f"{path}: is no point of a sweep ({_reason(error)}); run the sweep again") from None


def _metrics(path: Path) -> dict[str, dict[str, dict[str, int]]]:
    """Read the breakdown of each run's makespan from metrics.csv: causes, and layers on the critical chain."""
    metrics: dict[str, dict[str, dict[str, int]]] = {}
    if path.exists():
        check_input(path, MAX_RESULT)
        with path.open(encoding="utf-8", newline="") as file:
            for row in csv.DictReader(file):
                if row["scope"] == "cause":
                    metrics.setdefault(row["run"], {}).setdefault(CAUSES, {})[row["name"]] = int(row["value"])
                elif row["scope"] == "layer" and row["metric"] == "chain":
                    metrics.setdefault(row["run"], {}).setdefault(LAYERS, {})[row["name"]] = int(row["value"])
    return metrics


# -- breakdowns of differences -----------------------------------------------------------------------------------------

CYCLES, CAUSES, LAYERS = "cycles of the run", "makespan of the NPU by cause", "makespan of the NPU by layer"
REASONS = {"reasons": "t_submit by reason, summed", "reasons_prebuilt": "t_submit_prebuilt by reason, summed"}


class FigureChange(NamedTuple):
    """Change of a figure between both results."""

    run: str
    figure: str
    before: Number
    after: Number

    @property
    def delta(self) -> Number:
        return self.after - self.before

    @property
    def share(self) -> float | None:
        """Change relative to the value before; None if that was 0."""
        return self.delta / self.before if self.before else None

    @property
    def text(self) -> str:
        share = "" if self.share is None else f", {self.share:+.2%}"
        return f"{_number(self.before)} to {_number(self.after)} ({_number(self.delta, '+')}{share})"


class Breakdown(NamedTuple):
    """Total in both results with its parts, whose changes add up to the change of the total."""

    run: str
    name: str
    total: FigureChange
    parts: tuple[FigureChange, ...]
    """Parts that changed, the largest change first."""

    @property
    def sentence(self) -> str:
        """Largest contributors; the rest follows as one number."""
        shown = self.parts[:NAMED]
        rest = self.total.delta - sum(part.delta for part in shown)
        names = [f"{part.figure} {_number(part.delta, '+')}" for part in shown]
        names += [f"all else {_number(rest, '+')}"] if rest else []
        head = f"{self.run}: " if self.run else ""
        return f"{head}{self.name} {self.total.text}: {', '.join(names)}"


def _number(value: Number, sign: str = "") -> str:
    return format(value, f"{sign},.6g" if isinstance(value, float) else f"{sign},")


def breakdowns(before: LoadedResult, after: LoadedResult) -> list[Breakdown]:
    """Return the breakdowns with a changed part."""
    result = []
    for name in _common(before, after):
        pairs = [_parts(side, name) for side in (before, after)]
        for part in pairs[0]:
            if part in pairs[1]:
                breakdown = _breakdown(name, part, pairs[0][part], pairs[1][part])
                result += [breakdown] if breakdown.parts else []
    return result


def _parts(loaded: LoadedResult, name: str) -> dict[str, Mapping[str, Number]]:
    """Return all breakdowns of a run by the name of their total."""
    run = loaded.runs[name]
    result: dict[str, Mapping[str, Number]] = {}
    if run.get("cycles_parts"):
        result[CYCLES] = {part.replace("_", " "): cycles for part, cycles in run["cycles_parts"].items()}
    result |= loaded.parts.get(name or run.get("mode") or run.get("sim_level") or "", {})
    if CAUSES not in result and at(run, "explanation.causes"):
        result[CAUSES] = run["explanation"]["causes"]
    for key, text in (*((f"latency.{key}", text) for key, text in REASONS.items()), *ENERGY.items()):
        if at(run, key):
            result[text] = at(run, key)
    return result


def _breakdown(run: str, name: str, before: Mapping[str, Number], after: Mapping[str, Number]) -> Breakdown:
    changes = [
        FigureChange(run, part, before.get(part, 0), after.get(part, 0)) for part in dict.fromkeys((*before, *after))
    ]
    total = FigureChange(run, name, sum(before.values()), sum(after.values()))
    changed = sorted((change for change in changes if change.delta), key=lambda change: -abs(change.delta))
    return Breakdown(run, name, total, tuple(changed))


def changes(before: LoadedResult, after: LoadedResult) -> list[FigureChange]:
    """Return the numbers in both results that differ, in the order of the results."""
    result = []
    for name in _common(before, after):
        old, new = dict(_leaves(before.runs[name])), dict(_leaves(after.runs[name]))
        result += [
            FigureChange(name, path, old[path], new[path]) for path in old if path in new and old[path] != new[path]
        ]
    return result


def _common(before: LoadedResult, after: LoadedResult) -> list[str]:
    return [name for name in before.runs if name in after.runs]


def _leaves(value: Any, path: str = "") -> Iterator[tuple[str, Number]]:
    if isinstance(value, Mapping):
        for name, item in value.items():
            if name not in UNCOMPARED:
                yield from _leaves(item, f"{path}.{name}" if path else str(name))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _leaves(item, f"{path}.{index}")
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield path, value


class SettingChange(NamedTuple):
    """Setting in which the two runs differ."""

    kind: str
    """key, version, input, or run: a run of one result only."""
    name: str
    before: object
    after: object


def settings(before: LoadedResult, after: LoadedResult) -> list[SettingChange]:
    """Return keys, versions and inputs that differ, if both results record them, and runs of one result only."""
    result = []
    for kind, old, new in (
        ("key", before.keys, after.keys),
        ("version", before.record.get("versions", {}), after.record.get("versions", {})),
        ("input", before.record.get("inputs_sha256", {}), after.record.get("inputs_sha256", {})),
    ):
        for name in dict.fromkeys((*old, *new)) if old and new else ():
            if old.get(name) != new.get(name):
                result.append(SettingChange(kind, name, old.get(name), new.get(name)))
    for name in dict.fromkeys((*before.runs, *after.runs)):
        if (name in before.runs) != (name in after.runs):
            result.append(
                SettingChange("run", name, *("there" if name in side.runs else None for side in (before, after)))
            )
    return result


class Difference:
    """Difference between two results."""

    def __init__(self, before: LoadedResult, after: LoadedResult) -> None:
        self.before, self.after = before, after
        self.settings = settings(before, after)
        self.changes = changes(before, after)
        self.breakdowns = breakdowns(before, after)

    @property
    def common(self) -> list[str]:
        """Names of the runs in both results."""
        return _common(self.before, self.after)

    @property
    def sentence(self) -> str:
        """Main difference: the run whose cycles changed most, with the breakdown of its change."""
        changed = [change for change in self.changes if change.figure == "cycles"]
        if not changed:
            return "no cycle differs" + ("" if self.changes else ", and no other figure")
        largest = max(changed, key=lambda change: abs(change.share or 0.0))
        candidates = [
            breakdown
            for breakdown in self.breakdowns
            if breakdown.run == largest.run and breakdown.name in (CYCLES, CAUSES)
        ]
        head = f"{largest.run}: " if largest.run else ""
        return next((candidate.sentence for candidate in candidates), f"{head}cycles {largest.text}")

    def to_json(self, violations: Sequence[tuple[str, FigureChange]]) -> dict[str, Any]:
        """Return the JSON object of `pyv-npu diff --json`."""
        return {
            "schema": 1,
            "a": self.before.name,
            "b": self.after.name,
            "sentence": self.sentence,
            "settings": [setting._asdict() for setting in self.settings],
            "changes": [_json(change) for change in self.changes],
            "breakdowns": [
                {
                    **breakdown._asdict(),
                    "total": _json(breakdown.total),
                    "parts": [_json(part) for part in breakdown.parts],
                }
                for breakdown in self.breakdowns
            ],
            "beyond": [{"limit": text, **_json(change)} for text, change in violations],
        }


def _json(change: FigureChange) -> dict[str, Any]:
    return {**change._asdict(), "delta": change.delta, "share": change.share}


# -- thresholds --------------------------------------------------------------------------------------------------------

FORM = "'cycles > +2%', 't_submit_p99 > +10' or 'loose.cycles > 100000'"


class Threshold(NamedTuple):
    """Limit such as `FIGURE > +2%`, which fails if it holds for the second result."""

    text: str
    run: str | None
    """None: every run."""
    figure: str
    operator: str
    limit: float
    kind: str
    """Compared quantity: `share` (relative change), `delta` (change) or `value` (second result)."""

    def holds(self, change: FigureChange) -> bool:
        """Check whether a figure exceeds the limit."""
        if self.kind == "value":
            value: float | None = change.after
        else:
            value = change.delta if self.kind == "delta" else change.share
        if value is None:  # from 0: any growth exceeds every share
            value = float("inf") if change.delta > 0 else 0.0 if not change.delta else float("-inf")
        return {">": value > self.limit, "<": value < self.limit, ">=": value >= self.limit,
                "<=": value <= self.limit}[self.operator]  # fmt: skip


def threshold(text: str, runs: Sequence[str] = ()) -> Threshold:
    """Parse a limit. UsageError for invalid text. `runs`: names that may prefix the figure."""
    match = re.fullmatch(r"\s*([\w.]+)\s*(>=|<=|>|<)\s*([+-]?)(\d+(?:\.\d+)?)\s*(%?)\s*", text)
    if match is None:
        raise UsageError(f"--fail-if {text}: must have the form {FORM}")
    figure, operator, sign, number, percent = match.groups()
    head, _, rest = figure.partition(".")
    run, figure = (head, rest) if rest and head in runs else (None, figure)
    if percent and not sign:
        raise UsageError(f"--fail-if {text}: a share is one of what it was: write {operator} +{number}%, or -{number}%")
    limit = float(sign + number) / (100 if percent else 1)
    return Threshold(text.strip(), run, figure, operator, limit, "share" if percent else "delta" if sign else "value")


def failures(
    before: LoadedResult, after: LoadedResult, limits: Sequence[Threshold]
) -> list[tuple[Threshold, FigureChange]]:
    """Return changes that exceed a limit. UsageError for a figure that no common run has."""
    result = []
    for limit in limits:
        candidates = [change for name in _common(before, after) if limit.run in (None, name)
                 for change in _figure(before, after, name, limit.figure)]  # fmt: skip
        if not candidates:
            raise UsageError(f"--fail-if {limit.text}: no run of both results has the figure {limit.figure}")
        result += [(limit, change) for change in candidates if limit.holds(change)]
    return result


def _figure(before: LoadedResult, after: LoadedResult, run: str, name: str) -> Iterator[FigureChange]:
    clocks = [side.keys.get("npu.clock_hz") for side in (before, after)]
    values = []
    for loaded, clock in zip((before, after), clocks, strict=True):
        record = {"result": loaded.runs[run], "derived": {"clock_hz": clock}}
        values.append(FIGURES[name].of(record) if name in FIGURES else at(record, f"result.{name}"))
    old, new = values
    if isinstance(old, int | float) and isinstance(new, int | float):
        yield FigureChange(run, name, old, new)
