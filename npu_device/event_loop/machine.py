"""Event loop of one device: its units, the running plans, and their events."""

from collections.abc import Callable, Collection, Iterable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from npu_device.config import NpuConfig
from npu_device.cost.durations import Timing
from npu_device.cost.plan import Piece
from npu_device.cost.rates import WHOLE
from npu_device.cost.topology import network_of
from npu_device.decode.command import units_by_class
from npu_device.decode.tile_state import fill_decoder
from npu_device.dram import power_up as dram_power_up
from npu_device.event_loop import snapshot
from npu_device.event_loop.encoding import Encoded, Pieces
from npu_device.event_loop.storage import RECORDS, Storage, compiled_calls, compiled_module, interpreted_calls
from npu_device.front_end import deadlines
from npu_device.reservation.buffer import CLASS_LISTS, LINKAGE, IssueBuffer
from npu_device.reservation.scheduler import flush_events
from npu_device.reservation.state import Entry
from npu_device.trace.events import Kind, What, unit_code, unit_counts
from npu_device.trace.stream import EventStream
from npu_device.units import cache, sharing, stepper
from npu_device.units.state import EVENT_KINDS, FOREVER, MAX_ROW_BANKS, MAX_RUNS, NOT_YET, EventLoop
from pyv_native.arena import ROOT, Arena
from pyv_native.emitter import Definition
from pyv_native.module import NativeModule
from pyv_native.state import Fields

CHECKED = False
"""Whether compiled code has the checks of the checked build. Tests set it."""
STEP_EVENTS = {
    Kind.TE: (What.TE_BEGIN, What.TE_END),
    Kind.VE: (What.VE_BEGIN, What.VE_END),
    Kind.DMA: (What.DMA_BEGIN, What.DMA_END),
}


class Begun(NamedTuple):
    """Step that has begun on an external unit."""

    unit: int
    """Code of the unit."""
    slot: int
    step: int
    """Index in the plan."""


