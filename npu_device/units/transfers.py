"""Transfers on DMA channels: latency, opening of DRAM rows, data, end (docs/npu-timing.md, "Transfers").

Part of the event loop, in the native subset (`pyv_native`).
"""

from npu_device.cost.rates import WHOLE, part
from npu_device.dram.controller import new_request, serve_directly, serve_segments, set_region, submit
from npu_device.dram.state import Request
from npu_device.trace.events import CACHED, Cause, Kind, What
from npu_device.units.arbiter import emit, emit_conflict, expected_end, use_banks
from npu_device.units.cache import access, bypass
from npu_device.units.fluid import begin_flow, end_data
from npu_device.units.sharing import move_credits, transfer_end
from npu_device.units.state import (
    DRAINING,
    LATENCY,
    MOVING,
    NOT_YET,
    READ,
    WAITING,
    WRITE,
    DramChannel,
    EventLoop,
    Step,
    Unit,
)

TO_ENGINE = (int(Kind.KV_ENGINE) - int(Kind.DMA)) << 8
"""Difference between the unit codes of a KV engine and its DMA channel."""
MAX_AUX = (1 << 32) - 1
"""Maximum value of an event's `aux`."""
QUANTIZING, DEQUANTIZING = int(Cause.QUANTIZE), int(Cause.DEQUANTIZE)


def begin_transfer(loop: EventLoop, unit: Unit, t: int) -> None:
    """Begin the transfer of a DMA channel. The latency of a read precedes its first byte; that of a write follows its
    last."""
    step = unit.step
    piece = step.piece
    latency = loop.latency
    misses = 1
    hops = 0
    if not loop.uniform:
        if piece.aux & CACHED:
            misses = access(loop, unit, t)
            latency = loop.l2.miss_latency if misses else loop.l2.hit_latency
        else:
            if not loop.timed:
                for channel in loop.channels:
                    unit.share[channel.index] = part(piece.channel_bytes[channel.index], piece.aligned)
                    channel.moved += piece.channel_bytes[channel.index]
            if loop.l2.line:
                bypass(loop, unit, t)
        hops = share_route(loop, unit)
        latency += hops * loop.hop_latency
    if misses and loop.row_cycles:
        latency += open_rows(loop, step.dram, piece.aligned)
    requested = t
    unit.delay = piece.lead
    unit.phase = LATENCY
    unit.result = 0
    unit.end = 0
    unit.conflict = 0
    unit.exposed = 0
    unit.start = t + latency
    if piece.step_class == WRITE:
        unit.result = latency
        unit.start = t + piece.lead
    elif step.issued != NOT_YET:
        requested = step.issued
        ahead = t - requested
        unit.start = t + max(0, latency - ahead)
        emit(loop, t, unit.code, What.REQUEST, unit.run.ticket, step.tile, ahead, 0)
    unit.ready = unit.start
    data_end = 0
    if loop.timed:
        if piece.aux & CACHED:
            data_end = loop.l2.filled_until + loop.l2.hit_latency
        elif loop.analytic:
            data_end = serve_transfer(loop, step, unit.start if piece.step_class == WRITE else requested)
        elif piece.step_class == READ:
            unit.request = step.request if step.request is not None else request_data(loop, step, t)
    unit.undisturbed_end = max(unit.start + piece.cycles, data_end)
    unit.bare_end = max(unit.start + piece.bare, data_end)
    unit.left = piece.credits
    unit.length = -1
    if loop.l2.line and loop.l2.written_back:
        for channel in loop.channels:
            unit.undisturbed_end = max(unit.undisturbed_end, channel.paused_until)
            unit.bare_end = max(unit.bare_end, channel.paused_until)
        unit.undisturbed_end = max(unit.undisturbed_end, loop.l2.written_until)
        unit.bare_end = max(unit.bare_end, loop.l2.written_until)
    unit.earliest_end = unit.undisturbed_end
    if loop.analytic:
        begin_flow(loop, unit)


def request_step(request: Request, step: Step) -> None:
    """Set the region and direction of a request to a timed DRAM to those of a transfer."""
    piece = step.piece
    set_region(request, step.dram, piece.row_count, piece.row_bytes, piece.row_stride, piece.alignment)
    request.write = piece.step_class == WRITE


def request_data(loop: EventLoop, step: Step, t: int) -> Request:
    """Request the bursts of a transfer in cycle `t`."""
    serve_segments(loop.dram, t)
    request = new_request(loop.dram)
    request_step(request, step)
    step.request = request
    submit(loop.dram, request, t)
    return request


def serve_transfer(loop: EventLoop, step: Step, t: int) -> int:
    """Serve all bursts of a transfer at once, from cycle `t` on. Return the cycle in which its data has arrived."""
    request = loop.dram.direct
    request_step(request, step)
    end = serve_directly(loop.dram, t, request.write)
    return end if request.write else end + loop.dram.times.return_latency


def release_request(loop: EventLoop, unit: Unit) -> None:
    """Free the request of a transfer that ends."""
    request = unit.request
    if request is not None:
        loop.dram.free_requests.append(request)
        unit.request = None
        unit.step.request = None


