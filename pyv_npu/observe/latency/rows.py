"""Submissions: time stamps, and where the cycles of each went (docs/latency.md).

They are kept as rows of integers: hundreds of thousands of them cost little to write, to keep and to add up. A row is
`WIDTH` 64-bit integers, one for each of `COLUMNS`. A stamp that was not seen is `NONE`.
"""

from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Any, NamedTuple, overload

from pyv_native.state import LATEST, StateError, data, integer

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Integers = NDArray[np.int64]


class Reason(StrEnum):
    """Why a cycle between t0 and t2 passed. The first match, in the order of docs/latency.md, "Reasons"."""

    INTERRUPTED = "interrupted"
    RETRY = "retry"
    DESCRIPTOR_STORE = "descriptor_store"
    FENCE = "fence"
    MMIO = "mmio"
    BATCH = "batch"
    SETUP = "setup"
    BUS = "bus"
    ISSUE = "issue"
    FULL_WAIT = "full_wait"
    FETCH = "fetch"
    VALIDATE = "validate"


class Submission(NamedTuple):
    """Stamps are cycle numbers (the start of the cycle), None where the thing was not seen."""

    descriptor: int
    """Address of the 64 bytes."""
    prebuilt: bool
    t0: int | None
    leave: int
    """The doorbell or the accepted ENQCMD_T leaves the core: attribution turns from core to message."""
    arrival: int
    """The device has it."""
    tight: bool
    stream: int = 0
    call_site: int = 0
    """An address in the instruction that called the submit function; without such functions, that of the doorbell or
    ENQCMD_T."""
    number: int = 0
    """Acceptance number within the stream."""
    t_arr: int | None = None
    t1: int | None = None
    t2: int | None = None
    t3: int | None = None
    t4: int | None = None
    t5: int | None = None
    t6: int | None = None
    t7: int | None = None
    ticket: int = 0
    error: int = 0
    reasons: Mapping[Reason, int] = {}
    """Cycles of each reason that holds for any."""

    def span(self, first: str, last: str) -> int | None:
        """Cycles between two stamps, None when one is missing."""
        begin, end = getattr(self, first), getattr(self, last)
        return None if begin is None or end is None else end - begin


NONE = -1
STAMPS = ("t_arr", "t0", "t1", "t2", "t3", "t4", "t5", "t6", "t7")
_GIVEN = ("descriptor", "prebuilt", "leave", "arrival", "tight", "stream", "call_site")
_FACTS = (*_GIVEN, "number", "ticket", "error")
"""Of each submission, as in `Submission`; the first ones are known when it leaves the core."""
COLUMNS = (*_FACTS, "fetch_start", *STAMPS, *(reason.value for reason in Reason))
"""`fetch_start`: when the front end took it up."""
COLUMN = {name: index for index, name in enumerate(COLUMNS)}
WIDTH = len(COLUMNS)
REASONS = slice(COLUMN[Reason.INTERRUPTED], COLUMN[Reason.VALIDATE] + 1)
"""The columns of the reasons, in the order of `Reason`."""

_REASONS = tuple(Reason)
_FLAGS = ("prebuilt", "tight")
_BLANK = array("q", [NONE if name in STAMPS else 0 for name in COLUMNS[len(_GIVEN) :]]).tobytes()


class Rows:
    """Rows that are being written, in the order in which the submissions left the core."""

    def __init__(self) -> None:
        self.data = array("q")
        """Row after row."""

    def add(
        self, descriptor: int, prebuilt: bool, leave: int, arrival: int, tight: bool, stream: int, call_site: int = 0
    ) -> int:
        """Begin a row; the index in `data` of its first column."""
        data = self.data
        at = len(data)
        data.extend((descriptor, prebuilt, leave, arrival, tight, stream, call_site))
        data.frombytes(_BLANK)
        return at

    def matrix(self) -> "Integers":
        """(rows, WIDTH), which shares the memory: no row can be added while it is in use."""
        import numpy as np

        return np.frombuffer(self.data, dtype=np.int64).reshape(-1, WIDTH)

    # -- snapshots ---------------------------------------------------------------------------------------------

    def state(self) -> bytes:
        """What a snapshot keeps."""
        return self.data.tobytes()

    def load_state(self, state: Any) -> None:
        import numpy as np

        self.data = unpacked(state, WIDTH)
        matrix = self.matrix()
        given = np.delete(matrix, [*map(COLUMN.__getitem__, STAMPS), *range(REASONS.start, REASONS.stop)], axis=1)
        stamps = matrix[:, COLUMN[STAMPS[0]] : COLUMN[STAMPS[-1]] + 1]
        flags = matrix[:, [COLUMN[name] for name in _FLAGS]]
        if (given < 0).any() or (stamps < NONE).any() or (flags > 1).any():
            raise StateError("a stamp or a fact of a submission is negative")
        if (np.abs(matrix) > LATEST).any():
            raise StateError(f"a number is beyond {LATEST}")

    def row(self, value: object) -> int:
        """A reference to a row."""
        at = integer(value, 0, len(self.data) - WIDTH)
        if at % WIDTH:
            raise StateError(f"{at} is not the begin of a row")
        return at


