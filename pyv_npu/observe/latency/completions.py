"""Lifetime of submission rows, and timestamps from the event stream, in the native subset.

A slot has a reference count of its holders, which may still write into its row: the device until the command ends, a
submit function until it returns, a status word until it is read. A row without holders is finished. A row that the
device never accepted is dropped; a row that finishes before an older row remains in its slot until that is finished.
"""

from npu_device.trace.events import PACKED, TIGHT, What
from pyv_ext.machine.state import LOG
from pyv_native.intrinsics import load_i64, load_u16, load_u32
from pyv_npu.observe.latency.rows import COLUMN, NONE, SUBMITTED, WIDTH
from pyv_npu.observe.latency.state import EVIDENCE_WORDS, LINES, NOTE_WORDS, PERIOD_WORDS, SPARE, Tracker

ACCEPTED, HOLDERS, NEXT_COMMIT = WIDTH, WIDTH + 1, WIDTH + 2
"""Words of a slot after its row."""
SLOT = WIDTH + 3
CHUNK = 4096
"""Number of finished rows per spill."""
COMPACTION = 1024
"""Number of finished elements that a queue removes at a time."""
RECORD = PACKED.size
FACTS = len(SUBMITTED)
FIRST_STAMP, LAST_STAMP = COLUMN["t_arr"], COLUMN["t7"]
T2, T3, T4, T7 = COLUMN["t2"], COLUMN["t3"], COLUMN["t4"], COLUMN["t7"]
DESCRIPTOR, STREAM, NUMBER, TICKET = COLUMN["descriptor"], COLUMN["stream"], COLUMN["number"], COLUMN["ticket"]
ERROR, FETCH_START, INTERRUPTING = COLUMN["error"], COLUMN["fetch_start"], COLUMN["interrupting"]
RING_KEY, TICKET_KEY, STATUS_KEY = 1 << 40, 2 << 40, 3 << 40
"""Tags of keys of `Tracker.keys`."""
MODULUS = (1 << 31) - 1
FIRST_MULTIPLIER, SECOND_MULTIPLIER = 0x1E37_79B9, 0x5A4C_957F


def add_evidence(tracker: Tracker, kind: int, first: int, second: int, third: int) -> None:
    """Record evidence for the timestamps t5 to t7, or a refusal."""
    tracker.evidence.extend((kind, first, second, third))


# -- hash tables with linear probing: lists of keys and of values; key 0 is an empty bucket, no table is full ----------


def home_bucket(keys: list[int], key: int) -> int:
    """Return the home bucket of a key."""
    return (key ^ key >> 17 ^ key >> 31) & len(keys) - 1


def bucket_of(keys: list[int], key: int) -> int:
    """Return the bucket of a key, or the empty bucket for its insertion."""
    mask = len(keys) - 1
    bucket = home_bucket(keys, key)
    while keys[bucket] and keys[bucket] != key:
        bucket = (bucket + 1) & mask
    return bucket


def remove_at(keys: list[int], values: list[int], bucket: int) -> None:
    """Empty a bucket, and shift later entries so that probes from their home buckets still find them."""
    mask = len(keys) - 1
    gap = bucket
    bucket = (bucket + 1) & mask
    while keys[bucket]:
        key = keys[bucket]
        if (bucket - home_bucket(keys, key)) & mask >= (bucket - gap) & mask:
            keys[gap] = key
            values[gap] = values[bucket]
            gap = bucket
        bucket = (bucket + 1) & mask
    keys[gap] = 0


# -- slots -------------------------------------------------------------------------------------------------------------


def new_row(tracker: Tracker) -> int:
    """Allocate a slot held by the device, with its row blank after the facts of the submission."""
    slots = tracker.slots
    row = len(slots)
    if len(tracker.free):
        row = tracker.free[len(tracker.free) - 1]
        del tracker.free[len(tracker.free) - 1 :]
    else:
        for _ in range(SLOT):
            slots.append(0)
    for column in range(FACTS, SLOT):
        slots[row + column] = NONE if FIRST_STAMP <= column <= LAST_STAMP else 0
    slots[row + HOLDERS] = 1
    slots[row + NEXT_COMMIT] = NONE
    return row


def finish_rows(tracker: Tracker) -> None:
    """Move the oldest rows without holders to the finished rows, in order."""
    slots = tracker.slots
    while (
        tracker.oldest < len(tracker.order)
        and not slots[tracker.order[tracker.oldest] + HOLDERS]
        and len(tracker.finished) < CHUNK * WIDTH
    ):
        row = tracker.order[tracker.oldest]
        tracker.oldest += 1
        for column in range(WIDTH):
            tracker.finished.append(slots[row + column])
        slots[row + ACCEPTED] = 0
        tracker.free.append(row)
    if tracker.oldest == len(tracker.order) or tracker.oldest >= COMPACTION:
        del tracker.order[0 : tracker.oldest]
        tracker.oldest = 0


def release(tracker: Tracker, row: int) -> None:
    """Remove a holder of a slot."""
    slots = tracker.slots
    slots[row + HOLDERS] -= 1
    if slots[row + HOLDERS]:
        return
    if slots[row + ACCEPTED]:
        finish_rows(tracker)
    else:
        tracker.free.append(row)


