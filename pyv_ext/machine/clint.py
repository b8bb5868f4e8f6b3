"""Registers of the CLINT (SiFive layout) in the native subset."""

from pyv_ext.machine.state import NEVER, WORD, ClintRecord

MSIP_AT, COMPARE_LOW, COMPARE_HIGH, TIME_LOW, TIME_HIGH = 0x0000, 0x4000, 0x4004, 0xBFF8, 0xBFFC
"""Offsets."""
_FAR = 1 << 29


def time_low(clint: ClintRecord, ticks: int) -> int:
    """Return the low half of mtime after a number of ticks."""
    return clint.offset_low + ticks & WORD


def time_high(clint: ClintRecord, ticks: int) -> int:
    """Return the high half of mtime after a number of ticks."""
    carry = clint.offset_low + (ticks & WORD) >> 32
    return clint.offset_high + (ticks >> 32) + carry & WORD


def set_time(clint: ClintRecord, high: int, low: int, ticks: int) -> None:
    """Set mtime, as of a number of ticks."""
    borrow = 1 if low < ticks & WORD else 0
    clint.offset_low = low - ticks & WORD
    clint.offset_high = high - (ticks >> 32) - borrow & WORD


def is_reached(clint: ClintRecord, ticks: int) -> bool:
    """Check mtime >= mtimecmp."""
    high = time_high(clint, ticks)
    return high > clint.compare_high or (high == clint.compare_high and time_low(clint, ticks) >= clint.compare_low)


def find_due(clint: ClintRecord) -> None:
    """Update the deadline of the timer's next change: mtime reaches mtimecmp or, after that, wraps around to 0 below
    it; at once where a tick has become shorter."""
    ticks = clint.last_cycle // clint.divider
    clint.due = NEVER
    if not clint.timer and is_reached(clint, ticks):
        clint.due = clint.last_cycle
        return
    if clint.timer and clint.compare_low == 0 and clint.compare_high == 0:
        return
    high = (1 << 32 if clint.timer else clint.compare_high) - time_high(clint, ticks)
    low = (0 if clint.timer else clint.compare_low) - time_low(clint, ticks)
    if high >= _FAR:
        return
    ticks_left = (high << 32) + low
    if ticks_left <= (NEVER - 1) // clint.divider - ticks:
        clint.due = (ticks + ticks_left) * clint.divider


def decide(clint: ClintRecord, cycle: int) -> None:
    """Update the timer's level at the start of a cycle."""
    clint.last_cycle = cycle
    clint.timer = is_reached(clint, cycle // clint.divider)
    find_due(clint)


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
    """Store to a register in cycle `now`, with effect from the next one on."""
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
