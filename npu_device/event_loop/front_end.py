"""The front end in the native subset: doorbell and ring, ENQCMD_T, fetch and validation of descriptors, entries of the
device queue, interrupts, completion of tickets (docs/interface.md).

One descriptor is in the fetch stage and one in the validate stage at a time; both ways in share them in order. An entry
of the device queue is reserved when a fetch begins, so the ring waits in memory. A descriptor is on its way from fetch
to acceptance.
"""

from npu_device.abi import DESCRIPTOR_SIZE
from npu_device.abi.errors import ReturnCode
from npu_device.abi.memory_map import DRAM_BASE
from npu_device.abi.opcodes import FullPolicy
from npu_device.abi.registers import IRQ_ALL, Irq
from npu_device.cost.piece_record import PieceRecord
from npu_device.event_loop.sharing import priority_access
from npu_device.event_loop.state import (
    ACCEPT,
    ANNOUNCE,
    END,
    FETCH,
    FOREVER,
    NOT_YET,
    RELEASE,
    START,
    EventLoop,
    FrontEnd,
)
from npu_device.event_loop.state import IRQ as IRQ_LINE
from npu_device.event_loop.stepper import next_cycle
from npu_device.memory.region import OPERAND_WORDS
from npu_device.reservation import state
from npu_device.reservation.commands import accept, observe_submission
from npu_device.reservation.hazards import LISTED
from npu_device.reservation.orders import find_order, load_operands
from npu_device.reservation.scheduler import emit
from npu_device.reservation.state import (
    DESCRIPTOR_WORDS,
    FIFO,
    NO_SCOPE,
    NO_UNIT,
    ORDER_WORDS,
    PRIORITY,
    Entry,
    Issue,
    Submission,
)
from npu_device.reservation.tickets import (
    STALLED,
    TRAPPED,
    UNKNOWN,
    assign_ticket,
    enter_ticket,
    find_ticket,
    finish_ticket,
    is_free,
    set_command,
    ticket_code,
    ticket_status,
)
from npu_device.trace.events import FRONTEND, TIGHT, Refusal, What
from pyv_native.intrinsics import i32, load_i64, u32, unsigned_less

START_REQUEST, RELEASE_REQUEST = state.START, state.RELEASE


def request(front: FrontEnd, agenda: int, cycle: int) -> None:
    """Plan an event of a kind for a cycle, unless an earlier one is planned; spurious events are harmless."""
    if cycle < front.agendas[agenda]:
        front.agendas[agenda] = cycle
        if cycle < front.due:
            front.due = cycle


def request_event(loop: EventLoop, agenda: int, cycle: int) -> None:
    """Plan an event, as `request` does."""
    request(loop.front, agenda, cycle)


def schedule_step(loop: EventLoop) -> None:
    """Plan the next event of the engines."""
    request(loop.front, END, next_cycle(loop))


def apply_requests(loop: EventLoop, cycle: int, requests: int) -> None:
    """Plan what a function of the issue stage asks for."""
    if requests & START_REQUEST:
        request(loop.front, START, cycle)
    if requests & RELEASE_REQUEST:
        request(loop.front, RELEASE, cycle)


# -- interrupts --------------------------------------------------------------------------------------------------------


def change_irq(front: FrontEnd, cycle: int, status: int, mask: int) -> None:
    """Change IRQ_STATUS and IRQ_MASK from the start of a cycle."""
    front.irq_status = status
    front.irq_mask = mask
    front.irq_level = status & mask != 0
    if front.irq_level != front.irq_line:
        request(front, IRQ_LINE, cycle)


def set_irq(loop: EventLoop, cycle: int, bits: int) -> None:
    """Set bits of IRQ_STATUS."""
    change_irq(loop.front, cycle, loop.front.irq_status | bits, loop.front.irq_mask)


def acknowledge_irq(loop: EventLoop, cycle: int, bits: int) -> None:
    """Clear bits of IRQ_STATUS."""
    change_irq(loop.front, cycle, loop.front.irq_status & ~bits, loop.front.irq_mask)


def mask_irq(loop: EventLoop, cycle: int, mask: int) -> None:
    """Set IRQ_MASK."""
    change_irq(loop.front, cycle, loop.front.irq_status, mask & IRQ_ALL)


def clear_irq(loop: EventLoop, cycle: int) -> None:
    """Clear IRQ_STATUS and IRQ_MASK."""
    change_irq(loop.front, cycle, 0, 0)


def update_line(loop: EventLoop, cycle: int) -> None:
    """Update the line in the last phase of a cycle: a line that fell and rose within it has not moved."""
    front = loop.front
    if front.irq_level and not front.irq_line:
        emit(loop.issue, cycle, FRONTEND, What.IRQ, 0, 0, front.irq_status & front.irq_mask)
    front.irq_line = front.irq_level


