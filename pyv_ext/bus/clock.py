"""One clock for core and devices: the deterministic order of device events and posted stores.

A store that is *deferrable* (`pyv_ext.protocols.Deferrable`) need not arrive before anything looks: native code leaves
it in a queue, and it arrives, stamped with its cycle, when Python is asked for the next thing. Any other posted store
that native code leaves there arrives in its cycle, up to which native code goes on.
"""

from array import array
from collections import deque
from collections.abc import Callable, Container, Sequence
from functools import partial
from typing import Any

from pyv_ext.bus.store_queue import (
    ARRIVAL,
    CAPACITY,
    COUNT,
    FIRST,
    LOUD,
    NOT_DEFERRABLE,
    STORE_WORDS,
    VALUE,
    WHAT_OF_STORE,
    QueuedStore,
    StoreQueue,
    stores_of,
    what_of,
)  # fmt: skip
from pyv_ext.protocols import Timed
from pyv_native.state import LATEST, WORD32, Fields, StateError, inside, row

Listener = Callable[[int], None]

NEVER = 1 << 62
"""Later than any run."""

LINE = -1
"""In the place of a device's number: any whose interrupt line changes."""

KIND, LEVEL, DUE = range(3)
"""Words of `Clock.known`: what has to be done when native code has called the device; its interrupt line and its next
event as the clock knows them, -1 for an event that is no cycle."""
TOLD, ASKED, SILENT = range(3)
"""Kinds: the clock is told; it is told unless line and next event are what it knows, and nothing else has changed;
the device has neither."""


