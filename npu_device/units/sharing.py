"""Sharing of DRAM channels and NoC by transfers: credits, max-min fair rates, priority accesses (docs/npu-timing.md).

A transfer moves its bytes at one rate. Each DRAM channel carries the share of the rate that it has of the bytes. Part
of the event loop, in the native subset (`pyv_native`).
"""

from npu_device.cost.piece_record import PieceRecord
from npu_device.cost.rates import FRACTION_BITS, WHOLE
from npu_device.dram.controller import access_directly, core_cycle_of, dram_cycle_of
from npu_device.units.state import (
    FOREVER,
    MOVING,
    WAITING,
    DramChannel,
    EventLoop,
    Unit,
)

NO_RATE = -2
"""Value of `Unit.rate` for a transfer without a rate during sharing."""
NO_LINK = -1


def credits_flow_from(loop: EventLoop, unit: Unit) -> int:
    """Return the cycle from which a transfer moves credits at its current rate, after priority accesses."""
    start = loop.rates_since
    if loop.uniform:
        return max(start, loop.channels[0].paused_until)
    for channel in loop.channels:
        if unit.share[channel.index]:
            start = max(start, channel.paused_until)
    return start


def transfer_end(loop: EventLoop, unit: Unit) -> int:
    """Return the cycle in which the last byte of a transfer has moved at the current rates; FOREVER if unknown."""
    moved = flow_end(loop, unit)
    if loop.timed and unit.request is not None:
        return max(moved, unit.request.end)
    return moved


def flow_end(loop: EventLoop, unit: Unit) -> int:
    """Return the cycle in which the data has moved according to the rates alone; FOREVER if unknown."""
    start = credits_flow_from(loop, unit)
    if not unit.left or not unit.rate:
        return start
    if unit.rate == WAITING:
        return FOREVER
    return start + (unit.left + unit.rate - 1) // unit.rate


def move_credits(loop: EventLoop, t: int) -> None:
    """Move credits at the current rates up to cycle `t`."""
    if t > loop.rates_since:
        for unit in loop.units:
            if unit.phase == MOVING and unit.rate > 0:
                elapsed = t - credits_flow_from(loop, unit)
                if elapsed > 0:
                    unit.left = max(0, unit.left - unit.rate * elapsed)
        loop.rates_since = t


def share_rates(loop: EventLoop, t: int) -> None:
    """Set the rates of all transfers that move data: max-min fair, or oldest first."""
    move_credits(loop, t)
    count = 0
    for unit in loop.units:
        count += unit.phase == MOVING
    if loop.uniform:
        fill_bucket(loop, loop.channels[0], t, count)
        if loop.oldest_first:
            serve_oldest_first(loop, MOVING, t)
        elif count:
            share_equally(loop, count)
        return
    for channel in loop.channels:
        fill_bucket(loop, channel, t, demand(loop, channel.index, 0))
    if loop.oldest_first:
        serve_oldest_first(loop, MOVING, t)
    elif count:
        fill_progressively(loop, count)


def serve_oldest_first(loop: EventLoop, phase: int, t: int) -> None:
    """Set the rates of the transfers in a phase whose data can move in cycle `t`. By age, each takes the bandwidth that
    older transfers leave. A transfer without any waits; it uses banks from its first byte on."""
    for link in loop.links:
        link.spare = link.rate
    for unit in loop.units:
        if unit.phase == phase:
            unit.rate = NO_RATE
    searching = 1
    while searching:
        searching = 0
        oldest = loop.units[0]
        for unit in loop.units:
            if unit.phase == phase and unit.rate == NO_RATE and unit.left and unit.ready <= t:
                if not searching or unit.ready < oldest.ready:
                    oldest = unit
                searching = 1
        if searching:
            oldest.rate = 0
            rate = min(headroom(loop, oldest), max_rate(oldest.step.piece))
            if not rate:
                oldest.rate = WAITING
            elif rate < FOREVER:
                oldest.rate = rate
                take_credits(loop, oldest, rate)
            if rate:
                begin_data(oldest, t)


def max_rate(piece: PieceRecord) -> int:
    """Return the limit of a transfer's rate by its bursts and bank ports, credits per cycle; FOREVER for none."""
    return (piece.credits + piece.cycles - 1) // piece.cycles if piece.cycles else FOREVER


def begin_data(unit: Unit, t: int) -> None:
    """Begin the data of a transfer that has waited for older transfers: shift its times by the wait."""
    if unit.length < 0 and unit.left >= unit.step.piece.credits and unit.start < t:
        waited = t - unit.start
        unit.start = t
        unit.earliest_end += waited
        unit.undisturbed_end += waited
        unit.bare_end += waited
        unit.delay = 0


