"""Controller of a timed DRAM: channel queues, and commands to banks, burst by burst (docs/npu-timing.md, "Timed DRAM").

A transfer is a request, whose bursts enter the queues of the channels in row segments. A channel chooses a row segment
in the DRAM cycle of its last read or write and serves it completely, so that no burst is an event. Row segments are
chosen up to the cycle of the next other event, when all requests of earlier cycles are known. A DRAM cycle is a cycle
of the DRAM's command clock (nCK). Part of the event loop, in the native subset (`pyv_native`).
"""

from npu_device.dram.state import (
    FOREVER,
    DramBank,
    DramRank,
    DramTimes,
    Request,
    RowSegment,
    TimedChannel,
    TimedDram,
)


def dram_cycle_of(dram: TimedDram, cycle: int) -> int:
    """Return the first DRAM cycle that begins at or after a core cycle."""
    times = dram.times
    if cycle >= times.end:
        return FOREVER
    return (cycle * times.numerator + times.denominator - 1) // times.denominator


def core_cycle_of(dram: TimedDram, dram_cycle: int) -> int:
    """Return the first core cycle that begins at or after a DRAM cycle."""
    times = dram.times
    if dram_cycle >= times.end:
        return FOREVER
    return (dram_cycle * times.denominator + times.numerator - 1) // times.numerator


# -- requests ----------------------------------------------------------------------------------------------------------


def set_region(request: Request, address: int, rows: int, row_bytes: int, stride: int, alignment: int) -> None:
    """Set the region of a request: rows of DRAM, each widened to the alignment."""
    if stride == row_bytes:
        row_bytes = rows * row_bytes
        rows = 1
    request.begin = address
    request.rows = rows - 1
    request.row_bytes = row_bytes
    request.row_stride = stride
    request.alignment = alignment
    request.last = 0
    begin_row(request)


def begin_row(request: Request) -> None:
    """Advance a request to the first burst of its region's row at `request.begin`."""
    alignment = request.alignment
    request.address = request.begin & -alignment
    request.row_end = request.begin + request.row_bytes + alignment - 1 & -alignment


def next_burst(request: Request) -> int:
    """Advance a request to its next unqueued burst. Return whether it has any."""
    if request.address >= request.row_end:
        if not request.rows:
            return 0
        request.rows -= 1
        request.begin += request.row_stride
        begin_row(request)
    return 1


def is_queued(request: Request) -> int:
    """Check whether all bursts of a request are queued or served."""
    return request.address >= request.row_end and not request.rows


def channel_of(dram: TimedDram, address: int) -> int:
    """Return the channel of an address: the low bits of its block, into which `hash` folds the higher bits."""
    times = dram.times
    block = address >> times.block_shift
    bits = times.channel_bits
    if times.hash:
        block ^= block >> 16 * bits
        block ^= block >> 8 * bits
        block ^= block >> 4 * bits
        block ^= block >> 2 * bits
        block ^= block >> bits
    return block & times.channel_mask


def take_segment(dram: TimedDram, request: Request, segment: RowSegment) -> None:
    """Fill a segment with a request's next row segment, on the channel of `request.address`."""
    times = dram.times
    address = request.address
    block = 1 << times.block_shift
    block_address = address >> times.block_shift + times.channel_bits << times.block_shift | address & block - 1
    end = min(request.row_end, address - (block_address & times.row_bytes - 1) + times.row_bytes)
    if times.channel_bits:
        end = min(end, (address & -block) + block)
    segment.burst = block_address >> times.shift
    segment.count = (block_address + end - address - 1 >> times.shift) - segment.burst + 1
    segment.request = request
    segment.write = request.write
    request.address = end


def new_request(dram: TimedDram) -> Request:
    """Allocate a request from the free list."""
    index = len(dram.free_requests) - 1
    request = dram.free_requests[index]
    del dram.free_requests[index:]
    return request


def new_segment(dram: TimedDram) -> RowSegment:
    """Allocate a row segment from the free list."""
    index = len(dram.free_segments) - 1
    segment = dram.free_segments[index]
    del dram.free_segments[index:]
    return segment


