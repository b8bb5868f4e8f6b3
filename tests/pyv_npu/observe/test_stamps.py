"""The device's side of the recorder: stamps of any run against the rules of docs/latency.md, one by one."""

from itertools import permutations
from struct import pack
from typing import Any

import numpy as np
import pytest
import synthetic
from hypothesis import given, settings
from hypothesis import strategies as st
from shares import draws

from npu_device.trace.events import TIGHT, What
from npu_device.trace.records import RECORD
from pyv_ext.bus.core_log import ROW, CoreChunk
from pyv_ext.machine.state import Answer, CoreRecord, LogKind
from pyv_native.records import layout
from pyv_native.state import StateError
from pyv_npu.observe.latency.completions import CHUNK, SLOT
from pyv_npu.observe.latency.recorder import Recorder
from pyv_npu.observe.latency.rows import Reason, Submission, Submissions
from pyv_npu.observe.latency.state import EXTERNAL_LEVEL, HANDLER_START, LOOK, TICKET_LOOK
from pyv_npu.observe.latency.submissions import DOORBELL, IRQ, WRITE_STATUS

VALIDATE = 4
NPU, RING, ENTRIES = 0x4000_0000, 0x8000_0000, 16


def events(*rows: tuple[int, What, int, int, int]) -> Any:
    """(cycle, what, ticket, bytes, aux) of each."""
    batch = np.zeros(len(rows), RECORD)
    for name, column in zip(("cycle", "what", "ticket", "bytes", "aux"), zip(*rows, strict=True), strict=True):
        batch[name] = column
    return batch


class Core:
    """A hart that calls submit functions, and its recorder."""

    def __init__(self, way: int = 0) -> None:
        """`way`: cycles of a doorbell on the bus."""
        settings = {"npu": NPU, "one_way": way, "look": 0, "named": 1, "issue": way, "ring_size": ENTRIES}
        self.flags: dict[int, int] = {}
        self.flushes = 0
        self.recorder = Recorder(
            settings, [], lambda descriptor: self.flags.get(descriptor, 0), lambda _: None, self._flush
        )
        self._tail = 0

    def _flush(self) -> None:
        self.flushes += 1

    def log(self, *rows: tuple[int, int, int, int, int, LogKind]) -> None:
        """(start, cycles, pc, address, value, kind) of each record of the core log."""
        content = bytearray(b"".join(ROW.pack(*row) for row in rows))
        content[layout(CoreRecord).fields["answer"].offset :: ROW.size] = bytes([Answer.ACCEPTED]) * len(rows)
        chunk = CoreChunk(memoryview(content))
        chunk.count = len(rows)
        self.recorder.read(chunk)

    def enqcmd(self, t0: int, at: int, arrival: int, descriptor: int = 0, flags: int = 0) -> None:
        """Submits by an ENQCMD_T that begins at `at`, in a function that begins at `t0`."""
        self.recorder._root.issue = arrival - at
        self.log(
            (t0, 0, 0x100, 0x200, 0x300, LogKind.ENTER),
            (at, arrival - at, 0, descriptor, flags, LogKind.LEAVE),
            (arrival, 0, 0x200, 0, 0, LogKind.RETURN),
        )

    def ring(self, t0: int, at: int, index: int, flags: int = 0) -> None:
        """Submits entry `index` of the ring by a doorbell that begins at `at` and takes no cycle of the core."""
        line = RING + index % ENTRIES * 64
        self.flags[line] = flags
        tail = index + 1 if self.recorder._root.one_way == 0 else index
        self.recorder._root.tail = index
        self.recorder.set_ring(RING, ENTRIES, tail)
        self.log(
            (t0, 0, 0x100, 0x200, 0x300, LogKind.ENTER),
            (t0, 1, 0, line, 0, LogKind.STORES),
            (at, 0, 0, NPU + DOORBELL, index + 1, LogKind.STORE),
            (at, 0, 0x200, 0, 0, LogKind.RETURN),
        )

    def accepted(self, validate: int = VALIDATE) -> Submissions:
        return self.recorder.accepted(validate)


