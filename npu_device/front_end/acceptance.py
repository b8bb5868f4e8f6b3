"""Acceptance of fetched descriptors, and completion of their tickets, in the native subset (docs/interface.md)."""

from npu_device.abi.opcodes import Gemm, Opcode
from npu_device.abi.registers import Irq
from npu_device.cost.piece_record import PieceRecord
from npu_device.decode.tile_decode import TILE_M, TILE_N, TYPE_IN0, decode_tile
from npu_device.decode.tile_state import ADDRESS_OUT, DESCRIPTOR_WORDS, TileDecoder
from npu_device.front_end.deadlines import apply_requests
from npu_device.front_end.fetch import plan_acceptance, release_entry, signal_space
from npu_device.front_end.interrupts import set_irq
from npu_device.memory.operands import INTEGERS
from npu_device.memory.region import OPERAND_WORDS
from npu_device.reservation.accumulators import bind_sum, check_sum, max_spans
from npu_device.reservation.commands import accept, log_failure
from npu_device.reservation.hazards import LISTED
from npu_device.reservation.pieces import find_piece
from npu_device.reservation.scheduler import emit
from npu_device.reservation.state import (
    FIFO,
    MAX_OPERANDS,
    NO_SCOPE,
    NO_UNIT,
    PRIORITY,
    Entry,
    Issue,
)
from npu_device.reservation.tickets import assign_ticket, enter_ticket, finish_ticket, is_free, set_command
from npu_device.trace.events import FRONTEND, What
from npu_device.units.state import EventLoop
from pyv_native.intrinsics import u32

INTEGER_TYPES = sum(1 << kind for kind in INTEGERS)


def admit(loop: EventLoop, cycle: int) -> int:
    """Accept the oldest pending submission, and emit ACCEPT; return its ticket, negative if its ticket field is in
    flight or invalid. The caller has reserved a Ticket."""
    front = loop.front
    submission = front.oldest
    if submission is None:
        return 0
    front.oldest = submission.next
    if front.oldest is None:
        front.youngest = None
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
    emit(loop.issue, cycle, FRONTEND, What.ACCEPT, ticket, submission.fetch_start, submission.ring_index)
    return sign * ticket


def accept_command(
    loop: EventLoop, entry: Entry, number: int, ticket: int, stream: int, cluster: int, unit_class: int, key: int,
    piece: PieceRecord | None, dram: int, status: int, irq: int, scope: int, cycle: int,
) -> None:  # fmt: skip
    """Accept a command into its entry of the queue; `issue.operands` are its operands."""
    front = loop.front
    front.reserved -= 1
    front.depth += 1
    front.depth_max = max(front.depth_max, front.depth)
    set_command(loop.issue, ticket, entry)
    requests = accept(
        loop.issue, entry, number, ticket, stream, cluster, unit_class, key, piece, dram, status, irq, scope, cycle
    )
    apply_requests(loop, cycle, requests)


def spare_records(issue: Issue, tile: TileDecoder) -> int:
    """Check whether enough records are free for the last decoded tile command, and its accumulator exists or fits."""
    if issue.spare_tickets < 1:
        return 0
    operands = len(tile.operands) // OPERAND_WORDS
    if issue.request.rows:
        if issue.spare_spans < 1 or check_sum(issue, issue.request):
            return 0
        operands += 2 * max_spans(issue, issue.request)
        if operands > MAX_OPERANDS:
            return 0
    return issue.spare_accesses >= operands and issue.spare_dependencies >= 2 * LISTED * operands


def start_key(issue: Issue, unit_class: int, rank: int, prio: int) -> int:
    """Return the sort key of a ready command; the smallest starts first."""
    if unit_class == NO_UNIT or issue.policy == FIFO:
        return 0
    return -prio if issue.policy == PRIORITY else -(rank << 4 | prio)


