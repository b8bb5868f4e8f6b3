"""Tables and charts of ablations and of the sweep over ratios, of a decoder's or synthetic keys and values."""

from collections.abc import Mapping, Sequence
from typing import Any

from pyv_npu.report.charts import Line, lines
from pyv_npu.sections import Chart
from pyv_npu.text import columns

Rows = Sequence[Mapping[str, Any]]


def ablation_table(rows: Rows) -> str:
    """Rows of `ablations.Row`."""
    heads = ("variant", "bits", "keys", "values", "inner keys", "inner values")
    names = ("keys", "values", "inner_keys", "inner_values")
    return columns(heads, [(one["variant"], f"{one['bits']:.3f}", *(f"{one[name]:.3f}" for name in names))
                           for one in rows])  # fmt: skip


def sweep_table(rows: Rows) -> str:
    """Rows of `ablations.Ratio`."""
    shares = [f"{100 * one['outer']:g}/{100 * one['middle']:g}/{100 * one['inner']:g}" for one in rows]
    return columns(("shares, %", "b_eff", "keys", "values"), [
        (share, f"{one['b_eff']:.3f}", f"{one['keys']:.3f}", f"{one['values']:.3f}")
        for share, one in zip(shares, rows, strict=True)
    ])  # fmt: skip


def sweep_chart(rows: Rows, of: str) -> Chart:
    """Errors by bits of an element."""
    return lines(
        "ratios", "Errors by bits", f"shares of outer, middle and inner group; {of}",
        [Line(name, sorted((one["b_eff"], one[name]) for one in rows)) for name in ("keys", "values")],
        "bits of an element", "relative error", dots=True,
    )  # fmt: skip


def ablation_chart(rows: Rows, of: str) -> Chart:
    """Errors of each variant at its bits."""
    return lines(
        "ablations", "Parts of Oaken", f"relative error of keys; {of}",
        [Line(one["variant"], [(one["bits"], one["keys"])]) for one in rows],
        "bits of an element", "relative error", dots=True,
    )  # fmt: skip
