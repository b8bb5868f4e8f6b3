"""Plans as records of the event loop: objects for Python, words for compiled code."""

from array import array
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from npu_device.cost.durations import REMEMBERED, Cost, Timing
from npu_device.cost.plan import NONE, Column, Plan, Transfer
from npu_device.cost.plan import Piece as Work
from npu_device.event_loop.state import (
    CLASSES,
    READ,
    TENSOR,
    VECTOR,
    WRITE,
    BankAccess,
    OwnStall,
    Piece,
    Step,
)
from npu_device.native.records import Writer, layout
from npu_device.trace.events import Kind


def step_class(cost: Cost) -> int:
    """Class of the steps of a piece."""
    if cost.kind is Kind.DMA:
        return WRITE if cost.write else READ
    return TENSOR if cost.kind is Kind.TE else VECTOR


def make_piece(cost: Cost, per_byte: int) -> Piece:
    """What the event loop knows of work with these costs."""
    mask = 0
    for demand in cost.demands:
        mask |= 1 << demand.bank % 32
    row_count, row_bytes, row_stride = cost.rows or (0, 0, 0)
    return Piece(
        step_class(cost), cost.cycles, cost.drain, cost.cold, cost.payload, cost.aligned, cost.aligned * per_byte,
        cost.aux, mask, row_count, row_bytes, row_stride,
        [BankAccess(demand.bank, demand.port, demand.cycles) for demand in cost.demands],
        [OwnStall(bank, int(cause), cycles) for bank, cause, cycles in cost.stalls],
        list(cost.channels),
        cost.conversion.busy, cost.conversion.lead, int(cost.conversion.serial), cost.conversion.tail, cost.bare,
    )  # fmt: skip


class Single:
    """The piece of a plan of one step."""

    def __init__(self, piece: Piece) -> None:
        self.piece = piece
        self._words: array[int] | None = None

    def words(self) -> "array[int]":
        """Its words, wherever they stand."""
        if self._words is None:
            writer = Writer()
            writer.add(self.piece)
            self._words = array("q", writer.words)
        return self._words


class Singles:
    """Plans of one step: tile commands. Those that differ in their addresses only are one."""

    def __init__(self, timing: Timing) -> None:
        self._timing = timing
        self._made: dict[Work, Single] = {}

    def __call__(self, work: Work, dram: int) -> Single:
        """The piece of work that moves to or from a DRAM address."""
        work = self._timing.located(work, dram)
        made = self._made.get(work)
        if made is None:
            if len(self._made) >= REMEMBERED:
                self._made.clear()
            cost = self._timing.first(self._timing.cost(work))
            made = self._made[work] = Single(make_piece(cost, self._timing.rates.per_byte))
        return made


class Encoded(NamedTuple):
    """A plan of many steps."""

    plan: Plan
    pieces: list[Piece]
    piece: Column
    """Of each step, an index into `pieces`."""

    def steps(self) -> tuple[list[Step], list[Step | None]]:
        """(the steps as objects, the first of each class)."""
        plan = self.plan
        columns = zip(self.piece.tolist(), plan.tile.tolist(), plan.dram.tolist(), plan.lane.tolist(), strict=True)
        steps = [Step(self.pieces[piece], tile, dram, lane=lane) for piece, tile, dram, lane in columns]
        heads: list[Step | None] = [None] * CLASSES
        for step, after in zip(reversed(steps), reversed(plan.after.tolist()), strict=True):
            step.after = [steps[index] for index in after if index != NONE]
            step.next = heads[step.piece.step_class]
            heads[step.piece.step_class] = step
        return steps, heads

    def words(self, place: Callable[[int], int]) -> tuple[int, Column, list[int]]:
        """(the first word, the words of steps and pieces, the first step of each class or 0).

        `place`: gives the first of so many words.
        """
        fields, size = layout(Step)
        count = len(self.plan)
        writer = Writer()
        offsets = np.array([writer.add(piece) for piece in self.pieces], np.int64)
        base = place(count * size + len(writer.words))
        words = np.zeros((count, size), np.int64)
        words[:, fields["piece"].offset] = base + count * size + offsets[self.piece]
        words[:, fields["tile"].offset] = self.plan.tile
        words[:, fields["dram"].offset] = self.plan.dram
        words[:, fields["lane"].offset] = self.plan.lane
        words[:, [fields["released"].offset, fields["done"].offset]] = NONE
        after, given = fields["after"].offset, self.plan.after != NONE
        words[:, after] = given.sum(axis=1)
        words[:, after + 1 : after + 1 + given.shape[1]] = np.where(given, base + self.plan.after * size, 0)
        classes = np.array([piece.step_class for piece in self.pieces], np.int64)[self.piece]
        heads = []
        for one in range(CLASSES):
            members = np.flatnonzero(classes == one)
            heads.append(base + int(members[0]) * size if len(members) else 0)
            words[members[:-1], fields["next"].offset] = base + members[1:] * size
        return base, np.concatenate([words.reshape(-1), np.array(writer.words, np.int64)]), heads


def encode(plan: Plan, timing: Timing) -> Encoded:
    """A plan of many steps, with what its steps take."""
    works, index = locate(plan, timing)
    costs = [timing.cost(work) for work in works]
    tensor = np.flatnonzero(np.array([cost.kind is Kind.TE for cost in costs], bool)[index])
    if len(tensor):
        first = timing.first(costs[index[tensor[0]]])
        if first is not costs[index[tensor[0]]]:
            costs.append(first)
            index = index.copy()
            index[tensor[0]] = len(costs) - 1
    return Encoded(plan, [make_piece(cost, timing.rates.per_byte) for cost in costs], index)


def locate(plan: Plan, timing: Timing) -> tuple[list[Work], Column]:
    """(pieces, which of them each step is), where a transfer's piece says how its bytes lie on the DRAM's channels."""
    if timing.turn == 1 or not len(plan):
        return list(plan.pieces), plan.piece
    moves = np.array([isinstance(piece, Transfer) for piece in plan.pieces])[plan.piece]
    keys = plan.piece * timing.turn + np.where(moves, plan.dram % timing.turn, 0)
    distinct, index = np.unique(keys, return_inverse=True)
    pieces = [timing.located(plan.pieces[key // timing.turn], key % timing.turn) for key in distinct.tolist()]
    return pieces, index.astype(np.int64)