class Clock:
    """Moves devices from event to event.

    `now`: everything due at the start of cycle `now` or earlier has happened. At equal cycles a posted store that
    arrives comes first (it acted in the cycle before), then the devices in the order in which they were attached.
    """

    __slots__ = ("__dict__", "__weakref__", "changes", "deferred", "due", "first", "next", "now", "others", "posted",
                 "soonest", "unheld")  # fmt: skip
    """Native code looks at these (`pyv_native.attributes`)."""

    def __init__(self) -> None:
        self.now = 0
        self.next = NEVER
        """The cycle of the next event of anything attached; the core may run freely up to it."""
        self.changes = 1
        """How often something attached may have changed. While it stays the same, `pyv_ext.protocols.Stable` registers
        do."""
        self.deferred = 0
        """How many of the changes were deferrable stores."""
        self.calls: dict[int, int] = {}
        """Device and register -> what native code may call when a store arrives there."""
        self.failure: BaseException | None = None
        """What a device has raised that native code has called itself."""
        self.queue = StoreQueue()
        """What native code has stored to devices; `wake` when there is something."""
        self._queued = False
        """Whether it counts among what is due."""
        self.known: list[array[int]] = []
        """Words as above, for each device, where native code looks at them."""
        self._devices: list[Timed] = []
        self._deferrable: list[Callable[[int, int], bool] | None] = []
        self._in_a_row: list[Callable[[int, int, list[int], int], None] | None] = []
        self.due: list[int] = []
        """When each device is due."""
        self.first = 0
        """The number of the device that is due next, if one is."""
        self.soonest = self.others = NEVER
        """When it is, and when the next of the others."""
        self._told: list[tuple[Any, array[int], list[Listener], list[int]] | tuple[()] | None] = []
        """What `touched` needs of each device: itself, what is known of it, its followers; empty for one that is
        silent, None before it has been touched."""
        self._dependent: list[tuple[int, Sequence[Timed] | None, bool]] = []
        self.posted: deque[QueuedStore] = deque()
        """Stores on their way that are not in the queue, in the order of arrival."""
        self.unheld = 0
        """Before this cycle there is no use in `hold`: a store is on its way that native code does not make itself."""
        self._listeners: list[tuple[Listener, Sequence[Timed] | None]] = []
        self._alone: set[int] = set()
        self._quiet: dict[int, tuple[list[Listener], list[int]]] = {}
        """Results of `_followers`; cleared when a device or listener is added."""
        self._silent: set[int] = set()
        """Devices without a line and events of their own that nothing follows, as far as they have been touched."""

    def attach(
        self, device: Timed, *, alone: bool = False, heeds: Sequence[Timed] | None = None, lines: bool = True
    ) -> int:
        """Give a device its turn; the order of attachment settles equal cycles. The number is for `touched`.

        `alone`: it changes only when it is advanced or told to be touched, not because another device has changed;
        `heeds`: only because one of these has, or, with `lines`, the interrupt line of any. One that heeds nothing
        calls `look` when its next event is another one.
        """
        number = len(self._devices)
        self._devices.append(device)
        self.due.append(NEVER)
        self._told.append(None)
        self.known.append(array("q", (TOLD, False, NEVER)))
        self._deferrable.append(getattr(device, "deferrable", None))
        self._in_a_row.append(getattr(device, "write_in_a_row", None))
        if alone:
            self._alone.add(number)
        else:
            self._dependent.append((number, heeds, lines))
        self._forget_followers()
        self.changed(self.now)
        return number

    def on_change(self, listener: Listener, heeds: Sequence[Timed] | None = None) -> None:
        """`listener(cycle)` runs after devices have changed; what it derives holds from the start of `cycle`.

        With `heeds`, a listener need not hear of accesses to other devices than these, unless the interrupt line of
        the device changes.
        """
        self._listeners.append((listener, heeds))
        self._forget_followers()
        self.changes += 1

    def _forget_followers(self) -> None:
        self._quiet.clear()
        self._silent.clear()
        self._told = [None] * len(self._devices)
        for known in self.known:
            known[KIND] = TOLD

    def post(self, arrival: int, number: int, offset: int, size: int, value: int) -> None:
        """Let a store to a device arrive at the start of cycle `arrival`; calls come in the order of arrival."""
        if self._queued:
            self.flush()
        self.posted.append((arrival, number, offset, size, value))
        if arrival < self.next:
            self.next = arrival

    def deferrable(self, number: int) -> Callable[[int, int], bool] | None:
        """What says whether stores to the device are (`pyv_ext.protocols.Deferrable`)."""
        return self._deferrable[number]

    @property
    def epoch(self) -> int:
        """How often something may have changed which of the stores are deferrable."""
        return self.changes - self.deferred

    def advance(self, cycle: int) -> None:
        """Do all that is due at the start of `cycle` or earlier."""
        posted = self.posted
        while (now := self.next) <= cycle:
            if self._queued:
                self._deliver(cycle)
                continue
            self.now = now
            if self.soonest > now or (posted and posted[0][0] <= now and self._is_deferrable(*posted[0][1:4])):
                _, number, offset, size, value = posted.popleft()
                alone = not posted or self.soonest <= now
                if self._in_a_row[number] is not None and not alone and self._is_deferrable(number, offset, size):
                    self._arrive_in_a_row(number, offset, size, value, cycle)
                    continue
                self.next = self.soonest if not posted else min(self.soonest, posted[0][0])
                self._arrive(number, offset, size, value, now)
            elif self.others <= now or (posted and posted[0][0] <= now):
                self._coincide(now)
            else:
                number = self.first
                self._devices[number].advance(now)
                if number in self._alone:
                    self.touched(number, now)
                else:
                    self.changed(now)
        if cycle > self.now:
            self.now = cycle

    def _is_deferrable(self, number: int, offset: int, size: int) -> bool:
        deferrable = self._deferrable[number]
        return deferrable is not None and deferrable(offset, size)

    def _arrive_in_a_row(self, number: int, offset: int, size: int, value: int, cycle: int) -> None:
        """A posted deferrable store is at its device, and with it those to the same register that follow up to `cycle`
        before anything else."""
        posted, values, last = self.posted, [value], self.now
        before = min(cycle, self.soonest - 1)
        while posted:
            arrival, target, at, width, value = posted[0]
            if arrival > before or target != number or at != offset or width != size:
                break
            posted.popleft()
            values.append(value)
            last = arrival
        self.now = last
        self.next = self.soonest if not posted else min(self.soonest, posted[0][0])
        self.changes += len(values)
        self.deferred += len(values)
        in_a_row = self._in_a_row[number]
        assert in_a_row is not None  # the caller has asked
        in_a_row(offset, size, values, last - 1)

    def _arrive(self, number: int, offset: int, size: int, value: int, now: int) -> None:
        """A posted store is at its device."""
        deferrable = self._deferrable[number]
        quiet = deferrable is not None and deferrable(offset, size)
        self._devices[number].write(offset, size, value, now - 1)  # type: ignore[attr-defined]  # on the bus
        if quiet:
            self.changes += 1
            self.deferred += 1
        else:
            self.touched(number, now)

    def wake(self) -> None:
        """There are stores in the queue: they count among what is due."""
        self._queued = True
        first = self.queue.table[FIRST + ARRIVAL]
        if first < self.next:
            self.next = first

    def flush(self) -> None:
        """Let what is in the queue be posted stores as any others."""
        self._queued = False
        self.posted.extend(self.queue.take())
        first = self.posted[0][0]
        self.next = first if first < self.soonest else self.soonest

    def hold(self, arriving: Container[int] | None) -> bool:
        """Keep posted stores in the queue, if none is for the clock: all are deferrable, or native code lets them
        arrive, at devices of these numbers, or calls what `calls` has. None: it lets none arrive. Whether they are
        there and some are not deferrable."""
        posted = self.posted
        if not posted or len(posted) > CAPACITY // 2:
            return False
        stores, loud = [], False
        for arrival, number, offset, size, value in posted:
            what, call = what_of(number, offset, size), 0
            loud = loud or not self._is_deferrable(number, offset, size)
            if loud:
                call = self.calls.get(what, 0)
                if arriving is None or (not call and number not in arriving):
                    self.unheld = arrival
                    return False
                what |= NOT_DEFERRABLE
            stores.append((arrival, what, value, call))
        self.queue.put(stores)
        posted.clear()
        self.next = self.soonest
        return loud

    def settle(self, cycle: int) -> None:
        """Let deferrable stores arrive that are due at the start of `cycle`, as long as nothing else is."""
        if self._queued:
            self._deliver(cycle)
        posted = self.posted
        while posted and posted[0][0] <= cycle and posted[0][0] < self.soonest:
            arrival, number, offset, size, value = posted[0]
            if not self._is_deferrable(number, offset, size):
                break
            posted.popleft()
            self.now = max(self.now, arrival)
            self._arrive(number, offset, size, value, arrival)
            self.next = self.soonest if not posted else min(self.soonest, posted[0][0])

    def _deliver(self, cycle: int) -> None:
        """Let stores of the queue arrive that come before anything else and up to `cycle`; the others are posted."""
        table = self.queue.table
        count = table[COUNT]
        before = min(cycle, self.soonest - 1)
        if table[LOUD] or self.posted or table[FIRST + ARRIVAL] > before:
            self.flush()
            return
        due = count
        while table[FIRST + STORE_WORDS * (due - 1) + ARRIVAL] > before:
            due -= 1
        self.now = table[FIRST + STORE_WORDS * (due - 1) + ARRIVAL]
        self.changes += due
        self.deferred += due
        what = table[FIRST + WHAT_OF_STORE]
        number, offset, size = what >> 40, what & WORD32, what >> 32 & 0xFF
        if count == 1:
            self._queued = False
            table[COUNT] = 0
            self.next = self.soonest
            self._devices[number].write(offset, size, table[FIRST + VALUE], self.now - 1)  # type: ignore[attr-defined]
            return
        words = self.queue.words(0, due)
        later = self.queue.take(due)
        self._queued = False
        self.posted.extend(later)
        self.next = self.soonest if not later else min(self.soonest, later[0][0])
        in_a_row = self._in_a_row[number]
        if in_a_row is not None:
            _, registers, values, _ = zip(*words, strict=True)
            if registers.count(what) == due:
                in_a_row(offset, size, list(values), self.now - 1)
                return
        for arrival, number, offset, size, value in stores_of(words):
            self._devices[number].write(offset, size, value, arrival - 1)  # type: ignore[attr-defined]

    def _coincide(self, now: int) -> None:
        """Several things are due."""
        posted, due, devices = self.posted, self.due, self._devices
        while posted and posted[0][0] <= now:
            _, target, offset, size, value = posted.popleft()
            devices[target].write(offset, size, value, now - 1)  # type: ignore[attr-defined]
            self._look(target)
        for number in [number for number, when in enumerate(due) if when <= now]:
            devices[number].advance(now)
        self.changed(now)

    def touched(self, number: int, cycle: int) -> None:
        """Take note that the device of that number has changed and no other, from the start of `cycle` on."""
        self.changes += 1
        told = self._told[number]
        if not told:
            if told is None:
                told = self._tell(number)
            if not told:
                return
        device, known, listeners, dependents = told
        level = device.irq
        if level != known[LEVEL]:
            known[LEVEL] = bool(level)
            listeners, dependents = self.followers(LINE)
        for listener in listeners:
            listener(cycle)
        event = device.next_event()
        if event is None:
            event = NEVER
        due = self.due
        if event != due[number]:
            due[number] = event
            try:
                known[DUE] = event
            except (TypeError, OverflowError):
                known[DUE] = -1
            if number == self.first and event < self.others:
                self.soonest = self.next = event
                if self.posted and self.posted[0][0] < event:
                    self.next = self.posted[0][0]
            else:
                self._find_next()
        for dependent in dependents:
            if self._look(dependent):
                self._find_next()

    def _tell(self, number: int) -> tuple[Any, "array[int]", list[Listener], list[int]] | tuple[()]:
        """Look up what `touched` needs of a device."""
        followers = self.followers(number)
        told = () if number in self._silent else (self._devices[number], self.known[number], *followers)
        self._told[number] = told
        return told

    def look(self, number: int) -> None:
        """Look when the device of that number is next due: another one than was said."""
        self.changes += 1
        if self._look(number):
            self._find_next()

    def device(self, number: int) -> Timed:
        """What has that number."""
        return self._devices[number]

    @property
    def alone(self) -> list[Timed | None]:
        """The devices by their numbers, None for one that is not alone (see `attach`)."""
        return [device if number in self._alone else None for number, device in enumerate(self._devices)]

    def followers(self, number: int) -> tuple[list[Listener], list[int]]:
        """Who is told of a change of a device, and which others are looked at then; the same object until anything is
        added."""
        return self._quiet.get(number) or self._followers(number)

    def besides(self, numbers: Sequence[int]) -> int:
        """The cycle of the next event of anything but these devices; posted stores count."""
        soonest, posted, due = self.soonest, self.posted, self.due
        if soonest < NEVER and self.first in numbers:
            soonest = self.others
            if soonest < NEVER and soonest in [due[number] for number in numbers]:
                soonest = min((when for number, when in enumerate(due) if number not in numbers), default=NEVER)
        return posted[0][0] if posted and posted[0][0] < soonest else soonest

    def served(self, numbers: Sequence[int], cycle: int) -> None:
        """Take note that native code has served these devices, and whatever follows them, up to what is seen from the
        start of `cycle` on."""
        self.changes += 1
        if cycle > self.now + 1:
            self.now = cycle - 1
        news = False
        for number in numbers:
            self._show(number, getattr(self._devices[number], "irq", False))
            news = self._look(number) or news
        if news:
            self._find_next()

    def _followers(self, number: int) -> tuple[list[Listener], list[int]]:
        """The listeners of a change of the device of that number, and the devices to update; `LINE`: its line has
        changed."""

        def heed(heeds: Sequence[Timed] | None, lines: bool = True) -> bool:
            return heeds is None or (lines if number == LINE else self._devices[number] in heeds)

        listeners = [listener for listener, heeds in self._listeners if heed(heeds)]
        dependents = [dependent for dependent, heeds, lines in self._dependent if heed(heeds, lines)]
        self._quiet[number] = listeners, dependents
        if number != LINE and not listeners and not dependents:
            passive = getattr(self._devices[number], "passive", False)
            self.known[number][KIND] = SILENT if passive else ASKED
            if passive:
                self._silent.add(number)
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
            self._show(number, getattr(device, "irq", False))
            self._look(number)
        self._find_next()

    def _look(self, number: int) -> bool:
        """When the device next changes; whether that is news."""
        event = self._devices[number].next_event()
        due = NEVER if event is None else event
        if due == self.due[number]:
            return False
        self._expect(number, due)
        return True

    def _show(self, number: int, level: bool) -> None:
        """The interrupt line of a device has that level."""
        self.known[number][LEVEL] = bool(level)

    def _expect(self, number: int, event: int) -> None:
        """The next event of a device is that."""
        self.due[number] = event
        try:
            self.known[number][DUE] = event
        except (TypeError, OverflowError):
            self.known[number][DUE] = -1

    def _find_next(self) -> None:
        posted, due = self.posted, self.due
        soonest = min(due, default=NEVER)
        if soonest < NEVER:
            self.first = first = due.index(soonest)
            due[first] = NEVER
            self.others = min(due)
            due[first] = soonest
        else:
            self.others = NEVER
        self.soonest = soonest
        self.next = posted[0][0] if posted and posted[0][0] < soonest else soonest

    # -- snapshots ---------------------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """What a snapshot keeps: when devices are due follows from them."""
        return {"now": self.now, "posted": [list(store) for store in self.posted]}

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
        self.queue.take()
        self._queued, self.unheld = False, 0
        self.posted = deque(posted)
        self.changes += 1
        for number, device in enumerate(self._devices):
            self._show(number, getattr(device, "irq", False))
            self._look(number)
        self._find_next()
