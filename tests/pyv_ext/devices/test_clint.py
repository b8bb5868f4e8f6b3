import pytest
from core_rows import Lines
from device_rig import CLINT, Rig
from hypothesis import given, settings
from hypothesis import strategies as st
from shares import draws

from pyv_ext.bus.clock import Clock
from pyv_ext.devices.clint import Clint
from pyv_ext.devices.interrupts import MSIP, MTIP, InterruptWiring
from pyv_ext.devices.plic import Plic
from pyv_ext.errors import PyvExtError

ONES = 0xFFFF_FFFF
MSIP_REG, CMP_LO, CMP_HI, TIME_LO, TIME_HI = 0x0, 0x4000, 0x4004, 0xBFF8, 0xBFFC


class Counter64:
    """What the registers mean, counted cycle by cycle."""

    def __init__(self, divider: int) -> None:
        self.divider, self.cycle, self.mtime, self.mtimecmp = divider, 0, 0, (1 << 64) - 1

    def step(self, write: tuple[int, int] | None) -> None:
        """End the present cycle, in which `write` (offset, value) happened."""
        self.cycle += 1
        if self.cycle % self.divider == 0:
            self.mtime = (self.mtime + 1) % (1 << 64)
        if write is not None:
            offset, value = write
            shift = 32 if offset in (CMP_HI, TIME_HI) else 0
            keep = ONES << (32 - shift)
            if offset in (CMP_LO, CMP_HI):
                self.mtimecmp = self.mtimecmp & keep | value << shift
            else:
                self.mtime = self.mtime & keep | value << shift

    @property
    def timer(self) -> bool:
        return self.mtime >= self.mtimecmp


halves = st.one_of(st.integers(0, 12), st.integers(ONES - 6, ONES))
writes = st.tuples(st.sampled_from([CMP_LO, CMP_HI, TIME_LO, TIME_HI]), halves)


@settings(max_examples=draws(150), deadline=None)
@given(st.integers(1, 7), st.dictionaries(st.integers(0, 80), writes, max_size=12))
def test_the_timer_line_changes_in_the_very_cycle(divider: int, script: dict[int, tuple[int, int]]) -> None:
    clock, clint, truth = Clock(), Clint(divider), Counter64(divider)
    InterruptWiring(clock, clint=clint, plic=Plic(), sources={})
    lines = Lines(clock)
    for cycle in range(120):
        assert clint.mtime(cycle) == truth.mtime
        clock.advance(cycle)
        assert clint.timer == truth.timer
        seen = lines.all
        assert bool(seen and seen[-1][1] & MTIP) == truth.timer, "mip shows the line at the start of its cycle"
        write = script.get(cycle)
        if write is not None:
            clint.write(write[0], 4, write[1], cycle)
            clock.changed(cycle + 1)
        truth.step(write)


def test_the_next_event_is_the_cycle_of_the_match_however_far() -> None:
    rig = Rig(divider=120)
    rig.store(CLINT + CMP_HI, 1)
    rig.store(CLINT + CMP_LO, 5)
    match = ((1 << 32) + 5) * 120
    assert rig.clock.next == match
    rig.clock.advance(match - 1)
    assert not rig.mip & MTIP
    rig.clock.advance(match)
    assert rig.mip & MTIP
    assert rig.clint.next_event() is None


def test_reset_values() -> None:
    rig = Rig()
    assert [rig.load(CLINT + offset) for offset in (MSIP_REG, CMP_LO, CMP_HI, TIME_LO, TIME_HI)] == [
        0,
        ONES,
        ONES,
        0,
        0,
    ]
    assert rig.clint.next_event() is None


def test_mtime_counts_on_from_what_is_written() -> None:
    rig = Rig(divider=10)
    rig.now = 95
    rig.store(CLINT + TIME_HI, 0x1234)
    rig.store(CLINT + TIME_LO, 0xFFFF_FFFE)
    assert (rig.load(CLINT + TIME_HI), rig.load(CLINT + TIME_LO)) == (0x1234, 0xFFFF_FFFE)
    rig.now = 109
    assert (rig.load(CLINT + TIME_HI), rig.load(CLINT + TIME_LO)) == (0x1234, 0)
    assert rig.load(CLINT + TIME_HI) == 0x1235


def test_software_interrupt_has_one_bit() -> None:
    rig = Rig()
    rig.store(CLINT + MSIP_REG, ONES)
    assert rig.load(CLINT + MSIP_REG) == 1
    assert rig.mip == MSIP
    rig.store(CLINT + MSIP_REG, ONES - 1)
    assert rig.mip == 0


@pytest.mark.parametrize(("offset", "size"), [(0x4, 4), (0x4008, 4), (0xBFF4, 4), (0x0, 1), (0x4000, 2), (0x4000, 8)])
def test_anything_else_faults(offset: int, size: int) -> None:
    rig = Rig()
    assert rig.load(CLINT + offset, size) is None
    assert not rig.store(CLINT + offset, 0, size)


def test_a_divider_below_one_is_refused() -> None:
    with pytest.raises(PyvExtError, match=r"clint\.divider 0: a tick of mtime must last at least 1 cycle"):
        Clint(0)
