"""One clock for core and devices: the deterministic order of device events and posted stores."""

from collections import deque
from collections.abc import Callable, Sequence

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
        self._levels: list[bool] = []
        """The interrupt line of each device, as the listeners know it."""
        self._dependent: list[int] = []
        self._posted: deque[tuple[int, Device, int, int, int]] = deque()
        self._listeners: list[Callable[[int], None]] = []
        self._heeds: list[Sequence[Timed] | None] = []
        """For each listener, the devices whose accesses it must hear of; None: all."""

    def attach(self, device: Timed, *, alone: bool = False) -> int:
        """Give a device its turn; the order of attachment settles equal cycles. The number is for `touched`.

        `alone`: it changes only when it is advanced or told to be touched, not because another device has changed.
        """
        number = len(self._devices)
        self._devices.append(device)
        self._due.append(NEVER)
        self._levels.append(False)
        if not alone:
            self._dependent.append(number)
        self.changed(self.now)
        return number

    def on_change(self, listener: Callable[[int], None], heeds: Sequence[Timed] | None = None) -> None:
        """`listener(cycle)` runs after devices have changed; what it derives holds from the start of `cycle`.

        With `heeds`, a listener need not hear of accesses to other devices than these, unless the interrupt line of
        the device changes.
        """
        self._listeners.append(listener)
        self._heeds.append(heeds)

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
        posted, due, devices = self._posted, self._due, self._devices
        while posted and posted[0][0] <= cycle:
            _, target, offset, size, value = posted.popleft()
            target.write(offset, size, value, cycle - 1)
            due[devices.index(target)] = cycle
        moved = [number for number, when in enumerate(due) if when <= cycle]
        for number in moved:
            devices[number].advance(cycle)
        if len(moved) == 1 and moved[0] not in self._dependent:
            self.touched(moved[0], cycle)
            self._find_next()
        else:
            self.changed(cycle)

    def touched(self, number: int, cycle: int) -> None:
        """Take note that the device of that number has changed and no other, from the start of `cycle` on."""
        device = self._devices[number]
        level = device.irq  # type: ignore[attr-defined]  # what is alone is a Device
        told = level != self._levels[number]
        self._levels[number] = level
        for listener, heeds in zip(self._listeners, self._heeds, strict=True):
            if told or heeds is None or device in heeds:
                listener(cycle)
        moved = self._look(number)
        for dependent in self._dependent:
            moved |= self._look(dependent)
        if moved:
            self._find_next()

    def changed(self, cycle: int) -> None:
        """Take note that devices have changed, with effect from the start of `cycle`."""
        for listener in self._listeners:
            listener(cycle)
        for number, device in enumerate(self._devices):
            self._levels[number] = getattr(device, "irq", False)
            self._look(number)
        self._find_next()

    def _look(self, number: int) -> bool:
        """When the device next changes; whether that is news."""
        event = self._devices[number].next_event()
        due = NEVER if event is None else event
        if due == self._due[number]:
            return False
        self._due[number] = due
        return True

    def _find_next(self) -> None:
        self.next = min(self._due, default=NEVER)
        if self._posted and self._posted[0][0] < self.next:
            self.next = self._posted[0][0]
