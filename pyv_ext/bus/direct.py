"""Calls of a device's methods that native code makes itself (`pyv_ext.engines.boundary.python_calls`)."""

from array import array
from collections.abc import Callable, Sequence
from typing import Any

from pyv_ext.bus.clock import Clock

METHOD, OFFSET, SIZE, FINISH, CLOCK, NOW, CHANGES, DEVICE, IRQ, NEXT_EVENT, KNOWN = range(11)
"""Words of a row: the objects of the device's `read` or `write`, of the register's offset and of the access's size; of
what is called with what the method has returned or raised where Python has more to do; of the clock and the names of
its attributes; of the device, the name of its line, and its `next_event`; the address of `Clock.known` of it."""

Held = list[Any]
"""What a method that native code has called has returned or raised, until the same access is made by Python."""


class DirectCall:
    """The calls for one register."""

    def __init__(
        self,
        clock: Clock,
        number: int,
        method: Callable[..., Any],
        place: Sequence[int],
        finish: Callable[[Any], object],
    ) -> None:
        """`number`: of the device at the clock; `place`: offset and size."""
        device: Any = clock.device(number)
        self._objects: tuple[object, ...] = (
            method, *place, finish, clock, "now", "changes", device, "irq", device.next_event,
        )  # fmt: skip
        """Kept alive for native code."""
        self._row = array("Q", [*map(id, self._objects), clock.known[number].buffer_info()[0]])
        self.address = self._row.buffer_info()[0]
