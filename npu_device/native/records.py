"""Records of the native subset: dataclasses whose fields are integers, records, references to records, and lists.

Interpreted, a record is a Python object. Compiled, all records stand in one array of 64-bit words, the root record at
its beginning; a reference is the index of a record's first word, and None is 0. Where a field stands is derived from
the declaration (`layout`). A list is its length and then its items; a list without a capacity stands behind the record
that has it, and the field holds the distance.

    @record
    class Unit:
        run: Run = REFERENCE
        share: list[int] = words(16)
"""

import ctypes
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, dataclass, field, fields
from functools import cache
from itertools import groupby
from operator import attrgetter
from types import UnionType
from typing import Any, NamedTuple, TypeVar, Union, dataclass_transform, get_args, get_origin, get_type_hints

Made = TypeVar("Made")
REFERENCE: Any = None
"""Default of a field that refers to a record which stands elsewhere."""


@dataclass_transform()
def record(of: type[Made]) -> type[Made]:
    """Decorator of a record class. Every field has a default."""
    return dataclass(slots=True, eq=False, repr=False)(of)


def words(capacity: int = 0) -> Any:
    """Default of a list of integers or of references."""
    return field(default_factory=list, metadata={"capacity": capacity, "inside": False})


def records(capacity: int = 0) -> Any:
    """Default of a list whose records stand in it."""
    return field(default_factory=list, metadata={"capacity": capacity, "inside": True})


# -- layout ------------------------------------------------------------------------------------------------------------


class Word(NamedTuple):
    """An integer or, where a record class is named, a reference."""

    record: type | None = None

    @property
    def size(self) -> int:
        return 1


class Inner(NamedTuple):
    """A record that stands where it is named."""

    record: type

    @property
    def size(self) -> int:
        return layout(self.record).size


class ListOf(NamedTuple):
    """A list; without a capacity, it stands elsewhere."""

    item: Word | Inner
    capacity: int = 0

    @property
    def size(self) -> int:
        return 1 + self.capacity * self.item.size


Shape = Word | Inner | ListOf


class Field(NamedTuple):
    offset: int
    """From the first word of the record."""
    shape: Shape


class Layout(NamedTuple):
    fields: Mapping[str, Field]
    size: int


class Integers(NamedTuple):
    """Fields side by side."""

    offset: int
    length: int
    values: Callable[[Any], tuple[Any, ...]]


@cache
def layout(of: type) -> Layout:
    """Where the fields of a record class stand."""
    hints, found, offset = get_type_hints(of), {}, 0
    for one in fields(of):
        made = shape_of(hints[one.name], **({"inside": one.default is MISSING} | dict(one.metadata)))
        found[one.name] = Field(offset, made)
        offset += made.size
    return Layout(found, offset)


@cache
def _parts(of: type) -> tuple[list[Integers], list[tuple[str, Field]]]:
    """Integers that stand side by side, which are written at once, and the other fields."""
    runs, others = list[Integers](), list[tuple[str, Field]]()
    for plain, group in groupby(layout(of).fields.items(), lambda item: item[1].shape == Word()):
        members = list(group)
        if plain and len(members) > 1:
            runs.append(Integers(members[0][1].offset, len(members), attrgetter(*(name for name, _ in members))))
        else:
            others += members
    return runs, others


def shape_of(annotation: Any, *, inside: bool = False, capacity: int = 0) -> Shape:
    """The shape of what an annotation says; `inside`: its record stands there and is not referred to."""
    if get_origin(annotation) is list:
        item = shape_of(get_args(annotation)[0], inside=inside)
        assert not isinstance(item, ListOf), "lists of lists are outside the native subset"
        return ListOf(item, capacity)
    if get_origin(annotation) in (Union, UnionType):
        (annotation,) = (one for one in get_args(annotation) if one is not type(None))
    if annotation in (int, bool, type(None)):
        return Word()
    return Inner(annotation) if inside else Word(annotation)


# -- objects to words, and back ----------------------------------------------------------------------------------------

Addresses = dict[int, int]
"""First word of each record that has been written, by the id of the object."""


