"""The event loop of CA_HYBRID: engines and DMA channels, step by step through plans.

Written in the subset of `native`: Python runs it as it stands, and long plans run it compiled. State is words of three
arrays, see `layout`. In a cycle: what ends, ends; then steps start; then rates are shared anew. All choices are by
acceptance number and index, so they depend on nothing else.
"""

from npu_device.event_loop import layout as w
from npu_device.event_loop.arbiter import BANK_CODE, emit, use_banks
from npu_device.event_loop.sharing import moved_at, share
from npu_device.event_loop.transfers import begin_transfer, go_on, join, report_moved

Ints = list[int]

TE_BEGIN, VE_BEGIN, DMA_BEGIN = 8, 10, 6
"""`What`; the END of each is one more."""
BANK_BUSY = 20
IDLE, COMPLETE, UNIT_FREE, FULL = 0, 1, 2, 3
"""Answers of `advance`."""


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
        let_go(m, run)
    return 0


def let_go(m: Ints, run: int) -> int:
    """The units of a run are free for others."""
    i = 0
    while i < w.MAX_LANES:
        u = m[run + w.R_UNIT + i]
        if u >= 0:
            m[u + w.U_HOLDER] = 0
        i += 1
    return 0


def ends(m: Ints, p: Ints, e: Ints, t: int) -> int:
    """Everything that ends in cycle `t`: engines, transfers, commands."""
    m[w.TIME] = t
    i = 0
    while i < m[w.UNITS_USED]:
        u = m[w.UNIT_LIST + i]
        i += 1
        if m[u + w.U_RUN] >= 0:
            if m[u + w.U_CLASS] == w.DMA:
                go_on(m, u, t)
            if (m[u + w.U_CLASS] != w.DMA or m[u + w.U_STATE] == w.TAIL) and m[u + w.U_END] <= t:
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
            report_moved(m, e, t, m[run + w.R_TICKET])
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


def unit_for(m: Ints, slot: int, kind: int, step_class: int, lane: int) -> int:
    """The lowest free unit for a step: the one of its lane where its command's are of that kind. -1: none."""
    run = w.RUNS + slot * w.RUN_WORDS
    if m[m[run + w.R_UNIT] + w.U_CLASS] == kind:
        held = m[run + w.R_UNIT + lane]
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
                            u = unit_for(m, slot, kind, c, p[step + w.S_LANE])
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


def go(m: Ints, p: Ints, e: Ints, t: int) -> int:
    """As `start`; the next cycle in which something happens."""
    start(m, p, e, t)
    return next_cycle(m)


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
        begin_transfer(m, p, e, u, t)
    else:
        cycles = p[piece + w.P_CYCLES]
        m[u + w.U_FROM] = t
        if m[u + w.U_LAST] != t:
            cycles += p[piece + w.P_COLD]
        m[u + w.U_LENGTH] = cycles
        m[u + w.U_END] = t + cycles
        use_banks(m, p, e, u, t)
    return 0


# -- runs --------------------------------------------------------------------------------------------------------------


def enter(m: Ints, slot: int, number: int, steps: int, ticket: int, cluster: int, count: int) -> int:
    """A run of `count` steps, the first at `steps`, takes a slot: its index. It has no units and no heads yet."""
    run = w.RUNS + slot * w.RUN_WORDS
    m[run + w.R_NUMBER] = number
    m[run + w.R_STEPS] = steps
    m[run + w.R_TICKET] = ticket
    m[run + w.R_CLUSTER] = cluster
    m[run + w.R_LEFT] = count
    m[run + w.R_FINISH] = 0
    i = 0
    while i < 4:
        m[run + w.R_UNIT + i] = -1
        m[run + w.R_HEAD + i] = -1
        i += 1
    at = w.ORDER + m[w.ORDERED]
    while at > w.ORDER and m[w.RUNS + m[at - 1] * w.RUN_WORDS] > number:
        m[at] = m[at - 1]
        at -= 1
    m[at] = slot
    m[w.ORDERED] += 1
    return run


def hold(m: Ints, slot: int, lane: int, u: int) -> int:
    """A unit is a run's own."""
    m[w.RUNS + slot * w.RUN_WORDS + w.R_UNIT + lane] = u
    m[u + w.U_HOLDER] = slot + 1
    return 0


def begin_one(m: Ints, p: Ints, e: Ints, form: Ints, size: int, base: int, slot: int, step_class: int, dram: int,
              number: int, ticket: int, u: int, t: int) -> int:  # fmt: skip
    """A run of one step, of `size` words as in `form`, on unit `u` from cycle `t` on: the next cycle."""
    i = 0
    while i < size:
        p[base + i] = form[i]
        i += 1
    p[base + w.S_PIECE] += base
    p[base + w.S_DRAM] = dram
    run = enter(m, slot, number, base, ticket, m[u + w.U_CLUSTER], 1)
    m[run + w.R_HEAD + step_class] = 0
    hold(m, slot, 0, u)
    return go(m, p, e, t)


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

    IDLE: nothing happens below `limit`. COMPLETE: commands completed in cycle TIME, whose starts are still to come:
    they find anew what is to WAKE for.
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
            m[w.WAKE] = w.FOREVER
            return COMPLETE
        start(m, p, e, t)
        if unit_wanted(m):
            return UNIT_FREE
    return IDLE