@settings(max_examples=draws(50))
@given(st.integers(0, 50), st.integers(0, 50), st.integers(0, 50), st.booleans())
def test_the_message_side_completes_the_sum(way: int, wait: int, fetch: int, tight: bool) -> None:
    core = Core(way)
    arrival = 140 + way
    if tight:
        core.enqcmd(100, 140, arrival)
    else:
        core.ring(100, 140, 7)
    t2 = arrival + wait + fetch + VALIDATE
    core.recorder.events(events((t2, What.ACCEPT, 1, arrival + wait, TIGHT if tight else 7)))
    (submission,) = core.accepted()
    assert sum(submission.reasons.values()) == submission.span("t0", "t2")
    expected = {
        Reason.SETUP: 40 if tight else 39,
        Reason.DESCRIPTOR_STORE: 0 if tight else 1,
        Reason.ISSUE if tight else Reason.BUS: way,
        Reason.FULL_WAIT: wait,
        Reason.FETCH: fetch,
        Reason.VALIDATE: VALIDATE,
    }
    assert submission.reasons == {reason: cycles for reason, cycles in expected.items() if cycles}
    assert (submission.t0, submission.leave, submission.arrival, submission.tight) == (100, 140, arrival, tight)


def test_a_ticket_belongs_to_whoever_was_accepted_under_it_last() -> None:
    core = Core()
    for number in range(2):
        begin = 100 * number
        core.enqcmd(begin, begin, begin)
        core.recorder.events(
            events(
                (begin + 10, What.ACCEPT, 5, begin + 6, TIGHT),
                (begin + 20, What.DMA_BEGIN, 5, 0, 0),
                (begin + 30, What.TE_BEGIN, 5, 0, 0),
                (begin + 40, What.ERROR, 5, 0, 3 + number),
                (begin + 50, What.DMA_BEGIN, 5, 0, 0),
                (begin + 60, What.DONE, 5, 0, 0),
            )
        )
    assert [(s.t2, s.t3, s.t4, s.error, s.number) for s in core.accepted()] == [
        (10, 20, 40, 3, 0),
        (110, 120, 140, 4, 1),
    ]
    assert core.recorder.completion_order()[0][0] == 2


def completions(*tickets: int) -> dict[int, tuple[int, int]]:
    """Returns the order of completion of three commands that end in the order of these tickets."""
    core = Core()
    for ticket in range(3):
        core.enqcmd(0, 0, 0)
        core.recorder.events(events((ticket, What.ACCEPT, ticket, 0, TIGHT)))
    for ticket in tickets:
        core.recorder.events(events((10, What.DONE, ticket, 0, 0)))
    return core.recorder.completion_order()


def test_the_order_of_completion_is_that_of_acceptance_numbers() -> None:
    orders = [completions(*tickets) for count in range(4) for tickets in permutations(range(3), count)]
    assert len({repr(order) for order in orders}) == len(orders) == 16
    assert completions(2, 0, 1) == completions(2, 0, 1)


@settings(max_examples=draws(50))
@given(st.permutations(range(20)), st.integers(0, 25))
def test_rows_come_in_the_order_of_acceptance_and_from_a_snapshot(order: list[int], until: int) -> None:
    core = Core()
    for ticket in range(20):
        core.enqcmd(ticket, ticket, ticket)
        core.recorder.events(events((ticket, What.ACCEPT, ticket, ticket, TIGHT)))
    for position, ticket in enumerate(order[:until]):
        core.recorder.events(events((100 + position, What.DONE, ticket, 0, 0)))
    expected = {ticket: 100 + position for position, ticket in enumerate(order[:until])}
    made = core.accepted()
    assert [(s.leave, s.t4) for s in made] == [(ticket, expected.get(ticket)) for ticket in range(20)]
    assert len(made) == 20 and made[7].leave == 7 and made[-1].leave == 19 and len(made[3:9:2]) == 3
    prefix = next((index for index in range(20) if index not in expected), 20)
    finished, still_open = made.chunks()
    assert (len(finished), len(still_open)) == (prefix, 20 - prefix)
    state = core.recorder.state()
    again = Core()
    again.recorder.load_state(state | {name: bytes(state[name]) for name in ("finished", "evidence")})  # as from a file
    assert [*again.accepted()] == [*made] and again.recorder.state().keys() == state.keys()
    for each in (core, again):
        each.recorder.set_ring(RING, 4 * ENTRIES, 0)  # which takes a larger buffer
        each.enqcmd(200, 200, 200)
        each.recorder.events(events((210, What.ACCEPT, 77, 205, TIGHT), (220, What.DONE, 77, 0, 0)))
    assert [*again.accepted()] == [*core.accepted()]