# -- the device queue --------------------------------------------------------------------------------------------------


def has_room(front: FrontEnd) -> int:
    """Check whether the device queue has an entry for one more descriptor."""
    return front.depth + front.reserved < front.capacity


def request_fetch(loop: EventLoop, cycle: int) -> None:
    """Plan a fetch from the ring, after a change that may permit it."""
    if loop.enabled and loop.front.next_fetch != loop.front.tail:
        request(loop.front, FETCH, cycle)


def free_entries(loop: EventLoop, cycle: int, room: int) -> None:
    """Entries of the queue became free in a cycle; `room`: from when on the ring may use them."""
    if loop.front.queue_refused:
        loop.front.queue_refused = False
        set_irq(loop, cycle, Irq.SPACE)
    request_fetch(loop, room)


def cancel_entry(loop: EventLoop, cycle: int) -> None:
    """Free the reserved entry of a descriptor that was in error."""
    loop.front.reserved -= 1
    free_entries(loop, cycle, cycle)


# -- descriptors on their way ------------------------------------------------------------------------------------------


def append_submission(loop: EventLoop, address: int, slot: int, cycle: int) -> Submission | None:
    """Take up a descriptor, whose fetch begins in `cycle`; None: no record is free."""
    front = loop.front
    issue = loop.issue
    submission = issue.free_submissions
    if submission is None:
        return None
    issue.free_submissions = submission.next
    issue.spare_submissions -= 1
    front.reserved += 1
    issue.taken += 1
    submission.number = issue.taken
    submission.address = address
    submission.slot = slot
    submission.began = cycle
    submission.ticket = 0
    submission.prio = 0
    submission.stream = 0
    submission.announced = False
    submission.readable = False
    link_submission(front, submission)
    return submission


def link_submission(front: FrontEnd, submission: Submission) -> None:
    """Append a descriptor to those on their way."""
    submission.next = None
    if front.youngest is None:
        front.oldest = submission
    else:
        front.youngest.next = submission
    front.youngest = submission


def occupy_stages(front: FrontEnd, submission: Submission, fetch: int) -> None:
    """Pass a descriptor through both stages."""
    submission.fetched = submission.began + fetch
    front.fetch_free = max(submission.fetched, front.validate_free)
    front.validate_free = front.fetch_free + front.validate
    submission.accepted = front.validate_free


def announce(loop: EventLoop, submission: Submission) -> None:
    """Emit FETCH of a descriptor."""
    submission.announced = True
    emit(loop.issue, submission.began, FRONTEND, What.FETCH, 0, submission.address, submission.slot)


def announce_next(loop: EventLoop) -> None:
    """Emit FETCH of a descriptor of ENQCMD_T that had to wait for the fetch stage."""
    if loop.front.announcing is not None:
        announce(loop, loop.front.announcing)
        plan_announcement(loop.front, loop.front.announcing)


def plan_announcement(front: FrontEnd, submission: Submission | None) -> None:
    """Plan FETCH of the first descriptor from `submission` on for which it is to be emitted."""
    while submission is not None and submission.announced:
        submission = submission.next
    front.announcing = submission
    if submission is not None:
        request(front, ANNOUNCE, submission.began)


def find_unread(front: FrontEnd, submission: Submission | None) -> None:
    """Find the first descriptor of the ring from `submission` on that has not been read."""
    while submission is not None and (submission.slot == TIGHT or submission.fetched == NOT_YET):
        submission = submission.next
    front.fetching = submission


def plan_acceptance(front: FrontEnd) -> None:
    """Plan the next read or acceptance of a descriptor."""
    front.agendas[ACCEPT] = FOREVER
    if front.oldest is not None:
        request(front, ACCEPT, front.oldest.accepted)
    if front.fetching is not None:
        request(front, ACCEPT, front.fetching.fetched)


def slot_address(front: FrontEnd, index: int) -> int:
    """Address of the ring's descriptor with an index, modulo 2^64."""
    low = front.base_low + index % front.ring_size * DESCRIPTOR_SIZE
    return i32(front.base_high + (low >> 32)) << 32 | u32(low)


