"""The device's counters: a fold over the event stream and nothing else (docs/npu-timing.md, "Events")."""

from collections.abc import Callable, Collection, Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from npu_device.config import NpuConfig
from npu_device.trace.events import (
    CACHED,
    PACKED,
    SUBMISSION_REFUSALS,
    WRITES,
    Batch,
    Cause,
    EventStream,
    Kind,
    What,
    unit_code,
    unit_counts,
)

_BEGINS = (What.DMA_BEGIN, What.TE_BEGIN, What.VE_BEGIN)
_ENDS = (What.DMA_END, What.TE_END, What.VE_END)
_COUNTED = (
    What.ACCEPT, What.REJECT, What.STALL, What.DONE, What.ERROR, What.BANK_BUSY, What.CHANNEL_BYTES, What.L2_HIT,
    What.L2_MISS, What.L2_WRITE_BACK, What.STALE, *_BEGINS, *_ENDS,
)  # fmt: skip
FEW = 64
"""Events that are counted one by one sooner than as an array."""


def _among(kinds: Collection[What]) -> NDArray[np.bool_]:
    """By kind of event, whether it is one of these."""
    return np.isin(np.arange(max(What) + 1), list(kinds))


_IS_BEGIN, _IS_STEP, _IS_COUNTED = _among(_BEGINS), _among((*_BEGINS, *_ENDS)), _among(_COUNTED)


