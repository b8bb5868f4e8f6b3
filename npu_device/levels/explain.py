"""Explanation of a makespan: lower bounds, and the stall cause of each cycle.

The walk begins at the last completion and follows the predecessor that ended last and so enabled the next step. Its
steps and idle intervals partition the makespan, so the causes add up to it exactly (docs/npu-timing.md, "Explanation").
All data come from the event stream.
"""

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from enum import Enum, StrEnum
from typing import Any, NamedTuple

import numpy as np

from npu_device.abi import DESCRIPTOR_SIZE
from npu_device.config import NpuConfig
from npu_device.cost.durations import Timing
from npu_device.cost.tensor import product
from npu_device.levels.critical_path import NO_PATH, Path
from npu_device.levels.occupancy import Occupancy
from npu_device.memory.bitwidth import ceil_div
from npu_device.trace.events import CACHED, FRONTEND, TIGHT, WRITES, Cause, Kind, What, unit_index, unit_kind
from npu_device.trace.run_spans import Spans
from npu_device.trace.spans import SPAN, UNFINISHED, Integers


class Blocker(StrEnum):
    """Stall causes of cycles of the critical chain."""

    COMPUTE = "compute"
    """Computation on a tensor engine."""
    VECTOR = "vector"
    FILL_DRAIN = "fill_drain"
    """Fill or drain of the array's pipeline."""
    DRAM = "dram"
    """Bytes at the rate of the DRAM, or waiting for other transfers of the DRAM."""
    DRAM_LATENCY = "dram_latency"
    NOC = "noc"
    """Latency of the NoC, and bytes at its rate if that is the lowest."""
    L2 = "l2"
    """Lookup in the L2, and snooping."""
    CHANNEL = "channel"
    """Bytes at the rate of the DMA channel, its bursts, expansion and conversion."""
    CHANNEL_BUSY = "channel_busy"
    """Latency of an earlier transfer that occupied the channel."""
    BANK_CONFLICT = "bank_conflict"
    PORT_BOUND = "port_bound"
    QUERY_LOAD = "query_load"
    """Reads of unbuffered queries by a chain of vector engines."""
    QUANTIZE = "quantize"
    """Encoding of keys and values that lengthened a transfer."""
    DEQUANTIZE = "dequantize"
    """Decoding of keys and values that lengthened a transfer."""
    KEY_WAIT = "key_wait"
    """Wait of a chain for keys."""
    WIDTH = "width"
    """Potential savings by engines that became free after the command's start, which it does not use."""
    CHAIN_FILL = "chain_fill"
    """Masked or missing pairs of a chain's engines."""
    TILE_RESTART = "tile_restart"
    DEPENDENCY = "dependency"
    """Idle time on the critical chain: the order of a stream, or an incomplete result."""
    BARRIER = "barrier"
    SUBMISSION = "submission"
    """Wait for the command's acceptance."""
    CORE = "core"
    """Work of the core on a layer that no engine supports (docs/firmware.md, "Kernels")."""
    FAULT = "fault"
    """Idle time on the critical chain caused by an injected fault."""


class Explanation(NamedTuple):
    """Explanation of a run, in core cycles."""

    makespan: int
    """Cycle of the last completion."""
    bounds: Mapping[str, int]
    """Lower bounds by resource; no run with this work is faster than the largest."""
    causes: Mapping[Blocker, int]
    """Cycles by cause; their sum is the makespan."""
    chain: Mapping[tuple[int, Blocker], int] = {}
    """Cycles by cause and ticket of the command that used the cycles or waited."""

    def text(self) -> str:
        """Return a text table."""
        lines = [f"{'makespan':<16}{self.makespan:>14,}", "", "lower bounds"]
        largest = max(self.bounds.values(), default=0)
        for name, cycles in self.bounds.items():
            mark = "  <- largest" if cycles == largest else ""
            lines.append(f"  {name:<14}{cycles:>14,}{_percent(cycles, self.makespan)}{mark}")
        lines += ["", "where the cycles went"]
        for cause, cycles in sorted(self.causes.items(), key=lambda item: -item[1]):
            lines.append(f"  {cause:<14}{cycles:>14,}{_percent(cycles, self.makespan)}")
        return "\n".join(lines)

    def to_json(self) -> dict[str, Any]:
        return {
            "makespan": self.makespan,
            "bounds": dict(self.bounds),
            "causes": {str(cause): cycles for cause, cycles in self.causes.items()},
        }


