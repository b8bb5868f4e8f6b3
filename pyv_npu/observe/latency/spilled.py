"""Spilled rows of integers, so that memory does not grow with the length of a run."""

from array import array
from collections.abc import Iterable
from typing import TYPE_CHECKING

from pyv_native.spool import Segment, Segments, Spool
from pyv_native.state import LATEST, unpack
from pyv_npu.observe.latency.rows import NONE

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

CHUNK = 1 << 15
"""Minimum number of integers per spill."""


class Table:
    """Append-only table of integers, spilled in chunks."""

    def __init__(self, width: int, chunk: int = CHUNK) -> None:
        """`width`: integers per row; `chunk`: minimum number of integers per spill."""
        self._width, self._chunk = width, chunk
        self._spool = Spool()
        self._spilled: list[Segment] = []
        self._tail = array("q")

    def __len__(self) -> int:
        """Return the number of rows."""
        size = sum(segment.size for segment in self._spilled) // self._tail.itemsize
        return (size + len(self._tail)) // self._width

    def extend(self, numbers: Iterable[int]) -> None:
        """Append rows, as consecutive integers."""
        tail = self._tail
        tail.extend(numbers)
        if len(tail) >= self._chunk:
            self._spilled.append(self._spool.append(tail.tobytes()))
            del tail[:]

    def select(self, first: int) -> "list[NDArray[np.int64]]":
        """Return the other columns of all rows so far that begin with `first`. Only one chunk is in memory
        in addition to the result."""
        import numpy as np

        chunks = (np.frombuffer(part.read(), np.int64).reshape(-1, self._width) for part in self.state().parts)
        return list(np.concatenate([rows[rows[:, 0] == first, 1:].T for rows in chunks], axis=1))

    def state(self) -> Segments:
        """Return all rows so far as immutable segments: spilled chunks and the tail."""
        return Segments(*self._spilled, Spool().append(self._tail.tobytes()))

    def load_state(self, state: object) -> None:
        """Restore a state; `Segments` of this process are shared."""
        if isinstance(state, Segments):
            *self._spilled, tail = state.parts
            self._tail = array("q", tail.read())
            return
        numbers = unpack(state, *[(NONE, LATEST)] * self._width)
        self._spilled, self._tail = [], array("q")
        for at in range(0, len(numbers), self._chunk):
            self.extend(numbers[at : at + self._chunk])
