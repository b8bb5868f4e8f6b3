"""Sections of `pyv-npu reproduce chained-ve`: the paper's table, its experiment, charts and tables of the sweep."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from npu_device.cost.dataflow import Engines, run
from pyv_npu.csv_table import csv_text
from pyv_npu.report.charts import Line, cells, lines
from pyv_npu.sections import Cell, Chart, Details, Facts, Heading, Note, Part, Section, Table, Tile
from pyv_npu.studies.reproductions import Reproduction
from pyv_npu.studies.reproductions.chained_ve import (
    FORMS,
    LENGTHS,
    PAPER,
    PAPER_ENGINES,
    PAPER_LENGTH,
    SIMULATED,
    SIZES,
    TABLE_SIZES,
)
from pyv_npu.units import number

PAPER_SIZE = f"L = {PAPER_LENGTH}, T = {PAPER_ENGINES}"
SHOWN_ENGINES = 4
"""Number of engines in the picture of the dataflow."""
Rows = Sequence[Mapping[str, Any]]


def dataflow_picture(engines: int = SHOWN_ENGINES) -> Chart:
    """Draw a simulated diagonal tile: the query and key of each engine in each cycle."""
    tile = next(run(Engines(engines), 2 * engines))
    rows = {
        f"engine {engine}": [
            (f"q{query} k{key}", 0.25 if query < engines else 0.75)
            for query, key in zip(tile.query[:, engine].tolist(), tile.key[:, engine].tolist(), strict=True)
        ]
        for engine in range(engines)
    }
    caption = (
        f"queries and keys 0..{2 * engines - 1}, each pair with key <= query once; dark: queries of the second buffer"
    )
    return cells(
        "dataflow",
        f"A diagonal tile on {engines} engines",
        caption,
        rows,
        [str(cycle) for cycle in range(len(tile.query))],
        "cycle",
    )


def pictures(json: Mapping[str, Any]) -> dict[str, Chart]:
    """Return the charts by name."""
    name, sweep, grid = json["experiment"]["shape"], json["sweep"], json["grid"]
    gains = [row["gain"] - 1 for row in sweep]
    heat = {
        f"L = {length:,}": [
            (f"{100 * (row['gain'] - 1):.1f} %", (row["gain"] - 1) / (max(gains) or 1))
            for row in sweep if row["length"] == length
        ]
        for length in LENGTHS
    }  # fmt: skip

    def curves(value: Callable[[Mapping[str, Any], str], float]) -> list[Line]:
        return [Line(text, [(row["length"], value(row, form)) for row in sweep if row["engines"] == PAPER_ENGINES])
                for form, text in FORMS.items()]  # fmt: skip

    scaling = [(row["chains"], grid[0]["cycles"] / row["cycles"]) for row in grid]
    sizes = f"T = {PAPER_ENGINES}, {name}"
    return {
        "dataflow": dataflow_picture(),
        "gain": cells(
            "gain", "Gain of the mask skip over the chain", f"by length and engines, {name}", heat,
            [f"T = {t}" for t in SIZES], "engines of a chain",
        ),
        "speedup": lines(
            "speedup", "Speed-up over plain engines", sizes,
            curves(lambda row, form: row["cycles_plain"] / row[f"cycles_{form}"]), "length", "ratio", dots=True,
        ),
        "utilization": lines(
            "utilization", "Utilization", f"cycles that unmasked pairs need of all cycles, {sizes}",
            curves(lambda row, form: row[f"utilization_{form}"]), "length", "share", dots=True, level=1.0,
        ),
        "grid": lines(
            "grid", "Chains of a cluster", "speed-up over one chain; the scratchpad's banks are shared",
            [Line("as simulated", scaling),
             Line("without limit", [(chains, float(chains)) for chains, _ in scaling])],
            "chains", "speed-up", dots=True,
        ),
    }  # fmt: skip


def _paper(json: Mapping[str, Any]) -> list[Part]:
    """Return the paper's table and its accesses to keys."""
    by_length: dict[int, dict[int, Cell]] = {}
    for row in json["table"]:
        steps = Cell(f"{row['chained']:,} -> {row['mask_skip']:,}")
        by_length.setdefault(row["length"], {})[row["engines"]] = steps
    equal = "yes" if json["exact"] else "no"
    return [
        Heading("cycles of chain -> mask skip, causal, one query and key per engine and cycle"),
        Table(("L", *(f"T = {t}" for t in TABLE_SIZES)),
              [(str(length), *map(steps.get, TABLE_SIZES)) for length, steps in by_length.items()]),
        Note(f"equal to the dataflow, simulated up to L = {SIMULATED}: {equal}"),
        Heading(f"accesses to keys, counted by the dataflow, {PAPER_SIZE}"),
        Table(("engines", "accesses", "keys each"),
              [(text, json["key_accesses"][form], 1 if form == "plain" else PAPER_ENGINES)
               for form, text in FORMS.items()]),
        Heading(f"causal windows, {PAPER_SIZE}: steps of chain -> mask skip"),
        Table(("window", "chain", "mask skip", "gain"),
              [(f"{row['window'] or 'none'}", row["chain"], row["mask_skip"], row["chain"] / row["mask_skip"] - 1)
               for row in json["windows"]], units=("", "", "", "share")),
    ]  # fmt: skip


