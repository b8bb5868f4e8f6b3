"""Tables and charts of ablations and of the sweep over ratios, of a decoder's or synthetic keys and values."""

from collections.abc import Mapping, Sequence
from typing import Any

from pyv_npu.text import columns

KEYS, VALUES = "#1f6fb4", "#e8590c"
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


def sweep_chart(rows: Rows, of: str) -> str:
    """SVG: errors by bits of an element."""
    from pyv_npu.report.charts import Line, lines

    return lines(
        "Errors by bits", f"shares of outer, middle and inner group; {of}",
        [Line(name, colour, sorted((one["b_eff"], one[name]) for one in rows))
         for name, colour in (("keys", KEYS), ("values", VALUES))],
        "bits of an element", "relative error", dots=True,
    )  # fmt: skip


def ablation_chart(rows: Rows, of: str) -> str:
    """SVG: errors of each variant at its bits."""
    from pyv_npu.report.charts import Line, lines

    colours = ("#2f9e44", "#868e96", "#e8590c", "#5f3dc4", "#1f6fb4", "#d6336c", "#0b7285", "#ae3ec9")
    return lines(
        "Parts of Oaken", f"relative error of keys; {of}",
        [Line(one["variant"], colour, [(one["bits"], one["keys"])]) for one, colour in zip(rows, colours, strict=True)],
        "bits of an element", "relative error", dots=True,
    )  # fmt: skip