class Writer:
    """Writes records behind each other. References are filled in by `link`; until then, they are None."""

    def __init__(self) -> None:
        self.words: list[int] = []
        self.addresses: Addresses = {}
        self._references: list[tuple[int, Any]] = []

    def add(self, record: Any, room: Mapping[str, int] | None = None) -> int:
        """Write a record: its first word. `room`: items for which lists without a capacity have space, by field."""
        at = len(self.words)
        behind: list[Any] = []
        self.words += [0] * layout(record.__class__).size
        self._write(record, at, behind)
        for place, owner, name, items, shape in behind:
            self.words[place] = len(self.words) - owner
            capacity = max(len(items), (room or {}).get(name, 0))
            self.words += [0] * (1 + capacity * shape.item.size)
            self._write_list(items, owner + self.words[place], shape, [])
        return at

    def link(self) -> None:
        """Fill in the references to records that have been written, each where it was written last."""
        unknown = []
        for at, target in self._references:
            place = self.addresses.get(id(target))
            if place is None:
                unknown.append((at, target))
            else:
                self.words[at] = place
        self._references = unknown

    def _write(self, record: Any, at: int, behind: list[Any]) -> None:
        self.addresses[id(record)] = at
        runs, others = _parts(record.__class__)
        for offset, count, values in runs:
            self.words[at + offset : at + offset + count] = values(record)
        for name, (offset, shape) in others:
            value = getattr(record, name)
            if isinstance(shape, ListOf) and not shape.capacity:
                behind.append((at + offset, at, name, value, shape))
            elif isinstance(shape, ListOf):
                assert len(value) <= shape.capacity, f"{type(record).__name__}.{name} has more than {shape.capacity}"
                self._write_list(value, at + offset, shape, behind)
            else:
                self._write_item(value, at + offset, shape, behind)

    def _write_list(self, items: list[Any], at: int, shape: ListOf, behind: list[Any]) -> None:
        self.words[at] = len(items)
        if shape.item == Word():
            self.words[at + 1 : at + 1 + len(items)] = items
            return
        for index, item in enumerate(items):
            self._write_item(item, at + 1 + index * shape.item.size, shape.item, behind)

    def _write_item(self, value: Any, at: int, shape: Word | Inner, behind: list[Any]) -> None:
        if isinstance(shape, Inner):
            self._write(value, at, behind)
        elif shape.record is None:
            self.words[at] = value
        elif value is not None:
            self._references.append((at, value))


class Reader:
    """Makes objects of records in words, once each."""

    def __init__(self, words: list[int]) -> None:
        self._words = words
        self._made: dict[tuple[type, int], Any] = {}
        self._waiting: list[tuple[Any, int]] = []

    def read(self, of: type, at: int) -> Any:
        """The record at a word, with all that it refers to."""
        made = self._record(of, at)
        while self._waiting:
            record, place = self._waiting.pop()
            for name, (offset, shape) in layout(record.__class__).fields.items():
                setattr(record, name, self._value(shape, place + offset, place))
        return made

    def _record(self, of: type, at: int) -> Any:
        made = self._made.get((of, at))
        if made is None:
            made = self._made[of, at] = of()
            self._waiting.append((made, at))
        return made

    def _value(self, shape: Shape, at: int, owner: int) -> Any:
        if isinstance(shape, ListOf):
            if not shape.capacity:
                at = owner + self._words[at]
            return [self._value(shape.item, at + 1 + i * shape.item.size, owner) for i in range(self._words[at])]
        if isinstance(shape, Inner):
            return self._record(shape.record, at)
        word = self._words[at]
        return word if shape.record is None else self._record(shape.record, word) if word else None


# -- words as Python sees them -----------------------------------------------------------------------------------------


class Items(ctypes.Structure):
    """A list with a capacity, in words. References are integers here."""

    length: int
    items: Any

    def __len__(self) -> int:
        return self.length

    def __iter__(self) -> Iterator[Any]:
        return iter(self.items[: self.length])

    def __setitem__(self, index: int, value: int) -> None:
        self.items[index] = value

    def clear(self) -> None:
        self.length = 0


@cache
def view(of: type) -> type[ctypes.Structure]:
    """The class of a record in words: `view(of).from_buffer(array)`. References are integers."""
    return type(
        of.__name__,
        (ctypes.Structure,),
        {"_fields_": [(name, _viewed(one.shape)) for name, one in layout(of).fields.items()]},
    )


def _viewed(shape: Shape) -> Any:
    if isinstance(shape, Inner):
        return view(shape.record)
    if isinstance(shape, ListOf) and shape.capacity:
        rows = [("length", ctypes.c_int64), ("items", _viewed(shape.item) * shape.capacity)]
        return type("Items", (Items,), {"_fields_": rows})
    return ctypes.c_int64
