"""Submissions: time stamps, and where the cycles of each went (docs/latency.md).

They are rows of integers: hundreds of thousands of them cost little to write, to keep and to add up. A row is
`WIDTH` 64-bit integers, one for each of `COLUMNS`. A stamp that was not seen is `NONE`. Finished rows are spilled, so
that memory does not grow with the length of a run.
"""

from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple, overload

from pyv_native.state import LATEST, Fields, StateError, inside, integer
from pyv_npu.observe.latency.spilled import Table, packed, unpacked

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Integers = NDArray[np.int64]


class Reason(StrEnum):
    """Stall category of a cycle between t0 and t2. The first match, in the order of docs/latency.md, "Reasons"."""

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
_SUBMITTED = ("descriptor", "prebuilt", "leave", "arrival", "tight", "stream", "call_site")
_FACTS = (*_SUBMITTED, "number", "ticket", "error")
"""Of each submission, as in `Submission`; the first ones are known when it leaves the core."""
COLUMNS = (*_FACTS, "fetch_start", "interrupting", *STAMPS, *(reason.value for reason in Reason))
"""`fetch_start`: when the front end took it up. `interrupting`: whether it asks for an interrupt."""
COLUMN = {name: index for index, name in enumerate(COLUMNS)}
WIDTH = len(COLUMNS)
REASONS = slice(COLUMN[Reason.INTERRUPTED], COLUMN[Reason.VALIDATE] + 1)
"""The columns of the reasons, in the order of `Reason`."""

_REASONS = tuple(Reason)
_FLAGS = ("prebuilt", "tight")
_ORDER, _HOLDS = WIDTH, WIDTH + 1
SLOT = WIDTH + 2
_BLANK = array("q", [*(NONE if name in STAMPS else 0 for name in COLUMNS[len(_SUBMITTED) :]), NONE, 1]).tobytes()
"""Columns of a slot behind the facts of acceptance."""
CHUNK = 4096
"""Finished rows that are spilled together."""


class Rows:
    """Rows of submissions: those under way by slot, finished ones spilled in the order of acceptance.

    A slot is held by everything that may still write into its row: the device until the command ends, a submit function
    until it returns, a status word until it is read. A row that nothing holds is finished. One that the device never
    accepted is dropped; one that is finished before an older row waits for it in memory.
    """

    def __init__(self, chunk: int = CHUNK) -> None:
        """`chunk`: finished rows that are spilled together."""
        self.data = array("q")
        """Slot after slot: a row, its number in the order of acceptance or NONE, and how often it is held."""
        self.accepted = 0
        self._free: list[int] = []
        self._finished = Table(WIDTH, chunk * WIDTH)
        self._next = 0
        """Number of the row that follows the finished ones."""
        self._waiting: dict[int, array[int]] = {}

    def add(
        self, descriptor: int, prebuilt: bool, leave: int, arrival: int, tight: bool, stream: int, call_site: int = 0
    ) -> int:
        """Begins a row, held by the device; returns the index in `data` of its first column."""
        row = array("q", (descriptor, prebuilt, leave, arrival, tight, stream, call_site))
        row.frombytes(_BLANK)
        if not self._free:
            self.data.extend(row)
            return len(self.data) - SLOT
        at = self._free.pop()
        self.data[at : at + SLOT] = row
        return at

    def accept(self, row: int) -> None:
        """Numbers a row."""
        self.data[row + _ORDER] = self.accepted
        self.accepted += 1

    def hold(self, row: int) -> None:
        """Keeps a slot until one more `release`."""
        self.data[row + _HOLDS] += 1

    def release(self, row: int) -> None:
        """Undoes `add` or `hold`; a row that nothing holds is finished."""
        data = self.data
        data[row + _HOLDS] -= 1
        if data[row + _HOLDS]:
            return
        order = data[row + _ORDER]
        self._free.append(row)
        if order == NONE:
            return
        data[row + _ORDER] = NONE
        self._waiting[order] = data[row : row + WIDTH]
        while self._next in self._waiting:
            self._finished.extend(self._waiting.pop(self._next))
            self._next += 1

    def snapshot(self) -> "Callable[[], Iterator[Integers]]":
        """Returns the source of all accepted rows so far, in the order of acceptance: an iterator of their chunks."""
        import numpy as np

        finished = self._finished.state().parts
        slots = np.array(self.data, np.int64).reshape(-1, SLOT)
        slots = slots[slots[:, _ORDER] != NONE]
        numbers = np.concatenate([slots[:, _ORDER], np.array([*self._waiting], np.int64)])
        waiting = np.array([*self._waiting.values()], np.int64).reshape(-1, WIDTH)
        open_rows = np.concatenate([slots[:, :WIDTH], waiting])[np.argsort(numbers)]

        def chunks() -> "Iterator[Integers]":
            for segment in finished:
                yield np.frombuffer(segment.read(), np.int64).reshape(-1, WIDTH).copy()
            yield open_rows.copy()

        return chunks

    # -- snapshots ---------------------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """State for a snapshot. Who holds a slot says so again after `load_state`."""
        return {
            "slots": self.data.tobytes(),
            "accepted": self.accepted,
            "finished": self._finished.state(),
            "waiting": packed(number for order, row in self._waiting.items() for number in (order, *row)),
        }

    def load_state(self, state: Any) -> None:
        """Take on a state. Then holders hold their rows, and `collect` ends it."""
        fields = Fields(state, "slots", "accepted", "finished", "waiting")
        with inside("slots"):
            self.data = unpacked(fields["slots"], SLOT)
            _check(self.data, SLOT)
        self.accepted = fields.integer("accepted", 0, LATEST)
        with inside("finished"):
            self._finished.load_state(fields["finished"], lambda rows: _check(rows, WIDTH))
        self._next = len(self._finished)
        with inside("waiting"):
            rows = unpacked(fields["waiting"], 1 + WIDTH)
            _check(rows, 1 + WIDTH)
            self._waiting = {rows[at]: rows[at + 1 : at + 1 + WIDTH] for at in range(0, len(rows), 1 + WIDTH)}
        for at in range(0, len(self.data), SLOT):
            self.data[at + _HOLDS] = 0

    def collect(self) -> None:
        """Frees the slots that nothing holds after `load_state`. StateError where accepted rows are missing."""
        slots = range(0, len(self.data), SLOT)
        self._free = [at for at in slots if not self.data[at + _HOLDS]]
        for at in self._free:
            self.data[at + _ORDER] = NONE
        numbers = [self.data[at + _ORDER] for at in slots if self.data[at + _ORDER] != NONE]
        if sorted([*numbers, *self._waiting]) != list(range(self._next, self.accepted)):
            raise StateError("its rows are not those that were accepted")

    def row(self, value: object) -> int:
        """A reference to a row, which holds it."""
        at = integer(value, 0, len(self.data) - SLOT)
        if at % SLOT:
            raise StateError(f"{at} is not the begin of a row")
        self.hold(at)
        return at


