"""One clock for core and devices: the deterministic order of device events and posted stores."""

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from pyv_ext.protocols import Timed
from pyv_state import LATEST, WORD32, Fields, StateError, inside, row

Listener = Callable[[int], None]

NEVER = 1 << 62
"""Later than any run."""

_LINE = -1
"""In the place of a device's number."""


class Clock:
    """Moves devices from event to event.

    `now`: everything due at the start of cycle `now` or earlier has happened. At equal cycles a posted store that
    arrives comes first (it acted in the cycle before), then the devices in the order in which they were attached.
    """

    def __init__(self) -> None:
        self.now = 0
        self.next = NEVER
        """The cycle of the next event of anything attached; the core may run freely up to it."""
        self.changes = 1
        """How often something attached may have changed. While it stays the same, `pyv_ext.protocols.Stable` registers
        do."""
        self._devices: list[Timed] = []
        self._due: list[int] = []
        self._first = 0
        """The number of the device that is due next."""
        self._soonest = self._others = NEVER
        """When it is, and when the next of the others."""
        self._levels: list[bool] = []
        """The interrupt line of each device, as the listeners know it."""
        self._dependent: list[tuple[int, Sequence[Timed] | None]] = []
        self._posted: deque[tuple[int, int, int, int, int]] = deque()
        self._listeners: list[tuple[Listener, Sequence[Timed] | None]] = []
        self._alone: set[int] = set()
        self._quiet: dict[int, tuple[list[Listener], list[int]]] = {}
        """Results of `_followers`; cleared when a device or listener is added."""

    def attach(self, device: Timed, *, alone: bool = False, heeds: Sequence[Timed] | None = None) -> int:
        """Give a device its turn; the order of attachment settles equal cycles. The number is for `touched`.

        `alone`: it changes only when it is advanced or told to be touched, not because another device has changed;
        `heeds`: only because one of these has, or the interrupt line of any.
        """
        number = len(self._devices)
        self._devices.append(device)
        self._due.append(NEVER)
        self._levels.append(False)
        if alone:
            self._alone.add(number)
        else:
            self._dependent.append((number, heeds))
        self._quiet.clear()
        self.changed(self.now)
        return number

    def on_change(self, listener: Listener, heeds: Sequence[Timed] | None = None) -> None:
        """`listener(cycle)` runs after devices have changed; what it derives holds from the start of `cycle`.

        With `heeds`, a listener need not hear of accesses to other devices than these, unless the interrupt line of
        the device changes.
        """
        self._listeners.append((listener, heeds))
        self._quiet.clear()

    def post(self, arrival: int, number: int, offset: int, size: int, value: int) -> None:
        """Let a store to a device arrive at the start of cycle `arrival`; calls come in the order of arrival."""
        self._posted.append((arrival, number, offset, size, value))
        if arrival < self.next:
            self.next = arrival

    def advance(self, cycle: int) -> None:
        """Do all that is due at the start of `cycle` or earlier."""
        posted = self._posted
        while (now := self.next) <= cycle:
            self.now = now
            if self._soonest > now:
                _, number, offset, size, value = posted.popleft()
                self.next = self._soonest if not posted else min(self._soonest, posted[0][0])
                self._devices[number].write(offset, size, value, now - 1)  # type: ignore[attr-defined]  # on the bus
                self.touched(number, now)
            elif self._others <= now or (posted and posted[0][0] <= now):
                self._coincide(now)
            else:
                number = self._first
                self._devices[number].advance(now)
                if number in self._alone:
                    self.touched(number, now)
                else:
                    self.changed(now)
        if cycle > self.now:
            self.now = cycle

    def _coincide(self, now: int) -> None:
        """Several things are due."""
        posted, due, devices = self._posted, self._due, self._devices
        while posted and posted[0][0] <= now:
            _, target, offset, size, value = posted.popleft()
            devices[target].write(offset, size, value, now - 1)  # type: ignore[attr-defined]
            due[target] = now
        for number in [number for number, when in enumerate(due) if when <= now]:
            devices[number].advance(now)
        self.changed(now)

    def touched(self, number: int, cycle: int) -> None:
        """Take note that the device of that number has changed and no other, from the start of `cycle` on."""
        self.changes += 1
        device, levels = self._devices[number], self._levels
        level = device.irq  # type: ignore[attr-defined]  # what is alone is a Device
        if level != levels[number]:
            levels[number] = level
            listeners, dependents = self._quiet.get(_LINE) or self._followers(_LINE)
        else:
            listeners, dependents = self._quiet.get(number) or self._followers(number)
        for listener in listeners:
            listener(cycle)
        event = device.next_event()
        if event is None:
            event = NEVER
        if event != self._due[number]:
            self._due[number] = event
            if number == self._first and event < self._others:
                posted = self._posted
                self._soonest = event
                self.next = posted[0][0] if posted and posted[0][0] < event else event
            else:
                self._find_next()
        for dependent in dependents:
            if self._look(dependent):
                self._find_next()

    def _followers(self, number: int) -> tuple[list[Listener], list[int]]:
        """The listeners of a change of the device of that number, and the devices to update; `_LINE`: its line has
        changed."""

        def heed(heeds: Sequence[Timed] | None) -> bool:
            return number == _LINE or heeds is None or self._devices[number] in heeds

        listeners = [listener for listener, heeds in self._listeners if heed(heeds)]
        dependents = [dependent for dependent, heeds in self._dependent if heed(heeds)]
        self._quiet[number] = listeners, dependents
        return listeners, dependents

    def acted(self, device: Timed | None, cycle: int) -> None:
        """Take note that something has acted on `device` and no other; None, or one that is not alone: on whatever."""
        self.follow(device)(cycle)

    def follow(self, device: Timed | None) -> Listener:
        """What does that, for the cycle that it is given."""
        number = -1 if device is None or device not in self._devices else self._devices.index(device)
        return partial(self.touched, number) if number in self._alone else self.changed

    def changed(self, cycle: int) -> None:
        """Take note that devices have changed, with effect from the start of `cycle`."""
        self.changes += 1
        for listener, _ in self._listeners:
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
        posted, due = self._posted, self._due
        soonest = min(due, default=NEVER)
        if soonest < NEVER:
            self._first = first = due.index(soonest)
            due[first] = NEVER
            self._others = min(due)
            due[first] = soonest
        else:
            self._others = NEVER
        self._soonest = soonest
        self.next = posted[0][0] if posted and posted[0][0] < soonest else soonest

    # -- snapshots ---------------------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """What a snapshot keeps: when devices are due follows from them."""
        return {"now": self.now, "posted": [list(store) for store in self._posted]}

    def load_state(self, state: Any) -> None:
        """Take on a state; everything attached has taken on its own."""
        fields = Fields(state, "now", "posted")
        cycle, word = (0, LATEST), (0, WORD32)
        now, posted, last = fields.integer("now", *cycle), [], 0
        for index, item in enumerate(fields.listed("posted")):
            with inside("posted", index):
                arrival, number, offset, size, value = row(item, cycle, (0, len(self._devices) - 1), word, (1, 4), word)
                accepts = getattr(self._devices[number], "accepts", None)
                if accepts is None or size == 3 or offset % size or not accepts(offset, size, True):
                    raise StateError(f"device {number} accepts no store of {size} bytes at {offset:#x}")
                if value >> 8 * size:
                    raise StateError(f"{value} is more than {size} bytes")
                if arrival < last:
                    raise StateError("arrives before the store before it")
                last = arrival
                posted.append((arrival, number, offset, size, value))
        self.now = now
        self._posted = deque(posted)
        self.changes += 1
        for number, device in enumerate(self._devices):
            self._levels[number] = getattr(device, "irq", False)
            self._look(number)
        self._find_next()
