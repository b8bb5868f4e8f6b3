"""The state of the event loop: engines and channels, the plans that run, and the loop that steps them.

The first steps of a device are stepped by Python, on lists. Then the state moves to arrays and the compiled loop takes
over; it gives the same events.
"""

from array import array
from collections.abc import Callable, Sequence
from functools import cache as made_once
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from npu_device.config import NpuConfig
from npu_device.cost.durations import Timing
from npu_device.cost.plan import Piece, Plan
from npu_device.event_loop import arbiter, cache, sharing, stepper, transfers
from npu_device.event_loop import layout as w
from npu_device.event_loop.encoding import Singles, plan_words
from npu_device.trace.events import RECORD, EventStream, Kind, unit_code

UNKNOWN = -1

NATIVE_STEPS = 3_000
"""Steps of a device's life after which compiling the loop pays."""
UNIT_KINDS = (Kind.TE, Kind.VE, Kind.DMA)
"""By class of unit in `layout`."""


class Loop(NamedTuple):
    """What is called of the event loop, interpreted or compiled."""

    advance: Callable[..., int]
    ends: Callable[..., int]
    go: Callable[..., int]
    enter: Callable[..., int]
    hold: Callable[..., int]
    begin_one: Callable[..., int]
    next_cycle: Callable[..., int]
    go_first: Callable[..., int]
    act: Callable[..., int]


INTERPRETED = Loop(
    stepper.advance, stepper.ends, stepper.go, stepper.enter, stepper.hold, stepper.begin_one,
    stepper.next_cycle, sharing.go_first, cache.act,
)  # fmt: skip

SIMPLE = {"m[w.ALIKE]": 1, "m[w.DRAM_CHANNELS]": 1, "m[w.L2_LINE]": 0}
"""Words of a machine with one DRAM channel and no L2."""


@made_once
def compiled(simple: bool) -> Loop:
    """The loop in native code, for SIMPLE machines or all; made once per process, when a long plan asks for it."""
    from npu_device.event_loop.native import NativeModule

    names = [name for name in Loop._fields if not simple or name != "act"]
    module = NativeModule(sharing, arbiter, cache, transfers, stepper, only=names, known=SIMPLE if simple else None)
    return INTERPRETED._replace(**{name: module.entry(name) for name in names})