class Counters:
    """Totals since the device was made; a soft reset does not touch them.

    Events are counted when somebody asks, or when the stream hands them over.
    """

    def __init__(self, config: NpuConfig, events: EventStream) -> None:
        self._events = events
        events.subscribe(self._handed_over)
        self._seen = events.count
        """Events that are counted, of the whole stream."""
        self.accepted = 0
        self.completed = 0
        """Errors included."""
        self.errors = 0
        self.rejected = 0
        self.bad_accesses = 0
        self.depth_max = 0
        self.barrier_wait = 0
        self.dram_bytes_read = 0
        """Aligned bytes of transfers, and lines of the L2; fetches of descriptors are not among them."""
        self.dram_bytes_written = 0
        self.noc_bytes = 0
        """Every transfer crosses the NoC."""
        self.channel_bytes = [0] * config.dram.channels
        """Of those, what each of several DRAM channels has moved for commands that are complete."""
        self.l2 = {"hits": 0, "misses": 0, "write_backs": 0, "stale": 0} if config.l2.enabled else None
        """Lines; stale reads by the core are counted one by one."""
        self.cycle = 0
        """Of the latest event."""
        counts = {kind: count * config.clusters for kind, count in unit_counts(config).items()}
        counts[Kind.BANK] = config.spm.banks * config.clusters
        self._units = {kind: [unit_code(kind, index) for index in range(count)] for kind, count in counts.items()}
        self._busy = {unit: 0 for units in self._units.values() for unit in units}
        self._conflicts = dict.fromkeys(self._units[Kind.BANK], 0)
        self._waiting: set[int] = set()
        """Tickets of commands that were accepted and have not started."""
        self._running: dict[int, tuple[int, int, int]] = {}
        """Unit -> (ticket, cycle of its start, aux)."""
        self._counts: dict[int, Callable[[int, int, int, int, int], None]] = {
            What.ACCEPT: self._accept,
            What.REJECT: self._reject,
            What.STALL: self._stall,
            What.DONE: self._complete,
            What.ERROR: self._error,
            What.BANK_BUSY: self._bank_busy,
            What.CHANNEL_BYTES: self._channel_bytes,
            What.L2_HIT: self._l2_hit,
            What.L2_MISS: self._l2_miss,
            What.L2_WRITE_BACK: self._l2_write_back,
            What.STALE: self._stale,
            **dict.fromkeys(_BEGINS, self._begin),
            **dict.fromkeys(_ENDS, self._end),
        }

    def up_to_date(self) -> "Counters":
        """With all events so far."""
        if self._events.count != self._seen:
            self._count_single(PACKED.iter_unpack(self._events.pending(self._seen)))
            self._seen = self._events.count
        return self

    @property
    def depth(self) -> int:
        """Commands accepted and not started."""
        return len(self._waiting)

    @property
    def submitted(self) -> int:
        return self.accepted + self.rejected

    @property
    def bank_conflict_stall(self) -> int:
        """Cycles by which steps were lengthened because they met others on a bank."""
        return sum(self._conflicts.values())

    def units(self, kind: Kind) -> list[int]:
        """Codes of the units of a kind, of all clusters."""
        return self._units.get(kind, [])

    def busy(self, unit: int, cycle: int) -> int:
        """Busy cycles of a unit until the start of `cycle`; what it runs is counted so far."""
        running = self._running.get(unit)
        return self._busy[unit] + (max(0, cycle - running[1]) if running is not None else 0)

    def to_json(self) -> dict[str, Any]:
        """The `npu` object of docs/results.md, as of the latest event."""
        return {
            "submitted": self.submitted,
            "accepted": self.accepted,
            "completed": self.completed,
            "errors": self.errors,
            "rejected": self.rejected,
            "queue_depth_max": self.depth_max,
            "dram_bytes_read": self.dram_bytes_read,
            "dram_bytes_written": self.dram_bytes_written,
            "te_busy": self._all_busy(Kind.TE),
            "ve_busy": self._all_busy(Kind.VE),
            "dma_busy": self._all_busy(Kind.DMA),
            "bank_busy": self._all_busy(Kind.BANK),
            "bank_conflict_stall": list(self._conflicts.values()),
            "barrier_wait": self.barrier_wait,
        } | self._options()

    def _options(self) -> dict[str, Any]:
        """What only some configurations have."""
        several = {"dram_channel_bytes": list(self.channel_bytes)} if len(self.channel_bytes) > 1 else {}
        return several | ({} if self.l2 is None else {"l2": dict(self.l2)})

    def _all_busy(self, kind: Kind) -> list[int]:
        return [self.busy(unit, self.cycle) for unit in self._units[kind]]

    def _handed_over(self, records: Batch) -> None:
        """A subscriber of the EventStream."""
        records = records[len(records) - (self._events.count - self._seen) :]
        what = records["what"]
        if len(records) < FEW or (what == What.ERROR).any():  # an error may stop a step
            self._count_single(records.tolist())
        else:
            self._count_many(records, what)
            self.cycle = int(records["cycle"][-1])
        self._seen += len(records)

    def _count_single(self, records: Iterable[tuple[int, ...]]) -> None:
        """One after the other."""
        for cycle, unit, kind, ticket, _, size, aux in records:
            count = self._counts.get(kind)
            if count is not None:
                count(cycle, unit, ticket, size, aux)
            self.cycle = cycle

    def _count_many(self, records: Batch, what: NDArray[np.uint16]) -> None:
        """As `_count_single`."""
        steps, begins = _IS_STEP[what], _IS_BEGIN[what]
        tickets = records["ticket"][begins]
        single = _IS_COUNTED[what] & ~steps
        single[np.flatnonzero(begins)[np.flatnonzero(np.diff(tickets, prepend=0))]] = True
        for cycle, unit, kind, ticket, _, size, aux in records[single].tolist():
            if kind in _BEGINS:
                self._waiting.discard(ticket)
            else:
                self._counts[kind](cycle, unit, ticket, size, aux)
        records = records[steps]
        for unit in np.unique(records["unit"]).tolist():
            self._steps_of(unit, records[records["unit"] == unit])

    def _steps_of(self, unit: int, mine: Batch) -> None:
        """Steps of one unit: a begin, an end, a begin, ..."""
        if mine["what"][0] in _ENDS:
            self._end(*(int(mine[name][0]) for name in ("cycle", "unit", "ticket", "bytes", "aux")))
            mine = mine[1:]
        begins, ends = mine[0::2], mine[1::2]
        whole = begins[: len(ends)]
        self._busy[unit] += int(ends["cycle"].sum()) - int(whole["cycle"].sum())
        written, cached = whole["aux"] & WRITES != 0, whole["aux"] & CACHED != 0
        self.noc_bytes += int(ends["aux"].sum())
        self.dram_bytes_written += int(ends["aux"][written & ~cached].sum())
        self.dram_bytes_read += int(ends["aux"][~written & ~cached].sum())
        if len(begins) > len(ends):
            last = begins[-1]
            self._running[unit] = (int(last["ticket"]), int(last["cycle"]), int(last["aux"]))

    # -- one method per kind of event: (cycle, unit, ticket, bytes, aux) ----------------------------------------

    def _accept(self, cycle: int, unit: int, ticket: int, size: int, aux: int) -> None:
        self.accepted += 1
        self._waiting.add(ticket)
        if len(self._waiting) > self.depth_max:
            self.depth_max = len(self._waiting)

    def _reject(self, cycle: int, unit: int, ticket: int, size: int, aux: int) -> None:
        if aux in SUBMISSION_REFUSALS:
            self.rejected += 1
        else:
            self.bad_accesses += 1

    def _stall(self, cycle: int, unit: int, ticket: int, size: int, aux: int) -> None:
        if aux == Cause.BARRIER:
            self.barrier_wait += size
        elif aux == Cause.BANK_CONFLICT:
            self._conflicts[unit] += size

    def _begin(self, cycle: int, unit: int, ticket: int, size: int, aux: int) -> None:
        self._waiting.discard(ticket)
        self._running[unit] = (ticket, cycle, aux)

    def _end(self, cycle: int, unit: int, ticket: int, size: int, aux: int) -> None:
        _, start, began = self._running.pop(unit)
        self._busy[unit] += cycle - start
        self.noc_bytes += aux
        if began & CACHED:
            return
        if began & WRITES:
            self.dram_bytes_written += aux
        else:
            self.dram_bytes_read += aux

    def _bank_busy(self, cycle: int, unit: int, ticket: int, size: int, aux: int) -> None:
        self._busy[unit] += size

    def _channel_bytes(self, cycle: int, unit: int, ticket: int, size: int, aux: int) -> None:
        self.channel_bytes[unit & 0xFF] += size

    def _l2_hit(self, cycle: int, unit: int, ticket: int, size: int, aux: int) -> None:
        self._l2("hits", aux)

    def _l2_miss(self, cycle: int, unit: int, ticket: int, size: int, aux: int) -> None:
        self._l2("misses", aux)
        self.dram_bytes_read += size

    def _l2_write_back(self, cycle: int, unit: int, ticket: int, size: int, aux: int) -> None:
        self._l2("write_backs", aux)
        self.dram_bytes_written += size

    def _stale(self, cycle: int, unit: int, ticket: int, size: int, aux: int) -> None:
        self._l2("stale", aux if unit >> 8 == Kind.L2 else 1)

    def _l2(self, name: str, lines: int) -> None:
        if self.l2 is not None:
            self.l2[name] += lines

    def _error(self, cycle: int, unit: int, ticket: int, size: int, aux: int) -> None:
        self.errors += 1
        self._complete(cycle, unit, ticket, size, aux)
        for other, running in list(self._running.items()):
            if running[0] == ticket:  # a reset has stopped it
                del self._running[other]
                self._busy[other] += cycle - running[1]

    def _complete(self, cycle: int, unit: int, ticket: int, size: int, aux: int) -> None:
        self.completed += 1
        self._waiting.discard(ticket)  # it may have run on no unit
