"""Submissions: timestamps, and the cycles of each by reason (docs/latency.md).

Submissions are rows of integers, so that hundreds of thousands are cheap to write, store and accumulate. A row has
`WIDTH` 64-bit integers, one for each of `COLUMNS`. An unobserved timestamp is `NONE`. Finished rows are spilled, so
that memory does not grow with the length of a run.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple, overload

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Integers = NDArray[np.int64]


class Reason(StrEnum):
    """Stall category of a cycle between t0 and t2: the first match in the order of docs/latency.md, "Reasons"."""

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
    """Submission. Timestamps are cycle numbers (the start of the cycle), None if the event was not observed."""

    descriptor: int
    """Address of the descriptor."""
    prebuilt: bool
    t0: int | None
    leave: int
    """Cycle in which the doorbell or the accepted ENQCMD_T leaves the core; later cycles are those of the message."""
    arrival: int
    """Cycle in which the device receives it."""
    tight: bool
    stream: int = 0
    call_site: int = 0
    """Address in the instruction that calls the submit function; without such functions, of the doorbell or
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
    """Reason -> cycles, without reasons of no cycle."""

    def span(self, first: str, last: str) -> int | None:
        """Return the cycles between two timestamps, None if either is missing."""
        begin, end = getattr(self, first), getattr(self, last)
        return None if begin is None or end is None else end - begin


NONE = -1
STAMPS = ("t_arr", "t0", "t1", "t2", "t3", "t4", "t5", "t6", "t7")
SUBMITTED = ("descriptor", "prebuilt", "leave", "arrival", "tight", "stream", "call_site")
_FACTS = (*SUBMITTED, "number", "ticket", "error")
"""Fields of `Submission`; those of SUBMITTED are known when the submission leaves the core."""
COLUMNS = (*_FACTS, "fetch_start", "interrupting", *STAMPS, *(reason.value for reason in Reason))
"""Columns of a row. `fetch_start`: start of the fetch by the front end. `interrupting`: whether it has flags.irq."""
COLUMN = {name: index for index, name in enumerate(COLUMNS)}
WIDTH = len(COLUMNS)
REASONS = slice(COLUMN[Reason.INTERRUPTED], COLUMN[Reason.VALIDATE] + 1)
"""Columns of the reasons, in the order of `Reason`."""

_REASONS = tuple(Reason)
_FLAGS = ("prebuilt", "tight")


class Submissions(Sequence[Submission]):
    """Sequence of complete submissions, in chunks of rows that are read on demand; each `Submission` is built then."""

    def __init__(self, chunks: "Callable[[], Iterable[Integers]]" = tuple) -> None:
        """`chunks()`: iterator of matrices (rows, WIDTH), equal in every call."""
        self.chunks = chunks
        self._count: int | None = None

    def column(self, name: str) -> "Integers":
        """Return a column of `COLUMNS` over all rows."""
        import numpy as np

        return np.concatenate([np.empty(0, np.int64), *(rows[:, COLUMN[name]] for rows in self.chunks())])

    @property
    def failed(self) -> "Submissions":
        """Submissions that ended in an error."""
        return Submissions(lambda: (rows[rows[:, COLUMN["error"]] != 0] for rows in self.chunks()))

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
