"""What a command leaves behind."""

from collections.abc import Callable
from typing import Any, NamedTuple

from numpy.typing import NDArray

from npu_device.memory import Bytes
from npu_device.region import Region

Read = Callable[[Region], Bytes]


class Effect(NamedTuple):
    """The effect of a command, to be made visible when it completes."""

    writes: tuple[tuple[Region, Bytes], ...] = ()
    """Bytes of its outputs."""
    held: NDArray[Any] | None = None
    """The sum that stays in the accumulator."""
