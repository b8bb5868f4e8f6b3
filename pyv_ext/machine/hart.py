"""Traps, interrupts, returns and reservations of the hart in the native subset.

Source: RISC-V privileged manual, version 1.12.
"""

from pyv_ext.machine.pmp import guard
from pyv_ext.machine.state import MIE_BIT, MPIE, MPP, MPRV, NEVER, SIE_BIT, SPIE, SPP, TSR, TVM, TW, Machine
from pyv_ext.machine.traps import INTERRUPT, MACHINE, PRIORITIES, SUPERVISOR, USER, Cause
from pyv_native.arena import callback

NONE = -1
"""Result instead of an address or a cause: nothing was done."""


# -- requests of native code to its engine -----------------------------------------------------------------------------


@callback
def execute_instruction(machine: Machine, marked: int) -> int:
    """Execute the next instruction, or the interrupt before it, in Python; return whether native code resumes after it.

    `marked`: the instruction has been logged by `log.mark`.
    """
    raise NotImplementedError


@callback
def call_custom(machine: Machine, number: int, cycle: int, a: int, b: int) -> int:
    """Call the handler of a custom instruction that takes effect in a cycle; return (cycles after its issue) << 32 |
    rd, or a negative number: the engine must finish it (trap, wait)."""
    raise NotImplementedError


@callback
def find_space(machine: Machine) -> int:
    """Set the words of native code for the hart's context."""
    raise NotImplementedError


# -- traps -------------------------------------------------------------------------------------------------------------


def enter_trap(machine: Machine, pc: int, cause: int, value: int) -> int:
    """Enter a handler, and return its address: pc becomes mepc, privilege and interrupt enable are stacked in mstatus.
    A delegated trap from below machine mode enters supervisor mode instead (`enter_supervisor`).

    `cause`: with INTERRUPT for an interrupt.
    """
    hart = machine.hart
    hart.traps += 1
    hart.interrupts += cause >> 31 & 1
    cancel_reservation(machine)  # otherwise a context could use the reservation of another
    recorded = cause ^ -(cause >> 31 & 1) & (hart.sign ^ INTERRUPT)  # the sign instead of INTERRUPT, without a branch
    if hart.supervisor_mode and hart.priv != MACHINE:
        delegated = hart.mideleg if cause & INTERRUPT else hart.medeleg
        if delegated >> min(cause & ~INTERRUPT, 32) & 1:
            return enter_supervisor(machine, pc, cause, recorded, value)
    hart.mepc = pc
    hart.mcause = recorded
    hart.mtval = value
    enabled = MPIE if hart.mstatus & MIE_BIT else 0
    hart.mstatus = hart.mstatus & ~(MIE_BIT | MPIE | MPP) | enabled | hart.priv << 11
    if hart.user_mode:
        change_mode(machine, MACHINE)
    return handler(hart.mtvec, cause)


def enter_supervisor(machine: Machine, pc: int, cause: int, recorded: int, value: int) -> int:
    """Enter the handler of supervisor mode, as `enter_trap`: pc becomes sepc, the previous mode SPP. `recorded`: the
    value of scause."""
    hart = machine.hart
    hart.sepc = pc
    hart.scause = recorded
    hart.stval = value
    enabled = SPIE if hart.mstatus & SIE_BIT else 0
    hart.mstatus = hart.mstatus & ~(SIE_BIT | SPIE | SPP) | enabled | (SPP if hart.priv == SUPERVISOR else 0)
    change_mode(machine, SUPERVISOR)
    return handler(hart.stvec, cause)


def handler(vector: int, cause: int) -> int:
    """Return the address of the handler for the value of mtvec or stvec."""
    base = vector & -4
    return base + 4 * (cause & ~INTERRUPT) if cause & INTERRUPT and vector & 1 else base


def change_mode(machine: Machine, mode: int) -> None:
    """Change the privilege mode."""
    hart = machine.hart
    if hart.priv != mode or hart.mstatus & MPRV or hart.context != mode:
        hart.priv = mode
        guard(machine)


def repeats_trap(machine: Machine, pc: int, cause: int, value: int, instret: int) -> bool:
    """Check for a trap loop: the last synchronous trap had the same pc, cause and value, and no instruction has retired
    since. Records the trap if it is new."""
    hart = machine.hart
    if hart.trapped_at != instret:
        hart.loop_pc = pc
        hart.loop_cause = cause
        hart.loop_value = value
    elif hart.trapped_pc == pc and hart.trapped_cause == cause:
        return True
    hart.trapped_at = instret
    hart.trapped_pc = pc
    hart.trapped_cause = cause
    return False


