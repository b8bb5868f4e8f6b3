"""Serialisation of a timed DRAM's state as plain data."""

from collections.abc import Mapping
from typing import Any

from npu_device.dram.controller import append_segment, begin_row, is_queued, new_request, new_segment, update_choice
from npu_device.event_loop.storage import Storage
from npu_device.units.state import DMA, FOREVER, NOT_YET, READ, WRITE, Step
from npu_device.units.transfers import request_step
from pyv_native.records import layout
from pyv_native.state import LATEST, Fields, StateError, inside, integer, integers, row, sequence

_TICK = (-LATEST, LATEST)
_COUNT = (0, LATEST)
_FLAT: Mapping[str, tuple[str, ...]] = {
    "banks": ("row", "activate_at", "column_at", "precharge_at"),
    "groups": ("activate_at", "column_at", "read_at"),
    "ranks": ("activate_at", "read_at", "oldest"),
    "channels": ("decision", "column_at", "write", "refresh_at", "passed", "activations", "bursts"),
}
"""Integer fields of the records of each list."""
_REQUEST = ("rows", "address", "ready", "last", "end", "bursts")


def timed_state(storage: Storage) -> dict[str, Any]:
    """Return the state of a timed DRAM. Requests are identified by index, and refer to slot and step."""
    loop, dram = storage.loop, storage.loop.dram
    steps = {}
    for run in loop.active:
        base, count = storage.span(run.slot)
        for index in range(count):
            step = storage.arena.view(Step, base + index * layout(Step).size)
            if step.request is not None:
                steps[step.request.offset] = (run.slot, index, step.request)
    names = {offset: index for index, offset in enumerate(steps)}
    rank_names = {rank.offset: index for index, rank in enumerate(dram.ranks)}
    channels = []
    for channel in dram.channels:
        waiting, request = [], channel.waiting
        while request is not None:
            waiting.append(names[request.offset])
            request = request.next
        queue = [[names[entry.request.offset], entry.burst, entry.count, entry.since] for entry in channel.queue]
        channels.append([-1 if channel.rank is None else rank_names[channel.rank.offset], queue, waiting])
    flat = {
        name: [[getattr(entry, key) for key in keys] for entry in getattr(dram, name)] for name, keys in _FLAT.items()
    }
    return flat | {
        "served_until": dram.served_until, "slowdown": dram.times.slowdown, "queues": channels,
        "windows": [list(rank.window) for rank in dram.ranks],
        "requests": [[slot, step, *(getattr(entry, key) for key in _REQUEST)] for slot, step, entry in steps.values()],
    }  # fmt: skip


def load_timed(storage: Storage, state: Any) -> None:
    """Restore the timed DRAM of a loop whose runs and units have been restored before. Raise StateError."""
    loop, dram = storage.loop, storage.loop.dram
    fields = Fields(state, *_FLAT, "served_until", "slowdown", "queues", "windows", "requests")
    dram.served_until = fields.integer("served_until", *_COUNT)
    dram.times.slowdown = fields.integer("slowdown", 1, 1 << 32)
    for name, keys in _FLAT.items():
        records = getattr(dram, name)
        for index, (record, item) in enumerate(zip(records, fields.sequence(name, len(records)), strict=True)):
            with inside(name, index):
                for key, value in zip(keys, row(item, *[_TICK] * len(keys)), strict=True):
                    setattr(record, key, value & 3 if key == "oldest" else value & 1 if key == "write" else value)
    for index, (rank, item) in enumerate(zip(dram.ranks, fields.sequence("windows", len(dram.ranks)), strict=True)):
        with inside("windows", index):
            rank.window.fill(row(item, *[_TICK] * 4))
    requests = []
    for index, item in enumerate(fields.sequence("requests")):
        with inside("requests", index):
            requests.append(_load_request(storage, item))
    waiters = set[int]()
    for index, item in enumerate(fields.sequence("queues", len(dram.channels))):
        with inside("queues", index):
            rank, queue, waiting = sequence(item, 3)
            rank = integer(rank, -1, len(dram.ranks) - 1)
            dram.channels[index].rank = None if rank < 0 else dram.ranks[rank]
            if len(sequence(queue)) > dram.times.depth:
                raise StateError("more row segments than the queue holds")
            for entry in queue:
                _load_segment(dram, index, entry, requests)
            _load_waiting(dram.channels[index], integers(waiting, 0, len(requests) - 1), requests, waiters)
        update_choice(dram, index)
    for number, request in enumerate(requests):
        served = not request.queued and is_queued(request)
        if served is (request.end == FOREVER) or is_queued(request) is (number in waiters):
            raise StateError("its bursts are neither served nor queued", "requests", number)
        dram.unserved += not served
    for unit in loop.units:
        if unit.kind == DMA and unit.busy:
            unit.request = unit.step.request


def _load_request(storage: Storage, item: Any) -> Any:
    """Restore the request of a step that has not completed. Raise StateError."""
    loop = storage.loop
    slot, index, rows, address, ready, last, end, bursts = row(
        item, (0, len(loop.runs) - 1), _COUNT, _COUNT, _COUNT, _COUNT, _COUNT, _COUNT, _TICK
    )
    run = loop.runs[slot]
    base, count = storage.span(slot) if run.number else (0, 0)
    if index >= count:
        raise StateError("is of no step")
    step = storage.arena.view(Step, base + index * layout(Step).size)
    transfer = step.piece.step_class in (READ, WRITE)
    if step.done != NOT_YET or not transfer or step.request is not None or not loop.dram.free_requests:
        raise StateError("is of no transfer in flight")
    request = new_request(loop.dram)
    request_step(request, step)
    if rows > request.rows:
        raise StateError("has more rows than its transfer")
    request.begin += (request.rows - rows) * request.row_stride
    begin_row(request)
    if not request.address <= address <= request.row_end:
        raise StateError("has an address outside its row")
    request.rows, request.address, request.ready, request.last, request.end = rows, address, ready, last, end
    request.bursts = bursts
    step.request = request
    return request


def _load_waiting(channel: Any, numbers: list[int], requests: list[Any], waiters: set[int]) -> None:
    """Restore the requests that wait for capacity in a channel's queue, in this order, and add them to `waiters`."""
    last = None
    for number in numbers:
        request = requests[number]
        if number in waiters or is_queued(request):
            raise StateError(f"request {number} does not wait here")
        waiters.add(number)
        if last is None:
            channel.waiting = request
        else:
            last.next = request
        last = request


def _load_segment(dram: Any, index: int, entry: Any, requests: list[Any]) -> None:
    """Append a row segment to the queue of a channel."""
    times = dram.times
    number, burst, count, since = row(
        entry, (0, len(requests) - 1), (0, LATEST), (1, times.row_bytes >> times.shift), _COUNT
    )
    segment, request = new_segment(dram), requests[number]
    segment.request, segment.burst, segment.count, segment.write = request, burst, count, request.write
    append_segment(dram, index, segment, since)
