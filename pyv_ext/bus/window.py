"""A device on the bus, as the hart accesses it: what an access costs, and when it acts (docs/core-timing.md).

The MMIO read cache keeps what stable registers (`pyv_ext.protocols.Stable`) showed when they were last read. As long
as nothing attached to the clock has changed, which `Clock.changes` tells, another read has no effect and shows the
same. The MMIO store cache keeps which stores native code may leave in the queue of the clock.
"""

from collections.abc import Callable, Sequence
from functools import partial
from operator import index
from typing import Any, NamedTuple

from pyv_ext.bus.clock import KIND, Clock
from pyv_ext.bus.direct import DirectCall, Held
from pyv_ext.bus.store_queue import what_of
from pyv_ext.errors import PyvExtError
from pyv_ext.protocols import Device, Reply
from pyv_ext.timing import CoreTiming

SLOTS = 64
TAG, CHANGES, VALUE, CYCLES, ACTS, SINCE, RECALLED, ARRIVES, CALL = range(9)
"""Words of a slot: address and size of the access, `Clock.changes` at the time, what was read; cycles that the access
takes, and after how many of them it acts: nothing may be due up to there. Of a register that says what deferrable
stores do to it: `Clock.epoch` at the time, else 0; the bits that show what was stored last, which native code keeps in
VALUE; when the last store arrives that it knows of. Of a register that is no such: what native code calls to read it,
else 0."""
WORDS = 9


STORE_TAG, EPOCH, STORE_CYCLES, ONE_WAY, WHAT, MASK, STORE_CALL = range(7)
"""Words of a slot of `MmioStoreCache`: address and size of the store; `Clock.epoch` at the time that it was deferrable,
or `ALWAYS`; cycles that the core is busy, and that the store is on its way; device and register as in a queue; the bits
that are stored; what native code calls when it arrives, or 0."""
SLOT_WORDS = 7
ALWAYS = 0
"""In the place of an epoch: of a store that is not deferrable."""

DRAINED, NEXT, DEPTH, RING = range(4)
"""Words of `Posted`."""


def slot_of(address: int) -> int:
    """The one slot that an address may be in."""
    return (address ^ address >> 6) % SLOTS


class MmioReadCache:
    """Last values of stable device registers. Native code reads `table`, whose items are 64-bit words."""

    def __init__(self) -> None:
        self.table = memoryview(bytearray(8 * WORDS * SLOTS)).cast("Q")

    def keep(
        self, address: int, size: int, changes: int, value: int, cycles: int, acts: int, since: int = 0,
        recalled: int = 0, call: int = 0,
    ) -> None:  # fmt: skip
        """A load of `size` bytes that took `cycles` has shown `value`, zero-extended; `changes` is at least 1, or 0
        where only `call` reads the register."""
        at = slot_of(address) * WORDS
        self.table[at + TAG] = address | size << 32
        self.table[at + CHANGES] = changes
        self.table[at + VALUE] = value & (1 << 32) - 1
        self.table[at + CYCLES] = cycles
        self.table[at + ACTS] = acts
        self.table[at + SINCE] = since
        self.table[at + RECALLED] = recalled
        self.table[at + ARRIVES] = 0
        self.table[at + CALL] = call

    def stored(self, address: int) -> None:
        """Something else than native code has stored there."""
        self.table[slot_of(address) * WORDS + SINCE] = 0

    def clear(self) -> None:
        """Forget everything. No access has tag 0: native code that must ask the device looks for `changes` 0."""
        for at in range(0, len(self.table), WORDS):
            self.table[at + TAG] = 0


class MmioStoreCache:
    """Stores to device registers that native code may leave in the queue. Native code reads `table`."""

    def __init__(self) -> None:
        self.table = memoryview(bytearray(8 * SLOT_WORDS * SLOTS)).cast("Q")

    def keep(self, address: int, size: int, epoch: int, cycles: int, one_way: int, what: int, call: int = 0) -> None:
        """Stores of `size` bytes to the address of device and register `what` are `ALWAYS` possible, or in `epoch`."""
        at = slot_of(address) * SLOT_WORDS
        for word, value in (
            (STORE_TAG, address | size << 32),
            (EPOCH, epoch),
            (STORE_CYCLES, cycles),
            (ONE_WAY, one_way),
            (WHAT, what),
            (MASK, (1 << 8 * size) - 1),
            (STORE_CALL, call),
        ):
            self.table[at + word] = value

    def clear(self) -> None:
        """Forget everything. No access has tag 0."""
        for at in range(0, len(self.table), SLOT_WORDS):
            self.table[at + STORE_TAG] = 0


