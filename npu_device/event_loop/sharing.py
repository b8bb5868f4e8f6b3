"""DRAM channels and NoC shared by transfers: credits, and max-min fair rates (docs/npu-timing.md, "Transfers").

A transfer moves its bytes at one rate, in the order of their addresses: of its rate each DRAM channel carries the part
that its bytes have there. A part of the event loop, in the subset of `native`.
"""

from npu_device.event_loop import layout as w

Ints = list[int]

FINE = 16
WHOLE = 1 << FINE
"""A part of 1."""
OPEN = -1
"""In U_RATE, while rates are shared: not settled yet."""


def part(size: int, whole: int) -> int:
    """`size` of `whole` bytes in 1/WHOLE, rounded up."""
    return ((size << FINE) + whole - 1) // whole if size else 0


def flowing(m: Ints, u: int) -> int:
    """Whether a unit moves data."""
    return m[u + w.U_CLASS] == w.DMA and m[u + w.U_STATE] == w.FLOWING


def goes_on(m: Ints, u: int) -> int:
    """Cycle from which a transfer moves credits at its present rate: whoever goes first on its channels is through."""
    base = m[w.FLOW_BASE]
    if m[w.ALIKE]:
        return max(base, m[w.PAUSED])
    c = 0
    while c < m[w.DRAM_CHANNELS]:
        if m[u + w.U_SHARE + c]:
            base = max(base, m[w.PAUSED + c])
        c += 1
    return base


def settle(m: Ints, t: int) -> int:
    """Move credits at the present rates up to cycle `t`."""
    if t > m[w.FLOW_BASE]:
        i = 0
        while i < m[w.UNITS_USED]:
            u = m[w.UNIT_LIST + i]
            if flowing(m, u):
                elapsed = t - goes_on(m, u)
                if elapsed > 0:
                    m[u + w.U_LEFT] = max(0, m[u + w.U_LEFT] - m[u + w.U_RATE] * elapsed)
            i += 1
        m[w.FLOW_BASE] = t
    return 0


def share(m: Ints, t: int) -> int:
    """Max-min fair rates for all transfers that move data."""
    settle(m, t)
    count = 0
    i = 0
    while i < m[w.UNITS_USED]:
        count += flowing(m, m[w.UNIT_LIST + i])
        i += 1
    if m[w.ALIKE]:
        fill(m, t, 0, count)
        if count:
            share_equally(m, count)
        return 0
    c = 0
    while c < m[w.DRAM_CHANNELS]:
        fill(m, t, c, demand(m, c, 0))
        c += 1
    if count:
        share_by_channel(m, count)
    return 0


def fill(m: Ints, t: int, c: int, busy: int) -> int:
    """The bucket of a DRAM channel fills while no transfer uses it."""
    if not busy:
        if m[w.BUCKET_AT + c] == w.FOREVER:
            m[w.BUCKET_AT + c] = t
        return 0
    if t > m[w.BUCKET_AT + c]:
        m[w.BUCKET + c] = min(m[w.BURST], m[w.BUCKET + c] + (t - m[w.BUCKET_AT + c]) * m[w.FIRST_RATE])
    m[w.BUCKET_AT + c] = w.FOREVER
    return 0


