"""Attribution: every cycle gets exactly one reason, in the order of docs/latency.md, "Reasons"."""

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyv_npu.observe.latency import submissions
from pyv_npu.observe.latency.completions import new_row
from pyv_npu.observe.latency.recorder import Recorder
from pyv_npu.observe.latency.rows import COLUMN, NONE, Reason
from pyv_npu.observe.latency.state import DEVICE, FENCE

LINE = 0x8000_1000
OTHER = -1
"""Instructions that are not noted."""
NOTED = {FENCE: Reason.FENCE, DEVICE: Reason.MMIO, LINE: Reason.DESCRIPTOR_STORE}


class Step(NamedTuple):
    """One instruction or trap entry, as a slow engine would report it."""

    start: int
    end: int
    what: int = OTHER
    depth: int = 0
    window: int = 1


class Question(NamedTuple):
    """Cycles to explain, and what is known about the submission they belong to."""

    t0: int
    leave: int
    depth: int = 0
    refused: int | None = None
    attempt: int = 0
    line: int = LINE
    window: int = 1


class Log:
    """Periods of a recorder."""

    def __init__(self) -> None:
        settings = {"npu": 0, "one_way": 0, "look": 0, "named": 1, "issue": 0, "ring_size": 2}
        self._recorder = Recorder(settings, [], lambda descriptor: 0, lambda descriptor: None, lambda: None)
        self._root = self._recorder._root

    def add(self, start: int, end: int, depth: int, window: int, notes: Sequence[tuple[int, int, int]] = ()) -> None:
        """Instructions of cycles [start, end) have been executed."""
        for note in notes:
            submissions.add_note(self._root, *note)
        submissions.add_period(self._root, start, end, depth, window)

    def explain(self, asked: Question) -> dict[Reason, int]:
        """Cycles by reason."""
        row = new_row(self._root)
        refused = NONE if asked.refused is None else asked.refused
        submissions.explain(
            self._root, row, asked.t0, asked.leave, asked.line, asked.depth, asked.window, refused, asked.attempt
        )
        cycles = {reason: self._root.slots[row + COLUMN[reason]] for reason in Reason}
        return {reason: count for reason, count in cycles.items() if count}


def log_of(*taken: Step) -> Log:
    log = Log()
    for start, end, what, depth, window in taken:
        log.add(start, end, depth, window, () if what == OTHER else ((start, what, end - start),))
    return log


def cycle_by_cycle(taken: list[Step], asked: Question) -> dict[Reason, int]:
    """The rules of docs/latency.md, literally."""
    total: Counter[Reason] = Counter()
    for cycle in range(asked.t0, asked.leave):
        step = next((step for step in taken if step.start <= cycle < step.end), None)
        retry = asked.refused is not None and asked.refused <= cycle < asked.attempt
        if step is not None and step.depth > asked.depth:
            total[Reason.INTERRUPTED] += 1
        elif retry:
            total[Reason.RETRY] += 1
        elif step is not None and step.what in NOTED:
            total[NOTED[step.what]] += 1
        elif step is not None and step.window != asked.window:
            total[Reason.BATCH] += 1
        else:
            total[Reason.SETUP] += 1
    return dict(total)


def test_each_reason_by_its_rule() -> None:
    log = log_of(
        Step(10, 11),
        Step(11, 12, LINE),
        Step(12, 13, LINE + 64),
        Step(13, 17, depth=1),
        Step(17, 18, LINE, depth=1),
        Step(18, 20, FENCE),
        Step(20, 25, DEVICE),
        Step(25, 27, window=2),
    )
    assert log.explain(Question(10, 27)) == {
        Reason.SETUP: 2,
        Reason.DESCRIPTOR_STORE: 1,
        Reason.INTERRUPTED: 5,
        Reason.FENCE: 2,
        Reason.MMIO: 5,
        Reason.BATCH: 2,
    }


def test_retry_reaches_from_the_first_refusal_to_the_last_attempt() -> None:
    log = log_of(Step(0, 4), Step(4, 10, DEVICE), Step(10, 12, depth=1), Step(12, 20), Step(20, 22))
    assert log.explain(Question(0, 22, refused=4, attempt=20)) == {
        Reason.SETUP: 6,
        Reason.RETRY: 14,
        Reason.INTERRUPTED: 2,
    }


def test_a_stall_that_an_interrupt_broke_counts_as_retry() -> None:
    log = log_of(Step(0, 2), Step(9, 12, depth=1))
    assert log.explain(Question(0, 12, refused=2, attempt=12)) == {
        Reason.SETUP: 2,
        Reason.RETRY: 7,
        Reason.INTERRUPTED: 3,
    }


def test_stores_that_an_engine_reports_together_count_together() -> None:
    log = Log()
    log.add(0, 30, 0, 1, [(2, LINE, 16), (25, FENCE, 1), (27, LINE + 64, 3)])
    assert log.explain(Question(0, 30)) == {Reason.DESCRIPTOR_STORE: 16, Reason.FENCE: 1, Reason.SETUP: 13}


def test_a_log_that_is_full_forgets_the_oldest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(submissions, "LIMIT", 40)
    monkeypatch.setattr(submissions, "NOTES", 4)
    log = log_of(*(Step(cycle, cycle + 1, LINE) for cycle in range(1000)))
    assert log.explain(Question(990, 1000)) == {Reason.DESCRIPTOR_STORE: 10}
    whole = log.explain(Question(0, 1000))
    assert sum(whole.values()) == 1000
    assert 10 <= whole[Reason.DESCRIPTOR_STORE] <= 44


rows = st.lists(
    st.tuples(
        st.integers(0, 3),
        st.integers(1, 9),
        st.sampled_from([OTHER, FENCE, DEVICE, LINE, LINE + 64]),
        st.integers(0, 2),
        st.integers(0, 2),
    ),
    min_size=1,
    max_size=40,
)


@given(rows, st.data())
def test_reasons_are_those_of_every_cycle(taken: list[tuple[int, int, int, int, int]], data: st.DataObject) -> None:
    found: list[Step] = []
    at = 0
    for gap, cycles, what, depth, window in taken:
        found.append(Step(at + gap, at + gap + cycles, what, depth, window))
        at += gap + cycles
    starts = sorted({0, at, *(step.start for step in found), *(step.end for step in found)})
    chosen = sorted(data.draw(st.lists(st.sampled_from(starts), min_size=4, max_size=4)))
    t0, refused, attempt, leave = chosen
    asked = Question(t0, leave, depth=data.draw(st.integers(0, 1)))
    if data.draw(st.booleans()):
        asked = asked._replace(refused=refused, attempt=attempt)
    assert log_of(*found).explain(asked) == cycle_by_cycle(found, asked)


@given(rows, st.integers(0, 400), st.integers(0, 400))
def test_reasons_add_up_whatever_is_asked(taken: list[tuple[int, int, int, int, int]], t0: int, cycles: int) -> None:
    log, at = Log(), 0
    for gap, length, what, depth, window in taken:
        log.add(at + gap, at + gap + length, depth, window, () if what == OTHER else ((at + gap, what, length),))
        at += gap + length
    assert sum(log.explain(Question(t0, t0 + cycles)).values()) == cycles
