"""Notebook display of a run: its bottleneck, its cycles by layer and phase, and its tables as pandas data frames."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from pyv_npu.errors import UsageError
from pyv_npu.observe.analysis.metrics import Metric, metrics
from pyv_npu.report.page import render_fragment
from pyv_npu.report.run_page import first_screen
from pyv_npu.report.timeline import LATENCY_COLUMNS, TimelineRow, latency_columns, named
from pyv_npu.result import Result
from pyv_npu.run_sections import run_sections, summary
from pyv_npu.sections import Details, Section, Table, Verdict
from toolchain.errors import require_extra

if TYPE_CHECKING:
    import pandas


def mimebundle(result: Result[Any]) -> dict[str, str]:
    """Return text by MIME type for a notebook, in colours of its theme."""
    return {"text/plain": summary(result), "text/html": html(result)}


def html(result: Result[Any]) -> str:
    """Format the first screen of a report and the sections of the terminal text; layers are folded."""
    text, tiles = first_screen([result])
    first, *rest = run_sections(result)
    if result.analysis is not None:
        layer_rows = [(layer.name, " ".join(layer.operations), layer.active) for layer in result.analysis.layers]
        table = Table(("layer", "operations", "active cycles"), layer_rows)
        rest.append(Section("layers", "", [Details(f"layers of {result.name} ({len(layer_rows)})", table)]))
    rest = [
        section._replace(parts=[part for part in section.parts if not isinstance(part, Verdict)]) for section in rest
    ]
    return render_fragment([first._replace(parts=[Verdict(text), *first.parts]), *rest], tiles)


# -- tables ------------------------------------------------------------------------------------------------------------


def to_dataframe(result: Result[Any], table: str) -> "pandas.DataFrame":
    """Return a table of a run as a data frame. UsageError: unknown table, or the level lacks it. MissingExtraError:
    pandas is not installed."""
    columns_of = TABLES.get(table)
    if columns_of is None:
        raise UsageError(f"to_dataframe({table!r}): there is no such table; choose from {', '.join(TABLES)}")
    with require_extra("notebook", "to_dataframe"):
        import pandas
    return pandas.DataFrame(columns_of(result))


def _timeline(result: Result[Any]) -> dict[str, list[Any]]:
    return _columns(TimelineRow._fields, named(result.spans.rows, result.layer_names))


def _metrics(result: Result[Any]) -> dict[str, list[Any]]:
    analysis = _analysis(result)
    return _columns(Metric._fields, metrics(analysis, result.json, result.config, result.spans))


def _layers(result: Result[Any]) -> dict[str, list[Any]]:
    table_rows = [asdict(layer) for layer in _analysis(result).layers]
    for layer in table_rows:
        layer["operations"] = " ".join(layer["operations"])
        layer |= {f"{kind}_busy": cycles for kind, cycles in layer.pop("busy").items()}
        layer |= {f"{role}_bytes": size for role, size in layer.pop("roles").items()}
        shares = layer.pop("chain")
        layer["makespan"] = sum(shares.values())
        layer["main_cause"] = max(shares, key=lambda cause: shares[cause]).name.lower() if shares else ""
        layer.pop("bits")
    names = list(table_rows[0]) if table_rows else []
    return {name: [layer[name] for layer in table_rows] for name in names}


def _submissions(result: Result[Any]) -> dict[str, list[Any]]:
    """Return the columns of latency.csv; a missing timestamp is None."""
    core = result.on_core("submissions")
    return dict(zip(LATENCY_COLUMNS, latency_columns(core.latency.submissions, core.program), strict=True))


def _analysis(result: Result[Any]) -> Any:
    if result.analysis is None:
        raise UsageError(f"no layers: {result.name} has no time, or the commands are not known; run at CA_HYBRID")
    return result.analysis


def _columns(names: Sequence[str], records: Iterable[Sequence[Any]]) -> dict[str, list[Any]]:
    lists = [list(column) for column in zip(*records, strict=True)] or [[] for _ in names]
    return dict(zip(names, lists, strict=True))


TABLES: Mapping[str, Callable[[Result[Any]], dict[str, list[Any]]]] = {
    "timeline": _timeline,
    "layers": _layers,
    "metrics": _metrics,
    "submissions": _submissions,
}
"""Name of a table -> function that returns its columns."""
