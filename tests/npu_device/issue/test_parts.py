"""The small parts: event stream, event queue, tickets, accumulators."""

import hashlib
import struct
from collections import deque
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from shares import draws

from npu_device.abi.descriptor import Descriptor
from npu_device.abi.errors import TicketError
from npu_device.abi.opcodes import Opcode
from npu_device.decode.accumulators import Accumulators
from npu_device.decode.command import Command, Order, Sum
from npu_device.decode.decoder import REMEMBERED, Requests
from npu_device.event_loop.timeline import Agenda, Phase, Timeline
from npu_device.issue.history import History
from npu_device.issue.retirement import MODULUS, Tickets
from npu_device.operations.checks import DescriptorError
from npu_device.trace.events import BATCH, PACKED, What
from npu_device.trace.records import RECORD
from npu_device.trace.stream import EventStream, records

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


# -- timeline ----------------------------------------------------------------------------------------------------------


@given(st.lists(st.tuples(st.integers(0, 9), st.sampled_from(list(Phase))), max_size=40), st.integers(1, 10))
def test_events_happen_by_cycle_phase_and_sequence(plan: list[tuple[int, Phase]], step: int) -> None:
    timeline = Timeline()
    happened: list[tuple[int, Phase, int]] = []
    actions = {
        phase: timeline.action(phase.name, phase, lambda cycle, what: happened.append((cycle, *what)), tuple)
        for phase in Phase
    }
    for number, (cycle, phase) in enumerate(plan):
        timeline.at(cycle, actions[phase], (phase, number))
    expected = sorted((cycle, phase, number) for number, (cycle, phase) in enumerate(plan))
    assert timeline.next_event() == (expected[0][0] if expected else None)
    for now in range(0, 20, step):
        timeline.advance(now)
        assert happened == [one for one in expected if one[0] <= now]
    assert timeline.next_event() is None


def test_the_order_of_phases_is_the_documented_one() -> None:
    assert [phase.name for phase in sorted(Phase)] == ["END", "RELEASE", "RATE", "ACCEPT", "FETCH", "START", "IRQ"]


def test_an_agenda_runs_once_per_cycle_and_not_later_than_asked() -> None:
    timeline = Timeline()
    ran: list[int] = []
    agenda = Agenda(timeline, "start", Phase.START, ran.append)
    for cycle in (7, 7, 9, 5, 5):
        agenda.request(cycle)
    timeline.advance(6)
    assert ran == [5]
    agenda.request(7)
    timeline.advance(20)
    assert ran[:2] == [5, 7]
    assert set(ran) <= {5, 7}


# -- tickets -----------------------------------------------------------------------------------------------------------


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
    tickets, model = Tickets(history=5), ModelTickets(5)
    tickets.taken = model.count = start
    near = [(start + i) % 2**32 for i in range(-3, 12)]
    for what, number in steps:
        if what == "device":
            model.count += 1
            expected = model.assign()
            assert tickets.assign(tickets.take()) == expected
            model.enter(expected)
        elif what == "host":
            ticket = near[number + 3]
            legal = 0 < ticket < 2**31 and ticket not in model.flying
            assert tickets.claim(ticket) == legal
            if legal:
                model.enter(ticket)
        elif model.flying:
            ticket = sorted(model.flying)[number % len(model.flying)]
            code = TicketError.OPCODE if what == "error" else 0
            tickets.finish(ticket, code)
            model.flying.remove(ticket)
            model.ended.append((ticket, code))
        assert [tickets.status(ticket) for ticket in near] == [model.status(ticket) for ticket in near]
    assert set(tickets.in_flight) == model.flying


@settings(max_examples=draws(100))
@given(
    st.sampled_from((1, 3, 8, 1500)),
    st.lists(st.tuples(st.booleans(), st.sampled_from((0, 8, 1024, 1 << 20)), st.integers(1, 12)), max_size=80),
)
def test_the_history_is_that_of_an_ordered_dictionary(size: int, steps: list[tuple[bool, int, int]]) -> None:
    """Tickets that meet at one place of the table, that are given again, and that leave."""
    history, model = History(size), dict[int, int]()
    for number in range(1, 1030 if size > 1024 else 1):
        history.add(number, 0)
        model[number] = 0
    for completes, distance, number in steps:
        ticket = distance + number
        history.discard(ticket)
        model.pop(ticket, None)
        if completes:
            history.add(ticket, number)
            model[ticket] = number
            if len(model) > size:
                del model[next(iter(model))]
        assert list(history) == list(model.items()) and len(history) == len(model)
        assert [history.get(each) for each in range(30)] == [model.get(each) for each in range(30)]


def test_the_history_of_long_runs_stays_small() -> None:
    history = History(1 << 10)
    for ticket in range(1, 1 << 15):
        history.add(ticket, ticket % 3)
        if not ticket % 5:
            history.discard(ticket)
    assert len(history) == 1 << 10 and len(history._ring) == 1 << 11


def test_the_history_holds_the_latest_completions_and_no_more() -> None:
    tickets = Tickets(history=2)
    for _ in range(3):
        tickets.finish(tickets.assign(tickets.take()))
        assert tickets.status(tickets.taken) == 3
    assert [tickets.status(ticket) for ticket in (1, 2, 3)] == [0, 3, 3]


def test_device_tickets_wrap_and_skip_zero() -> None:
    tickets = Tickets(4)
    tickets.taken = MODULUS - 2
    assert [tickets.assign(tickets.take()) for _ in range(4)] == [MODULUS - 1, 1, 2, 3]
    tickets.waits = lambda command: False
    tickets.accept(2, gemm(0, accumulate=False))
    assert [tickets.status(ticket) for ticket in (1, 2, 0)] == [1, 2, 0]


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
    accumulators = Accumulators(0, 2, size)
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
        assert command.accumulator is not None
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


# -- requests ----------------------------------------------------------------------------------------------------------


def test_descriptors_that_differ_in_status_and_ticket_are_one_request() -> None:
    requests, one = Requests(), Descriptor(opcode=Opcode.NOP, ticket=5, status=1)
    request = requests.of(one.pack())
    assert request.descriptor == one.with_(ticket=0, status=0)
    assert requests.of(one.with_(ticket=9, status=0).pack()) is request
    assert requests.of(one.with_(stream=1).pack()) is not request


def test_only_so_many_requests_are_remembered() -> None:
    requests = Requests()
    first, *_ = [requests.of(Descriptor(tile_m=size).pack()) for size in range(REMEMBERED + 1)]
    assert requests.of(Descriptor(tile_m=REMEMBERED).pack()) is requests.of(Descriptor(tile_m=REMEMBERED).pack())
    assert requests.of(Descriptor(tile_m=0).pack()) is not first
