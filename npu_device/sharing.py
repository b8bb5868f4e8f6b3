"""DRAM and NoC between the transfers that move data: credits, and rates that are fair (specification 40, "Rates").

A part of the event loop, in the subset of `native`.
"""

from npu_device import layout as w

Ints = list[int]


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
