"""The state of an event loop in its two forms: objects for Python, an array of words for compiled code."""

from array import array
from bisect import insort
from collections.abc import Callable, Sequence
from functools import cache as made_once
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from npu_device.cost import rates
from npu_device.event_loop import arbiter, cache, fluid, sharing, stepper, transfers
from npu_device.event_loop.encoding import Encoded, Made
from npu_device.event_loop.state import EVENT_WORDS, MAX_EVENTS, Cache, EventLoop, Run, Step, Unit
from npu_device.native.records import Writer, layout, view

EVENT_SPACE = 1 + MAX_EVENTS * EVENT_WORDS


class Span(NamedTuple):
    """Words of a plan."""

    base: int
    end: int
    steps: int


class Loop(NamedTuple):
    """What is called of the event loop, interpreted or compiled."""

    advance: Callable[..., Any]
    end_steps: Callable[..., Any]
    start: Callable[..., Any]
    admit: Callable[..., Any]
    hold: Callable[..., Any]
    begin_single: Callable[..., Any]
    next_cycle: Callable[..., Any]
    priority_access: Callable[..., Any]
    maintain: Callable[..., Any]
    mark: Callable[..., Any]


INTERPRETED = Loop(
    stepper.advance, stepper.end_steps, stepper.start, stepper.admit, stepper.hold, stepper.begin_single,
    stepper.next_cycle, sharing.priority_access, cache.maintain, cache.mark,
)  # fmt: skip

UNIFORM = {"EventLoop.uniform": 1, "Cache.line": 0}
"""Fields of a machine with one DRAM channel and no L2."""


@made_once
def compiled(uniform: bool, analytic: bool, external: bool) -> Loop:
    """The loop in native code, for UNIFORM machines or all; made once per process, when a long plan asks for it. What
    only external units need is in none but theirs."""
    from npu_device.native.module import NativeModule

    names = [name for name in Loop._fields if not uniform or name not in ("maintain", "mark")]
    module = NativeModule(
        rates, sharing, arbiter, cache, fluid, transfers, stepper, root=EventLoop, only=names,
        known={
            "EventLoop.analytic": int(analytic), "EventLoop.external": int(external), **(UNIFORM if uniform else {})
        },
    )  # fmt: skip
    return INTERPRETED._replace(**{name: module.entry(name) for name in names})


class Objects:
    """Records as objects, stepped by Python."""

    native = False
    text = INTERPRETED

    def __init__(self, loop: EventLoop) -> None:
        self.loop: Any = loop
        self.root: Any = loop
        """What functions of the loop are given for it."""
        self.units: dict[int, Any] = {unit.code: unit for unit in loop.units}
        """Units by their codes in events."""
        self.unit_places: dict[int, Any] = self.units
        """The same, as functions of the loop are given them."""
        self.runs: Sequence[Any] = loop.runs
        self.run_places: Sequence[Any] = loop.runs
        self._plans: dict[int, list[Step]] = {}
        """Steps of the plans that run, by slot."""
        self._singles: dict[int, Step] = {}
        """The step of each slot's plans of one step."""

    def place_single(self, single: Made, slot: int) -> Step:
        """Keep a plan of one step: that step."""
        step = self._singles.get(slot)
        if step is None:
            step = self._singles[slot] = Step()
        step.piece = single.piece
        return step

    def place_plan(self, plan: Encoded, slot: int) -> Sequence[Step | None]:
        """Keep a plan of many steps: the first step of each class."""
        self._plans[slot], heads = plan.steps()
        return heads

    def release(self, slot: int) -> None:
        """The plan of a slot is over."""
        self._plans.pop(slot, None)

    def take_events(self) -> bytes:
        """Events since the last call."""
        events = self.loop.events
        if not events:
            return b""
        taken = array("Q", events).tobytes()
        events.clear()
        return taken

    def take_dropped(self) -> list[int]:
        """Tags of watched lines that no longer differ from DRAM since the last call."""
        taken, self.loop.l2.dropped[:] = self.loop.l2.dropped[:], []
        return taken

    def pack(self) -> tuple[list[int], dict[int, Span]]:
        """(the words of all records, those of each plan by slot)."""
        writer, spans = Writer(), {}
        writer.add(self.loop, {"dropped": len(self.loop.l2.tags), "events": MAX_EVENTS * EVENT_WORDS})
        for run in self.loop.active:
            base, steps = len(writer.words), self.steps(run.slot)
            for one in [*steps, *dict.fromkeys(step.piece for step in steps)]:
                writer.add(one)
            writer.link()
            spans[run.slot] = Span(base, len(writer.words), len(steps))
        writer.link()
        return writer.words, spans

    # -- for snapshots -----------------------------------------------------------------------------------------

    def active(self) -> Sequence[Any]:
        """Runs in flight, by acceptance number."""
        return list(self.loop.active)

    def steps(self, slot: int) -> list[Step]:
        """The steps of the plan of a run in flight."""
        plan = self._plans.get(slot)
        return [self._singles[slot]] if plan is None else plan

    def progress(self, slot: int) -> tuple[bytes, bytes]:
        """Of each step of a plan: 64-bit cycles from which its operands are free, and its result is there."""
        steps = self.steps(slot)
        return array("q", [step.released for step in steps]).tobytes(), array("q", [s.done for s in steps]).tobytes()

    def code_of(self, unit: Any) -> int:
        """The code of a unit that a record refers to."""
        code: int = unit.code
        return code

    def slot_of(self, run: Any) -> int:
        slot: int = run.slot
        return slot

    def step_index(self, slot: int, step: Any) -> int:
        """Which step of a plan a record refers to."""
        return next(index for index, one in enumerate(self.steps(slot)) if one is step)

    def tags(self) -> list[int]:
        """Of the L2."""
        return list(self.loop.l2.tags)


