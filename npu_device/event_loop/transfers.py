"""A transfer on its DMA channel: latency, opening of DRAM rows, data, tail (docs/npu-timing.md, "Transfers").

A part of the event loop, in the subset of `native`.
"""

from npu_device.event_loop import layout as w
from npu_device.event_loop.arbiter import emit, use_banks
from npu_device.event_loop.cache import cached, passed
from npu_device.event_loop.sharing import moved_at, part, settle

Ints = list[int]

CHANNEL_BYTES = 21
"""`What.CHANNEL_BYTES`."""
DRAM_CODE = 6 << 8
CACHED = 1 << 20
"""`events.CACHED`."""


def begin_transfer(m: Ints, p: Ints, e: Ints, u: int, t: int) -> int:
    """The transfer that a DMA channel has been given begins with its latency."""
    piece = m[u + w.U_PIECE]
    size = p[piece + w.P_ALIGNED]
    latency = m[w.LATENCY]
    missing = 1
    if not m[w.ALIKE]:
        channels = piece + w.P_LIST + (p[piece + w.P_PHASES] + p[piece + w.P_STALLS]) * w.PHASE_WORDS
        if p[piece + w.P_AUX] & CACHED:
            missing = cached(m, p, e, u, t, channels + m[w.DRAM_CHANNELS])
            latency = m[w.L2_MISS] if missing else m[w.L2_HIT]
        else:
            c = 0
            while c < m[w.DRAM_CHANNELS]:
                m[u + w.U_SHARE + c] = part(p[channels + c], size)
                m[w.MOVED + c] += p[channels + c]
                c += 1
            if m[w.L2_LINE]:
                passed(m, p, e, u, t, channels + m[w.DRAM_CHANNELS])
    if missing:
        latency += open_rows(m, p[m[u + w.U_STEP] + w.S_DRAM], size)
    m[u + w.U_STATE] = w.LATE
    m[u + w.U_FROM] = t + latency
    m[u + w.U_MIN_END] = m[u + w.U_FROM] + p[piece + w.P_CYCLES]
    m[u + w.U_LEFT] = p[piece + w.P_CREDITS]
    m[u + w.U_STALL] = 0
    m[u + w.U_LENGTH] = -1
    if m[w.L2_LINE] and m[w.L2_BACK]:
        c = 0
        while c < m[w.DRAM_CHANNELS]:
            m[u + w.U_MIN_END] = max(m[u + w.U_MIN_END], m[w.PAUSED + c])
            c += 1
    return 0


def open_rows(m: Ints, address: int, size: int) -> int:
    """Cycles of opening the rows that a transfer begins in, on all its DRAM channels at once; the rows that it ends in
    stay open."""
    if not m[w.ROW_CYCLES]:
        return 0
    banks = m[w.ROW_BANKS]
    closed = 0
    c = 0
    while c < m[w.DRAM_CHANNELS]:
        row = below(m, address, c)
        end = below(m, address + max(1, size), c)
        if row < end:
            row = row // m[w.ROW_BYTES]
            last = (end - 1) // m[w.ROW_BYTES]
            rows = w.OPEN_ROWS + c * w.MAX_ROW_BANKS
            if m[rows + row % banks] != row:
                closed = m[w.ROW_CYCLES]
            row = max(row, last - banks + 1)
            while row <= last:
                m[rows + row % banks] = row
                row += 1
        c += 1
    return closed


def below(m: Ints, address: int, c: int) -> int:
    """Bytes below an address on a DRAM channel: the address there."""
    if m[w.DRAM_CHANNELS] == 1:
        return address
    block = m[w.INTERLEAVE]
    turn = block * m[w.DRAM_CHANNELS]
    return address // turn * block + min(block, max(0, address % turn - c * block))


def go_on(m: Ints, u: int, t: int) -> int:
    """What a transfer in progress comes to in cycle `t`: its first byte, or its last."""
    if m[u + w.U_STATE] == w.FLOWING and moved_at(m, u) <= t:
        settle(m, t)
        m[u + w.U_LEFT] = 0
        m[u + w.U_STATE] = w.TAIL
        m[u + w.U_END] = max(t, m[u + w.U_MIN_END]) + m[u + w.U_STALL]
        m[w.SHARE_DUE] = 1
    elif m[u + w.U_STATE] == w.LATE and m[u + w.U_FROM] <= t:
        settle(m, t)
        m[u + w.U_STATE] = w.FLOWING
        m[u + w.U_RATE] = m[w.CHANNEL] if m[w.CHANNEL] else 1 if m[w.FIRST_RATE] else 0
        m[w.SHARE_DUE] = 1
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


def report_moved(m: Ints, e: Ints, t: int, ticket: int) -> int:
    """A command completes: what its DRAM channels have moved since the last that did."""
    if not m[w.ALIKE]:
        c = 0
        while c < m[w.DRAM_CHANNELS]:
            if m[w.MOVED + c]:
                emit(m, e, t, DRAM_CODE + c, CHANNEL_BYTES, ticket, 0, m[w.MOVED + c], 0)
                m[w.MOVED + c] = 0
            c += 1
    return 0