class Access(NamedTuple):
    """One access of the hart to a device, as observers see it. Cycles are starts."""

    device: Device
    offset: int
    size: int
    write: bool
    value: int
    start: int
    end: int
    """When the core goes on."""
    arrival: int
    """When the device has it: later than `end` for a posted store."""


accessed: Callable[[tuple[Device, int, int, bool, int, int, int, int]], Access] = partial(tuple.__new__, Access)
"""One of these values; a call of the class takes twice as long."""

Observer = Callable[[Access], None]
"""Is told of accesses. A load of a `Stable` register that shows for certain what the one before has shown may be left
out: it has no effect on the device either."""

Load = Callable[[int], tuple[int, int] | None]
"""`load(start)`: (value, cycles) of a load that starts in cycle `start`; None is an access fault."""

Store = Callable[[int, int], int | None]
"""`store(value, start)`: cycles of a store that starts in cycle `start`; None is an access fault."""


class Posted:
    """The posted stores of one hart that may be on their way: the cycles in which the last ones arrive, in a ring."""

    def __init__(self, depth: int) -> None:
        self.table = memoryview(bytearray(8 * (RING + depth))).cast("Q")
        self.table[DEPTH] = depth

    @property
    def drained(self) -> int:
        """The cycle at whose start the last one arrives."""
        return self.table[DRAINED]

    @property
    def arrivals(self) -> list[int]:
        """When the last ones arrive, as many as may be on their way, in their order."""
        at = RING + self.table[NEXT]
        return [arrival for arrival in (*self.table[at:], *self.table[RING:at]) if arrival]

    def send(self, start: int, cycles: int, one_way: int) -> int:
        """When the core goes on that stores in cycle `start`, which takes it `cycles`; the store arrives `one_way`
        later. It can leave the core at once, unless as many as are allowed are on their way."""
        table = self.table
        at = table[NEXT]
        oldest = table[RING + at]
        end = (oldest if oldest > start else start) + cycles
        table[RING + at] = table[DRAINED] = end + one_way
        table[NEXT] = at + 1 if at + 1 < table[DEPTH] else 0
        return end

    def _add(self, arrival: int) -> None:
        """One more, which arrives after all others."""
        table = self.table
        at = table[NEXT]
        table[RING + at] = table[DRAINED] = arrival
        table[NEXT] = at + 1 if at + 1 < table[DEPTH] else 0

    def load(self, arrivals: list[int], drained: int) -> None:
        """Take on the `arrivals` of another."""
        depth = self.table[DEPTH]
        for at in range(depth):
            self.table[RING + at] = 0
        self.table[NEXT] = 0
        for arrival in arrivals[-depth:]:
            self._add(arrival)
        self.table[DRAINED] = drained


