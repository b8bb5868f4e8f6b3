"""Submissions from the core log, in the native subset: the start of each, and the reason of each cycle until it leaves
the core (docs/latency.md, "Reasons").

Functions named `npu_submit*` are windows: t0 is the start of their first instruction, t1 the first instruction at
their return address. Without such symbols t0 is the first store into the descriptor and t1 the cycle after the
doorbell or ENQCMD_T retires.
"""

from npu_device.abi.descriptor import PARTS, WORDS
from npu_device.abi.memory_map import NPU_WINDOW
from npu_device.abi.registers import REGISTERS
from pyv_ext.machine.log import EXTERNAL
from pyv_ext.machine.state import MEIP, RESUMED, SUBMIT_FUNCTIONS, Answer, CoreRecord, LogKind
from pyv_native.arena import callback
from pyv_native.intrinsics import load_i64, load_u8, load_u32
from pyv_native.records import layout
from pyv_npu.observe.latency.completions import (
    DESCRIPTOR,
    HOLDERS,
    INTERRUPTING,
    NEXT_COMMIT,
    RING_KEY,
    STATUS_KEY,
    STREAM,
    add_evidence,
    bucket_of,
    crowded,
    find_row,
    new_row,
    put_row,
    release,
    remove_at,
)
from pyv_npu.observe.latency.rows import COLUMN, NONE, Reason
from pyv_npu.observe.latency.state import (
    DEVICE,
    EXTERNAL_LEVEL,
    FENCE,
    HANDLER_START,
    LIMIT,
    LINE,
    LOOK,
    MASK,
    NOTE_WORDS,
    NOTES,
    PERIOD_WORDS,
    REFUSAL,
    TICKET_LOOK,
    Tracker,
    Window,
)

CORE_RECORD = layout(CoreRecord).size
LINE_BITS, LINE_SHIFT = 26, 6
"""Width and shift of a line address in a key of `Tracker.line_keys`."""

_REGISTER = {register.name: register.offset for register in REGISTERS}
DOORBELL, QUEUE_HEAD, COMPLETED = _REGISTER["DOORBELL"], _REGISTER["QUEUE_HEAD"], _REGISTER["COMPLETED"]
TICKET_SEL, TICKET_STATUS, IRQ_STATUS = (_REGISTER[name] for name in ("TICKET_SEL", "TICKET_STATUS", "IRQ_STATUS"))
DONE_OR_ERROR, TICKET_DONE = 0b11, 3
FLAGS = next(word.offset for word in WORDS if word.name == "flags")
_BITS = {part.name: part.low for part in PARTS if part.word == "flags"}
STREAM_SHIFT, STREAM_MASK = _BITS["stream"], 0xF
IRQ, WRITE_STATUS = 1 << _BITS["irq"], 1 << _BITS["write_status"]

ANSWER, OPERAND = (layout(CoreRecord).fields[name].offset for name in ("answer", "operand"))
PREBUILT, LEAVE, ARRIVAL, TIGHT = COLUMN["prebuilt"], COLUMN["leave"], COLUMN["arrival"], COLUMN["tight"]
CALL_SITE, T0, T1 = COLUMN["call_site"], COLUMN["t0"], COLUMN["t1"]
INTERRUPTED, RETRY, DESCRIPTOR_STORE, FENCE_WAIT, MMIO, BATCH, SETUP = (
    COLUMN[reason]
    for reason in (
        Reason.INTERRUPTED, Reason.RETRY, Reason.DESCRIPTOR_STORE, Reason.FENCE, Reason.MMIO, Reason.BATCH, Reason.SETUP
    )
)  # fmt: skip


@callback
def descriptor_flags(tracker: Tracker, descriptor: int) -> int:
    """Return the flags word of a descriptor in memory."""
    raise NotImplementedError


@callback
def watch_status(tracker: Tracker, descriptor: int) -> int:
    """Watch the status word of a descriptor."""
    raise NotImplementedError


@callback
def flush_events(tracker: Tracker) -> int:
    """Pass all events so far to `read_events`."""
    raise NotImplementedError


# -- first stores of a window to lines of memory -----------------------------------------------------------------------


def line_key(window: Window, line: int) -> int:
    """Return the key of a line of memory in a window."""
    return window.generation << LINE_BITS | line >> LINE_SHIFT


