"""Records of a timed DRAM in a configuration's machine, and their state as plain data."""

from collections.abc import Mapping
from math import prod
from typing import Any

from npu_device.config import NpuConfig
from npu_device.cost.durations import Timing
from npu_device.event_loop.dram import bank_of, complete, note_choice, set_region
from npu_device.event_loop.state import DMA, FOREVER, NOT_YET, READ, WRITE, Step
from npu_device.event_loop.storage import Storage
from pyv_native.records import layout
from pyv_native.state import LATEST, Fields, StateError, inside, listed, row


def timed_capacities(config: NpuConfig) -> dict[str, int]:
    """Capacities of the lists of a timed DRAM, by field of the event loop."""
    dram, timing = config.dram, config.dram.timed.timing
    requests = config.dma.channels * config.clusters * config.dma.outstanding
    segments = dram.channels * dram.timed.queue + 1
    groups = dram.channels * timing.ranks * timing.groups
    return {
        "choices": 2 * dram.channels, "timed_channels": dram.channels, "dram_banks": groups * timing.banks,
        "dram_groups": groups, "dram_ranks": dram.channels * timing.ranks, "requests": requests,
        "free_requests": requests, "segments": segments, "free_segments": segments,
    }  # fmt: skip


def add_timed_dram(loop: Any, config: NpuConfig, timing: Timing) -> None:
    """Bring the timed DRAM of an event loop into its state after power-up: all rows closed, queues empty."""
    dram, device, times = config.dram, config.dram.timed.timing, loop.times
    loop.timed = 1
    clock = config.dram_clock
    times.numerator, times.denominator = clock.numerator, clock.denominator
    for name in device._fields:
        if hasattr(times, name) and name not in ("ranks", "groups", "banks"):
            setattr(times, name, getattr(device, name))
    times.shift = device.burst_bytes.bit_length() - 1
    times.depth, times.passes, times.closed = dram.timed.queue, dram.timed.passes, int(dram.timed.page == "closed")
    times.ranks, times.groups = device.ranks, device.ranks * device.groups
    times.banks = times.groups * device.banks
    times.group_bits, times.bank_bits = device.groups.bit_length() - 1, device.banks.bit_length() - 1
    sizes = {
        "column": device.row_bytes // device.burst_bytes, "group": device.groups, "bank": device.banks,
        "rank": device.ranks,
    }  # fmt: skip
    times.block_shift, times.channel_bits = dram.interleave.bit_length() - 1, dram.channels.bit_length() - 1
    times.channel_mask = dram.channels - 1
    times.hash = int(dram.timed.hash == "xor")
    times.bank_hash = times.hash * (device.groups * device.banks - 1)
    shift = 0
    for name in reversed(dram.timed.mapping.split("-")):
        if name != "row":
            if name != "column":
                setattr(times, f"{name}_shift", shift)
                setattr(times, f"{name}_mask", sizes[name] - 1)
            shift += sizes[name].bit_length() - 1
    times.row_shift = shift
    fields = dram.timed.mapping.split("-")
    below = fields[fields.index("column") + 1 :]
    times.period, times.spacing = prod(sizes[name] for name in below), device.spacing
    if times.period == 1:
        times.distance = max(device.spacing, device.ccd_l)
    elif times.period * device.spacing >= device.ccd_l and device.ranks == 1:
        times.distance = device.spacing
    times.way_back = timing.way_back
    times.idle = device.rcd + device.cl + device.burst
    loop.latency = timing.way_back + device.cl * clock.denominator // clock.numerator
    for name, count in timed_capacities(config).items():
        if name != "choices" and not name.startswith("free"):
            for _ in range(count):
                getattr(loop, name).add()
    for channel in loop.timed_channels:
        channel.refresh_at = device.refi or FOREVER
    loop.choices.fill([FOREVER] * (2 * dram.channels))
    loop.free_requests.fill(loop.requests)
    loop.free_segments.fill(loop.segments)


# -- snapshots ---------------------------------------------------------------------------------------------------------

_TICK = (-LATEST, LATEST)
_COUNT = (0, LATEST)
_FLAT: Mapping[str, tuple[str, ...]] = {
    "dram_banks": ("row", "activate_at", "column_at", "precharge_at"),
    "dram_groups": ("activate_at", "column_at", "read_at"),
    "dram_ranks": ("activate_at", "read_at", "oldest"),
    "timed_channels": ("decision", "column_at", "write", "refresh_at", "passed", "activations", "bursts"),
}
"""Integers of the records of a list."""
_REQUEST = ("rows", "address", "ready", "last", "end", "bursts")


def timed_state(storage: Storage) -> dict[str, Any]:
    """Return what a snapshot keeps of a timed DRAM. Requests are named by their index, and refer to slot and step."""
    loop = storage.loop
    steps = {}
    for run in loop.active:
        base, count = storage.span(run.slot)
        for index in range(count):
            step = storage.arena.view(Step, base + index * layout(Step).size)
            if step.request is not None:
                steps[step.request.offset] = (run.slot, index, step.request)
    names = {offset: index for index, offset in enumerate(steps)}
    rank_names = {rank.offset: index for index, rank in enumerate(loop.dram_ranks)}
    channels = []
    for channel in loop.timed_channels:
        waiting, request = [], channel.waiting
        while request is not None:
            waiting.append(names[request.offset])
            request = request.next
        queue = [[names[each.request.offset], each.burst, each.count, each.since] for each in channel.queue]
        channels.append([-1 if channel.rank is None else rank_names[channel.rank.offset], queue, waiting])
    flat = {
        name: [[getattr(each, key) for key in keys] for each in getattr(loop, name)] for name, keys in _FLAT.items()
    }
    return flat | {
        "served_until": loop.served_until, "slowdown": loop.times.slowdown, "queues": channels,
        "windows": [list(rank.window) for rank in loop.dram_ranks],
        "requests": [[slot, step, *(getattr(each, key) for key in _REQUEST)] for slot, step, each in steps.values()],
    }  # fmt: skip


