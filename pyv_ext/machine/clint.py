"""Registers of the CLINT (SiFive layout) in the native subset."""

from pyv_ext.machine.state import NEVER, WORD, ClintRecord

MSIP_AT, COMPARE_LOW, COMPARE_HIGH, TIME_LOW, TIME_HIGH = 0x0000, 0x4000, 0x4004, 0xBFF8, 0xBFFC
"""Register offsets."""
_FAR = 1 << 29


def time_low(clint: ClintRecord, ticks: int) -> int:
    """Return the low half of mtime after a number of ticks."""
    return clint.offset_low + ticks & WORD


def time_high(clint: ClintRecord, ticks: int) -> int:
    """Return the high half of mtime after a number of ticks."""
    carry = clint.offset_low + (ticks & WORD) >> 32
    return clint.offset_high + (ticks >> 32) + carry & WORD


def set_time(clint: ClintRecord, high: int, low: int, ticks: int) -> None:
    """Set mtime after a number of ticks."""
    borrow = 1 if low < ticks & WORD else 0
    clint.offset_low = low - ticks & WORD
    clint.offset_high = high - (ticks >> 32) - borrow & WORD


def is_reached(clint: ClintRecord, ticks: int, high: int, low: int) -> bool:
    """Check mtime >= a comparator."""
    upper = time_high(clint, ticks)
    return upper > high or (upper == high and time_low(clint, ticks) >= low)


def next_change(clint: ClintRecord, level: int, high: int, low: int) -> int:
    """Return the cycle of the next level change of a timer: mtime reaches its comparator or, after that, wraps around
    to 0. `last_cycle`: mtime has reached the comparator, but the level is not updated yet. NEVER: no change within a
    run."""
    ticks = clint.last_cycle // clint.divider
    if not level and is_reached(clint, ticks, high, low):
        return clint.last_cycle
    if level and low == 0 and high == 0:
        return NEVER
    high_left = (1 << 32 if level else high) - time_high(clint, ticks)
    low_left = (0 if level else low) - time_low(clint, ticks)
    if high_left >= _FAR:
        return NEVER
    ticks_left = (high_left << 32) + low_left
    return (ticks + ticks_left) * clint.divider if ticks_left <= (NEVER - 1) // clint.divider - ticks else NEVER


def update_deadline(clint: ClintRecord) -> None:
    """Update the deadline of the timers' next change."""
    clint.deadline = next_change(clint, clint.timer, clint.compare_high, clint.compare_low)
    if clint.has_stimecmp:
        supervisor_deadline = next_change(clint, clint.supervisor_timer, clint.supervisor_high, clint.supervisor_low)
        clint.deadline = min(clint.deadline, supervisor_deadline)


def decide(clint: ClintRecord, cycle: int) -> None:
    """Update the timers' levels at the start of a cycle."""
    clint.last_cycle = cycle
    ticks = cycle // clint.divider
    clint.timer = is_reached(clint, ticks, clint.compare_high, clint.compare_low)
    if clint.has_stimecmp:
        clint.supervisor_timer = is_reached(clint, ticks, clint.supervisor_high, clint.supervisor_low)
    update_deadline(clint)


def read_clint(clint: ClintRecord, offset: int, now: int) -> int:
    """Read a register in cycle `now`."""
    if offset == MSIP_AT:
        return clint.msip
    if offset == COMPARE_LOW:
        return clint.compare_low
    if offset == COMPARE_HIGH:
        return clint.compare_high
    ticks = now // clint.divider
    return time_low(clint, ticks) if offset == TIME_LOW else time_high(clint, ticks)


def write_clint(clint: ClintRecord, offset: int, value: int, now: int) -> None:
    """Store to a register in cycle `now`, with effect from the next cycle on."""
    ticks = (now + 1) // clint.divider
    if offset == MSIP_AT:
        clint.msip = value & 1
    elif offset == COMPARE_LOW:
        clint.compare_low = value
    elif offset == COMPARE_HIGH:
        clint.compare_high = value
    elif offset == TIME_LOW:
        set_time(clint, time_high(clint, ticks), value, ticks)
    else:
        set_time(clint, value, time_low(clint, ticks), ticks)
    decide(clint, now + 1)