class Room(NamedTuple):
    """Words that a slot keeps for its plans of one step."""

    base: int
    size: int
    single: Made | None
    """The plan that was written there last."""


class Words:
    """Records as words of one array, stepped by compiled code: the state, events, then plans."""

    native = True

    def __init__(self, words: list[int], spans: dict[int, Span], uniform: bool, analytic: bool, external: bool) -> None:
        """`spans`: words of the plans that run, by slot. `uniform`, `analytic`, `external`: as in `EventLoop`."""
        self.text = compiled(uniform, analytic, external)
        self._span_of = spans
        self._spans = sorted((span.base, span.end) for span in spans.values())
        """These, and those of rooms."""
        self._rooms: dict[int, Room] = {}
        self._events_at = words[layout(EventLoop).fields["events"].offset]
        l2 = layout(EventLoop).fields["l2"].offset
        self._dropped_at = l2 + words[l2 + layout(Cache).fields["dropped"].offset]
        self._look_at(np.array(words, np.int64))

    def _look_at(self, words: NDArray[np.int64]) -> None:
        """Use an array. Views of it give single words to Python far faster than the array does."""
        self._array = words
        self._bytes = words.data.cast("B")
        self._words = self._bytes.cast("q")
        self.root: Any = words.ctypes.data
        self.loop: Any = view(EventLoop).from_buffer(words.data)
        fields = layout(EventLoop).fields
        first, size = fields["units"].offset + 1, layout(Unit).size
        self.units: dict[int, Any] = {unit.code: unit for unit in self.loop.units}
        self.unit_places: dict[int, Any] = {code: first + index * size for index, code in enumerate(self.units)}
        first, size = fields["runs"].offset + 1, layout(Run).size
        self.runs: Sequence[Any] = list(self.loop.runs)
        self.run_places: Sequence[Any] = [first + index * size for index in range(len(self.runs))]

    def place_single(self, single: Made, slot: int) -> int:
        room = self._rooms.get(slot)
        return room.base if room is not None and room.single is single else self._write(single, slot, room)

    def _write(self, single: Made, slot: int, room: Room | None) -> int:
        fields, piece = layout(Step)
        words = single.words()
        size = piece + len(words)
        if room is None or room.size < size:
            if room is not None:
                self._spans.remove((room.base, room.base + room.size))
            room = Room(self._place(size), size, None)
            self._words[room.base : room.base + piece] = memoryview(array("q", [0] * piece))
            self._words[room.base + fields["piece"].offset] = room.base + piece
        base = room.base
        self._words[base + piece : base + size] = memoryview(words)
        self._rooms[slot] = room._replace(single=single)
        return base

    def place_plan(self, plan: Encoded, slot: int) -> Sequence[int]:
        size = plan.size()
        base = self._place(size)
        self._span_of[slot] = Span(base, base + size, len(plan.plan))
        return plan.write(self._array[base : base + size], base)

    def release(self, slot: int) -> None:
        span = self._span_of.pop(slot, None)
        if span is not None:
            self._spans.remove((span.base, span.end))

    def take_events(self) -> "bytes | memoryview":
        """Events since the last call; they are overwritten by later ones."""
        at = self._events_at
        count = self._words[at]
        if not count:
            return b""
        self._words[at] = 0
        return self._bytes[8 * (at + 1) : 8 * (at + 1 + count)]

    def take_dropped(self) -> list[int]:
        at = self._dropped_at
        taken = self._words[at + 1 : at + 1 + self._words[at]].tolist()
        self._words[at] = 0
        return taken

    # -- for snapshots -----------------------------------------------------------------------------------------

    def active(self) -> Sequence[Any]:
        """Runs in flight, by acceptance number."""
        return [self.runs[self.slot_of(run)] for run in self.loop.active]

    def progress(self, slot: int) -> tuple[bytes, bytes]:
        """Of each step of a plan: 64-bit cycles from which its operands are free, and its result is there."""
        fields, size = layout(Step)
        base, count = self._steps(slot)
        steps = self._array[base : base + count * size].reshape(count, size)
        return steps[:, fields["released"].offset].tobytes(), steps[:, fields["done"].offset].tobytes()

    def _steps(self, slot: int) -> tuple[int, int]:
        """(first word, how many) of the steps of a plan."""
        span = self._span_of.get(slot)
        return (self._rooms[slot].base, 1) if span is None else (span.base, span.steps)

    def code_of(self, unit: int) -> int:
        """The code of a unit that a record refers to."""
        return next(code for code, place in self.unit_places.items() if place == unit)

    def slot_of(self, run: int) -> int:
        return int(run - self.run_places[0]) // layout(Run).size

    def step_index(self, slot: int, step: int) -> int:
        """Which step of a plan a record refers to."""
        return (step - self._steps(slot)[0]) // layout(Step).size

    def tags(self) -> list[int]:
        """Of the L2."""
        l2 = layout(EventLoop).fields["l2"].offset
        at = l2 + self._words[l2 + layout(Cache).fields["tags"].offset]
        return self._words[at + 1 : at + 1 + self._words[at]].tolist()

    def _place(self, size: int) -> int:
        """Take words for a plan: the first gap that is large enough."""
        base = self._events_at + EVENT_SPACE
        for low, high in self._spans:
            if base + size <= low:
                break
            base = high
        insort(self._spans, (base, base + size))
        missing = base + size - len(self._array)
        if missing > 0:
            self._look_at(np.concatenate([self._array, np.zeros(max(missing, len(self._array)), np.int64)]))
        return base