def begin_fetches(loop: EventLoop, cycle: int) -> int:
    """Begin fetches from the ring as long as there is room; 1: a record for the next one is missing."""
    front = loop.front
    while loop.enabled and front.next_fetch != front.tail and has_room(front):
        if front.fetch_free > cycle:
            request(front, FETCH, front.fetch_free)
            return 0
        index = front.next_fetch
        submission = append_submission(loop, slot_address(front, index), index, cycle)
        if submission is None:
            request(front, FETCH, cycle)
            return 1
        front.next_fetch = u32(index + 1)
        announce(loop, submission)
        wait = 0
        if not unsigned_less(submission.address, DRAM_BASE):
            wait = priority_access(loop, cycle, submission.address, DESCRIPTOR_SIZE, 0)
            if len(loop.active) or loop.rates_due:
                schedule_step(loop)
        occupy_stages(front, submission, wait + front.fetch_loose)
        if front.fetching is None:
            front.fetching = submission
        plan_acceptance(front)
    return 0


def read_descriptor(loop: EventLoop, submission: Submission, cycle: int) -> None:
    """Read the 64 bytes of a descriptor of the ring at the end of its fetch."""
    front = loop.front
    for region in front.regions:
        if region.base <= submission.address and submission.address <= region.end - DESCRIPTOR_SIZE:
            data = region.data + submission.address - region.base
            submission.readable = True
            for index in range(DESCRIPTOR_WORDS):
                submission.words[index] = load_i64(data + 8 * index)
    submission.fetched = NOT_YET
    front.head = u32(front.head + 1)
    if front.ring_refused:
        front.ring_refused = False
        set_irq(loop, cycle, Irq.SPACE)
    find_unread(front, submission)


def doorbell(loop: EventLoop, tail: int, cycle: int) -> None:
    """Move the tail of the ring, if it has room for so many descriptors."""
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


# -- ENQCMD_T, TWAIT and TBAR ------------------------------------------------------------------------------------------


def refuse(loop: EventLoop, arrival: int, address: int, refusal: int) -> None:
    """Emit REJECT of an ENQCMD_T."""
    emit(loop.issue, arrival, FRONTEND, What.REJECT, 0, address, refusal)


def submit(loop: EventLoop, address: int, operand: int, arrival: int) -> int:
    """Submit the descriptor in `front.descriptor`, which ENQCMD_T has read at `address`: the ticket, which the core has
    `front.response` cycles after `arrival`, or minus a ReturnCode, or STALLED or TRAPPED.

    A stalled submission is tried again with the same address, and SUBMIT is emitted once. The caller has reserved a
    record.
    """
    front = loop.front
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
    if not has_room(front):
        return answer_full(loop, arrival, address)
    submission = append_submission(loop, address, TIGHT, max(arrival, front.fetch_free))
    if submission is None:
        return 0
    submission.ticket = assign_ticket(loop.issue, submission.number)
    submission.prio = operand & 0xF
    submission.stream = operand >> 4 & 0xF
    submission.readable = True
    for index in range(DESCRIPTOR_WORDS):
        submission.words[index] = front.descriptor[index]
    if submission.began == arrival:
        announce(loop, submission)
    elif front.announcing is None:
        plan_announcement(front, submission)
    occupy_stages(front, submission, front.fetch_tight)
    plan_acceptance(front)
    front.response = submission.accepted - arrival
    return submission.ticket


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
    """Return `ticket_code` for TWAIT; of a ticket that ended the core is notified."""
    code = ticket_code(loop.issue, ticket)
    if code >= 0:
        emit(loop.issue, cycle, FRONTEND, What.NOTIFY, ticket, 0, code)
    return code


def restore_pipeline(loop: EventLoop) -> None:
    """Find the next events of the descriptors of a snapshot that are on their way."""
    front = loop.front
    find_unread(front, front.oldest)
    plan_announcement(front, front.oldest)
    plan_acceptance(front)


def show_ticket(loop: EventLoop, ticket: int) -> int:
    """TICKET_STATUS of a ticket."""
    return ticket_status(loop.issue, ticket)


def ticket_since(loop: EventLoop, ticket: int) -> int:
    """Return what distinguishes a ticket in flight from its predecessors; UNKNOWN: it is not in flight."""
    record = find_ticket(loop.issue, ticket)
    return record.since if record is not None and record.in_flight else UNKNOWN


# -- acceptance and completion -----------------------------------------------------------------------------------------


def remove_oldest(loop: EventLoop) -> Submission | None:
    """Remove the oldest descriptor from those on their way."""
    front = loop.front
    issue = loop.issue
    submission = front.oldest
    if submission is not None:
        front.oldest = submission.next
        if front.oldest is None:
            front.youngest = None
        submission.next = issue.free_submissions
        issue.free_submissions = submission
        issue.spare_submissions += 1
    return submission