def first_store(tracker: Tracker, window: Window, line: int) -> int:
    """Return the start of the first store of a window to a line, or NONE."""
    key = line_key(window, line)
    bucket = bucket_of(tracker.line_keys, key)
    return tracker.line_starts[bucket] if tracker.line_keys[bucket] == key else NONE


def forget_stores(tracker: Tracker, window: Window) -> None:
    """Invalidate the recorded first stores of a window."""
    tracker.generation += 1
    window.generation = tracker.generation


def is_live(tracker: Tracker, generation: int) -> bool:
    """Check whether a generation is that of a live window."""
    live = tracker.carried != NONE and tracker.windows[tracker.carried].generation == generation
    for index in tracker.stack:
        live = live or tracker.windows[index].generation == generation
    for index in tracker.pending:
        live = live or tracker.windows[index].generation == generation
    return live


def remove_lines(tracker: Tracker, earliest: int) -> None:
    """Remove first stores of finished windows, and those before `earliest`."""
    keys = tracker.line_keys
    for bucket in range(len(keys)):
        while keys[bucket] and (
            tracker.line_starts[bucket] < earliest or not is_live(tracker, keys[bucket] >> LINE_BITS)
        ):
            remove_at(keys, tracker.line_starts, bucket)
            tracker.lines -= 1


def note_line(tracker: Tracker, key: int, start: int) -> None:
    """Insert the first store to a line."""
    bucket = bucket_of(tracker.line_keys, key)
    tracker.line_keys[bucket] = key
    tracker.line_starts[bucket] = start
    tracker.lines += 1


def note_store(tracker: Tracker, window: Window, start: int, line: int) -> None:
    """Record the first store of a window to a line; a full table drops the older half of its time range."""
    if first_store(tracker, window, line) != NONE:
        return
    if tracker.lines >= tracker.full_lines:
        remove_lines(tracker, 0)
        tracker.full_lines = tracker.lines + len(tracker.line_keys) // 4
    earliest = 0
    while 4 * tracker.lines >= 3 * len(tracker.line_keys):
        remove_lines(tracker, earliest)
        earliest = (earliest + start) // 2 + 1
    note_line(tracker, line_key(window, line), start)
    if tracker.ring_base <= line < tracker.ring_base + tracker.ring_size * LINE:
        window.in_ring = 1


# -- periods: instructions and trap entries of the core ----------------------------------------------------------------


def add_period(tracker: Tracker, start: int, end: int, depth: int, window: int) -> None:
    """Add a period of cycles [start, end) with the staged notes, or extend the last period."""
    periods = tracker.periods
    staged = tracker.staged
    tracker.staged = len(tracker.notes)
    last = len(periods) - PERIOD_WORDS
    if last >= 0:
        if (
            periods[last + 1] == start and periods[last + 2] == depth and periods[last + 3] == window
            and staged - periods[last + 4] < NOTES * NOTE_WORDS
        ):  # fmt: skip
            periods[last + 1] = end
            return
        if len(periods) // PERIOD_WORDS + staged // NOTE_WORDS > LIMIT:
            oldest = len(periods) // PERIOD_WORDS // 2 * PERIOD_WORDS
            removed = periods[oldest + 4] if oldest < len(periods) else staged
            del periods[0:oldest]
            del tracker.notes[0:removed]
            for period in range(0, len(periods), PERIOD_WORDS):
                periods[period + 4] -= removed
            staged -= removed
            tracker.staged -= removed
    periods.extend((start, end, depth, window, staged))


def add_note(tracker: Tracker, start: int, target: int, cycles: int) -> None:
    """Record stores, fences or an access in the current period."""
    if len(tracker.notes) - tracker.staged >= NOTES * NOTE_WORDS:
        explain_until(tracker, start)
    tracker.notes.extend((start, target, cycles))


def explain_until(tracker: Tracker, end: int) -> None:
    """Complete the periods up to cycle `end`, where the innermost window or the depth of traps changes."""
    if end > tracker.since:
        serial = 0
        if len(tracker.stack):
            serial = tracker.windows[tracker.stack[len(tracker.stack) - 1]].serial
        add_period(tracker, tracker.since, end, tracker.depth, serial)
        tracker.since = end


def clear_periods(tracker: Tracker) -> None:
    """Remove all periods."""
    tracker.periods.clear()
    del tracker.notes[0 : tracker.staged]
    tracker.staged = 0


def reason_of(target: int, line: int) -> int:
    """Return the column of a note's reason, for a descriptor in `line`; 0: none."""
    if target == line:
        return DESCRIPTOR_STORE
    if target == FENCE:
        return FENCE_WAIT
    return MMIO if target == DEVICE else 0


