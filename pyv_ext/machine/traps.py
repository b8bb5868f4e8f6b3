"""Causes of traps and interrupts (RISC-V privileged manual, version 1.12, "Machine Cause Register")."""

from enum import IntEnum

INTERRUPT = 1 << 31
"""Flag of an interrupt in a trap's cause; mcause has its highest bit set instead, whatever its width."""

USER, SUPERVISOR, MACHINE = 0, 1, 3
"""Privilege levels."""


class Cause(IntEnum):
    """Synchronous causes."""

    MISALIGNED_FETCH = 0
    FETCH_FAULT = 1
    ILLEGAL = 2
    BREAKPOINT = 3
    MISALIGNED_LOAD = 4
    LOAD_FAULT = 5
    MISALIGNED_STORE = 6
    STORE_FAULT = 7
    ECALL_USER = 8
    ECALL_SUPERVISOR = 9
    ECALL_MACHINE = 11


class Interrupt(IntEnum):
    """Interrupt causes; also the numbers of their bits in mip and mie. Listed by priority, highest first."""

    EXTERNAL = 11
    SOFTWARE = 3
    TIMER = 7
    SUPERVISOR_EXTERNAL = 9
    SUPERVISOR_SOFTWARE = 1
    SUPERVISOR_TIMER = 5


PRIORITIES = sum(interrupt << 4 * rank for rank, interrupt in enumerate(Interrupt))
"""Interrupt causes in four bits each, from the lowest bits on in the order of priority."""

_NAMES = {
    Cause.MISALIGNED_FETCH: "instruction address misaligned",
    Cause.FETCH_FAULT: "instruction access fault",
    Cause.ILLEGAL: "illegal instruction",
    Cause.BREAKPOINT: "breakpoint",
    Cause.MISALIGNED_LOAD: "load address misaligned",
    Cause.LOAD_FAULT: "load access fault",
    Cause.MISALIGNED_STORE: "store address misaligned",
    Cause.STORE_FAULT: "store access fault",
    Cause.ECALL_USER: "ecall from U mode",
    Cause.ECALL_SUPERVISOR: "ecall from S mode",
    Cause.ECALL_MACHINE: "ecall from M mode",
}


def cause_name(cause: int) -> str:
    """Return the manual's name of a synchronous cause; causes from 24 on are for platforms to define."""
    return _NAMES[Cause(cause)] if cause in _NAMES else "custom cause" if cause >= 24 else "reserved cause"