def _experiment(experiment: Mapping[str, Any]) -> list[Part]:
    constants = ", ".join(f"{name} {number(value)}" for name, value in experiment["calibrated"].items())
    rows = [(FORMS[form], cycles) for form, cycles in experiment["cycles"].items()]
    return [
        Note(f"{PAPER_SIZE}, D = {experiment['head_dim']} fp16, a head and product", "muted"),
        Note(f"calibrated, the paper does not publish its constants: {constants}", "warning"),
        Table(("engines", "cycles"), rows),
        Facts([(tile.text, tile.value) for tile in _tiles(experiment)]),
    ]


def _tiles(experiment: Mapping[str, Any]) -> list[Tile]:
    ratio, gain = experiment["chained_over_plain"], 100 * (experiment["mask_skip_over_chained"] - 1)
    return [
        Tile("chained_over_plain", f"{ratio:.2f} x", f"chained over plain, published {PAPER['chained_over_plain']}"),
        Tile("mask_skip", f"{gain:.1f} %", f"mask skip, published {PAPER['mask_skip_over_chained']}"),
    ]


def _gain(json: Mapping[str, Any], drawn: Mapping[str, Chart]) -> list[Part]:
    gains: dict[int, list[float]] = {}
    for row in json["sweep"]:
        gains.setdefault(row["length"], []).append(100 * (row["gain"] - 1))
    return [
        drawn["gain"], drawn["speedup"], drawn["utilization"],
        Heading("gain of the mask skip over the chain, %"),
        Table(("L", *(f"T = {t}" for t in SIZES)), [(str(length), *row) for length, row in gains.items()]),
        Heading("shortest length from which the mask skip gains less than 1 %"),
        Table(("engines", "by steps alone", "with reads and restarts"),
              [(f"T = {t}", end["steps"], end["cycles"]) for t, end in json["crossover"].items()]),
    ]  # fmt: skip


def _figures(sweep: Rows, kind: str) -> Details:
    """Return a figure of the sweep for all lengths and engines."""
    rows = [(f"{row['length']:,} x {row['engines']}", *(row[f"{kind}_{form}"] for form in FORMS)) for row in sweep]
    text = kind.replace("_", " ") + (", bytes of a chain" if kind == "buffer_bytes" else "")
    return Details(text, Table(("length x engines", *FORMS.values()), rows))


def reproduced(json: Mapping[str, Any]) -> Reproduction:
    """Return the sections of the figures, for a terminal and a page."""
    drawn, experiment, grid = pictures(json), json["experiment"], json["grid"]
    chains = [(str(row["chains"]), row["cycles"], grid[0]["cycles"] / row["cycles"], row["conflicts"],
               row["bytes_per_cycle"]) for row in grid]  # fmt: skip
    heads = ("chains", "cycles", "speed-up", "bank conflicts", "bytes per cycle")
    kinds = ("cycles", "key_accesses", "utilization", "buffer_bytes")
    sections = [
        Section("dataflow", "Dataflow", [drawn["dataflow"]]),
        Section("paper", "The paper's table", _paper(json)),
        Section("experiment", "Experiment", _experiment(experiment)),
        Section("gain", f"Length and engines, {experiment['shape']}", _gain(json, drawn)),
        Section("grid", f"Chains on the banks of a cluster, all heads of a layer, L = {PAPER_LENGTH}",
                [drawn["grid"], Table(heads, chains)]),
        Section("sweep", f"All figures, {experiment['shape']}, a head and product",
                [_figures(json["sweep"], kind) for kind in kinds]),
    ]  # fmt: skip
    title = f"Chained Vector Engine: {experiment['shape']}"
    table = csv_text(list(json["sweep"][0]), [list(row.values()) for row in json["sweep"]])
    return Reproduction(title, json, _tiles(experiment), sections, {"sweep.csv": table})
