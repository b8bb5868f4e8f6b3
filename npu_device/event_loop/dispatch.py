"""Event dispatch of a device by cycle and phase, and start and end of commands on units. In the native subset
(`pyv_native`).

Commands of one step run here from start to retirement. `run_events` stops at a command that Python must handle: its
plan has many steps, or `sampled` is set and it has operands, so that it is computed, injected or observed. Python sets
the outcome and calls `run_events` again.
"""

from npu_device.abi import DESCRIPTOR_SIZE
from npu_device.abi.memory_map import DRAM_BASE
from npu_device.front_end.acceptance import accept_tile, apply_effects
from npu_device.front_end.deadlines import apply_requests, request
from npu_device.front_end.fetch import announce_next, begin_fetches, plan_acceptance, read_descriptor
from npu_device.front_end.interrupts import update_line
from npu_device.front_end.submissions import submit
from npu_device.reservation.commands import end
from npu_device.reservation.results import is_move, sample_move
from npu_device.reservation.scheduler import dequeue, meld, release_commands, starts_before
from npu_device.reservation.state import NO_UNIT as NO_CLASS
from npu_device.reservation.state import RUNNING, Entry
from npu_device.reservation.state import START as START_REQUEST
from npu_device.reservation.tickets import NO_RECORDS, STALLED
from npu_device.trace.events import FRONTEND
from npu_device.units.state import (
    ACCEPT,
    ANNOUNCE,
    END,
    EVENT_KINDS,
    FETCH,
    FOREVER,
    GRANT,
    IRQ,
    RELEASE,
    START,
    EventLoop,
    FrontEnd,
    Run,
)
from npu_device.units.stepper import (
    IDLE,
    NO_UNIT,
    advance,
    begin_single,
    end_steps,
    find_units,
    next_cycle,
    start_steps,
)
from pyv_native.intrinsics import load_i64
from pyv_native.records import WORD

LIST_BYTES = WORD + DESCRIPTOR_SIZE
"""Bytes of a descriptor of a list: the cycle of its arrival, then its words."""


def find_unit(loop: EventLoop, unit_class: int) -> int:
    """Return the code of the free unit of a class to use next, or NO_UNIT."""
    issue = loop.issue
    return find_units(loop, issue.kinds[unit_class], issue.unit_clusters[unit_class], issue.unit_indices[unit_class])


def start_next(loop: EventLoop) -> Entry | None:
    """Dequeue the next command that can start and assign its unit. Return None if nothing can start."""
    issue = loop.issue
    best = issue.heaps[NO_CLASS]
    best_unit = FRONTEND
    if best is None:
        for unit_class in range(1, len(issue.heaps)):
            first = issue.heaps[unit_class]
            if first is not None and (best is None or starts_before(first, best)):
                unit = find_unit(loop, unit_class)
                if unit != NO_UNIT:
                    best = first
                    best_unit = unit
    if best is None:
        loop.requested = 0
        for unit_class in range(1, len(issue.heaps)):
            if issue.ready[unit_class]:
                loop.requested = loop.requested | issue.request_bits[unit_class]
        return None
    issue.heaps[best.unit_class] = meld(best.left, best.right)
    issue.ready[best.unit_class] -= 1
    best.stage = RUNNING
    best.unit = best_unit
    dequeue(issue, best)
    loop.started += 1
    return best


def free_run(loop: EventLoop) -> Run:
    """Return the run of the lowest free slot, which always exists."""
    free = loop.runs[0]
    for run in loop.runs:
        if not run.number:
            return run
    return free


def begin(loop: EventLoop, entry: Entry, t: int) -> None:
    """Begin a command of one step on its free unit."""
    piece = entry.piece
    if piece is None:
        return
    run = free_run(loop)
    entry.run_slot = run.slot
    loop.running[run.slot] = entry
    unit = loop.units[0]
    for candidate in loop.units:
        if candidate.code == entry.unit:
            unit = candidate
    begin_single(loop, run, piece, entry.dram, entry.number, entry.ticket, unit, t)


def end_entry(loop: EventLoop, entry: Entry, t: int) -> None:
    """End a command."""
    loop.requests = loop.requests | end(loop.issue, entry, t)


def samples(loop: EventLoop, entry: Entry) -> bool:
    """Copy what a command reads, if it is a move of which the device does not decide."""
    return loop.front.copied != 0 and is_move(entry) and sample_move(loop.issue, loop.tile, entry)


# -- starts ------------------------------------------------------------------------------------------------------------


def start_commands(loop: EventLoop, t: int) -> Entry | None:
    """Start steps, then commands, in cycle `t`. Return the next command for Python to handle, or None at the end."""
    if loop.ended_steps:
        loop.ended_steps = 0
        if loop.active or loop.rates_due:
            start_steps(loop, t)
    while loop.enabled:
        entry = start_next(loop)
        if entry is None:
            break
        if entry.unit_class == NO_CLASS:
            end_entry(loop, entry, t)
        elif entry.piece is None or (loop.front.sampled and not samples(loop, entry)):
            return entry
        else:
            begin(loop, entry, t)
    if not loop.enabled:
        loop.requested = 0
    loop.next_at = next_cycle(loop)
    return None


# -- ends --------------------------------------------------------------------------------------------------------------


def end_runs(loop: EventLoop) -> Entry | None:
    """End the commands whose runs completed in this cycle. Return the next command for Python to handle, or None at the
    end."""
    while loop.ending < len(loop.completed):
        slot = loop.completed[loop.ending]
        loop.ending += 1
        loop.runs[slot].number = 0
        entry = loop.running[slot]
        loop.running[slot] = None
        if entry is not None:
            if entry.piece is None or loop.external:
                return entry
            end_entry(loop, entry, loop.time)
    loop.completed.clear()
    loop.ending = 0
    if loop.active or loop.rates_due:
        loop.ended_steps = 1
        loop.requests = loop.requests | START_REQUEST
    return None