def explain(
    tracker: Tracker, row: int, t0: int, leave: int, line: int, depth: int, window: int, refused: int, attempt: int
) -> None:
    """Write the cycles of [t0, leave) of a submission by reason; cycles of dropped periods count as `setup`.

    `refused`: start of its first refused attempt, or NONE; `attempt`: start of the accepted attempt.
    """
    slots = tracker.slots
    periods = tracker.periods
    notes = tracker.notes
    first = t0
    last = t0
    if refused != NONE:
        first = max(t0, refused)
        last = min(leave, attempt)
    for reason in range(INTERRUPTED, SETUP + 1):
        slots[row + reason] = 0
    if last > first:
        slots[row + RETRY] = last - first
    oldest = len(periods) - PERIOD_WORDS
    while oldest > 0 and periods[oldest] > t0:  # mostly the last period contains all cycles
        oldest -= PERIOD_WORDS
    for period in range(max(oldest, 0), len(periods), PERIOD_WORDS):
        begin = max(periods[period], t0)
        end = min(periods[period + 1], leave)
        direct_cycles = end - begin
        if direct_cycles > 0:
            retried = max(0, min(end, last) - max(begin, first)) if last > first else 0
            if periods[period + 2] > depth:
                slots[row + INTERRUPTED] += direct_cycles
                slots[row + RETRY] -= retried
            else:
                direct_cycles -= retried
                limit = tracker.staged
                if period + PERIOD_WORDS < len(periods):
                    limit = periods[period + PERIOD_WORDS + 4]
                for note in range(periods[period + 4], limit, NOTE_WORDS):
                    start = notes[note]
                    if t0 <= start < end and not first <= start < last:
                        reason = reason_of(notes[note + 1], line)
                        if reason:
                            slots[row + reason] += notes[note + 2]
                            direct_cycles -= notes[note + 2]
                if periods[period + 3] != window:
                    slots[row + BATCH] += direct_cycles
    rest = leave - t0
    for reason in range(INTERRUPTED, SETUP):
        rest -= slots[row + reason]
    slots[row + SETUP] = rest


# -- windows -----------------------------------------------------------------------------------------------------------


def open_window(tracker: Tracker, t0: int, return_pc: int, sp: int, depth: int, prebuilt: int) -> None:
    """Open the window of a call of a submit function or, without such functions, of the program (serial 0)."""
    index = tracker.spare[len(tracker.spare) - 1]
    del tracker.spare[len(tracker.spare) - 1 :]
    window = tracker.windows[index]
    window.serial = tracker.serial
    window.t0 = t0
    window.return_pc = return_pc
    window.sp = sp
    window.depth = depth
    window.prebuilt = prebuilt
    window.t0_used = 0
    window.refused = NONE
    window.attempt = 0
    window.descriptor = 0
    window.in_ring = 0
    window.first_commit = NONE
    forget_stores(tracker, window)
    tracker.stack.append(index)


def begin_tracking(tracker: Tracker) -> int:
    """Begin to trace a program without submit functions. Return 0."""
    open_window(tracker, NONE, 0, 0, 0, 0)
    return 0


def follow(tracker: Tracker, start: int) -> int:
    """Begin to trace the core. Return 0."""
    tracker.following = 1
    tracker.since = start
    tracker.depth = 0
    return 0


def release_commits(tracker: Tracker, window: Window, t1: int) -> None:
    """Write t1, unless it is NONE, to the commits of a window, and release them."""
    row = window.first_commit
    while row != NONE:
        following = tracker.slots[row + NEXT_COMMIT]
        if t1 != NONE:
            tracker.slots[row + T1] = t1
        release(tracker, row)
        row = following
    window.first_commit = NONE


def add_commit(tracker: Tracker, window: Window, row: int) -> None:
    """Add a submission to the commits of a window, which holds it until its return."""
    tracker.slots[row + HOLDERS] += 1
    tracker.slots[row + NEXT_COMMIT] = window.first_commit
    window.first_commit = row


def enter(tracker: Tracker, start: int, pc: int, return_pc: int, sp: int) -> None:
    """Record the call of a submit function."""
    if tracker.following:
        explain_until(tracker, start)
    else:
        follow(tracker, start)
    if len(tracker.stack) == SUBMIT_FUNCTIONS:
        for index in tracker.stack:
            release_commits(tracker, tracker.windows[index], NONE)
            tracker.spare.append(index)
        tracker.stack.clear()
    prebuilt = 0
    for address in tracker.prebuilt:
        if address == pc:
            prebuilt = 1
    tracker.serial += 1
    open_window(tracker, start, return_pc, sp, tracker.depth, prebuilt)


