"""The records of one event loop in their buffer: the state, its events, and behind them the plans that run."""

from collections.abc import Callable, Mapping, Sequence
from functools import cache as memoized
from typing import Any, NamedTuple

import numpy as np

from npu_device.cost.plan import Column
from npu_device.event_loop import cache, sharing, stepper
from npu_device.event_loop.encoding import Encoded, PieceImage
from npu_device.event_loop.state import MAX_EVENTS, EventLoop, Step
from npu_device.trace.events import EVENT_WORDS
from pyv_native.arena import Arena
from pyv_native.module import NativeModule, interpreted
from pyv_native.records import WORD, layout

UNIFORM = {"EventLoop.uniform": 1, "Cache.line": 0}
"""Fields of a machine with one DRAM channel and no L2."""
STEP_WORDS = layout(Step).size // WORD


class Calls(NamedTuple):
    """Functions of the event loop, interpreted or compiled: `f(arena, *arguments)`; records are offsets."""

    advance: Callable[..., int]
    end_steps: Callable[..., int]
    start: Callable[..., int]
    admit: Callable[..., int]
    hold: Callable[..., int]
    begin_single: Callable[..., int]
    next_cycle: Callable[..., int]
    priority_access: Callable[..., int]
    maintain: Callable[..., int]
    mark: Callable[..., int]
    find_units: Callable[..., int]


FUNCTIONS = (
    stepper.advance, stepper.end_steps, stepper.start, stepper.admit, stepper.hold, stepper.begin_single,
    stepper.next_cycle, sharing.priority_access, cache.maintain, cache.mark, stepper.find_units,
)  # fmt: skip


@memoized
def interpreted_calls() -> Calls:
    """The event loop as CPython runs it: for lock-step and debugging."""
    return Calls(*(interpreted(function, EventLoop) for function in FUNCTIONS))


@memoized
def compiled_calls(uniform: bool, analytic: bool, external: bool, timed: bool, checked: bool = False) -> Calls:
    """The event loop compiled for UNIFORM machines or all; code for external units and for a timed DRAM is in none but
    theirs."""
    constants = {
        "EventLoop.analytic": int(analytic), "EventLoop.external": int(external), "EventLoop.timed": int(timed),
    }  # fmt: skip
    module = NativeModule(FUNCTIONS, EventLoop, constants=constants | (UNIFORM if uniform else {}), checked=checked)
    return Calls(*(module.entry(function) for function in FUNCTIONS))


class PlanSpan(NamedTuple):
    """Steps of a plan in the buffer."""

    base: int
    """Offset of the first."""
    steps: int


class SingleSpan(NamedTuple):
    """Bytes that a slot keeps for plans of one step."""

    base: int
    size: int
    image: PieceImage | None
    """The piece that stands there."""


class Storage:
    """The buffer of one event loop. Views and offsets that it gives are good until the next plan is placed."""

    def __init__(self, lines: int, capacities: Mapping[str, int]) -> None:
        """`lines`: of the L2. `capacities`: of other lists."""
        sizes = {"events": MAX_EVENTS * EVENT_WORDS, "l2.tags": lines, "l2.dropped": lines}
        self.arena = Arena(EventLoop, sizes | dict(capacities))
        self._spans: dict[int, PlanSpan] = {}
        """Steps of plans, by slot; plans of one step are apart."""
        self._single_spans: dict[int, SingleSpan] = {}

    def bind(self) -> None:
        """Take views anew, of a buffer that has moved or whose lists have been filled."""
        self.loop: Any = self.arena.root
        self.units: dict[int, Any] = {unit.code: unit for unit in self.loop.units}
        """Units by their codes in events."""
        self.runs: Sequence[Any] = list(self.loop.runs)
        self._events = self.loop.events
        self._event_bytes = self._events.reserved()
        self._event_count, self._active, self._completed = (
            items.offset // WORD for items in (self._events, self.loop.active, self.loop.completed)
        )
        self._dropped = self.loop.l2.dropped

    def _allocate(self, size: int) -> int:
        buffer = self.arena.buffer
        offset = self.arena.allocate(size)
        if self.arena.buffer is not buffer:
            self.bind()
        return offset

    def words(self, offset: int, count: int) -> Column:
        """Words of the buffer from an offset on, as an array that writes to it."""
        return np.frombuffer(self.arena.buffer, np.int64, count, offset)

    # -- plans ---------------------------------------------------------------------------------------------------------

    def place_single(self, image: PieceImage, slot: int) -> int:
        """Place a plan of one step: the offset of the step."""
        span = self._single_spans.get(slot)
        if span is not None and span.image is image:
            return span.base
        step_size = STEP_WORDS * WORD
        size = step_size + len(image.image)
        if span is None or span.size < size:
            if span is not None:
                self.arena.free(span.base)
            base = self._allocate(size)
            self.arena.initialize(Step, base, {})
            self.words(base + layout(Step).fields["piece"].offset, 1)[0] = base + step_size
            span = SingleSpan(base, size, None)
        self.arena.bytes[span.base + step_size : span.base + size] = image.image
        self._single_spans[slot] = span._replace(image=image)
        return span.base

    def place_plan(self, plan: Encoded, slot: int) -> Sequence[int]:
        """Place a plan of many steps: the offset of the first step of each class, or 0."""
        size = plan.size()
        base = self._allocate(size * WORD) if size else 0
        self._spans[slot] = PlanSpan(base, len(plan.plan))
        return plan.write(self.words(base, size), base)

    def release(self, slot: int) -> None:
        """Give back the bytes of a slot's plan."""
        span = self._spans.pop(slot, None)
        if span is not None and span.steps:
            self.arena.free(span.base)

    def span(self, slot: int) -> PlanSpan:
        """The steps of the plan of a slot."""
        span = self._spans.get(slot)
        return PlanSpan(self._single_spans[slot].base, 1) if span is None else span

    def columns(self, slot: int) -> Column:
        """Shape (steps, words of a step): the steps of a slot's plan as an array that writes to them."""
        base, count = self.span(slot)
        return self.words(base, count * STEP_WORDS).reshape(count, STEP_WORDS)

    def step_index(self, step: Any) -> int:
        """Index of a step in its plan."""
        for base, count in (
            *self._spans.values(),
            *(PlanSpan(single.base, 1) for single in self._single_spans.values()),
        ):
            if base <= step.offset < base + count * layout(Step).size:
                return int(step.offset - base) // layout(Step).size
        raise AssertionError(f"no plan has a step at {step.offset}")

    # -- events --------------------------------------------------------------------------------------------------------

    def take_events(self) -> "bytes | memoryview":
        """Events since the last call; they are overwritten by later ones."""
        words = self.arena.words
        count = words[self._event_count]
        if not count:
            return b""
        words[self._event_count] = 0
        return self._event_bytes[: WORD * count]

    @property
    def active(self) -> int:
        """Number of runs in flight."""
        count: int = self.arena.words[self._active]
        return count

    def take_completed(self) -> list[int]:
        """Slots of the runs that completed since the last call."""
        words, at = self.arena.words, self._completed
        slots = list(words[at + 1 : at + 1 + words[at]])
        words[at] = 0
        return slots

    def take_dropped(self) -> list[int]:
        """Tags of watched lines that no longer differ from DRAM since the last call."""
        tags = list(self._dropped)
        self._dropped.clear()
        return tags
