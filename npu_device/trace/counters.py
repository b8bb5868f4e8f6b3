"""The device's counters: a fold over the event stream and nothing else (docs/npu-timing.md, "Events")."""

from collections.abc import Callable, Collection, Iterable
from typing import TYPE_CHECKING, Any

from npu_device.abi import DESCRIPTOR_SIZE
from npu_device.abi.memory_map import DRAM_BASE
from npu_device.config import NpuConfig
from npu_device.trace.events import (
    BEGINS,
    CACHED,
    ENDS,
    PACKED,
    SUBMISSION_REFUSALS,
    TIGHT,
    WRITES,
    Cause,
    Kind,
    Record,
    Running,
    What,
    unit_code,
    unit_counts,
    unit_index,
    unit_kind,
)
from npu_device.trace.stream import EventStream
from pyv_native.state import LATEST, WORD32, Fields, StateError

if TYPE_CHECKING:
    from npu_device.trace.records import Batch

_TOTALS = (
    "accepted", "completed", "errors", "rejected", "bad_accesses", "depth_max", "barrier_wait", "dram_bytes_read",
    "dram_bytes_written", "noc_bytes", "cycle", "quantize_busy", "dequantize_busy", "quantize_exposed",
    "dequantize_exposed", "pages_taken", "pages_given_back", "pages_used", "pages_peak",
    "kernels", "kernel_cycles",
)  # fmt: skip
FEW = 64
"""Events that are counted one by one sooner than as an array."""


