"""A device on the bus, as the hart accesses it: what an access costs, when it acts, who sees it (specification 35)."""

from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

from pyv_ext.clock import Clock
from pyv_ext.protocols import Device
from pyv_ext.timing import CoreTiming


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


Observer = Callable[[Access], None]


class Posted:
    """The posted stores of one hart that are on their way."""

    def __init__(self, depth: int) -> None:
        self._depth = depth
        self.arrivals: deque[int] = deque()
        self.drained = 0
        """The cycle at whose start the last one arrives."""

    def leave(self, start: int) -> int:
        """When a store of cycle `start` can leave the core: at once, unless as many as are allowed are on their way."""
        arrivals = self.arrivals
        while arrivals and arrivals[0] <= start:
            arrivals.popleft()
        return arrivals.popleft() if len(arrivals) >= self._depth else start

    def add(self, arrival: int) -> None:
        self.arrivals.append(arrival)
        self.drained = arrival


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
        observers: Sequence[Observer],
    ) -> None:
        """`near` devices cost a load or store plus `near_extra` instead of an MMIO access."""
        self.base = base
        self.end = base + device.size
        self.device = device
        self._clock = clock
        self._posted = posted
        self._observers = observers
        self._number = clock.attach(device, alone=True)
        self._near = near
        if near:
            self._load_cycles = timing.load + timing.near_extra
            self._load_acts = self._load_cycles - 1
            self._store_cycles, self._one_way = timing.store + timing.near_extra, 0
        else:
            self._load_cycles = timing.mmio_read
            self._load_acts = min(1 + timing.mmio_one_way, timing.mmio_read) - 1
            self._store_cycles, self._one_way = timing.mmio_write, timing.mmio_one_way

    def load(self, address: int, size: int, start: int) -> tuple[int, int] | None:
        """(value, cycles) of a load that starts in cycle `start`; None is an access fault."""
        device, clock, offset = self.device, self._clock, address - self.base
        if not device.accepts(offset, size, False):
            self._refused(offset, size, False, start)
            return None
        acts = start + self._load_acts
        clock.advance(acts)
        reply = device.read(offset, size, acts)
        clock.touched(self._number, acts + 1)
        cycles = self._load_cycles
        if isinstance(reply, tuple):
            if reply.fault:
                return None
            cycles += reply.wait
            reply = reply.value
        if self._observers:
            access = Access(device, offset, size, False, reply, start, start + cycles, acts + 1)
            for observer in self._observers:
                observer(access)
        return reply, cycles

    def store(self, address: int, size: int, value: int, start: int) -> int | None:
        """Cycles of a store that starts in cycle `start`; None is an access fault."""
        device, clock, offset = self.device, self._clock, address - self.base
        if not device.accepts(offset, size, True):
            self._refused(offset, size, True, start)
            return None
        end = (start if self._near else self._posted.leave(start)) + self._store_cycles
        arrival = end + self._one_way
        if arrival > end:
            self._posted.add(arrival)
            clock.post(arrival, device, offset, size, value)
        else:
            clock.advance(arrival - 1)
            reply = device.write(offset, size, value, arrival - 1)
            clock.touched(self._number, arrival)
            if reply is not None:
                if reply.fault:
                    return None
                end += reply.wait
        if self._observers:
            access = Access(device, offset, size, True, value, start, end, arrival)
            for observer in self._observers:
                observer(access)
        return end - start

    def _refused(self, offset: int, size: int, write: bool, now: int) -> None:
        """Tell a device that counts such things about an access that it did not accept."""
        count = getattr(self.device, "refused", None)
        if count is not None:
            self._clock.advance(now)
            count(offset, size, write, now)
            self._clock.touched(self._number, now + 1)
