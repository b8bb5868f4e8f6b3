"""The event loop of CA_HYBRID: DMA channels, shared DRAM and NoC, banks and engines, step by step through plans.

Written in the subset of `native`: Python runs it as it stands, and long plans run it compiled. State is words of three
arrays, see `layout`. In a cycle: what ends, ends; then steps start; then rates are shared anew. All choices are by
acceptance number and index, so they depend on nothing else.
"""

from npu_device import layout as w

Ints = list[int]

TE_BEGIN, VE_BEGIN, DMA_BEGIN = 8, 10, 6
"""`What`; the END of each is one more."""
STALL, BANK_BUSY = 12, 20
CONFLICT = 2
"""`Cause.BANK_CONFLICT`."""
BANK_CODE = 4 << 8
FINE = 16
"""Bits of a port cycle's fraction while demands are added up."""

IDLE, COMPLETE, UNIT_FREE, FULL = 0, 1, 2, 3
"""Answers of `advance`."""


def emit(m: Ints, e: Ints, cycle: int, unit: int, what: int, ticket: int, tile: int, size: int, aux: int) -> int:
    at = m[w.OUT] * w.EVENT_WORDS
    e[at] = cycle
    e[at + 1] = unit
    e[at + 2] = what
    e[at + 3] = ticket
    e[at + 4] = tile
    e[at + 5] = size
    e[at + 6] = aux
    m[w.OUT] += 1
    return 0


# -- sharing -----------------------------------------------------------------------------------------------------------


def settle(m: Ints, t: int) -> int:
    """Move credits at the present rates up to cycle `t`."""
    elapsed = t - m[w.FLOW_BASE]
    if elapsed > 0:
        i = 0
        while i < m[w.UNITS_USED]:
            u = m[w.UNIT_LIST + i]
            if m[u + w.U_CLASS] == w.DMA and m[u + w.U_STATE] == w.FLOWING:
                m[u + w.U_LEFT] = max(0, m[u + w.U_LEFT] - m[u + w.U_RATE] * elapsed)
            i += 1
        m[w.FLOW_BASE] = t
    return 0