def _percent(part: int, total: int) -> str:
    return f"{1000 * part // total / 10:>8.1f} %" if total else ""


class Way(Enum):
    """Data path of a transfer."""

    DRAM = 0
    L2 = 1
    """L2 only, which holds all of it."""
    FILL = 2
    """L2, which fetches some of it from DRAM."""


class _Step(NamedTuple):
    unit: int
    ticket: int
    begin: int
    end: int
    aligned: int
    warm: bool
    """Whether the unit ended another step in the cycle of its begin."""
    stalls: tuple[tuple[int, int], ...]
    """(cause, cycles) by which banks or the KV engine lengthened it, or that its engine lost."""
    way: Way = Way.DRAM
    ahead: int = 0
    """Cycles from the issue of a transfer's request to its begin."""
    write: bool = False


def explain(spans: Spans, config: NpuConfig, critical_path: Path = NO_PATH) -> Explanation:
    """Explain a run. `critical_path`: critical path of its commands, see `CriticalPath`."""
    return _Walk(spans, config, critical_path.engines).explanation(critical_path.cycles)


class _Walk:
    def __init__(self, spans: Spans, config: NpuConfig, engines: Sequence[tuple[int, int]] = ()) -> None:
        """`engines`: as in `Path`."""
        self._config = config
        self._timing = Timing(config)
        dram = config.dram
        self._row = (
            self._timing.core_cycles(dram.row_cycles) if dram.model == "simple" and dram.row_model == "open" else 0
        )
        """Core cycles of opening a DRAM row."""
        self._product = product(config.te, 1, 1, 1, 8, 8)
        """Cost of a product of arbitrary size, for the fill and drain of the pipeline."""
        self._chain: dict[tuple[int, Blocker], int] = {}
        commands = spans.commands
        tickets = commands["ticket"].tolist()
        self._accepted, self._ready, self._barrier = (
            dict(zip(tickets, commands[name].tolist(), strict=True)) for name in ("accepted", "ready", "barrier")
        )
        self._done_at: dict[int, list[int]] = {}
        for row in spans.select(What.DONE, What.ERROR).tolist():
            self._done_at.setdefault(row[_END], []).append(row[_TICKET])
        self._ending: dict[int, list[_Step]] = {}
        self._last_of: dict[int, _Step] = {}
        self._busy: dict[int, int] = {}
        for step in _steps(spans):
            self._ending.setdefault(step.end, []).append(step)
            self._last_of[step.ticket] = step
            self._busy[step.unit] = self._busy.get(step.unit, 0) + self._at_least(step)
        self._ends = sorted(self._ending)
        self._faults = spans.select(What.FAULT)["end"].tolist()
        self._core: list[tuple[int, int, int]] = spans.core[["start", "end", "ticket"]].tolist()
        self._occupancy = Occupancy(config, spans, dict(zip(tickets, engines, strict=False)))
        self._traffic = _Traffic(spans)
        transfers = spans.steps[unit_kind(spans.steps["unit"]) == Kind.DMA]
        self._moved = int(transfers["moved"].sum())
        self._crossed = self._moved
        """Lower bound of the bytes on the busiest link of the NoC."""
        if config.noc.topology == "crossbar":
            by_cluster = np.bincount(unit_index(transfers["unit"]) // config.dma.channels, transfers["moved"])
            self._crossed = int(by_cluster.max(initial=0))
        elif config.noc.topology == "mesh":
            self._crossed = ceil_div(self._moved, 2 * self._timing.network.ports)
        self._ports = _by_unit(spans, What.BANK_BUSY)
        self._converting = int(spans.select(What.QUANTIZE, What.DEQUANTIZE)["bytes"].sum())
        """Busy cycles of the KV engines."""
        self._channels = _by_unit(spans, What.CHANNEL_BYTES)
        """Bytes of each of several DRAM channels."""

    def _at_least(self, step: _Step) -> int:
        """Return the minimum cycles of the step, with a warm pipeline and without bank stalls."""
        cold = self._product.cold if unit_kind(step.unit) == Kind.TE and not step.warm else 0
        waited = sum(cycles for cause, cycles in step.stalls if cause in _WAITS)
        return max(0, step.end - step.begin - cold - waited)

    # -- bounds ------------------------------------------------------------------------------------------------

    def explanation(self, critical_path: int) -> Explanation:
        makespan = max(self._done_at, default=0)
        if makespan:
            self._walk(makespan)
        causes = dict.fromkeys(Blocker, 0)
        for (_, cause), cycles in self._chain.items():
            causes[cause] += cycles
        causes = {cause: cycles for cause, cycles in causes.items() if cycles}
        return Explanation(makespan, self._bounds(critical_path), causes, self._chain)

    def _charge(self, ticket: int, blocker: Blocker, cycles: int) -> None:
        if cycles:
            self._chain[ticket, blocker] = self._chain.get((ticket, blocker), 0) + cycles

    def _bounds(self, critical_path: int) -> dict[str, int]:
        config = self._config

        def per_unit(kind: Kind, count: int) -> int:
            busy = sum(cycles for unit, cycles in self._busy.items() if unit_kind(unit) == kind)
            return ceil_div(busy, count * config.clusters)

        ports = 2 if config.spm.ports == "1r1w" else 1
        kv_engines = ceil_div(self._converting, config.dma.channels * config.clusters)
        return ({"kv_engines": kv_engines} if kv_engines else {}) | {
            "compute": max(per_unit(Kind.TE, config.te.count), per_unit(Kind.VE, config.ve.count)),
            "dram": self._bytes_bound(self._busiest() * config.dram.channels, config.dram.rate),
            "noc": self._bytes_bound(self._crossed, config.noc.bytes_per_second),
            "spm": ceil_div(max(self._ports.values(), default=0), ports),
            "critical_path": critical_path,
        }

    def _busiest(self) -> int:
        """Return the bytes of the busiest DRAM channel."""
        return max(self._channels.values(), default=self._moved if self._timing.rates.uniform else 0)

    def _bytes_bound(self, moved: int, bytes_per_second: int | None) -> int:
        return 0 if bytes_per_second is None else ceil_div(moved * self._config.clock_hz, bytes_per_second)

    # -- the walk ----------------------------------------------------------------------------------------------

    def _walk(self, at: int) -> None:
        ticket = self._done_at[at][-1]
        step = self._predecessor(at, self._last_of.get(ticket))
        successor: _Step | None = None
        while at > 0:
            if step is None:  # no step ended in this cycle
                low = self._latest_end(at)
                self._idle(at, low, ticket)
                at = low
                step = self._ending[at][-1] if at else None
                continue
            unit_busy = successor is not None and successor.unit == step.unit
            self._spend(step, unit_busy)
            at, ticket, successor = step.begin, step.ticket, step
            barrier_cycles = min(self._barrier.get(ticket, 0), at) if self._ready.get(ticket) == at else 0
            self._charge(ticket, Blocker.BARRIER, barrier_cycles)
            at -= barrier_cycles
            step = self._predecessor(at, step)

    def _idle(self, at: int, low: int, ticket: int) -> None:
        """Charge the idle cycles of the chain from `low` to `at`; those of the core's work go to CORE."""
        spent = 0
        for begin, end, worker in self._core:
            cycles = min(at, end) - max(low, begin)
            if cycles > 0:
                self._charge(worker, Blocker.CORE, cycles)
                spent += cycles
        for blocker, cycles in self._gap(at, low, ticket, at - low - spent):
            self._charge(ticket, blocker, cycles)

    def _gap(self, at: int, low: int, ticket: int, cycles: int) -> Iterator[tuple[Blocker, int]]:
        """Yield the causes of `cycles` idle cycles of the chain between `low` and `at`."""
        for step in self._ending[low] if low else ():
            if step.write:  # the latency of the memory follows its last byte
                for blocker, latency in (*self._latencies(step), (Blocker.DRAM_LATENCY, self._row)):
                    share = min(latency, cycles)
                    cycles -= share
                    yield blocker, share
                break
        yield self._reason(at, low, ticket), cycles

    def _reason(self, at: int, low: int, ticket: int) -> Blocker:
        """Return the cause of idle time of the chain between `low` and `at` other than the latency of writes."""
        if bisect_left(self._faults, low) < bisect_left(self._faults, at):
            return Blocker.FAULT
        if self._accepted.get(ticket, 0) == at or not low:
            return Blocker.SUBMISSION
        draining = any(unit_kind(step.unit) == Kind.TE for step in self._ending[low])
        return Blocker.FILL_DRAIN if draining and self._product.drain else Blocker.DEPENDENCY

    def _predecessor(self, at: int, step: _Step | None) -> _Step | None:
        """Return a step that ended in cycle `at`, preferably of the same command, else on the same unit; None without
        any."""
        ending = [other for other in self._ending.get(at, ()) if other.begin < at]
        if not ending:
            return None
        if step is None:
            return ending[-1]
        return min(ending, key=lambda other: (other.ticket != step.ticket, other.unit != step.unit, other.unit))

    def _latest_end(self, at: int) -> int:
        """Return the last cycle before `at` in which a step ended, or 0."""
        index = bisect_left(self._ends, at) - 1
        return self._ends[index] if index >= 0 else 0

    # -- causes of a step's cycles -----------------------------------------------------------------------------

    def _spend(self, step: _Step, unit_busy: bool) -> None:
        """Divide a step's cycles among causes. `unit_busy`: whether its successor on the chain waited for its unit."""
        remaining = step.end - step.begin
        for cause, cycles in step.stalls:
            remaining -= self._take(step, Blocker[Cause(cause).name], cycles, remaining)
        kind = unit_kind(step.unit)
        if kind == Kind.DMA:
            self._spend_transfer(step, remaining, unit_busy)
            return
        if kind == Kind.TE and not step.warm:
            remaining -= self._take(step, Blocker.FILL_DRAIN, self._product.cold, remaining)
        remaining -= self._take(
            step,
            Blocker.WIDTH,
            self._occupancy.lost(step.unit, step.ticket, step.begin, step.end, remaining),
            remaining,
        )
        self._charge(step.ticket, Blocker.COMPUTE if kind == Kind.TE else Blocker.VECTOR, remaining)

    def _spend_transfer(self, step: _Step, remaining: int, unit_busy: bool) -> None:
        """Divide a transfer's cycles without stalls among causes. DRAM and NoC get at most the time of the bytes."""
        rates, row = self._timing.rates, 0 if step.write else self._row
        ahead = step.ahead
        for blocker, latency in () if step.write else self._latencies(step):
            cycles = max(0, latency - ahead)
            ahead = max(0, ahead - latency)
            remaining -= self._take(step, Blocker.CHANNEL_BUSY if unit_busy else blocker, cycles, remaining)
        if rates.channel:
            cycles = ceil_div(step.aligned * rates.per_byte, rates.channel)
            lowest = not rates.total or rates.channel < rates.total if rates.uniform else remaining <= cycles
            remaining -= self._take(step, Blocker.CHANNEL, cycles if lowest else 0, remaining)
        if step.way is Way.L2 and rates.noc:
            cycles = ceil_div(step.aligned * rates.per_byte, rates.noc)
            remaining -= self._take(step, Blocker.NOC, cycles, remaining)
        if self._config.dram.model == "timed":  # the remainder is due to its rows, turnarounds and queues
            self._charge(step.ticket, Blocker.DRAM, remaining)
            return
        if rates.dram or rates.noc:
            blocker = Blocker.NOC if rates.noc_is_lowest else Blocker.DRAM
            remaining -= self._take(step, blocker, self._shared(step, remaining), remaining)
        if remaining >= row:
            remaining -= self._take(step, Blocker.CHANNEL_BUSY if unit_busy else Blocker.DRAM_LATENCY, row, remaining)
        self._charge(step.ticket, Blocker.CHANNEL, remaining)

    def _shared(self, step: _Step, remaining: int) -> int:
        """Return the maximum of the remaining cycles in which DRAM or NoC moved bytes of this or other transfers."""
        if self._config.l2.enabled or self._config.dram.core_traffic != "none":  # other traffic has no events
            return remaining
        rates = self._timing.rates
        lowest = min(rate for rate in (rates.dram, rates.noc) if rate)
        return ceil_div(self._traffic.during(step.begin, step.end) * rates.per_byte, lowest)

    def _latencies(self, step: _Step) -> tuple[tuple[Blocker, int], ...]:
        """Return the latency of a transfer by cause."""
        timing, config, way = self._timing, self._config, step.way
        hops = timing.network.hops(unit_index(step.unit) // config.dma.channels) * timing.hop_latency
        if way is Way.L2:
            noc = timing.core_cycles(config.noc.latency)
            return (Blocker.NOC, noc + hops), (Blocker.L2, timing.hit_latency - noc)
        dram = timing.core_cycles(config.dram_latency)
        memory = timing.core_cycles(config.dram_latency + config.noc.latency)
        total = timing.latency if way is Way.DRAM else timing.miss_latency
        return (Blocker.DRAM_LATENCY, dram), (Blocker.NOC, memory - dram + hops), (Blocker.L2, total - memory)

    def _take(self, step: _Step, blocker: Blocker, cycles: int, remaining: int) -> int:
        spent = max(0, min(cycles, remaining))
        self._charge(step.ticket, blocker, spent)
        return spent


class _Traffic:
    """Bytes of transfers and ring fetches on DRAM and NoC."""

    def __init__(self, spans: Spans) -> None:
        work = spans.steps[(spans.steps["last"] != UNFINISHED) & (unit_kind(spans.steps["unit"]) == Kind.DMA)]
        fetches = spans.select(What.FETCH)
        fetches = fetches["end"][fetches["aux"] != TIGHT]
        size = np.concatenate([work["moved"], np.full(len(fetches), DESCRIPTOR_SIZE)])
        self._begun = _Sums(np.concatenate([work["start"], fetches]), size)
        self._ended = _Sums(np.concatenate([work["end"], fetches]), size)

    def during(self, begin: int, end: int) -> int:
        """Return the bytes of all transfers in flight between two cycles."""
        return self._begun.until(end) - self._ended.until(begin)


class _Sums:
    """Cumulative bytes by cycle."""

    def __init__(self, cycle: Integers, size: Integers) -> None:
        order = np.argsort(cycle)
        self._cycles = cycle[order]
        self._sums = np.concatenate([np.zeros(1, np.int64), np.cumsum(size[order])])

    def until(self, cycle: int) -> int:
        """Return the bytes before a cycle."""
        return int(self._sums[np.searchsorted(self._cycles, cycle)])


_WAITS = (Cause.BANK_CONFLICT, Cause.PORT_BOUND)
"""Stalls on banks, which are not work of the unit; the other causes are."""

_TICKET, _END = (list(SPAN.fields or ()).index(name) for name in ("ticket", "end"))


def _steps(spans: Spans) -> Iterator[_Step]:
    """Yield the steps of engines, in the order of their ends."""
    work = spans.steps[spans.steps["last"] != UNFINISHED]
    stalls: dict[tuple[int, int], list[tuple[int, int, int, int]]] = {}
    for row in spans.select(What.STALL):
        if row["unit"] != FRONTEND:
            engine = 0 if unit_kind(row["unit"]) == Kind.BANK else int(row["unit"])
            key, cause = (int(row["ticket"]), int(row["tile"])), int(row["aux"])
            stalls.setdefault(key, []).append((int(row["first"]), engine, cause, int(row["bytes"])))
    missed = spans.select(What.L2_MISS)
    begins = np.sort(work["first"][work["what"] == What.DMA_BEGIN])
    requests = spans.select(What.REQUEST)
    ahead = dict(
        zip((begins[np.searchsorted(begins, requests["first"]) - 1]).tolist(), requests["bytes"].tolist(), strict=True)
    )
    filled = set(begins[np.searchsorted(begins, missed["first"][missed["bytes"] > 0]) - 1].tolist())
    ends: dict[int, int] = {}
    names = ("unit", "ticket", "tile", "start", "end", "moved", "aux", "first", "last")
    for unit, ticket, tile, begin, end, moved, aux, first, last in zip(
        *(work[name].tolist() for name in names), strict=True
    ):
        step_stalls = stalls.get((ticket, tile), ())
        delays = tuple(
            (cause, cycles)
            for number, engine, cause, cycles in step_stalls
            if first < number < last and engine in (0, unit)
        )
        cached = unit_kind(unit) == Kind.DMA and aux & CACHED
        way = Way.FILL if first in filled else Way.L2 if cached else Way.DRAM
        write = bool(aux & WRITES)
        yield _Step(unit, ticket, begin, end, moved, ends.get(unit) == begin, delays, way, ahead.get(first, 0), write)
        ends[unit] = end


def _by_unit(spans: Spans, event_kind: What) -> dict[int, int]:
    """Return the sum of the bytes of rows of an event kind, by unit."""
    rows = spans.select(event_kind)
    sums = np.bincount(rows["unit"], rows["bytes"])
    return {unit: int(sums[unit]) for unit in np.flatnonzero(sums).tolist()}
