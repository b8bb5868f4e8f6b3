from dataclasses import dataclass

import pytest
from core_rows import Lines

from pyv_ext.bus.clock import Clock
from pyv_ext.devices.base import DeviceBase
from pyv_ext.devices.clint import Clint
from pyv_ext.devices.interrupts import MEIP, MSIP, MTIP, InterruptWiring
from pyv_ext.devices.plic import Plic
from pyv_ext.errors import PyvExtError

SOURCE = 11
CLAIM = 0x20_0004


class Pulse(DeviceBase):
    """Its line is high from cycle `rise` to before cycle `fall`."""

    name = "pulse"
    size = 4

    def __init__(self, rise: int, fall: int) -> None:
        self.edges = [rise, fall]
        self.level = False

    @property
    def irq(self) -> bool:
        return self.level

    def accepts(self, offset: int, size: int, write: bool) -> bool:
        return False

    def read(self, offset: int, size: int, now: int) -> int:
        return 0

    def write(self, offset: int, size: int, value: int, now: int) -> None: ...

    def next_event(self) -> int | None:
        return self.edges[0] if self.edges else None

    def advance(self, now: int) -> None:
        while self.edges and self.edges[0] <= now:
            self.edges.pop(0)
            self.level = not self.level


@dataclass
class Wired:
    clock: Clock
    plic: Plic
    wiring: InterruptWiring
    lines: Lines

    @property
    def history(self) -> list[tuple[int, int]]:
        return self.lines.all

    @property
    def rises(self) -> list[int]:
        return [cycle for cycle, level in self.lines.external if level]


def wired(device: Pulse, *, through: bool = True, direct: bool = False, delay: int = 0) -> Wired:
    clock, plic, clint = Clock(), Plic(), Clint()
    clock.attach(device)
    wiring = InterruptWiring(
        clock,
        clint=clint,
        plic=plic,
        sources={SOURCE: device} if through else {},
        direct=[device] if direct else [],
        plic_delay=delay,
    )
    plic.write(4 * SOURCE, 4, 1, 0)
    plic.write(0x2000, 4, 1 << SOURCE, 0)
    return Wired(clock, plic, wiring, Lines(clock))


def test_the_bits_of_mip() -> None:
    assert (MSIP, MTIP, MEIP) == (0x8, 0x80, 0x800)


@pytest.mark.parametrize("delay", [0, 1, 3, 15])
def test_the_plic_delays_a_rise(delay: int) -> None:
    rig = wired(Pulse(100, 200), delay=delay)
    rig.clock.advance(1000)
    assert rig.history == [(100 + delay, MEIP)], "the PLIC remembers the request when the line falls"
    assert rig.rises == [100 + delay]


@pytest.mark.parametrize("delay", [0, 15])
def test_a_claim_lets_mip_fall_at_once_and_completion_raises_it_after_the_delay(delay: int) -> None:
    rig = wired(Pulse(100, 10_000), delay=delay)
    rig.clock.advance(150)
    assert rig.plic.read(CLAIM, 4, 150) == SOURCE
    rig.clock.changed(151)
    assert rig.wiring.lines == 0
    rig.clock.advance(160)
    rig.plic.write(CLAIM, 4, SOURCE, 160)
    rig.clock.changed(161)
    rig.clock.advance(500)
    assert rig.rises == [100 + delay, 161 + delay]


def test_a_rise_that_is_claimed_within_the_delay_never_reaches_mip() -> None:
    rig = wired(Pulse(100, 200), delay=15)
    rig.clock.advance(110)
    rig.plic.read(CLAIM, 4, 110)
    rig.clock.changed(111)
    assert rig.clock.next == 200
    rig.clock.advance(1000)
    assert (rig.history, rig.rises) == ([], [])


def test_a_direct_line_is_not_delayed_and_falls_with_the_device() -> None:
    rig = wired(Pulse(100, 200), through=False, direct=True, delay=15)
    rig.clock.advance(1000)
    assert rig.history == [(100, MEIP), (200, 0)]
    assert rig.rises == [100]


def test_direct_or_plic_whichever_is_first_and_longest() -> None:
    rig = wired(Pulse(100, 200), through=True, direct=True, delay=15)
    rig.clock.advance(1000)
    assert rig.history == [(100, MEIP)], "the PLIC's pending request holds it"
    assert rig.rises == [100]


def test_timer_and_external_bits_are_told_apart() -> None:
    clock, clint, plic, device = Clock(), Clint(divider=1), Plic(), Pulse(50, 60)
    clock.attach(clint)
    clock.attach(device)
    wiring = InterruptWiring(clock, clint=clint, plic=plic, sources={}, direct=[device])
    lines = Lines(clock)
    clint.write(0x4000, 4, 55, 0)
    clint.write(0x4004, 4, 0, 0)
    clock.changed(1)
    clock.advance(100)
    assert lines.all == [(50, MEIP), (55, MEIP | MTIP), (60, MTIP)]
    assert wiring.lines == MTIP
    assert lines.external == [(50, True), (60, False)], "the timer is no external interrupt"


def test_a_call_from_outside_in_the_middle_of_an_access_does_not_go_back_in_time() -> None:
    rig = wired(Pulse(100, 200), delay=1)
    rig.clock.advance(100)
    rig.clock.changed(101)  # an access that acts in cycle 100
    assert rig.rises == [101]
    rig.clock.changed(rig.clock.now)
    assert rig.wiring.lines == MEIP


@pytest.mark.parametrize("source", [0, 32])
def test_a_source_that_does_not_exist_is_refused(source: int) -> None:
    with pytest.raises(PyvExtError, match=rf"PLIC source {source} of pulse: sources are 1\.\.31"):
        InterruptWiring(Clock(), clint=Clint(), plic=Plic(), sources={source: Pulse(1, 2)})


@pytest.mark.parametrize("source", [1, 31])
def test_the_first_and_the_last_source_work(source: int) -> None:
    clock, plic, device = Clock(), Plic(), Pulse(5, 6)
    clock.attach(device)
    InterruptWiring(clock, clint=Clint(), plic=plic, sources={source: device})
    clock.advance(5)
    assert plic["PENDING"] == 1 << source
