"""DRAM channels and NoC shared by transfers: credits, max-min fair rates, priority accesses (docs/npu-timing.md).

A transfer moves its bytes at one rate, in the order of their addresses: of its rate each DRAM channel carries the part
that its bytes have there. A part of the event loop, in the native subset (`pyv_native`).
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
"""In `Unit.rate`, while rates are shared."""
NO_LINK = -1


def credits_flow_from(loop: EventLoop, unit: Unit) -> int:
    """Cycle from which a transfer moves credits at its present rate: priority accesses on its channels are over."""
    start = loop.rates_since
    if loop.uniform:
        return max(start, loop.channels[0].paused_until)
    for channel in loop.channels:
        if unit.share[channel.index]:
            start = max(start, channel.paused_until)
    return start


def moved_at(loop: EventLoop, unit: Unit) -> int:
    """Cycle at which the last byte of a transfer has moved, at the present rates; FOREVER: not known yet."""
    moved = flowed_at(loop, unit)
    if loop.timed and unit.request is not None:
        return max(moved, unit.request.end)
    return moved


def flowed_at(loop: EventLoop, unit: Unit) -> int:
    """Return the cycle at which the data has moved, as far as rates determine it."""
    start = credits_flow_from(loop, unit)
    if not unit.left or not unit.rate:
        return start
    if unit.rate == WAITING:
        return FOREVER
    return start + (unit.left + unit.rate - 1) // unit.rate


def move_credits(loop: EventLoop, t: int) -> None:
    """Move credits at the present rates up to cycle `t`."""
    if t > loop.rates_since:
        for unit in loop.units:
            if unit.phase == MOVING and unit.rate > 0:
                elapsed = t - credits_flow_from(loop, unit)
                if elapsed > 0:
                    unit.left = max(0, unit.left - unit.rate * elapsed)
        loop.rates_since = t


def share_rates(loop: EventLoop, t: int) -> None:
    """Max-min fair rates for all transfers that move data."""
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
    """Rates of the transfers in a phase whose data could move in cycle `t`: by age, each takes what older ones leave.
    The data of those that get nothing waits; banks are used from the first byte on."""
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
    """Credits per cycle of a transfer's bursts and of its banks' ports; FOREVER: no limit."""
    return (piece.credits + piece.cycles - 1) // piece.cycles if piece.cycles else FOREVER


def begin_data(unit: Unit, t: int) -> None:
    """Begin the data of a transfer, after it has waited for older transfers."""
    if unit.length < 0 and unit.left >= unit.step.piece.credits and unit.start < t:
        waited = t - unit.start
        unit.start = t
        unit.earliest_end += waited
        unit.undisturbed_end += waited
        unit.bare_end += waited
        unit.delay = 0


def share_equally(loop: EventLoop, count: int) -> None:
    """Rates of `count` uniform transfers. The remainder of the division goes to the lowest channel."""
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
    """Rates of `count` transfers by progressive filling: all rise together until a link is full, and the rates of its
    transfers stay. What is left there by rounding goes to the lowest of them."""
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
    """Return the parts of all moving transfers on a link; `unassigned`: of those without a rate."""
    total = 0
    for unit in loop.units:
        if unit.phase == MOVING and (not unassigned or unit.rate == NO_RATE):
            total += unit.share[link]
    return total


def take_credits(loop: EventLoop, unit: Unit, rate: int) -> None:
    """Take credits per cycle of a transfer's rate from all links that it uses."""
    for i in range(len(loop.links)):
        link = loop.links[i]
        link.spare = max(0, link.spare - ((rate * unit.share[i] + WHOLE - 1) >> FRACTION_BITS))


def headroom(loop: EventLoop, unit: Unit) -> int:
    """Return the increase of a transfer's rate that the links allow."""
    more = loop.dma_rate - unit.rate if loop.dma_rate else FOREVER
    for i in range(len(loop.links)):
        link = loop.links[i]
        if link.rate and unit.share[i]:
            more = min(more, (link.spare << FRACTION_BITS) // unit.share[i])
    return more


# -- priority accesses -------------------------------------------------------------------------------------------------


def fill_bucket(loop: EventLoop, channel: DramChannel, t: int, demand: int) -> None:
    """Fill the token bucket of a DRAM channel while no transfer uses the channel."""
    if not demand:
        if channel.tokens_at == FOREVER:
            channel.tokens_at = t
        return
    channel.tokens = tokens_at(loop, channel, t)
    channel.tokens_at = FOREVER


def tokens_at(loop: EventLoop, channel: DramChannel, t: int) -> int:
    """Tokens of the bucket of a channel that has filled up to cycle `t`."""
    cycles = max(0, t - channel.tokens_at)
    if loop.priority_rate and cycles > (loop.burst - channel.tokens) // loop.priority_rate:
        return loop.burst
    return channel.tokens + cycles * loop.priority_rate


def priority_access(loop: EventLoop, t: int, address: int, size: int, write: int) -> int:
    """`size` bytes cross a DRAM channel before those of any transfer: cycles until they have, or of a timed DRAM, by
    which they come later than from an idle channel.

    They take what the token bucket holds; for the rest the channel's transfers pause, in whole cycles, and the bucket
    keeps the change.
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
