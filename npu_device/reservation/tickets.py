"""Tickets in flight and recently ended tickets, in the native subset (docs/interface.md, "Tickets")."""

from npu_device.abi.opcodes import TicketState
from npu_device.reservation.state import BUCKETS, WAITING, Entry, Issue, Ticket
from pyv_native.intrinsics import load_i64, store_i64

MODULUS = 1 << 31
"""Tickets are 1..MODULUS-1."""
STALLED, TRAPPED, NO_RECORDS = 1 << 32, 1 << 33, 1 << 34
"""Replies to ENQCMD_T other than tickets and ReturnCode. NO_RECORDS: the device must reserve records and retry."""
IN_FLIGHT, UNKNOWN = -1, -2
"""Codes of tickets that have not ended, and that the device does not know."""


def find_ticket(issue: Issue, ticket: int) -> Ticket | None:
    """Return the record of a ticket in flight or recently ended, or None."""
    record = issue.buckets[ticket & (BUCKETS - 1)]
    while record is not None and record.ticket != ticket:
        record = record.next
    return record


def unlink_ended(issue: Issue, record: Ticket) -> None:
    """Remove a ticket from the order of completion."""
    older = record.older
    younger = record.younger
    if older is None:
        issue.oldest_ended = younger
    else:
        older.younger = younger
    if younger is None:
        issue.youngest_ended = older
    else:
        younger.older = older
    issue.ended -= 1


def forget_oldest(issue: Issue) -> None:
    """Free the ticket that ended first."""
    record = issue.oldest_ended
    if record is None:
        return
    unlink_ended(issue, record)
    index = record.ticket & (BUCKETS - 1)
    previous = issue.buckets[index]
    if previous is record:
        issue.buckets[index] = record.next
    else:
        while previous is not None and previous.next is not record:
            previous = previous.next
        if previous is not None:
            previous.next = record.next
    record.next = issue.free_tickets
    issue.free_tickets = record
    issue.spare_tickets += 1


def enter_ticket(issue: Issue, ticket: int) -> None:
    """Put a ticket in flight, discarding its last completion. The device has reserved a record."""
    record = find_ticket(issue, ticket)
    if record is not None:
        unlink_ended(issue, record)
    else:
        record = issue.free_tickets
        if record is None:
            return
        issue.free_tickets = record.next
        issue.spare_tickets -= 1
        index = ticket & (BUCKETS - 1)
        record.ticket = ticket
        record.next = issue.buckets[index]
        issue.buckets[index] = record
    record.in_flight = True
    record.since = issue.tickets_ended
    record.entry = None
    issue.tickets_in_flight += 1


def is_free(issue: Issue, ticket: int) -> bool:
    """Check whether a number is a valid ticket that is not in flight."""
    if ticket <= 0 or ticket >= MODULUS:
        return False
    record = find_ticket(issue, ticket)
    return record is None or not record.in_flight


def assign_ticket(issue: Issue, number: int) -> int:
    """Assign a ticket to the descriptor with an acceptance number."""
    ticket = number % MODULUS
    while not is_free(issue, ticket):
        ticket = (ticket + 1) % MODULUS
    enter_ticket(issue, ticket)
    return ticket


def set_command(issue: Issue, ticket: int, entry: Entry) -> None:
    """Link a ticket in flight to its command."""
    record = find_ticket(issue, ticket)
    if record is not None:
        record.entry = entry


def finish_ticket(issue: Issue, ticket: int, code: int) -> None:
    """End a ticket in flight with an error code, 0 for success."""
    record = find_ticket(issue, ticket)
    if record is None:
        return
    record.in_flight = False
    record.entry = None
    record.code = code
    record.younger = None
    record.older = issue.youngest_ended
    if issue.youngest_ended is None:
        issue.oldest_ended = record
    else:
        issue.youngest_ended.younger = record
    issue.youngest_ended = record
    issue.ended += 1
    issue.tickets_in_flight -= 1
    issue.tickets_ended += 1
    while issue.ended > issue.history:
        forget_oldest(issue)


def copy_ended(issue: Issue, target: int) -> None:
    """Store the ended tickets and their codes at a host address, in the order of completion."""
    record = issue.oldest_ended
    while record is not None:
        store_i64(target, record.ticket)
        store_i64(target + 8, record.code)
        target += 16
        record = record.younger


def restore_ended(issue: Issue, source: int, count: int) -> None:
    """Restore what `copy_ended` stored. The device has reserved `count` records."""
    for index in range(count):
        ticket = load_i64(source + 16 * index)
        enter_ticket(issue, ticket)
        finish_ticket(issue, ticket, load_i64(source + 16 * index + 8))


def ticket_code(issue: Issue, ticket: int) -> int:
    """Return the code of an ended ticket, 0 for success, or IN_FLIGHT or UNKNOWN."""
    record = find_ticket(issue, ticket)
    if record is None:
        return UNKNOWN
    return IN_FLIGHT if record.in_flight else record.code


def ticket_status(issue: Issue, ticket: int) -> int:
    """Return TICKET_STATUS of a ticket: its state in [7:0], the error code from bit 8."""
    record = find_ticket(issue, ticket)
    if record is None:
        return TicketState.UNKNOWN
    if record.in_flight:
        entry = record.entry
        return TicketState.QUEUED if entry is None or entry.stage == WAITING else TicketState.RUNNING
    return TicketState.ERROR | record.code << 8 if record.code else TicketState.DONE