def step_commands(loop: EventLoop, t: int, limit: int) -> Entry | None:
    """Step from cycle `t` through cycles below `limit` until Python or another phase must act, and end commands as
    `end_runs`. If `limit` is `t`, other events are due between the ends and starts of this cycle: only ends are run."""
    if limit > t:
        if advance(loop, limit) == IDLE:
            loop.next_at = next_cycle(loop)
            return None
    elif next_cycle(loop) == t:
        end_steps(loop, t)
        loop.wake = FOREVER  # the starts recompute it; nothing else may wake for it
    else:
        loop.next_at = next_cycle(loop)
        return None
    loop.next_at = FOREVER
    return end_runs(loop)


# -- events of the device --------------------------------------------------------------------------------------------

DONE, STEPPED, GRANTED, ACCEPTED, STARVED, STARTED = range(6)
"""Results of `run_events`: all due events are processed; Python must handle ended steps, grant time to external
engines, accept a descriptor, reserve records, or handle starting commands."""
NO_OUTCOME, BEGIN, SKIP, FAIL, FINISH = range(5)
"""Outcomes of a command that Python has handled. BEGIN: begin it; SKIP: Python has begun it, or its unit is stuck;
FAIL: it has failed; FINISH: end it."""


def next_event_kind(front: FrontEnd) -> int:
    """Return the kind of the next event, and set `next_deadline` to its cycle."""
    kind = 0
    for candidate in range(1, EVENT_KINDS):
        if front.deadlines[candidate] < front.deadlines[kind]:
            kind = candidate
    front.next_deadline = front.deadlines[kind]
    return kind


def finish_phase(loop: EventLoop, entry: Entry | None, answer: int) -> int:
    """Apply the effects of ended steps or started commands. Return `answer` if Python must handle `entry` or observes
    the cycle, else DONE."""
    front = loop.front
    front.entry = entry
    apply_effects(loop, front.cycle)
    if entry is None:
        request(front, END, loop.next_at)
        if not loop.external and not front.inspected:
            return DONE
    return answer


def continue_phase(loop: EventLoop) -> int:
    """Continue the phase whose command Python has handled, by the outcome. Return as `finish_phase`."""
    front = loop.front
    outcome = front.outcome
    front.outcome = NO_OUTCOME
    entry = front.entry
    if outcome == NO_OUTCOME or entry is None:
        return DONE
    if outcome == BEGIN:
        begin(loop, entry, front.cycle)
    elif outcome != SKIP:
        end_entry(loop, entry, front.cycle)
    if outcome == FINISH:
        return finish_phase(loop, end_runs(loop), STEPPED)
    return finish_phase(loop, start_commands(loop, front.cycle), STARTED)


def run_events(loop: EventLoop, until: int) -> int:
    """Run the events due at the start of cycle `until` or earlier, up to an event that Python must handle."""
    front = loop.front
    front.until = until
    answer = continue_phase(loop)
    if answer:
        return answer
    kind = next_event_kind(front)
    while front.next_deadline <= until:
        cycle = front.next_deadline
        front.cycle = cycle
        front.deadlines[kind] = FOREVER
        if kind == END:
            next_event_kind(front)
            entry = step_commands(loop, cycle, min(front.next_deadline, until + 1))
            front.cycle = loop.time
            answer = finish_phase(loop, entry, STEPPED)
            if answer:
                return answer
        elif kind == GRANT:
            return GRANTED
        elif kind == RELEASE:
            apply_requests(loop, cycle, release_commands(loop.issue, cycle))
        elif kind == ACCEPT:
            fetching = front.fetching
            oldest = front.oldest
            if (
                fetching is not None
                and fetching.fetch_end <= cycle
                and (oldest is fetching or oldest is None or oldest.acceptance_cycle > cycle)
            ):
                read_descriptor(loop, fetching, cycle)
                plan_acceptance(front)
            elif oldest is not None and (front.observed or not accept_tile(loop, oldest, cycle)):
                return ACCEPTED
        elif kind == ANNOUNCE:
            announce_next(loop)
        elif kind == FETCH:
            if begin_fetches(loop, cycle):
                return STARVED
        elif kind == START:
            answer = finish_phase(loop, start_commands(loop, cycle), STARTED)
            if answer:
                return answer
        elif kind == IRQ:
            update_line(loop, cycle)
        kind = next_event_kind(front)
    return DONE


def submit_list(loop: EventLoop) -> int:
    """Submit the descriptors of the list as a core does by ENQCMD_T: each in its cycle, or once the queue has a free
    entry. Run the events until then. Return a result of `run_events`; DONE if all descriptors are submitted, or no
    event is due."""
    front = loop.front
    answer = run_events(loop, front.until)
    while answer == DONE and front.list_count:
        until = max(front.until, load_i64(front.list_address) - 1)
        if until == front.until:
            ticket = submit(loop, DRAM_BASE, front.list_address + WORD, 0, until + 1)
            if ticket == NO_RECORDS:
                return STARVED
            if 0 < ticket < STALLED:
                front.list_address += LIST_BYTES
                front.list_count -= 1
                continue
            if front.next_deadline == FOREVER:
                return DONE
            until = max(until + 1, front.next_deadline)
        answer = run_events(loop, until)
    return answer


def advance_device(loop: EventLoop, until: int, _second: int, _third: int) -> int:
    """Run the due events for native code of the core. Return 0, or 1 if Python must continue."""
    front = loop.front
    if not front.answer:
        front.answer = run_events(loop, until)
    return front.answer != DONE