@lru_cache(64)  # sweeps and mapping searches create many devices of one configuration
def power_up(config: NpuConfig, analytic: bool = False, external: frozenset[int] = frozenset()) -> bytes:
    """Return the records of a device after power-up. `external`: codes of the external units."""
    timing, dram, l2 = Timing(config), config.dram, config.l2
    rates, lines = timing.rates, l2.bytes // l2.line if l2.enabled else 0
    counts = {kind: count * config.clusters for kind, count in unit_counts(config).items()}
    noc = network_of(config)
    units, banks = sum(counts.values()), config.spm.banks * config.clusters
    runs = MAX_RUNS + units + counts[Kind.DMA] * config.dma.outstanding
    capacities = {
        "units": units, "begun": units, "free_units": units, "banks": banks, "runs": runs, "active": runs,
        "completed": runs, "running": runs, "routes": config.clusters * noc.ports, "l2.tags": lines,
        "l2.dropped": lines, "issue.accumulators": config.clusters * config.te.count,
        **RECORDS,
    } | dict.fromkeys((f"issue.{name}" for name in CLASS_LISTS), 1 + len(units_by_class(config)))  # fmt: skip
    timed = dram.model == "timed"
    if timed:
        capacities |= {f"dram.{name}": count for name, count in dram_power_up.capacities(config).items()}
    arena = Arena(EventLoop, capacities)
    loop = arena.root
    loop.uniform, loop.analytic, loop.external = int(rates.uniform), int(analytic), int(bool(external))
    loop.total_rate, loop.dma_rate, loop.priority_rate = rates.shared_total, rates.channel, rates.first
    loop.burst, loop.latency = config.dma.bus_width_bytes * rates.per_byte, timing.latency
    loop.outstanding = config.dma.outstanding
    loop.oldest_first = int(config.dma.share == "oldest")
    loop.split, loop.interleave = int(config.dma.direction == "split"), dram.interleave
    if dram.model == "simple" and dram.row_model == "open":
        loop.row_cycles, loop.row_bytes = timing.core_cycles(dram.row_cycles), dram.row_bytes
        loop.row_banks = dram.row_banks
    for kind, count in counts.items():
        for index in range(count):
            unit = loop.units.add()
            unit.code, unit.kind = unit_code(kind, index), int(kind)
            unit.cluster = index * config.clusters // count
            unit.begin_event, unit.end_event = map(int, STEP_EVENTS[kind])
            unit.share[0] = WHOLE * int(rates.uniform)
            unit.external = int(unit.code in external)
    for slot in range(runs):
        loop.runs.add().slot = slot
    for index in range(banks):
        loop.banks.add().code = unit_code(Kind.BANK, index)
    for index in range(dram.channels):
        channel = loop.channels.add()
        channel.index, channel.code = index, unit_code(Kind.DRAM, index)
        channel.open_rows.fill([-1] * MAX_ROW_BANKS)
    loop.per_byte = rates.per_byte
    if timed:
        device, clock = dram.timed.timing, config.dram_clock
        loop.timed = 1
        loop.latency = timing.return_latency + device.cl * clock.denominator // clock.numerator
        dram_power_up.power_up(loop.dram, config, timing.return_latency)
    loop.ports, loop.hop_latency = noc.ports, timing.core_cycles(config.noc.hop_latency)
    for routes in noc.routes:
        for hops, reads, writes in routes:
            route = loop.routes.add()
            route.hops = hops
            route.reads.fill([dram.channels + link for link in reads])
            route.writes.fill([dram.channels + link for link in writes])
    for rate in (*[rates.shared_dram] * dram.channels, *[rates.shared_noc] * noc.links):
        loop.links.add().rate = rate
    if l2.enabled:
        cache_record = loop.l2
        cache_record.code, cache_record.line = unit_code(Kind.L2, 0), l2.line
        cache_record.sets, cache_record.ways = lines // l2.ways, l2.ways
        cache_record.hit_latency, cache_record.miss_latency = timing.hit_latency, timing.miss_latency
        cache_record.line_credits = l2.line * rates.per_byte
        cache_record.tags.fill([0] * lines)
    loop.running.fill([None] * runs)
    loop.issue.history = config.queue.history
    fill_decoder(loop.tile, config)
    front, delays = loop.front, config.frontend
    front.deadlines.fill([FOREVER] * EVENT_KINDS)
    front.stalled, front.capacity = NOT_YET, config.device_queue
    front.fetch_loose, front.fetch_tight, front.validate = delays.fetch_loose, delays.fetch_tight, delays.validate
    return bytes(arena.buffer[ROOT:])


