"""Soft reset: work in flight vanishes, what is configuration and what is counted stays (docs/interface.md)."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from npu_rig import BUFFER, DRAM, REG, RING, SMALL_SPM, SPM, Rig
from shares import draws

from npu_device.abi.descriptor import Descriptor
from npu_device.abi.errors import ReturnCode, TicketError
from npu_device.abi.instructions import PortReply, PortWait
from npu_device.abi.opcodes import DataType, Gemm, Opcode, Scope
from npu_device.config import FrontEndConfig, NpuConfig, QueueConfig
from npu_device.trace.events import What

INT8, INT32 = DataType.INT8, DataType.INT32
LOAD = Descriptor(opcode=Opcode.LOAD, tile_m=1, tile_k=4096, type_in0=INT8, in0_addr=DRAM, out_addr=SPM)
GEMM = Descriptor(
    opcode=Opcode.GEMM_T, tile_m=8, tile_n=8, tile_k=8, type_in0=INT8, type_in1=INT8, type_out=INT32,
    in0_addr=SPM, in1_addr=SPM + 64, out_addr=SPM + 128,
)  # fmt: skip
RESET = 4 | TicketError.RESET << 8


def busy() -> tuple[Rig, list[int]]:
    """Running, ended but not retired in its stream, waiting for a hazard, behind a barrier, in the ring."""
    rig = Rig(NpuConfig(spm=SMALL_SPM, queue=QueueConfig(size=8, tight_size=8), frontend=FrontEndConfig(20, 0, 4)))
    rig.dram[:4096] = 1
    rig.spm[0][8192:8320] = 1
    tickets = [
        rig.submit(LOAD),
        rig.submit(GEMM.with_(in0_addr=SPM + 8192, in1_addr=SPM + 8256, out_addr=SPM + 12288)),
        rig.submit(LOAD),
        rig.submit(GEMM.with_(function=Gemm.HOLD, stream=1)),
        rig.submit(LOAD.with_(out_addr=SPM + 16384, stream=2)),
    ]
    rig.device.port.tbar(Scope.GLOBAL, rig.now)
    rig.go(rig.now + 1)
    tickets.append(rig.submit(Descriptor()))
    rig.write("IRQ_MASK", 31)
    rig.ring(Descriptor(), Descriptor(), Descriptor())
    return rig, tickets


def test_what_vanishes_and_what_stays() -> None:
    rig, tickets = busy()
    base, size = rig.read("QUEUE_BASE_LO"), rig.read("QUEUE_SIZE")
    dram, spm = rig.dram.copy(), rig.spm[0].copy()
    rig.written.clear()
    rig.write("CTRL", 0x31 | 2)
    when = rig.now
    assert rig.device.next_event() is None
    assert rig.stamps(What.ERROR) == dict.fromkeys(tickets, when)
    assert [rig.status(ticket) for ticket in tickets] == [RESET] * len(tickets)
    names = ("CTRL", "QUEUE_HEAD", "QUEUE_TAIL", "IRQ_STATUS", "IRQ_MASK", "QUEUE_BASE_LO", "QUEUE_SIZE")
    assert [rig.read(name) for name in names] == [0x30, 0, 0, 0, 0, base, size]
    assert not rig.device.irq
    assert not rig.written
    assert np.array_equal(rig.dram, dram)
    assert np.array_equal(rig.spm[0], spm)
    assert rig.counter("ACCEPTED") == rig.counter("COMPLETED") == rig.counter("ERRORS") == len(tickets)
    assert rig.counter("QUEUE_DEPTH") == 0
    stop = {event["ticket"]: event["cycle"] for event in rig.happened(What.ERROR, What.DMA_END, What.TE_END)[::-1]}
    begins = rig.happened(What.DMA_BEGIN, What.TE_BEGIN)
    busy_cycles = sum(stop[event["ticket"]] - event["cycle"] for event in begins)
    json = rig.device.counters.to_json()
    assert sum(json["dma_busy"] + json["te_busy"]) == busy_cycles
    assert len(begins) == 3
    assert rig.enqcmd(Descriptor()) == PortReply(-ReturnCode.EBUSY)


def test_the_device_works_as_new_and_counts_on() -> None:
    rig, tickets = busy()
    rig.write("CTRL", 2)
    rig.write("CTRL", 1)
    rig.slots = 0
    next_ticket = len(tickets) + 1
    again = rig.submit(LOAD)
    assert again == next_ticket
    copy = Descriptor(opcode=Opcode.COPY, tile_m=1, tile_k=256, type_in0=INT8, in0_addr=SPM + 12288, stream=5)
    rig.spm[0][20480:20736] = 9
    rig.submit(copy.with_(out_addr=SPM + 20480))  # where a result was stored
    rig.idle()
    assert not rig.spm[0][20480:20736].any()
    rig.submit(GEMM.with_(in0_addr=SPM + 8192, in1_addr=SPM + 8256, out_addr=SPM + 12288))
    gone = rig.submit(GEMM.with_(accumulate=1))  # the accumulators are empty
    rig.ring(Descriptor(ticket=1000))
    rig.idle()
    assert rig.status(again) == rig.status(1000) == 3
    assert rig.status(gone) == 4 | TicketError.NO_ACCUMULATOR << 8
    assert (rig.spm[0][12288:12544].view("<i4") == 8).all()
    assert rig.read("QUEUE_HEAD") == 1
    running = rig.device.counters.to_json()
    assert sum(running["dma_busy"]) > 0


def test_the_core_has_the_ticket_of_an_enqcmd_that_a_reset_overtakes() -> None:
    rig = Rig(NpuConfig(spm=SMALL_SPM, frontend=FrontEndConfig(fetch_tight=30, validate=4)))
    answer = rig.device.port.enqcmd(BUFFER, LOAD.pack(), 0, rig.now)
    assert answer == PortReply(1, 34)
    rig.go(rig.now + 10)
    rig.write("CTRL", 2)
    rig.write("CTRL", 1)
    assert rig.status(1) == RESET
    rig.idle()
    assert not rig.happened(What.DMA_BEGIN)
    assert rig.counter("ACCEPTED") == rig.counter("COMPLETED") == 1
    assert rig.submit(LOAD) == 2


def test_the_pipeline_is_empty_after_a_reset() -> None:
    rig = Rig(NpuConfig(spm=SMALL_SPM, frontend=FrontEndConfig(fetch_loose=200)))
    rig.ring(Descriptor())
    rig.go(rig.now + 3)
    rig.write("CTRL", 2)
    rig.write("CTRL", 1)
    rig.slots = 0
    rig.ring(Descriptor())
    begin = rig.now
    assert [event["cycle"] for event in rig.happened(What.FETCH)][-1] == begin
    assert rig.idle() == begin + 200


def test_a_reset_in_the_cycle_of_an_enable_and_a_doorbell() -> None:
    rig = Rig(enable=False)
    for name, value in (("QUEUE_BASE_LO", RING), ("CTRL", 1), ("DOORBELL", 1), ("IRQ_MASK", 31), ("CTRL", 2)):
        rig.device.write(REG[name], 4, value, rig.now)
    for name, value in (("CTRL", 1), ("DOORBELL", 1)):
        rig.device.write(REG[name], 4, value, rig.now)
    rig.put([LOAD])
    rig.idle()
    assert rig.status(1) == 3


def test_a_stalled_submission_is_a_new_one_after_a_reset() -> None:
    rig = Rig(NpuConfig(spm=SMALL_SPM, queue=QueueConfig(tight_size=2, full_policy="stall")))
    for _ in range(3):
        rig.submit(LOAD)
    assert rig.enqcmd(LOAD) == rig.enqcmd(LOAD) == PortWait(None)
    rig.write("CTRL", 0x12)
    rig.write("CTRL", 0x11)
    assert isinstance(rig.enqcmd(LOAD), PortReply)
    assert len(rig.happened(What.SUBMIT)) == 5
    rig.idle()
    assert rig.read("IRQ_STATUS") == 0


@settings(max_examples=draws(60), deadline=None)
@given(st.integers(0, 700), st.integers(1, 60))
def test_a_reset_at_any_time_leaves_a_device_that_works(when: int, gap: int) -> None:
    rig, tickets = busy()
    rig.go(rig.now + when)
    rig.write("CTRL", 2)
    assert rig.device.next_event() is None
    for ticket in tickets:
        assert rig.status(ticket) in (3, RESET)
    assert rig.counter("ACCEPTED") == rig.counter("COMPLETED")
    rig.go(rig.now + gap)
    rig.write("CTRL", 1)
    rig.slots = 0
    first = rig.counter("ACCEPTED") + 1
    rig.ring(LOAD, Descriptor(), GEMM, Descriptor(opcode=Opcode.BARRIER, function=2), LOAD)
    rig.idle()
    assert [rig.status(first + i) for i in range(5)] == [3] * 5
    assert rig.counter("QUEUE_DEPTH") == 0
    assert rig.counter("ACCEPTED") == rig.counter("COMPLETED")
    assert rig.device.ring.base == RING


@pytest.mark.parametrize("bits", [2, 3, 7])
def test_reset_wins_over_enable(bits: int) -> None:
    rig = Rig()
    rig.write("CTRL", bits)
    assert rig.read("CTRL") == 0