def share_equally(m: Ints, count: int) -> int:
    """Rates of transfers that all use the same. What does not divide goes to the lowest channel."""
    channel = m[w.CHANNEL]
    rate = channel
    over = 0
    if m[w.TOTAL] and (not channel or m[w.TOTAL] // count < channel):
        rate = m[w.TOTAL] // count
        over = m[w.TOTAL] % count
    i = 0
    while i < m[w.UNITS_USED]:
        u = m[w.UNIT_LIST + i]
        if flowing(m, u):
            m[u + w.U_RATE] = min(rate + over, channel) if channel else rate + over
            over = 0
        i += 1
    return 0


def share_by_channel(m: Ints, count: int) -> int:
    """Rates by progressive filling: all rise together until a DRAM channel or the NoC is full; those that use it stay.

    What does not divide goes to the lowest of them.
    """
    noc = m[w.DRAM_CHANNELS]
    c = 0
    while c <= noc:
        m[w.SPARE + c] = m[w.NOC_RATE] if c == noc else m[w.DRAM_RATE]
        c += 1
    i = 0
    while i < m[w.UNITS_USED]:
        u = m[w.UNIT_LIST + i]
        if flowing(m, u):
            m[u + w.U_RATE] = OPEN
        i += 1
    while count:
        level = m[w.CHANNEL]
        full = OPEN
        c = 0
        while c <= noc:
            if m[w.NOC_RATE] if c == noc else m[w.DRAM_RATE]:
                asked = demand(m, c, 1)
                if asked:
                    fair = max(1, (m[w.SPARE + c] << FINE) // asked)
                    if not level or fair < level:
                        level = fair
                        full = c
            c += 1
        over = 1
        i = 0
        while i < m[w.UNITS_USED]:
            u = m[w.UNIT_LIST + i]
            i += 1
            if flowing(m, u) and m[u + w.U_RATE] == OPEN and (full == OPEN or uses(m, u, full)):
                m[u + w.U_RATE] = level
                count -= 1
                give(m, u, level)
        i = 0
        while full != OPEN and over and i < m[w.UNITS_USED]:
            u = m[w.UNIT_LIST + i]
            i += 1
            if flowing(m, u) and m[u + w.U_RATE] == level and uses(m, u, full):
                more = over_for(m, u)
                m[u + w.U_RATE] += more
                give(m, u, more)
                over = 0
    return 0


def uses(m: Ints, u: int, c: int) -> int:
    """The part of a transfer's bytes that crosses a DRAM channel or, after those, the NoC."""
    return WHOLE if c == m[w.DRAM_CHANNELS] else m[u + w.U_SHARE + c]


def demand(m: Ints, c: int, unsettled: int) -> int:
    """The parts of all transfers that move data on a DRAM channel or the NoC; `unsettled`: of those with open rates."""
    total = 0
    i = 0
    while i < m[w.UNITS_USED]:
        u = m[w.UNIT_LIST + i]
        i += 1
        if flowing(m, u) and (not unsettled or m[u + w.U_RATE] == OPEN):
            total += uses(m, u, c)
    return total


def give(m: Ints, u: int, rate: int) -> int:
    """A transfer is given credits per cycle of all that it uses."""
    c = 0
    while c <= m[w.DRAM_CHANNELS]:
        m[w.SPARE + c] = max(0, m[w.SPARE + c] - ((rate * uses(m, u, c) + WHOLE - 1) >> FINE))
        c += 1
    return 0


def over_for(m: Ints, u: int) -> int:
    """What a transfer can be given of what does not divide."""
    more = m[w.CHANNEL] - m[u + w.U_RATE] if m[w.CHANNEL] else w.FOREVER
    c = 0
    while c <= m[w.DRAM_CHANNELS]:
        limited = m[w.NOC_RATE] if c == m[w.DRAM_CHANNELS] else m[w.DRAM_RATE]
        if limited and uses(m, u, c):
            more = min(more, (m[w.SPARE + c] << FINE) // uses(m, u, c))
        c += 1
    return more


def moved_at(m: Ints, u: int) -> int:
    """Cycle at which the last byte of a flowing transfer has moved, at the present rates."""
    left = m[u + w.U_LEFT]
    rate = m[u + w.U_RATE]
    if not left or not rate:
        return goes_on(m, u)
    return goes_on(m, u) + (left + rate - 1) // rate


def go_first(m: Ints, t: int, c: int, size: int) -> int:
    """Someone moves `size` credits over a DRAM channel before any transfer does: cycles until they are there.

    It uses what the bucket holds; for the rest the channel's transfers pause, in whole cycles, and the bucket keeps
    the change.
    """
    rate = m[w.FIRST_RATE]
    if not rate:
        return 0
    settle(m, t)
    debt = size - min(m[w.BURST], m[w.BUCKET + c] + max(0, t - m[w.BUCKET_AT + c]) * rate)
    pause = (debt + rate - 1) // rate if debt > 0 else 0
    m[w.BUCKET + c] = pause * rate - debt
    m[w.PAUSED + c] = max(m[w.PAUSED + c], t) + pause
    if m[w.BUCKET_AT + c] != w.FOREVER:
        m[w.BUCKET_AT + c] = max(m[w.BUCKET_AT + c], t) + pause
    return pause
