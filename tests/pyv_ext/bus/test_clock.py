"""The clock against the simplest one: all that is due happens, in order, however far it advances at once."""

from hypothesis import given, settings
from hypothesis import strategies as st
from shares import draws

from pyv_ext.bus.clock import NEVER, Clock
from pyv_ext.devices.base import Register, RegisterDevice

MOST = 250
GAPS = st.lists(st.integers(1, 12), max_size=12)
POSTS = st.lists(st.tuples(st.integers(0, 9), st.integers(0, 3), st.integers(1, 9)), max_size=12)


class Scripted:
    """Acts after each of `gaps`; a store lets it act `value` cycles after its arrival."""

    irq = False

    def __init__(self, number, gaps, log):
        self.number, self.gaps, self.log = number, list(gaps), log
        self.at = self.gaps.pop(0) if self.gaps else None

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


@settings(max_examples=draws(100), deadline=None, derandomize=True, database=None)
@given(st.lists(GAPS, min_size=4, max_size=4), POSTS, st.lists(st.integers(1, 40)), st.sets(st.integers(0, 3)))
def test_everything_happens_in_its_order(scripts, posts, strides, independent):
    independent |= {target for _, target, _ in posts}  # what takes stores is on the bus
    times, posted = 0, []
    for gap, target, value in posts:
        times += gap
        posted.append((times + 1, target, value))
    log, heard = [], []
    clock = Clock()
    devices = [Scripted(number, gaps, log) for number, gaps in enumerate(scripts)]

    def hear(cycle):
        heard.append(cycle)
        assert all(device.at is None or device.at > cycle for device in devices), "told before all has happened"

    clock.on_change(hear, heeds=devices[:2])
    numbers = [clock.attach(device, alone=device.number in independent) for device in devices]
    for arrival, target, value in posted:
        clock.post(arrival, numbers[target], 4, 4, value)
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
    assert {cycle for cycle, _, number, *_ in log if number < 2 or number not in independent} <= set(heard)


class Plain(RegisterDevice):
    name = "plain"
    size = 4
    registers = (Register("VALUE", 0),)


def test_a_device_without_line_and_events_is_followed_by_those_who_ask_for_it() -> None:
    clock, told = Clock(), list[int]()
    number = clock.attach(Plain(), alone=True)
    for cycle in (3, 4):
        clock.touched(number, cycle)
    clock.on_change(told.append)
    changes = clock.changes
    clock.touched(number, 5)
    clock.touched(number, 6)
    assert told == [5, 6] and clock.changes == changes + 2


def test_a_device_with_a_line_is_asked_at_each_touch() -> None:
    class Line(Plain):
        level = False

        @property
        def irq(self) -> bool:
            return self.level

    clock, told, device = Clock(), list[int](), Line()
    clock.on_change(told.append, heeds=())
    number = clock.attach(device, alone=True)
    told.clear()
    clock.touched(number, 3)
    device.level = True
    clock.touched(number, 4)
    assert told == [4] and Plain.passive and not Line.passive


def test_posted_stores_to_one_register_are_one_call_up_to_whatever_else_is_due() -> None:
    log: list[object] = []

    class Printer(Plain):
        def deferrable(self, offset: int, size: int) -> bool:
            return offset == 0

        def write_in_a_row(self, offset: int, size: int, values: list[int], now: int) -> None:
            log.append((now + 1, values))

        def write(self, offset: int, size: int, value: int, now: int) -> None:
            log.append((now + 1, offset, value))

    clock = Clock()
    number = clock.attach(Printer(), alone=True)
    clock.attach(Scripted(1, [5], log))
    for arrival in range(1, 9):
        clock.post(arrival, number, 0, 4, 10 * arrival)
    clock.post(9, number, 4, 4, 90)
    deferred, epoch = clock.deferred, clock.epoch
    clock.advance(7)
    assert log == [(4, [10, 20, 30, 40]), (5, 0, 50), (5, "acts", 1), (7, [60, 70])]
    assert (clock.now, clock.next, clock.deferred) == (7, 8, deferred + 7)
    clock.advance(20)
    assert log[4:] == [(8, [80]), (9, 4, 90)]
    assert clock.next == NEVER and clock.epoch > epoch
