"""Buffer with the records of one event loop: the state, its events, and then the running plans."""

from collections.abc import Callable, Collection, Sequence
from functools import cache as memoized
from typing import Any, NamedTuple

import numpy as np

from npu_device.cost.plan import Column
from npu_device.decode.tile_state import CAPACITIES
from npu_device.event_loop import dispatch
from npu_device.event_loop.encoding import Encoded, PieceImage
from npu_device.front_end import acceptance, deadlines, fetch, interrupts, registers, submissions
from npu_device.reservation import buffer
from npu_device.reservation.buffer import Calls
from npu_device.reservation.state import ISSUE_CAPACITIES
from npu_device.trace.stream import EventStream
from npu_device.units import cache, sharing, stepper
from npu_device.units.state import EventLoop, FrontEnd, Step
from pyv_native.arena import ROOT, Arena
from pyv_native.emitter import Definition
from pyv_native.module import NativeModule, interpreted
from pyv_native.records import WORD, layout

UNIFORM = {"EventLoop.uniform": 1, "Cache.line": 0}
"""Fields that are constant in machines with one DRAM channel and no L2."""
STEP_WORDS = layout(Step).size // WORD


FUNCTIONS: tuple[Definition, ...] = (
    dispatch.run_events, dispatch.submit_list, dispatch.advance_device,
    submissions.submit, submissions.submit_descriptor,
    submissions.query_ticket, registers.register_value, registers.read_register, registers.write_register,
    submissions.doorbell, interrupts.mask_irq, submissions.ticket_since, acceptance.admit, acceptance.accept_command,
    acceptance.accept_tile, fetch.cancel_entry, acceptance.fail_ticket, acceptance.apply_effects,
    deadlines.request_event, deadlines.schedule_step,
    fetch.request_fetch, interrupts.acknowledge_irq, interrupts.clear_irq, fetch.append_submission,
    fetch.restore_pipeline, dispatch.step_commands, dispatch.begin, stepper.start, stepper.admit, stepper.hold,
    stepper.next_cycle, stepper.find_units, sharing.priority_access, cache.maintain, cache.mark, *buffer.FUNCTIONS,
)  # fmt: skip


@memoized
def interpreted_calls() -> Calls:
    """Return the event loop's functions run by CPython, for lock-step and debugging."""
    return {function: interpreted(function, EventLoop) for function in FUNCTIONS}


@memoized
def compiled_module(
    uniform: bool, analytic: bool, external: bool, timed: bool, checked: bool = False
) -> NativeModule:  # fmt: skip
    """Return the compiled event loop for UNIFORM machines or all. Code for external units and for a timed DRAM is
    included only on request."""
    constants = {
        "EventLoop.analytic": int(analytic), "EventLoop.external": int(external), "EventLoop.timed": int(timed),
    }  # fmt: skip
    constants |= UNIFORM if uniform else {}
    return NativeModule(FUNCTIONS, EventLoop, linkage=buffer.LINKAGE, constants=constants, checked=checked)


@memoized
def compiled_calls(module: NativeModule) -> Calls:
    """Return the Python entry points of a compiled event loop."""
    return {function: module.entry(function) for function in FUNCTIONS}


RECORDS = {
    **{f"issue.{name}": capacity for name, capacity in ISSUE_CAPACITIES.items()},
    **{f"tile.{name}": capacity for name, capacity in CAPACITIES.items()},
}
"""Capacities of the lists that are the same in all machines."""


class PlanSpan(NamedTuple):
    """Steps of a plan in the buffer."""

    base: int
    """Offset of the first step."""
    steps: int


MIN_PIECES = 256
"""Number of placed pieces of tile commands above which unused pieces are dropped."""