def packed(numbers: Iterable[int]) -> bytes:
    """Integers of 64 bits, for a snapshot."""
    return array("q", numbers).tobytes()


def unpacked(state: object, width: int) -> "array[int]":
    """The inverse, for rows of `width` integers."""
    found = array("q")
    content = data(state)
    if len(content) % (width * found.itemsize):
        raise StateError(f"{len(content)} bytes are no rows of {width} integers")
    found.frombytes(content)
    return found


class Table:
    """Rows of named integers that come one by one."""

    def __init__(self, *names: str) -> None:
        self._names = names
        self._data = array("q")

    def add(self, *row: int) -> None:
        self._data.extend(row)

    def __len__(self) -> int:
        return len(self._data) // len(self._names)

    def column(self, name: str) -> "Integers":
        """A copy, so that rows can still be added."""
        import numpy as np

        at, width = self._names.index(name), len(self._names)
        return np.array(self._data, dtype=np.int64)[at::width]

    # -- snapshots ---------------------------------------------------------------------------------------------

    def state(self) -> bytes:
        """What a snapshot keeps."""
        return self._data.tobytes()

    def load_state(self, state: Any) -> None:
        numbers = unpacked(state, len(self._names))
        if any(not 0 <= number <= LATEST for number in numbers):
            raise StateError(f"a number is not within 0..{LATEST}")
        self._data = numbers


class Submissions(Sequence[Submission]):
    """Rows that are complete. Each `Submission` is made when it is asked for."""

    def __init__(self, matrix: "Integers | None" = None) -> None:
        """`matrix`: (rows, WIDTH); None: nothing was submitted, and NumPy is loaded only where more is asked."""
        self._rows = matrix

    @property
    def _matrix(self) -> "Integers":
        if self._rows is None:
            import numpy as np

            self._rows = np.empty((0, WIDTH), np.int64)
        return self._rows

    @classmethod
    def of(cls, submissions: Iterable[Submission]) -> "Submissions":
        """The rows of these."""
        import numpy as np

        return cls(np.array([_row(each) for each in submissions], dtype=np.int64).reshape(-1, WIDTH))

    def column(self, name: str) -> "Integers":
        """One of `COLUMNS` of all rows."""
        return self._matrix[:, COLUMN[name]]

    def reasons(self) -> "Integers":
        """(rows, reasons): cycles, in the order of `Reason`."""
        return self._matrix[:, REASONS]

    def where(self, chosen: "NDArray[np.bool_]") -> "Submissions":
        """Some of the rows."""
        return Submissions(self._matrix[chosen])

    @property
    def failed(self) -> "Submissions":
        """Those that ended in an error."""
        return self.where(self.column("error") != 0) if len(self) else self

    def __len__(self) -> int:
        return 0 if self._rows is None else len(self._rows)

    def __iter__(self) -> Iterator[Submission]:
        return iter(()) if self._rows is None else map(_submission, self._rows.tolist())

    @overload
    def __getitem__(self, index: int) -> Submission: ...
    @overload
    def __getitem__(self, index: slice) -> "Submissions": ...
    def __getitem__(self, index: int | slice) -> "Submission | Submissions":
        if self._rows is None and isinstance(index, slice):
            return self
        found = self._matrix[index]
        return Submissions(found) if isinstance(index, slice) else _submission(found.tolist())


def _submission(row: list[int]) -> Submission:
    values: dict[str, Any] = {name: row[COLUMN[name]] for name in _FACTS}
    values |= {name: bool(values[name]) for name in _FLAGS}
    values |= {name: None if row[COLUMN[name]] == NONE else row[COLUMN[name]] for name in STAMPS}
    reasons = {reason: cycles for reason, cycles in zip(_REASONS, row[REASONS], strict=True) if cycles}
    return Submission(**values, reasons=reasons)


def _row(submission: Submission) -> list[int]:
    row = [0] * WIDTH
    for name in (*_FACTS, *STAMPS):
        value = getattr(submission, name)
        row[COLUMN[name]] = NONE if value is None else value
    row[REASONS] = [submission.reasons.get(reason, 0) for reason in _REASONS]
    return row
