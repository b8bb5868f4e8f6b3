"""Plans as words of the event loop's array `p` (`layout`)."""

from typing import Any, NamedTuple

import numpy as np

from npu_device.cost.durations import REMEMBERED, Cost, Timing
from npu_device.cost.plan import NONE, Column, Piece, Plan, Transfer
from npu_device.event_loop import layout as w
from npu_device.trace.events import Kind


class Words(NamedTuple):
    """A plan as it stands in `p`, with S_PIECE relative to the first word."""

    words: Column
    steps: int
    heads: list[int]
    """The first step of each class: READ, WRITE, TENSOR, VECTOR; NONE: none."""

    def moved(self, base: int) -> Column:
        """The words for a plan that begins at `base`."""
        self.words[: self.steps * w.STEP_WORDS : w.STEP_WORDS] += base
        return self.words


def step_class(cost: Cost) -> int:
    """Class of the steps of a piece."""
    if cost.kind is Kind.DMA:
        return w.WRITE if cost.write else w.READ
    return w.TENSOR if cost.kind is Kind.TE else w.VECTOR


class Single(NamedTuple):
    """The one step of a plan and its piece, as `stepper.begin_one` takes them."""

    words: Any
    """A list, or the address of an array; S_PIECE is relative to the first word."""
    size: int
    step_class: int
    kept: Any
    """What is at the address."""


class Singles:
    """Plans of one step: tile commands. Those that differ in their addresses only are encoded once."""

    def __init__(self, timing: Timing) -> None:
        self._timing = timing
        self._made: dict[Piece, Single] = {}
        self._native = False

    def go_native(self) -> None:
        """Words are for compiled code from now on."""
        self._native = True
        self._made.clear()

    def __call__(self, piece: Piece, dram: int) -> Single:
        """The step of a piece that moves to or from a DRAM address."""
        piece = self._timing.located(piece, dram)
        made = self._made.get(piece)
        if made is None:
            if len(self._made) >= REMEMBERED:
                self._made.clear()
            made = self._made[piece] = self._make(piece)
        return made

    def _make(self, piece: Piece) -> Single:
        cost = self._timing.first(self._timing.cost(piece))
        words = [w.STEP_WORDS, 0, 0, *[NONE] * (w.S_LANE - w.S_AFTER), 0]
        words += _piece_words(cost, self._timing.rates.per_byte)
        if not self._native:
            return Single(words, len(words), step_class(cost), None)
        kept = np.array(words, np.int64)
        return Single(kept.ctypes.data, len(words), step_class(cost), kept)


def plan_words(plan: Plan, timing: Timing) -> Words:
    """A plan of many steps."""
    pieces, index = locate(plan, timing)
    costs = [timing.cost(piece) for piece in pieces]
    classes = np.array([step_class(cost) for cost in costs], np.int64)[index]
    tensor = np.flatnonzero(classes == w.TENSOR)
    if len(tensor):
        first = timing.first(costs[index[tensor[0]]])
        if first is not costs[index[tensor[0]]]:
            costs.append(first)
            index = index.copy()
            index[tensor[0]] = len(costs) - 1
    count = len(plan)
    encoded = [_piece_words(cost, timing.rates.per_byte) for cost in costs]
    starts = np.cumsum([count * w.STEP_WORDS, *(len(one) for one in encoded[:-1])])
    steps = np.empty((count, w.STEP_WORDS), np.int64)
    steps[:, w.S_PIECE] = starts[index]
    steps[:, w.S_TILE] = plan.tile
    steps[:, w.S_DRAM] = plan.dram
    steps[:, w.S_AFTER : w.S_AFTER + w.MAX_AFTER] = plan.after
    steps[:, [w.S_RELEASED, w.S_DONE, w.S_NEXT]] = NONE
    steps[:, w.S_LANE] = plan.lane
    heads = []
    for one in (w.READ, w.WRITE, w.TENSOR, w.VECTOR):
        members = np.flatnonzero(classes == one)
        heads.append(int(members[0]) if len(members) else NONE)
        steps[members[:-1], w.S_NEXT] = members[1:]
    tail = np.array([word for one in encoded for word in one], np.int64)
    return Words(np.concatenate([steps.reshape(-1), tail]), count, heads)


def locate(plan: Plan, timing: Timing) -> tuple[list[Piece], Column]:
    """(pieces, which of them each step is), where a transfer's piece says how its bytes lie on the DRAM's channels."""
    if timing.turn == 1 or not len(plan):
        return list(plan.pieces), plan.piece
    moves = np.array([isinstance(piece, Transfer) for piece in plan.pieces])[plan.piece]
    keys = plan.piece * timing.turn + np.where(moves, plan.dram % timing.turn, 0)
    distinct, index = np.unique(keys, return_inverse=True)
    pieces = [timing.located(plan.pieces[key // timing.turn], key % timing.turn) for key in distinct.tolist()]
    return pieces, index.astype(np.int64)


def _piece_words(cost: Cost, per_byte: int) -> list[int]:
    mask = 0
    for demand in cost.demands:
        mask |= 1 << demand.bank % 32
    words = [step_class(cost), cost.cycles, cost.drain, cost.cold, cost.payload, cost.aligned,
             cost.aligned * per_byte, cost.aux, mask, len(cost.demands), len(cost.stalls)]  # fmt: skip
    for demand in cost.demands:
        words += [demand.bank, demand.port, demand.cycles]
    for stall in cost.stalls:
        words += [int(word) for word in stall]
    return [*words, *cost.channels, *cost.rows]