def share(m: Ints, t: int) -> int:
    """Max-min fair rates; as all channels are alike, equal ones. What is left over goes to the lowest channel."""
    settle(m, t)
    flowing = 0
    i = 0
    while i < m[w.UNITS_USED]:
        u = m[w.UNIT_LIST + i]
        if m[u + w.U_CLASS] == w.DMA and m[u + w.U_STATE] == w.FLOWING:
            flowing += 1
        i += 1
    if not flowing:
        if m[w.BUCKET_AT] == w.FOREVER:
            m[w.BUCKET_AT] = t
        return 0
    if t > m[w.BUCKET_AT]:
        m[w.BUCKET] = min(m[w.BURST], m[w.BUCKET] + (t - m[w.BUCKET_AT]) * m[w.TOTAL])
    m[w.BUCKET_AT] = w.FOREVER
    channel = m[w.CHANNEL]
    rate = channel
    over = 0
    if m[w.TOTAL] and (not channel or m[w.TOTAL] // flowing < channel):
        rate = m[w.TOTAL] // flowing
        over = m[w.TOTAL] % flowing
    i = 0
    while i < m[w.UNITS_USED]:
        u = m[w.UNIT_LIST + i]
        if m[u + w.U_CLASS] == w.DMA and m[u + w.U_STATE] == w.FLOWING:
            m[u + w.U_RATE] = min(rate + over, channel) if channel else rate + over
            over = 0
        i += 1
    return 0


def moved_at(m: Ints, u: int) -> int:
    """Cycle at which the last byte of a flowing transfer has moved, at the present rates."""
    left = m[u + w.U_LEFT]
    if not left or (not m[w.TOTAL] and not m[w.CHANNEL]):
        return m[w.FLOW_BASE]
    rate = m[u + w.U_RATE]
    return m[w.FLOW_BASE] + (left + rate - 1) // rate


# -- banks -------------------------------------------------------------------------------------------------------------


def until(m: Ints, u: int) -> int:
    """Cycle at which a unit is expected to leave its banks; 0: it uses none now."""
    if m[u + w.U_RUN] < 0:
        return 0
    if m[u + w.U_CLASS] != w.DMA:
        return m[u + w.U_END]
    if m[u + w.U_STATE] == w.FLOWING:
        return max(moved_at(m, u), m[u + w.U_MIN_END]) + m[u + w.U_STALL]
    return m[u + w.U_END] if m[u + w.U_STATE] == w.TAIL else 0


def need_of(p: Ints, piece: int, bank: int, port: int) -> int:
    """Port cycles of a piece on one bank."""
    at = piece + w.P_LIST
    end = at + p[piece + w.P_PHASES] * w.PHASE_WORDS
    while at < end:
        if p[at + w.Q_BANK] == bank and p[at + w.Q_PORT] == port:
            return p[at + w.Q_NEED]
        at += w.PHASE_WORDS
    return 0


def lower(m: Ints, u: int, v: int) -> int:
    """Which of two units the arbiter lets wait: DMA before VE before TE, then the younger command's."""
    if m[u + w.U_CLASS] != m[v + w.U_CLASS]:
        return u if m[u + w.U_CLASS] > m[v + w.U_CLASS] else v
    return u if m[u + w.U_NUMBER] > m[v + w.U_NUMBER] else v


def meet(m: Ints, p: Ints, e: Ints, u: int, t: int, phase: int) -> int:
    """One bank phase of unit `u` begins: lengthen the lowest of those on the bank by what they need too much.

    The window is cut where one of the others leaves; in each part the demands of all are added up.
    """
    bank = p[phase + w.Q_BANK]
    port = p[phase + w.Q_PORT]
    length = m[u + w.U_LENGTH]
    mine = p[phase + w.Q_NEED]
    deficit = 0
    loser = u
    passed = 0
    while passed < length:
        # the next to leave after `passed`, and the demand per cycle of those that stay until then
        part = length - passed
        others = 0
        i = 0
        while i < m[w.UNITS_USED]:
            v = m[w.UNIT_LIST + i]
            i += 1
            if (
                v != u
                and m[v + w.U_RUN] >= 0
                and m[v + w.U_LENGTH] > 0
                and p[m[v + w.U_PIECE] + w.P_MASK] >> bank % 32 & 1
            ):
                left = until(m, v) - t - passed
                if left > 0:
                    need = need_of(p, m[v + w.U_PIECE], bank, port)
                    if need:
                        others += (need << FINE) // m[v + w.U_LENGTH]
                        part = min(part, left)
                        loser = lower(m, loser, v)
        if not others:
            passed = length
        else:
            own = (mine << FINE) // max(1, length)
            full = 1 << FINE
            deficit += part * (max(0, others + own - full) - max(0, others - full))
            passed += part
    lost = (deficit + (1 << FINE) - 1) >> FINE
    if lost:
        stall(m, p, e, loser, t, bank, lost)
    book(m, p, e, u, t, phase)
    return 0


def book(m: Ints, p: Ints, e: Ints, u: int, t: int, phase: int) -> int:
    """A port serves one access at a time: when it cannot be through with all by the end of all, the lowest waits."""
    bank = p[phase + w.Q_BANK]
    port = p[phase + w.Q_PORT]
    at = w.BOOKED + 2 * bank + port
    m[at] = max(m[at], t) + p[phase + w.Q_NEED]
    loser = u
    latest = no_earlier(m, u)
    i = 0
    while i < m[w.UNITS_USED] and latest < m[at]:
        v = m[w.UNIT_LIST + i]
        i += 1
        if v != u and until(m, v) > t and need_of(p, m[v + w.U_PIECE], bank, port):
            latest = max(latest, no_earlier(m, v))
            loser = lower(m, loser, v)
    if latest < m[at]:
        stall(m, p, e, loser, t, bank, m[at] - no_earlier(m, loser))
    return 0


def no_earlier(m: Ints, u: int) -> int:
    """Cycle before which a unit does not leave its banks, however fast its data moves."""
    if m[u + w.U_STATE] == w.FLOWING:
        return m[u + w.U_MIN_END] + m[u + w.U_STALL]
    return m[u + w.U_END]


def stall(m: Ints, p: Ints, e: Ints, u: int, t: int, bank: int, cycles: int) -> int:
    """A bank lengthens a unit's step."""
    emit(m, e, t, BANK_CODE + bank, STALL, ticket_of(m, u), p[m[u + w.U_STEP] + w.S_TILE], cycles, CONFLICT)
    m[u + w.U_LENGTH] += cycles
    if m[u + w.U_STATE] == w.FLOWING:
        m[u + w.U_STALL] += cycles
    else:
        m[u + w.U_END] += cycles
    return 0


def ticket_of(m: Ints, u: int) -> int:
    """Ticket of the command that a unit works for."""
    return m[w.RUNS + m[u + w.U_RUN] * w.RUN_WORDS + w.R_TICKET]


def use_banks(m: Ints, p: Ints, e: Ints, u: int, t: int) -> int:
    """A step's bank phases begin, all at once."""
    piece = m[u + w.U_PIECE]
    phases = p[piece + w.P_PHASES]
    at = piece + w.P_LIST + phases * w.PHASE_WORDS
    i = 0
    while i < p[piece + w.P_STALLS]:  # what it loses on its own, whatever runs beside it
        emit(m, e, t, BANK_CODE + p[at], STALL, ticket_of(m, u), p[m[u + w.U_STEP] + w.S_TILE], p[at + 2], p[at + 1])
        at += w.PHASE_WORDS
        i += 1
    at = piece + w.P_LIST
    i = 0
    while i < phases:
        m[w.BUSY + p[at + w.Q_BANK]] += p[at + w.Q_NEED]
        if m[u + w.U_LENGTH]:
            meet(m, p, e, u, t, at)
        at += w.PHASE_WORDS
        i += 1
    return 0


# -- ends --------------------------------------------------------------------------------------------------------------


def end_step(m: Ints, p: Ints, e: Ints, u: int, t: int) -> int:
    """The step of a unit is over."""
    step = m[u + w.U_STEP]
    piece = m[u + w.U_PIECE]
    run = w.RUNS + m[u + w.U_RUN] * w.RUN_WORDS
    kind = m[u + w.U_CLASS]
    what = TE_BEGIN if kind == w.TE else VE_BEGIN if kind == w.VE else DMA_BEGIN
    emit(m, e, t, m[u + w.U_CODE], what + 1, m[run + w.R_TICKET], p[step + w.S_TILE], p[piece + w.P_BYTES],
         p[piece + w.P_ALIGNED])  # fmt: skip
    done = t + p[piece + w.P_DRAIN]
    p[step + w.S_RELEASED] = t
    p[step + w.S_DONE] = done
    m[u + w.U_RUN] = -1
    m[u + w.U_LAST] = t
    m[u + w.U_STATE] = 0
    m[run + w.R_FINISH] = max(m[run + w.R_FINISH], done)
    m[run + w.R_LEFT] -= 1
    if not m[run + w.R_LEFT]:
        m[w.FINISHING] += 1
        m[m[run + w.R_UNIT] + w.U_HOLDER] = 0
    return 0


def ends(m: Ints, p: Ints, e: Ints, t: int) -> int:
    """Everything that ends in cycle `t`: engines, transfers, commands."""
    m[w.TIME] = t
    i = 0
    while i < m[w.UNITS_USED]:
        u = m[w.UNIT_LIST + i]
        i += 1
        if m[u + w.U_RUN] >= 0:
            if m[u + w.U_STATE] == w.FLOWING and moved_at(m, u) <= t:
                settle(m, t)
                m[u + w.U_LEFT] = 0
                m[u + w.U_STATE] = w.TAIL
                m[u + w.U_END] = max(t, m[u + w.U_MIN_END]) + m[u + w.U_STALL]
                m[w.SHARE_DUE] = 1
            if m[u + w.U_STATE] == w.LATE:
                if m[u + w.U_FROM] <= t:
                    settle(m, t)
                    m[u + w.U_STATE] = w.FLOWING
                    m[u + w.U_RATE] = max(1, m[w.CHANNEL])
                    m[w.SHARE_DUE] = 1
            elif m[u + w.U_STATE] != w.FLOWING and m[u + w.U_END] <= t:
                end_step(m, p, e, u, t)
    if m[w.FINISHING]:
        finish(m, e, t)
    return 0


def finish(m: Ints, e: Ints, t: int) -> int:
    """Commands whose last result is there complete, by acceptance number."""
    i = 0
    kept = 0
    while i < m[w.ORDERED]:
        slot = m[w.ORDER + i]
        run = w.RUNS + slot * w.RUN_WORDS
        if not m[run + w.R_LEFT] and m[run + w.R_FINISH] <= t:
            m[w.COMPLETE + m[w.COMPLETED]] = slot
            m[w.COMPLETED] += 1
            m[w.FINISHING] -= 1
            bank = 0
            while bank < m[w.BANKS]:
                if m[w.BUSY + bank]:
                    emit(m, e, t, BANK_CODE + bank, BANK_BUSY, m[run + w.R_TICKET], 0, m[w.BUSY + bank], 0)
                    m[w.BUSY + bank] = 0
                bank += 1
        else:
            m[w.ORDER + kept] = slot
            kept += 1
        i += 1
    m[w.ORDERED] = kept
    return 0


# -- starts ------------------------------------------------------------------------------------------------------------


def ready_at(p: Ints, steps: int, step: int, column: int) -> int:
    """Since when the steps before `step` are over; FOREVER while one has no end yet."""
    ready = 0
    i = 0
    while i < w.MAX_AFTER:
        before = p[step + w.S_AFTER + i]
        if before < 0:
            return ready
        over = p[steps + before * w.STEP_WORDS + column]
        if over < 0:
            return w.FOREVER
        ready = max(ready, over)
        i += 1
    return ready


def usable(m: Ints, u: int, slot: int) -> int:
    """Whether a run may start a step on a unit now."""
    return m[u + w.U_RUN] < 0 and (not m[u + w.U_HOLDER] or m[u + w.U_HOLDER] == slot + 1)


def unit_for(m: Ints, slot: int, kind: int, step_class: int) -> int:
    """The lowest free unit for a step: its command's own where it is of that kind. -1: none."""
    run = w.RUNS + slot * w.RUN_WORDS
    held = m[run + w.R_UNIT]
    if m[held + w.U_CLASS] == kind:
        return held if usable(m, held, slot) else -1
    i = 0
    seen = 0
    while i < m[w.UNITS_USED]:
        u = m[w.UNIT_LIST + i]
        i += 1
        if m[u + w.U_CLASS] == kind and m[u + w.U_CLUSTER] == m[run + w.R_CLUSTER]:
            allowed = kind != w.DMA or not m[w.SPLIT] or seen == step_class
            seen += 1
            if allowed and usable(m, u, slot):
                return u
    return -1


def start(m: Ints, p: Ints, e: Ints, t: int) -> int:
    """Start every step that can start in cycle `t`, then share DRAM and NoC anew."""
    m[w.WAKE] = w.FOREVER
    found = 1
    while found:
        # the transfer or vector step that was ready first; then the older command's, then reads before writes
        found = 0
        best = w.FOREVER
        best_slot = 0
        best_unit = 0
        best_class = 0
        i = 0
        while i < m[w.ORDERED]:
            slot = m[w.ORDER + i]
            i += 1
            run = w.RUNS + slot * w.RUN_WORDS
            steps = m[run + w.R_STEPS]
            c = 0
            while c < 4:
                head = m[run + w.R_HEAD + c]
                if head >= 0:
                    step = steps + head * w.STEP_WORDS
                    ready = ready_at(p, steps, step, w.S_RELEASED if c == w.READ else w.S_DONE)
                    if ready <= t:
                        if ready < best:
                            kind = w.TE if c == w.TENSOR else w.VE if c == w.VECTOR else w.DMA
                            u = unit_for(m, slot, kind, c)
                            if u >= 0:
                                found = 1
                                best = ready
                                best_slot = slot
                                best_unit = u
                                best_class = c
                    elif ready < w.FOREVER:
                        m[w.WAKE] = min(m[w.WAKE], ready)
                c += 1
        if found:
            begin_step(m, p, e, t, best_slot, best_class, best_unit)
    if m[w.SHARE_DUE]:
        m[w.SHARE_DUE] = 0
        share(m, t)
        join(m, p, e, t)
    return 0


def join(m: Ints, p: Ints, e: Ints, t: int) -> int:
    """Transfers whose data begins to move in this cycle meet the banks, once their rates are known."""
    i = 0
    while i < m[w.UNITS_USED]:
        u = m[w.UNIT_LIST + i]
        i += 1
        if m[u + w.U_STATE] == w.FLOWING and m[u + w.U_FROM] == t and m[u + w.U_LENGTH] < 0:
            piece = m[u + w.U_PIECE]
            m[u + w.U_LENGTH] = max(p[piece + w.P_CYCLES], moved_at(m, u) - t)
            use_banks(m, p, e, u, t)
    return 0


def begin_step(m: Ints, p: Ints, e: Ints, t: int, slot: int, step_class: int, u: int) -> int:
    """The next step of a class of a run begins on unit `u`."""
    run = w.RUNS + slot * w.RUN_WORDS
    step = m[run + w.R_STEPS] + m[run + w.R_HEAD + step_class] * w.STEP_WORDS
    piece = p[step + w.S_PIECE]
    m[run + w.R_HEAD + step_class] = p[step + w.S_NEXT]
    kind = m[u + w.U_CLASS]
    m[u + w.U_RUN] = slot
    m[u + w.U_STEP] = step
    m[u + w.U_PIECE] = piece
    m[u + w.U_NUMBER] = m[run + w.R_NUMBER]
    what = TE_BEGIN if kind == w.TE else VE_BEGIN if kind == w.VE else DMA_BEGIN
    emit(m, e, t, m[u + w.U_CODE], what, m[run + w.R_TICKET], p[step + w.S_TILE], p[piece + w.P_BYTES],
         p[piece + w.P_AUX])  # fmt: skip
    if kind == w.DMA:
        m[u + w.U_STATE] = w.LATE
        m[u + w.U_FROM] = t + m[w.LATENCY] + open_row(m, p[step + w.S_DRAM], p[piece + w.P_ALIGNED])
        m[u + w.U_MIN_END] = m[u + w.U_FROM] + p[piece + w.P_CYCLES]
        m[u + w.U_LEFT] = p[piece + w.P_CREDITS]
        m[u + w.U_STALL] = 0
        m[u + w.U_LENGTH] = -1
    else:
        cycles = p[piece + w.P_CYCLES]
        m[u + w.U_FROM] = t
        if m[u + w.U_LAST] != t:
            cycles += p[piece + w.P_COLD]
        m[u + w.U_LENGTH] = cycles
        m[u + w.U_END] = t + cycles
        use_banks(m, p, e, u, t)
    return 0


def open_row(m: Ints, address: int, size: int) -> int:
    """Cycles of opening the row that a transfer begins in; the rows that it ends in stay open."""
    if not m[w.ROW_CYCLES]:
        return 0
    row = address // m[w.ROW_BYTES]
    last = (address + max(1, size) - 1) // m[w.ROW_BYTES]
    banks = m[w.ROW_BANKS]
    closed = m[w.OPEN_ROWS + row % banks] != row
    row = max(row, last - banks + 1)
    while row <= last:
        m[w.OPEN_ROWS + row % banks] = row
        row += 1
    return m[w.ROW_CYCLES] if closed else 0


# -- time --------------------------------------------------------------------------------------------------------------


def next_cycle(m: Ints) -> int:
    """The next cycle in which something happens here; FOREVER: none."""
    soon = m[w.WAKE]
    i = 0
    while i < m[w.UNITS_USED]:
        u = m[w.UNIT_LIST + i]
        i += 1
        if m[u + w.U_RUN] >= 0:
            if m[u + w.U_CLASS] != w.DMA or m[u + w.U_STATE] == w.TAIL:
                soon = min(soon, m[u + w.U_END])
            elif m[u + w.U_STATE] == w.LATE:
                soon = min(soon, m[u + w.U_FROM])
            else:
                soon = min(soon, moved_at(m, u))
    if m[w.FINISHING]:
        i = 0
        while i < m[w.ORDERED]:
            run = w.RUNS + m[w.ORDER + i] * w.RUN_WORDS
            i += 1
            if not m[run + w.R_LEFT]:
                soon = min(soon, m[run + w.R_FINISH])
    return max(soon, m[w.TIME])


def unit_wanted(m: Ints) -> int:
    """Whether a unit is free that a waiting command could start on."""
    if not m[w.WANTED]:
        return 0
    i = 0
    while i < m[w.UNITS_USED]:
        u = m[w.UNIT_LIST + i]
        i += 1
        free = m[u + w.U_RUN] < 0 and not m[u + w.U_HOLDER]
        if free and m[w.WANTED] >> 4 * m[u + w.U_CLASS] + m[u + w.U_CLUSTER] & 1:
            return 1
    return 0


def advance(m: Ints, p: Ints, e: Ints, limit: int) -> int:
    """Step through cycles below `limit` until one concerns the rest of the device.

    IDLE: nothing happens below `limit`. COMPLETE: commands completed in cycle TIME, whose starts are still to come.
    UNIT_FREE: the starts of cycle TIME left a unit that a command waits for. FULL: `e` must be emptied.
    """
    going = 1
    while going:
        t = next_cycle(m)
        if t >= limit:
            return IDLE
        if m[w.OUT] > w.EVENTS - w.EVENTS_PER_CYCLE:
            return FULL
        ends(m, p, e, t)
        if m[w.COMPLETED]:
            return COMPLETE
        start(m, p, e, t)
        if unit_wanted(m):
            return UNIT_FREE
    return IDLE
