"""The state of the event loop: engines and channels, the plans that run, and the loop that steps them.

Short plans are stepped by Python, on lists. When many steps are in flight the state moves into arrays and the compiled
loop takes over, where llvmlite is installed; it gives the same events. The state moves back when nothing runs.
"""

import sys
from collections.abc import Callable, Sequence
from functools import cache
from importlib.util import find_spec
from typing import Any, NamedTuple

import numpy as np

from npu_device import arbiter, sharing, stepper
from npu_device import layout as w
from npu_device.banks import Demand
from npu_device.config import NpuConfig
from npu_device.events import RECORD, EventStream, Kind, unit_code
from npu_device.plan import NONE, Column, Piece, Plan
from npu_device.tensor import once_per_command
from npu_device.timing import Cost, Timing

NATIVE_STEPS = 6_000
"""Steps of a device's life after which compiling the loop pays."""
NATIVE_PLAN = 500
"""Steps in flight from which moving to the compiled loop and back pays."""

UNIT_KINDS = (Kind.TE, Kind.VE, Kind.DMA)
"""By class of unit in `layout`."""


class Loop(NamedTuple):
    """The functions of `stepper`, or their compiled forms."""

    advance: Callable[..., int]
    ends: Callable[..., int]
    start: Callable[..., int]
    settle: Callable[..., int]


INTERPRETED = Loop(stepper.advance, stepper.ends, stepper.start, stepper.settle)


