"""A timed DRAM: queues of its channels, and commands to banks, burst by burst (docs/npu-timing.md, "Timed DRAM").

A transfer is a request, whose bursts come in row segments into the queues of the channels. A channel chooses a row
segment at the tick of its last read or write and serves it at once, so that no burst is an event. Row segments are
chosen up to the cycle in which something else happens: all requests of earlier cycles are known then. A tick is a cycle
of the DRAM's command clock. A part of the event loop, in the native subset (`pyv_native`).
"""

from npu_device.event_loop.state import (
    FOREVER,
    WRITE,
    BankGroup,
    DramBank,
    DramRank,
    DramTimes,
    EventLoop,
    Request,
    RowSegment,
    Step,
    TimedChannel,
    Unit,
)

END_OF_TIME = FOREVER >> 20
"""Later than any cycle of a run."""


def tick_of(loop: EventLoop, cycle: int) -> int:
    """The first tick that does not begin before a core cycle."""
    if cycle >= END_OF_TIME:
        return FOREVER
    times = loop.times
    return (cycle * times.numerator + times.denominator - 1) // times.denominator


def cycle_of(loop: EventLoop, tick: int) -> int:
    """The first core cycle that does not begin before a tick."""
    times = loop.times
    return (tick * times.denominator + times.numerator - 1) // times.numerator


# -- requests ----------------------------------------------------------------------------------------------------------


def set_region(request: Request, address: int, rows: int, row_bytes: int, stride: int, alignment: int) -> None:
    """A request is about rows of a region of DRAM, each widened to the alignment."""
    if stride == row_bytes:
        row_bytes = rows * row_bytes
        rows = 1
    request.begin = address
    request.rows = rows - 1
    request.row_bytes = row_bytes
    request.row_stride = stride
    request.alignment = alignment
    request.address = address // alignment * alignment
    request.row_end = (address + row_bytes + alignment - 1) // alignment * alignment
    request.last = 0


def next_row(request: Request) -> None:
    """A request goes on with the next row of its region."""
    alignment = request.alignment
    request.rows -= 1
    request.begin += request.row_stride
    request.address = request.begin // alignment * alignment
    request.row_end = (request.begin + request.row_bytes + alignment - 1) // alignment * alignment


def complete(request: Request) -> int:
    """Whether all bursts of a request are in queues, or served."""
    return request.address >= request.row_end and not request.rows


def channel_of(loop: EventLoop, address: int) -> int:
    """The channel of an address: the low bits of its block, with those above folded into them where `hash` is set."""
    times = loop.times
    block = address >> times.block_shift
    bits = times.channel_bits
    if times.hash:
        block ^= block >> 16 * bits
        block ^= block >> 8 * bits
        block ^= block >> 4 * bits
        block ^= block >> 2 * bits
        block ^= block >> bits
    return block & times.channel_mask


def take_segment(loop: EventLoop, request: Request, segment: RowSegment) -> None:
    """Take the next row segment of a request, of the channel of `request.address`."""
    times = loop.times
    address = request.address
    block = 1 << times.block_shift
    place = address >> times.block_shift + times.channel_bits << times.block_shift | address & block - 1
    end = min(request.row_end, address - (place & times.row_bytes - 1) + times.row_bytes)
    if times.channel_bits:
        end = min(end, (address & -block) + block)
    segment.burst = place >> times.shift
    segment.count = (place + end - address - 1 >> times.shift) - segment.burst + 1
    segment.request = request
    segment.write = request.write
    request.address = end


def request_data(loop: EventLoop, step: Step, t: int) -> Request:
    """The transfer of a step requests its bursts in cycle `t`."""
    choose_segments(loop, t)
    piece = step.piece
    free = len(loop.free_requests) - 1
    request = loop.free_requests[free]
    del loop.free_requests[free:]
    set_region(request, step.dram, piece.row_count, piece.row_bytes, piece.row_stride, piece.alignment)
    request.write = piece.step_class == WRITE
    request.ready = t
    request.queued = 0
    shift = loop.times.shift
    request.bursts = (request.rows + 1) * ((request.row_bytes + (1 << shift) - 1) >> shift)
    request.end = FOREVER
    step.request = request
    if complete(request):
        request.end = t
    else:
        loop.unserved += 1
        fill_queues(loop, request, tick_of(loop, t))
    return request


