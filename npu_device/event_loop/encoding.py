"""Plans as records of the event loop: objects for Python, words for compiled code."""

from array import array
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

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


class Made:
    """A piece, and its words."""

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


class Pieces:
    """Pieces of the plans of one configuration."""

    def __init__(self, timing: Timing) -> None:
        self.timing = timing
        self._made: dict[tuple[Work, bool], Made] = {}

    def single(self, work: Work, dram: int) -> Made:
        """Of a plan of one step: work that moves to or from a DRAM address. Those that differ in their addresses only
        are one."""
        return self.of(self.timing.located(work, dram), True)

    def of(self, work: Work, first: bool = False) -> Made:
        """Of work that is located. `first`: of its command on the tensor engine."""
        key = work, first
        made = self._made.get(key)
        if made is None:
            if len(self._made) >= REMEMBERED:
                self._made.clear()
            cost = self.timing.cost(work)
            cost = self.timing.first(cost) if first else cost
            made = self._made[key] = Made(make_piece(cost, self.timing.rates.per_byte))
        return made


class _Words(NamedTuple):
    """A plan as words that stand anywhere."""

    steps: NDArray[np.int32]
    """Places in them count from the first. Half as long as words are: many plans are kept."""
    pieces: Column
    places: NDArray[np.int32]
    """Which words of steps are places."""
    heads: list[int]
    """The first step of each class, or NONE."""


class Encoded:
    """A plan of many steps."""

    def __init__(self, plan: Plan, pieces: list[Made], piece: Column, known: list[_Words] | None = None) -> None:
        """`piece`: of each step, an index into `pieces`. `known`: holds the words once they are made."""
        self.plan, self.pieces, self.piece = plan, pieces, piece
        self._known: list[_Words] = [] if known is None else known

    def moved(self, dram: Column) -> "Encoded":
        """The plan with other DRAM addresses, whose transfers cost what they cost here."""
        return Encoded(replace(self.plan, dram=dram), self.pieces, self.piece, self._known)

    def steps(self) -> tuple[list[Step], list[Step | None]]:
        """(the steps as objects, the first of each class)."""
        plan = self.plan
        columns = zip(self.piece.tolist(), plan.tile.tolist(), plan.dram.tolist(), plan.lane.tolist(), strict=True)
        steps = [Step(self.pieces[piece].piece, tile, dram, lane=lane) for piece, tile, dram, lane in columns]
        heads: list[Step | None] = [None] * CLASSES
        for step, after in zip(reversed(steps), reversed(plan.after.tolist()), strict=True):
            step.after = [steps[index] for index in after if index != NONE]
            step.next = heads[step.piece.step_class]
            heads[step.piece.step_class] = step
        return steps, heads

    def size(self) -> int:
        """Words of steps and pieces."""
        made = self._words()
        return len(made.steps) + len(made.pieces)

    def write(self, words: Column, base: int) -> list[int]:
        """Write steps and pieces, which stand at `base`, into `words`: the first step of each class, or 0."""
        made = self._words()
        count = len(made.steps)
        words[:count], words[count:] = made.steps, made.pieces
        words[made.places] += base
        fields, size = layout(Step)
        words[fields["dram"].offset : count : size] = self.plan.dram
        return [0 if head == NONE else base + head for head in made.heads]

    def _words(self) -> _Words:
        if not self._known:
            self._known.append(self._make_words())
        return self._known[0]

    def _make_words(self) -> _Words:
        fields, size = layout(Step)
        count = len(self.plan)
        behind = [np.frombuffer(piece.words(), np.int64) for piece in self.pieces]
        offsets = np.cumsum([0, *map(len, behind)])
        words, places = np.zeros((count, size), np.int32), np.zeros((count, size), bool)
        words[:, fields["piece"].offset] = count * size + offsets[self.piece]
        places[:, fields["piece"].offset] = True
        words[:, fields["tile"].offset] = self.plan.tile
        words[:, fields["lane"].offset] = self.plan.lane
        words[:, [fields["released"].offset, fields["done"].offset]] = NONE
        after, given = fields["after"].offset, self.plan.after != NONE
        words[:, after] = given.sum(axis=1)
        words[:, after + 1 : after + 1 + given.shape[1]] = np.where(given, self.plan.after * size, 0)
        places[:, after + 1 : after + 1 + given.shape[1]] = given
        classes = np.array([made.piece.step_class for made in self.pieces], np.int64)[self.piece]
        heads = []
        for one in range(CLASSES):
            members = np.flatnonzero(classes == one)
            heads.append(int(members[0]) * size if len(members) else NONE)
            words[members[:-1], fields["next"].offset] = members[1:] * size
            places[members[:-1], fields["next"].offset] = True
        where = np.flatnonzero(places.reshape(-1)).astype(np.int32)
        return _Words(words.reshape(-1), np.concatenate([*behind, np.zeros(0, np.int64)]), where, heads)


def encode(plan: Plan, pieces: Pieces) -> Encoded:
    """A plan of many steps, with what its steps take."""
    works, index = locate(plan, pieces.timing)
    made = [pieces.of(work) for work in works]
    tensor = np.flatnonzero(np.array([one.piece.step_class == TENSOR for one in made], bool)[index])
    if len(tensor):
        first = pieces.of(works[index[tensor[0]]], True)
        if first.piece.cycles != made[index[tensor[0]]].piece.cycles:
            made.append(first)
            index = index.copy()
            index[tensor[0]] = len(made) - 1
    return Encoded(plan, made, index)


def locate(plan: Plan, timing: Timing) -> tuple[list[Work], Column]:
    """(pieces, which of them each step is), where a transfer's piece says how its bytes lie on the DRAM's channels."""
    if timing.turn == 1 or not len(plan):
        return list(plan.pieces), plan.piece
    moves = np.array([isinstance(piece, Transfer) for piece in plan.pieces])[plan.piece]
    keys = plan.piece * timing.turn + np.where(moves, plan.dram % timing.turn, 0)
    distinct, index = np.unique(keys, return_inverse=True)
    pieces = [timing.located(plan.pieces[key // timing.turn], key % timing.turn) for key in distinct.tolist()]
    return pieces, index.astype(np.int64)