class Window:
    """The addresses base..end-1 of a device. Accesses are naturally aligned and lie inside."""

    def __init__(
        self,
        base: int,
        device: Device,
        near: bool,
        clock: Clock,
        timing: CoreTiming,
        posted: Posted,
        read_cache: MmioReadCache,
        store_cache: MmioStoreCache,
        observers: Sequence[Observer],
    ) -> None:
        """`near` devices cost a load or store plus `near_extra` instead of an MMIO access."""
        self.base = base
        self.end = base + device.size
        self.device = device
        self._clock = clock
        self._posted = posted
        self._read_cache = read_cache
        self._store_cache = store_cache
        self._observers = observers
        self.observers: list[Observer] = []
        """Of this device alone."""
        self.number = self._number = clock.attach(device, alone=True)
        self.near = self._near = near
        self._loads: dict[tuple[int, int], Load] = {}
        self._stores: dict[tuple[int, int], Store] = {}
        if near:
            self._load_cycles = timing.load + timing.near_extra
            self._load_acts = self._load_cycles - 1
            self._store_cycles, self._one_way = timing.store + timing.near_extra, 0
        else:
            self._load_cycles = timing.mmio_read
            self._load_acts = min(1 + timing.mmio_one_way, timing.mmio_read) - 1
            self._store_cycles, self._one_way = timing.mmio_write, timing.mmio_one_way

    @property
    def costs(self) -> tuple[int, int, int]:
        """Cycles of a load, how many of them pass before it acts, and those of a store."""
        return self._load_cycles, self._load_acts, self._store_cycles

    @property
    def one_way(self) -> int:
        """How many cycles after it has left the core a store arrives."""
        return self._one_way

    def load(self, address: int, size: int) -> Load:
        """The loads of a register: what does not change from one to the next has been looked up."""
        load = self._loads.get((address, size))
        if load is None:
            accepts = self.device.accepts(address - self.base, size, False)
            make = self._loader if accepts else self._refused_load
            load = self._loads[address, size] = make(address, size)
        return load

    def store(self, address: int, size: int) -> Store:
        """The stores to a register, likewise."""
        store = self._stores.get((address, size))
        if store is None:
            accepts = self.device.accepts(address - self.base, size, True)
            make = self._refused_store if not accepts else self._post if self._one_way else self._storer
            store = self._stores[address, size] = make(address, size)
        return store

    # -- accesses that the device accepts ----------------------------------------------------------------------

    def _loader(self, address: int, size: int) -> Load:
        device, offset, clock, number = self.device, address - self.base, self._clock, self._number
        acts_after, cycles = self._load_acts, self._load_cycles
        read: Any = device.read  # what it returns is looked at here
        observers, own, read_cache = self._observers, self.observers, self._read_cache
        declared = getattr(device, "stable", None)
        stable = declared is not None and declared(offset, size)
        recalls = getattr(device, "recalls", None) if stable and not self._near else None
        recalled = None if recalls is None else recalls(offset, size)
        posted, held = self._posted, Held()
        direct = None if stable else DirectCall(clock, number, read, (offset, size), held.append)
        known, seen = clock.known[number], 0

        def load(start: int) -> tuple[int, int] | None:
            nonlocal seen
            acts = start + acts_after
            if held:
                reply: Any = _returned(held)
            else:
                if clock.next <= acts:
                    clock.advance(acts)
                elif acts > clock.now:
                    clock.now = acts
                reply = read(offset, size, acts)
            took = cycles
            if type(reply) is not int and not isinstance(reply, Reply):
                reply = _integer(reply, device, offset)
            if isinstance(reply, Reply):
                clock.touched(number, acts + 1)
                if reply.fault:
                    return None
                took += reply.wait
                reply = _integer(reply.value, device, offset)
            elif direct is not None:
                clock.touched(number, acts + 1)
                if known[KIND] and not observers and not own:
                    read_cache.keep(address, size, 0, 0, cycles, acts_after, call=direct.address)
            elif recalled is not None and posted.drained <= acts and not observers and not own:
                read_cache.keep(address, size, clock.changes, reply, cycles, acts_after, clock.epoch, recalled)
            elif seen == clock.changes:
                read_cache.keep(address, size, seen, reply, cycles, acts_after)
            else:
                seen = clock.changes
            if observers or own:
                access = accessed((device, offset, size, False, reply, start, start + took, acts + 1))
                for observer in (*observers, *own):
                    observer(access)
            return reply, took

        return load

    def _storer(self, address: int, size: int) -> Store:
        """The store arrives when it has left the core; none is on its way then, as all others do the same."""
        device, offset, clock, number = self.device, address - self.base, self._clock, self._number
        write, cycles = device.write, self._store_cycles
        observers, own, store_cache = self._observers, self.observers, self._store_cache
        deferrable, what = None if self._near else clock.deferrable(number), what_of(number, offset, size)
        read_cache, known, held = self._read_cache, clock.known[number], Held()
        direct = DirectCall(clock, number, write, (offset, size), held.append)

        def store(value: int, start: int) -> int | None:
            arrival = end = start + cycles
            quiet = False
            if held:
                reply: Any = _returned(held)
            else:
                read_cache.stored(address)
                clock.advance(arrival - 1)
                quiet = deferrable is not None and deferrable(offset, size)
                reply = write(offset, size, value, arrival - 1)
            if quiet:
                clock.changes += 1
                clock.deferred += 1
                if not observers and not own:
                    store_cache.keep(address, size, clock.epoch, cycles, 0, what)
            else:
                clock.touched(number, arrival)
                if known[KIND] and not observers and not own:
                    store_cache.keep(address, size, ALWAYS, cycles, 0, what, direct.address)
            if reply is not None:
                if reply.fault:
                    return None
                end += reply.wait
            if observers or own:
                access = accessed((device, offset, size, True, value, start, end, arrival))
                for observer in (*observers, *own):
                    observer(access)
            return end - start

        return store

    def _post(self, address: int, size: int) -> Store:
        """The store arrives one way after it has left the core."""
        device, offset, clock, number = self.device, address - self.base, self._clock, self._number
        cycles, one_way = self._store_cycles, self._one_way
        observers, own, posted, store_cache = self._observers, self.observers, self._posted, self._store_cache
        deferrable, what = clock.deferrable(number), what_of(number, offset, size)
        read_cache, known = self._read_cache, clock.known[number]

        def finish(raised: BaseException | None) -> None:
            """What is left to do when native code has called `write`."""
            try:
                if raised is not None:
                    raise raised
                clock.touched(number, clock.now)
            except BaseException as error:
                clock.failure = error

        since = slot_of(address) * WORDS + SINCE
        direct = DirectCall(clock, number, device.write, (offset, size), finish)
        clock.calls[what] = direct.address

        def store(value: int, start: int) -> int:
            read_cache.table[since] = 0  # something else than native code stores there
            end = posted.send(start, cycles, one_way)
            arrival = end + one_way
            clock.post(arrival, number, offset, size, value)
            if observers or own:
                clock.unheld = arrival
                access = accessed((device, offset, size, True, value, start, end, arrival))
                for observer in (*observers, *own):
                    observer(access)
            else:
                epoch = clock.epoch if deferrable is not None and deferrable(offset, size) else ALWAYS
                clock.followers(number)  # which finds what has to be done then
                call = direct.address if epoch == ALWAYS and known[KIND] else 0
                store_cache.keep(address, size, epoch, cycles, one_way, what, call)
            return end - start

        return store

    def refuse(self, address: int, size: int, write: bool, start: int) -> None:
        """An access that is a fault whatever the register: LR, SC, AMO."""
        self._refusal(address - self.base, size, write)(start)

    # -- accesses that it does not accept ----------------------------------------------------------------------

    def _refused_load(self, address: int, size: int) -> Load:
        refused = self._refusal(address - self.base, size, False)

        def load(start: int) -> None:
            refused(start)

        return load

    def _refused_store(self, address: int, size: int) -> Store:
        refused = self._refusal(address - self.base, size, True)

        def store(value: int, start: int) -> None:
            refused(start)

        return store

    def _refusal(self, offset: int, size: int, write: bool) -> Callable[[int], None]:
        """Tells a device that counts such things."""
        clock, number = self._clock, self._number
        count = getattr(self.device, "refused", None)

        def refused(now: int) -> None:
            if count is not None:
                clock.advance(now)
                count(offset, size, write, now)
                clock.touched(number, now + 1)

        return refused


def _returned(held: Held) -> Any:
    """What a method has returned that native code has called; what it has raised is raised."""
    outcome = held.pop()
    if isinstance(outcome, BaseException):
        raise outcome
    return outcome


def _integer(value: Any, device: Device, offset: int) -> int:
    """What a device has returned for a load, which may be an integer of NumPy's."""
    try:
        return index(value)
    except TypeError:
        raise PyvExtError(
            f"device {device.name}: read at {offset:#x} gave {value!r}: it gives an integer or a Reply"
        ) from None