def share_route(loop: EventLoop, unit: Unit) -> int:
    """Set a transfer's shares of the NoC's links, by the memory ports of its DRAM channels. Return the hops to the
    farthest of these ports."""
    piece = unit.step.piece
    count = len(loop.channels)
    for i in range(count, len(loop.links)):
        unit.share[i] = 0
    hops = 0
    for port in range(loop.ports):
        size = piece.aligned
        if loop.ports > 1:
            size = 0
            for i in range(count):
                if i % loop.ports == port:
                    size += piece.channel_bytes[i]
        if size:
            share = part(size, piece.aligned)
            route = loop.routes[unit.cluster * loop.ports + port]
            hops = max(hops, route.hops)
            if piece.step_class == WRITE:
                for link in route.writes:
                    unit.share[link] = min(WHOLE, unit.share[link] + share)
            else:
                for link in route.reads:
                    unit.share[link] = min(WHOLE, unit.share[link] + share)
    return hops


def progress(loop: EventLoop, unit: Unit, t: int) -> None:
    """Advance a transfer in cycle `t` to its next phase, if its first or last byte is due."""
    if unit.phase == MOVING and transfer_end(loop, unit) <= t:
        move_credits(loop, t)
        unit.left = 0
        unit.phase = DRAINING
        end_data(unit, t)
        if unit.conflict:
            emit_conflict(loop, unit, unit.conflict_bank, t, unit.conflict)
        loop.rates_due = 1
    elif unit.phase == LATENCY and unit.start <= t:
        move_credits(loop, t)
        unit.phase = MOVING
        if loop.timed and unit.step.piece.step_class == WRITE and not unit.step.piece.aux & CACHED:
            unit.request = request_data(loop, unit.step, t)
        unit.rate = loop.dma_rate if loop.dma_rate else 1 if loop.priority_rate else 0
        loop.rates_due = 1


def report_conversion(loop: EventLoop, unit: Unit, t: int) -> None:
    """Emit the work of a transfer's KV engine at its end, and the delay by it."""
    step = unit.step
    piece = step.piece
    ticket = unit.run.ticket
    write = piece.step_class == WRITE
    if unit.exposed:
        emit(loop, t, unit.code, What.STALL, ticket, step.tile, unit.exposed, QUANTIZING if write else DEQUANTIZING)
    begin = unit.start - piece.lead
    if piece.tail == piece.converting:
        begin = t - piece.tail
    emit(
        loop, t, unit.code + TO_ENGINE, What.QUANTIZE if write else What.DEQUANTIZE, ticket, step.tile,
        piece.converting, min(t - begin, MAX_AUX),
    )  # fmt: skip


def begin_bank_accesses(loop: EventLoop, t: int) -> int:
    """Begin the bank accesses of transfers whose data moves by cycle `t`, in the order of starts. Return how many."""
    count = 0
    searching = 1
    while searching:
        searching = 0
        first = loop.units[0]
        earliest = t + 1
        for unit in loop.units:
            waits = unit.phase == MOVING and unit.rate == WAITING
            if unit.phase >= MOVING and unit.length < 0 and unit.start < earliest and not waits:
                earliest = unit.start
                first = unit
                searching = 1
        if searching:
            count += 1
            first.length = expected_end(loop, first) - first.start
            use_banks(loop, first, t)
    return count


def open_rows(loop: EventLoop, address: int, size: int) -> int:
    """Open the rows of a transfer on its DRAM channels, and keep its last rows open. Return the cycles of opening its
    first rows, on all channels in parallel."""
    cycles = 0
    for channel in loop.channels:
        begin = address_on(loop, channel, address)
        end = address_on(loop, channel, address + max(1, size))
        if begin < end:
            first = begin // loop.row_bytes
            last = (end - 1) // loop.row_bytes
            if channel.open_rows[first % loop.row_banks] != first:
                cycles = loop.row_cycles
            for row in range(max(first, last - loop.row_banks + 1), last + 1):
                channel.open_rows[row % loop.row_banks] = row
    return cycles


def address_on(loop: EventLoop, channel: DramChannel, address: int) -> int:
    """Return the address within a DRAM channel: the number of its bytes below an address."""
    if len(loop.channels) == 1:
        return address
    block = loop.interleave
    turn = block * len(loop.channels)
    return address // turn * block + min(block, max(0, address % turn - channel.index * block))


def report_moved(loop: EventLoop, t: int, ticket: int) -> None:
    """Emit the bytes that each DRAM channel has moved since the last command completed."""
    if loop.timed:
        for i in range(len(loop.channels)):
            timed = loop.dram.channels[i]
            loop.channels[i].moved = timed.bursts << loop.dram.times.shift
            if timed.bursts:
                emit(
                    loop, t, loop.channels[i].code, What.ROWS, ticket, 0, timed.activations, min(timed.bursts, MAX_AUX)
                )
            timed.activations = 0
            timed.bursts = 0
    if not loop.uniform:
        for channel in loop.channels:
            if channel.moved:
                emit(loop, t, channel.code, What.CHANNEL_BYTES, ticket, 0, channel.moved, 0)
                channel.moved = 0