def submit(dram: TimedDram, request: Request, t: int) -> None:
    """Submit a request in cycle `t`. Row segments have been chosen up to this cycle."""
    request.ready = t
    request.queued = 0
    shift = dram.times.shift
    request.bursts = (request.rows + 1) * ((request.row_bytes + (1 << shift) - 1) >> shift)
    request.end = FOREVER
    if is_queued(request):
        request.end = t
    else:
        dram.unserved += 1
        fill_queues(dram, request, dram_cycle_of(dram, t))


def fill_queues(dram: TimedDram, request: Request, dram_cycle: int) -> None:
    """Append a request's row segments to the queues of their channels, up to the first full queue."""
    while next_burst(request):
        index = channel_of(dram, request.address)
        channel = dram.channels[index]
        if len(channel.queue) >= dram.times.depth:
            wait(dram, channel, request)
            return
        segment = new_segment(dram)
        take_segment(dram, request, segment)
        append_segment(dram, index, segment, dram_cycle)
        if len(channel.queue) == 1:
            update_choice(dram, index)


def append_segment(dram: TimedDram, index: int, segment: RowSegment, dram_cycle: int) -> None:
    """Append a row segment to the queue of a channel at a DRAM cycle."""
    segment.since = dram_cycle
    segment.row = segment.burst >> dram.times.row_shift
    segment.bank = dram.banks[index * dram.times.banks + bank_of(dram.times, segment.burst)]
    segment.request.queued += 1
    dram.channels[index].queue.append(segment)


def wait(dram: TimedDram, channel: TimedChannel, request: Request) -> None:
    """Append a request to those that wait for a full queue; with `dma.share: oldest` insert it before younger ones."""
    request.next = None
    last = channel.waiting
    if last is None or (dram.oldest_first and request.ready < last.ready):
        request.next = last
        channel.waiting = request
        return
    after = last.next
    while after is not None and not (dram.oldest_first and request.ready < after.ready):
        last = after
        after = last.next
    request.next = after
    last.next = request


# -- choice ------------------------------------------------------------------------------------------------------------


def serve_segments(dram: TimedDram, t: int) -> None:
    """Serve all row segments that are chosen before cycle `t`."""
    if t > dram.served_until:
        until = dram_cycle_of(dram, t)
        while serve_next(dram, until):
            pass
        dram.served_until = t


def serve_next(dram: TimedDram, until: int) -> int:
    """Serve the row segment that is chosen next, if before DRAM cycle `until`. Return whether one was served."""
    choice = dram.choices[1]
    soonest = choice >> dram.times.channel_bits
    if choice == FOREVER or soonest >= until:
        return 0
    chosen = choice & dram.times.channel_mask
    channel = dram.channels[chosen]
    index = select_segment(channel, dram.times.passes)
    channel.passed = channel.passed + 1 if index else 0
    segment = channel.queue[index]
    del channel.queue[index : index + 1]
    request = segment.request
    last = serve(dram, chosen, segment.burst, segment.count, request.write, segment.since)
    request.last = max(request.last, last)
    request.queued -= 1
    request.bursts -= segment.count
    dram.free_segments.append(segment)
    if not request.queued and is_queued(request):
        dram.unserved -= 1
        request.end = core_cycle_of(dram, request.last)
        if not request.write:
            request.end += dram.times.return_latency
    waiting = channel.waiting
    if waiting is not None:
        channel.waiting = waiting.next
        fill_queues(dram, waiting, soonest)
    update_choice(dram, chosen)
    return 1


def update_choice(dram: TimedDram, index: int) -> None:
    """Update the DRAM cycle in which a channel chooses its next row segment, and the minimum over all channels."""
    channel = dram.channels[index]
    node = len(dram.channels) + index
    choice = FOREVER
    if channel.queue:
        choice = max(channel.decision, channel.queue[0].since) << dram.times.channel_bits | index
    dram.choices[node] = choice
    while node > 1:
        choice = min(choice, dram.choices[node ^ 1])
        node >>= 1
        if dram.choices[node] == choice:
            return
        dram.choices[node] = choice


