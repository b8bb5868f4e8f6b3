"""Memory as arrays of NumPy: how commands read it, and their write sets."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from npu_device.memory.region import Region

Bytes = NDArray[np.uint8]
Read = Callable[[Region], Bytes]


class WriteSet(NamedTuple):
    """Effect of a command, to be made visible when it completes."""

    writes: tuple[tuple[Region, Bytes], ...] = ()
    """Bytes of its outputs."""
    accumulator: NDArray[Any] | None = None
    """The sum that stays in the accumulator."""
