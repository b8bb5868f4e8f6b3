"""The L2 between NoC and DRAM: which lines it holds, and what a transfer moves past it (docs/npu-timing.md, "L2").

Sets of ways, the line that was used longest ago leaves first. A line that DRAM does not have goes there before any
transfer moves on, and the transfer that made it leave does not end before. A part of the event loop, in the subset of
`native`.
"""

from npu_device.event_loop import layout as w
from npu_device.event_loop.arbiter import emit, ticket_of
from npu_device.event_loop.sharing import go_first, part

Ints = list[int]

L2_CODE = 7 << 8
STALE, L2_HIT, L2_MISS, L2_WRITE_BACK = 19, 22, 23, 24
"""`What`."""


def cached(m: Ints, p: Ints, e: Ints, u: int, t: int, rows: int) -> int:
    """A transfer goes through the L2: its parts of the DRAM channels; whether anything of it is missing there.

    `rows`: where its rows are in `p`.
    """
    step = m[u + w.U_STEP]
    piece = m[u + w.U_PIECE]
    write = p[piece + w.P_CLASS] == w.WRITE
    line = m[w.L2_LINE]
    hits = 0
    missed = 0
    c = 0
    while c < m[w.DRAM_CHANNELS]:
        m[w.FILLED + c] = 0
        c += 1
    forget(m)
    row = 0
    while row < p[rows + w.ROW_COUNT]:
        start = p[step + w.S_DRAM] + row * p[rows + w.ROW_STRIDE]
        end = start + p[rows + w.ROW_SIZE]
        number = start // line
        while number * line < end:
            whole = write and start <= number * line and (number + 1) * line <= end
            at = find(m, number)
            word = number << w.FLAGS
            if at:
                hits += 1
                word = m[at]
                if word & w.STALE and whole:
                    word -= w.STALE
                elif not write:
                    read_old(m, word)
            else:
                missed += 1
                at = room(m, t, number)
                m[w.L2_HELD] += 1
                if not whole:
                    m[w.FILLED + channel_of(m, number)] += line
            if write and not word & w.DIRTY:
                word += w.DIRTY
                m[w.L2_DIRTY] += 1
            to_front(m, number, at, word)
            number += 1
        row += 1
    filled = 0
    c = 0
    while c < m[w.DRAM_CHANNELS]:
        m[u + w.U_SHARE + c] = part(m[w.FILLED + c], p[piece + w.P_ALIGNED])
        m[w.MOVED + c] += m[w.FILLED + c]
        filled += m[w.FILLED + c]
        c += 1
    ticket = ticket_of(m, u)
    tile = p[step + w.S_TILE]
    if hits:
        emit(m, e, t, L2_CODE, L2_HIT, ticket, tile, hits * line, hits)
    if missed:
        emit(m, e, t, L2_CODE, L2_MISS, ticket, tile, filled, missed)
    report(m, e, t, ticket, tile)
    return filled > 0


def passed(m: Ints, p: Ints, e: Ints, u: int, t: int, rows: int) -> int:
    """A transfer goes past the L2. Its lines leave before a write; before a read they go to DRAM if that does not have
    them, and what DRAM has changed meanwhile is not seen."""
    step = m[u + w.U_STEP]
    write = p[m[u + w.U_PIECE] + w.P_CLASS] == w.WRITE
    line = m[w.L2_LINE]
    forget(m)
    row = 0
    while row < p[rows + w.ROW_COUNT] and m[w.L2_HELD]:
        start = p[step + w.S_DRAM] + row * p[rows + w.ROW_STRIDE]
        end = start + p[rows + w.ROW_SIZE]
        number = start // line
        while number * line < end:
            at = find(m, number)
            if at:
                if write:
                    leave(m, t, at)
                else:
                    read_old(m, m[at])
                    clean(m, t, at)
            number += 1
        row += 1
    return report(m, e, t, ticket_of(m, u), p[step + w.S_TILE])


def forget(m: Ints) -> int:
    """A transfer or a flush begins."""
    m[w.L2_BACK] = 0
    m[w.L2_OLD] = 0
    return 0