def load_timed(storage: Storage, state: Any) -> None:
    """Bring the timed DRAM of a loop, whose runs and units have been loaded, into a state."""
    loop = storage.loop
    fields = Fields(state, *_FLAT, "served_until", "slowdown", "queues", "windows", "requests")
    loop.served_until = fields.integer("served_until", *_COUNT)
    loop.times.slowdown = fields.integer("slowdown", 1, 1 << 32)
    for name, keys in _FLAT.items():
        records = getattr(loop, name)
        for index, (record, item) in enumerate(zip(records, fields.listed(name, len(records)), strict=True)):
            with inside(name, index):
                for key, value in zip(keys, row(item, *[_TICK] * len(keys)), strict=True):
                    setattr(record, key, value & 3 if key == "oldest" else value & 1 if key == "write" else value)
    for index, (rank, item) in enumerate(
        zip(loop.dram_ranks, fields.listed("windows", len(loop.dram_ranks)), strict=True)
    ):
        with inside("windows", index):
            rank.window.fill(row(item, *[_TICK] * 4))
    requests = []
    for index, item in enumerate(fields.listed("requests")):
        with inside("requests", index):
            requests.append(_load_request(storage, item))
    queued = [0] * len(requests)
    seen = set()
    for index, (channel, item) in enumerate(
        zip(loop.timed_channels, fields.listed("queues", len(loop.timed_channels)), strict=True)
    ):
        with inside("queues", index):
            rank, queue, waiting = listed(item, 3)
            (rank,) = row([rank], (-1, len(loop.dram_ranks) - 1))
            channel.rank = None if rank < 0 else loop.dram_ranks[rank]
            if len(listed(queue)) > loop.times.depth:
                raise StateError("more row segments than the queue holds")
            for entry in queue:
                _load_segment(loop, index, channel, entry, requests, queued)
            last = None
            for (number,) in (row([each], (0, len(requests) - 1)) for each in listed(waiting)):
                if number in seen or complete(requests[number]):
                    raise StateError(f"request {number} does not wait here")
                seen.add(number)
                if last is None:
                    channel.waiting = requests[number]
                else:
                    last.next = requests[number]
                last = requests[number]
        note_choice(loop, index)
    for number, (request, count) in enumerate(zip(requests, queued, strict=True)):
        request.queued = count
        served = not count and complete(request)
        if served is (request.end == FOREVER) or complete(request) is (number in seen):
            raise StateError("its bursts are neither served nor queued", "requests", number)
        loop.unserved += not served
    for unit in loop.units:
        if unit.kind == DMA and unit.busy:
            unit.request = unit.step.request


def _load_request(storage: Storage, item: Any) -> Any:
    """The request of a step that is not over."""
    loop = storage.loop
    slot, index, rows, address, ready, last, end, bursts = row(
        item, (0, len(loop.runs) - 1), _COUNT, _COUNT, _COUNT, _COUNT, _COUNT, _COUNT, _TICK
    )
    run = loop.runs[slot]
    base, count = storage.span(slot) if run.number else (0, 0)
    if index >= count:
        raise StateError("is of no step")
    step = storage.arena.view(Step, base + index * layout(Step).size)
    piece = step.piece
    if (
        step.done != NOT_YET
        or piece.step_class not in (READ, WRITE)
        or step.request is not None
        or not loop.free_requests
    ):
        raise StateError("is of no transfer in flight")
    request = loop.free_requests[len(loop.free_requests) - 1]
    del loop.free_requests[len(loop.free_requests) - 1 :]
    set_region(request, step.dram, piece.row_count, piece.row_bytes, piece.row_stride, piece.alignment)
    if rows > request.rows:
        raise StateError("has more rows than its transfer")
    begin = request.begin + (request.rows - rows) * request.row_stride
    low = begin // request.alignment * request.alignment
    high = -(-(begin + request.row_bytes) // request.alignment) * request.alignment
    if not low <= address <= high:
        raise StateError("has an address outside its row")
    request.begin, request.rows, request.address, request.row_end = begin, rows, address, high
    request.write, request.ready, request.last, request.end = int(piece.step_class == WRITE), ready, last, end
    request.bursts = bursts
    step.request = request
    return request


def _load_segment(loop: Any, index: int, channel: Any, entry: Any, requests: list[Any], queued: list[int]) -> None:
    """A row segment in the queue of a channel."""
    times = loop.times
    number, burst, count, since = row(
        entry, (0, len(requests) - 1), (0, LATEST), (1, times.row_bytes >> times.shift), _COUNT
    )
    segment = loop.free_segments[len(loop.free_segments) - 1]
    del loop.free_segments[len(loop.free_segments) - 1 :]
    segment.request, segment.burst, segment.count, segment.since = requests[number], burst, count, since
    segment.write, segment.row = requests[number].write, burst >> times.row_shift
    segment.bank = loop.dram_banks[index * times.banks + bank_of(times, burst)]
    channel.queue.append(segment)
    queued[number] += 1
