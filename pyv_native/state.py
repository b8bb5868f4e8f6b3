"""States of parts of a machine as plain data, and the checks with which they are restored.

A class that changes while a machine runs has two methods. `state()` returns its state for a snapshot: a dict of
integers, booleans, strings, bytes, None, and lists and dicts (with strings as keys) of these. `load_state(state)`
restores such a value through `Fields`. The value may come from a file, so every type, length, range and reference is
checked, and a `StateError` names the invalid field. References are indices: of a command, a unit, a row.
"""

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from array import array

WORD32 = (1 << 32) - 1
WORD64 = (1 << 64) - 1
LATEST = 1 << 62
"""Maximum cycle of a run; it also means "never"."""


class StateError(ValueError):
    """Error of an invalid state. `path`: path of the field, as names and indices."""

    def __init__(self, problem: str, *path: str | int) -> None:
        super().__init__(problem)
        self.problem = problem
        self.path = path

    def within(self, *path: str | int) -> "StateError":
        """Return the same error with its path extended by that of the containing part."""
        return StateError(self.problem, *path, *self.path)

    def __str__(self) -> str:
        path = "".join(f"[{name}]" if isinstance(name, int) else f".{name}" for name in self.path)
        return f"{path.lstrip('.') or 'state'}: {self.problem}"


class Stateful(Protocol):
    """Part of a machine with a state in snapshots."""

    def state(self) -> Any: ...

    def load_state(self, state: Any) -> None: ...


class inside:  # noqa: N801 - reads as a preposition; a generator would be three times slower
    """Context that attributes errors to the field at `path`."""

    def __init__(self, *path: str | int) -> None:
        self._path = path

    def __enter__(self) -> None: ...

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if isinstance(error, StateError):
            raise error.within(*self._path) from None


def integer(value: object, low: int, high: int) -> int:
    """Check an integer within `low`..`high`."""
    if type(value) is not int:
        raise StateError(f"{quote(value)} is no integer")
    if not low <= value <= high:
        raise StateError(f"{value} is not within {low}..{high}")
    return value


def sequence(value: object, length: int | None = None) -> list[Any]:
    """Check a list, of `length` items unless that is None."""
    if type(value) is not list:
        raise StateError(f"{quote(value)} is no list")
    if length is not None and len(value) != length:
        raise StateError(f"{len(value)} items, must be {length}")
    return value


def integers(value: object, low: int, high: int, length: int | None = None) -> list[int]:
    """Check a list of integers within `low`..`high`."""
    items = sequence(value, length)
    return list(row(items, *[(low, high)] * len(items)))


def row(value: object, *limits: tuple[int, int]) -> tuple[int, ...]:
    """Check a list with an integer for each of the limits (low, high)."""
    items = sequence(value, len(limits))
    for index, (item, (low, high)) in enumerate(zip(items, limits, strict=True)):
        if type(item) is not int or not low <= item <= high:
            with inside(index):
                integer(item, low, high)
    return tuple(items)


def rows(value: object, *limits: tuple[int, int]) -> list[tuple[int, ...]]:
    """Check a list of rows, each with an integer for each of the limits (low, high)."""
    tuples = []
    for index, item in enumerate(sequence(value)):
        with inside(index):
            tuples.append(row(item, *limits))
    return tuples


def data(value: object, size: int | None = None) -> bytes:
    """Check bytes, of length `size` unless that is None."""
    if type(value) is not bytes:
        raise StateError(f"{quote(value)} is no bytes")
    if size is not None and len(value) != size:
        raise StateError(f"{len(value)} bytes, must be {size}")
    return value


def unpack(value: object, *limits: tuple[int, int]) -> "array[int]":
    """Check the bytes of rows of 64-bit integers, one for each of the limits (low, high); return the integers."""
    from array import array  # few runs restore a state

    content, numbers = data(value), array("q")
    if len(content) % (len(limits) * numbers.itemsize):
        raise StateError(f"{len(content)} bytes are no rows of {len(limits)} integers")
    numbers.frombytes(content)
    for index, (low, high) in enumerate(limits if numbers else ()):
        column = numbers[index :: len(limits)]
        integer(min(column), low, high)
        integer(max(column), low, high)
    return numbers


def quote(value: object) -> str:
    """Format a value of any type as one short line."""
    text = repr(value) if isinstance(value, int | str | bytes | float | None) else type(value).__name__
    return text if len(text) <= 40 else f"{text[:37]}..."


class Fields:
    """Fields of a state: a dict with exactly the keys `names`."""

    def __init__(self, state: object, *names: str) -> None:
        if type(state) is not dict:
            raise StateError(f"{quote(state)} is no dict")
        for name in names:
            if name not in state:
                raise StateError("is missing", name)
        if len(state) != len(names):
            surplus = next(name for name in state if name not in names)
            raise StateError("is no field of this part", quote(surplus).strip("'"))
        self._state: dict[str, Any] = state

    def __getitem__(self, name: str) -> Any:
        """Return the value as it is, unchecked."""
        return self._state[name]

    def integer(self, name: str, low: int, high: int) -> int:
        value = self._state[name]
        if type(value) is not int or not low <= value <= high:
            with inside(name):
                integer(value, low, high)
        return int(value)

    def optional(self, name: str, low: int, high: int) -> int | None:
        """Check an integer or None."""
        return None if self._state[name] is None else self.integer(name, low, high)

    def flag(self, name: str) -> bool:
        value = self._state[name]
        if type(value) is not bool:
            raise StateError(f"{quote(value)} is no boolean", name)
        return value

    def text(self, name: str) -> str:
        value = self._state[name]
        if type(value) is not str:
            raise StateError(f"{quote(value)} is no string", name)
        return value

    def data(self, name: str, size: int | None = None) -> bytes:
        with inside(name):
            return data(self._state[name], size)

    def sequence(self, name: str, length: int | None = None) -> list[Any]:
        with inside(name):
            return sequence(self._state[name], length)

    def integers(self, name: str, low: int, high: int, length: int | None = None) -> list[int]:
        with inside(name):
            return integers(self._state[name], low, high, length)

    def row(self, name: str, *limits: tuple[int, int]) -> tuple[int, ...]:
        with inside(name):
            return row(self._state[name], *limits)

    def rows(self, name: str, *limits: tuple[int, int]) -> list[tuple[int, ...]]:
        with inside(name):
            return rows(self._state[name], *limits)

    def table(self, name: str, *limits: tuple[int, int]) -> dict[int, Any]:
        """Check a mapping as rows [key, value] or, with more limits, [key, value, ...] with unique keys."""
        mapping: dict[int, Any] = {}
        for index, (key, *values) in enumerate(self.rows(name, *limits)):
            if key in mapping:
                raise StateError(f"{key} comes twice", name, index)
            mapping[key] = values[0] if len(values) == 1 else tuple(values)
        return mapping

    def load(self, name: str, part: Stateful) -> None:
        """Restore the state of a part."""
        with inside(name):
            part.load_state(self._state[name])