def fill_queues(loop: EventLoop, request: Request, tick: int) -> None:
    """Put row segments of a request into the queues of their channels, up to the first that has no room."""
    while True:
        if request.address >= request.row_end:
            if not request.rows:
                return
            next_row(request)
        index = channel_of(loop, request.address)
        channel = loop.timed_channels[index]
        if len(channel.queue) >= loop.times.depth:
            wait(loop, channel, request)
            return
        free = len(loop.free_segments) - 1
        segment = loop.free_segments[free]
        del loop.free_segments[free:]
        take_segment(loop, request, segment)
        segment.since = tick
        segment.row = segment.burst >> loop.times.row_shift
        segment.bank = loop.dram_banks[index * loop.times.banks + bank_of(loop.times, segment.burst)]
        request.queued += 1
        channel.queue.append(segment)
        if len(channel.queue) == 1:
            note_choice(loop, index)


def wait(loop: EventLoop, channel: TimedChannel, request: Request) -> None:
    """A request waits for room in a queue, behind all that wait; with `dma.share: oldest` before those that came
    later."""
    request.next = None
    last = channel.waiting
    if last is None or (loop.oldest_first and request.ready < last.ready):
        request.next = last
        channel.waiting = request
        return
    after = last.next
    while after is not None and not (loop.oldest_first and request.ready < after.ready):
        last = after
        after = last.next
    request.next = after
    last.next = request


# -- choice ------------------------------------------------------------------------------------------------------------


def choose_segments(loop: EventLoop, t: int) -> None:
    """Serve all row segments that are chosen before cycle `t`."""
    if t > loop.served_until:
        until = tick_of(loop, t)
        while serve_next(loop, until):
            pass
        loop.served_until = t


def serve_next(loop: EventLoop, until: int) -> int:
    """Serve the row segment that is chosen first, if that is before tick `until`: whether one was."""
    soonest = loop.choices[1]
    if soonest >= until:
        return 0
    count = len(loop.timed_channels)
    node = 1
    while node < count:
        node *= 2
        if loop.choices[node] != soonest:
            node += 1
    chosen = node - count
    channel = loop.timed_channels[chosen]
    index = choose(channel, loop.times.passes)
    channel.passed = channel.passed + 1 if index else 0
    segment = channel.queue[index]
    del channel.queue[index : index + 1]
    request = segment.request
    last = serve(loop, chosen, segment.burst, segment.count, request.write, segment.since)
    request.last = max(request.last, last)
    request.queued -= 1
    request.bursts -= segment.count
    loop.free_segments.append(segment)
    if not request.queued and complete(request):
        loop.unserved -= 1
        request.end = cycle_of(loop, request.last)
        if not request.write:
            request.end += loop.times.way_back
    waiting = channel.waiting
    if waiting is not None:
        channel.waiting = waiting.next
        fill_queues(loop, waiting, soonest)
    note_choice(loop, chosen)
    return 1


def note_choice(loop: EventLoop, index: int) -> None:
    """Note the tick at which a channel chooses its next row segment, and the first of all channels."""
    channel = loop.timed_channels[index]
    node = len(loop.timed_channels) + index
    tick = max(channel.decision, channel.queue[0].since) if channel.queue else FOREVER
    loop.choices[node] = tick
    while node > 1:
        tick = min(tick, loop.choices[node ^ 1])
        node >>= 1
        if loop.choices[node] == tick:
            return
        loop.choices[node] = tick


def choose(channel: TimedChannel, passes: int) -> int:
    """FR-FCFS: index of the oldest row segment in the direction of the last whose first row is open; of the oldest of
    all if it has none, or has passed that over often enough."""
    if channel.passed < passes:
        write = channel.write
        for i in range(len(channel.queue)):
            segment = channel.queue[i]
            if segment.bank.row == segment.row and segment.write == write:
                return i
    return 0