class Machine:
    """Units, plans and events of one device; see `layout` for what the words mean."""

    def __init__(
        self, config: NpuConfig, timing: Timing, events: EventStream, native_steps: int = NATIVE_STEPS
    ) -> None:
        self._config = config
        self._timing = timing
        self._single = Singles(timing)
        self._events = events
        self._native_steps = native_steps
        self._seen = 0
        """Steps so far."""
        self.on_gone: Callable[[list[int]], None] | None = None
        """Told of watched lines, as they were, that are no longer different from DRAM in the L2."""
        self._unit_of_code: dict[int, int] = {}
        self.reset()

    def reset(self) -> None:
        """Everything idle, buckets and rows as after power-up."""
        l2 = self._config.l2
        lines = l2.bytes // l2.line if l2.enabled else 0
        self._use_lists([0] * (w.MACHINE_WORDS + 2 * lines), [])
        self._spans: list[tuple[int, int]] = []
        """(first word, end) of the plans in `p`, in order."""
        self._span_of: dict[int, tuple[int, int]] = {}
        self._rooms: dict[int, tuple[int, int]] = {}
        """(first word, words) that a slot keeps for plans of one step; they are among `_spans` too."""
        config, rates, m = self._config, self._timing.rates, self.m
        m[w.WAKE] = w.FOREVER
        m[w.TOTAL], m[w.CHANNEL] = rates.total, rates.channel
        m[w.DRAM_RATE], m[w.NOC_RATE], m[w.FIRST_RATE] = rates.dram, rates.noc, rates.first
        m[w.DRAM_CHANNELS], m[w.INTERLEAVE] = config.dram.channels, config.dram.interleave
        m[w.ALIKE] = int(rates.alike)
        m[w.LATENCY] = self._timing.latency
        if l2.enabled:
            m[w.L2_LINE], m[w.L2_SETS], m[w.L2_WAYS] = l2.line, lines // l2.ways, l2.ways
            m[w.L2_HIT], m[w.L2_MISS] = self._timing.hit_latency, self._timing.miss_latency
            m[w.L2_CREDITS] = l2.line * rates.per_byte
        m[w.SPLIT] = int(config.dma.direction == "split")
        m[w.BURST] = config.dma.bus_width_bytes * rates.per_byte
        m[w.BANKS] = config.spm.banks * config.clusters
        if config.dram.row_model == "open":
            m[w.ROW_CYCLES] = self._timing.core_cycles(config.dram.row_cycles)
            m[w.ROW_BYTES], m[w.ROW_BANKS] = config.dram.row_bytes, config.dram.row_banks
            m[w.OPEN_ROWS : w.BUCKET] = [-1] * (w.BUCKET - w.OPEN_ROWS)
        counts = (config.te.count, config.ve.count, config.dma.channels)
        for unit_class, (kind, count) in enumerate(zip(UNIT_KINDS, counts, strict=True)):
            for index in range(count * config.clusters):
                u = w.UNITS + m[w.UNITS_USED] * w.UNIT_WORDS
                m[w.UNIT_LIST + m[w.UNITS_USED]] = u
                m[w.UNITS_USED] += 1
                code = unit_code(kind, index)
                m[u + w.U_CODE], m[u + w.U_CLASS], m[u + w.U_CLUSTER] = code, unit_class, index // count
                m[u + w.U_RUN] = m[u + w.U_LAST] = -1
                self._unit_of_code[code] = u

    # -- snapshots ---------------------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """What a snapshot keeps, plain data. All events have been emitted."""
        words = {name: [int(word) for word in getattr(self, name)] for name in ("m", "p")}
        spans = [list(span) for span in self._spans]
        return words | {
            "native": self.native, "spans": spans, "seen": self._seen,
            "span_of": [[slot, *span] for slot, span in self._span_of.items()],
            "rooms": [[slot, *room] for slot, room in self._rooms.items()],
        }  # fmt: skip

    def load_state(self, state: dict[str, Any]) -> None:
        """Go on from what `state` gave."""
        self._use_lists(list(state["m"]), list(state["p"]))
        self._spans = [(low, high) for low, high in state["spans"]]
        self._span_of = {slot: (low, high) for slot, low, high in state["span_of"]}
        self._rooms = {slot: (base, size) for slot, base, size in state["rooms"]}
        self._seen = state["seen"]
        if state["native"]:
            self._go_native()

    # -- units -------------------------------------------------------------------------------------------------

    def free(self, code: int) -> bool:
        """Whether no command holds a unit and no step runs on it."""
        u = self._unit_of_code[code]
        return bool(self.m[u + w.U_RUN] < 0 and not self.m[u + w.U_HOLDER])

    def want(self, places: Sequence[tuple[Kind, int]]) -> None:
        """Commands wait for units of these kinds and clusters: `advance` stops when one is free."""
        self.m[w.WANTED] = sum(1 << 4 * UNIT_KINDS.index(kind) + cluster for kind, cluster in set(places))

    # -- plans -------------------------------------------------------------------------------------------------

    def begin_one(self, piece: Piece, dram: int, number: int, ticket: int, unit: int, cycle: int) -> int:
        """Start a plan of one step (a tile command) on a unit that is free in this cycle: its slot."""
        self._count(1)
        form = self._single(piece, dram)
        slot = self._free_slot()
        base, room = self._rooms.get(slot, (0, 0))
        if room < form.size:
            base, room = self._rooms[slot] = self._make_room(slot, form.size)
        u = self._unit_of_code[unit]
        self._soon = self._loop.begin_one(
            *self._words, form.words, form.size, base, slot, form.step_class, dram, number, ticket, u, cycle
        )
        self._emit()
        return slot

    def add(self, plan: Plan, number: int, ticket: int, units: Sequence[int], cluster: int, cycle: int = 0) -> int:
        """Make a plan ready to start in `cycle` for the command that holds `units`, one for each lane: its slot.

        A plan without steps is over in that cycle.
        """
        count = len(plan)
        self._count(count)
        made = plan_words(plan, self._timing)
        base = self._place(len(made.words))
        span = base, base + len(made.words)
        if self.native:
            self._arrays[1][slice(*span)] = made.moved(base)
        else:
            self.p[slice(*span)] = made.moved(base).tolist()
        words, m, slot = self._words[0], self.m, self._free_slot()
        run = self._loop.enter(words, slot, number, base, ticket, cluster, count)
        for lane, unit in enumerate(units):
            self._loop.hold(words, slot, lane, self._unit_of_code[unit])
        for index, head in enumerate(made.heads):
            m[run + w.R_HEAD + index] = head
        self._span_of[slot] = span
        self._soon = UNKNOWN
        if not count:
            m[run + w.R_FINISH] = cycle
            m[w.FINISHING] += 1
            stepper.let_go(m, run)
        return slot

    def completed(self) -> list[int]:
        """Slots of the commands that completed in this cycle; they are given back."""
        m = self.m
        slots = [int(m[w.COMPLETE + i]) for i in range(m[w.COMPLETED])]
        m[w.COMPLETED] = 0
        for slot in slots:
            m[w.RUNS + slot * w.RUN_WORDS] = 0
            span = self._span_of.pop(slot, None)
            if span is not None:
                self._spans.remove(span)
        return slots

    # -- stepping ----------------------------------------------------------------------------------------------

    @property
    def now(self) -> int:
        """The cycle that was stepped last."""
        return int(self.m[w.TIME])

    @property
    def idle(self) -> bool:
        """Whether no command is here, and nothing else that `start` would look after."""
        return not self.m[w.ORDERED] and not self.m[w.SHARE_DUE]

    def next_cycle(self) -> int | None:
        """The next cycle in which something happens here."""
        if self._soon == UNKNOWN:
            self._soon = self._loop.next_cycle(self._words[0])
        return None if self._soon >= w.FOREVER else self._soon

    def advance(self, limit: int) -> int:
        """As `stepper.advance`, with the events emitted; never FULL."""
        self._soon = UNKNOWN
        while True:
            answer = self._loop.advance(*self._words, limit)
            self._emit()
            if answer != stepper.FULL:
                return answer

    def ends(self, cycle: int) -> None:
        """As `stepper.ends`; `start` is to follow in this cycle."""
        self._loop.ends(*self._words, cycle)
        self._soon = UNKNOWN
        self.m[w.WAKE] = w.FOREVER  # which `start` finds anew: nothing else is to wake for it
        self._emit()

    def start(self, cycle: int) -> None:
        """As `stepper.start`, with the events emitted."""
        if not self.idle:
            self._soon = self._loop.go(*self._words, cycle)
            self._emit()

    def go_first(self, cycle: int, address: int, size: int) -> int:
        """`size` bytes at a DRAM address move before those of any transfer: cycles until they are there."""
        rates = self._timing.rates
        self._soon = UNKNOWN
        return self._loop.go_first(self._words[0], cycle, rates.channel_of(address), size * rates.per_byte)

    def act(self, cycle: int, line: int, action: int) -> None:
        """As `cache.act`, with its events emitted."""
        self._soon = UNKNOWN
        self._loop.act(self._words[0], self._words[2], cycle, line, action)
        self._emit()

    # -- inside ------------------------------------------------------------------------------------------------

    def _use_lists(self, m: list[int], p: list[int]) -> None:
        """Step by Python."""
        self.native = False
        self._loop = INTERPRETED
        self._soon = UNKNOWN
        """What `stepper.next_cycle` says."""
        self.m: Any = m
        self.p: Any = p
        self._words: tuple[Any, ...] = m, p, [0] * (w.EVENTS * w.EVENT_WORDS)
        """The three as the loop takes them."""

    def _use_arrays(self, *arrays: NDArray[np.int64]) -> None:
        """Step by compiled code. Views of arrays give single words to Python far faster than the arrays do."""
        self._arrays = arrays
        self.m, self.p, _ = (one.data.cast("B").cast("q") for one in arrays)
        self._records = arrays[2].data.cast("B")
        self._words = tuple(one.ctypes.data for one in arrays)

    def _count(self, steps: int) -> None:
        """So many steps come in addition."""
        self._seen += steps
        if not self.native and self._seen >= self._native_steps:
            self._go_native()

    def _go_native(self) -> None:
        self.native = True
        self._single.go_native()
        self._loop = compiled(self._timing.rates.alike)
        plans = np.array(self.p or [0], np.int64)
        self._use_arrays(np.array(self.m, np.int64), plans, np.zeros(w.EVENTS * w.EVENT_WORDS, np.int64))

    def _free_slot(self) -> int:
        """The lowest slot that no run has."""
        m, run, slot = self.m, w.RUNS, 0
        while m[run]:
            run, slot = run + w.RUN_WORDS, slot + 1
        return slot

    def _make_room(self, slot: int, size: int) -> tuple[int, int]:
        """Words in `p` for plans of one step in this slot: (the first, how many)."""
        kept = self._rooms.pop(slot, None)
        if kept is not None:
            self._spans.remove((kept[0], sum(kept)))
        return self._place(size), size

    def _place(self, size: int) -> int:
        """Room for a plan in `p`: the first gap that is large enough."""
        base = 0
        for index, (low, high) in enumerate(self._spans):
            if base + size <= low:
                self._spans.insert(index, (base, base + size))
                return base
            base = high
        self._spans.append((base, base + size))
        missing = base + size - len(self.p)
        if missing > 0 and self.native:
            m, p, e = self._arrays
            self._use_arrays(m, np.concatenate([p, np.zeros(max(missing, len(p)), np.int64)]), e)
        elif missing > 0:
            self.p.extend([0] * missing)
        return base

    def _emit(self) -> None:
        if self.on_gone is not None and self.m[w.L2_GONE]:
            at = cache.left_at(self.m)
            gone, self.m[w.L2_GONE] = [int(word) for word in self.m[at : at + self.m[w.L2_GONE]]], 0
            self.on_gone(gone)
        count = int(self.m[w.OUT])
        if not count:
            return
        self.m[w.OUT] = 0
        if self.native:
            self._events.extend(self._records[: count * RECORD.itemsize])
        else:
            self._events.extend(array("Q", self._words[2][: count * w.EVENT_WORDS]).tobytes())
