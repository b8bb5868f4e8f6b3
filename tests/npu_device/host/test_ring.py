"""The ring: doorbell rule, fetch pipeline, back-pressure (docs/interface.md, "NPU registers")."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from npu_rig import DRAM, RING, SMALL_SPM, SPM, Rig

from npu_device.abi.descriptor import Descriptor
from npu_device.abi.errors import TicketError
from npu_device.abi.opcodes import DataType, Opcode
from npu_device.abi.registers import Irq
from npu_device.config import DmaConfig, FrontEndConfig, NpuConfig, QueueConfig
from npu_device.front_end.fetch import slot_address
from npu_device.trace.events import TIGHT, Refusal, What

NOP = Descriptor()
LOAD = Descriptor(opcode=Opcode.LOAD, tile_m=1, tile_k=64, type_in0=DataType.INT8, in0_addr=DRAM, out_addr=SPM)


def loose(size: int = 8, command: int = 4, front: tuple[int, int, int] = (20, 8, 4), **more: object) -> Rig:
    return Rig(
        NpuConfig(
            mode="loose",
            spm=SMALL_SPM,
            queue=QueueConfig(size=size, command_size=command),
            frontend=FrontEndConfig(*front),
            **more,  # type: ignore[arg-type]
        )
    )


@given(
    st.integers(0, 2**32 - 1),
    st.lists(st.tuples(st.integers(-3, 20), st.integers(0, 5)), max_size=40),
    st.sampled_from((2, 8, 16)),
)
def test_the_doorbell_rule_modulo_2_to_32(start: int, steps: list[tuple[int, int]], size: int) -> None:
    rig = loose(size=size)
    front, ring = rig.device.host.pipeline.front, rig.device.ring
    front.base_low, front.head, front.tail, front.next_fetch = 0, start, start, start
    head = tail = start  # unbounded integers
    for distance, fetched in steps:
        legal = distance % 2**32 <= size - (tail - head)
        value = (tail + distance) % 2**32
        front.irq_status = 0
        rig.device.host.doorbell(value, 0)
        assert front.irq_status == (0 if legal else Irq.RING_OVERFLOW)
        tail += distance % 2**32 if legal else 0
        for _ in range(min(fetched, tail - head)):
            assert ring.slot(ring.head) == slot_address(front, front.head) == head % size * 64
            head += 1
            front.head = front.next_fetch = head % 2**32
        assert (ring.head, ring.tail, ring.occupied) == (head % 2**32, tail % 2**32, tail - head)


def test_a_descriptor_has_the_ticket_that_it_asks_for() -> None:
    rig = loose()
    rig.ring(NOP.with_(ticket=77), NOP, NOP.with_(ticket=5))
    rig.idle()
    assert sorted(rig.stamps(What.DONE)) == sorted(rig.stamps(What.ACCEPT)) and {5, 77} <= set(rig.stamps(What.DONE))


def test_fetch_and_validation_are_a_pipeline() -> None:
    """One descriptor in each stage: accepted every max(fetch, validate) cycles."""
    rig = loose()
    rig.ring(NOP, NOP, NOP)
    start = rig.now
    rig.idle()
    assert [event["cycle"] for event in rig.happened(What.FETCH)] == [start, start + 20, start + 40]
    accepts = rig.happened(What.ACCEPT)
    assert [event["cycle"] for event in accepts] == [start + 24, start + 44, start + 64]
    assert [event["aux"] for event in accepts] == [0, 1, 2]
    assert [event["bytes"] for event in accepts] == [start, start + 20, start + 40]


def test_a_slow_validation_holds_the_fetch_stage() -> None:
    rig = loose(front=(5, 0, 30))
    rig.ring(NOP, NOP, NOP)
    start = rig.now
    rig.idle()
    assert [event["cycle"] - start for event in rig.happened(What.FETCH)] == [0, 5, 35]
    assert [event["cycle"] - start for event in rig.happened(What.ACCEPT)] == [35, 65, 95]


def test_head_advances_when_the_bytes_have_been_read() -> None:
    rig = loose()
    tail = rig.put([NOP, NOP])
    rig.write("DOORBELL", tail)
    start = rig.now
    rig.go(start + 19)
    assert rig.device.ring.head == 0
    rig.dram[0xF_0000 + 0] = 99  # still the firmware's race to lose: the bytes are sampled at the end of the fetch
    rig.go(start + 20)
    assert rig.device.ring.head == 1
    rig.idle()
    assert rig.status(1) == 4 | TicketError.OPCODE << 8
    assert rig.status(2) == 3


def test_both_ways_in_share_the_pipeline_and_keep_their_order() -> None:
    rig = Rig(NpuConfig(spm=SMALL_SPM, frontend=FrontEndConfig(20, 8, 4)))
    rig.ring(NOP, NOP)
    start = rig.now
    rig.go(start + 3)
    answer = rig.device.port.enqcmd(DRAM, NOP.pack(), 0, rig.now)
    rig.idle()
    accepts = rig.happened(What.ACCEPT)
    assert [(e["cycle"] - start, e["aux"], e["ticket"]) for e in accepts] == [(24, 0, 1), (32, TIGHT, 2), (52, 1, 3)]
    assert answer == (2, 32 - 4)
    assert [e["cycle"] - start for e in rig.happened(What.FETCH)] == [0, 20, 28]


def test_room_is_reserved_when_a_fetch_begins() -> None:
    """The device queue of 4 and the stages never hold more than it has room for; the ring waits in memory."""
    rig = loose(size=16, command=4, front=(2, 0, 9), dma=DmaConfig(channels=1))
    rig.ring(*[LOAD] * 12)
    while rig.next():
        depth = rig.counter("QUEUE_DEPTH")
        on_the_way = len(rig.happened(What.FETCH)) - len(rig.happened(What.ACCEPT))
        assert depth + on_the_way <= 4
    assert rig.counter("COMPLETED") == 12
    starts = [event["cycle"] for event in rig.happened(What.DMA_BEGIN)]
    fetches = [event["cycle"] for event in rig.happened(What.FETCH)]
    assert fetches[6:] == [start + 1 for start in starts[2:8]]


def test_an_overrun_is_ignored_and_reported() -> None:
    rig = loose(size=4)
    rig.write("CTRL", 0)
    rig.ring(NOP, NOP, NOP, NOP)
    for value in (5, 3, 0, 2**32 - 1):
        rig.write("DOORBELL", value)
        assert rig.read("QUEUE_TAIL") == 4
        assert rig.read("IRQ_STATUS") == Irq.RING_OVERFLOW
        rig.write("IRQ_ACK", int(Irq.RING_OVERFLOW))
    refused = rig.happened(What.REJECT)
    assert [(event["bytes"], event["aux"]) for event in refused] == [
        (value, Refusal.RING_OVERFLOW) for value in (5, 3, 0, 2**32 - 1)
    ]
    rig.write("DOORBELL", 4)  # nothing new is fine
    assert rig.read("IRQ_STATUS") == 0
    rig.write("CTRL", 1)
    rig.idle()
    assert rig.read("COMPLETED") == 4
    assert rig.counter("REJECTED") == 0


def test_someone_refused_at_a_full_ring_hears_of_space() -> None:
    rig = loose(size=4)
    rig.write("CTRL", 0)
    rig.ring(NOP, NOP, NOP, NOP)
    rig.write("DOORBELL", 5)
    rig.write("IRQ_ACK", 31)
    rig.write("CTRL", 1)
    assert rig.read("IRQ_STATUS") == 0
    rig.idle()
    assert rig.read("IRQ_STATUS") == Irq.SPACE


def test_a_backward_doorbell_announces_no_space() -> None:
    rig = loose(size=4)
    rig.ring(NOP, NOP, NOP)
    rig.write("DOORBELL", 0)  # backward: refused, but the ring is not full
    rig.write("IRQ_ACK", int(Irq.RING_OVERFLOW))
    rig.idle()
    assert rig.read("IRQ_STATUS") == 0


def test_nothing_is_fetched_or_started_while_disabled() -> None:
    rig = loose()
    rig.write("CTRL", 0)
    rig.ring(LOAD, NOP)
    assert rig.idle() == rig.now
    assert rig.read("QUEUE_HEAD") == 0
    rig.write("CTRL", 1)
    rig.go(rig.now + 21)
    rig.write("CTRL", 0)  # the first is in the pipeline: it is accepted, and waits
    rig.idle()
    assert rig.read("QUEUE_HEAD") == 2
    assert rig.counter("QUEUE_DEPTH") == 2
    assert not rig.happened(What.DMA_BEGIN, What.DONE)
    rig.write("CTRL", 1)
    rig.idle()
    assert rig.read("COMPLETED") == 2


def test_a_slot_outside_memory_is_an_error_and_the_queue_goes_on() -> None:
    rig = loose(size=4)
    rig.write("CTRL", 0)
    rig.write("QUEUE_BASE_LO", DRAM + (1 << 20) - 128)  # two slots inside, two outside
    rig.write("CTRL", 1)
    rig.write("DOORBELL", 4)
    rig.idle()
    assert rig.read("QUEUE_HEAD") == 4
    assert [rig.status(ticket) for ticket in (1, 2, 3, 4)] == [3, 3] + [4 | TicketError.FETCH << 8] * 2
    rig.write("DOORBELL", 6)
    rig.idle()
    assert rig.status(6) == 3


def test_the_ring_wraps_modulo_2_to_32() -> None:
    rig = loose(size=4)
    front = rig.device.host.pipeline.front
    front.head = front.tail = front.next_fetch = 2**32 - 2
    rig.slots = 2**32 - 2
    rig.put([NOP.with_(ticket=1001 + i) for i in range(4)])
    rig.write("DOORBELL", 2)
    rig.idle()
    assert rig.read("QUEUE_HEAD") == 2
    accepts = rig.happened(What.ACCEPT)
    assert [event["ticket"] for event in accepts] == [1001, 1002, 1003, 1004]
    assert [event["aux"] for event in accepts] == [2**32 - 2, 2**32 - 1, 0, 1]
    assert [event["bytes"] for event in rig.happened(What.FETCH)] == [RING + 128, RING + 192, RING, RING + 64]


@pytest.mark.parametrize("write_status", [0, 1])
def test_status_write_back(write_status: int) -> None:
    rig = loose()
    rig.ring(NOP.with_(write_status=write_status, ticket=77), Descriptor(opcode=99, write_status=write_status))
    rig.idle()
    words = [int.from_bytes(rig.bytes_at(RING + offset, 4), "little") for offset in (56, 60, 120, 124)]
    assert words == ([1, 77, 2 | TicketError.OPCODE << 8, 2] if write_status else [0, 77, 0, 0])
    assert ((RING + 56, 8) in rig.written) == bool(write_status)