def take_trap(machine: Machine, pc: int, cause: int, value: int, instret: int) -> int:
    """Take a synchronous trap. Returns the address of the handler, or NONE in a trap loop."""
    return NONE if repeats_trap(machine, pc, cause, value, instret) else enter_trap(machine, pc, cause, value)


def call_environment(machine: Machine, pc: int, instret: int) -> int:
    """Execute ECALL, as `take_trap`."""
    return take_trap(machine, pc, Cause.ECALL_USER + machine.hart.priv, 0, instret)


def return_from_trap(machine: Machine, level: int) -> int:
    """Execute MRET (`level` MACHINE) or SRET (SUPERVISOR): unstack privilege and interrupt enable. Returns the next pc,
    or NONE if it is illegal."""
    hart = machine.hart
    if hart.priv < level or (level == SUPERVISOR and hart.priv == SUPERVISOR and hart.mstatus & TSR):
        return NONE
    cancel_reservation(machine)
    if level == SUPERVISOR:
        previous = SUPERVISOR if hart.mstatus & SPP else USER
        restored = SIE_BIT if hart.mstatus & SPIE else 0
        hart.mstatus = hart.mstatus & ~(SIE_BIT | SPP | MPRV) | restored | SPIE
        change_mode(machine, previous)
        return hart.sepc
    mode = hart.mstatus >> 11 & 3
    enabled = MIE_BIT if hart.mstatus & MPIE else 0
    level = (USER if hart.user_mode else MACHINE) << 11
    hart.mstatus = hart.mstatus & ~(MIE_BIT | MPP) | enabled | MPIE | level
    if hart.user_mode:
        if mode != MACHINE:
            hart.mstatus &= ~MPRV
        change_mode(machine, mode)
    return hart.mepc


def is_interruptible(machine: Machine) -> bool:
    """Check whether an interrupt or another privilege mode may take effect before the next instruction."""
    hart = machine.hart
    return hart.mip & hart.mie != 0 or hart.context_changed != 0


def native_space(machine: Machine) -> int:
    """Return the address of the words of native code for the hart's context, and clear `context_changed`. 0: missing
    or outdated by a write to PMP; Python must set it."""
    hart = machine.hart
    if hart.spaces_at != hart.pmp_writes or not hart.spaces[hart.context]:
        return 0
    hart.context_changed = False
    return hart.spaces[hart.context]


def pending_interrupt(machine: Machine) -> int:
    """Return the interrupt that squashes the next instruction, unless that is a WFI that waits; NONE."""
    hart = machine.hart
    pending = hart.mip & hart.mie
    if not pending:
        return NONE
    enabled = 0
    if hart.priv != MACHINE or hart.mstatus & MIE_BIT:
        enabled = pending & ~hart.mideleg
    if not enabled and (hart.priv == USER or (hart.priv == SUPERVISOR and hart.mstatus & SIE_BIT)):
        enabled = pending & hart.mideleg
    return highest_priority(enabled)


def highest_priority(interrupts: int) -> int:
    """Return the interrupt of the highest priority among bits of mip; NONE."""
    causes = PRIORITIES
    while causes:
        if interrupts >> (causes & 15) & 1:
            return causes & 15
        causes >>= 4
    return NONE


def permits_wait(machine: Machine) -> bool:
    """Check whether WFI is legal now."""
    hart = machine.hart
    return hart.priv == MACHINE or not (hart.mstatus & TW or (hart.priv == USER and hart.supervisor_mode))


def permits_translation_fence(machine: Machine) -> bool:
    """Check whether SFENCE.VMA is legal now; it orders nothing, since there is no address translation."""
    hart = machine.hart
    return hart.priv == MACHINE or (hart.priv == SUPERVISOR and not hart.mstatus & TVM)


def permits_cache_block(machine: Machine, field: int) -> bool:
    """Check whether the hart may now execute the cache-block operations that a field of menvcfg governs."""
    hart = machine.hart
    enabled = hart.menvcfg
    if hart.supervisor_mode and hart.priv == USER:
        enabled &= hart.senvcfg
    return hart.priv == MACHINE or enabled & field != 0


# -- reservations ------------------------------------------------------------------------------------------------------


def reserve(machine: Machine, address: int, word: int) -> None:
    """Register the reservation of LR, which is valid as long as the reserved word keeps its value. Writes by devices or
    the hart are not monitored: a write of the same value could as well have preceded the LR."""
    machine.hart.reserved_address = address
    machine.hart.reserved_word = word


def is_reserved(machine: Machine, address: int, word: int) -> bool:
    """Check whether SC may store at an address that now holds `word`."""
    return machine.hart.reserved_address == address and machine.hart.reserved_word == word


def cancel_reservation(machine: Machine) -> None:
    """Cancel the reservation."""
    machine.hart.reserved_address = NEVER
    machine.hart.reserved_word = 0
