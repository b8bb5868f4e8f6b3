"""Records of a timed DRAM after power-up: parameters, closed rows, empty queues."""

from typing import Any

from npu_device.config import NpuConfig
from npu_device.dram.controller import bank_of
from npu_device.dram.state import FOREVER
from npu_device.dram_devices import PARAMETERS


def capacities(config: NpuConfig) -> dict[str, int]:
    """Return the capacities of the lists of a timed DRAM, by field of `TimedDram`."""
    dram, timing = config.dram, config.dram.timed.timing
    requests = config.dma.channels * config.clusters * config.dma.outstanding
    segments = dram.channels * dram.timed.queue + 1
    groups = dram.channels * timing.ranks * timing.groups
    return {
        "choices": 2 * dram.channels, "channels": dram.channels, "banks": groups * timing.banks, "groups": groups,
        "ranks": dram.channels * timing.ranks, "requests": requests, "free_requests": requests, "segments": segments,
        "free_segments": segments, "places": _period(config),
    }  # fmt: skip


def power_up(dram: Any, config: NpuConfig, return_latency: int) -> None:
    """Set a view of a timed DRAM to its state after power-up. `return_latency`: core cycles from the end of
    read data to its arrival in a scratchpad."""
    _set_times(dram.times, config)
    dram.times.return_latency = return_latency
    dram.oldest_first = int(config.dma.share == "oldest")
    counts = capacities(config)
    for name in ("channels", "banks", "groups", "ranks", "requests", "segments"):
        for _ in range(counts[name]):
            getattr(dram, name).add()
    times = dram.times
    for index, bank in enumerate(dram.banks):
        bank.group = dram.groups[index >> times.bank_bits]
        bank.rank = dram.ranks[index >> times.bank_bits + times.group_bits]
    dram.places.fill([bank_of(times, burst) for burst in range(times.period)])
    for channel in dram.channels:
        channel.refresh_at = config.dram.timed.timing.refi or FOREVER
    dram.choices.fill([FOREVER] * counts["choices"])
    dram.free_requests.fill(dram.requests)
    dram.free_segments.fill(dram.segments)


def _fields(config: NpuConfig) -> list[tuple[str, int]]:
    """Return the (name, number of values) of the address fields below the row, from high bits to low."""
    device = config.dram.timed.timing
    sizes = {
        "column": device.row_bytes // device.burst_bytes, "group": device.groups, "bank": device.banks,
        "rank": device.ranks,
    }  # fmt: skip
    return [(name, sizes[name]) for name in config.dram.timed.mapping.split("-")[1:]]


def _period(config: NpuConfig) -> int:
    """Return the number of consecutive bursts after which the sequence of banks repeats."""
    period = 1
    for name, size in _fields(config):
        period = 1 if name == "column" else period * size
    return period


def _set_times(times: Any, config: NpuConfig) -> None:
    dram, device, clock = config.dram, config.dram.timed.timing, config.dram_clock
    times.numerator, times.denominator = clock.numerator, clock.denominator
    times.end = FOREVER // max(clock.numerator, clock.denominator)
    for name in PARAMETERS:
        if hasattr(times, name) and name not in ("ranks", "groups", "banks"):
            setattr(times, name, getattr(device, name))
    times.shift = device.burst_bytes.bit_length() - 1
    times.depth, times.passes, times.closed = dram.timed.queue, dram.timed.passes, int(dram.timed.page == "closed")
    times.ranks, times.groups = device.ranks, device.ranks * device.groups
    times.banks = times.groups * device.banks
    times.group_bits, times.bank_bits = device.groups.bit_length() - 1, device.banks.bit_length() - 1
    times.block_shift, times.channel_bits = dram.interleave.bit_length() - 1, dram.channels.bit_length() - 1
    times.channel_mask = dram.channels - 1
    times.hash = int(dram.timed.hash == "xor")
    times.bank_hash = times.hash * (device.groups * device.banks - 1)
    shift = 0
    for name, size in reversed(_fields(config)):
        if name != "column":
            setattr(times, f"{name}_shift", shift)
            setattr(times, f"{name}_mask", size - 1)
        shift += size.bit_length() - 1
    times.row_shift = shift
    times.spacing = device.spacing
    times.period = _period(config)
    if times.period == 1:
        times.distance = max(device.spacing, device.ccd_l)
    elif times.period * device.spacing >= device.ccd_l and device.ranks == 1:
        times.distance = device.spacing
    times.idle = device.rcd + device.cl + device.burst
