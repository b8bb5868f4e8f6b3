"""Device queue and scheduler (docs/npu-timing.md, "Scheduler"), in the native subset.

The queue holds accepted commands that have not started. The scheduler considers a window of the oldest. Each class of
units has a leftist heap of the ready commands in the window.
"""

from npu_device.reservation.state import MAX_EVENTS, NO_UNIT, RELEASE, START, Entry, Issue
from npu_device.trace.events import EVENT_WORDS, FRONTEND, Cause, What
from pyv_native.arena import callback
from pyv_native.intrinsics import i32, u32


@callback
def flush_events(issue: Issue) -> int:
    """Flush the events to the event stream."""
    raise NotImplementedError


def emit_step(issue: Issue, cycle: int, unit: int, event: int, ticket: int, tile: int, size: int, aux: int) -> None:
    """Emit an event in the layout of `records.RECORD`."""
    if len(issue.events) == EVENT_WORDS * MAX_EVENTS:
        flush_events(issue)
    issue.events.extend(
        (cycle, unit | event << 16 | i32(ticket) << 32, tile | i32(size) << 32, u32(size >> 32) | i32(aux) << 32)
    )


def emit(issue: Issue, cycle: int, unit: int, event: int, ticket: int, size: int, aux: int) -> None:
    """Emit an event without a tile."""
    emit_step(issue, cycle, unit, event, ticket, 0, size, aux)


# -- ready commands ----------------------------------------------------------------------------------------------------


def enqueue_released(issue: Issue, entry: Entry) -> int:
    """Schedule READY of a command for phase RELEASE, in the order of acceptance. Return RELEASE, or 0 if blocked."""
    if entry.hazards or entry.barriers_pending:
        return 0
    last = issue.last_released
    if last is None or last.number < entry.number:
        entry.next = None
        issue.last_released = entry
        if last is None:
            issue.released = entry
        else:
            last.next = entry
        return RELEASE
    older = None
    younger = issue.released
    while younger is not None and younger.number < entry.number:
        older = younger
        younger = younger.next
    entry.next = younger
    if older is None:
        issue.released = entry
    else:
        older.next = entry
    return RELEASE


def release_commands(issue: Issue, cycle: int) -> int:
    """Announce the commands whose hazards and barriers have cleared."""
    requests = 0
    entry = issue.released
    issue.released = None
    issue.last_released = None
    while entry is not None:
        following = entry.next
        requests = requests | announce(issue, entry, cycle)
        entry = following
    return requests


def announce(issue: Issue, entry: Entry, cycle: int) -> int:
    """Emit READY of a command, and its stall cycles."""
    if cycle != entry.acceptance_cycle:
        hazard = entry.hazards_clear - entry.acceptance_cycle
        barrier = entry.barriers_clear - entry.hazards_clear
        if hazard:
            emit(issue, cycle, FRONTEND, What.STALL, entry.ticket, hazard, Cause.HAZARD)
        if barrier > 0:
            emit(issue, cycle, FRONTEND, What.STALL, entry.ticket, barrier, Cause.BARRIER)
    emit(issue, cycle, FRONTEND, What.READY, entry.ticket, 0, entry.stream)
    mark_ready(issue, entry)
    return START


def mark_ready(issue: Issue, entry: Entry) -> None:
    """Make a command available to the scheduler."""
    entry.ready = True
    issue.ready[entry.unit_class] += 1
    make_eligible(issue, entry)


def starts_before(a: Entry, b: Entry) -> bool:
    """Check the order of the scheduler: by key, then by age."""
    return a.key < b.key or (a.key == b.key and a.number < b.number)


def meld(a: Entry | None, b: Entry | None) -> Entry | None:
    """Join two leftist heaps."""
    if a is None:
        return b
    if b is None:
        return a
    root = a
    other = b
    if starts_before(b, a):
        root = b
        other = a
    right = meld(root.right, other)
    left = root.left
    left_rank = left.rank if left is not None else 0
    right_rank = right.rank if right is not None else 0
    root.left = left if left_rank >= right_rank else right
    root.right = right if left_rank >= right_rank else left
    root.rank = min(left_rank, right_rank) + 1
    return root


def make_eligible(issue: Issue, entry: Entry) -> None:
    """Insert a command that is ready and in the window into the heap of its class.

    A command that needs no unit must also be the oldest of its stream.
    """
    if not entry.ready or not entry.in_window:
        return
    if entry.unit_class == NO_UNIT and issue.streams[entry.stream].first is not entry:
        return
    entry.left = None
    entry.right = None
    entry.rank = 1
    issue.heaps[entry.unit_class] = meld(issue.heaps[entry.unit_class], entry)


# -- the queue ---------------------------------------------------------------------------------------------------------


def enqueue(issue: Issue, entry: Entry) -> None:
    """Append a command to the queue."""
    entry.ready = False
    entry.in_window = issue.window_count < issue.window
    entry.older = issue.youngest
    entry.younger = None
    if issue.youngest is None:
        issue.oldest = entry
    else:
        issue.youngest.younger = entry
    issue.youngest = entry
    if entry.in_window:
        issue.window_count += 1
        issue.window_end = entry


def dequeue(issue: Issue, entry: Entry) -> None:
    """Remove a command of the window from the queue; the next command enters the window."""
    following = issue.window_end
    if following is not None:
        following = following.younger
    if issue.window_end is entry:
        issue.window_end = entry.older
    if entry.older is None:
        issue.oldest = entry.younger
    else:
        entry.older.younger = entry.younger
    if entry.younger is None:
        issue.youngest = entry.older
    else:
        entry.younger.older = entry.older
    issue.window_count -= 1
    if following is not None:
        following.in_window = True
        issue.window_count += 1
        issue.window_end = following
        make_eligible(issue, following)