def leave_function(tracker: Tracker, start: int, idle: int) -> None:
    """Record the return of the innermost submit function; `idle`: no other is active, and a submission has left the
    core."""
    explain_until(tracker, start)
    index = tracker.stack[len(tracker.stack) - 1]
    del tracker.stack[len(tracker.stack) - 1 :]
    window = tracker.windows[index]
    if window.first_commit != NONE:
        release_commits(tracker, window, start)
        tracker.spare.append(index)
    elif window.refused != NONE and window.attempt <= window.refused:
        carry(tracker, index)
    elif window.in_ring:
        tracker.pending.append(index)
    else:
        tracker.spare.append(index)
    if idle:
        tracker.following = 0
        clear_periods(tracker)


def carry(tracker: Tracker, index: int) -> None:
    """Keep a refused window, which the next attempt on its descriptor continues."""
    window = tracker.windows[index]
    if tracker.carried != NONE and tracker.windows[tracker.carried].descriptor == window.descriptor:
        first = tracker.windows[tracker.carried]
        window.t0 = first.t0
        window.refused = first.refused
        tracker.spare.append(tracker.carried)
    else:
        give_up(tracker)
    tracker.carried = index


def give_up(tracker: Tracker) -> int:
    """Reject the refused submission that has no retry; return `crowded`."""
    if tracker.carried != NONE:
        reject(tracker, tracker.windows[tracker.carried].t0)
        tracker.spare.append(tracker.carried)
        tracker.carried = NONE
    return crowded(tracker)


def reject(tracker: Tracker, t0: int) -> None:
    """Count a rejected submission; t0 is NONE outside of submit functions."""
    tracker.rejected += 1
    if t0 != NONE:
        add_evidence(tracker, REFUSAL, t0, 0, 0)


# -- submissions -------------------------------------------------------------------------------------------------------


def begin_of(tracker: Tracker, window: Window, descriptor: int) -> int:
    """Return t0 of a window's next submission: the window's t0, or the first store to a further descriptor."""
    if window.t0 != NONE and not window.t0_used:
        window.t0_used = 1
        return window.t0
    return first_store(tracker, window, descriptor)


def explain_window(tracker: Tracker, owner: int, row: int, descriptor: int, leave: int) -> bool:
    """Write t0 and the reasons of a submission; return False if it has no t0."""
    window = tracker.windows[owner]
    if tracker.carried != NONE:
        first = tracker.windows[tracker.carried]
        if first.descriptor == descriptor and not window.t0_used:
            window.t0 = first.t0
            window.refused = first.refused
            tracker.spare.append(tracker.carried)
            tracker.carried = NONE
        else:
            give_up(tracker)
    t0 = begin_of(tracker, window, descriptor)
    if t0 == NONE and window.serial == 0:
        t0 = leave
    if t0 == NONE:
        return False
    explain_until(tracker, leave)
    tracker.slots[row + T0] = t0
    line = descriptor // LINE * LINE
    explain(tracker, row, t0, leave, line, window.depth, window.serial, window.refused, window.attempt)
    if window.serial == 0:
        window.refused = NONE
    return True


def commit(
    tracker: Tracker,
    owner: int,
    descriptor: int,
    flags: int,
    index: int,
    leave: int,
    arrival: int,
    operand: int,
    pc: int,
) -> int:
    """Write the row of a submission that leaves the core; return its slot, or NONE if it has no t0.

    `flags`: word of the descriptor. `index`: entry of the ring, or NONE for ENQCMD_T. `owner`: its window, or NONE.
    """
    tracker.handed_over = 1
    row = new_row(tracker)
    slots = tracker.slots
    stream = flags >> STREAM_SHIFT & STREAM_MASK
    slots[row + DESCRIPTOR] = descriptor
    slots[row + PREBUILT] = 0
    slots[row + LEAVE] = leave
    slots[row + ARRIVAL] = arrival
    slots[row + TIGHT] = index == NONE
    slots[row + STREAM] = stream if stream else operand >> STREAM_SHIFT & STREAM_MASK
    slots[row + CALL_SITE] = pc
    slots[row + INTERRUPTING] = flags & IRQ != 0
    timed = False
    if owner != NONE:
        window = tracker.windows[owner]
        slots[row + PREBUILT] = window.prebuilt
        if window.serial:
            slots[row + CALL_SITE] = window.return_pc - 1
        timed = explain_window(tracker, owner, row, descriptor, leave)
    if index == NONE:
        tracker.tight.append(row)
    else:
        if find_row(tracker, RING_KEY | index) != NONE:
            flush_events(tracker)  # after a reset, indices of entries restart at 0
        older = put_row(tracker, RING_KEY | index, row)
        if older != NONE:
            tracker.overwritten += 1
            release(tracker, older)
    if flags & WRITE_STATUS:
        watch_status(tracker, descriptor)
        slots[row + HOLDERS] += 1
        reader = put_row(tracker, STATUS_KEY | descriptor, row)
        if reader != NONE:
            release(tracker, reader)
    return row if timed else NONE