def select_segment(channel: TimedChannel, passes: int) -> int:
    """Select a row segment by FR-FCFS. Return the index of the oldest segment with an open first row and the direction
    of the last; 0, the oldest, if there is none or the oldest has been passed over `passes` times."""
    if channel.passed < passes:
        write = channel.write
        for i in range(len(channel.queue)):
            segment = channel.queue[i]
            if segment.bank.row == segment.row and segment.write == write:
                return i
    return 0


def bank_of(times: DramTimes, burst: int) -> int:
    """Return the index of a burst's bank in its channel: rank, group, bank; `hash` folds in bits of its row."""
    rank = burst >> times.rank_shift & times.rank_mask
    group = burst >> times.group_shift & times.group_mask
    bank = burst >> times.bank_shift & times.bank_mask
    number = (group << times.bank_bits | bank) ^ burst >> times.row_shift & times.bank_hash
    return rank << times.group_bits + times.bank_bits | number


# -- commands ----------------------------------------------------------------------------------------------------------


def serve(dram: TimedDram, index: int, first: int, count: int, write: int, since: int) -> int:
    """Read or write consecutive bursts of a channel as early as banks and buses allow, without commands before DRAM
    cycle `since`. Return the DRAM cycle of the end of the last data.

    Once each bank of a row segment has been accessed, its rows are open, and bursts follow at `distance`.
    """
    times = dram.times
    channel = dram.channels[index]
    row = first >> times.row_shift
    base = index * times.banks + (bank_of(times, first) ^ dram.places[first & times.period - 1])
    end = first + count
    begin = end
    if times.distance:
        begin = min(end, first + times.period)
    column = 0
    column_at = channel.column_at
    burst = first
    while burst < begin:
        bank = dram.banks[base ^ dram.places[burst & times.period - 1]]
        group = bank.group
        rank = bank.rank
        bus = max(since, column_at, group.column_at)
        if channel.write != write or channel.rank is not rank:
            bus = max(bus, turnaround_end(times, channel, rank, write, column_at))
            channel.write = write
            channel.rank = rank
        if not write:
            bus = max(bus, rank.read_at, group.read_at)
        activation = -1
        if bank.row == row:
            column = max(bus, bank.column_at)
        else:
            activation = earliest_activation(times, bank, since)
            column = max(bus, activation + times.rcd)
        while column >= channel.refresh_at:
            refresh(dram, index, column)
            activation = earliest_activation(times, bank, since)
            column = max(bus, activation + times.rcd)
            begin = end
        if activation >= 0:
            activate(times, bank, row, activation)
            channel.activations += 1
        column_at = column + times.spacing * times.slowdown
        access_bank(times, bank, column, write)
        burst += 1
        if burst == begin and column + (end - burst) * times.distance * times.slowdown >= channel.refresh_at:
            begin = end
    if burst < end:
        distance = times.distance * times.slowdown
        if end - burst > times.period:  # the last period overwrites the effects of earlier bursts
            column += (end - burst - times.period) * distance
            burst = end - times.period
        while burst < end:
            column += distance
            access_bank(times, dram.banks[base ^ dram.places[burst & times.period - 1]], column, write)
            burst += 1
        column_at = column + times.spacing * times.slowdown
    channel.column_at = column_at
    channel.bursts += count
    channel.decision = column
    if times.closed:
        close_rows(dram, index)
    return column + (times.cwl if write else times.cl) + times.burst


def access_bank(times: DramTimes, bank: DramBank, column: int, write: int) -> None:
    """Update a bank's constraints for a read or write of a burst at a DRAM cycle."""
    group = bank.group
    group.column_at = column + times.ccd_l
    if write:
        data_end = column + times.cwl + times.burst
        bank.rank.read_at = data_end + times.wtr_s
        group.read_at = data_end + times.wtr_l
        bank.precharge_at = max(bank.precharge_at, data_end + times.wr)
    else:
        bank.precharge_at = max(bank.precharge_at, column + times.rtp)


