"""The event loop of one device: its units, the plans that run, and the events that they give.

The first steps of a device are stepped by Python, unless it is told otherwise. Then compiled code takes over; it gives
the same events.
"""

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, NamedTuple

from npu_device.config import NpuConfig
from npu_device.cost.durations import Timing
from npu_device.cost.plan import Piece
from npu_device.event_loop import cache, snapshot, stepper
from npu_device.event_loop.encoding import Encoded, Pieces
from npu_device.event_loop.state import (
    CLASSES,
    FOREVER,
    MAX_ROW_BANKS,
    MAX_RUNS,
    Bank,
    Cache,
    DramChannel,
    EventLoop,
    Link,
    Run,
    Unit,
)
from npu_device.event_loop.storage import Objects, Words
from npu_device.trace.events import Kind, What, unit_code
from npu_device.trace.stream import EventStream
from pyv_state import LATEST, Fields

UNKNOWN = -1

NATIVE_STEPS = 3_000
"""Steps of a device's life after which compiling the loop pays."""
STEP_EVENTS = {
    Kind.TE: (What.TE_BEGIN, What.TE_END),
    Kind.VE: (What.VE_BEGIN, What.VE_END),
    Kind.DMA: (What.DMA_BEGIN, What.DMA_END),
}


class Begun(NamedTuple):
    """A step that has begun on an external unit."""

    unit: int
    """Its code."""
    slot: int
    step: int
    """Which of its plan."""


