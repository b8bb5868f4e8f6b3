"""The extended core is faster than stock Py-V by the ratios that its issue asks for, in the same process."""

import pyv_speed
from pyv_found import needs_pyv


@needs_pyv
def test_both_evaluations_are_ahead_of_stock_py_v_by_what_was_asked() -> None:
    ratios = pyv_speed.ratios(pyv_speed.measure(cycles=3000, rounds=4))
    assert {name: ratio for name, ratio in ratios.items() if ratio < pyv_speed.WANTED[name]} == {}