def read_old(m: Ints, word: int) -> int:
    """A line is read, which DRAM may have newer."""
    if word & w.STALE:
        if not m[w.L2_OLD]:
            m[w.L2_OLD_AT] = (word >> w.FLAGS) * m[w.L2_LINE]
        m[w.L2_OLD] += 1
    return 0


def report(m: Ints, e: Ints, t: int, ticket: int, tile: int) -> int:
    """What was read old and what was written back, as events."""
    if m[w.L2_OLD]:
        emit(m, e, t, L2_CODE, STALE, ticket, tile, m[w.L2_OLD_AT], m[w.L2_OLD])
    if m[w.L2_BACK]:
        emit(m, e, t, L2_CODE, L2_WRITE_BACK, ticket, tile, m[w.L2_BACK] * m[w.L2_LINE], m[w.L2_BACK])
    return 0


def channel_of(m: Ints, number: int) -> int:
    """The DRAM channel of a line."""
    return number * m[w.L2_LINE] // m[w.INTERLEAVE] % m[w.DRAM_CHANNELS]


def find(m: Ints, number: int) -> int:
    """Where a line is; 0: nowhere."""
    at = w.L2_TAGS + number % m[w.L2_SETS] * m[w.L2_WAYS]
    end = at + m[w.L2_WAYS]
    while at < end:
        if m[at] >> w.FLAGS == number:
            return at
        at += 1
    return 0


def room(m: Ints, t: int, number: int) -> int:
    """An empty place in the line's set; if there is none, the line that was used longest ago leaves."""
    first = w.L2_TAGS + number % m[w.L2_SETS] * m[w.L2_WAYS]
    last = first + m[w.L2_WAYS] - 1
    at = last
    while at >= first:
        if not m[at]:
            return at
        at -= 1
    leave(m, t, last)
    return last


def to_front(m: Ints, number: int, at: int, word: int) -> int:
    """The line at a place was used last."""
    first = w.L2_TAGS + number % m[w.L2_SETS] * m[w.L2_WAYS]
    while at > first:
        m[at] = m[at - 1]
        at -= 1
    m[first] = word
    return 0


def leave(m: Ints, t: int, at: int) -> int:
    """The line at a place leaves."""
    clean(m, t, at)
    report_gone(m, at)
    m[at] = 0
    m[w.L2_HELD] -= 1
    return 0


def clean(m: Ints, t: int, at: int) -> int:
    """The line at a place goes to DRAM if that does not have it."""
    if m[at] & w.DIRTY:
        c = channel_of(m, m[at] >> w.FLAGS)
        report_gone(m, at)
        m[at] = m[at] >> w.FLAGS << w.FLAGS
        m[w.L2_DIRTY] -= 1
        m[w.L2_BACK] += 1
        m[w.MOVED + c] += m[w.L2_LINE]
        go_first(m, t, c, m[w.L2_CREDITS])
    return 0


def report_gone(m: Ints, at: int) -> int:
    """What is known of the line at a place beside DRAM's bytes is so no longer."""
    if m[at] & w.WATCHED:
        m[left_at(m) + m[w.L2_GONE]] = m[at]
        m[w.L2_GONE] += 1
    return 0


def left_at(m: Ints) -> int:
    """Where lines that were watched and have left are listed."""
    return w.L2_TAGS + m[w.L2_SETS] * m[w.L2_WAYS]


CLEAN, FLUSH, INVALIDATE = 0, 1, 2
"""What `act` does with a line: to DRAM if that does not have it; and out; out without that."""


def act(m: Ints, e: Ints, t: int, number: int, action: int) -> int:
    """Clean, flush or invalidate a line; of number 0: all lines."""
    forget(m)
    at = find(m, number) if number else w.L2_TAGS
    end = at + 1 if number else left_at(m)
    while at and at < end:
        if m[at]:
            if action == INVALIDATE and m[at] & w.DIRTY:
                m[at] -= w.DIRTY
                m[w.L2_DIRTY] -= 1
            if action == CLEAN:
                clean(m, t, at)
            else:
                leave(m, t, at)
        at += 1
    return report(m, e, t, 0, 0)
