"""The state of the event loop as plain data, and back.

Plans are made again from their commands: of a step, only the cycles of its end are kept. Which steps are next, who has
a unit to itself and how many lines are dirty follows. So a state is the same whether the loop is interpreted or
compiled, and nothing in it can refer to what does not exist.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from npu_device.cost.plan import Piece as Work
from npu_device.cost.plan import Plan
from npu_device.event_loop.cache import DIRTY, FLAGS, STALE, WATCHED
from npu_device.event_loop.encoding import Pieces, encode
from npu_device.event_loop.state import (
    DMA,
    DRAINING,
    LATENCY,
    MAX_LANES,
    MAX_RUNS,
    NOT_YET,
    READ,
    TE,
    TENSOR,
    VE,
    VECTOR,
    WRITE,
    EventLoop,
    Run,
    Step,
    Unit,
)  # fmt: skip
from npu_device.event_loop.storage import Objects, Words
from pyv_state import LATEST, Fields, StateError, inside, listed, row

_KIND_OF = {READ: DMA, WRITE: DMA, TENSOR: TE, VECTOR: VE}
"""Kind of unit that executes the steps of a class."""
_CYCLE = (0, LATEST)
_ON_UNIT = ("start", "end", "length", "phase", "left", "rate", "earliest_end", "undisturbed_end",
            "conflict_bank", "conflict", "stalled", "result", "delay", "bare_end", "exposed")  # fmt: skip
"""Fields of a unit that belong to the step on it."""
_OF_CHANNEL = ("tokens", "tokens_at", "paused_until", "moved")
_OF_LOOP = ("time", "wake", "rates_due", "rates_since")


class CommandPlan(NamedTuple):
    """What a command in flight brings along: a plan, or the one step of a tile command and its DRAM address."""

    ticket: int
    cluster: int
    plan: Plan | None
    single: tuple[Work, int] | None


PlanOf = Callable[[int, tuple[int, ...]], CommandPlan]
"""`f(number, units)`: of the command with this acceptance number, on units with these codes. StateError: of none."""


def state_of(storage: Objects | Words) -> dict[str, Any]:
    """What a snapshot keeps. All events have been emitted, and no run has just completed."""
    loop = storage.loop
    runs = []
    for run in storage.active():
        released, done = storage.progress(run.slot)
        codes = [storage.code_of(unit) for unit in run.units]
        runs.append(
            {"slot": run.slot, "number": run.number, "units": codes, "finish": run.finish, "released": released,
             "done": done}
        )  # fmt: skip
    units = []
    for unit in storage.units.values():
        step: dict[str, Any] | None = None
        if unit.busy:
            slot = storage.slot_of(unit.run)
            step = {name: getattr(unit, name) for name in _ON_UNIT}
            step |= {"slot": slot, "step": storage.step_index(slot, unit.step), "share": list(unit.share)}
        units.append({"last_end": unit.last_end, "busy": step})
    return {name: getattr(loop, name) for name in _OF_LOOP} | {
        "runs": runs,
        "units": units,
        "banks": [[bank.busy, *bank.port_free] for bank in loop.banks],
        "channels": [
            [[getattr(channel, name) for name in _OF_CHANNEL], list(channel.open_rows)] for channel in loop.channels
        ],
        "tags": storage.tags(),
    }


def load(loop: EventLoop, state: Fields, pieces: Pieces, plan_of: PlanOf) -> Objects:
    """Bring a loop on which nothing has run into a state."""
    storage = Objects(loop)
    for name in _OF_LOOP:
        setattr(loop, name, state.integer(name, *_CYCLE))
    for index, item in enumerate(state.listed("runs")):
        with inside("runs", index):
            _load_run(storage, Fields(item, "slot", "number", "units", "finish", "released", "done"), pieces,
                      plan_of)  # fmt: skip
    loop.active.sort(key=lambda run: run.number)
    for index, (unit, item) in enumerate(zip(loop.units, state.listed("units", len(loop.units)), strict=True)):
        with inside("units", index):
            fields = Fields(item, "last_end", "busy")
            unit.last_end = fields.integer("last_end", NOT_YET, LATEST)
            if fields["busy"] is not None:
                with inside("busy"):
                    _load_step(storage, unit, Fields(fields["busy"], *_ON_UNIT, "slot", "step", "share"))
    for index, run in enumerate(loop.active):
        with inside("runs", index):
            _find_heads(loop, run, storage.steps(run.slot))
    for index, (bank, item) in enumerate(zip(loop.banks, state.listed("banks", len(loop.banks)), strict=True)):
        with inside("banks", index):
            bank.busy, *bank.port_free = row(item, _CYCLE, _CYCLE, _CYCLE)
    for index, (channel, item) in enumerate(
        zip(loop.channels, state.listed("channels", len(loop.channels)), strict=True)
    ):
        with inside("channels", index):
            numbers, rows = listed(item, 2)
            for name, value in zip(_OF_CHANNEL, row(numbers, *[_CYCLE] * len(_OF_CHANNEL)), strict=True):
                setattr(channel, name, value)
            channel.open_rows = list(row(rows, *[(-1, LATEST)] * len(channel.open_rows)))
    _load_tags(loop, state.integers("tags", 0, LATEST, len(loop.l2.tags)))
    return storage


def _load_run(storage: Objects, fields: Fields, pieces: Pieces, plan_of: PlanOf) -> None:
    loop = storage.loop
    run = loop.runs[fields.integer("slot", 0, MAX_RUNS - 1)]
    if run.number:
        raise StateError("has a run already", "slot")
    run.number = fields.integer("number", 1, LATEST)
    codes = tuple(fields.integers("units", 0, LATEST))
    if len(codes) > MAX_LANES or len(set(codes)) < len(codes) or not set(codes) <= storage.units.keys():
        raise StateError("are no units of a run", "units")
    run.ticket, run.cluster, plan, single = plan_of(run.number, codes)
    run.units = [storage.units[code] for code in codes]
    if single is not None:
        work, dram = single
        storage.place_single(pieces.single(work, dram), run.slot).dram = dram
    elif plan is not None:
        storage.place_plan(encode(plan, pieces), run.slot)
    steps = storage.steps(run.slot)
    columns = []
    for name in ("released", "done"):
        column = np.frombuffer(fields.data(name, 8 * len(steps)), np.int64)
        if ((column < NOT_YET) | (column > LATEST)).any():
            raise StateError(f"a cycle is not within {NOT_YET}..{LATEST}", name)
        columns.append(column.tolist())
    for step, released, done in zip(steps, *columns, strict=True):
        if (released == NOT_YET) != (done == NOT_YET):
            raise StateError("a step has released its operands and is not over", "released")
        step.released, step.done = released, done
    run.left = sum(step.done == NOT_YET for step in steps)
    run.finish = fields.integer("finish", *_CYCLE)
    if run.left:
        for unit in run.units:
            if unit.holder is not None:
                raise StateError("a unit belongs to two runs", "units")
            unit.holder = run
    else:
        loop.finishing += 1
    loop.active.append(run)


def _load_step(storage: Objects, unit: Unit, fields: Fields) -> None:
    """The step that is in progress on a unit."""
    loop = storage.loop
    run = loop.runs[fields.integer("slot", 0, MAX_RUNS - 1)]
    steps = storage.steps(run.slot) if run.number else []
    step = steps[fields.integer("step", 0, len(steps) - 1)]
    kind = _KIND_OF[step.piece.step_class]
    own = [one for one in run.units if one.kind == kind]
    foreign = unit.holder is not None and unit.holder is not run
    if step.done != NOT_YET or unit.kind != kind or unit.cluster != run.cluster or (own and unit not in own) or foreign:
        raise StateError("does not run on this unit", "step")
    if any(other.busy and other.step is step for other in loop.units):
        raise StateError("runs on two units", "step")
    unit.busy, unit.run, unit.step = 1, run, step
    for name in _ON_UNIT:
        # The end that an engine outside has not told is LATEST, and more by what its banks have cost.
        latest = 2 * LATEST - 1 if name == "end" and unit.external else LATEST
        setattr(unit, name, fields.integer(name, -1 if name == "length" else 0, latest))
    if not (LATENCY <= unit.phase <= DRAINING if unit.kind == DMA else unit.phase == 0):
        raise StateError(f"{unit.phase} is no phase of this unit", "phase")
    unit.share = fields.integers("share", 0, LATEST, len(unit.share))


def _find_heads(loop: EventLoop, run: Run, steps: list[Step]) -> None:
    """The first step of each class that has not begun: all before it have, none after it."""
    running = {id(unit.step) for unit in loop.units if unit.busy}
    for step in steps:
        begun = step.done != NOT_YET or id(step) in running
        head = run.heads[step.piece.step_class]
        if head is None and not begun:
            run.heads[step.piece.step_class] = step
        elif head is not None and begun:
            raise StateError("a step has begun before the one in front of it", "done")


def _load_tags(loop: EventLoop, tags: list[int]) -> None:
    l2 = loop.l2
    seen = set()
    for index, tag in enumerate(tags):
        line = tag >> FLAGS
        flags = tag & ((1 << FLAGS) - 1)
        if tag and (
            not line or line in seen or line % l2.sets != index // l2.ways or flags & ~(DIRTY | WATCHED | STALE)
        ):
            raise StateError(f"{tag:#x} is no line of this set", "tags", index)
        seen.add(line)
    l2.tags = tags
    l2.valid = sum(tag != 0 for tag in tags)
    l2.dirty = sum(tag & DIRTY for tag in tags)