def bank_of(times: DramTimes, burst: int) -> int:
    """The bank of a burst, counted through its channel: rank, group, bank; `hash`: with bits of its row folded in."""
    rank = burst >> times.rank_shift & times.rank_mask
    group = burst >> times.group_shift & times.group_mask
    bank = burst >> times.bank_shift & times.bank_mask
    number = (group << times.bank_bits | bank) ^ burst >> times.row_shift & times.bank_hash
    return rank << times.group_bits + times.bank_bits | number


# -- commands ----------------------------------------------------------------------------------------------------------


def serve(loop: EventLoop, index: int, first: int, count: int, write: int, since: int) -> int:
    """Read or write consecutive bursts of a channel, each as early as its banks and buses allow, no command before tick
    `since`: the tick of the end of the last data.

    Once each bank of a row segment has been accessed, its rows are open, and bursts follow one another at `distance`.
    """
    times = loop.times
    channel = loop.timed_channels[index]
    end = first + count
    begin = end
    if times.distance:
        begin = min(end, first + times.period)
    column = 0
    burst = first
    while burst < end:
        number = bank_of(times, burst)
        bank = loop.dram_banks[index * times.banks + number]
        group = loop.dram_groups[index * times.groups + (number >> times.bank_bits)]
        rank = loop.dram_ranks[index * times.ranks + (number >> times.bank_bits + times.group_bits)]
        if burst < begin:
            row = burst >> times.row_shift
            bus = max(since, channel.column_at, group.column_at)
            if channel.write != write or channel.rank is not rank:
                bus = max(bus, turned_at(times, channel, rank, write))
            if not write:
                bus = max(bus, rank.read_at, group.read_at)
            if bank.row == row:
                column = max(bus, bank.column_at)
            else:
                column = max(bus, activated_at(times, bank, group, rank, since) + times.rcd)
            while column >= channel.refresh_at:
                refresh(loop, index, column)
                column = max(bus, activated_at(times, bank, group, rank, since) + times.rcd)
                begin = end
            if bank.row != row:
                activate(times, bank, group, rank, row, activated_at(times, bank, group, rank, since))
                channel.activations += 1
            channel.write = write
            channel.rank = rank
        else:
            column += times.distance * times.slowdown
        if write:
            data_end = column + times.cwl + times.burst
            rank.read_at = data_end + times.wtr_s
            group.read_at = data_end + times.wtr_l
            bank.precharge_at = max(bank.precharge_at, data_end + times.wr)
        else:
            bank.precharge_at = max(bank.precharge_at, column + times.rtp)
        group.column_at = column + times.ccd_l
        channel.column_at = column + times.spacing * times.slowdown
        burst += 1
        if burst == begin and burst < end:
            last = column + (end - burst) * times.distance * times.slowdown
            if last >= channel.refresh_at:
                begin = end
            elif end - burst > times.period:  # those of before the last period leave no trace
                column += (end - burst - times.period) * times.distance * times.slowdown
                burst = end - times.period
    channel.bursts += count
    channel.decision = column
    if times.closed:
        close_rows(loop, index)
    return column + (times.cwl if write else times.cl) + times.burst


def turned_at(times: DramTimes, channel: TimedChannel, rank: DramRank, write: int) -> int:
    """Tick before which the data bus does not take another direction, or another rank."""
    column = channel.column_at
    if channel.rank is None:
        return column
    if channel.rank is not rank:
        column += times.rank_gap
    if write and not channel.write:
        column = max(column, channel.decision + times.rtw)
    elif channel.write and not write:
        column += times.cwl - times.cl
    return column


def activated_at(times: DramTimes, bank: DramBank, group: BankGroup, rank: DramRank, since: int) -> int:
    """Tick at which a bank opens another row, requested since a tick."""
    tick = max(since, bank.activate_at, rank.activate_at, group.activate_at, rank.window[rank.oldest])
    if bank.row >= 0:
        tick = max(tick, max(since, bank.precharge_at) + times.rp)
    return tick