def power_up(
    config: NpuConfig, timing: Timing, analytic: bool = False, external: Collection[int] = ()
) -> EventLoop:  # fmt: skip
    """The state of a device on which nothing has run. `external`: codes of the external units."""
    dram, l2, rates = config.dram, config.l2, timing.rates
    loop = EventLoop(
        uniform=int(rates.uniform), analytic=int(analytic), total_rate=rates.total, dma_rate=rates.channel,
        priority_rate=rates.first, burst=config.dma.bus_width_bytes * rates.per_byte, latency=timing.latency,
        split=int(config.dma.direction == "split"), interleave=dram.interleave, external=int(bool(external)),
    )  # fmt: skip
    if dram.row_model == "open":
        loop.row_cycles, loop.row_bytes = timing.core_cycles(dram.row_cycles), dram.row_bytes
        loop.row_banks = dram.row_banks
    counts = {Kind.TE: config.te.count, Kind.VE: config.ve.count, Kind.DMA: config.dma.channels}
    for kind, count in counts.items():
        begin, end = map(int, STEP_EVENTS[kind])
        for index in range(count * config.clusters):
            unit = Unit(unit_code(kind, index), int(kind), index // count, begin, end)
            unit.share = [0] * (dram.channels + 1)
            unit.external = int(unit.code in external)
            loop.units.append(unit)
    loop.runs = [Run(slot, heads=[None] * CLASSES) for slot in range(MAX_RUNS)]
    loop.banks = [
        Bank(unit_code(Kind.BANK, index), port_free=[0, 0]) for index in range(config.spm.banks * config.clusters)
    ]
    loop.channels = [
        DramChannel(index, unit_code(Kind.DRAM, index), open_rows=[-1] * MAX_ROW_BANKS)
        for index in range(dram.channels)
    ]
    loop.links = [*(Link(rates.dram) for _ in loop.channels), Link(rates.noc)]
    if l2.enabled:
        lines = l2.bytes // l2.line
        loop.l2 = Cache(
            unit_code(Kind.L2, 0), l2.line, lines // l2.ways, l2.ways, timing.hit_latency, timing.miss_latency,
            l2.line * rates.per_byte, tags=[0] * lines,
        )  # fmt: skip
    return loop


class Machine:
    """Units, plans and events of one device."""

    def __init__(
        self, config: NpuConfig, timing: Timing, events: EventStream, native_steps: int = NATIVE_STEPS,
        *, analytic: bool = False, external: Collection[int] = (),
    ) -> None:  # fmt: skip
        """`analytic`: IA_TIMING. `external`: codes of the units whose steps end when `tell_end` says so."""
        self._external = frozenset(external)
        self._config = config
        self._timing = timing
        self._pieces = Pieces(timing)
        self._events = events
        self._native_steps = native_steps
        self._analytic = analytic
        self._seen = 0
        """Steps so far."""
        self.on_dropped: Callable[[Iterable[int]], None] | None = None
        """Told the tags of watched lines that no longer differ from DRAM in the L2."""
        self.reset()

    def use_compiled(self) -> None:
        """Compiled code from the next plan on."""
        self._native_steps = 0

    def reset(self) -> None:
        """Everything idle, token buckets and rows as after power-up."""
        self._use(Objects(self._power_up()))

    def _power_up(self) -> EventLoop:
        return power_up(self._config, self._timing, self._analytic, self._external)

    def _use(self, storage: Objects | Words) -> None:
        self.storage = storage
        self._next = UNKNOWN
        """The next cycle in which something happens."""

    # -- snapshots ---------------------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """What a snapshot keeps, plain data. All events have been emitted."""
        return snapshot.state_of(self.storage) | {"seen": self._seen}

    def load_state(self, state: Any, plan_of: snapshot.PlanOf) -> None:
        """Go on from what `state` gave."""
        fields = Fields(
            state, "time", "wake", "rates_due", "rates_since", "runs", "units", "banks", "channels", "tags", "seen"
        )  # fmt: skip
        self._seen = fields.integer("seen", 0, LATEST)
        loop = self._power_up()
        self._use(snapshot.load(loop, fields, self._pieces, plan_of))
        self._count(0)

    def numbers(self) -> dict[int, int]:
        """Acceptance numbers of the commands in flight, by slot."""
        return {run.slot: run.number for run in self.storage.active()}

    def busy_units(self) -> list[int]:
        """Codes of the units on which a step is in progress."""
        return [code for code, unit in self.storage.units.items() if unit.busy]

    def watched_lines(self) -> list[int]:
        """Numbers of the lines of the L2 that are watched."""
        return [int(tag) >> cache.FLAGS for tag in self.storage.tags() if tag & cache.WATCHED]

    # -- units -------------------------------------------------------------------------------------------------

    def free(self, code: int) -> bool:
        """Whether no command holds a unit and no step runs on it."""
        unit = self.storage.units[code]
        return not unit.busy and not unit.holder

    def want(self, classes: Sequence[tuple[Kind, int]]) -> None:
        """Commands wait for units of these kinds and clusters: `advance` stops when one is free."""
        self.storage.loop.requested = sum(1 << 4 * int(kind) + cluster for kind, cluster in set(classes))

    def take_begun(self) -> list[Begun]:
        """Steps that have begun on external units since the last call."""
        storage, codes = self.storage, self.storage.loop.begun
        found = []
        for code in list(codes):
            unit = storage.units[code]
            slot = storage.slot_of(unit.run)
            found.append(Begun(code, slot, storage.step_index(slot, unit.step)))
        codes.clear()
        return found

    def stalled(self, code: int) -> int:
        """Cycles that the step on an external unit has lost to its banks so far."""
        lost: int = self.storage.units[code].stalled
        return lost

    def tell_end(self, code: int, cycles: int, result: int) -> None:
        """The step on an external unit takes so many core cycles besides those lost to banks, and its result so many
        more."""
        unit = self.storage.units[code]
        unit.end, unit.result = unit.start + cycles + unit.stalled, result
        self._next = UNKNOWN

    @property
    def dirty_lines(self) -> int:
        """Lines of the L2 that DRAM does not have."""
        dirty: int = self.storage.loop.l2.dirty
        return dirty

    # -- plans -------------------------------------------------------------------------------------------------

    def begin_one(self, piece: Piece, dram: int, number: int, ticket: int, unit: int, cycle: int) -> int:
        """Start a plan of one step (a tile command) on a unit that is free in this cycle: its slot."""
        self._count(1)
        storage, slot = self.storage, self._free_slot()
        step = storage.place_single(self._pieces.single(piece, dram), slot)
        self._next = storage.text.begin_single(
            storage.root, storage.run_places[slot], step, dram, number, ticket, storage.unit_places[unit], cycle
        )
        self._emit()
        return slot

    def add(self, plan: Encoded, number: int, ticket: int, units: Sequence[int], cluster: int, cycle: int = 0) -> int:
        """Make a plan ready to start in `cycle` for the command that holds `units`, one for each lane: its slot.

        A plan without steps is over in that cycle.
        """
        count = len(plan.plan)
        self._count(count)
        storage, slot = self.storage, self._free_slot()
        heads = storage.place_plan(plan, slot)
        run, text = storage.run_places[slot], storage.text
        text.admit(storage.root, run, number, ticket, cluster, count, cycle)
        for step_class, head in enumerate(heads):
            storage.runs[slot].heads[step_class] = head
        for unit in units if count else ():
            text.hold(storage.root, run, storage.unit_places[unit])
        self._next = UNKNOWN
        return slot

    def completed(self) -> list[int]:
        """Slots of the commands that completed in this cycle; they are given back."""
        completed = self.storage.loop.completed
        slots = list(completed)
        completed.clear()
        for slot in slots:
            self.storage.runs[slot].number = 0
            self.storage.release(slot)
        return slots

    # -- stepping ----------------------------------------------------------------------------------------------

    @property
    def now(self) -> int:
        """The cycle that was stepped last."""
        time: int = self.storage.loop.time
        return time

    @property
    def idle(self) -> bool:
        """Whether no command is here, and nothing else that `start` would look after."""
        loop = self.storage.loop
        return not loop.active and not loop.rates_due

    def next_cycle(self) -> int | None:
        """The next cycle in which something happens here."""
        if self._next == UNKNOWN:
            self._next = self.storage.text.next_cycle(self.storage.root)
        return None if self._next >= FOREVER else self._next

    def advance(self, limit: int) -> int:
        """As `stepper.advance`, with the events emitted; never FULL."""
        self._next = UNKNOWN
        while True:
            answer: int = self.storage.text.advance(self.storage.root, limit)
            self._emit()
            if answer != stepper.FULL:
                return answer

    def ends(self, cycle: int) -> None:
        """As `stepper.end_steps`; `start` is to follow in this cycle."""
        self.storage.text.end_steps(self.storage.root, cycle)
        self._next = UNKNOWN
        self.storage.loop.wake = FOREVER  # which `start` finds anew: nothing else is to wake for it
        self._emit()

    def start(self, cycle: int) -> None:
        """As `stepper.start`, with the events emitted."""
        if not self.idle:
            self._next = self.storage.text.start(self.storage.root, cycle)
            self._emit()

    def priority_access(self, cycle: int, address: int, size: int) -> int:
        """`size` bytes at a DRAM address move before those of any transfer: cycles until they have."""
        rates, storage = self._timing.rates, self.storage
        self._next = UNKNOWN
        wait: int = storage.text.priority_access(storage.root, cycle, rates.channel_of(address), size * rates.per_byte)
        return wait

    def maintain(self, cycle: int, line: int, operation: int) -> None:
        """As `cache.maintain`, with its events emitted."""
        self._next = UNKNOWN
        self.storage.text.maintain(self.storage.root, cycle, line, operation)
        self._emit()

    def mark(self, line: int, flags: int) -> int:
        """As `cache.mark`."""
        tag: int = self.storage.text.mark(self.storage.root, line, flags)
        return tag

    def slow_down(self, factor: int) -> None:
        """Bytes cross the DRAM `factor` times as slowly until the machine is reset; what has no limit has none."""
        loop = self.storage.loop
        for rate in ("total_rate", "priority_rate"):
            setattr(loop, rate, -(-getattr(loop, rate) // factor))
        for index in range(self._config.dram.channels):
            link = loop.links[index]
            link.rate = -(-link.rate // factor)
        loop.rates_due = 1
        self._next = UNKNOWN

    def dram_at(self, slowdown: int) -> None:
        """Bytes cross the DRAM `slowdown` times as slowly as configured until the machine is reset."""
        loop, own = self.storage.loop, self._power_up()
        for rate in ("total_rate", "priority_rate"):
            setattr(loop, rate, getattr(own, rate))
        for index in range(self._config.dram.channels):
            loop.links[index].rate = own.links[index].rate
        self.slow_down(slowdown)

    # -- inside ------------------------------------------------------------------------------------------------

    def _count(self, steps: int) -> None:
        """So many steps come in addition."""
        self._seen += steps
        storage = self.storage
        if self._seen >= self._native_steps and isinstance(storage, Objects):
            self._use(Words(*storage.pack(), self._timing.rates.uniform, self._analytic, bool(self._external)))

    def _free_slot(self) -> int:
        """The lowest slot that no run has."""
        return next(slot for slot, run in enumerate(self.storage.runs) if not run.number)

    def _emit(self) -> None:
        if self.on_dropped is not None:
            dropped = self.storage.take_dropped()
            if dropped:
                self.on_dropped(dropped)
        events = self.storage.take_events()
        if events:
            self._events.extend(events)
