"""L2 between NoC and DRAM: its lines, and the DRAM traffic of transfers (docs/npu-timing.md, "L2").

A set-associative cache with LRU replacement. The write-back of a dirty line precedes the data of all transfers, and the
transfer that evicted it does not end before. Part of the event loop, in the native subset (`pyv_native`).
"""

from npu_device.cost.rates import part
from npu_device.dram.controller import access_directly
from npu_device.trace.events import What
from npu_device.units.arbiter import emit
from npu_device.units.sharing import priority_access
from npu_device.units.state import WRITE, Cache, EventLoop, Unit

DIRTY = 1
WATCHED = 2
"""Flag of a line that is reported once it no longer differs from DRAM."""
STALE = 4
"""Flag of a line whose bytes in DRAM have changed since its fill."""
FLAGS = 3
"""Number of flag bits in a tag."""
NO_WAY = -1

CLEAN, FLUSH, INVALIDATE = range(3)
"""Maintenance operations: write back; write back and evict; evict without writing back."""


# -- transfers ---------------------------------------------------------------------------------------------------------


def access(loop: EventLoop, unit: Unit, t: int) -> int:
    """Move a transfer through the L2, and set its shares of the DRAM channels. Return whether it misses."""
    l2 = loop.l2
    step = unit.step
    piece = step.piece
    write = piece.step_class == WRITE
    line = l2.line
    hits = 0
    misses = 0
    for channel in loop.channels:
        channel.filled = 0
    begin_report(l2)
    for row in range(piece.row_count):
        start = step.dram + row * piece.row_stride
        end = start + piece.row_bytes
        for number in range(start // line, (end + line - 1) // line):
            covers = write and start <= number * line and (number + 1) * line <= end
            way = find(l2, number)
            tag = number << FLAGS
            if way != NO_WAY:
                hits += 1
                tag = l2.tags[way]
                if tag & STALE and covers:
                    tag -= STALE
                elif not write:
                    note_stale_read(l2, tag)
            else:
                misses += 1
                way = allocate(loop, t, number)
                l2.valid += 1
                if not covers:
                    loop.channels[channel_of(loop, number)].filled += line
                    if loop.timed:
                        l2.filled_until = max(l2.filled_until, access_directly(loop.dram, t, number * line, line, 0))
            if write and not tag & DIRTY:
                tag += DIRTY
                l2.dirty += 1
            make_most_recent(l2, number, way, tag)
    filled = 0
    for channel in loop.channels:
        unit.share[channel.index] = part(channel.filled, piece.aligned)
        channel.moved += channel.filled
        filled += channel.filled
    ticket = unit.run.ticket
    if hits:
        emit(loop, t, l2.code, What.L2_HIT, ticket, step.tile, hits * line, hits)
    if misses:
        emit(loop, t, l2.code, What.L2_MISS, ticket, step.tile, filled, misses)
    report(loop, t, ticket, step.tile)
    return filled > 0


def bypass(loop: EventLoop, unit: Unit, t: int) -> None:
    """Keep the L2 consistent with a transfer that bypasses it. A write evicts its lines; a read first writes back dirty
    lines, and reports stale lines."""
    l2 = loop.l2
    step = unit.step
    piece = step.piece
    line = l2.line
    begin_report(l2)
    for row in range(piece.row_count):
        if not l2.valid:
            break
        start = step.dram + row * piece.row_stride
        for number in range(start // line, (start + piece.row_bytes + line - 1) // line):
            way = find(l2, number)
            if way != NO_WAY:
                if piece.step_class == WRITE:
                    evict(loop, t, way)
                else:
                    note_stale_read(l2, l2.tags[way])
                    write_back(loop, t, way)
    report(loop, t, unit.run.ticket, step.tile)


def maintain(loop: EventLoop, t: int, number: int, operation: int) -> None:
    """Execute CLEAN, FLUSH or INVALIDATE for a line; for all lines if `number` is 0."""
    l2 = loop.l2
    begin_report(l2)
    first = find(l2, number) if number else 0
    last = first + 1 if number else len(l2.tags)
    if first != NO_WAY:
        for way in range(first, last):
            if l2.tags[way]:
                if operation == INVALIDATE and l2.tags[way] & DIRTY:
                    l2.tags[way] -= DIRTY
                    l2.dirty -= 1
                if operation == CLEAN:
                    write_back(loop, t, way)
                else:
                    evict(loop, t, way)
    report(loop, t, 0, 0)


# -- lines -------------------------------------------------------------------------------------------------------------


def find(l2: Cache, number: int) -> int:
    """Return the way of a line, counted over all sets, or NO_WAY."""
    first = first_way(l2, number)
    for way in range(first, first + l2.ways):
        if l2.tags[way] >> FLAGS == number:
            return way
    return NO_WAY


def first_way(l2: Cache, number: int) -> int:
    """Return the first way of a line's set."""
    return number % l2.sets * l2.ways


def allocate(loop: EventLoop, t: int, number: int) -> int:
    """Return an empty way in a line's set. Evict the LRU line if there is none."""
    l2 = loop.l2
    first = first_way(l2, number)
    last = first + l2.ways - 1
    way = last
    while way >= first:
        if not l2.tags[way]:
            return way
        way -= 1
    evict(loop, t, last)
    return last


def make_most_recent(l2: Cache, number: int, way: int, tag: int) -> None:
    """Make the line in a way the most recently used of its set."""
    first = first_way(l2, number)
    while way > first:
        l2.tags[way] = l2.tags[way - 1]
        way -= 1
    l2.tags[first] = tag


def evict(loop: EventLoop, t: int, way: int) -> None:
    """Write a line back if dirty, and free its way."""
    l2 = loop.l2
    write_back(loop, t, way)
    drop_watch(l2, way)
    l2.tags[way] = 0
    l2.valid -= 1


def write_back(loop: EventLoop, t: int, way: int) -> None:
    """Write a line to DRAM if it is dirty."""
    l2 = loop.l2
    tag = l2.tags[way]
    if tag & DIRTY:
        channel = channel_of(loop, tag >> FLAGS)
        drop_watch(l2, way)
        l2.tags[way] = tag >> FLAGS << FLAGS
        l2.dirty -= 1
        l2.written_back += 1
        loop.channels[channel].moved += l2.line
        if loop.timed:
            l2.written_until = max(
                l2.written_until, access_directly(loop.dram, t, (tag >> FLAGS) * l2.line, l2.line, 1)
            )
        else:
            priority_access(loop, t, (tag >> FLAGS) * l2.line, l2.line, 1)


def drop_watch(l2: Cache, way: int) -> None:
    """Report a line that no longer differs from DRAM if it is watched."""
    if l2.tags[way] & WATCHED:
        l2.dropped.append(l2.tags[way])


def mark(loop: EventLoop, number: int, flags: int) -> int:
    """Set flags of a line. Return its tag, or 0 if the L2 does not hold it."""
    l2 = loop.l2
    way = find(l2, number)
    if way == NO_WAY:
        return 0
    l2.tags[way] = l2.tags[way] | flags
    return l2.tags[way]


def channel_of(loop: EventLoop, number: int) -> int:
    """Return the DRAM channel of a line."""
    return number * loop.l2.line // loop.interleave % len(loop.channels)


# -- events ------------------------------------------------------------------------------------------------------------


def begin_report(l2: Cache) -> None:
    """Begin the report of a transfer or a maintenance operation."""
    l2.written_back = 0
    l2.written_until = 0
    l2.filled_until = 0
    l2.stale = 0


def note_stale_read(l2: Cache, tag: int) -> None:
    """Count a read of a line if DRAM may have newer bytes."""
    if tag & STALE:
        if not l2.stale:
            l2.stale_address = (tag >> FLAGS) * l2.line
        l2.stale += 1


def report(loop: EventLoop, t: int, ticket: int, tile: int) -> None:
    """Emit stale reads and write-backs as events."""
    l2 = loop.l2
    if l2.stale:
        emit(loop, t, l2.code, What.STALE, ticket, tile, l2.stale_address, l2.stale)
    if l2.written_back:
        emit(loop, t, l2.code, What.L2_WRITE_BACK, ticket, tile, l2.written_back * l2.line, l2.written_back)
