"""Barriers by epoch: TBAR and BARRIER (docs/interface.md, "Order and visibility"), in the native subset.

A domain is a stream, a cluster, or the whole device. A barrier ends the domain's epoch; commands of an epoch may start
once those of all earlier epochs have completed.
"""

from npu_device.abi.opcodes import Scope
from npu_device.reservation.scheduler import emit, enqueue_released
from npu_device.reservation.state import (
    CLUSTER_DOMAINS,
    GLOBAL_DOMAIN,
    NO_SCOPE,
    SCOPES,
    Domain,
    Entry,
    Epoch,
    Issue,
)
from npu_device.trace.events import FRONTEND, What


def domain_of(entry: Entry, scope: int) -> int:
    """Return the index of the domain of a command in a scope."""
    if scope == Scope.TILE:
        return entry.stream
    return CLUSTER_DOMAINS + entry.cluster if scope == Scope.CLUSTER else GLOBAL_DOMAIN


def new_epoch(issue: Issue) -> Epoch | None:
    """Allocate an epoch without commands."""
    epoch = issue.free_epochs
    if epoch is not None:
        issue.free_epochs = epoch.next
        issue.spare_epochs -= 1
        epoch.in_flight = 0
        epoch.waiting = None
        epoch.barriers = None
        epoch.last_barrier = None
        epoch.next = None
    return epoch


def open_domains(issue: Issue) -> None:
    """Open the first epoch of each domain."""
    for domain in issue.domains:
        epoch = new_epoch(issue)
        if epoch is not None:
            domain.first = epoch
            domain.last = epoch


def append_epoch(issue: Issue, domain: Domain) -> None:
    """Append an epoch to a domain: later commands enter it."""
    epoch = new_epoch(issue)
    if epoch is not None:
        domain.last.next = epoch
        domain.last = epoch


def end_epoch(issue: Issue, domain: Domain) -> bool:
    """End the epoch of a domain. Return False if nothing is in flight, so that a barrier completes at once."""
    if domain.first is domain.last and not domain.first.in_flight:
        return False
    if domain.last.in_flight:
        append_epoch(issue, domain)
    return True


def add_barrier(issue: Issue, epoch: Epoch, ticket: int, aux: int) -> None:
    """Append a barrier that closes when an epoch becomes the oldest of its domain."""
    barrier = issue.free_barriers
    if barrier is None:
        return
    issue.free_barriers = barrier.next
    issue.spare_barriers -= 1
    barrier.ticket = ticket
    barrier.aux = aux
    barrier.next = None
    if epoch.last_barrier is None:
        epoch.barriers = barrier
    else:
        epoch.last_barrier.next = barrier
    epoch.last_barrier = barrier


def append_barrier(issue: Issue, index: int, ticket: int, aux: int) -> None:
    """Append a barrier of a snapshot to the last epoch of a domain."""
    add_barrier(issue, issue.domains[index].last, ticket, aux)


def block_domain(issue: Issue, index: int, aux: int, cycle: int) -> None:
    """Execute TBAR for one domain."""
    domain = issue.domains[index]
    emit(issue, cycle, FRONTEND, What.BARRIER_OPEN, 0, 0, aux)
    if end_epoch(issue, domain):
        add_barrier(issue, domain.last, 0, aux)
    else:
        emit(issue, cycle, FRONTEND, What.BARRIER_CLOSE, 0, 0, aux)


def block_domains(issue: Issue, scope: int, stream: int, cycle: int) -> None:
    """Execute TBAR for a stream, for each cluster, or for the device. Commands accepted later wait."""
    if scope == Scope.TILE:
        block_domain(issue, stream, scope | stream << 4, cycle)
    elif scope == Scope.CLUSTER:
        for cluster in range(issue.clusters):
            block_domain(issue, CLUSTER_DOMAINS + cluster, scope | cluster << 4, cycle)
    else:
        block_domain(issue, GLOBAL_DOMAIN, scope, cycle)


def enter(entry: Entry, scope: int, domain: Domain, epoch: Epoch) -> None:
    """Add a command to an epoch of a domain. It waits until the epoch is the oldest."""
    entry.epochs[scope] = epoch
    epoch.in_flight += 1
    if epoch is not domain.first:
        entry.next_in_epoch[scope] = epoch.waiting
        epoch.waiting = entry
        entry.barriers_pending += 1


def enter_epochs(issue: Issue, entry: Entry) -> None:
    """Add a command to the current epochs, and count in `entry.barriers_pending` those that are not the oldest."""
    for scope in range(SCOPES):
        domain = issue.domains[domain_of(entry, scope)]
        enter(entry, scope, domain, domain.last)


def accept_barrier(issue: Issue, entry: Entry, scope: int, cycle: int) -> None:
    """Accept a command. A BARRIER waits for all earlier commands of its scope, and later commands wait for it.

    `scope`: NO_SCOPE for all other commands.
    """
    if scope == NO_SCOPE:
        enter_epochs(issue, entry)
        return
    index = domain_of(entry, scope)
    aux = scope
    if scope == Scope.TILE:
        aux = scope | entry.stream << 4
    elif scope == Scope.CLUSTER:
        aux = scope | entry.cluster << 4
    domain = issue.domains[index]
    emit(issue, cycle, FRONTEND, What.BARRIER_OPEN, entry.ticket, 0, aux)
    end_epoch(issue, domain)
    enter_epochs(issue, entry)
    end_epoch(issue, domain)
    add_barrier(issue, domain.last, entry.ticket, aux)


def complete(issue: Issue, entry: Entry, cycle: int) -> int:
    """Complete a command. An epoch that becomes the oldest of its domain releases its commands."""
    requests = 0
    for scope in range(SCOPES):
        entry.epochs[scope].in_flight -= 1
        domain = issue.domains[domain_of(entry, scope)]
        while domain.first is not domain.last and not domain.first.in_flight:
            requests = requests | advance_epoch(issue, domain, scope, cycle)
    return requests


def advance_epoch(issue: Issue, domain: Domain, scope: int, cycle: int) -> int:
    """Make a domain's next epoch the oldest: close its barriers and release its commands."""
    oldest = domain.first
    epoch = oldest.next
    requests = 0
    if epoch is None:
        return requests
    domain.first = epoch
    oldest.next = issue.free_epochs
    issue.free_epochs = oldest
    issue.spare_epochs += 1
    barrier = epoch.barriers
    epoch.barriers = None
    while barrier is not None:
        following = barrier.next
        emit(issue, cycle, FRONTEND, What.BARRIER_CLOSE, barrier.ticket, 0, barrier.aux)
        barrier.next = issue.free_barriers
        issue.free_barriers = barrier
        issue.spare_barriers += 1
        barrier = following
    entry = epoch.waiting
    epoch.waiting = None
    while entry is not None:
        entry.barriers_pending -= 1
        if not entry.barriers_pending:
            entry.barriers_clear = cycle
            requests = requests | enqueue_released(issue, entry)
        entry = entry.next_in_epoch[scope]
    return requests
