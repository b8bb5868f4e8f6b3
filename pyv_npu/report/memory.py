"""Sections of a page about bytes: traffic by role, keys and values by token and by layer, capacity."""

from collections.abc import Mapping, Sequence
from typing import Any

from pyv_npu.observe.analysis.layers import Layer
from pyv_npu.observe.analysis.model import Analysis
from pyv_npu.observe.analysis.traffic import ROLES
from pyv_npu.report.charts import Line, lines
from pyv_npu.report.pictures import blocks
from pyv_npu.result import Runs
from pyv_npu.sections import Cell, Details, Heading, Note, Part, Table, Value
from pyv_npu.units import quantity, scale_of

NAMES = {"weight": "weights", "activation": "activations", "kv": "keys and values", "total": "all transfers"}
SIZES = ("read", "written", "bytes_total", "bytes_aligned", "utilization")
SIDES = (("bytes_k", "keys"), ("bytes_v", "values"))
MANY = 64
"""Maximum number of tokens on the page; kv_tokens.csv has all."""


def traffic(runs: Runs, analyses: Mapping[str, Analysis]) -> list[Part]:
    """Return the bytes of each role, and of each layer."""
    rows: list[list[Value]] = [[name, role, *(run["traffic"][role][size] for size in SIZES)]
            for name, run in runs.items() if run.get("traffic")
            for role in NAMES if run["traffic"]["total"]["bytes_total"]]  # fmt: skip
    if not rows:
        return []
    text = (
        "Bytes that the DMA moved. read, written and bytes_aligned count whole accesses to DRAM; bytes_total is data."
    )
    fetched = ", ".join(
        f"{name}: {run['traffic']['descriptors']:,}" for name, run in runs.items() if run.get("traffic")
    )
    parts: list[Part] = [
        Table(("run", "role", *SIZES), rows, units=("", "", *["bytes"] * 4, "share"), file="traffic.csv",
              figures="{0}.traffic.{1}.{head}"),
        Note(f"{text} Descriptors fetched beside them, in bytes: {fetched}.", "muted"),
    ]  # fmt: skip
    for name, analysis in analyses.items():
        layers = _by_layer("layer", {layer.name: [layer] for layer in analysis.layers}, name)
        kinds = blocks(analysis.layers)
        table = [layers] if kinds is None else [
            _by_layer("layers of a kind", kinds), Details(f"every layer ({len(analysis.layers)})", layers)]  # fmt: skip
        parts += [Heading(f"by layer, {name}"), *table]
    return parts


def _by_layer(head: str, groups: Mapping[str, Sequence[Layer]], run: str = "") -> Table:
    rows: list[list[Value]] = [[name, *(sum(layer.roles[role] for layer in group) for role in ROLES)]
                               for name, group in groups.items()]  # fmt: skip
    heads = (head, *(f"{NAMES[role]}, aligned" for role in ROLES))
    figures = run and f"{run}.traffic.{{0}}.{{head}}"
    return Table(heads, rows, units=("", *["bytes" for _ in ROLES]), figures=figures)


# -- keys and values ---------------------------------------------------------------------------------------------------


def _figures(run: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return the object with the keys of `pyv_npu.workloads.kv_figures`."""
    return next((run[key] for key in ("llm", "generate") if "kv_layers" in run.get(key, {})), None)


def keys_and_values(runs: Runs) -> list[Part]:
    """Return the capacity of each run, the traffic of each token, and the traffic and footprint of each layer."""
    parts: list[Part] = []
    for name, run in runs.items():
        figures = _figures(run)
        if figures is not None:
            parts += [Heading(name), *_capacity(name, figures), *_tokens(name, figures), _layers(name, figures)]
            parts += _errors(name, figures.get("kv_errors", ()))
    return parts


def _errors(name: str, errors: Sequence[Mapping[str, Any]]) -> list[Part]:
    """Return the errors of narrow keys and values relative to FP32, a row for each layer."""
    rows = [[Cell(f"{value:.2e}" if isinstance(value, float) else str(value), f"{name}.kv_error.{row['layer']}.{key}")
             for key, value in row.items()] for row in errors]  # fmt: skip
    return [Table([key.replace("_", " ") for key in errors[0]], rows)] if rows else []


def _capacity(name: str, figures: Mapping[str, Any]) -> list[Part]:
    sizes = figures.get("kv_capacity")
    texts = {
        "t_max": "tokens that the caches hold (T_max)", "t_max_limit": "the largest T_max that fits DRAM",
        "kv_bytes_per_token": "a token, all layers", "dram_bytes": "DRAM", "other_bytes": "of it for all else",
    }  # fmt: skip
    if sizes is None:
        return []
    rows = [(text, Cell(quantity(sizes[key], "bytes" if "bytes" in key else ""), f"{name}.capacity.{key}"))
            for key, text in texts.items()]  # fmt: skip
    return [Table(("capacity", ""), rows)]


def _tokens(name: str, figures: Mapping[str, Any]) -> list[Part]:
    tokens = figures["kv_tokens"]
    parts: list[Part] = []
    if len(tokens) > 1:
        scale = scale_of([token[key] for token in tokens for key, _ in SIDES], "bytes")
        curves = [Line(text, [(token["token"], token[key] / scale.factor) for token in tokens]) for key, text in SIDES]
        caption = "between DRAM and scratchpad in the step of each token"
        title = f"Keys and values by token, {name}"
        parts.append(lines(f"kv_tokens_{name}", title, caption, curves, "token", scale.unit))
    rows = [(str(token["token"]), *(token[key] for key, _ in SIDES)) for token in tokens[:MANY]]
    if rows:
        heads = ("last token of the step", *(f"{text} moved" for _, text in SIDES))
        figures_of = f"{name}.token.{{0}}.{{head}}"
        parts.append(Table(heads, rows, units=("", "bytes", "bytes"), figures=figures_of))
    if len(tokens) > MANY:
        parts.append(Note(f"The first {MANY} of {len(tokens)}; all of them are in result.json.", "muted"))
    return parts


def _layers(name: str, figures: Mapping[str, Any]) -> Table:
    columns = {
        "kv_bytes_read": "traffic: read", "kv_bytes_written": "traffic: written",
        "kv_bytes_total": "footprint: tokens there", "kv_bytes_alloc": "footprint: T_max",
    }  # fmt: skip
    rows: list[list[Value]] = [
        [str(layer["layer"]), Cell(str(layer["qbits_kv"])), *(layer[key] for key in columns)]
        for layer in figures["kv_layers"]
    ]
    units = ("", "", *["bytes" for _ in columns])
    return Table(("layer", "bits", *columns.values()), rows, units=units, figures=f"{name}.kv_layer.{{0}}.{{head}}")
