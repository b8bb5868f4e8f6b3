"""Effects in a sweep: main effect of each axis, Pareto front of figures, break-even of loose and tight."""

from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from itertools import pairwise
from typing import NamedTuple

from pyv_npu.run_sections.latency import key_unit
from pyv_npu.studies.sweep.figures import COSTS, UNRANKED, Cell
from pyv_npu.studies.sweep.table import MODE, Table
from pyv_npu.units import number

Row = Mapping[str, Cell]


def numbers(table: Table, figure: str) -> list[tuple[Row, float]]:
    """Return (row, value) of the good rows in which a figure is a number."""
    return [(row, float(value)) for row in table.good if isinstance(value := row[figure], int | float)]


def main_effect(table: Table, axis: str, figure: str) -> list[tuple[Cell, float]]:
    """Return the mean of a figure at each value of an axis, over everything else."""
    results: dict[Cell, list[float]] = {}
    for row, result in numbers(table, figure):
        results.setdefault(row[axis], []).append(result)
    return [(value, _mean(results[value])) for value in table.varied(axis) if value in results]


class Effect(NamedTuple):
    """Effect of an axis on a figure."""

    axis: str
    low: float
    high: float
    """Smallest and largest mean of `main_effect`."""
    share: float
    """Their difference relative to the overall mean."""


def sensitivity(table: Table, figure: str) -> list[Effect]:
    """Return the effects of axes with several values, the largest first."""
    mean = _mean([result for _, result in numbers(table, figure)])
    effects = []
    for axis in table.axes:
        means = [value for _, value in main_effect(table, axis, figure)]
        if len(means) > 1:
            effects.append(Effect(axis, min(means), max(means), (max(means) - min(means)) / mean if mean else 0.0))
    return sorted(effects, key=lambda effect: -effect.share)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0


def pareto(table: Table, *figures: str) -> list[Row]:
    """Return the rows that no other row dominates, sorted by the first figure. Small is good, except for figures of
    `high_is_good`."""
    signs = [-1 if high_is_good(name) else 1 for name in figures]
    rows = [
        (tuple(sign * float(row[name]) for sign, name in zip(signs, figures, strict=True)), row)  # type: ignore[arg-type]
        for row in table.good
        if all(isinstance(row[name], int | float) for name in figures)
    ]
    front: list[tuple[tuple[float, ...], Row]] = []
    for values, row in sorted(rows, key=lambda item: item[0]):  # a dominating row precedes the rows it dominates
        losses = (all(a <= b for a, b in zip(rival, values, strict=True)) and rival != values for rival, _ in front)
        if not any(losses):
            front.append((values, row))
    return [row for _, row in front]


def high_is_good(figure: str) -> bool:
    """Check whether the largest value of a figure is the best: rates and utilization."""
    return any(word in figure for word in ("per_second", "per_watt", "utilization", "usage", "goodput", "capacity"))


def flat(table: Table, figure: str) -> bool:
    """Check whether a figure is constant over all good rows."""
    return len({row[figure] for row in table.good}) < 2


MAX_FRONT = 3
"""Maximum number of figures of a Pareto front."""


def default_front(table: Table) -> tuple[str, ...]:
    """Choose the objectives of the front. A table of at most three figures: all that vary and are best small, if two
    or more. Otherwise the first figure, and a cost that varies within a mode or the figure with the largest front."""
    first, *candidates = table.named or table.figures
    changing = [name for name in table.figures if not (high_is_good(name) or flat(table, name))]
    if len(table.figures) <= MAX_FRONT and len(changing) > 1:
        return tuple(changing)
    modes = table.varied(MODE) if MODE in table.axes else [None]
    for cost in COSTS:
        for mode in modes if cost in candidates else ():
            if len({row[cost] for row in table.good if row.get(MODE) == mode}) > 1:
                return first, cost
    candidates = [
        name for name in candidates
        if not (name in (*COSTS, *UNRANKED) or high_is_good(name) or flat(table, name))
    ]  # fmt: skip
    return first, max(
        candidates, key=lambda name: len({row[name] for row in pareto(table, first, name)}), default=first
    )


def crossings(points: Sequence[tuple[int, float, float]]) -> list[float]:
    """Return each x at which two figures are equal, by linear interpolation between points (x, first, other)."""
    result: list[float] = []
    rows = sorted((x, Fraction(str(first)) - Fraction(str(second))) for x, first, second in points)
    for (x, difference_low), (y, difference_high) in pairwise(rows):
        if difference_low == 0:
            result.append(float(x))
        elif difference_low * difference_high < 0:
            result.append(round(float(x + (y - x) * difference_low / (difference_low - difference_high)), 3))
    return result + [float(x) for x, difference in rows[-1:] if difference == 0]


class BreakEven(NamedTuple):
    """Comparison of loose and tight over an axis, all other axes fixed."""

    axis: str
    figure: str
    fixed: Mapping[str, Cell]
    at: Sequence[float]
    """Values of the axis at which both cost the same."""
    cheaper: str
    """Mode that is cheaper at every value; empty if neither is."""


def break_even(table: Table, figure: str) -> Iterator[BreakEven]:
    """Yield the break-even over each numeric axis, for each setting of the others."""
    if MODE not in table.axes:
        return
    for axis in table.axes:
        values = table.varied(axis)
        if axis == MODE or len(values) < 2 or not all(isinstance(value, int) for value in values):
            continue
        axes = [name for name in table.axes if name not in (axis, MODE)]
        lines: dict[tuple[Cell, ...], dict[int, dict[Cell, float]]] = {}
        for row, result in numbers(table, figure):
            x = row[axis]
            assert isinstance(x, int)
            lines.setdefault(tuple(row[name] for name in axes), {}).setdefault(x, {})[row[MODE]] = result
        for fixed, line in lines.items():
            points = [
                (x, figures["loose"], figures["tight"])
                for x, figures in line.items()
                if {"loose", "tight"} <= figures.keys()
            ]
            ahead = {"tight" if loose > tight else "loose" for _, loose, tight in points if loose != tight}
            at = crossings(points)
            if len(points) > 1 and (at or len(ahead) == 1):
                yield BreakEven(axis, figure, dict(zip(axes, fixed, strict=True)), at, min(ahead, default=""))


def crossing_text(figure: str, axis: str, lines: Sequence[BreakEven]) -> str:
    """Describe where loose and tight break even over an axis, over all settings of the others."""
    at = sorted(value for line in lines for value in line.at)
    always = {mode: sum(not line.at and line.cheaper == mode for line in lines) for mode in ("loose", "tight")}
    if not at:
        winners = [mode for mode, count in always.items() if count]
        if len(winners) == 1:
            rest = ", whatever else is set" if len(lines) > 1 else ""
            return f"{figure}: {winners[0]} is cheaper at every value of {axis}{rest}."
        return (f"{figure}: over {axis}, loose is cheaper everywhere in {always['loose']} of {len(lines)} settings of "
                f"everything else, tight in {always['tight']}.")  # fmt: skip
    span = number(at[0]) if at[0] == at[-1] else f"{number(at[0])} to {number(at[-1])}"
    text = f"{figure}: loose and tight break even at {axis} = {span} {key_unit(axis)}".rstrip()
    if len(lines) == 1:
        return f"{text}."
    clauses = [f"{mode} is always cheaper in {count}" for mode, count in always.items() if count]
    crossing = sum(bool(line.at) for line in lines)
    return (
        f"{text} in {crossing} of {len(lines)} settings of everything else{''.join(f'; {part}' for part in clauses)}."
    )