def activate(times: DramTimes, bank: DramBank, group: BankGroup, rank: DramRank, row: int, tick: int) -> None:
    """A bank opens a row at a tick."""
    bank.row = row
    bank.activate_at = tick + times.ras + times.rp
    bank.column_at = tick + times.rcd
    bank.precharge_at = tick + times.ras
    rank.activate_at = tick + times.rrd_s
    group.activate_at = tick + times.rrd_l
    rank.window[rank.oldest] = tick + times.faw
    rank.oldest = rank.oldest + 1 & 3


def close_rows(loop: EventLoop, index: int) -> None:
    """Precharge all banks of a channel, each as early as it can be."""
    times = loop.times
    for i in range(index * times.banks, (index + 1) * times.banks):
        bank = loop.dram_banks[i]
        if bank.row >= 0:
            bank.row = -1
            bank.activate_at = max(bank.activate_at, bank.precharge_at + times.rp)


def refresh(loop: EventLoop, index: int, tick: int) -> None:
    """Refresh all banks of a channel at the last time due by a tick: they are precharged, then busy for tRFC."""
    times = loop.times
    channel = loop.timed_channels[index]
    begin = channel.refresh_at + (tick - channel.refresh_at) // times.refi * times.refi
    channel.refresh_at = begin + times.refi
    for i in range(index * times.banks, (index + 1) * times.banks):
        bank = loop.dram_banks[i]
        if bank.row >= 0:
            begin = max(begin, bank.precharge_at + times.rp)
    for i in range(index * times.banks, (index + 1) * times.banks):
        bank = loop.dram_banks[i]
        bank.row = -1
        bank.activate_at = max(bank.activate_at, begin + times.rfc)


# -- the event loop ----------------------------------------------------------------------------------------------------


def serve_directly(loop: EventLoop, t: int, write: int) -> int:
    """Serve all bursts of `loop.direct`, which arrive in cycle `t`, before those in queues: the cycle of the end of
    their data."""
    choose_segments(loop, t)
    request = loop.direct
    tick = tick_of(loop, t)
    free = len(loop.free_segments) - 1
    segment = loop.free_segments[free]
    while True:
        if request.address >= request.row_end:
            if not request.rows:
                return cycle_of(loop, request.last) if request.last else t
            next_row(request)
        index = channel_of(loop, request.address)
        take_segment(loop, request, segment)
        request.last = max(request.last, serve(loop, index, segment.burst, segment.count, write, tick))
        note_choice(loop, index)


def access_directly(loop: EventLoop, t: int, address: int, size: int, write: int) -> int:
    """Read or write bytes of DRAM in cycle `t`, before those of requests: the cycle of the end of their data."""
    set_region(loop.direct, address, 1, size, size, 1)
    return serve_directly(loop, t, write)


def serve_transfer(loop: EventLoop, step: Step, t: int) -> int:
    """Serve a whole transfer at once, from cycle `t` on: the cycle in which its data is there."""
    piece = step.piece
    write = piece.step_class == WRITE
    set_region(loop.direct, step.dram, piece.row_count, piece.row_bytes, piece.row_stride, piece.alignment)
    end = serve_directly(loop, t, write)
    return end if write else end + loop.times.way_back


def release_request(loop: EventLoop, unit: Unit) -> None:
    """A transfer ends."""
    request = unit.request
    if request is not None:
        loop.free_requests.append(request)
        unit.request = None
        unit.step.request = None


def earliest_end(loop: EventLoop, request: Request) -> int:
    """Cycle before which the data of a request is not there: bursts that are to be served follow one another."""
    if request.end < FOREVER:
        return request.end
    times = loop.times
    bursts = (request.bursts + len(loop.timed_channels) - 1) // len(loop.timed_channels)
    ticks = max(0, bursts - 1) * max(times.burst, times.ccd_s) + times.burst
    cycles = ticks * times.denominator // times.numerator
    return loop.served_until + cycles + (0 if request.write else times.way_back)
