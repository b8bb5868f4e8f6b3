"""Tables and charts of ablations and of the sweep over ratios, on a decoder's or synthetic keys and values."""

from collections.abc import Mapping, Sequence
from typing import Any

from pyv_npu.report.charts import Line, lines
from pyv_npu.sections import Chart, Table

Rows = Sequence[Mapping[str, Any]]


def ablation_table(rows: Rows) -> Table:
    """Return a table of `ablations.AblationRow`."""
    names = ("variant", "bits", "keys", "values", "inner_keys", "inner_values")
    return Table([name.replace("_", " ") for name in names], [[row[name] for name in names] for row in rows])


def sweep_table(rows: Rows) -> Table:
    """Return a table of `ablations.Ratio`."""
    return Table(("shares, %", "b_eff", "keys", "values"), [
        (shares_text([row[name] for name in ("outer", "middle", "inner")]), row["b_eff"], row["keys"], row["values"])
        for row in rows
    ])  # fmt: skip


def shares_text(ratios: Sequence[float]) -> str:
    """Format the shares of the outer, middle and inner group in per cent: 4/90/6."""
    return "/".join(f"{100 * ratio:g}" for ratio in ratios)


def sweep_chart(rows: Rows, of: str) -> Chart:
    """Draw errors by bits of an element."""
    return lines(
        "ratios", "Errors by bits", f"shares of outer, middle and inner group; {of}",
        [Line(name, sorted((row["b_eff"], row[name]) for row in rows)) for name in ("keys", "values")],
        "bits of an element", "relative error", dots=True,
    )  # fmt: skip


def ablation_chart(rows: Rows, of: str) -> Chart:
    """Draw the error of each variant at its bits."""
    return lines(
        "ablations", "Parts of Oaken", f"relative error of keys; {of}",
        [Line(row["variant"], [(row["bits"], row["keys"])]) for row in rows],
        "bits of an element", "relative error", dots=True,
    )  # fmt: skip
