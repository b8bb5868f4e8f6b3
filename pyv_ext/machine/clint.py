"""Registers of the CLINT (SiFive layout) in the native subset."""

from pyv_ext.machine.state import NEVER, WORD, ClintRecord
from pyv_native.intrinsics import i32, u32, unsigned_less, wrapping_sub

MSIP_AT, COMPARE_LOW, COMPARE_HIGH, TIME_LOW, TIME_HIGH = 0x0000, 0x4000, 0x4004, 0xBFF8, 0xBFFC
"""Register offsets."""


def replace_low(value: int, half: int) -> int:
    """Return `value` with another low half of 32 bits."""
    return value & ~WORD | half


def replace_high(value: int, half: int) -> int:
    """Return `value` with another high half of 32 bits."""
    return i32(half) << 32 | u32(value)


def mtime(clint: ClintRecord, ticks: int) -> int:
    """Return mtime after a number of ticks."""
    return wrapping_sub(clint.base, -ticks)


def set_time(clint: ClintRecord, value: int, ticks: int) -> None:
    """Set mtime after a number of ticks."""
    clint.base = wrapping_sub(value, ticks)


def is_reached(clint: ClintRecord, ticks: int, comparator: int) -> bool:
    """Check mtime >= a comparator."""
    return not unsigned_less(mtime(clint, ticks), comparator)


def next_change(clint: ClintRecord, level: int, comparator: int) -> int:
    """Return the cycle of the next level change of a timer: mtime reaches its comparator or, after that, wraps around
    to 0. `last_cycle`: mtime has reached the comparator, but the level is not updated yet. NEVER: no change within a
    run."""
    ticks = clint.last_cycle // clint.divider
    if not level and is_reached(clint, ticks, comparator):
        return clint.last_cycle
    if level and comparator == 0:
        return NEVER
    remaining = wrapping_sub(0 if level else comparator, mtime(clint, ticks))
    return (ticks + remaining) * clint.divider if 0 < remaining <= (NEVER - 1) // clint.divider - ticks else NEVER


def update_deadline(clint: ClintRecord) -> None:
    """Update the deadline of the timers' next change."""
    clint.deadline = next_change(clint, clint.timer, clint.compare)
    if clint.has_stimecmp:
        clint.deadline = min(clint.deadline, next_change(clint, clint.supervisor_timer, clint.stimecmp))


def decide(clint: ClintRecord, cycle: int) -> None:
    """Update the timers' levels at the start of a cycle."""
    clint.last_cycle = cycle
    ticks = cycle // clint.divider
    clint.timer = is_reached(clint, ticks, clint.compare)
    if clint.has_stimecmp:
        clint.supervisor_timer = is_reached(clint, ticks, clint.stimecmp)
    update_deadline(clint)


def read_clint(clint: ClintRecord, offset: int, now: int) -> int:
    """Read a register in cycle `now`."""
    if offset == MSIP_AT:
        return clint.msip
    if offset == COMPARE_LOW:
        return u32(clint.compare)
    if offset == COMPARE_HIGH:
        return u32(clint.compare >> 32)
    time = mtime(clint, now // clint.divider)
    return u32(time if offset == TIME_LOW else time >> 32)


def write_clint(clint: ClintRecord, offset: int, value: int, now: int) -> None:
    """Store to a register in cycle `now`, with effect from the next cycle on."""
    ticks = (now + 1) // clint.divider
    if offset == MSIP_AT:
        clint.msip = value & 1
    elif offset == COMPARE_LOW:
        clint.compare = replace_low(clint.compare, value)
    elif offset == COMPARE_HIGH:
        clint.compare = replace_high(clint.compare, value)
    elif offset == TIME_LOW:
        set_time(clint, replace_low(mtime(clint, ticks), value), ticks)
    else:
        set_time(clint, replace_high(mtime(clint, ticks), value), ticks)
    decide(clint, now + 1)
