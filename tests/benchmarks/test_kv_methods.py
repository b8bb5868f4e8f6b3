"""The table of methods in docs/kv-cache.md is that of `scripts/bench kv-methods`."""

from pathlib import Path

import pytest

from benchmarks import kv_methods
from npu_device.kv_quant.methods import METHODS
from pyv_npu.serving.study import Products

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "kv-cache.md").read_text(encoding="utf-8")
ROWS = [[cell.strip() for cell in line.strip("| ").split("|")] for line in PAGE.splitlines() if line.startswith("|")]


def page_row(method: str) -> list[str]:
    """Returns the cells of a method in the table of methods."""
    (row,) = (row for row in ROWS[ROWS.index(list(kv_methods.COLUMNS)) :] if row[0] == method)
    return row


def test_the_page_has_a_row_for_each_method() -> None:
    first = ROWS.index(list(kv_methods.COLUMNS)) + 2
    assert [row[0] for row in ROWS[first : first + len(METHODS)]] == list(METHODS)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fp16", "oaken"])
def test_a_row_is_what_the_benchmark_prints(method: str) -> None:
    config = kv_methods.configuration()
    row = page_row(method)
    assert [*kv_methods.step_cells(config, method), *kv_methods.serving_cells(config, method, Products())] == row[1:-1]
