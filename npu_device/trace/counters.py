"""Counters of the device: a fold over the event stream (docs/npu-timing.md, "Events"), except the maximum queue depth,
which the front end counts."""

from collections.abc import Callable, Collection
from functools import cache
from typing import TYPE_CHECKING, Any

from npu_device.config import NpuConfig
from npu_device.trace.counts import EVENT_SIZE, Counts, UnitCount, count_events
from npu_device.trace.events import Kind, unit_code, unit_counts
from npu_device.trace.stream import EventStream
from pyv_native.arena import Arena
from pyv_native.intrinsics import address_of
from pyv_native.module import NativeModule
from pyv_native.records import Scalar, layout
from pyv_native.state import LATEST, Fields, StateError, inside, integers

if TYPE_CHECKING:
    from npu_device.trace.records import Batch

CHECKED = False
"""Whether compiled code has the checks of the checked build. Tests set it."""
_TOTALS = [
    name
    for name, (_, shape, _) in layout(Counts).fields.items()
    if isinstance(shape, Scalar) and name not in ("interleave", "cycle")
]
_UNIT = tuple(layout(UnitCount).fields)


@cache
def _count(checked: bool) -> Callable[..., int]:
    """Return the compiled fold."""
    return NativeModule((count_events,), Counts, checked=checked).entry(count_events)


class Total:
    """Descriptor for the total of `counts.Counts` with the attribute's name."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, counters: "Counters", owner: type) -> int:
        return int(getattr(counters.counts, self._name))


class Counters:
    """Totals since the creation of the device; a soft reset keeps them.

    Events are counted on demand, or when the stream flushes them.
    """

    accepted, completed, errors, rejected, bad_accesses = Total(), Total(), Total(), Total(), Total()
    barrier_wait, dram_bytes_read, dram_bytes_written, noc_bytes = Total(), Total(), Total(), Total()
    cycle = Total()

    def __init__(self, config: NpuConfig, events: EventStream) -> None:
        self._config, self._events = config, events
        self.depth_max = 0
        """Maximum number of accepted commands that have not started, set by the device."""
        events.subscribe(self._count_batch)
        self._counted = events.count
        """Number of counted events of the stream."""
        counts = {kind: count * config.clusters for kind, count in unit_counts(config).items()}
        counts[Kind.BANK] = config.spm.banks * config.clusters
        self._units = {kind: [unit_code(kind, index) for index in range(count)] for kind, count in counts.items()}
        self._arena = Arena(Counts, {"units": sum(counts.values()), "channels": config.dram.channels})
        self.counts = self._arena.root
        self.counts.interleave = config.dram.interleave
        self.counts.channels.fill([0] * config.dram.channels)
        self._records: dict[int, Any] = {}
        """Counts of each unit, by its code."""
        for kind, codes in self._units.items():
            self.counts.first[kind] = len(self._records)
            self._records |= {code: self.counts.units.add() for code in codes}

    def up_to_date(self) -> "Counters":
        """Count all pending events. Return the counters."""
        if self._events.count != self._counted:
            pending = bytearray(self._events.pending(self._counted))
            self._add(address_of(pending), len(pending) // EVENT_SIZE)
        return self

    def _count_batch(self, batch: "Batch") -> None:
        """Count events as a subscriber of the EventStream."""
        batch = batch[len(batch) - (self._events.count - self._counted) :]
        self._add(batch.__array_interface__["data"][0], len(batch))

    def _add(self, address: int, number: int) -> None:
        _count(CHECKED)(self._arena, address, number)
        self._counted += number

    @property
    def submitted(self) -> int:
        return self.accepted + self.rejected

    @property
    def bank_conflict_stall(self) -> int:
        """Cycles by which bank conflicts lengthened steps."""
        return sum(self._conflicts())

    def units(self, kind: Kind) -> list[int]:
        """Return the codes of the units of a kind, of all clusters."""
        return self._units.get(kind, [])

    def busy(self, unit: int, cycle: int) -> int:
        """Return the busy cycles of a unit until the start of `cycle`, including a step in progress."""
        count = self._records[unit]
        return int(count.busy) + (max(0, cycle - count.begin) if count.running else 0)

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
            "bank_conflict_stall": self._conflicts(),
            "barrier_wait": self.barrier_wait,
        } | self._options()

    def _options(self) -> dict[str, Any]:
        """Return the counters that exist only for some configurations and programs."""
        counts, dram = self.counts, self._config.dram
        options: dict[str, Any] = {}
        if counts.kernels:
            options["core_kernels"] = {"count": counts.kernels, "cycles": counts.kernel_cycles}
        if dram.channels > 1:
            options["dram_channel_bytes"] = list(counts.channels)
        if dram.model == "timed":
            options["dram"] = self._group("activations", "bursts")
        if self._config.l2.enabled:
            options["l2"] = self._group("hits", "misses", "write_backs", "stale")
        if counts.quantize_busy or counts.dequantize_busy:
            names = ("quantize_busy", "dequantize_busy", "quantize_exposed", "dequantize_exposed")
            options["kv_engines"] = self._group(*names)
        if counts.pages_taken:
            names = ("taken", "given_back", "used", "peak")
            options["kv_pages"] = {name: getattr(counts, f"pages_{name}") for name in names}
        return options

    def _group(self, *names: str) -> dict[str, int]:
        return {name: getattr(self.counts, name) for name in names}

    def _all_busy(self, kind: Kind) -> list[int]:
        return [self.busy(unit, self.cycle) for unit in self._units[kind]]

    def _conflicts(self) -> list[int]:
        return [self._records[code].conflicts for code in self._units[Kind.BANK]]

    # -- snapshots ---------------------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """Return the state of a snapshot, including all events so far."""
        self.up_to_date()
        return {
            "totals": [getattr(self.counts, name) for name in _TOTALS],
            "cycle": self.cycle,
            "channels": list(self.counts.channels),
            "units": [[int(getattr(count, name)) for name in _UNIT] for count in self._records.values()],
        }

    def load_state(self, state: Any, busy: Collection[int]) -> None:
        """Restore a state. The event stream has been restored before. `busy`: the units with a step in progress."""
        fields, counts = Fields(state, "totals", "cycle", "channels", "units"), self.counts
        for name, value in zip(_TOTALS, fields.integers("totals", 0, LATEST, len(_TOTALS)), strict=True):
            setattr(counts, name, value)
        counts.cycle = fields.integer("cycle", 0, LATEST)
        counts.channels.fill(fields.integers("channels", 0, LATEST, len(counts.channels)))
        rows = fields.sequence("units", len(self._records))
        for (code, count), values in zip(self._records.items(), rows, strict=True):
            with inside("units", code):
                for name, value in zip(_UNIT, integers(values, 0, LATEST, len(_UNIT)), strict=True):
                    setattr(count, name, value)
                if count.running != (code in busy):
                    raise StateError(f"{'a' if count.running else 'no'} step is counted, unlike the unit's")
        self._counted = self._events.count