class Storage:
    """Buffer of one event loop. Placing a plan invalidates the views of it."""

    def __init__(self, events: EventStream, records: bytes) -> None:
        """`events`: event stream whose records are in this buffer. `records`: the content after power-up."""
        self._stream, self._power_up = events, records
        self.arena = Arena(EventLoop, records=records)
        self._spans: dict[int, PlanSpan] = {}
        """Steps of plans, by slot; the step of a tile command is in its run."""
        self._max_pieces = MIN_PIECES
        self.on_bind: Callable[[], None] = lambda: None
        """Callback after the buffer has moved or was powered up."""
        self._pieces: dict[int, tuple[PieceImage, int]] = {}
        """Pieces of tile commands and their offsets, by identity."""
        self.bind()

    def power_up(self) -> None:
        """Restore the content after power-up, and free all allocations. Detach the event stream before."""
        self._stream.detach()
        self.arena.bytes[ROOT : ROOT + len(self._power_up)] = self._power_up
        self.arena.free_all()
        self._spans.clear()
        self._pieces.clear()
        self._max_pieces = MIN_PIECES
        self._attach()

    def bind(self) -> None:
        """Renew the views of a buffer that has moved."""
        self.loop: Any = self.arena.root
        self.units: dict[int, Any] = {unit.code: unit for unit in self.loop.units}
        """Units by their codes in events."""
        self.runs: Sequence[Any] = list(self.loop.runs)
        front, fields = self.loop.front.offset, layout(FrontEnd).fields
        words = {name: front // WORD + field.word for name, field in fields.items() if field.offset % WORD == 0}
        self.deadline, self.cycle, self.response = words["next_deadline"], words["cycle"], words["response"]
        self.entry, self.outcome, self.answer = words["entry"], words["outcome"], words["answer"]
        self.sampled, self.copied, self.inspected = words["sampled"], words["copied"], words["inspected"]
        """Words of these fields of the front end."""
        self.level = front + fields["irq_level"].offset
        """Offset of this field in bytes."""
        self._active = self.loop.active.offset // WORD
        self._dropped = self.loop.l2.dropped
        self._attach()

    def _attach(self) -> None:
        """Attach the event stream to the buffer."""
        events = self.loop.issue.events
        self._stream.attach(events.reserved(), self.arena.words, events.offset // WORD)
        self.on_bind()

    def allocate(self, size: int) -> int:
        buffer = self.arena.buffer
        offset = self.arena.allocate(size)
        if self.arena.buffer is not buffer:
            self.bind()
        return offset

    def words(self, offset: int, count: int) -> Column:
        """Return words of the buffer from an offset on, as a writable array."""
        return np.frombuffer(self.arena.buffer, np.int64, count, offset)

    # -- plans ---------------------------------------------------------------------------------------------------------

    def place_piece(self, image: PieceImage) -> int:
        """Place the piece of a tile command until `drop_pieces`. Return its offset."""
        entry = self._pieces.get(id(image))
        if entry is None:
            offset = self.allocate(len(image.image))
            self.arena.bytes[offset : offset + len(image.image)] = image.image
            entry = self._pieces[id(image)] = image, offset
        return entry[1]

    @property
    def crowded(self) -> bool:
        """Whether unused pieces should be dropped."""
        return len(self._pieces) > self._max_pieces

    def drop_pieces(self, offsets: Collection[int]) -> None:
        """Drop the pieces of tile commands except those at `offsets`."""
        for key, (_, offset) in tuple(self._pieces.items()):
            if offset not in offsets:
                self.arena.free(offset)
                del self._pieces[key]
        self._max_pieces = max(MIN_PIECES, 2 * len(self._pieces))

    def place_plan(self, plan: Encoded, slot: int) -> Sequence[int]:
        """Place a plan of many steps. Return the offset of the first step of each class, or 0."""
        size = plan.size()
        base = self.allocate(size * WORD) if size else 0
        self._spans[slot] = PlanSpan(base, len(plan.plan))
        return plan.write(self.words(base, size), base)

    def release(self, slot: int) -> None:
        """Free the bytes of a slot's plan."""
        span = self._spans.pop(slot, None)
        if span is not None and span.steps:
            self.arena.free(span.base)

    def span(self, slot: int) -> PlanSpan:
        """Return the steps of the plan of a slot."""
        span = self._spans.get(slot)
        return PlanSpan(self.runs[slot].single.offset, 1) if span is None else span

    def columns(self, slot: int) -> Column:
        """Return the steps of a slot's plan as a writable array, shape (steps, words of a step)."""
        base, count = self.span(slot)
        return self.words(base, count * STEP_WORDS).reshape(count, STEP_WORDS)

    def step_index(self, step: Any) -> int:
        """Return the index of a step in its plan."""
        for base, count in self._spans.values():
            if base <= step.offset < base + count * layout(Step).size:
                return int(step.offset - base) // layout(Step).size
        return 0  # the step of a tile command

    # -- state ---------------------------------------------------------------------------------------------------------

    @property
    def active(self) -> int:
        """Number of runs in flight."""
        count: int = self.arena.words[self._active]
        return count

    def pop_dropped(self) -> list[int]:
        """Return and clear the tags of watched lines that ceased to differ from DRAM since the last call."""
        tags = list(self._dropped)
        self._dropped.clear()
        return tags
