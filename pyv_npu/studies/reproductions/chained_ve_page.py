"""The report of `pyv-npu reproduce chained-ve`: pictures, tables and the page."""

import csv
import io
from collections.abc import Mapping, Sequence
from typing import Any

from npu_device.cost.dataflow import Engines, run
from pyv_npu.report.charts import Line, cells, lines
from pyv_npu.report.page import render
from pyv_npu.sections import Cell, Chart, Note, Section, Table, Tile
from pyv_npu.studies.reproductions.chained_ve import FORMS, LENGTHS, PAPER_ENGINES, SIZES, TABLE_SIZES, Case
from pyv_npu.units import number
from toolchain.decoders.shapes import Shape

SHOWN_ENGINES = 4
"""Of the picture of the dataflow."""
Rows = Sequence[Mapping[str, Any]]


def dataflow_picture(engines: int = SHOWN_ENGINES) -> Chart:
    """A diagonal tile as it is simulated: which query and key each engine has in each cycle."""
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


def pictures(json: Mapping[str, Any], cases: Sequence[Case], shape: Shape) -> dict[str, Chart]:
    """By name."""
    at = {(one.length, one.engines): one for one in cases}
    gains = [one.gain - 1 for one in cases]
    heat = {
        f"L = {length:,}": [
            (f"{100 * (at[length, t].gain - 1):.1f} %", (at[length, t].gain - 1) / (max(gains) or 1)) for t in SIZES
        ]
        for length in LENGTHS
    }
    few = [at[length, PAPER_ENGINES] for length in LENGTHS]

    def curves(value: Any) -> list[Line]:
        return [Line(text, [(one.length, value(one, form)) for one in few]) for form, text in FORMS.items()]

    plain_chain = lambda one, form: one.work["plain"].cycles / one.work[form].cycles  # noqa: E731
    scaling = [(row["chains"], json["grid"][0]["cycles"] / row["cycles"]) for row in json["grid"]]
    sizes = f"T = {PAPER_ENGINES}, {shape.name}"
    return {
        "dataflow": dataflow_picture(),
        "gain": cells(
            "gain", "Gain of the mask skip over the chain", f"by length and engines, {shape.name}", heat,
            [f"T = {t}" for t in SIZES], "engines of a chain",
        ),
        "speedup": lines(
            "speedup", "Speed-up over plain engines", sizes, curves(plain_chain), "length", "ratio", dots=True,
        ),
        "utilization": lines(
            "utilization", "Utilization", f"cycles that unmasked pairs need of all cycles, {sizes}",
            curves(lambda one, form: one.utilization(form)), "length", "share", dots=True, level=1.0,
        ),
        "grid": lines(
            "grid", "Chains of a cluster", "speed-up over one chain; the scratchpad's banks are shared",
            [Line("as simulated", scaling),
             Line("without limit", [(chains, float(chains)) for chains, _ in scaling])],
            "chains", "speed-up", dots=True,
        ),
    }  # fmt: skip


def files(json: Mapping[str, Any], cases: Sequence[Case], shape: Shape) -> dict[str, str]:
    """Of the report, by name."""
    drawn = pictures(json, cases, shape)
    return {"sweep.csv": _csv(json["sweep"]), "report.html": _page(json, drawn, shape)}


def _csv(rows: Rows) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def _table(heads: Sequence[str], rows: Sequence[Sequence[Any]]) -> Table:
    """The first column is text."""
    return Table(heads, [[Cell(str(row[0]), kind="text"), *(Cell(number(value)) for value in row[1:])] for row in rows])


def _page(json: Mapping[str, Any], drawn: Mapping[str, Chart], shape: Shape) -> str:
    experiment, sweep = json["experiment"], json["sweep"]
    by_length: dict[int, dict[int, str]] = {}
    for row in json["table"]:
        by_length.setdefault(row["length"], {})[row["engines"]] = f"{row['chained']:,} -> {row['mask_skip']:,}"
    constants = ", ".join(f"{name} {number(value)}" for name, value in experiment["calibrated"].items())
    kinds = ("cycles", "key_accesses", "utilization", "buffer_bytes")
    tables = [
        part
        for kind in kinds
        for part in (
            Note(kind.replace("_", " ") + (", bytes of a chain" if kind == "buffer_bytes" else "")),
            _table(
                ("length x engines", *FORMS.values()),
                [
                    (f"{row['length']:,} x {row['engines']}", *(row[f"{kind}_{form}"] for form in FORMS))
                    for row in sweep
                ],
            ),
        )
    ]
    sections = [
        Section("dataflow", "Dataflow", [drawn["dataflow"]]),
        Section(
            "paper", "The paper's table",
            [
                Note("cycles of chain -> mask skip, one query and key per engine and cycle"),
                _table(
                    ("L", *(f"T = {t}" for t in TABLE_SIZES)),
                    [(length, *(row.get(t) for t in TABLE_SIZES)) for length, row in by_length.items()],
                ),
                Note("accesses to keys, counted by the dataflow: L = 256, T = 8"),
                _table(("engines", "accesses"), [(FORMS[form], count) for form, count in json["key_accesses"].items()]),
            ],
        ),
        Section(
            "experiment", "Experiment",
            [
                Note(f"calibrated, the paper does not publish its constants: {constants}", "warning"),
                _table(("engines", "cycles"), [(FORMS[form], made) for form, made in experiment["cycles"].items()]),
            ],
        ),
        Section(
            "gain", "Length and engines",
            [
                drawn["gain"], drawn["speedup"], drawn["utilization"],
                Note("shortest length from which the mask skip gains less than 1 %"),
                _table(
                    ("engines", "by steps alone", "with reads and restarts"),
                    [(f"T = {t}", end["steps"], end["cycles"]) for t, end in json["crossover"].items()],
                ),
            ],
        ),
        Section(
            "grid", "Chains of a cluster",
            [
                drawn["grid"],
                _table(
                    ("chains", "cycles", "bank conflicts", "bytes per cycle"),
                    [(row["chains"], row["cycles"], row["conflicts"], row["bytes_per_cycle"]) for row in json["grid"]],
                ),
            ],
        ),
        Section("sweep", f"All figures, {shape.name}, a head and product", tables),
    ]  # fmt: skip
    tiles = [
        Tile(
            "chained_over_plain", f"{experiment['chained_over_plain']:.2f} x", "chained over plain, published about 3"
        ),
        Tile(
            "mask_skip", f"{100 * (experiment['mask_skip_over_chained'] - 1):.1f} %", "mask skip, published about 5 %"
        ),
    ]
    return render(f"Chained Vector Engine: {shape.name}", [Note(json["source"], "muted")], tiles, sections)
