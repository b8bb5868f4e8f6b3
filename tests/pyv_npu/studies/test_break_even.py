"""The sweeps of a comparison's report: break-even points, and what the figures mean."""

from typing import Any

import pytest

from pyv_npu.config import load
from pyv_npu.sections import Chart, Note
from pyv_npu.studies.break_even import AUTOMATIC, Sweep, charts, run_sweep
from pyv_npu.studies.sweep.effects import break_even
from pyv_npu.studies.sweep.figures import Figure
from pyv_npu.studies.sweep.table import ERROR, MODE, Table


def points(*rows: tuple[Any, float | None, float | None]) -> Table:
    cells = [{"x": value, MODE: mode, "f": result, ERROR: None}
             for value, *both in rows for mode, result in zip(("loose", "tight"), both, strict=True)]  # fmt: skip
    return Table(("x", MODE), {"f": Figure("", lambda record: None)}, cells)


@pytest.mark.parametrize(
    ("rows", "crossings"),
    [
        ([(0, 10, 30), (100, 50, 30)], [50.0]),
        ([(0, 10, 30), (10, 30, 30), (20, 40, 30)], [10.0]),
        ([(0, 0, 3), (3, 1, 0), (6, 0, 1)], [2.25, 4.5]),
        ([(0, 50, 30), (100, 90, 30)], []),
        ([(0, None, 30), (10, 5, 30), (30, 55, 30)], [20.0]),
        ([("retry", 1, 2), ("drop", 2, 1)], []),
    ],
)
def test_break_even_is_where_straight_lines_cross(rows: list[Any], crossings: list[float]) -> None:
    assert [at for line in break_even(points(*rows), "f") for at in line.at] == crossings


def test_bus_latency_moves_loose_cycle_by_cycle_and_tight_not_at_all() -> None:
    fixed = {"run.args.n": 4, "run.args.phases": 2, "run.args.tile": 16}
    swept = run_sweep(load().config, "submit_latency", Sweep("core.timing.mmio_one_way", ("0", "50"), fixed))
    near, far = swept["points"]
    assert far["loose"]["t_submit"] - near["loose"]["t_submit"] == 50
    assert far["tight"] == near["tight"]
    assert far["loose"]["core_per_command"] == near["loose"]["core_per_command"]
    chart, note = charts(swept)
    assert isinstance(chart, Chart) and isinstance(note, Note)
    titles = [view["title"] for view in chart.spec["concat"]]
    assert "t_submit" in titles and "core_per_command" not in titles
    assert chart.spec["concat"][0]["encoding"]["x"]["title"] == "core.timing.mmio_one_way (cycles)"
    assert note.text.startswith("core.timing.mmio_one_way leaves these as they are: core_per_command: loose ")
    assert {param["name"]: len(param["views"]) for param in chart.spec["params"]} == {
        "shown": len(titles), "zoom": len(titles),
    }  # fmt: skip


def test_one_doorbell_for_many_pays_where_a_doorbell_is_dear() -> None:
    fixed = {"run.args.n": 16, "run.args.phases": 32, "run.args.tile": 16}
    swept = run_sweep(load(preset="pcie").config, "submit_latency", Sweep("run.args.batch", ("1", "16"), fixed))
    alone, together = (point["loose"]["core_per_command"] for point in swept["points"])
    assert alone - together > 100  # a doorbell keeps the core for 180 cycles
    assert {p["tight"]["core_per_command"] for p in swept["points"]} == {
        swept["points"][0]["tight"]["core_per_command"]
    }


def test_a_break_even_has_the_unit_of_its_key() -> None:
    fixed = {"run.args.n": 4, "run.args.phases": 1, "run.args.tile": 16}
    swept = run_sweep(load().config, "submit_latency", Sweep("core.timing.custom_response", ("0", "60"), fixed))
    assert (
        "core_per_command: loose and tight break even at core.timing.custom_response = 1 cycles." in swept["findings"]
    )


def test_the_report_sweeps_what_the_plan_asks_for() -> None:
    keys = {sweep.key for sweep in AUTOMATIC["submit_latency"]}
    assert {"run.args.tile", "run.args.prefetch", "run.args.batch", "core.timing.mmio_one_way"} <= keys