def test_rows_that_wait_for_an_older_one_are_spilled_after_it() -> None:
    core, count = Core(), CHUNK + 64
    for ticket in range(count):
        core.enqcmd(ticket, ticket, ticket)
    core.recorder.events(events(*((ticket, What.ACCEPT, ticket, ticket, TIGHT) for ticket in range(count))))
    core.recorder.events(events(*((count + ticket, What.DONE, ticket, 0, 0) for ticket in range(1, count))))
    assert len(core.recorder._root.slots) == count * SLOT
    for ticket in (0, count):
        core.recorder.events(events((3 * count, What.DONE, ticket, 0, 0)))
        core.enqcmd(4 * count, 4 * count, 4 * count)
        core.recorder.events(events((4 * count, What.ACCEPT, count, 0, TIGHT)))
    assert [s.leave for s in core.accepted()][:count] == [*range(count)]
    assert len(core.recorder._rows) > CHUNK // 2 and len(core.recorder._root.slots) <= (count + 2) * SLOT


def test_slots_are_used_again() -> None:
    core = Core()
    for number in range(500):
        core.ring(number, number, number % 16, WRITE_STATUS)
        if number % 3:  # others are never accepted: their entry is overwritten
            accepted = number, What.ACCEPT, number, 0, number % 16
            core.recorder.events(events(accepted, (number, What.DONE, number, 0, 0)))
    assert len(core.recorder._root.slots) <= (16 + 16) * SLOT
    assert len(core.accepted()) == sum(1 for number in range(500) if number % 3)


def test_entries_of_the_ring_are_expected_until_they_are_accepted() -> None:
    core = Core()
    for _ in range(2):
        core.ring(0, 0, 0)
        assert core.flushes == 0
        core.recorder.events(events((10, What.ACCEPT, 1, 6, 0)))
    for _ in range(2):
        core.ring(0, 0, 3)
    assert (core.recorder.overwritten, core.flushes) == (1, 1)


@pytest.mark.parametrize("name", ["stack", "order", "tight", "slots", "keys", "windows", "staged"])
def test_references_of_a_state_that_lead_nowhere_are_refused(name: str) -> None:
    core = Core()
    for ticket in range(3):
        core.enqcmd(ticket, ticket, ticket)
    core.recorder.events(events((9, What.ACCEPT, 1, 0, TIGHT)))
    state = {key: value if type(value) is int else bytes(value) for key, value in core.recorder.state().items()}
    Core().recorder.load_state(state)
    value = state[name]
    changes = (5, 1) if isinstance(value, int) else (value + pack("<q", 3) * max(1, len(value) // 8), value[8:] * 2)
    for change in changes:
        if change != value:
            with pytest.raises(StateError):
                Core().recorder.load_state(state | {name: change})


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
    core = Core()
    recorder = core.recorder
    for number, (t4, interrupt, seen) in enumerate(commands):
        core.enqcmd(0, 0, 0, 64 * number, WRITE_STATUS | IRQ * interrupt)
        recorder.events(events((0, What.ACCEPT, number, 0, TIGHT)))
        if t4 is not None:
            recorder.events(events((t4, What.DONE, number, 0, 0)))
        if seen is not None:
            recorder.see_status_word(64 * number, seen)
    for cycle, level in levels:
        recorder.note(EXTERNAL_LEVEL, cycle, level)
    for start in handlers:
        recorder.note(HANDLER_START, start)
    for look in looks:
        recorder.note(LOOK, look, look + 3)
    for look, ticket in told:
        recorder.note(TICKET_LOOK, look, look + 2, ticket)
    for number, (made, (t4, interrupt, seen)) in enumerate(zip(core.accepted(0), commands, strict=True)):
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
    core = Core()
    core.ring(0, 10, 0, IRQ)
    first = core.recorder.copy()
    for each in (core.recorder, first):
        assert len(each.accepted(VALIDATE)) == 0
        each.events(events((30, What.ACCEPT, 1, 26, 0), (50, What.DONE, 1, 0, 0)))
        assert [s.t4 for s in each.accepted(VALIDATE)] == [50]
    assert len(first.accepted(VALIDATE)) == 1


def test_rows_and_submissions_are_the_same_thing() -> None:
    made = [
        Submission(0x8000_0000, True, 1, 2, 3, False, stream=2, t2=9, ticket=4, reasons={Reason.SETUP: 1}),
        Submission(0x8000_0040, False, None, 12, 13, True, number=1, t7=0, error=5),
    ]
    rows = synthetic.as_rows(made)
    fields = [name for name in dir(made[0]) if not name.startswith("_") and not callable(getattr(made[0], name))]
    assert {"descriptor", "t0", "t7", "reasons"} <= set(fields)
    assert [[getattr(each, name) for name in fields] for each in rows] == [
        [getattr(each, name) for name in fields] for each in made
    ]
    assert rows[1].descriptor == 0x8000_0040
    assert rows[1:][0].t7 == 0
    assert len(synthetic.as_rows([])) == 0
