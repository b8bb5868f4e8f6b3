"""The device's side of the probe: stamps of any run against the rules of docs/latency.md, one submission at a time."""

import copy
from itertools import permutations
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from npu_device.trace.events import TIGHT, What
from npu_device.trace.records import RECORD
from pyv_npu.observe.latency.rows import COLUMN, SLOT, Reason, Rows, Submission, Submissions
from pyv_npu.observe.latency.stamps import StampBook

VALIDATE = 4


def events(*rows: tuple[int, What, int, int, int]) -> Any:
    """(cycle, what, ticket, bytes, aux) of each."""
    batch = np.zeros(len(rows), RECORD)
    for name, column in zip(("cycle", "what", "ticket", "bytes", "aux"), zip(*rows, strict=True), strict=True):
        batch[name] = column
    return batch


def leave(rows: Rows, t0: int, at: int, arrival: int, *, tight: bool, descriptor: int = 0) -> int:
    row = rows.add(descriptor, False, at, arrival, tight, 0)
    rows.data[row + COLUMN["t0"]] = t0
    rows.data[row + COLUMN["setup"]] = at - t0
    return row


@given(st.integers(0, 50), st.integers(0, 50), st.integers(0, 50), st.booleans())
def test_the_message_side_completes_the_sum(way: int, wait: int, fetch: int, tight: bool) -> None:
    rows = Rows()
    book = StampBook(rows, VALIDATE)
    arrival = 140 + way
    book.commit(leave(rows, 100, 140, arrival, tight=tight), None if tight else 7, False, False)
    t2 = arrival + wait + fetch + VALIDATE
    book.events(events((t2, What.ACCEPT, 1, arrival + wait, TIGHT if tight else 7)))
    (submission,) = book.accepted()
    assert sum(submission.reasons.values()) == submission.span("t0", "t2")
    expected = {
        Reason.SETUP: 40,
        Reason.ISSUE if tight else Reason.BUS: way,
        Reason.FULL_WAIT: wait,
        Reason.FETCH: fetch,
        Reason.VALIDATE: VALIDATE,
    }
    assert submission.reasons == {reason: cycles for reason, cycles in expected.items() if cycles}


def test_a_ticket_belongs_to_whoever_was_accepted_under_it_last() -> None:
    rows = Rows()
    book = StampBook(rows, VALIDATE)
    for number in range(2):
        book.commit(leave(rows, 0, 0, 0, tight=True), None, False, False)
        begin = 100 * number
        book.events(
            events(
                (begin + 10, What.ACCEPT, 5, begin + 6, TIGHT),
                (begin + 20, What.DMA_BEGIN, 5, 0, 0),
                (begin + 30, What.TE_BEGIN, 5, 0, 0),
                (begin + 40, What.ERROR, 5, 0, 3 + number),
                (begin + 50, What.DMA_BEGIN, 5, 0, 0),
                (begin + 60, What.DONE, 5, 0, 0),
            )
        )
    assert [(s.t2, s.t3, s.t4, s.error, s.number) for s in book.accepted()] == [
        (10, 20, 40, 3, 0),
        (110, 120, 140, 4, 1),
    ]
    assert book.completion_order()[0][0] == 2


def completions(*tickets: int) -> dict[int, tuple[int, int]]:
    """Returns the order of completion of three commands that end in the order of these tickets."""
    rows = Rows()
    book = StampBook(rows, VALIDATE)
    for ticket in range(3):
        book.commit(leave(rows, 0, 0, 0, tight=True), None, False, False)
        book.events(events((ticket, What.ACCEPT, ticket, 0, TIGHT)))
    for ticket in tickets:
        book.events(events((10, What.DONE, ticket, 0, 0)))
    return book.completion_order()


def test_the_order_of_completion_is_that_of_acceptance_numbers() -> None:
    orders = [completions(*tickets) for count in range(4) for tickets in permutations(range(3), count)]
    assert len({repr(order) for order in orders}) == len(orders) == 16
    assert completions(2, 0, 1) == completions(2, 0, 1)


