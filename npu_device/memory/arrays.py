"""Types of memory accesses by NumPy arrays: reads of commands, and their write sets."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from npu_device.memory.region import Region

Bytes = NDArray[np.uint8]
Read = Callable[[Region], Bytes]


class WriteSet(NamedTuple):
    """Results of a command, which become visible when it completes."""

    writes: tuple[tuple[Region, Bytes], ...] = ()
    """Bytes of its outputs."""
    accumulator: NDArray[Any] | None = None
    """Sum that remains in the accumulator."""