def innermost(tracker: Tracker) -> int:
    """Return the innermost active window, or NONE."""
    return tracker.stack[len(tracker.stack) - 1] if len(tracker.stack) else NONE


# -- loose: doorbells --------------------------------------------------------------------------------------------------


def update_tail(tracker: Tracker, start: int) -> None:
    """Update the tail from the device, unless a doorbell is in flight."""
    if tracker.one_way and start >= tracker.rung:
        tracker.tail = tracker.ring_tail


def read_head(tracker: Tracker, start: int, head: int) -> None:
    """Record a read of QUEUE_HEAD; if it shows a full ring, the current submission waits for a free entry."""
    update_tail(tracker, start)
    top = innermost(tracker)
    if top == NONE:
        return
    window = tracker.windows[top]
    if tracker.tail - head & MASK >= tracker.ring_size:
        if window.refused == NONE:
            window.refused = start
        window.descriptor = tracker.ring_base + tracker.tail % tracker.ring_size * LINE
    else:
        window.attempt = start


def owner_of(tracker: Tracker, address: int) -> int:
    """Return the oldest window that has stored to an entry of the ring, or NONE."""
    for index in tracker.pending:
        if first_store(tracker, tracker.windows[index], address) != NONE:
            return index
    top = innermost(tracker)
    if top != NONE and first_store(tracker, tracker.windows[top], address) != NONE:
        return top
    return NONE


def ring_doorbell(tracker: Tracker, start: int, leave: int, tail: int, pc: int) -> None:
    """Record a write of DOORBELL that has left the core. If `one_way` is 0, the device has already processed it."""
    update_tail(tracker, start)
    first = tracker.tail
    count = tail - first & MASK
    tracker.rung = leave + tracker.one_way
    if not tracker.one_way and tracker.ring_tail != tail:
        return
    if not 0 < count <= tracker.ring_size:
        return  # it submits nothing, or more than the ring's size
    tracker.tail = tail
    top = innermost(tracker)
    has_owner = top != NONE and tracker.windows[top].serial != 0
    if has_owner:
        release_commits(tracker, tracker.windows[top], NONE)
    for index in range(first, first + count):
        address = tracker.ring_base + index % tracker.ring_size * LINE
        owner = owner_of(tracker, address)
        flags = descriptor_flags(tracker, address)
        row = commit(tracker, owner, address, flags, index & MASK, leave, tracker.rung, 0, pc)
        if row != NONE:
            if has_owner:
                add_commit(tracker, tracker.windows[top], row)
            elif owner != NONE and tracker.windows[owner].serial == 0:
                tracker.slots[row + T1] = leave
    if top != NONE and not has_owner:
        forget_stores(tracker, tracker.windows[top])
    for index in tracker.pending:
        tracker.spare.append(index)
    tracker.pending.clear()


# -- tight: ENQCMD_T ---------------------------------------------------------------------------------------------------


