"""Attribution: every cycle gets exactly one reason, in the order of specification 35."""

from hypothesis import given
from hypothesis import strategies as st

from pyv_npu.latency.steps import Kind, Question, Step, StepLog
from pyv_npu.latency.submission import Reason, Submission

LINE = 0x8000_1000


def question(t0: int, leave: int, **changes: object) -> Question:
    base = Question(t0, leave, LINE, 0, 1, None, 0)
    return base._replace(**changes)  # type: ignore[arg-type]


def log_of(*steps: Step) -> StepLog:
    log = StepLog()
    for step in steps:
        log.add(step)
    return log


def test_each_reason_by_its_rule() -> None:
    log = log_of(
        Step(10, 11, Kind.OTHER, -1, 0, 1),
        Step(11, 12, Kind.STORE, LINE, 0, 1),
        Step(12, 13, Kind.STORE, LINE + 64, 0, 1),
        Step(13, 17, Kind.OTHER, -1, 1, 1),
        Step(17, 18, Kind.STORE, LINE, 1, 1),
        Step(18, 20, Kind.FENCE, -1, 0, 1),
        Step(20, 25, Kind.MMIO, -1, 0, 1),
        Step(25, 27, Kind.OTHER, -1, 0, 2),
    )
    assert log.explain(question(10, 27)) == {
        Reason.SETUP: 2,
        Reason.DESCRIPTOR_STORE: 1,
        Reason.INTERRUPTED: 5,
        Reason.FENCE: 2,
        Reason.MMIO: 5,
        Reason.BATCH: 2,
    }


def test_retry_reaches_from_the_first_refusal_to_the_last_attempt() -> None:
    log = log_of(
        Step(0, 4, Kind.OTHER, -1, 0, 1),
        Step(4, 10, Kind.MMIO, -1, 0, 1),
        Step(10, 12, Kind.OTHER, -1, 1, 1),
        Step(12, 20, Kind.OTHER, -1, 0, 1),
        Step(20, 22, Kind.OTHER, -1, 0, 1),
    )
    assert log.explain(question(0, 22, refused=4, attempt=20)) == {
        Reason.SETUP: 6,
        Reason.RETRY: 14,
        Reason.INTERRUPTED: 2,
    }


def test_a_stall_that_an_interrupt_broke_counts_as_retry() -> None:
    log = log_of(Step(0, 2, Kind.OTHER, -1, 0, 1), Step(9, 12, Kind.OTHER, -1, 1, 1))
    assert log.explain(question(0, 12, refused=2, attempt=12)) == {
        Reason.SETUP: 2,
        Reason.RETRY: 7,
        Reason.INTERRUPTED: 3,
    }


steps = st.lists(
    st.tuples(
        st.integers(1, 9),
        st.sampled_from(Kind),
        st.sampled_from([LINE, LINE + 64, -1]),
        st.integers(0, 2),
        st.integers(0, 2),
    ),
    min_size=1,
    max_size=40,
)


@given(steps, st.data())
def test_reasons_add_up_for_any_log_and_any_window(
    rows: list[tuple[int, Kind, int, int, int]], data: st.DataObject
) -> None:
    log, at = StepLog(), 0
    for cycles, kind, line, depth, window in rows:
        gap = data.draw(st.integers(0, 3))
        log.add(Step(at + gap, at + gap + cycles, kind, line, depth, window))
        at += gap + cycles
    t0 = data.draw(st.integers(0, at))
    leave = data.draw(st.integers(t0, at + 5))
    refused = data.draw(st.none() | st.integers(t0, leave))
    attempt = data.draw(st.integers(t0, leave))
    reasons = log.explain(question(t0, leave, refused=refused, attempt=attempt))
    assert sum(reasons.values()) == leave - t0
    assert all(cycles > 0 for cycles in reasons.values())


@given(st.integers(0, 50), st.integers(0, 50), st.integers(0, 50), st.integers(0, 20), st.booleans())
def test_the_message_side_completes_the_sum(bus: int, wait: int, fetch: int, validate: int, tight: bool) -> None:
    submission = Submission(LINE, False, 100, 140, 140 + bus, tight, reasons={Reason.SETUP: 40})
    submission.accept(140 + bus + wait + fetch + validate, 140 + bus + wait, validate)
    assert sum(submission.reasons.values()) == submission.span("t0", "t2")
    assert (Reason.BUS if tight else Reason.ISSUE) not in submission.reasons