def request_sum(issue: Issue, tile: TileDecoder) -> None:
    """Fill in the request of the tile command that was decoded last to the accumulators."""
    request = issue.request
    has_sum = tile.opcode == Opcode.GEMM_T and (tile.accumulate or tile.function)
    request.rows = tile.fields[TILE_M] if has_sum else 0
    request.columns = tile.fields[TILE_N]
    request.integer = INTEGER_TYPES >> tile.fields[TYPE_IN0] & 1 != 0
    request.hold = tile.function & Gemm.HOLD != 0
    request.accumulate = tile.accumulate != 0
    request.cluster = tile.cluster
    request.affinity = tile.affinity
    request.address = tile.words[ADDRESS_OUT]


def bind_operands(issue: Issue, tile: TileDecoder) -> int:
    """Make the operands of the tile command that was decoded last those of the command that is accepted: reads before
    writes. Return its class of units, of which its sum names one."""
    request = issue.request
    issue.operands.clear()
    unit_class = tile.unit_class
    first = 0
    while first < len(tile.operands) and not tile.operands[first + OPERAND_WORDS - 1]:
        first += OPERAND_WORDS
    for index in range(first):
        issue.operands.append(tile.operands[index])
    if request.rows:
        unit_class += bind_sum(issue, request) + 1 - request.affinity
        if request.hold:
            return unit_class
    for index in range(first, len(tile.operands)):
        issue.operands.append(tile.operands[index])
    return unit_class


def accept_tile(loop: EventLoop, entry: Entry, cycle: int) -> bool:
    """Accept the oldest pending submission. False: it is no valid tile command, or a record or its work is missing."""
    issue = loop.issue
    tile = loop.tile
    issue.piece_missing = False
    if not entry.readable:
        return False
    for index in range(DESCRIPTOR_WORDS):
        tile.words[index] = entry.words[index]
    if decode_tile(tile) or tile.macro or tile.opcode == Opcode.BARRIER or tile.opcode == Opcode.CORE:
        return False
    ticket_field = u32(tile.words[DESCRIPTOR_WORDS - 1] >> 32)
    if not entry.ticket and ticket_field and not is_free(issue, ticket_field):
        return False
    request_sum(issue, tile)
    if not spare_records(issue, tile):
        return False
    piece = None if tile.unit_class == NO_UNIT else find_piece(issue, tile)
    if piece is None and tile.unit_class != NO_UNIT:
        issue.piece_missing = True
        return False
    ticket = admit(loop, cycle)
    unit_class = bind_operands(issue, tile)
    rank = tile.words[0] >> 16 & 0x3FF
    flags = tile.words[0] >> 32
    prio = flags & 0xF if flags & 0xF else entry.prio
    stream = flags >> 4 & 0xF if flags >> 4 & 0xF else entry.stream
    accept_command(
        loop, entry, entry.number, ticket, stream, tile.cluster, unit_class,
        start_key(issue, unit_class, rank, prio), piece, tile.dram, flags >> 21 & 1, flags >> 20 & 1, NO_SCOPE, cycle,
    )  # fmt: skip
    entry.prio = prio
    entry.words[0] = tile.words[0]
    entry.words[DESCRIPTOR_WORDS - 1] = 0  # status and ticket
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
            log_failure(issue, entry, cycle)
            fail_ticket(loop, cycle, entry.ticket, entry.failure)
        else:
            finish_ticket(issue, entry.ticket, 0)
            if entry.irq:
                set_irq(loop, cycle, Irq.DONE)
        release_entry(issue, entry)
        entry = following
    issue.retired = None
    issue.last_retired = None


def apply_effects(loop: EventLoop, cycle: int) -> None:
    """Apply the effects of this cycle's commands: freed queue entries, ended tickets, requested events."""
    if loop.started:
        loop.front.depth -= loop.started
        loop.started = 0
        signal_space(loop, cycle, cycle + 1)  # fetches of this cycle came before
    if loop.issue.retired is not None:
        end_tickets(loop, cycle)
    requests = loop.requests
    loop.requests = 0
    apply_requests(loop, cycle, requests)