def turnaround_end(times: DramTimes, channel: TimedChannel, rank: DramRank, write: int, column: int) -> int:
    """Return the DRAM cycle from which the data bus can change direction or rank. `column`: that from which it can take
    another burst at all."""
    if channel.rank is None:
        return column
    if channel.rank is not rank:
        column += times.rank_gap
    if write and not channel.write:
        column = max(column, channel.decision + times.rtw)
    elif channel.write and not write:
        column += times.cwl - times.cl
    return column


def earliest_activation(times: DramTimes, bank: DramBank, since: int) -> int:
    """Return the earliest DRAM cycle, not before `since`, in which a bank can open another row."""
    group = bank.group
    rank = bank.rank
    dram_cycle = max(since, bank.activate_at, rank.activate_at, group.activate_at, rank.window[rank.oldest])
    if bank.row >= 0:
        dram_cycle = max(dram_cycle, max(since, bank.precharge_at) + times.rp)
    return dram_cycle


def activate(times: DramTimes, bank: DramBank, row: int, dram_cycle: int) -> None:
    """Open a row of a bank at a DRAM cycle."""
    group = bank.group
    rank = bank.rank
    bank.row = row
    bank.activate_at = dram_cycle + times.ras + times.rp
    bank.column_at = dram_cycle + times.rcd
    bank.precharge_at = dram_cycle + times.ras
    rank.activate_at = dram_cycle + times.rrd_s
    group.activate_at = dram_cycle + times.rrd_l
    rank.window[rank.oldest] = dram_cycle + times.faw
    rank.oldest = rank.oldest + 1 & 3


def close_rows(dram: TimedDram, index: int) -> None:
    """Precharge all banks of a channel, each as early as possible."""
    times = dram.times
    for i in range(index * times.banks, (index + 1) * times.banks):
        bank = dram.banks[i]
        if bank.row >= 0:
            bank.row = -1
            bank.activate_at = max(bank.activate_at, bank.precharge_at + times.rp)


def refresh(dram: TimedDram, index: int, dram_cycle: int) -> None:
    """Refresh all banks of a channel at the last refresh due by a DRAM cycle: precharge, then block them for tRFC."""
    times = dram.times
    channel = dram.channels[index]
    begin = channel.refresh_at + (dram_cycle - channel.refresh_at) // times.refi * times.refi
    channel.refresh_at = begin + times.refi
    for i in range(index * times.banks, (index + 1) * times.banks):
        bank = dram.banks[i]
        if bank.row >= 0:
            begin = max(begin, bank.precharge_at + times.rp)
    for i in range(index * times.banks, (index + 1) * times.banks):
        bank = dram.banks[i]
        bank.row = -1
        bank.activate_at = max(bank.activate_at, begin + times.rfc)


# -- accesses that bypass the queues -----------------------------------------------------------------------------------


def serve_directly(dram: TimedDram, t: int, write: int) -> int:
    """Serve all bursts of `dram.direct`, which arrive in cycle `t`, before queued ones. Return the cycle in which their
    data ends."""
    serve_segments(dram, t)
    request = dram.direct
    dram_cycle = dram_cycle_of(dram, t)
    segment = dram.free_segments[len(dram.free_segments) - 1]
    while next_burst(request):
        index = channel_of(dram, request.address)
        take_segment(dram, request, segment)
        request.last = max(request.last, serve(dram, index, segment.burst, segment.count, write, dram_cycle))
        update_choice(dram, index)
    return core_cycle_of(dram, request.last) if request.last else t


def access_directly(dram: TimedDram, t: int, address: int, size: int, write: int) -> int:
    """Read or write bytes of DRAM in cycle `t`, before queued requests. Return the cycle in which their data ends."""
    set_region(dram.direct, address, 1, size, size, 1)
    return serve_directly(dram, t, write)


def earliest_end(dram: TimedDram, request: Request) -> int:
    """Return a lower bound of the cycle in which a request's data ends, as if its unserved bursts were back to back."""
    if request.end < FOREVER:
        return request.end
    times = dram.times
    bursts = (request.bursts + len(dram.channels) - 1) // len(dram.channels)
    dram_cycles = max(0, bursts - 1) * times.spacing + times.burst
    cycles = dram_cycles * times.denominator // times.numerator
    return dram.served_until + cycles + (0 if request.write else times.return_latency)