def put_row(tracker: Tracker, key: int, row: int) -> int:
    """Insert a slot under a key; return the slot that it replaces, or NONE."""
    bucket = bucket_of(tracker.keys, key)
    older = tracker.rows[bucket] if tracker.keys[bucket] else NONE
    tracker.keys[bucket] = key
    tracker.rows[bucket] = row
    return older


def find_row(tracker: Tracker, key: int) -> int:
    """Return the slot under a key, or NONE."""
    bucket = bucket_of(tracker.keys, key)
    return tracker.rows[bucket] if tracker.keys[bucket] else NONE


def take_row(tracker: Tracker, key: int) -> int:
    """Remove a key; return its slot, or NONE."""
    bucket = bucket_of(tracker.keys, key)
    if not tracker.keys[bucket]:
        return NONE
    row = tracker.rows[bucket]
    remove_at(tracker.keys, tracker.rows, bucket)
    return row


# -- events ------------------------------------------------------------------------------------------------------------


def accept(tracker: Tracker, cycle: int, ticket: int, fetch_start: int, index: int) -> None:
    """Record the acceptance of a descriptor, from entry `index` of the ring or by ENQCMD_T (TIGHT)."""
    row = NONE
    if index == TIGHT and len(tracker.tight):
        row = tracker.tight[0]
        del tracker.tight[0:1]
    else:
        row = take_row(tracker, RING_KEY | index)
    if row == NONE:
        return
    slots = tracker.slots
    stream = slots[row + STREAM]
    slots[row + T2] = cycle
    slots[row + TICKET] = ticket
    slots[row + FETCH_START] = fetch_start
    slots[row + NUMBER] = tracker.streams[stream]
    slots[row + ACCEPTED] = 1
    tracker.streams[stream] += 1
    tracker.accepted += 1
    tracker.order.append(row)
    older = put_row(tracker, TICKET_KEY | ticket, row)
    if older != NONE:
        release(tracker, older)  # a reset has ended the older command without an event


def complete(tracker: Tracker, stream: int, number: int) -> None:
    """Add an acceptance number to the fingerprint of a stream's completion order."""
    tracker.completions[stream] += 1
    for index in range(2):
        multiplier = SECOND_MULTIPLIER if index else FIRST_MULTIPLIER
        at = 2 * stream + index
        tracker.fingerprints[at] = (tracker.fingerprints[at] * multiplier + number + 1) % MODULUS


def read_events(tracker: Tracker, records: int, count: int) -> int:
    """Read records of the event stream at a host address into the rows; return `crowded`."""
    slots = tracker.slots
    for index in range(count):
        at = records + index * RECORD
        event = load_u16(at + 10)
        if event == What.ACCEPT:
            fetch_start = load_u32(at + 20) | load_u32(at + 24) << 32
            accept(tracker, load_i64(at), load_u32(at + 12), fetch_start, load_u32(at + 28))
        elif (
            event == What.DMA_BEGIN or event == What.TE_BEGIN or event == What.VE_BEGIN or event == What.DONE
            or event == What.ERROR
        ):  # fmt: skip
            ticket = load_u32(at + 12)
            row = find_row(tracker, TICKET_KEY | ticket)
            if row != NONE:
                cycle = load_i64(at)
                if slots[row + T3] == NONE:
                    slots[row + T3] = cycle
                if event == What.DONE or event == What.ERROR:
                    slots[row + T4] = cycle
                    slots[row + ERROR] = load_u32(at + 28) if event == What.ERROR else 0
                    complete(tracker, slots[row + STREAM], slots[row + NUMBER])
                    take_row(tracker, TICKET_KEY | ticket)
                    release(tracker, row)
    return crowded(tracker)


def see_status_word(tracker: Tracker, descriptor: int, end: int) -> int:
    """Record t7, the end of the load of a submission's status word; return `crowded`."""
    row = take_row(tracker, STATUS_KEY | descriptor)
    if row != NONE:
        tracker.slots[row + T7] = end
        release(tracker, row)
    return crowded(tracker)


def note(tracker: Tracker, kind: int, first: int, second: int, third: int) -> int:
    """Record evidence; return `crowded`."""
    add_evidence(tracker, kind, first, second, third)
    return crowded(tracker)


def crowded(tracker: Tracker) -> int:
    """Return 1 if the next call may exceed the buffer's capacity, or rows and evidence should be spilled."""
    slots = (tracker.slot_capacity - len(tracker.slots)) // SLOT + len(tracker.free)
    notes = max(len(tracker.notes) // NOTE_WORDS, len(tracker.periods) // PERIOD_WORDS)
    buckets = len(tracker.line_keys)
    if (
        slots < max(tracker.ring_size, LOG) + 2 or len(tracker.spare) < SPARE or notes + SPARE > tracker.note_capacity
        or (buckets < LINES and 3 * buckets < 4 * (tracker.lines + SPARE))
    ):  # fmt: skip
        return 1
    return 1 if len(tracker.finished) >= CHUNK * WIDTH // 2 or len(tracker.evidence) >= EVIDENCE_WORDS * CHUNK else 0
