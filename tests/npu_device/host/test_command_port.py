"""ENQCMD_T, TWAIT, TBAR and TSTAT (docs/interface.md, "Custom instructions")."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from npu_rig import BUFFER, DRAM, SMALL_SPM, SPM, Rig

from npu_device.abi.descriptor import Descriptor
from npu_device.abi.errors import NpuDeviceError, ReturnCode, TicketError
from npu_device.abi.instructions import PortReply, PortTrap, PortWait
from npu_device.abi.opcodes import DataType, FullPolicy, Opcode, Scope
from npu_device.abi.registers import Irq
from npu_device.config import DmaConfig, FrontEndConfig, NpuConfig, QueueConfig, TeConfig
from npu_device.host.command_port import CommandPort
from npu_device.trace.events import TIGHT, Refusal, What

NOP = Descriptor()
LOAD = Descriptor(opcode=Opcode.LOAD, tile_m=1, tile_k=64, type_in0=DataType.INT8, in0_addr=DRAM, out_addr=SPM)


def tight(policy: str = "retry", size: int = 2, **front: int) -> Rig:
    queue = QueueConfig(tight_size=size, full_policy=policy)
    return Rig(NpuConfig(spm=SMALL_SPM, queue=queue, frontend=FrontEndConfig(**front)))


def full(policy: str) -> Rig:
    """Two channels busy and a queue of two full, all on the same bytes: nothing moves for a hundred cycles."""
    rig = tight(policy)
    for _ in range(3):
        rig.submit(LOAD)
    assert rig.counter("QUEUE_DEPTH") == 2
    return rig


def test_a_submission_takes_fetch_and_validate_and_is_accepted_then() -> None:
    rig = tight(fetch_tight=8, validate=4, fetch_loose=99)
    now = rig.now
    assert rig.device.port.enqcmd(BUFFER, LOAD.pack(), 0, now) == PortReply(1, 12)
    rig.go(now + 13)
    assert [(e["what"], e["cycle"]) for e in rig.happened(What.SUBMIT, What.FETCH, What.ACCEPT)] == [
        (What.SUBMIT, now + 1),
        (What.FETCH, now + 1),
        (What.ACCEPT, now + 13),
    ]
    (accept,) = rig.happened(What.ACCEPT)
    assert (accept["ticket"], accept["bytes"], accept["aux"]) == (1, now + 1, TIGHT)
    (submit,) = rig.happened(What.SUBMIT)
    assert (submit["bytes"], submit["aux"]) == (BUFFER, 1)


def test_the_operand_fills_in_priority_and_stream_where_the_descriptor_has_none() -> None:
    config = NpuConfig(spm=SMALL_SPM, queue=QueueConfig(tight_size=16), dma=DmaConfig(channels=1))
    rig = Rig(config)
    rig.submit(LOAD)
    waiting = [
        rig.submit(LOAD.with_(out_addr=SPM + 64 * index, **own), operand=operand)
        for index, (own, operand) in enumerate(
            [({}, 0x11), ({}, 0x25), ({"prio": 3}, 0x3F), ({"stream": 4}, 0x52), ({"prio": 1, "stream": 6}, 0x00)], 1
        )
    ]
    rig.idle()
    assert [event["aux"] for event in rig.happened(What.READY)][1:] == [1, 2, 3, 4, 6]  # streams
    order = [event["ticket"] for event in rig.happened(What.DMA_BEGIN)][1:]
    assert order == [waiting[index] for index in (1, 2, 3, 0, 4)]  # priorities 5, 3, 2, 1, 1


@pytest.mark.parametrize("operand", [0x100, 0x8000_0000, 0xFFFF_FFFF])
def test_an_operand_with_other_bits_is_invalid(operand: int) -> None:
    rig = tight()
    assert rig.enqcmd(NOP, operand) == PortReply(-ReturnCode.EINVAL)
    assert rig.happened(What.REJECT)[0]["aux"] == Refusal.OPERAND
    assert (rig.counter("SUBMITTED"), rig.counter("REJECTED"), rig.counter("ACCEPTED")) == (1, 1, 0)


def test_a_disabled_device_is_busy_whatever_the_policy() -> None:
    for policy in ("retry", "stall", "trap", "drop"):
        rig = tight(policy)
        rig.write("CTRL", rig.read("CTRL") & ~1)
        assert rig.enqcmd(NOP) == PortReply(-ReturnCode.EBUSY)
        assert rig.happened(What.REJECT)[0]["aux"] == Refusal.DISABLED
        assert rig.read("IRQ_STATUS") == 0


@pytest.mark.parametrize(
    ("policy", "answer", "status"),
    [
        ("retry", PortReply(-ReturnCode.EBUSY), 0),
        ("trap", PortTrap(24, BUFFER), 0),
        ("drop", PortReply(0), Irq.DROPPED),
    ],
)
def test_a_full_queue_refuses(policy: str, answer: object, status: int) -> None:
    rig = full(policy)
    assert rig.enqcmd(LOAD) == answer
    (event,) = rig.happened(What.REJECT)
    assert (event["bytes"], event["aux"]) == (BUFFER, FullPolicy[policy.upper()])
    assert rig.read("IRQ_STATUS") == status
    assert (rig.counter("SUBMITTED"), rig.counter("REJECTED"), rig.counter("ACCEPTED")) == (4, 1, 3)
    rig.idle()
    assert rig.read("IRQ_STATUS") == status | Irq.SPACE
    assert rig.read("COMPLETED") == 3


def test_a_full_queue_stalls() -> None:
    rig = full("stall")
    for _ in range(3):
        assert rig.enqcmd(LOAD) == PortWait(None)
    assert not rig.happened(What.REJECT)
    assert len(rig.happened(What.SUBMIT)) == 4  # one submission, however often it looks
    while rig.enqcmd(LOAD) == PortWait(None):
        assert rig.next()
    assert len(rig.happened(What.SUBMIT)) == 4
    rig.idle()
    assert rig.read("IRQ_STATUS") == Irq.SPACE
    assert (rig.counter("SUBMITTED"), rig.counter("REJECTED"), rig.counter("COMPLETED")) == (4, 0, 4)


def test_space_is_not_announced_when_no_command_was_refused() -> None:
    rig = full("retry")
    rig.idle()
    assert rig.read("IRQ_STATUS") == 0


def test_one_refusal_is_one_notice_of_space() -> None:
    rig = full("retry")
    rig.enqcmd(LOAD)
    while not rig.read("IRQ_STATUS"):
        rig.go(rig.now + 1)
    rig.write("IRQ_ACK", int(Irq.SPACE))
    assert rig.counter("QUEUE_DEPTH") == 1
    rig.idle()
    assert rig.read("IRQ_STATUS") == 0


def test_the_policy_may_change_at_any_time() -> None:
    rig = full("retry")
    rig.write("CTRL", 1 | FullPolicy.DROP << 4)
    assert rig.enqcmd(LOAD) == PortReply(0)
    rig.write("CTRL", 1 | FullPolicy.TRAP << 4)
    assert isinstance(rig.enqcmd(LOAD), PortTrap)


def test_content_errors_are_tickets() -> None:
    rig = tight()
    assert rig.enqcmd(Descriptor(opcode=99)) == PortReply(1)
    assert rig.status(1) == 4 | TicketError.OPCODE << 8


# -- TWAIT -------------------------------------------------------------------------------------------------------------


def wait(rig: Rig, ticket: int, units: int = 0, pc: int = 0x100, resumed: bool = False) -> PortReply | PortWait:
    return rig.device.port.twait(ticket, units, pc, rig.now, resumed)


def test_twait_answers_for_what_has_ended_and_what_never_was() -> None:
    rig = tight()
    good, bad = rig.submit(NOP), rig.submit(Descriptor(opcode=99))
    for _ in range(2):  # waiting consumes nothing
        assert wait(rig, good) == PortReply(0)
        assert wait(rig, bad, 5) == PortReply(-TicketError.OPCODE)
    for ticket in (0, 3, 2**31, 2**32 - 1):
        assert wait(rig, ticket) == PortReply(-ReturnCode.ENOENT)
    assert [event["ticket"] for event in rig.happened(What.NOTIFY)] == [good, bad, good, bad]


def test_twait_waits_and_sees_the_completion_in_its_cycle() -> None:
    rig = tight()
    ticket = rig.submit(LOAD)
    assert wait(rig, ticket) == PortWait(None)
    while isinstance(answer := wait(rig, ticket, resumed=True), PortWait):
        assert rig.next()
    assert answer == PortReply(0)
    assert rig.now == rig.stamps(What.DONE)[ticket]


def slow_gemm(side: int, depth: int) -> tuple[Rig, int]:
    """A GEMM of side * side * depth cycles, started: the device and its ticket."""
    rig = Rig(NpuConfig(spm=SMALL_SPM, te=TeConfig(rows=1, columns=1)))
    gemm = Descriptor(
        opcode=Opcode.GEMM_T, tile_m=side, tile_n=side, tile_k=depth, type_in0=DataType.INT8, type_in1=DataType.INT8,
        type_out=DataType.INT32, in0_addr=SPM, in1_addr=SPM + 4096, out_addr=SPM + 8192,
    )  # fmt: skip
    return rig, rig.submit(gemm)


def test_a_timeout_continues_over_restarts() -> None:
    rig, ticket = slow_gemm(64, 64)
    begin = rig.now
    assert wait(rig, ticket, 1) == PortWait(begin + 1024)
    rig.go(begin + 500)
    assert wait(rig, ticket, 1, resumed=False) == PortWait(begin + 1024)  # restarted after an interrupt
    assert wait(rig, ticket, 1, pc=0x200) == PortWait(begin + 1524)  # another instruction
    rig.go(begin + 1500)
    assert wait(rig, ticket, 1) == PortReply(-ReturnCode.ETIMEDOUT)


def test_a_timeout_ends_and_the_next_wait_has_its_own() -> None:
    rig, ticket = slow_gemm(64, 64)
    begin = rig.now
    assert wait(rig, ticket, 2) == PortWait(begin + 2048)
    rig.go(begin + 2047)
    assert wait(rig, ticket, 2, resumed=True) == PortWait(begin + 2048)
    rig.go(begin + 2048)
    assert wait(rig, ticket, 2, resumed=True) == PortReply(-ReturnCode.ETIMEDOUT)
    assert wait(rig, ticket, 2) == PortWait(begin + 4096)
    rig.idle()
    assert wait(rig, ticket, 2) == PortReply(0)
    assert rig.device.port._deadlines == {}


def test_completion_comes_before_timeout_in_the_same_cycle() -> None:
    rig, ticket = slow_gemm(16, 4)  # 1024 cycles
    begin = rig.stamps(What.TE_BEGIN)[ticket]
    assert begin == rig.now
    assert wait(rig, ticket, 1) == PortWait(begin + 1024)
    rig.go(begin + 1024)
    assert wait(rig, ticket, 1, resumed=True) == PortReply(0)


def test_a_completed_ticket_leaves_no_deadline_for_its_next_life() -> None:
    rig = Rig(NpuConfig(spm=SMALL_SPM, queue=QueueConfig(tight_size=4)))
    rig.ring(LOAD.with_(ticket=9))
    rig.go(rig.now + 2)
    first = wait(rig, 9, 1)
    rig.idle()  # no TWAIT returned for the answer
    rig.ring(LOAD.with_(ticket=9))
    rig.go(rig.now + 2)
    assert isinstance(first, PortWait)
    assert wait(rig, 9, 1) == PortWait(rig.now + 1024)


# -- TBAR and TSTAT ----------------------------------------------------------------------------------------------------


@given(st.integers(0, 0xFFF))
def test_legal_immediates_of_tbar(immediate: int) -> None:
    scope, reserved, stream = immediate & 3, immediate & 0xF0C, immediate >> 4 & 0xF
    assert CommandPort.tbar_legal(immediate) == (
        not reserved and (scope == Scope.TILE or (scope in (Scope.CLUSTER, Scope.GLOBAL) and not stream))
    )


def test_an_illegal_immediate_is_misuse() -> None:
    with pytest.raises(NpuDeviceError, match="TBAR 0x3: not a legal immediate, ask `tbar_legal` first"):
        tight().device.port.tbar(3, 0)


def test_tbar_takes_no_slot_and_cannot_be_refused() -> None:
    rig = full("trap")
    assert rig.device.port.tbar(Scope.GLOBAL, rig.now) == PortReply(0)
    rig.go(rig.now + 1)
    assert rig.counter("QUEUE_DEPTH") == 2
    rig.write("CTRL", 0)
    assert rig.device.port.tbar(0x30, rig.now) == PortReply(0)
    opened = rig.happened(What.BARRIER_OPEN)
    assert [(event["aux"], event["ticket"], event["bytes"]) for event in opened] == [(2, 0, 0), (0x30, 0, 0)]
    closed = rig.happened(What.BARRIER_CLOSE)
    assert [(event["aux"], event["cycle"]) for event in closed] == [(0x30, opened[1]["cycle"])]  # nothing to wait for


def test_barrier_wait_counts_what_the_barrier_alone_costs() -> None:
    rig = Rig()
    first = rig.submit(LOAD)
    rig.device.port.tbar(Scope.GLOBAL, rig.now)
    free = rig.submit(LOAD.with_(out_addr=SPM + 64, stream=1))
    rig.submit(LOAD.with_(stream=2))  # its hazard holds it back as long
    rig.idle()
    done, accepted = rig.stamps(What.DONE), rig.stamps(What.ACCEPT)
    assert rig.counter("BARRIER_WAIT") == done[first] - accepted[free] > 0


def stat(rig: Rig) -> tuple[int, int, int, int]:
    word = rig.device.port.tstat(rig.now).value
    rig.go(rig.now + 1)
    return word & 0xFFFF, word >> 16 & 0xFF, word >> 24 & 0x7F, word >> 31


def test_tstat_shows_depth_idle_in_flight_and_the_sticky_error() -> None:
    rig = Rig(NpuConfig(spm=SMALL_SPM, te=TeConfig(rows=1, columns=1)))
    assert stat(rig) == (0, 100, 0, 0)
    gemm = Descriptor(
        opcode=Opcode.GEMM_T, tile_m=10, tile_n=10, tile_k=10, type_in0=DataType.INT8, type_in1=DataType.INT8,
        type_out=DataType.INT32, in0_addr=SPM, in1_addr=SPM + 4096, out_addr=SPM + 8192,
    )  # fmt: skip
    rig.submit(gemm)  # 1000 cycles on one engine of two
    rig.submit(gemm)
    rig.submit(Descriptor(opcode=99))
    assert stat(rig)[0::2] == (1, 2)
    rig.go(rig.now + 99)
    assert stat(rig) == (1, 50, 2, 1)
    rig.write("IRQ_ACK", int(Irq.ERROR))
    begin = rig.stamps(What.TE_BEGIN)[1]
    rig.go(begin + 1999)
    stat(rig)
    rig.go(begin + 2099)
    assert stat(rig) == (0, 100, 0, 0)


@given(st.lists(st.integers(1, 400), min_size=1, max_size=12))
def test_idle_percent_is_exact_between_any_two_looks(gaps: list[int]) -> None:
    rig = Rig(NpuConfig(spm=SMALL_SPM, te=TeConfig(rows=1, columns=1, count=3)))
    gemm = Descriptor(
        opcode=Opcode.GEMM_T, tile_m=7, tile_n=7, tile_k=7, type_in0=DataType.INT8, type_in1=DataType.INT8,
        type_out=DataType.INT32, in0_addr=SPM, in1_addr=SPM + 4096,
    )  # fmt: skip
    for index in range(4):
        rig.submit(gemm.with_(out_addr=SPM + 8192 + 1024 * index))
    looks = [0]
    idles = []
    for gap in gaps:
        rig.go(rig.now + gap)
        idles.append(stat(rig)[1])
        looks.append(rig.now)
    rig.idle()
    starts = {event["ticket"]: event["cycle"] for event in rig.happened(What.TE_BEGIN)}
    spans = [(starts[event["ticket"]], event["cycle"]) for event in rig.happened(What.TE_END)]
    for idle, (low, high) in zip(idles, pairwise(looks), strict=True):
        busy = sum(max(0, min(high, end) - max(low, begin)) for begin, end in spans)
        assert idle == 100 * (3 * (high - low) - busy) // (3 * (high - low))


def test_tstat_saturates() -> None:
    rig = Rig(NpuConfig(spm=SMALL_SPM, queue=QueueConfig(tight_size=1024)))
    rig.write("CTRL", 1)
    for _ in range(200):
        rig.submit(LOAD)
    depth, _, in_flight, _ = stat(rig)
    assert in_flight == 127 < depth