class Counters:
    """Totals since the device was made; a soft reset does not touch them.

    Events are counted on demand, or when the stream hands them over.
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
        """Aligned bytes of transfers, lines of the L2, and descriptors that are fetched from a ring there."""
        self.dram_bytes_written = 0
        self.noc_bytes = 0
        """Every transfer and every fetch from a ring crosses the NoC."""
        self._interleave = config.dram.interleave
        self.channel_bytes = [0] * config.dram.channels
        """Of those, what each of several DRAM channels has moved for commands that are complete."""
        self.dram = {"activations": 0, "bursts": 0} if config.dram.model == "timed" else None
        """Rows opened and bursts moved by a timed DRAM for commands that are complete."""
        self.l2 = {"hits": 0, "misses": 0, "write_backs": 0, "stale": 0} if config.l2.enabled else None
        """Lines; stale reads by the core are counted one by one."""
        self.quantize_busy = 0
        """Cycles of the KV engines of all channels."""
        self.dequantize_busy = 0
        self.quantize_exposed = 0
        """Cycles by which they have lengthened transfers."""
        self.dequantize_exposed = 0
        self.kernels = 0
        """That the core worked on."""
        self.kernel_cycles = 0
        self.pages_taken = 0
        """Of encoded keys and values."""
        self.pages_given_back = 0
        self.pages_used = 0
        self.pages_peak = 0
        self.cycle = 0
        """Of the latest event."""
        counts = {kind: count * config.clusters for kind, count in unit_counts(config).items()}
        counts[Kind.BANK] = config.spm.banks * config.clusters
        self._units = {kind: [unit_code(kind, index) for index in range(count)] for kind, count in counts.items()}
        self._busy = {unit: 0 for units in self._units.values() for unit in units}
        self._conflicts = dict.fromkeys(self._units[Kind.BANK], 0)
        self._waiting: set[int] = set()
        """Tickets of commands that were accepted and have not started."""
        self._running: Running = {}
        self._of_batch: dict[int, Callable[[Record], None]] = {
            What.FETCH: self._fetch,
            What.ACCEPT: self._accept,
            What.REJECT: self._reject,
            What.STALL: self._stall,
            What.DONE: self._complete,
            What.ERROR: self._error,
            What.BANK_BUSY: self._bank_busy,
            What.CHANNEL_BYTES: self._channel_bytes,
            What.ROWS: self._rows,
            What.L2_HIT: self._l2_hit,
            What.L2_MISS: self._l2_miss,
            What.L2_WRITE_BACK: self._l2_write_back,
            What.STALE: self._stale,
            What.QUANTIZE: self._quantize,
            What.DEQUANTIZE: self._dequantize,
            What.PAGES: self._pages,
            What.CORE: self._kernel,
            **dict.fromkeys(BEGINS, self._started),
        }
        """What is counted record by record where `steps` pairs begins and ends."""
        self._of_single: dict[int, Callable[[Record], None]] = {
            **self._of_batch,
            What.ERROR: self._stop,
            **dict.fromkeys(BEGINS, self._begin),
            **dict.fromkeys(ENDS, self._end),
        }

    def up_to_date(self) -> "Counters":
        """Count all pending events; return the counters."""
        if self._events.count != self._seen:
            self._count_single(PACKED.iter_unpack(self._events.pending(self._seen)))
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
        return self._busy[unit] + (max(0, cycle - running[1][0]) if running is not None else 0)

    def to_json(self) -> dict[str, Any]:
        """Return the `npu` object of docs/results.md, as of the latest event."""
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
        """Return the counters that only some configurations have."""
        several = {"dram_channel_bytes": list(self.channel_bytes)} if len(self.channel_bytes) > 1 else {}
        names = ("quantize_busy", "dequantize_busy", "quantize_exposed", "dequantize_exposed")
        engines = {name: getattr(self, name) for name in names}
        used = {"kv_engines": engines} if self.quantize_busy or self.dequantize_busy else {}
        pages = {
            "taken": self.pages_taken, "given_back": self.pages_given_back, "used": self.pages_used,
            "peak": self.pages_peak,
        }  # fmt: skip
        paged = {"kv_pages": pages} if self.pages_taken else {}
        worked = {"core_kernels": {"count": self.kernels, "cycles": self.kernel_cycles}} if self.kernels else {}
        timed = {} if self.dram is None else {"dram": dict(self.dram)}
        return worked | several | timed | ({} if self.l2 is None else {"l2": dict(self.l2)}) | used | paged

    def _all_busy(self, kind: Kind) -> list[int]:
        return [self.busy(unit, self.cycle) for unit in self._units[kind]]

    def _handed_over(self, records: "Batch") -> None:
        """Count events as a subscriber of the EventStream."""
        records = records[len(records) - (self._events.count - self._seen) :]
        if len(records) < FEW:
            self._count_single(records.tolist())
        else:
            self._count_many(records)
            self.cycle = int(records["cycle"][-1])
            self._seen += len(records)

    def _count_single(self, records: Iterable[Record]) -> None:
        """Count records one after the other."""
        for record in records:
            count = self._of_single.get(record[2])
            if count is not None:
                count(record)
            self.cycle = record[0]
            self._seen += 1

    def _count_many(self, records: "Batch") -> None:
        """Count records in bulk, as `_count_single` does."""
        from npu_device.trace.spans import counted  # with NumPy, which a run without events does not need

        single, busy, moved = counted(records, self._running, self._seen)
        for record in single:
            self._of_batch[record[2]](record)
        for unit, cycles in busy:
            self._busy[unit] += cycles
        for began, size in moved:
            self._moved(began, size)

    def _moved(self, began: int, size: int) -> None:
        """Transfers of a kind, `aux` of their begin, have moved aligned bytes."""
        self.noc_bytes += size
        if began & CACHED:
            return
        if began & WRITES:
            self.dram_bytes_written += size
        else:
            self.dram_bytes_read += size

    # -- snapshots ---------------------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """Return the state of a snapshot, with all events so far."""
        self.up_to_date()
        return {name: getattr(self, name) for name in _TOTALS} | {
            "channel_bytes": list(self.channel_bytes),
            "l2": None if self.l2 is None else list(self.l2.values()),
            "busy": list(self._busy.values()),
            "conflicts": list(self._conflicts.values()),
            "waiting": sorted(self._waiting),
            "running": [
                [unit, first, *begin[:1], *begin[2:]] for unit, (first, begin) in sorted(self._running.items())
            ],
        }

    def load_state(self, state: Any, busy: Collection[int]) -> None:
        """Take on a state; the event stream has taken on its own. `busy`: the units that run a step."""
        count = (0, LATEST)
        fields = Fields(state, *_TOTALS, "channel_bytes", "l2", "busy", "conflicts", "waiting", "running")
        for name in _TOTALS:
            setattr(self, name, fields.integer(name, *count))
        self.channel_bytes = fields.integers("channel_bytes", *count, len(self.channel_bytes))
        if self.l2 is not None:
            self.l2 = dict(zip(self.l2, fields.integers("l2", *count, len(self.l2)), strict=True))
        self._busy = dict(zip(self._busy, fields.integers("busy", *count, len(self._busy)), strict=True))
        conflicts = fields.integers("conflicts", *count, len(self._conflicts))
        self._conflicts = dict(zip(self._conflicts, conflicts, strict=True))
        self._waiting = set(fields.integers("waiting", 0, WORD32))
        word = (0, WORD32)
        running = fields.table("running", word, count, count, (0, max(What)), word, word, count, word)
        self._running = {
            unit: (first, (cycle, unit, *begin)) for unit, (first, cycle, *begin) in running.items()
        }  # fmt: skip
        if sorted(running) != sorted(busy) or any(begin[2] not in BEGINS for _, begin in self._running.values()):
            raise StateError("these are not the units that run a step", "running")
        self._seen = self._events.count

    # -- one method per kind of record -------------------------------------------------------------------------

    def _fetch(self, record: Record) -> None:
        """Count a descriptor of ENQCMD_T, which the core reads."""
        _, _, _, _, _, address, slot = record
        if slot == TIGHT or address < DRAM_BASE:
            return
        self.dram_bytes_read += DESCRIPTOR_SIZE
        self.noc_bytes += DESCRIPTOR_SIZE
        if len(self.channel_bytes) > 1:
            self.channel_bytes[address // self._interleave % len(self.channel_bytes)] += DESCRIPTOR_SIZE

    def _accept(self, record: Record) -> None:
        self.accepted += 1
        self._waiting.add(record[3])
        if len(self._waiting) > self.depth_max:
            self.depth_max = len(self._waiting)

    def _reject(self, record: Record) -> None:
        if record[6] in SUBMISSION_REFUSALS:
            self.rejected += 1
        else:
            self.bad_accesses += 1

    def _stall(self, record: Record) -> None:
        _, unit, _, _, _, cycles, cause = record
        if cause == Cause.BARRIER:
            self.barrier_wait += cycles
        elif cause == Cause.BANK_CONFLICT:
            self._conflicts[unit] += cycles
        elif cause == Cause.QUANTIZE:
            self.quantize_exposed += cycles
        elif cause == Cause.DEQUANTIZE:
            self.dequantize_exposed += cycles

    def _quantize(self, record: Record) -> None:
        self.quantize_busy += record[5]

    def _dequantize(self, record: Record) -> None:
        self.dequantize_busy += record[5]

    def _kernel(self, record: Record) -> None:
        self.kernels += 1
        self.kernel_cycles += record[5]

    def _pages(self, record: Record) -> None:
        _, _, _, _, given_back, used, taken = record
        self.pages_taken += taken
        self.pages_given_back += given_back
        self.pages_used = used
        self.pages_peak = max(self.pages_peak, used)

    def _started(self, record: Record) -> None:
        self._waiting.discard(record[3])

    def _begin(self, record: Record) -> None:
        self._waiting.discard(record[3])
        self._running[record[1]] = self._seen, record

    def _end(self, record: Record) -> None:
        cycle, unit, _, _, _, _, moved = record
        _, begin = self._running.pop(unit)
        self._busy[unit] += cycle - begin[0]
        self._moved(begin[6], moved)

    def _complete(self, record: Record) -> None:
        self.completed += 1
        self._waiting.discard(record[3])  # it may have run on no unit

    def _error(self, record: Record) -> None:
        self.errors += 1
        self._complete(record)

    def _stop(self, record: Record) -> None:
        """Count the steps that a reset has stopped, of a command that ends with an error."""
        self._error(record)
        for unit, (_, begin) in list(self._running.items()):
            if begin[3] == record[3]:
                del self._running[unit]
                self._busy[unit] += record[0] - begin[0]

    def _bank_busy(self, record: Record) -> None:
        self._busy[record[1]] += record[5]

    def _channel_bytes(self, record: Record) -> None:
        self.channel_bytes[unit_index(record[1])] += record[5]

    def _rows(self, record: Record) -> None:
        if self.dram is not None:
            self.dram["activations"] += record[5]
            self.dram["bursts"] += record[6]

    def _l2_hit(self, record: Record) -> None:
        self._l2("hits", record[6])

    def _l2_miss(self, record: Record) -> None:
        self._l2("misses", record[6])
        self.dram_bytes_read += record[5]

    def _l2_write_back(self, record: Record) -> None:
        self._l2("write_backs", record[6])
        self.dram_bytes_written += record[5]

    def _stale(self, record: Record) -> None:
        self._l2("stale", record[6] if unit_kind(record[1]) == Kind.L2 else 1)

    def _l2(self, name: str, lines: int) -> None:
        if self.l2 is not None:
            self.l2[name] += lines
