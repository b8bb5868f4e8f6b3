"""The small parts: event stream, event queue, tickets, accumulators."""

import hashlib
import struct
from array import array
from collections import deque
from dataclasses import replace
from itertools import chain, pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from shares import draws

from npu_device.abi.descriptor import Descriptor
from npu_device.abi.errors import TicketError
from npu_device.abi.opcodes import Opcode
from npu_device.config import NpuConfig
from npu_device.decode.command import Command, Order, Sum
from npu_device.event_loop.dispatch import next_event_kind
from npu_device.front_end.deadlines import request
from npu_device.operations.checks import DescriptorError
from npu_device.reservation import tickets
from npu_device.reservation.buffer import list_buffer
from npu_device.reservation.state import BUCKETS, RUNNING, Entry, Ticket
from npu_device.reservation.sums import Accumulators
from npu_device.reservation.tickets import MODULUS
from npu_device.trace.events import BATCH, PACKED, What
from npu_device.trace.records import RECORD
from npu_device.trace.stream import EventStream, records
from npu_device.units import state
from pyv_native.arena import Arena

# -- events ------------------------------------------------------------------------------------------------------------


def test_a_record_is_32_bytes_little_endian() -> None:
    assert RECORD.itemsize == 32
    stream = EventStream()
    stream.emit(0x0102030405060708, 0x0301, What.DMA_END, 0x11223344, 5, 0x99, 0xAABBCCDD)
    data = struct.pack("<QHHIIQI", 0x0102030405060708, 0x0301, What.DMA_END, 0x11223344, 5, 0x99, 0xAABBCCDD)
    assert stream.hexdigest() == hashlib.sha256(data).hexdigest()


@given(
    st.lists(st.sampled_from(("emit", "attach", "detach", "flush", "digest", "subscribe")), max_size=30),
    st.integers(1, 3000),
)
def test_the_hash_is_over_all_records_and_subscribers_see_those_that_follow(steps: list[str], burst: int) -> None:
    stream = EventStream()
    expected = hashlib.sha256()
    seen: list[tuple[int, list[int]]] = []
    count = 0
    for step in steps:
        if step == "emit":
            for _ in range(burst):
                stream.emit(count, 0, What.READY)
                expected.update(struct.pack("<QHHIIQI", count, 0, What.READY, 0, 0, 0, 0))
                count += 1
        elif step == "attach":  # a device, whose native code appends one record
            buffer, lengths = memoryview(bytearray(BATCH * PACKED.size)), memoryview(bytearray(16)).cast("q")
            stream.attach(buffer, lengths, 1)
            if lengths[1] < BATCH * PACKED.size // 8:
                PACKED.pack_into(buffer, 8 * lengths[1], count, 0, What.READY, 0, 0, 0, 0)
                lengths[1] += PACKED.size // 8
                expected.update(PACKED.pack(count, 0, What.READY, 0, 0, 0, 0))
                count += 1
        elif step == "detach":
            stream.detach()
        elif step == "flush":
            stream.flush()
        elif step == "digest":
            assert stream.hexdigest() == expected.hexdigest()
        else:
            got: list[int] = []
            seen.append((count, got))
            stream.subscribe(lambda batch, got=got: got.extend(batch["cycle"].tolist()))
    assert stream.count == count
    assert stream.hexdigest() == expected.hexdigest()
    for start, got in seen:
        assert got == list(range(start, count))


def test_records_keeps_everything_for_tests() -> None:
    stream = EventStream()
    collected = records(stream)
    assert len(collected()) == 0
    for cycle in range(5000):
        stream.emit(cycle, 0, What.READY)
    assert np.array_equal(collected()["cycle"], np.arange(5000))


# -- events to come ----------------------------------------------------------------------------------------------------


def test_the_order_of_phases_is_the_documented_one() -> None:
    names = "END", "GRANT", "RELEASE", "ACCEPT", "ANNOUNCE", "FETCH", "START", "IRQ"
    assert [getattr(state, name) for name in names] == list(range(state.EVENT_KINDS))


@given(st.lists(st.tuples(st.integers(1, 9), st.integers(0, state.EVENT_KINDS - 1)), max_size=40))
def test_events_are_found_by_cycle_and_phase(plan: list[tuple[int, int]]) -> None:
    front = Arena(state.EventLoop).root.front
    front.deadlines.fill([state.FOREVER] * state.EVENT_KINDS)
    for cycle, kind in plan:
        request(front, kind, cycle)
    earliest = {kind: min(c for c, each in plan if each == kind) for _, kind in plan}
    happened = []
    while (kind := next_event_kind(front)) in earliest and front.next_deadline < state.FOREVER:
        happened.append((front.next_deadline, kind))
        front.deadlines[kind] = state.FOREVER
    assert happened == sorted((cycle, kind) for kind, cycle in earliest.items())