def submit(
    tracker: Tracker, answer: int, resume: int, start: int, descriptor: int, flags: int, operand: int, pc: int, t1: int
) -> None:
    """Record the device's answer to an ENQCMD_T that began in cycle `start` and retires before `t1`."""
    top = innermost(tracker)
    if not resume:
        if tracker.stalled and top != NONE and tracker.windows[top].refused == NONE:
            tracker.windows[top].refused = tracker.issued  # an interrupt has ended the stall; this is a new attempt
        tracker.issued = start
        tracker.arrival = start + tracker.issue
    tracker.stalled = answer == Answer.STALLED
    if answer == Answer.STALLED:
        return
    if answer == Answer.ACCEPTED:
        if top != NONE:
            tracker.windows[top].attempt = tracker.issued
        row = commit(tracker, top, descriptor, flags, NONE, tracker.issued, tracker.arrival, operand, pc)
        if row != NONE and top != NONE:
            if tracker.windows[top].serial:
                add_commit(tracker, tracker.windows[top], row)
            else:
                forget_stores(tracker, tracker.windows[top])
                tracker.slots[row + T1] = t1
    elif top == NONE:
        reject(tracker, NONE)
    elif answer == Answer.DROPPED:
        reject(tracker, tracker.windows[top].t0)
    else:
        window = tracker.windows[top]
        if window.refused == NONE:
            window.refused = tracker.issued
        window.descriptor = descriptor


# -- the core log ------------------------------------------------------------------------------------------------------


def see_register(tracker: Tracker, offset: int, value: int, start: int, end: int) -> None:
    """Record a read of a register that shows completions; COMPLETED counts only if it has changed."""
    if offset == COMPLETED:
        if value != tracker.completed:
            tracker.completed = value
            add_evidence(tracker, LOOK, start, end, 0)
    elif offset == IRQ_STATUS and value & DONE_OR_ERROR:
        add_evidence(tracker, LOOK, start, end, 0)


def read_access(tracker: Tracker, kind: int, start: int, end: int, pc: int, offset: int, value: int) -> None:
    """Record an access to a register of the NPU."""
    if kind == LogKind.STORE:
        if offset == DOORBELL:
            ring_doorbell(tracker, start, end, value, pc)
        elif offset == TICKET_SEL:
            tracker.selected = value
        elif not tracker.one_way:
            tracker.tail = tracker.ring_tail  # the store may have changed the tail
    elif offset == QUEUE_HEAD:
        read_head(tracker, start, value)
    elif offset != TICKET_STATUS:
        see_register(tracker, offset, value, start + tracker.look, end)
    elif value & 0xFF >= TICKET_DONE:
        add_evidence(tracker, TICKET_LOOK, start + tracker.look, end, tracker.selected)


def read_log(tracker: Tracker, records: int, count: int) -> int:
    """Read records of the core log at a host address; return `crowded`."""
    for index in range(count):
        at = records + index * CORE_RECORD
        start = load_i64(at)
        cycles = load_i64(at + 8)
        pc = load_u32(at + 16)
        address = load_u32(at + 20)
        value = load_u32(at + 24)
        kind = load_u8(at + 28)
        if kind == LogKind.STORES:
            add_note(tracker, start, address, cycles)
            top = innermost(tracker)
            if top != NONE:
                note_store(tracker, tracker.windows[top], start, address)
        elif kind == LogKind.FENCE:
            add_note(tracker, start, FENCE, cycles)
        elif kind == LogKind.LOAD or kind == LogKind.STORE:
            if not tracker.following and not tracker.named:
                follow(tracker, start)
            if tracker.following:
                add_note(tracker, start, DEVICE, cycles)
            if 0 <= address - tracker.npu < NPU_WINDOW:
                read_access(tracker, kind, start, start + cycles, pc, address - tracker.npu, value)
        elif kind == LogKind.LEAVE:
            if not tracker.following and not tracker.named:
                follow(tracker, start + tracker.issue - 1)
            answer = load_u8(at + ANSWER)
            submit(
                tracker,
                answer & (RESUMED - 1),
                answer & RESUMED,
                start,
                address,
                value,
                load_u8(at + OPERAND),
                pc,
                start + cycles,
            )
        elif kind == LogKind.CSR:
            see_register(tracker, address, value, start, start + cycles)
        elif kind == LogKind.ENTER:
            enter(tracker, start, pc, address, value)
        elif kind == LogKind.RETURN:
            leave_function(tracker, start, value)
        elif kind == LogKind.TRAP or kind == LogKind.HANDLER:
            if kind == LogKind.TRAP:
                explain_until(tracker, start)
                tracker.depth += 1
            if value == EXTERNAL:
                add_evidence(tracker, HANDLER_START, start + cycles, 0, 0)
        elif kind == LogKind.LINES and address & MEIP:
            add_evidence(tracker, EXTERNAL_LEVEL, start, value & MEIP != 0, 0)
        elif kind == LogKind.MRET:
            explain_until(tracker, start + cycles)
            tracker.depth = max(tracker.depth - 1, 0)
    return crowded(tracker)
