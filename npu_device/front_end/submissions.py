"""Doorbell, ENQCMD_T, and ticket status for TWAIT, in the native subset (docs/interface.md)."""

from npu_device.abi.errors import ReturnCode
from npu_device.abi.opcodes import FullPolicy
from npu_device.abi.registers import Irq
from npu_device.decode.tile_state import DESCRIPTOR_WORDS
from npu_device.front_end.fetch import (
    announce,
    append_submission,
    descriptor_data,
    has_space,
    occupy_stages,
    plan_acceptance,
    plan_announcement,
    request_fetch,
)
from npu_device.front_end.interrupts import set_irq
from npu_device.reservation.commands import observe_submission
from npu_device.reservation.scheduler import emit
from npu_device.reservation.tickets import (
    NO_RECORDS,
    STALLED,
    TRAPPED,
    UNKNOWN,
    assign_ticket,
    find_ticket,
    ticket_code,
)
from npu_device.trace.events import FRONTEND, TIGHT, Refusal, What
from npu_device.units.state import NOT_YET, EventLoop
from pyv_native.intrinsics import load_i64, u32

UNHANDLED = -1
"""Result of `submit_descriptor`: nothing has changed, the device has to submit it in Python."""


def doorbell(loop: EventLoop, tail: int, cycle: int) -> None:
    """Move the tail of the ring, if it has space for so many descriptors."""
    front = loop.front
    count = u32(tail - front.tail)
    occupied = u32(front.tail - front.head)
    if count > front.ring_size - occupied:
        if occupied >= front.ring_size:
            front.ring_refused = True
        set_irq(loop, cycle, Irq.RING_OVERFLOW)
        emit(loop.issue, cycle, FRONTEND, What.REJECT, 0, tail, Refusal.RING_OVERFLOW)
    else:
        front.tail = tail
        emit(loop.issue, cycle, FRONTEND, What.SUBMIT, 0, tail, count)
        request_fetch(loop, cycle)


def refuse(loop: EventLoop, arrival: int, address: int, refusal: int) -> None:
    """Emit REJECT of an ENQCMD_T."""
    emit(loop.issue, arrival, FRONTEND, What.REJECT, 0, address, refusal)


def submit(loop: EventLoop, address: int, data: int, operand: int, arrival: int) -> int:
    """Submit the descriptor at host address `data`, which ENQCMD_T has read at `address`. Return the ticket, 0
    (dropped), minus a ReturnCode, STALLED or TRAPPED; the core receives it `front.response` cycles after `arrival`.

    A stalled submission is tried again with the same address, and SUBMIT is emitted once. NO_RECORDS: records are
    missing, nothing has changed.
    """
    front = loop.front
    if not loop.issue.spare_tickets or not loop.issue.spare_entries:
        return NO_RECORDS
    if front.stalled != address:
        emit(loop.issue, arrival, FRONTEND, What.SUBMIT, 0, address, 1)
    front.stalled = NOT_YET
    front.response = 0
    if operand >> 8:
        refuse(loop, arrival, address, Refusal.OPERAND)
        return -ReturnCode.EINVAL
    if not loop.enabled:
        refuse(loop, arrival, address, Refusal.DISABLED)
        return -ReturnCode.EBUSY
    if front.observed and not observe_submission(loop.issue, arrival, address):
        refuse(loop, arrival, address, Refusal.RETRY)
        return -ReturnCode.EBUSY
    if not has_space(front):
        return answer_full(loop, arrival, address)
    submission = append_submission(loop, address, TIGHT, max(arrival, front.fetch_free))
    if submission is None:
        return 0
    submission.ticket = assign_ticket(loop.issue, submission.number)
    submission.prio = operand & 0xF
    submission.stream = operand >> 4 & 0xF
    submission.readable = True
    for index in range(DESCRIPTOR_WORDS):
        submission.words[index] = load_i64(data + 8 * index)
    if submission.fetch_start == arrival:
        announce(loop, submission)
    elif front.announcing is None:
        plan_announcement(front, submission)
    occupy_stages(front, submission, front.fetch_tight)
    plan_acceptance(front)
    front.response = submission.acceptance_cycle - arrival
    return submission.ticket


def submit_descriptor(loop: EventLoop, address: int, operand: int, arrival: int) -> int:
    """Submit the descriptor at an address, as `submit`, for native code of the core. Return (cycles until the answer)
    << 32 | rd; rd is the ticket, 0 (dropped), or minus a ReturnCode as 32 bits. UNHANDLED is the only negative
    result."""
    front = loop.front
    if front.observed:
        return UNHANDLED
    waits = front.policy == FullPolicy.STALL
    if not has_space(front) and (waits or front.policy == FullPolicy.TRAP):
        return UNHANDLED
    data = descriptor_data(loop.tile, address)
    if not data:
        return UNHANDLED
    answer = submit(loop, address, data, operand, arrival)
    if answer == NO_RECORDS:
        return UNHANDLED
    return front.response << 32 | u32(answer)


def answer_full(loop: EventLoop, arrival: int, address: int) -> int:
    """Answer an ENQCMD_T that finds the queue full."""
    front = loop.front
    front.queue_refused = True
    if front.policy == FullPolicy.STALL:
        front.stalled = address
        return STALLED
    refuse(loop, arrival, address, front.policy)
    if front.policy == FullPolicy.TRAP:
        return TRAPPED
    if front.policy == FullPolicy.DROP:
        set_irq(loop, arrival, Irq.DROPPED)
        return 0
    return -ReturnCode.EBUSY


def query_ticket(loop: EventLoop, ticket: int, cycle: int) -> int:
    """Return `ticket_code` for TWAIT; emits NOTIFY if the ticket has ended."""
    code = ticket_code(loop.issue, ticket)
    if code >= 0:
        emit(loop.issue, cycle, FRONTEND, What.NOTIFY, ticket, 0, code)
    return code


def ticket_since(loop: EventLoop, ticket: int) -> int:
    """Return the generation of a ticket in flight, as ticket numbers are reused; UNKNOWN: it is not in flight."""
    record = find_ticket(loop.issue, ticket)
    return record.since if record is not None and record.in_flight else UNKNOWN
