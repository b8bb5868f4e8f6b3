"""The arbiter of the scratchpad's banks: which phase waits for a busy port (docs/npu-timing.md, "Scratchpad").

A part of the event loop, in the subset of `native`.
"""

from npu_device.event_loop import layout as w
from npu_device.event_loop.sharing import moved_at

Ints = list[int]

STALL = 12
"""`What.STALL`."""
CONFLICT = 2
"""`Cause.BANK_CONFLICT`."""
BANK_CODE = 4 << 8
LOW = (1 << 32) - 1
FINE = 16
"""Bits of a port cycle's fraction while demands are added up."""


def emit(m: Ints, e: Ints, cycle: int, unit: int, what: int, ticket: int, tile: int, size: int, aux: int) -> int:
    """One record, laid out as `events.RECORD` is."""
    at = m[w.OUT] * w.EVENT_WORDS
    e[at] = cycle
    e[at + 1] = unit | what << 16 | ticket << 32
    e[at + 2] = tile | (size & LOW) << 32
    e[at + 3] = size >> 32 | aux << 32
    m[w.OUT] += 1
    return 0


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