# -- tickets -----------------------------------------------------------------------------------------------------------


class Tickets:
    """Tickets of an issue stage by itself."""

    def __init__(self, history: int) -> None:
        self.buffer = list_buffer()
        self.issue = self.buffer.issue
        self.issue.history = history

    def take(self) -> int:
        """Assign a ticket of the device to one more descriptor."""
        self.reserve()
        self.issue.submission_count += 1
        return tickets.assign_ticket(self.issue, self.issue.submission_count)

    def reserve(self) -> None:
        self.buffer.reserve(Ticket, 1)
        self.issue = self.buffer.issue

    def claim(self, ticket: int) -> bool:
        """Take a ticket that a host asks for."""
        self.reserve()
        legal = tickets.is_free(self.issue, ticket)
        if legal:
            tickets.enter_ticket(self.issue, ticket)
        return legal

    def finish(self, ticket: int, code: int = 0) -> None:
        tickets.finish_ticket(self.issue, ticket, code)

    def ended(self) -> list[int]:
        """Return the ended tickets, each followed by its code."""
        numbers = array("q", bytes(16 * self.issue.ended))
        tickets.copy_ended(self.issue, numbers.buffer_info()[0])
        return numbers.tolist()

    def status(self, ticket: int) -> int:
        return tickets.ticket_status(self.issue, ticket)


class ModelTickets:
    """The order of docs/interface.md by an exhaustive search."""

    def __init__(self, history: int) -> None:
        self.count = 0
        self.flying: set[int] = set()
        self.ended: deque[tuple[int, int]] = deque(maxlen=history)

    def assign(self) -> int:
        ticket = self.count % 2**31
        while ticket == 0 or ticket in self.flying:
            ticket = (ticket + 1) % 2**31
        return ticket

    def enter(self, ticket: int) -> None:
        self.flying.add(ticket)
        kept = [one for one in self.ended if one[0] != ticket]
        self.ended = deque(kept, maxlen=self.ended.maxlen)

    def status(self, ticket: int) -> int:
        if ticket in self.flying:
            return 1
        for number, code in self.ended:
            if number == ticket:
                return 4 | code << 8 if code else 3
        return 0


@settings(max_examples=draws(150))
@given(
    st.integers(0, 2**33),
    st.lists(st.tuples(st.sampled_from(("device", "host", "done", "error")), st.integers(-2, 9)), max_size=60),
)
def test_tickets(start: int, steps: list[tuple[str, int]]) -> None:
    real, model = Tickets(history=5), ModelTickets(5)
    real.issue.submission_count = model.count = start
    near = [(start + i) % 2**32 for i in range(-3, 12)]
    for what, number in steps:
        if what == "device":
            model.count += 1
            expected = model.assign()
            assert real.take() == expected
            model.enter(expected)
        elif what == "host":
            ticket = near[number + 3]
            legal = 0 < ticket < 2**31 and ticket not in model.flying
            assert real.claim(ticket) == legal
            if legal:
                model.enter(ticket)
        elif model.flying:
            ticket = sorted(model.flying)[number % len(model.flying)]
            code = TicketError.OPCODE if what == "error" else 0
            real.finish(ticket, code)
            model.flying.remove(ticket)
            model.ended.append((ticket, code))
        assert [real.status(ticket) for ticket in near] == [model.status(ticket) for ticket in near]
        assert real.issue.tickets_in_flight == len(model.flying)


@settings(max_examples=draws(100))
@given(
    st.sampled_from((1, 3, 8, 40)),
    st.lists(st.tuples(st.booleans(), st.sampled_from((0, 8, BUCKETS, 1 << 20)), st.integers(1, 12)), max_size=80),
)
def test_the_history_is_that_of_an_ordered_dictionary(size: int, steps: list[tuple[bool, int, int]]) -> None:
    """Tickets that meet in one bucket of the table, that are assigned again, and that leave."""
    real, model, flying = Tickets(size), dict[int, int](), list[int]()
    for completes, distance, number in steps:
        ticket = distance + number
        if completes and flying:
            ticket = flying.pop(number % len(flying))
            real.finish(ticket, number)
            model[ticket] = number
            if len(model) > size:
                del model[next(iter(model))]
        elif real.claim(ticket):
            model.pop(ticket, None)
            flying.append(ticket)
        assert real.ended() == [*chain.from_iterable(model.items())]
        for each in range(30):
            expected = tickets.IN_FLIGHT if each in flying else model.get(each, tickets.UNKNOWN)
            assert tickets.ticket_code(real.issue, each) == expected


