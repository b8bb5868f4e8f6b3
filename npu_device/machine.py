"""The state of the event loop: engines and channels, the plans that run, and the loop that steps them.

Short plans are stepped by Python, on lists. When many steps are in flight the state moves into arrays and the compiled
loop takes over, where llvmlite is installed; it gives the same events. The state moves back when nothing runs.
"""

import sys
from collections.abc import Callable, Sequence
from functools import cache as made_once
from importlib.util import find_spec
from typing import Any, NamedTuple

import numpy as np

from npu_device import arbiter, cache, sharing, stepper, transfers
from npu_device import layout as w
from npu_device.config import NpuConfig
from npu_device.encoding import plan_words, step_words
from npu_device.events import RECORD, EventStream, Kind, unit_code
from npu_device.plan import Piece, Plan
from npu_device.timing import Timing

NATIVE_STEPS = 6_000
"""Steps of a device's life after which compiling the loop pays."""
NATIVE_PLAN = 500
"""Steps in flight from which moving to the compiled loop and back pays."""

UNIT_KINDS = (Kind.TE, Kind.VE, Kind.DMA)
"""By class of unit in `layout`."""


class Loop(NamedTuple):
    """What is called of the event loop, interpreted or compiled."""

    advance: Callable[..., int]
    ends: Callable[..., int]
    start: Callable[..., int]
    go_first: Callable[..., int]
    act: Callable[..., int]


INTERPRETED = Loop(stepper.advance, stepper.ends, stepper.start, sharing.go_first, cache.act)


@made_once
def compiled() -> Loop:
    """The loop in native code; made once per process, when a long plan asks for it."""
    from npu_device.native import NativeModule

    module = NativeModule(sharing, arbiter, cache, transfers, stepper)
    return Loop(*(module.function(name) for name in Loop._fields))


