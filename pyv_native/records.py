"""Records of the native subset: typed fields at fixed offsets of one buffer.

    @record
    class Unit:
        busy: bool = False
        code: u16 = 0
        run: "Run | None" = REFERENCE      # byte offset of a record elsewhere in the buffer; None is 0
        share: list[int] = array(16)       # always 16 items
        heads: list[Step | None] = items(4)  # a length, then at most 4 items
        ports: list[Port] = records(2)     # records embedded in the list
        tags: list[int] = items()          # capacity set when the buffer is allocated; stored after its record

Fields are aligned to their size. A view of a record is a `ctypes.Structure` over the buffer (`arena`): Python reads and
writes views, compiled code reads and writes the same bytes.
"""

import ctypes
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields
from functools import cache
from types import UnionType
from typing import Annotated, Any, NamedTuple, TypeVar, Union, dataclass_transform, get_args, get_origin, get_type_hints

from pyv_native.errors import NativeError

RecordType = TypeVar("RecordType")
REFERENCE: Any = None
"""Default of a field that refers to a record elsewhere in the buffer."""
WORD = 8
"""Bytes of a value."""


class IntegerFormat(NamedTuple):
    """Form of an integer in the buffer."""

    size: int
    """In bytes."""
    signed: bool

    @property
    def ctype(self) -> Any:
        """Class of `ctypes`."""
        return _CTYPES[self.size, self.signed]


_CTYPES = {
    (size, signed): getattr(ctypes, f"c_{'' if signed else 'u'}int{8 * size}")
    for size in (1, 2, 4, WORD)
    for signed in (False, True)
}
"""Classes of `ctypes` by size and sign."""


I64 = IntegerFormat(WORD, True)
u8 = Annotated[int, IntegerFormat(1, False)]
u16 = Annotated[int, IntegerFormat(2, False)]
u32 = Annotated[int, IntegerFormat(4, False)]
i32 = Annotated[int, IntegerFormat(4, True)]


@dataclass_transform()
def record(declaration: type[RecordType]) -> type[RecordType]:
    """Declare a record class. Every field has a default."""
    dataclass_type: type[RecordType] = dataclass(init=False, eq=False, repr=False, match_args=False)(declaration)
    return dataclass_type


def items(capacity: int | None = None) -> Any:
    """Return the default of a list of integers or references. None: the capacity is set at allocation."""
    return field(default_factory=list, metadata={"capacity": capacity})


def records(capacity: int | None = None) -> Any:
    """Return the default of a list with embedded records."""
    return field(default_factory=list, metadata={"capacity": capacity, "inner": True})


def array(length: int) -> Any:
    """Return the default of a list of integers or references that always has `length` items."""
    return field(default_factory=list, metadata={"capacity": length, "fixed": True})


# -- shapes ------------------------------------------------------------------------------------------------------------


class Scalar(NamedTuple):
    """Integer or, with a record class, reference."""

    record: type | None = None
    form: IntegerFormat = I64

    @property
    def size(self) -> int:
        return self.form.size


class Inner(NamedTuple):
    """Record that is embedded in a field."""

    record: type

    @property
    def size(self) -> int:
        return layout(self.record).size


class ListOf(NamedTuple):
    """List: its length, then its items. `fixed`: no length, it always has `capacity` items."""

    item: Scalar | Inner
    capacity: int | None = None
    """None: set when the buffer is allocated; the field holds the offset of the list from its record."""
    fixed: bool = False

    @property
    def size(self) -> int:
        """Bytes in the record."""
        return WORD if self.capacity is None else self.extent(self.capacity)

    def extent(self, capacity: int) -> int:
        """Return the bytes of a list of this capacity, at least one item: the target of out-of-range indices."""
        return (0 if self.fixed else WORD) + -(-max(capacity, 1) * self.item.size // WORD) * WORD


Shape = Scalar | Inner | ListOf


class Field(NamedTuple):
    """Position, shape and default of a field."""

    offset: int
    """In bytes, from the beginning of the record."""
    shape: Shape
    default: int

    @property
    def word(self) -> int:
        """Offset in words of a word-aligned field."""
        return self.offset // WORD


class RecordLayout(NamedTuple):
    """Fields of a record and its size in bytes."""

    fields: Mapping[str, Field]
    size: int


@cache
def layout(declaration: type) -> RecordLayout:
    """Return the offsets of the fields of a record class: each is aligned to its size, records and lists to 8 bytes."""
    hints, rows, offset = get_type_hints(declaration, include_extras=True), dict[str, Field](), 0
    for member in fields(declaration):
        inner = member.default is MISSING and not member.metadata
        shape = shape_of(hints[member.name], **({"inner": inner} | dict(member.metadata)))
        alignment = shape.size if isinstance(shape, Scalar) else WORD
        offset = -(-offset // alignment) * alignment
        rows[member.name] = Field(offset, shape, int(member.default) if isinstance(member.default, int) else 0)
        offset += shape.size
    return RecordLayout(rows, -(-offset // WORD) * WORD)


def shape_of(annotation: Any, *, inner: bool = False, capacity: int | None = None, fixed: bool = False) -> Shape:
    """Return the shape of a field, parameter or result. NativeError if the annotation has none."""
    form = I64
    if get_origin(annotation) is list:
        item = shape_of(get_args(annotation)[0], inner=inner)
        if isinstance(item, ListOf):
            raise NativeError(f"{annotation}: lists of lists: use a record")
        return ListOf(item, capacity, fixed)
    if get_origin(annotation) in (Union, UnionType):
        (annotation,) = (choice for choice in get_args(annotation) if choice is not type(None))
    if get_origin(annotation) is Annotated:
        annotation, form = get_args(annotation)
    if annotation is bool:
        form = IntegerFormat(1, False)
    if annotation in (bool, type(None)) or (isinstance(annotation, type) and issubclass(annotation, int)):
        return Scalar(None, form)
    if not hasattr(annotation, "__dataclass_fields__"):
        raise NativeError(f"{annotation}: use integers, records and lists of these")
    return Inner(annotation) if inner else Scalar(annotation)
