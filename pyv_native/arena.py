"""The buffer of a machine's records, and views of the records for Python.

    0      null record: target of the reference None; nothing else lies here, so that a wrong access harms nothing
    992    status: error code, address of the text of the source location, two values
    1024   links: addresses of functions of other modules and of callbacks
    1408   the root record, then its lists whose capacity is set at allocation, then allocations

The buffer never moves while compiled code runs. Between calls `allocate` may replace it by a larger buffer; older views
are invalid then.
"""

import ctypes
import gc
import mmap
import sys
from bisect import insort
from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import IntEnum
from functools import cache, wraps
from types import CodeType
from typing import Any

from pyv_native.errors import CheckError, NativeError
from pyv_native.records import WORD, Inner, ListOf, Scalar, Shape, layout

NULL_SIZE = 992
"""Bytes of the null record, and maximum bytes of a record that is referred to."""
STATUS, SITE, FIRST, SECOND = range(NULL_SIZE // WORD, NULL_SIZE // WORD + 4)
"""Words of the status."""
STATUS_OFFSET = NULL_SIZE
"""Byte offset of the status. Its first word is the error code; 0: no error."""
LINKS = 1024
MAX_LINKS = 48
ROOT = LINKS + MAX_LINKS * WORD
"""First byte of the root record."""
LINE = 64
"""Bytes of a cache line. Allocations are multiples of it, so that records of whole lines begin at a line."""
MIN_MAPPING = 1 << 27
"""Minimum bytes of the buffer of an arena with allocations: growth copies all pages."""

_LOWEST, _HIGHEST = -(1 << 63), (1 << 63) - 1


class StatusCode(IntEnum):
    """Error codes of the status."""

    INDEX = 1
    CAPACITY = 2
    DIVISION = 3
    OVERFLOW = 4
    SHIFT = 5
    NULL = 6
    NARROW = 7
    CALLBACK = 8


SENTENCES = {
    StatusCode.INDEX: "index {} is not within the {} items",
    StatusCode.CAPACITY: "{} items, and the list holds at most {}",
    StatusCode.DIVISION: "{} divided by {}",
    StatusCode.OVERFLOW: "the result of {} and {} does not fit into 64 bits",
    StatusCode.SHIFT: "a shift of {} by {}",
    StatusCode.NULL: "a field of None",
    StatusCode.NARROW: "{} does not fit into a field of {} bytes",
}


class RecordView(ctypes.Structure):
    """View of a record. Integers are attributes of ctypes; references, inner records and lists are views in turn."""

    arena: "Arena"
    offset: int
    """Offset of the record in the buffer."""


class ListView:
    """View of a list. An index outside 0..length-1 raises CheckError, as in checked native code."""

    __slots__ = ("_arena", "_array", "_first", "_item", "_length", "capacity", "offset", "shape")

    def __init__(self, arena: "Arena", offset: int, shape: ListOf, capacity: int) -> None:
        """`offset`: of the length, or of the first item of a fixed list."""
        self._arena, self.shape, self.capacity, self.offset = arena, shape, capacity, offset
        self._first = offset if shape.fixed else offset + WORD
        self._length = None if shape.fixed else ctypes.c_int64.from_buffer(arena.buffer, offset)
        item = shape.item
        self._item = None if isinstance(item, Scalar) else (item.record, item.size)
        ctype = item.form.ctype if isinstance(item, Scalar) else ctypes.c_ubyte * item.size
        self._array = (ctype * capacity).from_buffer(arena.buffer, self._first)

    def __len__(self) -> int:
        return self.capacity if self._length is None else self._length.value

    def _check(self, index: int) -> None:
        if not 0 <= index < len(self):
            raise CheckError(SENTENCES[StatusCode.INDEX].format(index, len(self)))

    def __getitem__(self, index: int) -> Any:
        self._check(index)
        if self._item is not None:
            record, size = self._item
            return self._arena.view(record, self._first + index * size)
        value: Any = self._array[index]
        target = self.shape.item.record
        return value if target is None else self._arena.reference(target, value)

    def __setitem__(self, index: int, value: Any) -> None:
        self._check(index)
        self._array[index] = self._raw(value)

    def _raw(self, value: Any) -> int:
        """Return the bytes of an item as an integer: a reference is an offset."""
        item = self.shape.item
        if isinstance(item, Inner):
            raise NativeError("records that stand in a list are changed field by field")
        if item.record is None:
            return int(value)
        return 0 if value is None else int(value.offset)

    def __iter__(self) -> Iterator[Any]:
        index = 0
        if self._item is None:
            while index < len(self):
                yield self[index]
                index += 1
            return
        view, (record, size), offset = self._arena.view, self._item, self._first
        while index < len(self):
            yield view(record, offset + index * size)
            index += 1

    def resize(self, length: int) -> None:
        """Change the length; the content of new items is undefined."""
        if self._length is None:
            raise NativeError("a fixed list keeps its length")
        if length > self.capacity:
            raise CheckError(SENTENCES[StatusCode.CAPACITY].format(length, self.capacity))
        self._length.value = length

    def append(self, value: Any) -> None:
        """Add an integer or a reference."""
        raw = self._raw(value)
        self.resize(len(self) + 1)
        self._array[len(self) - 1] = raw

    def extend(self, values: Iterable[Any]) -> None:
        """Append several items; CheckError, without a change, if they exceed the capacity."""
        raws = [self._raw(value) for value in values]
        begin = len(self)
        self.resize(begin + len(raws))
        for index, raw in enumerate(raws, begin):
            self._array[index] = raw

    def insert(self, index: int, value: Any) -> None:
        """Insert an item before an index; an index equal to the length appends."""
        raw = self._raw(value)
        length = len(self)
        if not 0 <= index <= length:
            raise CheckError(SENTENCES[StatusCode.INDEX].format(index, length))
        self.resize(length + 1)
        for position in range(length, index, -1):
            self._array[position] = self._array[position - 1]
        self._array[index] = raw

    def __delitem__(self, part: slice) -> None:
        """Delete `items[a:b]` or `items[a:]`."""
        length = len(self)
        start = part.start
        stop = length if part.stop is None else part.stop
        if not 0 <= start <= stop <= length:
            raise CheckError(SENTENCES[StatusCode.INDEX].format(start, length))
        self._array[start : start + length - stop] = self._array[stop:length]
        self.resize(length - (stop - start))

    def clear(self) -> None:
        """Remove all items."""
        self.resize(0)

    def add(self) -> Any:
        """Add a record in its default state; return its view."""
        item = self.shape.item
        if not isinstance(item, Inner):
            raise NativeError("only records that stand in a list are added by it")
        self.resize(len(self) + 1)
        offset = self._first + (len(self) - 1) * item.size
        self._arena.initialize(item.record, offset, {})
        return self._arena.view(item.record, offset)

    def fill(self, values: Iterable[Any]) -> None:
        """Replace all items; a fixed list takes exactly its length."""
        raws = [self._raw(value) for value in values]
        if self._length is None and len(raws) != self.capacity:
            raise NativeError(f"{len(raws)} items for a list of {self.capacity}")
        if self._length is not None:
            self.resize(len(raws))
        self._array[: len(raws)] = raws

    def fill_offsets(self, offsets: Iterable[int]) -> None:
        """Replace all references of a fixed list by offsets of records."""
        self._array[:] = list(offsets)

    def reserved(self) -> memoryview:
        """Return a view of the bytes of all items, up to the capacity. Later changes are visible in it."""
        return self._arena.bytes[self._first : self._first + self.capacity * self.shape.item.size]


def zeros(size: int) -> mmap.mmap:
    """Map `size` zero bytes, whose pages use host memory once they are written. If the host refuses, garbage is
    collected and the mapping tried again; OSError if it is refused then."""
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NO_RESERVE
    try:
        return mmap.mmap(-1, size, flags=flags)
    except OSError:
        gc.collect()  # discarded machines contain reference cycles, and hold their memory until a collection
        return mmap.mmap(-1, size, flags=flags)


_NO_RESERVE = getattr(mmap, "MAP_NORESERVE", 0x4000 if sys.platform == "linux" else 0)
"""Flag of Linux, which `mmap` defines from Python 3.13 on."""


class Arena:
    """Buffer of a root record."""

    def __init__(
        self, root: type, capacities: Mapping[str, int] | None = None, *, records: bytes | None = None
    ) -> None:
        """`capacities`: by field, for the root's lists without a fixed capacity; `inner.field` in an inner record.
        `records`, instead: the content of another arena with the same root, from `ROOT` on."""
        self._root = root
        self._spans: list[tuple[int, int]] = []
        """Allocations (begin, end), in order."""
        size = layout(root).size + lists_extent(root, capacities or {}) if records is None else len(records)
        self._end = ROOT + align(size)
        self.callback_error: BaseException | None = None
        """Exception of the last callback that failed."""
        self.callbacks: dict[Any, Callable[..., int]] = {}
        """Python functions by the declarations of their callbacks."""
        self._linked: list[Any] = []
        """Owners of linked code, kept alive."""
        self._use(zeros(self._end))
        if records is None:
            self.initialize(root, ROOT, capacities or {})
        else:
            self.bytes[ROOT : ROOT + len(records)] = records

    def _use(self, buffer: mmap.mmap) -> None:
        self.buffer = buffer
        self.bytes = memoryview(buffer)
        self.words = self.bytes.cast("q")
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(buffer))
        """Address of the buffer, for compiled code."""
        self._views: dict[tuple[type, int], Any] = {}
        self._lists: dict[int, ListView] = {}
        self.root = self.view(self._root, ROOT)

    # -- views ---------------------------------------------------------------------------------------------------------

    def view(self, record: type, offset: int) -> Any:
        """Return the view of the record at an offset; the same object each time."""
        key = record, offset
        view = self._views.get(key)
        if view is None:
            view = self._views[key] = view_class(record).from_buffer(self.buffer, offset)
            view.arena, view.offset = self, offset
        return view

    def reference(self, record: type, offset: int) -> Any:
        """Return the view of the record at a reference's offset; None for offset 0."""
        return self.view(record, offset) if offset else None

    def items(self, offset: int, shape: ListOf, owner: int) -> ListView:
        """Return the view of the list of a field at `offset` of the record at `owner`."""
        start, capacity = offset, shape.capacity
        if capacity is None:  # the record may have been overwritten by a record with longer lists
            start = owner + self.words[offset // WORD]
            capacity = self.words[start // WORD - 1]
        view = self._lists.get(start)
        if view is None or view.shape is not shape or view.capacity != capacity:
            view = self._lists[start] = ListView(self, start, shape, capacity)
        return view

    def initialize(self, record: type, offset: int, capacities: Mapping[str, int]) -> None:
        """Set the record at an offset to its default state, with its lists after it."""
        size = layout(record).size
        self.bytes[offset : offset + size] = bytes(size)
        self._initialize(record, offset, capacities, offset + size)

    def _initialize(self, record: type, offset: int, capacities: Mapping[str, int], end: int) -> int:
        """Write the defaults of a zeroed record and the headers of its lists, which begin at `end`; return the end."""
        view = self.view(record, offset)
        for name, (field_offset, shape, default) in layout(record).fields.items():
            if isinstance(shape, Scalar):
                if default:
                    setattr(view, name, default)
            elif isinstance(shape, Inner):
                end = self._initialize(shape.record, offset + field_offset, _inner_capacities(capacities, name), end)
            elif shape.capacity is None:
                capacity = capacities.get(name, 0)
                self.words[end // WORD] = capacity
                self.words[(offset + field_offset) // WORD] = end + WORD - offset
                end += WORD + shape.extent(capacity)
            elif shape.fixed and isinstance(shape.item, Inner):
                for index in range(shape.capacity):
                    end = self._initialize(shape.item.record, offset + field_offset + index * shape.item.size, {}, end)
        return end

    # -- allocations ---------------------------------------------------------------------------------------------------

    def allocate(self, size: int) -> int:
        """Reserve bytes after the root, in the first gap that is large enough; return their offset. Their content is
        undefined."""
        size = align(size)
        begin = self._end
        for low, high in self._spans:
            if begin + size <= low:
                break
            begin = high
        insort(self._spans, (begin, begin + size))
        if begin + size > len(self.buffer):
            buffer = zeros(max(begin + size, 4 * len(self.buffer), MIN_MAPPING))
            buffer[: len(self.buffer)] = self.buffer
            self._use(buffer)
        return begin

    def free(self, offset: int) -> None:
        """Free an allocation."""
        index = next(index for index, span in enumerate(self._spans) if span[0] == offset)
        del self._spans[index]

    def free_all(self) -> None:
        """Free all allocations."""
        self._spans.clear()

    # -- links and errors ----------------------------------------------------------------------------------------------

    def link(self, slot: int, address: int, owner: Any) -> None:
        """Link a slot to native code and keep its owner alive."""
        self.words[LINKS // WORD + slot] = address
        self._linked.append(owner)

    def link_callback(self, slot: int, declaration: Any, call: Callable[..., int]) -> None:
        """Link a slot, and the interpreted declaration, to a Python function of integers; a record is its offset.

        An exception, or a result other than a 64-bit integer, ends the native call; `raise_error` raises it.
        """

        hints = [hint for name, hint in declaration.__annotations__.items() if name != "return"]
        self.callbacks[declaration] = call
        wrapper = Guarded(self, declaration.__name__, call, sum(hint is not self._root for hint in hints))
        self.link(slot, wrapper.address, wrapper)

    def raise_error(self) -> None:
        """Raise the error in the status, and clear it: CheckError, or the exception of a callback."""
        code, site, first, second = self.words[STATUS : SECOND + 1]
        error = self.callback_error
        self.clear_error()
        if code == StatusCode.CALLBACK:
            assert error is not None
            raise error
        location = ctypes.string_at(site).decode()
        raise CheckError(f"{location}: {SENTENCES[StatusCode(code)].format(first, second)}")

    def clear_error(self) -> None:
        """Clear the error in the status."""
        self.bytes[NULL_SIZE:LINKS] = bytes(LINKS - NULL_SIZE)
        self.callback_error = None


def align(size: int) -> int:
    """Return the bytes of whole cache lines for `size` bytes."""
    return -(-size // LINE) * LINE


def _inner_capacities(capacities: Mapping[str, int], name: str) -> dict[str, int]:
    """Return the capacities of the lists of an inner record."""
    prefix = f"{name}."
    return {key.removeprefix(prefix): value for key, value in capacities.items() if key.startswith(prefix)}


def lists_extent(record: type, capacities: Mapping[str, int]) -> int:
    """Return the bytes of the lists that follow a record."""
    size = 0
    for name, (_, shape, _) in layout(record).fields.items():
        if isinstance(shape, Inner):
            size += lists_extent(shape.record, _inner_capacities(capacities, name))
        elif isinstance(shape, ListOf) and shape.capacity is None:
            size += WORD + shape.extent(capacities.get(name, 0))
    return size


@cache
def view_class(record: type) -> type[RecordView]:
    """Make the class of the views of a record."""
    members: dict[str, Any] = {"__module__": record.__module__, "__doc__": record.__doc__}
    rows: list[tuple[str, Any]] = []
    for name, (offset, shape, _) in layout(record).fields.items():
        if name in RecordView.__annotations__:
            raise NativeError(f"{record.__name__}.{name}: views have an attribute of this name: choose another")
        if isinstance(shape, Scalar) and shape.record is None:
            rows.append((name, shape.form.ctype))
            continue
        rows.append((f"_{name}", ctypes.c_int64 * (shape.size // WORD) if shape.size != WORD else ctypes.c_int64))
        members[name] = _property(name, offset, shape)
    members["_fields_"] = rows
    view = type(record.__name__, (RecordView,), members)
    assert ctypes.sizeof(view) == layout(record).size, record
    return view


def _property(name: str, offset: int, shape: Shape) -> property:
    """Make the Python property of a field that is no integer."""
    raw = f"_{name}"
    if isinstance(shape, Scalar):
        target = shape.record
        assert target is not None

        def reference(self: RecordView) -> Any:
            return self.arena.reference(target, getattr(self, raw))

        def refer(self: RecordView, value: RecordView | None) -> None:
            setattr(self, raw, 0 if value is None else value.offset)

        return property(reference, refer)
    if isinstance(shape, Inner):
        return property(lambda self: self.arena.view(shape.record, self.offset + offset))
    return property(lambda self: self.arena.items(self.offset + offset, shape, self.offset))


def callback(declaration: Callable[..., int]) -> Callable[..., int]:
    """Declare a callback: a function of a record and integers, without a body. The root record is not passed.

    `Arena.link_callback` sets the Python function of each machine.
    """

    @wraps(declaration)
    def interpreted(receiver: RecordView, *arguments: Any) -> int:
        arena = receiver.arena
        operands = arguments if receiver is arena.root else (receiver, *arguments)
        integers = [argument.offset if isinstance(argument, RecordView) else argument for argument in operands]
        return check_result(interpreted.__name__, arena.callbacks[interpreted](*integers))

    interpreted.__dict__["is_callback"] = True
    return interpreted


_GUARD = """
def guarded({names}):
    try:
        answer = call({names})
        return answer if type(answer) is int and {low} <= answer <= {high} else check_result(name, answer)
    except BaseException as error:
        arena.callback_error = error
        arena.words[status] = callback
        return 0
"""
"""Call with named arguments, because a starred argument takes twice as long. The handler calls nothing, because
Ctrl-C may interrupt before any call."""


@cache
def _guard(parameters: int) -> tuple[CodeType, Any]:
    """Return the code that defines a guarded call, and its class of `ctypes`."""
    names = ", ".join(f"a{index}" for index in range(parameters))
    text = _GUARD.format(names=names, low=_LOWEST, high=_HIGHEST)
    return compile(text, "<guard>", "exec"), ctypes.PYFUNCTYPE(ctypes.c_int64, *[ctypes.c_int64] * parameters)


class Guarded:
    """Python function of integers for compiled code. An exception is stored, and sets the status of the arena."""

    def __init__(self, arena: Arena, name: str, call: Callable[..., int], parameters: int) -> None:
        code, function_type = _guard(parameters)
        namespace: dict[str, Any] = {"call": call, "arena": arena, "name": name, "check_result": check_result}
        namespace |= {"status": STATUS, "callback": StatusCode.CALLBACK}
        exec(code, namespace)
        self._thunk = function_type(namespace["guarded"])
        address = ctypes.cast(self._thunk, ctypes.c_void_p).value
        assert address is not None
        self.address = address


def check_result(name: str, answer: Any) -> int:
    """Return the result of a callback; NativeError if it is no 64-bit integer."""
    if type(answer) is int and _LOWEST <= answer <= _HIGHEST:
        return answer
    raise NativeError(f"{name} answered {answer!r}: answer a 64-bit integer")


def is_callback(function: object) -> bool:
    """Check whether a function is the declaration of a callback."""
    return "is_callback" in getattr(function, "__dict__", ())