class Machine:
    """Units, plans and events of one device; see `layout` for what the words mean."""

    def __init__(
        self, config: NpuConfig, timing: Timing, events: EventStream, native_steps: int = NATIVE_STEPS
    ) -> None:
        self._config = config
        self._timing = timing
        self._events = events
        self._native_steps = native_steps if find_spec("llvmlite") else sys.maxsize
        self._seen = 0
        """Steps so far."""
        self.on_gone: Callable[[list[int]], None] | None = None
        """Told of watched lines, as they were, that are no longer different from DRAM in the L2."""
        self._unit_of_code: dict[int, int] = {}
        self.reset()

    def reset(self) -> None:
        """Everything idle, buckets and rows as after power-up."""
        self.native = False
        l2 = self._config.l2
        lines = l2.bytes // l2.line if l2.enabled else 0
        self.m: Any = [0] * (w.MACHINE_WORDS + 2 * lines)
        self.p: Any = []
        self.e: Any = [0] * (w.EVENTS * w.EVENT_WORDS)
        self._spans: list[tuple[int, int]] = []
        """(first word, end) of the plans in `p`, in order."""
        self._span_of: dict[int, tuple[int, int]] = {}
        self._steps = 0
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
            "native": self.native, "spans": spans, "steps": self._steps, "seen": self._seen,
            "span_of": [[slot, *span] for slot, span in self._span_of.items()],
        }  # fmt: skip

    def load_state(self, state: dict[str, Any]) -> None:
        """Go on from what `state` gave."""
        self.m, self.p, self.e = list(state["m"]), list(state["p"]), [0] * (w.EVENTS * w.EVENT_WORDS)
        self._spans = [(low, high) for low, high in state["spans"]]
        self._span_of = {slot: (low, high) for slot, low, high in state["span_of"]}
        self._steps, self._seen = state["steps"], state["seen"]
        self.native = False
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

    def add_step(self, piece: Piece, dram: int, number: int, ticket: int, units: Sequence[int], cluster: int) -> int:
        """A plan of one step (a tile command) for the command that holds `units[0]`: its slot."""
        words, heads = step_words(piece, dram, self._timing)
        base = self._place(len(words))
        words[w.S_PIECE] += base
        self.p[base : base + len(words)] = words
        return self._enter((base, base + len(words)), heads, 1, number, ticket, units, cluster)

    def add(self, plan: Plan, number: int, ticket: int, units: Sequence[int], cluster: int, cycle: int = 0) -> int:
        """Make a plan ready to start in `cycle` for the command that holds `units`, one for each lane: its slot.

        A plan without steps is over in that cycle.
        """
        count = len(plan)
        large = self._steps + count >= min(NATIVE_PLAN, self._native_steps)
        if not self.native and large and self._seen + count >= self._native_steps:
            self._go_native()
        made = plan_words(plan, self._timing)
        base = self._place(len(made.words))
        span = base, base + len(made.words)
        words = made.moved(base)
        self.p[slice(*span)] = words if self.native else words.tolist()
        slot = self._enter(span, made.heads, count, number, ticket, units, cluster)
        if not count:
            run = w.RUNS + slot * w.RUN_WORDS
            self.m[run + w.R_FINISH] = cycle
            self.m[w.FINISHING] += 1
            stepper.let_go(self.m, run)
        return slot

    def _enter(
        self, span: tuple[int, int], heads: list[int], count: int, number: int, ticket: int, units: Sequence[int],
        cluster: int,
    ) -> int:  # fmt: skip
        """A plan whose words are in place gets a slot among the runs, by acceptance number."""
        m = self.m
        run, slot = w.RUNS, 0
        while m[run]:
            run, slot = run + w.RUN_WORDS, slot + 1
        held = [self._unit_of_code[unit] for unit in units]
        lanes = [*held, *[-1] * (w.MAX_LANES - len(held))]
        m[run : run + w.RUN_WORDS] = [number, span[0], ticket, *lanes, cluster, *heads, count, 0, 0, 0]
        for u in held:
            m[u + w.U_HOLDER] = slot + 1
        at = w.ORDER + m[w.ORDERED]
        while at > w.ORDER and m[w.RUNS + m[at - 1] * w.RUN_WORDS] > number:
            m[at] = m[at - 1]
            at -= 1
        m[at] = slot
        m[w.ORDERED] += 1
        self._span_of[slot] = span
        self._steps += count
        self._seen += count
        return slot

    def completed(self) -> list[int]:
        """Slots of the commands that completed in this cycle; they are given back."""
        m = self.m
        slots = [int(m[w.COMPLETE + i]) for i in range(m[w.COMPLETED])]
        m[w.COMPLETED] = 0
        for slot in slots:
            m[w.RUNS + slot * w.RUN_WORDS] = 0
            span = self._span_of.pop(slot)
            self._spans.remove(span)
        if not self._spans:
            self._steps = 0
            if self.native:
                self._go_interpreted()
        return slots

    # -- stepping ----------------------------------------------------------------------------------------------

    @property
    def now(self) -> int:
        """The cycle that was stepped last."""
        return int(self.m[w.TIME])

    def next_cycle(self) -> int | None:
        """The next cycle in which something happens here."""
        cycle = stepper.next_cycle(self.m)
        return None if cycle >= w.FOREVER else int(cycle)

    def advance(self, limit: int) -> int:
        """As `stepper.advance`, with the events emitted; never FULL."""
        loop = self._loop()
        while True:
            answer = loop.advance(self.m, self.p, self.e, limit)
            self._emit()
            if answer != stepper.FULL:
                return answer

    def ends(self, cycle: int) -> None:
        """As `stepper.ends`; `start` is to follow in this cycle."""
        self._loop().ends(self.m, self.p, self.e, cycle)
        self.m[w.WAKE] = w.FOREVER  # which `start` finds anew: nothing else is to wake for it
        self._emit()

    def start(self, cycle: int) -> None:
        self._loop().start(self.m, self.p, self.e, cycle)
        self._emit()

    def go_first(self, cycle: int, address: int, size: int) -> int:
        """`size` bytes at a DRAM address move before those of any transfer: cycles until they are there."""
        rates = self._timing.rates
        return self._loop().go_first(self.m, cycle, rates.channel_of(address), size * rates.per_byte)

    def act(self, cycle: int, line: int, action: int) -> None:
        """As `cache.act`, with its events emitted."""
        self._loop().act(self.m, self.e, cycle, line, action)
        self._emit()

    # -- inside ------------------------------------------------------------------------------------------------

    def _loop(self) -> Loop:
        return compiled() if self.native else INTERPRETED

    def _go_native(self) -> None:
        self.native = True
        self.m, self.p = (np.array(words, np.int64) for words in (self.m, self.p))
        self.e = np.zeros(w.EVENTS * w.EVENT_WORDS, np.int64)

    def _go_interpreted(self) -> None:
        self.native = False
        self.m, self.p, self.e = self.m.tolist(), [], [0] * (w.EVENTS * w.EVENT_WORDS)

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
            self.p = np.concatenate([self.p, np.zeros(max(missing, len(self.p)), np.int64)])
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
            rows = self.e[: count * w.EVENT_WORDS].reshape(count, w.EVENT_WORDS)
            records = np.empty(count, RECORD)
            for column, name in enumerate(("cycle", "unit", "what", "ticket", "tile", "bytes", "aux")):
                records[name] = rows[:, column]
            self._events.extend(records)
            return
        words, emit = self.e, self._events.emit
        for at in range(0, count * w.EVENT_WORDS, w.EVENT_WORDS):
            emit(*words[at : at + w.EVENT_WORDS])
