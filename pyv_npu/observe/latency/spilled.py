"""Rows of integers that are spilled, so that memory does not grow with the length of a run."""

from array import array
from collections.abc import Iterable
from typing import TYPE_CHECKING

from pyv_native.spool import Segment, Segments, Spool
from pyv_native.state import LATEST, StateError, data
from pyv_npu.observe.latency.rows import NONE

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

CHUNK = 1 << 15
"""Integers that are spilled together."""


def packed(numbers: Iterable[int]) -> bytes:
    """Integers of 64 bits, for a snapshot."""
    return array("q", numbers).tobytes()


def unpacked(state: object, width: int) -> "array[int]":
    """Return rows of `width` integers within NONE..LATEST that `packed` has written. StateError for anything else."""
    numbers = array("q")
    content = data(state)
    if len(content) % (width * numbers.itemsize):
        raise StateError(f"{len(content)} bytes are no rows of {width} integers")
    numbers.frombytes(content)
    if numbers and not (min(numbers) >= NONE and max(numbers) <= LATEST):
        raise StateError(f"a number is not within {NONE}..{LATEST}")
    return numbers


class Table:
    """Rows of integers that come one by one, spilled by and by."""

    def __init__(self, width: int, chunk: int = CHUNK) -> None:
        """`width`: integers of a row; `chunk`: integers that are spilled together."""
        self._width, self._chunk = width, chunk
        self._spool = Spool()
        self._spilled: list[Segment] = []
        self._tail = array("q")

    def __len__(self) -> int:
        """Rows so far."""
        size = sum(segment.size for segment in self._spilled) // self._tail.itemsize
        return (size + len(self._tail)) // self._width

    def extend(self, numbers: Iterable[int]) -> None:
        """Add rows, one after the other."""
        tail = self._tail
        tail.extend(numbers)
        if len(tail) >= self._chunk:
            self._spilled.append(self._spool.append(tail.tobytes()))
            del tail[:]

    def columns(self) -> "list[NDArray[np.int64]]":
        """Return the columns of all rows so far."""
        import numpy as np

        numbers = np.frombuffer(bytes(self.state()), dtype=np.int64)
        return [numbers[at :: self._width] for at in range(self._width)]

    def state(self) -> Segments:
        """Return all rows so far, which never change: chunks, and the last ones."""
        return Segments(*self._spilled, Spool().append(self._tail.tobytes()))

    def load_state(self, state: object) -> None:
        """Restore a state: that of this process (`Segments`) as it is."""
        if isinstance(state, Segments):
            *self._spilled, tail = state.parts
            self._tail = unpacked(tail.read(), self._width)
            return
        numbers = unpacked(state, self._width)
        self._spilled, self._tail = [], array("q")
        for at in range(0, len(numbers), self._chunk):
            self.extend(numbers[at : at + self._chunk])
