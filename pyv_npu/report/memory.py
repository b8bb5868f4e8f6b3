"""What report.html says about bytes: traffic by role, keys and values by token and by layer, capacity."""

from collections.abc import Mapping, Sequence
from typing import Any

from pyv_npu.observe.analysis.model import Analysis
from pyv_npu.observe.analysis.traffic import ROLES
from pyv_npu.report.charts import Line, lines
from pyv_npu.report.page import Cell, Heading, Note, Part, Table
from pyv_npu.units import number, scale_of

Runs = Mapping[str, Mapping[str, Any]]
"""The run objects of the JSON schema, by the name of the run."""
NAMES = {"weight": "weights", "activation": "activations", "kv": "keys and values", "total": "all transfers"}
SIZES = ("read", "written", "bytes_total", "bytes_aligned", "utilization")
SIDES = (("bytes_k", "keys"), ("bytes_v", "values"))
MANY = 64
"""Tokens that the page lists; all of them are in kv_tokens.csv."""


def traffic(runs: Runs, analyses: Mapping[str, Analysis]) -> list[Part]:
    """Bytes of each role, and of each layer."""
    rows = [
        [Cell(name), Cell(NAMES[role], kind="text"),
         *(Cell(number(run["traffic"][role][size]), f"{name}.traffic.{role}.{size}") for size in SIZES)]
        for name, run in runs.items() if run.get("traffic")
        for role in NAMES if run["traffic"]["total"]["bytes_total"]
    ]  # fmt: skip
    if not rows:
        return []
    heads = ("run", "role", "read", "written", "bytes_total", "bytes_aligned", "utilization")
    text = (
        "Bytes that the DMA moved. read, written and bytes_aligned count whole accesses to DRAM; bytes_total is data."
    )
    fetched = ", ".join(
        f"{name}: {run['traffic']['descriptors']:,}" for name, run in runs.items() if run.get("traffic")
    )  # fmt: skip
    parts: list[Part] = [
        Table(heads, rows),
        Note(f"{text} Descriptors fetched beside them, in bytes: {fetched}.", "muted"),
    ]
    for name, analysis in analyses.items():
        parts += [Heading(f"by layer, {name}"), _by_layer(name, analysis)]
    return parts


def _by_layer(name: str, analysis: Analysis) -> Table:
    rows = [
        [Cell(layer.name, kind="text"),
         *(Cell(number(layer.roles[role]), f"{name}.traffic.{layer.name}.{role}") for role in ROLES)]
        for layer in analysis.layers
    ]  # fmt: skip
    return Table(("layer", *(f"{NAMES[role]}, aligned bytes" for role in ROLES)), rows)


# -- keys and values ---------------------------------------------------------------------------------------------------


def _figures(run: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The object with the keys of `pyv_npu.workloads.kv_figures`."""
    return next((run[key] for key in ("llm", "generate") if "kv_layers" in run.get(key, {})), None)


def keys_and_values(runs: Runs) -> list[Part]:
    """Of each run: how many tokens fit, what each token moved, and traffic and footprint of each layer."""
    parts: list[Part] = []
    for name, run in runs.items():
        figures = _figures(run)
        if figures is not None:
            parts += [Heading(name), *_capacity(name, figures), *_tokens(name, figures), _layers(name, figures)]
            parts += _errors(name, figures.get("kv_errors", ()))
    return parts


def _errors(name: str, errors: Sequence[Mapping[str, Any]]) -> list[Part]:
    """What the widths cost: relative errors against FP32, a row for each layer."""
    rows = [
        [Cell(f"{value:.2e}" if isinstance(value, float) else str(value), f"{name}.kv_error.{row['layer']}.{key}")
         for key, value in row.items()]
        for row in errors
    ]  # fmt: skip
    return [Table([key.replace("_", " ") for key in errors[0]], rows)] if rows else []


def _capacity(name: str, figures: Mapping[str, Any]) -> list[Part]:
    found = figures.get("kv_capacity")
    if found is None:
        return []
    texts = {
        "t_max": "tokens that the caches hold (T_max)", "t_max_limit": "the largest T_max that fits DRAM",
        "kv_bytes_per_token": "bytes of one token, all layers", "dram_bytes": "DRAM, bytes",
        "other_bytes": "of it for all else, bytes",
    }  # fmt: skip
    rows = [
        [Cell(text, kind="text"), Cell(number(found[key]), f"{name}.capacity.{key}")] for key, text in texts.items()
    ]
    return [Table(("capacity", ""), rows)]


def _tokens(name: str, figures: Mapping[str, Any]) -> list[Part]:
    moved = figures["kv_tokens"]
    parts: list[Part] = []
    if len(moved) > 1:
        scale = scale_of([one[key] for one in moved for key, _ in SIDES], "bytes")
        curves = [Line(text, [(one["token"], one[key] / scale.factor) for one in moved]) for key, text in SIDES]
        caption = "between DRAM and scratchpad in the step of each token"
        title = f"Keys and values by token, {name}"
        parts.append(lines(f"kv_tokens_{name}", title, caption, curves, "token", scale.unit))
    rows = [
        [Cell(number(one["token"])),
         *(Cell(number(one[key]), f"{name}.token.{one['token']}.{key}") for key, _ in SIDES)]
        for one in moved[:MANY]
    ]  # fmt: skip
    if rows:
        parts.append(Table(("last token of the step", "keys moved, bytes", "values moved, bytes"), rows))
    if len(moved) > MANY:
        parts.append(Note(f"The first {MANY} of {len(moved)}; all of them are in result.json.", "muted"))
    return parts


def _layers(name: str, figures: Mapping[str, Any]) -> Table:
    columns = {
        "kv_bytes_read": "traffic: read", "kv_bytes_written": "traffic: written",
        "kv_bytes_total": "footprint: tokens there", "kv_bytes_alloc": "footprint: T_max",
    }  # fmt: skip
    rows = [
        [Cell(number(layer["layer"])), Cell(str(layer["qbits_kv"])),
         *(Cell(number(layer[key]), f"{name}.kv_layer.{layer['layer']}.{key}") for key in columns)]
        for layer in figures["kv_layers"]
    ]  # fmt: skip
    return Table(("layer", "bits", *(f"{text}, bytes" for text in columns.values())), rows)


def traffic_rows(runs: Runs) -> Sequence[Sequence[object]]:
    """Rows of traffic.csv."""
    return [
        (name, role, *(run["traffic"][role][size] for size in SIZES))
        for name, run in runs.items() if run.get("traffic")
        for role in NAMES
    ]  # fmt: skip


CSV_HEADS = ("run", "role", *SIZES)