def test_the_history_of_long_runs_stays_small() -> None:
    real = Tickets(1 << 6)
    for number in range(1, 1 << 9):
        real.finish(real.take(), number % 3)
    assert len(real.ended()) == 2 << 6 and real.buffer.totals[Ticket] <= 1 << 8


def test_the_history_holds_the_latest_completions_and_no_more() -> None:
    real = Tickets(history=2)
    for number in (1, 2, 3):
        real.finish(real.take())
        assert real.status(number) == 3
    assert [real.status(ticket) for ticket in (1, 2, 3)] == [0, 3, 3]


def test_device_tickets_wrap_and_skip_zero() -> None:
    real = Tickets(4)
    real.issue.submission_count = MODULUS - 2
    assert [real.take() for _ in range(4)] == [MODULUS - 1, 1, 2, 3]
    entry = real.buffer.arena.view(Entry, real.buffer.new_entry())
    entry.stage = RUNNING
    tickets.set_command(real.issue, 2, entry)
    assert [real.status(ticket) for ticket in (1, 2, 0)] == [1, 2, 0]


# -- accumulators ------------------------------------------------------------------------------------------------------


def gemm(address: int, accumulate: bool, affinity: int = 0) -> Command:
    made = Command(
        Order(Descriptor(opcode=Opcode.GEMM_T, out_addr=address, accumulate=accumulate), Opcode.GEMM_T, None)
    )
    made.affinity = affinity
    return made


steps = st.tuples(
    st.integers(0, 4), st.booleans(), st.booleans(), st.sampled_from(((2, 2), (3, 5), (8, 4), (1, 7))),
    st.sampled_from((0, 0, 1, 2)),
)  # fmt: skip


@settings(max_examples=draws(300))
@given(st.lists(steps, max_size=60))
def test_accumulators_never_overlap_and_refuse_only_what_does_not_fit(
    plan: list[tuple[int, bool, bool, tuple[int, int], int]],
) -> None:
    """Against a model that only counts bytes: whatever the order, a sum that fits by count finds a place."""
    size = 160
    config = NpuConfig()
    accumulators = Accumulators(replace(config, te=replace(config.te, count=2, acc_bytes=size)))
    sums: dict[int, tuple[tuple[int, int], int, tuple[object, ...]]] = {}
    for address, accumulate, hold, shape, affinity in plan:
        command = gemm(address, accumulate, affinity)
        free = [size - sum(4 * s[0] * s[1] for s, engine, _ in sums.values() if engine == index) for index in (0, 1)]
        expected: TicketError | None = None
        engine = None
        if accumulate:
            if address not in sums or sums[address][0] != shape:
                expected = TicketError.NO_ACCUMULATOR
            elif affinity not in (0, sums[address][1] + 1):
                expected = TicketError.AFFINITY
            else:
                engine = sums[address][1]
        elif hold:
            if address in sums:
                old, where, _ = sums[address]
                free[where] += 4 * old[0] * old[1]
            engine = affinity - 1 if affinity else free.index(max(free))
            if free[engine] < 4 * shape[0] * shape[1]:
                expected = TicketError.ACC_OVERFLOW
        if expected is not None:
            with pytest.raises(DescriptorError) as error:
                accumulators.check(command, Sum(shape, True, hold))
            assert error.value.code == expected
            continue
        if engine is None:  # neither adds nor holds: none of the accumulators' business
            continue
        accumulators.check(command, Sum(shape, True, hold))
        accumulators.bind(command, Sum(shape, True, hold))
        assert command.affinity == engine + 1
        assert sum(region.row_bytes for region in command.accumulator_regions) == 4 * shape[0] * shape[1]
        if accumulate:
            assert command.accumulator_regions == sums[address][2]
        if hold:
            sums[address] = (shape, engine, command.accumulator_regions)
        else:
            del sums[address]
        used = sorted((r.address, r.end) for _, _, regions in sums.values() for r in regions)
        assert all(a[1] <= b[0] for a, b in pairwise(used))
