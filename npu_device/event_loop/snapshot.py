"""Serialisation of the event loop's state as plain data.

Loading plans the commands again, so a state has only the completion cycles of each step. The next steps, the holders of
units and the count of dirty lines are derived. So a state is the same whether the loop is interpreted or compiled, and
it has no references that could dangle.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from npu_device.cost.piece_record import PieceRecord
from npu_device.cost.plan import Piece, Plan
from npu_device.event_loop.encoding import Pieces, encode
from npu_device.event_loop.storage import Storage
from npu_device.event_loop.timed_dram import load_timed, timed_state
from npu_device.units.cache import DIRTY, FLAGS, STALE, WATCHED
from npu_device.units.state import (
    CLASSES,
    DMA,
    DRAINING,
    LATENCY,
    MAX_LANES,
    NOT_YET,
    READ,
    TE,
    TENSOR,
    VE,
    VECTOR,
    WRITE,
    Step,
)
from pyv_native.records import layout
from pyv_native.state import LATEST, Fields, StateError, inside, row, sequence

_RELEASED, _DONE, _ISSUED, _PIECE = (layout(Step).fields[name].word for name in ("released", "done", "issued", "piece"))
"""Words of a step."""
_KIND_OF = {READ: DMA, WRITE: DMA, TENSOR: TE, VECTOR: VE}
"""Step class -> unit kind that executes it."""
_CYCLE = (0, LATEST)
_ON_UNIT = ("start", "ready", "end", "length", "phase", "left", "rate", "earliest_end", "undisturbed_end",
            "conflict_bank", "conflict", "stalled", "result", "delay", "bare_end", "exposed")  # fmt: skip
"""Fields of a unit for the step in progress."""
_OF_CHANNEL = ("tokens", "tokens_at", "paused_until", "moved")
_OF_LOOP = ("time", "wake", "rates_due", "rates_since")


class CommandPlan(NamedTuple):
    """Plan of a command in flight, or the single step of a tile command and its DRAM address."""

    ticket: int
    cluster: int
    plan: Plan | None
    single: tuple[Piece, int] | None


PlanOf = Callable[[int, tuple[int, ...]], CommandPlan]
"""`f(number, units)`: plan of the command with an acceptance number on units with these codes. Raises StateError."""


def state_of(storage: Storage) -> dict[str, Any]:
    """Return the state of a snapshot. All events are emitted, and all completed runs are handled."""
    loop = storage.loop
    runs = []
    for run in loop.active:
        steps = storage.columns(run.slot)
        runs.append(
            {"slot": run.slot, "number": run.number, "units": [unit.code for unit in run.units], "finish": run.finish,
             "released": steps[:, _RELEASED].tobytes(), "done": steps[:, _DONE].tobytes(),
             "issued": steps[:, _ISSUED].tobytes()}
        )  # fmt: skip
    units = []
    for unit in storage.units.values():
        step: dict[str, Any] | None = None
        if unit.busy:
            step = {name: getattr(unit, name) for name in _ON_UNIT}
            step |= {
                "slot": unit.run.slot,
                "step": storage.step_index(unit.step),
                "share": list(unit.share)[: len(loop.links)],
            }
        units.append({"last_end": unit.last_end, "busy": step})
    return {name: getattr(loop, name) for name in _OF_LOOP} | {
        "runs": runs,
        "units": units,
        "banks": [[bank.busy, *bank.port_free] for bank in loop.banks],
        "channels": [
            [[getattr(channel, name) for name in _OF_CHANNEL], list(channel.open_rows)] for channel in loop.channels
        ],
        "tags": list(loop.l2.tags),
        "dram": timed_state(storage) if loop.timed else None,
    }


def load(storage: Storage, state: Fields, pieces: Pieces, plan_of: PlanOf) -> None:
    """Restore a state into a loop after power-up. Raise StateError."""
    for name in _OF_LOOP:
        setattr(storage.loop, name, state.integer(name, *_CYCLE))
    slots = []
    for index, item in enumerate(state.sequence("runs")):
        with inside("runs", index):
            slots.append(
                _load_run(
                    storage,
                    Fields(item, "slot", "number", "units", "finish", "released", "done", "issued"),
                    pieces,
                    plan_of,
                )
            )
    loop = storage.loop  # placing plans may have moved the buffer
    active = sorted((storage.runs[slot] for slot in slots), key=lambda run: run.number)
    loop.active.fill(active)
    for index, (unit, item) in enumerate(zip(loop.units, state.sequence("units", len(loop.units)), strict=True)):
        with inside("units", index):
            fields = Fields(item, "last_end", "busy")
            unit.last_end = fields.integer("last_end", NOT_YET, LATEST)
            if fields["busy"] is not None:
                with inside("busy"):
                    _load_step(storage, unit, Fields(fields["busy"], *_ON_UNIT, "slot", "step", "share"))
    for index, run in enumerate(active):
        with inside("runs", index):
            _find_heads(storage, run)
    for index, (bank, item) in enumerate(zip(loop.banks, state.sequence("banks", len(loop.banks)), strict=True)):
        with inside("banks", index):
            bank.busy, *ports = row(item, _CYCLE, _CYCLE, _CYCLE)
            bank.port_free.fill(ports)
    for index, (channel, item) in enumerate(
        zip(loop.channels, state.sequence("channels", len(loop.channels)), strict=True)
    ):
        with inside("channels", index):
            numbers, rows = sequence(item, 2)
            for name, value in zip(_OF_CHANNEL, row(numbers, *[_CYCLE] * len(_OF_CHANNEL)), strict=True):
                setattr(channel, name, value)
            channel.open_rows.fill(row(rows, *[(-1, LATEST)] * len(channel.open_rows)))
    if loop.timed:
        with inside("dram"):
            load_timed(storage, state["dram"])
    elif state["dram"] is not None:
        raise StateError("this DRAM is not timed", "dram")
    _load_tags(loop.l2, state.integers("tags", 0, LATEST, len(loop.l2.tags)))


def _load_run(storage: Storage, fields: Fields, pieces: Pieces, plan_of: PlanOf) -> int:
    """Restore a run in flight. Return its slot. Raise StateError."""
    slot = fields.integer("slot", 0, len(storage.runs) - 1)
    if storage.runs[slot].number:
        raise StateError("has a run already", "slot")
    number = fields.integer("number", 1, LATEST)
    codes = tuple(fields.integers("units", 0, LATEST))
    if len(codes) > MAX_LANES or len(set(codes)) < len(codes) or not set(codes) <= storage.units.keys():
        raise StateError("are no units of a run", "units")
    ticket, cluster, plan, single = plan_of(number, codes)
    if single is not None:
        work, dram = single
        piece = storage.place_piece(pieces.single(work, dram))
        step = storage.runs[slot].single
        step.piece, step.dram = storage.arena.view(PieceRecord, piece), dram
    elif plan is not None:
        storage.place_plan(encode(plan, pieces), slot)
    run = storage.runs[slot]
    run.number, run.ticket, run.cluster = number, ticket, cluster
    units = [storage.units[code] for code in codes]
    run.units.fill(units)
    steps = storage.columns(slot)
    for name, column in (("released", _RELEASED), ("done", _DONE), ("issued", _ISSUED)):
        values = np.frombuffer(fields.data(name, 8 * len(steps)), np.int64)
        if ((values < NOT_YET) | (values > LATEST)).any():
            raise StateError(f"a cycle is not within {NOT_YET}..{LATEST}", name)
        steps[:, column] = values
    if ((steps[:, _RELEASED] == NOT_YET) != (steps[:, _DONE] == NOT_YET)).any():
        raise StateError("a step has released its operands and is not over", "released")
    run.remaining = int((steps[:, _DONE] == NOT_YET).sum())
    run.finish = fields.integer("finish", *_CYCLE)
    if run.remaining:
        for unit in units:
            shared = unit.kind == DMA and storage.loop.outstanding > 1
            if unit.holder is not None or unit.assigned >= storage.loop.outstanding:
                raise StateError("a unit belongs to two runs", "units")
            if shared:
                unit.assigned += 1
            else:
                unit.holder = run
    else:
        storage.loop.finishing += 1
    return slot


def _load_step(storage: Storage, unit: Any, fields: Fields) -> None:
    """Restore the step in progress on a unit. Raise StateError."""
    loop = storage.loop
    run = storage.runs[fields.integer("slot", 0, len(storage.runs) - 1)]
    base, count = storage.span(run.slot) if run.number else (0, 0)
    step = storage.arena.view(Step, base + fields.integer("step", 0, count - 1) * layout(Step).size)
    kind = _KIND_OF[step.piece.step_class]
    lanes = [lane for lane in run.units if lane.kind == kind]
    foreign = unit.cluster != run.cluster or (unit.holder is not None and unit.holder is not run)
    if step.done != NOT_YET or unit.kind != kind or (lanes and unit not in lanes) or foreign:
        raise StateError("does not run on this unit", "step")
    if any(other.busy and other.step is step for other in loop.units):
        raise StateError("runs on two units", "step")
    unit.busy, unit.run, unit.step = 1, run, step
    for name in _ON_UNIT:
        # An end that an external engine has not reported is LATEST plus the stall cycles of its banks.
        bound = 2 * LATEST - 1 if name == "end" and unit.external else LATEST
        setattr(unit, name, fields.integer(name, -1 if name in ("length", "rate") else 0, bound))
    if not (LATENCY <= unit.phase <= DRAINING if unit.kind == DMA else unit.phase == 0):
        raise StateError(f"{unit.phase} is no phase of this unit", "phase")
    share = fields.integers("share", 0, LATEST, len(loop.links))
    unit.share.fill([*share, *[0] * (len(unit.share) - len(share))])


def _find_heads(storage: Storage, run: Any) -> None:
    """Set the first step of each class that has not begun. Raise StateError if a later step has begun."""
    if not run.remaining:
        return
    steps = storage.columns(run.slot)
    base, count = storage.span(run.slot)
    begun = steps[:, _DONE] != NOT_YET
    for unit in storage.loop.units:
        if unit.busy and base <= unit.step.offset < base + count * layout(Step).size:
            begun[(unit.step.offset - base) // layout(Step).size] = True
    pieces, index = np.unique(steps[:, _PIECE], return_inverse=True)
    classes = np.array([storage.arena.view(PieceRecord, piece).step_class for piece in pieces.tolist()])[index]
    heads = []
    for step_class in range(CLASSES):
        members = np.flatnonzero(classes == step_class)
        pending = members[~begun[members]]
        if len(pending) and begun[members[members > pending[0]]].any():
            raise StateError("a step has begun before the one in front of it", "done")
        heads.append(base + int(pending[0]) * layout(Step).size if len(pending) else 0)
    run.heads.fill_offsets(heads)


def _load_tags(l2: Any, tags: list[int]) -> None:
    lines = set()
    for index, tag in enumerate(tags):
        line = tag >> FLAGS
        flags = tag & ((1 << FLAGS) - 1)
        if tag and (
            not line or line in lines or line % l2.sets != index // l2.ways or flags & ~(DIRTY | WATCHED | STALE)
        ):
            raise StateError(f"{tag:#x} is no line of this set", "tags", index)
        lines.add(line)
    l2.tags.fill(tags)
    l2.valid = sum(tag != 0 for tag in tags)
    l2.dirty = sum(tag & DIRTY for tag in tags)
