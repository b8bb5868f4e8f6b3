"""Fluid model of IA_TIMING: transfers share DRAM and NoC as flows. When one begins, the ends of all are computed.

A transfer has no events between its begin and its end, neither for its first byte nor for a change of rates. Moved
credits are added up when a transfer begins or ends. When a transfer begins, the ends of all are predicted under the
assumption that no other follows (docs/npu-timing.md, "Differences between the levels"). Part of the event loop, in the
native subset (`pyv_native`).
"""

from npu_device.cost.rates import FRACTION_BITS
from npu_device.units.sharing import serve_oldest_first
from npu_device.units.state import FLOWING, FOREVER, WAITING, EventLoop, Unit


def begin_flow(loop: EventLoop, unit: Unit) -> None:
    """Begin the flow of a transfer at `unit.start`, including the L2 lines that it writes back."""
    unit.phase = FLOWING
    end_data(unit, unit.start)
    unit.left += loop.l2.written_back * loop.l2.line_credits
    loop.rates_due = 1


def end_data(unit: Unit, data_end: int) -> None:
    """Set the end of a transfer whose data has moved, and its delays by bank conflicts and by its KV engine."""
    tail = unit.step.piece.tail
    end = max(data_end, unit.earliest_end)
    conflict = end - max(data_end, unit.undisturbed_end)
    unit.end = end + tail
    unit.conflict = conflict
    unit.exposed = unit.end - conflict - max(data_end, unit.bare_end) + unit.delay


def foresee(loop: EventLoop, t: int) -> None:
    """Predict the ends of all transfers, after the last transfer that begins in cycle `t`."""
    flow(loop, t)
    for unit in loop.units:
        unit.backup = unit.left
    flow(loop, FOREVER)
    for unit in loop.units:
        unit.left = unit.backup
    loop.rates_since = t


def flow(loop: EventLoop, until: int) -> None:
    """Move credits from `rates_since` to `until`. Rates change only in cycles in which transfers join or leave."""
    now = loop.rates_since
    while now < until:
        change = until
        if loop.oldest_first:
            serve_oldest_first(loop, FLOWING, now)
        else:
            share_fairly(loop, now)
        for unit in loop.units:
            if unit.phase == FLOWING and unit.left:
                if unit.ready > now:
                    change = min(change, unit.ready)
                elif unit.rate != WAITING:
                    change = min(change, now + (unit.left + unit.rate - 1) // unit.rate if unit.rate else now)
        for unit in loop.units:
            if unit.phase == FLOWING and unit.left and unit.ready <= now and unit.rate != WAITING:
                unit.left = max(0, unit.left - unit.rate * (change - now)) if unit.rate else 0
                if not unit.left:
                    end_data(unit, change)
        now = change
    loop.rates_since = now


def share_fairly(loop: EventLoop, now: int) -> None:
    """Set the rates of all transfers that move data."""
    count = 0
    for link in loop.links:
        link.weight = 0
    for unit in loop.units:
        if unit.phase == FLOWING and unit.left and unit.ready <= now:
            count += 1
            if not loop.uniform:
                for i in range(len(loop.links)):
                    loop.links[i].weight += unit.share[i]
    if count:
        remainder = loop.total_rate % count
        for unit in loop.units:
            if unit.phase == FLOWING and unit.left and unit.ready <= now:
                unit.rate = fair_rate(loop, unit, count, remainder)
                remainder = 0


def fair_rate(loop: EventLoop, unit: Unit, count: int, remainder: int) -> int:
    """Return the rate of one of `count` transfers, an equal share of its links, in credits per cycle; 0 for no limit.

    `remainder`: that of the division, which the lowest channel gets.
    """
    rate = loop.dma_rate
    if loop.uniform:
        fair = loop.total_rate // count + remainder
        return fair if fair and (not rate or fair < rate) else rate
    for i in range(len(loop.links)):
        link = loop.links[i]
        if link.rate and unit.share[i]:
            fair = max(1, (link.rate << FRACTION_BITS) // link.weight)
            if not rate or fair < rate:
                rate = fair
    return rate