def _check(rows: "array[int]", width: int) -> None:
    """StateError for integers that no row has; before and after its columns there may be others, not below NONE."""
    import numpy as np

    matrix = np.array(rows, np.int64).reshape(-1, width)
    first = 1 if width == 1 + WIDTH else 0
    columns = matrix[:, first : first + WIDTH]
    facts = np.delete(columns, [*map(COLUMN.__getitem__, STAMPS), *range(REASONS.start, REASONS.stop)], axis=1)
    stamps = columns[:, COLUMN[STAMPS[0]] : COLUMN[STAMPS[-1]] + 1]
    flags = columns[:, [COLUMN[name] for name in (*_FLAGS, "interrupting")]]
    margins = np.delete(matrix, np.arange(first, first + WIDTH), axis=1)
    if (facts < 0).any() or (stamps < NONE).any() or (flags > 1).any() or (margins < NONE).any():
        raise StateError("a stamp or a fact of a submission is negative")
    if (np.abs(matrix) > LATEST).any():
        raise StateError(f"a number is beyond {LATEST}")


class Submissions(Sequence[Submission]):
    """Rows that are complete, in chunks that are read when they are asked for. Each `Submission` is built then."""

    def __init__(self, chunks: "Callable[[], Iterable[Integers]]" = tuple) -> None:
        """`chunks`: returns an iterator of matrices (rows, WIDTH), each time the same."""
        self.chunks = chunks
        self._count: int | None = None

    @classmethod
    def of(cls, submissions: Iterable[Submission]) -> "Submissions":
        """The rows of these."""
        import numpy as np

        matrix = np.array([_row(each) for each in submissions], dtype=np.int64).reshape(-1, WIDTH)
        return cls(lambda: [matrix])

    def column(self, name: str) -> "Integers":
        """Returns a column of `COLUMNS` over all rows."""
        import numpy as np

        return np.concatenate([np.empty(0, np.int64), *(rows[:, COLUMN[name]] for rows in self.chunks())])

    def where(self, chosen: "Callable[[Integers], NDArray[np.bool_]]") -> "Submissions":
        """The rows for which `chosen`, called with a chunk, is true."""
        return Submissions(lambda: (rows[chosen(rows)] for rows in self.chunks()))

    @property
    def failed(self) -> "Submissions":
        """Submissions that ended in an error."""
        return self.where(lambda rows: rows[:, COLUMN["error"]] != 0)

    def __len__(self) -> int:
        if self._count is None:
            self._count = sum(map(len, self.chunks()))
        return self._count

    def __iter__(self) -> Iterator[Submission]:
        return (_submission(row) for rows in self.chunks() for row in rows.tolist())

    @overload
    def __getitem__(self, index: int) -> Submission: ...
    @overload
    def __getitem__(self, index: slice) -> "Submissions": ...
    def __getitem__(self, index: int | slice) -> "Submission | Submissions":
        indices = range(len(self))[index]
        if isinstance(indices, int):
            return next(islice(iter(self), indices, None))
        import numpy as np

        matrix = np.concatenate([*self.chunks()])[index] if indices else np.empty((0, WIDTH), np.int64)
        return Submissions(lambda: [matrix])


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