def admit(loop: EventLoop, cycle: int) -> int:
    """Emit ACCEPT of the oldest descriptor on its way; return its ticket, negated if the one that it asked for is
    unavailable. The caller has reserved a record of a ticket."""
    front = loop.front
    submission = remove_oldest(loop)
    if submission is None:
        return 0
    front.accepted += 1
    plan_acceptance(front)
    ticket = submission.ticket
    sign = 1
    if not ticket:
        ticket = u32(submission.words[DESCRIPTOR_WORDS - 1] >> 32) if submission.readable else 0
        if ticket and is_free(loop.issue, ticket):
            enter_ticket(loop.issue, ticket)
        else:
            sign = -1 if ticket else 1
            ticket = assign_ticket(loop.issue, submission.number)
    emit(loop.issue, cycle, FRONTEND, What.ACCEPT, ticket, submission.began, submission.slot)
    return sign * ticket


def accept_command(
    loop: EventLoop, entry: Entry, number: int, ticket: int, stream: int, cluster: int, unit_class: int, key: int,
    piece: PieceRecord | None, dram: int, status: int, irq: int, scope: int, cycle: int,
) -> None:  # fmt: skip
    """Accept a command into its reserved entry of the queue; `issue.operands` are its operands."""
    loop.front.reserved -= 1
    loop.front.depth += 1
    set_command(loop.issue, ticket, entry)
    requests = accept(
        loop.issue, entry, number, ticket, stream, cluster, unit_class, key, piece, dram, status, irq, scope, cycle
    )
    apply_requests(loop, cycle, requests)


def spare_records(issue: Issue, operands: int) -> int:
    """Check whether records for a command with so many operands are spare."""
    if issue.spare_tickets < 1 or issue.spare_entries < 1:
        return 0
    return issue.spare_accesses >= operands and issue.spare_dependencies >= 2 * LISTED * operands


def start_key(issue: Issue, unit_class: int, rank: int, prio: int) -> int:
    """Order in which ready commands start; the smallest is first."""
    if unit_class == NO_UNIT or issue.policy == FIFO:
        return 0
    return -prio if issue.policy == PRIORITY else -(rank << 4 | prio)


def accept_known(loop: EventLoop, submission: Submission, cycle: int) -> bool:
    """Accept the oldest descriptor on its way, if its order is known and nothing is in its way."""
    issue = loop.issue
    if loop.front.observed or not submission.readable:
        return False
    order = find_order(issue, submission)
    if order is None or not spare_records(issue, len(order.operands) // OPERAND_WORDS):
        return False
    asked = u32(submission.words[ORDER_WORDS] >> 32)
    if not submission.ticket and asked and not is_free(issue, asked):
        return False
    ticket = admit(loop, cycle)
    entry = issue.free_entries
    if entry is None:
        return False
    issue.free_entries = entry.next
    issue.spare_entries -= 1
    load_operands(issue, order)
    stream = order.stream if order.stream else submission.stream
    prio = order.prio if order.prio else submission.prio
    accept_command(
        loop, entry, submission.number, ticket, stream, order.cluster, order.unit_class,
        start_key(issue, order.unit_class, order.rank, prio), order.piece, order.dram, order.status, order.irq,
        NO_SCOPE, cycle,
    )  # fmt: skip
    entry.order = order
    entry.prio = prio
    entry.address = submission.address
    return True


def fail_ticket(loop: EventLoop, cycle: int, ticket: int, code: int) -> None:
    """End a ticket in flight with an error."""
    finish_ticket(loop.issue, ticket, code)
    loop.front.error_ticket = ticket
    loop.front.error_code = code
    set_irq(loop, cycle, Irq.ERROR)


def end_tickets(loop: EventLoop, cycle: int) -> None:
    """End the tickets of commands that have retired; their results and status words are in memory."""
    issue = loop.issue
    entry = issue.retired
    while entry is not None:
        following = entry.next
        if entry.failure:
            fail_ticket(loop, cycle, entry.ticket, entry.failure)
        else:
            finish_ticket(issue, entry.ticket, 0)
            if entry.irq:
                set_irq(loop, cycle, Irq.DONE)
        entry.next = issue.free_entries
        issue.free_entries = entry
        issue.spare_entries += 1
        entry = following
    issue.retired = None
    issue.last_retired = None


def settle(loop: EventLoop, cycle: int) -> None:
    """Take what the commands of this cycle left: room in the queue, ends of tickets, requests."""
    if loop.started:
        loop.front.depth -= loop.started
        loop.started = 0
        free_entries(loop, cycle, cycle + 1)  # fetches of this cycle came before
    if loop.issue.retired is not None:
        end_tickets(loop, cycle)
    requests = loop.requests
    loop.requests = 0
    apply_requests(loop, cycle, requests)
