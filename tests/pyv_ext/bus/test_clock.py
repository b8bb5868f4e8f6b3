"""The clock against the simplest one: all that is due happens, in order, however far it advances at once."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from shares import draws

from pyv_ext.bus.bus import Bus
from pyv_ext.bus.clock import NEVER, Clock
from pyv_ext.devices.base import Register, RegisterDevice
from pyv_ext.errors import PyvExtError
from pyv_ext.machine.state import MAX_DEVICES
from pyv_ext.timing import CoreTiming

MOST = 250
GAPS = st.lists(st.integers(1, 12), max_size=12)
POSTS = st.lists(st.tuples(st.integers(0, 9), st.integers(0, 3), st.integers(1, 9)), max_size=12)
PAGE = 0x1000


class Scripted:
    """Acts after each of `gaps`; a store lets it act `value` cycles after its arrival."""

    irq = False
    size = PAGE

    def __init__(self, number, gaps, log):
        self.number, self.gaps, self.log = number, list(gaps), log
        self.name = f"scripted{number}"
        self.at = self.gaps.pop(0) if self.gaps else None

    def accepts(self, offset, size, write):
        return True

    def next_event(self):
        return self.at

    def advance(self, now):
        if self.at is not None and self.at <= now:
            self.log.append((now, "acts", self.number))
            self.irq = not self.irq and self.number % 2 == 1
            self.at = now + self.gaps.pop(0) if self.gaps else None

    def write(self, offset, size, value, now):
        self.log.append((now + 1, "has", self.number, offset, value))
        self.at = now + 1 + value


def plainly(scripts, posts):
    """Cycle by cycle: stores that arrive, then devices in their order."""
    log = []
    devices = [Scripted(number, gaps, log) for number, gaps in enumerate(scripts)]
    for cycle in range(1, MOST):
        for arrival, target, value in posts:
            if arrival == cycle:
                devices[target].write(4, 4, value, cycle - 1)
        for device in devices:
            device.advance(cycle)
    return log


@pytest.mark.parametrize("compiled", [False, True])
@settings(max_examples=draws(100), deadline=None, derandomize=True, database=None)
@given(st.lists(GAPS, min_size=4, max_size=4), POSTS, st.lists(st.integers(1, 40)), st.sets(st.integers(0, 3)))
def test_everything_happens_in_its_order(compiled, scripts, posts, strides, shared):
    times, posted = 2, []
    for gap, target, value in posts:
        times += gap
        posted.append((times, target, value))
    log = []
    clock = Clock()
    if compiled:
        clock.compile()
    bus = Bus(clock, CoreTiming(mmio_one_way=1, posted_depth=64))
    devices = [Scripted(number, gaps, log) for number, gaps in enumerate(scripts)]
    for device in devices:
        clock.attach(device, shared=device.number in shared)
        bus.add_device(PAGE * (1 + device.number), device)
    for arrival, target, value in posted:
        assert bus.store(PAGE * (1 + target) + 4, 4, value, arrival - 2) == 1
    for stride in (*strides, MOST):
        cycle = min(clock.now + stride, MOST - 1)
        changes = clock.changes
        happened = len(log)
        clock.advance(cycle)
        assert clock.now == cycle < clock.next
        assert (clock.changes > changes) or len(log) == happened
        waiting = [device.at for device in devices if device.at is not None]
        waiting += [arrival for arrival, _, _ in posted if arrival > cycle]
        assert clock.next == min(waiting, default=NEVER)
    assert log == plainly(scripts, posted)


class Plain(RegisterDevice):
    name = "plain"
    size = 4
    registers = (Register("VALUE", 0),)


class Line(Plain):
    """A line that is looked at as often as `looks` says."""

    level = False
    looks = 0

    @property
    def irq(self) -> bool:
        self.looks += 1
        return self.level


def test_a_device_is_looked_at_when_it_has_changed() -> None:
    clock, device, other = Clock(), Line(), Line()
    number = clock.attach(device)
    clock.attach(other)
    clock.connect(device, source=3)
    device.looks = other.looks = 0
    clock.device_changed(number, 3)
    assert (device.looks, other.looks) == (1, 0)
    device.level = True
    clock.changed(4)
    assert (device.looks, other.looks) == (2, 1)
    assert clock.machine.devices[number].level and Plain.passive and not Line.passive


def test_a_device_is_attached_once_and_not_without_end() -> None:
    clock, device = Clock(), Plain()
    assert clock.attach(device) == clock.attach(device) == 0
    for _ in range(MAX_DEVICES - 1):
        clock.attach(Plain())
    with pytest.raises(PyvExtError, match="device 65: a machine has at most 64; attach fewer"):
        clock.attach(Plain())