def share_equally(loop: EventLoop, count: int) -> None:
    """Set the rates of `count` uniform transfers. The remainder of the division goes to the lowest channel."""
    limit = loop.dma_rate
    rate = limit
    remainder = 0
    if loop.total_rate and (not limit or loop.total_rate // count < limit):
        rate = loop.total_rate // count
        remainder = loop.total_rate % count
    for unit in loop.units:
        if unit.phase == MOVING:
            unit.rate = min(rate + remainder, limit) if limit else rate + remainder
            remainder = 0


def fill_progressively(loop: EventLoop, count: int) -> None:
    """Set the rates of `count` transfers by progressive filling: all rise together until a link saturates, which fixes
    the rates of its transfers. The rounding remainder of the link goes to the lowest of them."""
    for link in loop.links:
        link.spare = link.rate
    for unit in loop.units:
        if unit.phase == MOVING:
            unit.rate = NO_RATE
    while count:
        level = loop.dma_rate
        bottleneck = NO_LINK
        for i in range(len(loop.links)):
            link = loop.links[i]
            if link.rate:
                weight = demand(loop, i, 1)
                if weight:
                    fair = max(1, (link.spare << FRACTION_BITS) // weight)
                    if not level or fair < level:
                        level = fair
                        bottleneck = i
        for unit in loop.units:
            if unit.phase == MOVING and unit.rate == NO_RATE and (bottleneck == NO_LINK or unit.share[bottleneck]):
                unit.rate = level
                count -= 1
                take_credits(loop, unit, level)
        if bottleneck != NO_LINK:
            for unit in loop.units:
                if unit.phase == MOVING and unit.rate == level and unit.share[bottleneck]:
                    more = headroom(loop, unit)
                    unit.rate += more
                    take_credits(loop, unit, more)
                    break


def demand(loop: EventLoop, link: int, unassigned: int) -> int:
    """Return the sum of shares of moving transfers on a link. `unassigned`: only those without a rate."""
    total = 0
    for unit in loop.units:
        if unit.phase == MOVING and (not unassigned or unit.rate == NO_RATE):
            total += unit.share[link]
    return total


def take_credits(loop: EventLoop, unit: Unit, rate: int) -> None:
    """Subtract a transfer's rate from the spare bandwidth of all links that it uses."""
    for i in range(len(loop.links)):
        link = loop.links[i]
        link.spare = max(0, link.spare - ((rate * unit.share[i] + WHOLE - 1) >> FRACTION_BITS))


def headroom(loop: EventLoop, unit: Unit) -> int:
    """Return the maximum increase of a transfer's rate that its links allow."""
    more = loop.dma_rate - unit.rate if loop.dma_rate else FOREVER
    for i in range(len(loop.links)):
        link = loop.links[i]
        if link.rate and unit.share[i]:
            more = min(more, (link.spare << FRACTION_BITS) // unit.share[i])
    return more


# -- priority accesses -------------------------------------------------------------------------------------------------


def fill_bucket(loop: EventLoop, channel: DramChannel, t: int, demand: int) -> None:
    """Start or stop filling the token bucket of a DRAM channel, which fills while no transfer uses the channel."""
    if not demand:
        if channel.tokens_at == FOREVER:
            channel.tokens_at = t
        return
    channel.tokens = tokens_at(loop, channel, t)
    channel.tokens_at = FOREVER


def tokens_at(loop: EventLoop, channel: DramChannel, t: int) -> int:
    """Return the tokens in the bucket of a channel in cycle `t`."""
    cycles = max(0, t - channel.tokens_at)
    if loop.priority_rate and cycles > (loop.burst - channel.tokens) // loop.priority_rate:
        return loop.burst
    return channel.tokens + cycles * loop.priority_rate


def priority_access(loop: EventLoop, t: int, address: int, size: int, write: int) -> int:
    """Move `size` bytes over a DRAM channel before those of any transfer. Return the cycles until they have moved; for
    a timed DRAM, their delay compared with an idle channel.

    They consume the tokens of the bucket. For the remainder the channel's transfers pause in whole cycles, and the
    excess credits go to the bucket.
    """
    if loop.timed:
        end = access_directly(loop.dram, t, address, size, write)
        return max(0, end - core_cycle_of(loop.dram, dram_cycle_of(loop.dram, t) + loop.dram.times.idle))
    rate = loop.priority_rate
    if not rate:
        return 0
    move_credits(loop, t)
    channel = loop.channels[address // loop.interleave % len(loop.channels)]
    debt = size * loop.per_byte - tokens_at(loop, channel, t)
    pause = (debt + rate - 1) // rate if debt > 0 else 0
    channel.tokens = pause * rate - debt
    channel.paused_until = max(channel.paused_until, t) + pause
    if channel.tokens_at != FOREVER:
        channel.tokens_at = max(channel.tokens_at, t) + pause
    return pause