@given(st.permutations(range(40)), st.integers(1, 6), st.integers(0, 45))
def test_finished_rows_are_spilled_in_the_order_of_acceptance(order: list[int], chunk: int, until: int) -> None:
    rows = Rows(chunk)
    book = StampBook(rows, VALIDATE)
    for ticket in range(40):
        book.commit(leave(rows, 0, ticket, ticket, tight=True), None, False, False)
        book.events(events((ticket, What.ACCEPT, ticket, ticket, TIGHT)))
    for position, ticket in enumerate(order[:until]):
        book.events(events((100 + position, What.DONE, ticket, 0, 0)))
    expected = {ticket: 100 + position for position, ticket in enumerate(order[:until])}
    made = book.accepted()
    assert [(s.leave, s.t4) for s in made] == [(ticket, expected.get(ticket)) for ticket in range(40)]
    assert len(made) == 40 and made[7].leave == 7 and made[-1].leave == 39 and len(made[3:9:2]) == 3
    prefix = next((index for index in range(40) if index not in expected), 40)
    assert [len(part) for part in made.chunks()][:-2] == [chunk] * (prefix // chunk)
    again = Rows(chunk)
    again.load_state(rows.state() | {"finished": bytes(rows.state()["finished"])})  # as from a file
    ledger = StampBook(again, VALIDATE)
    ledger.load_state(book.state())
    again.collect()
    assert [*ledger.accepted()] == [*made]


def test_slots_are_used_again() -> None:
    rows = Rows()
    book = StampBook(rows, VALIDATE)
    for number in range(500):
        book.commit(leave(rows, 0, 0, 0, tight=False, descriptor=64 * (number % 8)), number % 16, False, True)
        if number % 3:  # others are never accepted: their entry is overwritten
            book.events(events((number, What.ACCEPT, number, 0, number % 16), (number, What.DONE, number, 0, 0)))
    assert len(rows.data) <= (16 + 8) * SLOT
    assert len(book.accepted()) == rows.accepted == sum(1 for number in range(500) if number % 3)


def test_entries_of_the_ring_are_expected_until_they_are_accepted() -> None:
    rows = Rows()
    book = StampBook(rows, VALIDATE)
    for _ in range(2):
        assert not book.expects(0)
        book.commit(leave(rows, 0, 0, 0, tight=False), 0, False, False)
        assert book.expects(0)
        book.events(events((10, What.ACCEPT, 1, 6, 0)))
    book.commit(leave(rows, 0, 0, 0, tight=False), 3, False, False)
    book.commit(leave(rows, 0, 0, 0, tight=False), 3, False, False)
    assert book.overwritten == 1


cycles = st.lists(st.integers(0, 60), max_size=12).map(sorted)


@given(
    st.lists(st.tuples(st.none() | st.integers(0, 50), st.booleans(), st.none() | st.integers(0, 70)), max_size=12),
    st.lists(st.tuples(st.integers(0, 60), st.booleans()), max_size=12).map(sorted),
    cycles,
    cycles,
    st.lists(st.tuples(st.integers(0, 60), st.integers(0, 15)), max_size=20).map(sorted),
)
def test_notices_are_the_first_of_each_kind(
    commands: list[tuple[int | None, bool, int | None]],
    levels: list[tuple[int, bool]],
    handlers: list[int],
    looks: list[int],
    told: list[tuple[int, int]],
) -> None:
    """`commands`: (t4, whether an interrupt is asked for, end of the load that saw its status word)."""
    rows = Rows()
    book = StampBook(rows, 0)
    for number, (t4, interrupt, seen) in enumerate(commands):
        book.commit(leave(rows, 0, 0, 0, tight=True, descriptor=64 * number), None, interrupt, True)
        book.events(events((0, What.ACCEPT, number, 0, TIGHT)))
        if t4 is not None:
            book.events(events((t4, What.DONE, number, 0, 0)))
        if seen is not None:
            book.saw_status_word(64 * number, seen)
    for cycle, level in levels:
        book.external(cycle, level)
    for start in handlers:
        book.handler(start)
    for look in looks:
        book.saw_all(look, look + 3)
    for look, ticket in told:
        book.saw_ticket(ticket, look, look + 2)
    for number, (made, (t4, interrupt, seen)) in enumerate(zip(book.accepted(), commands, strict=True)):
        t5 = t6 = None
        t7 = seen
        if t4 is not None:
            ends = [look + 3 for look in looks if look >= t4][:1]
            ends += [look + 2 for look, ticket in told if ticket == number and look >= t4][:1]
            t7 = min(ends + ([] if seen is None else [seen]), default=None)
            if interrupt:
                before = [level for cycle, level in levels if cycle <= t4]
                rises = [cycle for cycle, level in levels if cycle > t4 and level]
                t5 = t4 if before and before[-1] else min(rises, default=None)
            if t5 is not None:
                t6 = min((start for start in handlers if start >= t5), default=None)
            if t6 is not None and t7 is not None and t6 > t7:
                t6 = None
        assert (made.t5, made.t6, made.t7) == (t5, t6, t7)


def test_looking_at_a_run_changes_nothing() -> None:
    rows = Rows()
    book = StampBook(rows, VALIDATE)
    book.commit(leave(rows, 0, 10, 20, tight=False), 0, True, False)
    first = copy.deepcopy(book)
    for each in (book, first):
        assert len(each.accepted()) == 0
        each.events(events((30, What.ACCEPT, 1, 26, 0), (50, What.DONE, 1, 0, 0)))
        assert [s.t4 for s in each.accepted()] == [50]
    assert len(first.accepted()) == 1


def test_rows_and_submissions_are_the_same_thing() -> None:
    made = [
        Submission(0x8000_0000, True, 1, 2, 3, False, stream=2, t2=9, ticket=4, reasons={Reason.SETUP: 1}),
        Submission(0x8000_0040, False, None, 12, 13, True, number=1, t7=0, error=5),
    ]
    rows = Submissions.of(made)
    fields = [name for name in dir(made[0]) if not name.startswith("_") and not callable(getattr(made[0], name))]
    assert {"descriptor", "t0", "t7", "reasons"} <= set(fields)
    assert [[getattr(each, name) for name in fields] for each in rows] == [
        [getattr(each, name) for name in fields] for each in made
    ]
    assert rows[1].descriptor == 0x8000_0040
    assert rows[1:][0].t7 == 0
    assert len(Submissions.of([])) == 0