class Machine:
    """Units, plans and events of one device."""

    def __init__(
        self, config: NpuConfig, timing: Timing, events: EventStream, *, analytic: bool = False,
        external: Collection[int] = (), interpreted: bool = False, prepare: Callable[[Any], None] | None = None,
    ) -> None:  # fmt: skip
        """`analytic`: IA_TIMING. `external`: codes of the units whose steps end by `report_end`. `interpreted`: CPython
        runs the loop, for lock-step and debugging. `prepare(loop)`: initialises the front end after power-up."""
        self._prepare = prepare
        self._external = frozenset(external)
        self._config = config
        self._timing = timing
        self._pieces = Pieces(timing)
        self._events = events
        self._analytic = analytic
        self.module: NativeModule | None = None
        """Compiled functions; None if CPython runs them."""
        if interpreted:
            self._calls = interpreted_calls()
        else:
            timed = config.dram.model == "timed"
            self.module = compiled_module(timing.rates.uniform, analytic, bool(external), timed, CHECKED)
            self._calls = compiled_calls(self.module)
        self.on_dropped: Callable[[Iterable[int]], None] | None = None
        """Receives the tags of watched lines that no longer differ from DRAM in the L2."""
        self.storage = Storage(events, power_up(config, analytic, self._external))
        arena = self.storage.arena
        arena.link_callback(LINKAGE.slots[flush_events], flush_events, self._flush_events)
        self._begin()

    def reset(self) -> None:
        """Reset all units, token buckets and DRAM rows to their power-up state."""
        self.storage.power_up()
        self._begin()

    def _begin(self) -> None:
        self.issue = IssueBuffer(self.storage.arena, self._calls, self.storage.allocate)
        if self._prepare is not None:
            self._prepare(self.storage.loop)

    def _flush_events(self, _: int) -> int:
        self._events.flush()
        return 0

    # -- snapshots ---------------------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """Return the state of a snapshot as plain data."""
        return snapshot.state_of(self.storage)

    def load_state(self, state: Any, plan_of: snapshot.PlanOf) -> None:
        """Restore the value of `state`, after a reset."""
        fields = Fields(
            state, "time", "wake", "rates_due", "rates_since", "runs", "units", "banks", "channels", "tags", "dram"
        )  # fmt: skip
        snapshot.load(self.storage, fields, self._pieces, plan_of)

    def numbers(self) -> dict[int, int]:
        """Return the acceptance numbers of the commands in flight, by slot."""
        return {run.slot: run.number for run in self.storage.loop.active}

    def busy_units(self) -> list[int]:
        """Return the codes of the units with a step in progress."""
        return [code for code, unit in self.storage.units.items() if unit.busy]

    def watched_lines(self) -> list[int]:
        """Return the numbers of the watched lines of the L2."""
        return [int(tag) >> cache.FLAGS for tag in self.storage.loop.l2.tags if tag & cache.WATCHED]

    # -- units -------------------------------------------------------------------------------------------------

    def free_units(self, kind: int, cluster: int, index: int) -> list[int]:
        """Return the codes of the free units of a class, as `stepper.find_units`."""
        self._calls[stepper.find_units](self.storage.arena, kind, cluster, index)
        return list(self.storage.loop.free_units)

    def set_stuck(self, code: int, stuck: bool) -> None:
        """Suspend a unit, or resume it."""
        self.storage.units[code].stuck = stuck

    def pop_begun(self) -> list[Begun]:
        """Return and clear the steps that have begun on external units since the last call."""
        storage, codes = self.storage, self.storage.loop.begun
        steps = []
        for code in codes:
            unit = storage.units[code]
            steps.append(Begun(code, unit.run.slot, storage.step_index(unit.step)))
        codes.clear()
        return steps

    def stalled(self, code: int) -> int:
        """Return the cycles that the step on an external unit has stalled on banks so far."""
        cycles: int = self.storage.units[code].stalled
        return cycles

    def report_end(self, code: int, cycles: int, result: int) -> None:
        """Set the duration of the step on an external unit in core cycles without bank stalls, and the additional
        cycles until its result."""
        unit = self.storage.units[code]
        unit.end, unit.result = unit.start + cycles + unit.stalled, result

    @property
    def dirty_lines(self) -> int:
        """Number of dirty lines of the L2."""
        dirty: int = self.storage.loop.l2.dirty
        return dirty

    # -- plans -------------------------------------------------------------------------------------------------

    def place_piece(self, step: tuple[Piece, int]) -> int:
        """Place the piece of a tile command, given as work and DRAM address. Return its offset."""
        return self.storage.place_piece(self._pieces.single(*step))

    def add(
        self, plan: Encoded, number: int, ticket: int, units: Sequence[int], cluster: int, cycle: int = 0,
        entry: int = 0,
    ) -> int:  # fmt: skip
        """Place a plan that can start in `cycle` on `units`, one for each lane. Return its slot.

        A plan without steps completes in that cycle. `entry`: that of the command, 0 for none.
        """
        count, storage, slot = len(plan.plan), self.storage, self._free_slot()
        heads = storage.place_plan(plan, slot)
        run, arena = storage.runs[slot], storage.arena
        self._calls[stepper.admit](arena, run.offset, number, ticket, cluster, count, cycle)
        run.heads.fill_offsets(heads)
        for unit in units if count else ():
            self._calls[stepper.hold](arena, run.offset, storage.units[unit].offset)
        self.run_entry(slot, entry)
        return slot

    def run_entry(self, slot: int, entry: int) -> None:
        """Link the run of a slot to the entry of its command."""
        if entry:
            view = self.storage.arena.view(Entry, entry)
            self.storage.loop.running[slot], view.run_slot = view, slot

    def release(self, slot: int) -> None:
        """Free the plan of a completed run."""
        self.storage.release(slot)

    # -- commands ----------------------------------------------------------------------------------------------

    def call(self, function: Definition, *arguments: int) -> int:
        """Call a function of the device."""
        return self._calls[function](self.storage.arena, *arguments)

    def schedule(self) -> None:
        """Schedule the next event of the engines."""
        self._calls[deadlines.schedule_step](self.storage.arena)

    # -- stepping ----------------------------------------------------------------------------------------------

    @property
    def now(self) -> int:
        """Cycle that was processed last."""
        time: int = self.storage.loop.time
        return time

    @property
    def idle(self) -> bool:
        """Whether no command is active and no other work for `start` is due."""
        return not self.storage.active and not self.storage.loop.rates_due

    def next_cycle(self) -> int | None:
        """Return the cycle of the next engine event, or None."""
        cycle = self._calls[stepper.next_cycle](self.storage.arena)
        return None if cycle >= FOREVER else cycle

    def start(self, cycle: int) -> None:
        """Call `stepper.start`, and report dropped lines."""
        if not self.idle:
            self._calls[stepper.start](self.storage.arena, cycle)
            self.report_dropped()

    def priority_access(self, cycle: int, address: int, size: int, write: bool = False) -> int:
        """Call `sharing.priority_access`."""
        return self._calls[sharing.priority_access](self.storage.arena, cycle, address, size, int(write))

    def maintain(self, cycle: int, line: int, operation: int) -> None:
        """Call `cache.maintain`."""
        self._calls[cache.maintain](self.storage.arena, cycle, line, operation)
        self.report_dropped()

    def mark(self, line: int, flags: int) -> int:
        """Call `cache.mark`."""
        return self._calls[cache.mark](self.storage.arena, line, flags)

    def slow_down(self, factor: int) -> None:
        """Divide the DRAM's bandwidth by `factor` until the machine is reset. Unlimited rates remain unlimited."""
        loop = self.storage.loop
        loop.dram.times.slowdown *= factor
        if not loop.timed:
            loop.total_rate = -(-loop.total_rate // factor)
        loop.priority_rate = -(-loop.priority_rate // factor)
        for index in range(self._config.dram.channels):
            link = loop.links[index]
            link.rate = -(-link.rate // factor)
        loop.rates_due = 1

    def dram_at(self, slowdown: int) -> None:
        """Set the DRAM's bandwidth to the configured one divided by `slowdown` until the machine is reset."""
        loop, rates = self.storage.loop, self._timing.rates
        loop.total_rate, loop.priority_rate, loop.dram.times.slowdown = rates.shared_total, rates.first, 1
        for index in range(self._config.dram.channels):
            loop.links[index].rate = rates.shared_dram
        self.slow_down(slowdown)

    # -- internal ----------------------------------------------------------------------------------------------

    def _free_slot(self) -> int:
        """Return the lowest free slot."""
        return next(slot for slot, run in enumerate(self.storage.runs) if not run.number)

    def report_dropped(self) -> None:
        """Report the tags of dropped lines to `on_dropped`."""
        if self.on_dropped is not None and (dropped := self.storage.pop_dropped()):
            self.on_dropped(dropped)