@cache
def compiled() -> Loop:
    """The loop in native code; made once per process, when a long plan asks for it."""
    from npu_device.native import NativeModule

    module = NativeModule(sharing, arbiter, stepper)
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
        self._once = once_per_command(config.te)
        self._unit_of_code: dict[int, int] = {}
        self.reset()

    def reset(self) -> None:
        """Everything idle, buckets and rows as after power-up."""
        self.native = False
        self.m: Any = [0] * w.MACHINE_WORDS
        self.p: Any = []
        self.e: Any = [0] * (w.EVENTS * w.EVENT_WORDS)
        self._spans: list[tuple[int, int]] = []
        """(first word, end) of the plans in `p`, in order."""
        self._span_of: dict[int, tuple[int, int]] = {}
        self._steps = 0
        config, rates, m = self._config, self._timing.rates, self.m
        m[w.WAKE] = w.FOREVER
        m[w.TOTAL], m[w.CHANNEL] = rates.total, rates.channel
        m[w.LATENCY] = self._timing.latency
        m[w.SPLIT] = int(config.dma.direction == "split")
        m[w.BURST] = config.dma.bus_width_bytes * rates.per_byte
        m[w.BANKS] = config.spm.banks * config.clusters
        if config.dram.row_model == "open":
            m[w.ROW_CYCLES] = self._timing.core_cycles(config.dram.row_cycles)
            m[w.ROW_BYTES], m[w.ROW_BANKS] = config.dram.row_bytes, config.dram.row_banks
            m[w.OPEN_ROWS : w.OPEN_ROWS + w.MAX_ROW_BANKS] = [-1] * w.MAX_ROW_BANKS
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

    def add_step(self, piece: Piece, dram: int, number: int, ticket: int, unit: int, cluster: int) -> int:
        """A plan of one step (a tile command) for the command that holds `unit`: its slot."""
        cost = self._timing.cost(piece)
        if cost.kind is Kind.TE and self._once:
            cost = cost._replace(cycles=max(0, cost.cycles + self._once))
        words = [w.STEP_WORDS, 0, dram, *[NONE] * (w.STEP_WORDS - w.S_AFTER)]
        words += piece_words(cost, self._timing.rates.per_byte)
        heads = [NONE] * 4
        heads[step_class(cost)] = 0
        base = self._place(len(words))
        words[w.S_PIECE] += base
        self.p[base : base + len(words)] = words
        return self._enter((base, base + len(words)), heads, 1, number, ticket, unit, cluster)

    def add(self, plan: Plan, number: int, ticket: int, unit: int, cluster: int, cycle: int = 0) -> int:
        """Make a plan ready to start in `cycle` for the command that holds `unit`: its slot.

        A plan without steps is over in that cycle.
        """
        count = len(plan)
        large = self._steps + count >= min(NATIVE_PLAN, self._native_steps)
        if not self.native and large and self._seen + count >= self._native_steps:
            self._go_native()
        words, heads = self._words(plan)
        base = self._place(len(words))
        words[: count * w.STEP_WORDS : w.STEP_WORDS] += base  # S_PIECE is an index into p
        self.p[base : base + len(words)] = words if self.native else words.tolist()
        slot = self._enter((base, base + len(words)), heads, count, number, ticket, unit, cluster)
        if not count:
            run = w.RUNS + slot * w.RUN_WORDS
            self.m[run + w.R_FINISH] = cycle
            self.m[w.FINISHING] += 1
            self.m[self.m[run + w.R_UNIT] + w.U_HOLDER] = 0
        return slot

    def _enter(
        self, span: tuple[int, int], heads: list[int], count: int, number: int, ticket: int, unit: int, cluster: int
    ) -> int:
        """A plan whose words are in place gets a slot among the runs, by acceptance number."""
        m = self.m
        run, slot = w.RUNS, 0
        while m[run]:
            run, slot = run + w.RUN_WORDS, slot + 1
        u = self._unit_of_code[unit]
        m[run : run + w.RUN_WORDS] = [number, span[0], ticket, u, cluster, *heads, count, 0, 0]
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
        self._loop().ends(self.m, self.p, self.e, cycle)
        self._emit()

    def start(self, cycle: int) -> None:
        self._loop().start(self.m, self.p, self.e, cycle)
        self._emit()

    def take_first(self, cycle: int, size: int) -> int:
        """A descriptor fetch moves `size` bytes before any transfer does: cycles until its tokens are there.

        It uses what the bucket holds; for the rest all transfers pause, in whole cycles, and the bucket keeps
        the change.
        """
        m = self.m
        total = m[w.TOTAL]
        if not total:
            return 0
        self._loop().settle(m, cycle)
        idle = max(0, cycle - m[w.BUCKET_AT])
        credit = min(m[w.BURST], m[w.BUCKET] + idle * total)
        debt = size * self._timing.rates.per_byte - credit
        pause = max(0, -(-debt // total))
        m[w.BUCKET] = pause * total - debt
        m[w.FLOW_BASE] = max(m[w.FLOW_BASE], cycle) + pause
        if m[w.BUCKET_AT] != w.FOREVER:
            m[w.BUCKET_AT] = max(m[w.BUCKET_AT], cycle) + pause
        return int(pause)

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

    def _words(self, plan: Plan) -> tuple[Column, list[int]]:
        """Steps and pieces as they stand in `p`, with S_PIECE relative to the first word, and the first step of each
        class."""
        costs = [self._timing.cost(piece) for piece in plan.pieces]
        index = plan.piece
        classes = np.array([step_class(cost) for cost in costs], np.int64)[index]
        first_tensor = -1
        if self._once:
            tensor = np.flatnonzero(classes == w.TENSOR)
            if len(tensor):
                first_tensor = int(tensor[0])
                shorter = costs[index[first_tensor]]
                costs.append(shorter._replace(cycles=max(0, shorter.cycles + self._once)))
                index = index.copy()
                index[first_tensor] = len(costs) - 1
        count = len(plan)
        pieces = [piece_words(cost, self._timing.rates.per_byte) for cost in costs]
        starts = np.cumsum([count * w.STEP_WORDS, *(len(one) for one in pieces[:-1])])
        steps = np.empty((count, w.STEP_WORDS), np.int64)
        steps[:, w.S_PIECE] = starts[index]
        steps[:, w.S_TILE] = plan.tile
        steps[:, w.S_DRAM] = plan.dram
        steps[:, w.S_AFTER : w.S_AFTER + w.MAX_AFTER] = plan.after
        steps[:, [w.S_RELEASED, w.S_DONE, w.S_NEXT]] = NONE
        heads = []
        for one in (w.READ, w.WRITE, w.TENSOR, w.VECTOR):
            members = np.flatnonzero(classes == one)
            heads.append(int(members[0]) if len(members) else NONE)
            steps[members[:-1], w.S_NEXT] = members[1:]
        tail = np.array([word for one in pieces for word in one], np.int64)
        return np.concatenate([steps.reshape(-1), tail]), heads

    def _emit(self) -> None:
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


def step_class(cost: Cost) -> int:
    """Class of the steps of a piece."""
    if cost.kind is Kind.DMA:
        return w.WRITE if cost.write else w.READ
    return w.TENSOR if cost.kind is Kind.TE else w.VECTOR


def piece_words(cost: Cost, per_byte: int) -> list[int]:
    """A piece as it stands in `p`."""
    mask = 0
    for demand in cost.demands:
        mask |= 1 << demand.bank % 32
    words = [step_class(cost), cost.cycles, cost.drain, cost.cold, cost.payload, cost.aligned,
             cost.aligned * per_byte, cost.aux, mask, len(cost.demands), len(cost.stalls)]  # fmt: skip
    for demand in cost.demands:
        words += _phase(demand)
    for stall in cost.stalls:
        words += [int(word) for word in stall]
    return words


def _phase(demand: Demand) -> list[int]:
    return [demand.bank, demand.port, demand.cycles]
