"""Traps, interrupts, returns and reservations of the hart in the native subset.

Source: RISC-V privileged manual, version 1.12.
"""

from pyv_ext.machine.pmp import guard
from pyv_ext.machine.state import MIE_BIT, MPIE, MPP, MPRV, NEVER, TW, Machine
from pyv_ext.machine.traps import INTERRUPT, MACHINE, USER, Cause, Interrupt

NONE = -1
"""Result in place of an address or a cause: nothing was done."""


def enter_trap(machine: Machine, pc: int, cause: int, value: int) -> int:
    """Go to a handler, and return its address: pc becomes mepc, privilege and interrupt enable are stacked in mstatus.

    `cause`: as in mcause.
    """
    hart = machine.hart
    hart.traps += 1
    hart.mepc = pc
    hart.mcause = cause
    hart.mtval = value
    enabled = MPIE if hart.mstatus & MIE_BIT else 0
    hart.mstatus = hart.mstatus & ~(MIE_BIT | MPIE | MPP) | enabled | hart.priv << 11
    if hart.user_mode:
        change_mode(machine, MACHINE)
    cancel_reservation(machine)  # or a context could use the reservation of another
    base = hart.mtvec & -4
    return base + 4 * (cause & ~INTERRUPT) if cause & INTERRUPT and hart.mtvec & 1 else base


def change_mode(machine: Machine, mode: int) -> None:
    """Go to a privilege mode."""
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
    """ECALL, as `take_trap`."""
    cause = Cause.ECALL_MACHINE if machine.hart.priv == MACHINE else Cause.ECALL_USER
    return take_trap(machine, pc, cause, 0, instret)


def return_from_trap(machine: Machine) -> int:
    """MRET: unstack privilege and interrupt enable. The next pc; NONE in user mode, where it is illegal."""
    hart = machine.hart
    if hart.priv != MACHINE:
        return NONE
    cancel_reservation(machine)
    mode = hart.mstatus >> 11 & 3
    enabled = MIE_BIT if hart.mstatus & MPIE else 0
    level = (USER if hart.user_mode else MACHINE) << 11
    hart.mstatus = hart.mstatus & ~(MIE_BIT | MPP) | enabled | MPIE | level
    if hart.user_mode:
        if mode != MACHINE:
            hart.mstatus &= ~MPRV
        change_mode(machine, mode)
    return hart.mepc


def disturbed(machine: Machine) -> bool:
    """Whether something may come before the next instruction: an interrupt, or another privilege mode."""
    hart = machine.hart
    return hart.mip & hart.mie != 0 or hart.moved != 0


def native_space(machine: Machine) -> int:
    """Address of the words of native code for the hart's context; clears `moved`. 0: none, or outdated by a write to
    PMP, and Python has to fill it in."""
    hart = machine.hart
    if hart.spaces_at != hart.pmp_writes or not hart.spaces[hart.context]:
        return 0
    hart.moved = False
    return hart.spaces[hart.context]


def pending_interrupt(machine: Machine) -> int:
    """Interrupt that the next instruction is squashed for, unless it is a WFI that waits; NONE."""
    hart = machine.hart
    pending = hart.mip & hart.mie
    if not pending or (hart.priv == MACHINE and not hart.mstatus & MIE_BIT):
        return NONE
    if pending & 1 << Interrupt.EXTERNAL:
        return Interrupt.EXTERNAL
    return Interrupt.SOFTWARE if pending & 1 << Interrupt.SOFTWARE else Interrupt.TIMER


def take_interrupt(machine: Machine, pc: int) -> int:
    """Take the interrupt that the instruction at `pc` is squashed for: the handler's address; NONE."""
    cause = pending_interrupt(machine)
    return NONE if cause == NONE else enter_trap(machine, pc, cause | INTERRUPT, 0)


def permits_wait(machine: Machine) -> bool:
    """Whether WFI is legal now."""
    hart = machine.hart
    return hart.priv == MACHINE or not hart.mstatus & TW


# -- reservations ------------------------------------------------------------------------------------------------------


def reserve(machine: Machine, address: int, word: int) -> None:
    """Register the reservation of LR."""
    machine.hart.reserved_address = address
    machine.hart.reserved_word = word


def is_reserved(machine: Machine, address: int, word: int) -> bool:
    """Whether SC may store at an address, where `word` is now."""
    return machine.hart.reserved_address == address and machine.hart.reserved_word == word


def cancel_reservation(machine: Machine) -> None:
    """Forget the reservation."""
    machine.hart.reserved_address = NEVER
    machine.hart.reserved_word = 0
