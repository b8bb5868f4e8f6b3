"""Looks at the client and snapshots, by a clock that the test moves."""

from hypothesis import given, settings
from hypothesis import strategies as st

from pyv_ext.gdb.pacing import FIRST_GAP, FIRST_SLICE, MAX_SLICE, MIN_RATIO, MIN_SLICE, POLL_INTERVAL, Intervals, Slices


class Clock:
    """Seconds that pass when the test says so."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_slices_grow_to_their_bound_on_a_fast_host_and_shrink_at_once_on_a_slow_one() -> None:
    clock = Clock()
    slices = Slices(clock)
    lengths = []
    for _ in range(20):
        lengths.append(slices.cycles)
        clock.now += slices.cycles * 1e-9
        slices.end()
    assert lengths[:3] == [FIRST_SLICE, 2 * FIRST_SLICE, 4 * FIRST_SLICE]
    assert lengths[-1] == MAX_SLICE
    clock.now += 2.0
    slices.end()
    assert slices.cycles == int(MAX_SLICE * POLL_INTERVAL / 2)


def test_time_in_which_the_hart_stands_still_counts_for_no_slice() -> None:
    clock = Clock()
    slices = Slices(clock)
    clock.now += 100
    slices.begin()
    slices.end()
    assert slices.cycles == 2 * FIRST_SLICE


@settings(deadline=None)
@given(speed=st.floats(1e3, 1e10))
def test_slices_settle_where_they_take_about_a_glance(speed: float) -> None:
    """`speed`: cycles per second."""
    clock = Clock()
    slices = Slices(clock)
    for _ in range(30):
        clock.now += slices.cycles / speed
        slices.end()
    assert MIN_SLICE <= slices.cycles <= MAX_SLICE
    took = slices.cycles / speed
    assert took >= POLL_INTERVAL / 2 * 0.99 or slices.cycles == MAX_SLICE
    assert took <= 2 * POLL_INTERVAL * 1.01 or slices.cycles == MIN_SLICE


@settings(deadline=None)
@given(costs=st.lists(st.floats(0, 1), min_size=1, max_size=8), slice_=st.floats(0.01, 1))
def test_snapshots_take_a_small_share_and_no_more_than_one_in_a_gap(costs: list[float], slice_: float) -> None:
    clock = Clock()
    intervals = Intervals(clock)
    assert intervals.is_due
    spent = ran = 0.0
    for cost in costs:
        intervals.begin()
        clock.now += cost
        intervals.end()
        spent += cost
        start = clock.now
        while not intervals.is_due:
            clock.now += slice_
        assert clock.now - start >= FIRST_GAP * 0.99
        ran += clock.now - start
    assert spent * MIN_RATIO <= ran * 1.01 + 1e-9


def test_the_gap_doubles() -> None:
    clock = Clock()
    intervals = Intervals(clock)
    intervals.double()
    intervals.begin()
    intervals.end()
    clock.now = 1.5 * FIRST_GAP
    assert not intervals.is_due
    clock.now = 2 * FIRST_GAP
    assert intervals.is_due
