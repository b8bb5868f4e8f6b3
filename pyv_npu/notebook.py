"""How a run shows itself in a notebook: what limits it, where its cycles lie, and its tables as pandas' data frames."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from html import escape
from typing import TYPE_CHECKING, Any

from pyv_npu.errors import UsageError
from pyv_npu.observe.analysis.metrics import Metric, metrics
from pyv_npu.report.layers import causes
from pyv_npu.report.timeline import LATENCY_COLUMNS, Row, latency_columns, rows
from pyv_npu.result import Result
from pyv_npu.tables import summary
from pyv_npu.text import html_table
from pyv_npu.units import number
from pyv_npu.verdict import cycles_table, key_figures, sentences
from toolchain.errors import require_extra

if TYPE_CHECKING:
    import pandas

STYLE = "border-left:4px solid #1f6fb4;padding:2px 14px;margin:4px 0;max-width:60em"


def mimebundle(result: Result[Any]) -> dict[str, str]:
    """MIME type -> text: what a notebook shows, in the colours of its theme."""
    return {"text/plain": summary(result), "text/html": html(result)}


def html(result: Result[Any]) -> str:
    """A heading, the sentences of a report's top, and the table of cycles; layers are folded."""
    run = result.json
    known = {} if result.analysis is None else {result.name: causes(result.analysis)}
    said = sentences({result.name: run}, known) if run["cycles"] else []
    facts = [f"{run['sim_level']}, preset {run['preset']}"]
    if result.cycles is not None:
        facts.append(f"{result.cycles:,} core cycles")
    if "model" in run:
        facts.append("outputs as the ONNX reference" if result.correct else "outputs DIFFER from the ONNX reference")
    parts = [f"<b>{escape(result.program)}</b>: {escape('; '.join(facts))}", *(escape(text) for text in said)]
    shown = f'<div style="{STYLE}">{"".join(f"<p>{part}</p>" for part in parts)}</div>'
    if result.cycles is not None:
        analyses = {} if result.analysis is None else {result.name: result.analysis}
        figures = key_figures({result.name: run}, {result.name: result.config}, analyses)
        shown += html_table(("figure", "value"), [(figure.text, figure.value) for figure in figures])
    lines = cycles_table({result.name: run}, {result.name: result.without_firmware})
    if lines:
        shown += html_table(
            ("core cycles", ""),
            [("\u2003" * line.depth + line.name, number(line.cycles[result.name])) for line in lines],
        )
    if result.analysis is not None:
        each = [(one.name, " ".join(one.operations), number(one.active)) for one in result.analysis.layers]
        table = html_table(("layer", "operations", "active cycles"), each)
        shown += f"<details><summary>layers ({len(each)})</summary>{table}</details>"
    return shown


# -- tables ------------------------------------------------------------------------------------------------------------


def to_dataframe(result: Result[Any], table: str) -> "pandas.DataFrame":
    """Makes a data frame of a table of a run. UsageError: no such table, or the level lacks it. MissingExtraError:
    pandas is not installed."""
    columns_of = TABLES.get(table)
    if columns_of is None:
        raise UsageError(f"to_dataframe({table!r}): there is no such table; choose from {', '.join(TABLES)}")
    with require_extra("notebook", "to_dataframe"):
        import pandas
    return pandas.DataFrame(columns_of(result))


def _timeline(result: Result[Any]) -> dict[str, list[Any]]:
    return _columns(Row._fields, rows(result.batches, result.layer_names))


def _metrics(result: Result[Any]) -> dict[str, list[Any]]:
    analysis = _analysis(result)
    return _columns(Metric._fields, metrics(analysis, result.json, result.config, result.spans))


def _layers(result: Result[Any]) -> dict[str, list[Any]]:
    found = [asdict(layer) for layer in _analysis(result).layers]
    for layer in found:
        layer["operations"] = " ".join(layer["operations"])
        layer |= {f"{kind}_busy": cycles for kind, cycles in layer.pop("busy").items()}
        layer |= {f"{role}_bytes": size for role, size in layer.pop("roles").items()}
        spent = layer.pop("chain")
        layer["makespan"] = sum(spent.values())
        layer["main_cause"] = max(spent, key=lambda cause: spent[cause]).name.lower() if spent else ""
        layer.pop("bits")
    names = list(found[0]) if found else []
    return {name: [layer[name] for layer in found] for name in names}


def _submissions(result: Result[Any]) -> dict[str, list[Any]]:
    """As latency.csv: a stamp that was not seen is None."""
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
"""Name -> the columns of the table."""
