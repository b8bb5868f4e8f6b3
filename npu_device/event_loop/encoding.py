"""Encoding of plans as records of the event loop."""

from array import array
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from npu_device.cost.durations import REMEMBERED, Cost, Timing
from npu_device.cost.piece_record import PieceRecord
from npu_device.cost.plan import NONE, Column, Piece, Plan, Transfer
from npu_device.trace.events import Kind
from npu_device.units.state import (
    CLASSES,
    READ,
    TENSOR,
    VECTOR,
    WRITE,
    Step,
)
from pyv_native.records import WORD, ListOf, Scalar, layout


def step_class(cost: Cost) -> int:
    """Return the class of the steps of a piece."""
    if cost.kind is Kind.DMA:
        return WRITE if cost.write else READ
    return TENSOR if cost.kind is Kind.TE else VECTOR


class PieceImage(NamedTuple):
    """Position-independent record of a piece."""

    step_class: int
    cycles: int
    image: bytes


_FIELDS, _SIZE = layout(PieceRecord)
_SCALARS = {name: field.word for name, field in _FIELDS.items() if isinstance(field.shape, Scalar)}
_LISTS = {
    name: (field.word, field.shape.item.size // WORD)
    for name, field in _FIELDS.items()
    if isinstance(field.shape, ListOf)
}
"""Word of each list, and words of an item."""


def piece_image(cost: Cost, per_byte: int) -> PieceImage:
    """Return the record of a piece with these costs."""
    rows, row_bytes, row_stride = cost.rows or (0, 0, 0)
    conversion, mask = cost.conversion, 0
    for demand in cost.demands:
        mask |= 1 << demand.bank % 32
    numbers = {
        "step_class": step_class(cost), "cycles": cost.cycles, "drain": cost.drain, "cold": cost.cold,
        "payload": cost.payload, "aligned": cost.aligned, "credits": cost.aligned * per_byte, "aux": cost.aux,
        "bank_mask": mask, "row_count": rows, "row_bytes": row_bytes, "row_stride": row_stride,
        "alignment": cost.alignment, "converting": conversion.busy, "lead": conversion.lead, "tail": conversion.tail,
        "bare": cost.bare,
    }  # fmt: skip
    lists: dict[str, Sequence[tuple[int, ...]]] = {
        "accesses": [(demand.bank, demand.port, demand.cycles) for demand in cost.demands],
        "stalls": cost.stalls,
        "channel_bytes": [(size,) for size in cost.channels],
    }
    words = [0] * (_SIZE // WORD)
    for name, word in _SCALARS.items():
        words[word] = int(numbers[name])
    for name, (word, width) in _LISTS.items():
        items = lists[name]
        words[word] = (len(words) + 1) * WORD
        words += [len(items), len(items)]
        words += [int(value) for item in items for value in item] or [0] * width
    return PieceImage(numbers["step_class"], cost.cycles, array("q", words).tobytes())


class Pieces:
    """Cache of piece records for the plans of one configuration."""

    def __init__(self, timing: Timing) -> None:
        self.timing = timing
        self._by_cost: dict[Cost, PieceImage] = {}

    def single(self, work: Piece, dram: int) -> PieceImage:
        """Return the piece of a plan of a single step with a DRAM address. Work that differs only in addresses shares
        it."""
        return self.of(self.timing.located(work, dram), True)

    def of(self, work: Piece, first: bool = False) -> PieceImage:
        """Return the piece of located work. `first`: whether it is its command's first on the tensor engine. Work at
        different scratchpad addresses mostly has equal costs and shares a piece."""
        cost = self.timing.cost(work)
        cost = self.timing.first(cost) if first else cost
        image = self._by_cost.get(cost)
        if image is None:
            if len(self._by_cost) >= REMEMBERED:
                self._by_cost.clear()
            image = self._by_cost[cost] = piece_image(cost, self.timing.rates.per_byte)
        return image


class _Template(NamedTuple):
    """Steps and pieces of a plan as words relative to offset 0."""

    steps: NDArray[np.int32]
    """Step words, with offsets from the first; int32 halves the memory of cached plans."""
    pieces: Column
    references: NDArray[np.int32]
    """Indices of the step words that are offsets to relocate."""
    heads: list[int]
    """Offset of the first step of each class, or NONE."""


class Encoded:
    """Encoded plan of many steps."""

    def __init__(
        self, plan: Plan, pieces: list[PieceImage], piece: Column, templates: list[_Template] | None = None
    ) -> None:
        """`piece`: index into `pieces` of each step. `templates`: caches the words from their first use on."""
        self.plan, self.pieces, self.piece = plan, pieces, piece
        self._templates: list[_Template] = [] if templates is None else templates

    def relocate(self, dram: Column) -> "Encoded":
        """Return the plan with other DRAM addresses, at which its transfers have equal costs."""
        return Encoded(replace(self.plan, dram=dram), self.pieces, self.piece, self._templates)

    def size(self) -> int:
        """Return the number of words of steps and pieces."""
        template = self._template()
        return len(template.steps) + len(template.pieces)

    def write(self, words: Column, base: int) -> list[int]:
        """Write steps and pieces into `words` at offset `base`. Return the first step's offset of each class, or 0."""
        template = self._template()
        count = len(template.steps)
        words[:count], words[count:] = template.steps, template.pieces
        words[template.references] += base
        fields, size = layout(Step)
        words[fields["dram"].word : count : size // WORD] = self.plan.dram
        return [0 if head == NONE else base + head for head in template.heads]

    def _template(self) -> _Template:
        if not self._templates:
            self._templates.append(self._make_template())
        return self._templates[0]

    def _make_template(self) -> _Template:
        fields, size = layout(Step)
        columns = {name: field.word for name, field in fields.items()}
        count, width = len(self.plan), size // WORD
        images = [np.frombuffer(piece.image, np.int64) for piece in self.pieces]
        offsets = np.cumsum([0, *map(len, images)]) * WORD
        words, references = np.zeros((count, width), np.int32), np.zeros((count, width), bool)
        words[:, columns["piece"]] = count * size + offsets[self.piece]
        references[:, columns["piece"]] = True
        words[:, columns["tile"]] = self.plan.tile
        words[:, columns["lane"]] = self.plan.lane
        words[:, [columns["released"], columns["done"], columns["issued"]]] = NONE
        after, present = columns["after"], self.plan.after != NONE
        words[:, after] = present.sum(axis=1)
        words[:, after + 1 : after + 1 + present.shape[1]] = np.where(present, self.plan.after * size, 0)
        references[:, after + 1 : after + 1 + present.shape[1]] = present
        classes = np.array([piece.step_class for piece in self.pieces], np.int64)[self.piece]
        heads = []
        for class_index in range(CLASSES):
            members = np.flatnonzero(classes == class_index)
            heads.append(int(members[0]) * size if len(members) else NONE)
            words[members[:-1], columns["next"]] = members[1:] * size
            references[members[:-1], columns["next"]] = True
        indices = np.flatnonzero(references.reshape(-1)).astype(np.int32)
        return _Template(words.reshape(-1), np.concatenate([*images, np.zeros(0, np.int64)]), indices, heads)


def encode(plan: Plan, pieces: Pieces) -> Encoded:
    """Return the encoded plan of many steps, with the costs of its steps."""
    works, index = locate(plan, pieces.timing)
    images = [pieces.of(work) for work in works]
    tensor = np.flatnonzero(np.array([image.step_class == TENSOR for image in images], bool)[index])
    if len(tensor):
        first = pieces.of(works[index[tensor[0]]], True)
        if first.cycles != images[index[tensor[0]]].cycles:
            images.append(first)
            index = index.copy()
            index[tensor[0]] = len(images) - 1
    return Encoded(plan, images, index)


def locate(plan: Plan, timing: Timing) -> tuple[list[Piece], Column]:
    """Return (pieces, index of each step's piece), where transfers have the distribution of their bytes over the DRAM's
    channels."""
    if timing.turn == 1 or not len(plan):
        return list(plan.pieces), plan.piece
    moves = np.array([isinstance(piece, Transfer) for piece in plan.pieces])[plan.piece]
    keys = plan.piece * timing.turn + np.where(moves, plan.dram % timing.turn, 0)
    distinct, index = np.unique(keys, return_inverse=True)
    pieces = [timing.located(plan.pieces[key // timing.turn], key % timing.turn) for key in distinct.tolist()]
    return pieces, index.astype(np.int64)
