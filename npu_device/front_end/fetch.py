"""Fetch of descriptors and entries of the device queue, in the native subset (docs/interface.md).

At most one descriptor is in the fetch stage and one in the validate stage; the ring and ENQCMD_T share them in order.
A queue entry is reserved when a fetch from the ring begins, or when ENQCMD_T arrives; descriptors of the ring without a
free entry stay in DRAM. A pending submission is a descriptor that is being fetched or validated.
"""

from npu_device.abi import DESCRIPTOR_SIZE
from npu_device.abi.memory_map import DRAM_BASE
from npu_device.abi.registers import Irq
from npu_device.decode.tile_state import DESCRIPTOR_WORDS, TileDecoder
from npu_device.front_end.deadlines import request, schedule_step
from npu_device.front_end.interrupts import set_irq
from npu_device.reservation.scheduler import emit
from npu_device.reservation.state import Entry, Issue
from npu_device.trace.events import FRONTEND, TIGHT, What
from npu_device.units.sharing import priority_access
from npu_device.units.state import ACCEPT, ANNOUNCE, FETCH, FOREVER, NOT_YET, EventLoop, FrontEnd
from pyv_native.intrinsics import i32, load_i64, u32, unsigned_less


def has_space(front: FrontEnd) -> int:
    """Check whether the device queue has an entry for one more descriptor."""
    return front.depth + front.reserved < front.capacity


def request_fetch(loop: EventLoop, cycle: int) -> None:
    """Plan a fetch from the ring, after a change that may permit it."""
    if loop.enabled and loop.front.next_fetch != loop.front.tail:
        request(loop.front, FETCH, cycle)


def signal_space(loop: EventLoop, cycle: int, fetch_cycle: int) -> None:
    """Handle entries of the queue that became free in a cycle: set SPACE if a submission was refused, and plan a fetch
    from the ring for cycle `fetch_cycle`."""
    if loop.front.queue_refused:
        loop.front.queue_refused = False
        set_irq(loop, cycle, Irq.SPACE)
    request_fetch(loop, fetch_cycle)


def release_entry(issue: Issue, entry: Entry) -> None:
    """Put the record of an entry on the free list."""
    entry.next = issue.free_entries
    issue.free_entries = entry
    issue.spare_entries += 1


def cancel_entry(loop: EventLoop, entry: Entry, cycle: int) -> None:
    """Free the record and the place in the queue of a descriptor that was in error."""
    release_entry(loop.issue, entry)
    loop.front.reserved -= 1
    signal_space(loop, cycle, cycle)


def append_submission(loop: EventLoop, address: int, index: int, cycle: int) -> Entry | None:
    """Append a submission, whose fetch begins in `cycle`, to the pending ones, and reserve a place in the queue; None:
    no record is free. The caller sets the cycles of its stages."""
    front = loop.front
    issue = loop.issue
    submission = issue.free_entries
    if submission is None:
        return None
    issue.free_entries = submission.next
    issue.spare_entries -= 1
    front.reserved += 1
    issue.submission_count += 1
    submission.number = issue.submission_count
    submission.address = address
    submission.ring_index = index
    submission.fetch_start = cycle
    submission.ticket = 0
    submission.prio = 0
    submission.stream = 0
    submission.fetch_emitted = False
    submission.readable = False
    link_submission(front, submission)
    return submission


def link_submission(front: FrontEnd, submission: Entry) -> None:
    """Link a submission as the youngest pending one."""
    submission.next = None
    if front.youngest is None:
        front.oldest = submission
    else:
        front.youngest.next = submission
    front.youngest = submission


def occupy_stages(front: FrontEnd, submission: Entry, fetch: int) -> None:
    """Compute the cycles in which a descriptor leaves the fetch stage, after `fetch` cycles there, and the validate
    stage."""
    submission.fetch_end = submission.fetch_start + fetch
    front.fetch_free = max(submission.fetch_end, front.validate_free)
    front.validate_free = front.fetch_free + front.validate
    submission.acceptance_cycle = front.validate_free


def announce(loop: EventLoop, submission: Entry) -> None:
    """Emit the trace event FETCH of a descriptor."""
    submission.fetch_emitted = True
    emit(loop.issue, submission.fetch_start, FRONTEND, What.FETCH, 0, submission.address, submission.ring_index)


def announce_next(loop: EventLoop) -> None:
    """Emit FETCH of a descriptor of ENQCMD_T that had to wait for the fetch stage."""
    if loop.front.announcing is not None:
        announce(loop, loop.front.announcing)
        plan_announcement(loop.front, loop.front.announcing)


def plan_announcement(front: FrontEnd, submission: Entry | None) -> None:
    """Plan FETCH of the first descriptor from `submission` on for which it is to be emitted."""
    while submission is not None and submission.fetch_emitted:
        submission = submission.next
    front.announcing = submission
    if submission is not None:
        request(front, ANNOUNCE, submission.fetch_start)


def find_unread(front: FrontEnd, submission: Entry | None) -> None:
    """Find the first descriptor of the ring from `submission` on that has not been read."""
    while submission is not None and (submission.ring_index == TIGHT or submission.fetch_end == NOT_YET):
        submission = submission.next
    front.fetching = submission


def plan_acceptance(front: FrontEnd) -> None:
    """Plan the next read or acceptance of a descriptor."""
    front.deadlines[ACCEPT] = FOREVER
    if front.oldest is not None:
        request(front, ACCEPT, front.oldest.acceptance_cycle)
    if front.fetching is not None:
        request(front, ACCEPT, front.fetching.fetch_end)


def slot_address(front: FrontEnd, index: int) -> int:
    """Return the address of the ring's descriptor with an index, modulo 2^64."""
    low = front.base_low + index % front.ring_size * DESCRIPTOR_SIZE
    return i32(front.base_high + (low >> 32)) << 32 | u32(low)


def begin_fetches(loop: EventLoop, cycle: int) -> int:
    """Begin fetches from the ring as long as the queue has space; 1: a record for the next one is missing."""
    front = loop.front
    while loop.enabled and front.next_fetch != front.tail and has_space(front):
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


def descriptor_data(tile: TileDecoder, address: int) -> int:
    """Return the host address of the 64 bytes at an address of memory, or 0."""
    for region in tile.regions:
        if region.base <= address and address <= region.end - DESCRIPTOR_SIZE:
            return region.data + address - region.base
    return 0


def read_descriptor(loop: EventLoop, submission: Entry, cycle: int) -> None:
    """Read the 64 bytes of a descriptor of the ring at the end of its fetch."""
    front = loop.front
    data = descriptor_data(loop.tile, submission.address)
    if data:
        submission.readable = True
        for index in range(DESCRIPTOR_WORDS):
            submission.words[index] = load_i64(data + 8 * index)
    submission.fetch_end = NOT_YET
    front.head = u32(front.head + 1)
    if front.ring_refused:
        front.ring_refused = False
        set_irq(loop, cycle, Irq.SPACE)
    find_unread(front, submission)


def restore_pipeline(loop: EventLoop) -> None:
    """Find the next events of the pending submissions of a snapshot."""
    front = loop.front
    find_unread(front, front.oldest)
    plan_announcement(front, front.oldest)
    plan_acceptance(front)
