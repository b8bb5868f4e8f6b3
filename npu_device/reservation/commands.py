"""Lifecycle of a command, in the native subset: acceptance, hazards and barriers, end, retirement in the order of each
stream.

Functions return the phases that they request for their cycle: START, RELEASE, both or 0.
"""

from npu_device.abi.opcodes import Scope
from npu_device.cost.piece_record import PieceRecord
from npu_device.reservation.barriers import accept_barrier, complete, domain_of, enter
from npu_device.reservation.hazards import add_hazards, end_hazards, retire_hazards
from npu_device.reservation.results import publish
from npu_device.reservation.scheduler import announce, emit, enqueue, make_eligible
from npu_device.reservation.state import ENDED, NO_UNIT, SCOPES, START, WAITING, Entry, Issue
from npu_device.trace.events import FRONTEND, What
from pyv_native.arena import callback


@callback
def write_status(issue: Issue, entry: Entry, cycle: int) -> int:
    """Write the status word of a retiring command, after its results."""
    raise NotImplementedError


@callback
def log_failure(issue: Issue, entry: Entry, cycle: int) -> int:
    """Log the error of a retired command, before its ticket ends."""
    raise NotImplementedError


@callback
def observe_submission(issue: Issue, arrival: int, address: int) -> int:
    """Check whether an ENQCMD_T arrives at the command port; otherwise the core gets "queue full"."""
    raise NotImplementedError


def fill_entry(
    entry: Entry, number: int, ticket: int, stream: int, cluster: int, unit_class: int, key: int,
    piece: PieceRecord | None, dram: int, status: int, irq: int,
) -> None:  # fmt: skip
    """Fill an entry with a waiting command. `piece`, `dram`: of a tile command. `status`, `irq`: as in `Entry`."""
    entry.number = number
    entry.ticket = ticket
    entry.stream = stream
    entry.cluster = cluster
    entry.unit_class = unit_class
    entry.key = key
    entry.piece = piece
    entry.dram = dram
    entry.status = status != 0
    entry.irq = irq != 0
    entry.unit = FRONTEND
    entry.failure = 0
    entry.stage = WAITING
    entry.barriers_pending = 0
    entry.result = None
    entry.words[0] = 0


def append_to_stream(issue: Issue, entry: Entry) -> None:
    """Append a command to its stream."""
    stream = issue.streams[entry.stream]
    entry.next_in_stream = None
    if stream.last is None:
        stream.first = entry
    else:
        stream.last.next_in_stream = entry
    stream.last = entry


def accept(
    issue: Issue, entry: Entry, number: int, ticket: int, stream: int, cluster: int, unit_class: int, key: int,
    piece: PieceRecord | None, dram: int, status: int, irq: int, scope: int, cycle: int,
) -> int:  # fmt: skip
    """Accept a command with the operands `issue.operands`. `scope`: that of a BARRIER, else NO_SCOPE."""
    fill_entry(entry, number, ticket, stream, cluster, unit_class, key, piece, dram, status, irq)
    entry.acceptance_cycle = cycle
    entry.hazards_clear = cycle
    entry.barriers_clear = cycle
    enqueue(issue, entry)
    append_to_stream(issue, entry)
    accept_barrier(issue, entry, scope, cycle)
    add_hazards(issue, entry)
    if entry.hazards or entry.barriers_pending:
        return 0
    return announce(issue, entry, cycle)


def restore(
    issue: Issue, entry: Entry, number: int, ticket: int, stream: int, cluster: int, unit_class: int, key: int,
    piece: PieceRecord | None, dram: int, status: int, irq: int, stage: int, stream_epoch: int, cluster_epoch: int,
    device_epoch: int,
) -> None:  # fmt: skip
    """Restore a command of a snapshot. Its epochs are counted from the oldest of each domain."""
    fill_entry(entry, number, ticket, stream, cluster, unit_class, key, piece, dram, status, irq)
    entry.stage = stage
    append_to_stream(issue, entry)
    if entry.stage == WAITING:
        enqueue(issue, entry)
    for scope in range(SCOPES):
        domain = issue.domains[domain_of(entry, scope)]
        epoch = domain.first
        remaining = device_epoch
        if scope == Scope.TILE:
            remaining = stream_epoch
        elif scope == Scope.CLUSTER:
            remaining = cluster_epoch
        while remaining and epoch.next is not None:
            epoch = epoch.next
            remaining -= 1
        enter(entry, scope, domain, epoch)
    add_hazards(issue, entry)


def retire(issue: Issue, entry: Entry, cycle: int) -> None:
    """Retire a command: write its status word, emit DONE or ERROR. Its ticket ends later in this cycle."""
    publish(issue, entry)
    if entry.status:
        write_status(issue, entry, cycle)
    if entry.failure:
        emit(issue, cycle, FRONTEND, What.ERROR, entry.ticket, 0, entry.failure)
    else:
        emit(issue, cycle, entry.unit, What.DONE, entry.ticket, 0, 0)
    entry.next = None
    if issue.last_retired is None:
        issue.retired = entry
    else:
        issue.last_retired.next = entry
    issue.last_retired = entry


def end(issue: Issue, entry: Entry, cycle: int) -> int:
    """End a command. Retire it and its successors as far as the order of its stream allows."""
    requests = START if issue.oldest is not None and entry.unit_class != NO_UNIT else 0
    entry.stage = ENDED
    requests = requests | end_hazards(issue, entry, cycle)
    stream = issue.streams[entry.stream]
    retired = False
    first = stream.first
    while first is not None and first.stage == ENDED:
        retired = True
        stream.first = first.next_in_stream
        retire(issue, first, cycle)
        requests = requests | retire_hazards(issue, first, cycle) | complete(issue, first, cycle)
        first = stream.first
    if first is None:
        stream.last = None
    elif retired:
        if first.unit_class == NO_UNIT:
            make_eligible(issue, first)
        requests = requests | START
    return requests
