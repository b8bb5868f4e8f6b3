"""One clock for core and devices: the deterministic order of device events and posted stores."""

from collections import deque
from collections.abc import Callable

from pyv_ext.protocols import Device, Timed

NEVER = 1 << 62
"""Later than any run."""


class Clock:
    """Moves devices from event to event.

    `now`: everything due at the start of cycle `now` or earlier has happened. At equal cycles a posted store that
    arrives goes first (it acted in the cycle before), then the devices in the order in which they were attached.
    """

    def __init__(self) -> None:
        self.now = 0
        self.next = NEVER
        """The cycle of the next event of anything attached; the core may run freely up to it."""
        self._devices: list[Timed] = []
        self._due: list[int] = []
        self._posted: deque[tuple[int, Device, int, int, int]] = deque()
        self._on_change: list[Callable[[int], None]] = []

    def attach(self, device: Timed) -> None:
        """Give a device its turn; the order of attachment settles equal cycles."""
        self._devices.append(device)
        self._due.append(NEVER)
        self.changed(self.now)

    def on_change(self, listener: Callable[[int], None]) -> None:
        """`listener(cycle)` runs after devices have changed; what it derives holds from the start of `cycle`."""
        self._on_change.append(listener)

    def post(self, arrival: int, device: Device, offset: int, size: int, value: int) -> None:
        """Let a store arrive at the start of cycle `arrival`; calls come in the order of arrival."""
        self._posted.append((arrival, device, offset, size, value))
        if arrival < self.next:
            self.next = arrival

    def advance(self, cycle: int) -> None:
        """Do all that is due at the start of `cycle` or earlier."""
        while self.next <= cycle:
            self._step(self.next)
        if cycle > self.now:
            self.now = cycle

    def _step(self, cycle: int) -> None:
        self.now = cycle
        posted = self._posted
        while posted and posted[0][0] <= cycle:
            _, target, offset, size, value = posted.popleft()
            target.write(offset, size, value, cycle - 1)
            self._due[self._devices.index(target)] = cycle
        for index, device in enumerate(self._devices):
            if self._due[index] <= cycle:
                device.advance(cycle)
        self.changed(cycle)

    def changed(self, cycle: int) -> None:
        """Take note that devices have changed, with effect from the start of `cycle`."""
        for listener in self._on_change:
            listener(cycle)
        due = self._due
        for index, device in enumerate(self._devices):
            event = device.next_event()
            due[index] = NEVER if event is None else event
        self.next = min(due, default=NEVER)
        if self._posted and self._posted[0][0] < self.next:
            self.next = self._posted[0][0]
