"""Core log in the native subset: events of the core, in records of 32 bytes, for observers that read it in chunks.

A kind of record is enabled always, or within a submission window only. The window opens at the entry of a submit
function. It closes when all submit functions have returned and a submission has left the core.
"""

from pyv_ext.machine.state import LOG, RESUMED, SUBMIT_FUNCTIONS, Answer, LogKind, Machine, RegisterRecord
from pyv_native.arena import callback
from pyv_native.intrinsics import u32

EXTERNAL = 1 << 31 | 11
"""Cause of an external interrupt."""


@callback
def read_log(machine: Machine) -> int:
    """Pass the records to observers, and remove them."""
    raise NotImplementedError


@callback
def mark_return(machine: Machine, address: int) -> int:
    """Call `mark` before each instruction at a return address from now on."""
    raise NotImplementedError


def append(machine: Machine, kind: int, start: int, cycles: int, pc: int, address: int, value: int) -> None:
    """Add a record, with the low 32 bits of register values."""
    if machine.logged == LOG:
        read_log(machine)
        if machine.logged == LOG:
            return
    record = machine.log[machine.logged]
    machine.logged += 1
    record.kind = kind
    record.start = start
    record.cycles = cycles
    record.pc = u32(pc)
    record.address = u32(address)
    record.value = u32(value)


def log_cycles(machine: Machine, kind: int, start: int, cycles: int, address: int) -> None:
    """Log a store to memory (by line of 64 bytes) or a fence, if enabled; consecutive events merge into one record."""
    if not machine.kinds >> kind & 1:
        return
    if machine.logged:
        last = machine.log[machine.logged - 1]
        if last.kind == kind and last.address == address:
            last.cycles += cycles
            return
    append(machine, kind, start, cycles, 0, address, 0)


def follow(machine: Machine) -> None:
    """Begin to follow submissions."""
    machine.following = True
    machine.kinds = machine.base_kinds | machine.submission_kinds
    machine.depth = 0
    machine.handed_over = False


def log_access(machine: Machine, register: RegisterRecord, kind: int, address: int, value: int, start: int) -> None:
    """Log an access of a device register, whose latency is `machine.cycles`. A store to the doorbell, or a store
    that is not posted to a logged register, flushes the log to the observers."""
    if register.logged:
        if not machine.following and not len(machine.entries):
            follow(machine)
    elif not machine.kinds >> kind & 1:
        return
    append(machine, kind, start, machine.cycles, machine.hart.pc, address, value)
    if not register.logged:
        return
    submits = kind == LogKind.STORE and address == machine.doorbell
    machine.handed_over = machine.handed_over or submits
    if machine.at_once or submits or (kind == LogKind.STORE and not register.one_way):
        read_log(machine)


def log_leave(
    machine: Machine, start: int, cycles: int, pc: int, address: int, flags: int, answer: int, operand: int
) -> None:
    """Log the answer of a device to an instruction that submits a command; `answer`: `Answer`, and RESUMED."""
    if not machine.kinds >> LogKind.LEAVE & 1:
        return
    if not machine.following and not len(machine.entries):
        follow(machine)
    append(machine, LogKind.LEAVE, start, cycles, pc, address, flags)
    record = machine.log[machine.logged - 1]
    record.answer = answer
    record.operand = operand
    if answer & (RESUMED - 1) == Answer.ACCEPTED:
        machine.handed_over = True
    if machine.at_once or flags & machine.submission.flushed:
        read_log(machine)


def log_csr(machine: Machine, now: int, pc: int, offset: int, value: int) -> None:
    """Log a read, in the last cycle of its instruction, of a CSR that is a register of a device."""
    if machine.kinds >> LogKind.CSR & 1:
        append(machine, LogKind.CSR, now, 1, pc, offset, value)


def log_trap(machine: Machine, start: int, cycles: int, pc: int, cause: int) -> None:
    """Log a trap as TRAP; where that kind is disabled, log interrupts only, as HANDLER. The handler starts `cycles`
    after `start`; bit 31 of `cause` marks an interrupt."""
    interrupt = cause >> 31
    if machine.kinds >> LogKind.TRAP & 1:
        machine.depth += 1
        append(machine, LogKind.TRAP, start, cycles, pc, 0, cause)
    elif interrupt and machine.kinds >> LogKind.HANDLER & 1:
        append(machine, LogKind.HANDLER, start, cycles, pc, 0, cause)
    if interrupt and machine.at_once:
        read_log(machine)


def log_mret(machine: Machine, start: int, cycles: int) -> None:
    """Log the return from a handler."""
    if machine.kinds >> LogKind.MRET & 1:
        machine.depth = max(machine.depth - 1, 0)
        append(machine, LogKind.MRET, start, cycles, 0, 0, 0)


def contains(addresses: list[int], address: int) -> bool:
    """Check whether an address is in a list."""
    match = False
    for entry in addresses:
        match = match or entry == address
    return match


def mark(machine: Machine, pc: int, ra: int, sp: int, cycle: int) -> int:
    """Log the entry of a submit function at `pc`, or its return there. Returns 0."""
    if machine.call_count:
        call = machine.calls[machine.call_count - 1]
        if call.return_address == pc and call.sp == sp and call.depth == machine.depth:
            machine.call_count -= 1
            if machine.handed_over and not machine.call_count:
                machine.following = False
                machine.kinds = machine.base_kinds
            append(machine, LogKind.RETURN, cycle, 0, pc, 0, 0 if machine.following else 1)
    if not contains(machine.entries, pc):
        return 0
    if not machine.following:
        follow(machine)
    if not contains(machine.returns, ra):
        if len(machine.returns) == SUBMIT_FUNCTIONS:
            machine.returns.clear()
        machine.returns.append(ra)
        mark_return(machine, ra)
    if machine.call_count == SUBMIT_FUNCTIONS:
        machine.call_count = 0
    call = machine.calls[machine.call_count]
    call.return_address = ra
    call.sp = sp
    call.depth = machine.depth
    machine.call_count += 1
    append(machine, LogKind.ENTER, cycle, 0, pc, ra, sp)
    return 0
