"""Loads, stores, atomics and fences of the hart, in the subset of Python that is also compiled to machine code
(docs/native-subset.md).

An access sets `Machine.cycles`, the core cycles that it takes, and `Machine.fault`, the cause of its trap; 0 is none.
Execution engines (`fast`, `reference`) access the first RAM inline. They call these functions for accesses that concern
a watchpoint, a sanitizer, PMP or tracked code, and for all other memory and devices.
"""

from pyv_ext.machine.bus import load_register, register_at, store_register
from pyv_ext.machine.hart import cancel_reservation, is_reserved, reserve
from pyv_ext.machine.log import log_access, log_cycles
from pyv_ext.machine.state import LINE, LINE_BITS, PAGE_BITS, LogKind, Machine, MemoryRecord
from pyv_ext.machine.traps import Cause
from pyv_native.arena import callback
from pyv_native.intrinsics import (
    i32,
    load_i64,
    load_u8,
    load_u16,
    load_u32,
    store_i64,
    store_u8,
    store_u16,
    store_u32,
    u32,
)

WATCHED_LOADS = 1
"""Value in `Ram.watched` of a page whose loads are reported."""
DOUBLE = 8
"""Bytes of the widest access."""
O_BEFORE = 0x40
W_BEFORE_O = 0x14
"""Bits of the immediate of FENCE: O in the predecessor set; W in the predecessor and O in the successor set."""


@callback
def before_access(machine: Machine, address: int, size: int, write: int, start: int) -> int:
    """Call watchpoints, which may stop an access, and for writable RAM the sanitizer, before it."""
    raise NotImplementedError


@callback
def after_load(machine: Machine, address: int, size: int, value: int, start: int) -> int:
    """Report a load from a watched page of memory."""
    raise NotImplementedError


@callback
def after_store(machine: Machine, address: int, size: int, start: int) -> int:
    """Invalidate decoded code that a store has overwritten, and report a store to a watched page of memory."""
    raise NotImplementedError


@callback
def refuse_access(machine: Machine, address: int, size: int, write: int, start: int) -> int:
    """Notify the device that decodes an address, if any, of a refused access; the caller raises the fault."""
    raise NotImplementedError


# -- memory ------------------------------------------------------------------------------------------------------------


def memory_at(machine: Machine, address: int, size: int) -> MemoryRecord | None:
    """Find the memory that contains all bytes of an access."""
    for memory in machine.memories:
        if memory.base <= address <= memory.base + memory.size - size:
            return memory
    return None


def read_memory(address: int, size: int) -> int:
    """Load the bytes at a host address, zero-extended."""
    if size == 4:
        return load_u32(address)
    if size == 1:
        return load_u8(address)
    return load_u16(address) if size == 2 else load_i64(address)


def write_memory(address: int, size: int, value: int) -> None:
    """Store the low bytes of a value at a host address."""
    if size == 4:
        store_u32(address, value)
    elif size == 1:
        store_u8(address, value)
    elif size == 2:
        store_u16(address, value)
    else:
        store_i64(address, value)


def load_memory(machine: Machine, memory: MemoryRecord, address: int, size: int, start: int) -> int:
    """Load from memory; return the value."""
    if machine.guarded or memory.shadowed:
        before_access(machine, address, size, 0, start)
    offset = address - memory.base
    value = read_memory(memory.data + offset, size)
    machine.cycles = memory.load_cycles
    if load_u8(memory.watched + (offset >> PAGE_BITS)) == WATCHED_LOADS:
        after_load(machine, address, size, value, start)
        machine.cycles = memory.load_cycles
    machine.fault = 0
    return value


def store_memory(machine: Machine, memory: MemoryRecord, address: int, size: int, value: int, start: int) -> None:
    """Store to writable memory."""
    if machine.guarded or memory.shadowed:
        before_access(machine, address, size, 1, start)
    offset = address - memory.base
    write_memory(memory.data + offset, size, value)
    machine.cycles = memory.store_cycles
    if load_u8(memory.lines + (offset >> LINE_BITS)) or load_u8(memory.lines + (offset + size - 1 >> LINE_BITS)):
        after_store(machine, address, size, start)
        machine.cycles = memory.store_cycles
    machine.fault = 0


# -- loads and stores --------------------------------------------------------------------------------------------------


def load(machine: Machine, address: int, size: int, start: int, reuse: int) -> int:
    """Load in cycle `start`; return the value, zero-extended, or 0 if it traps. `reuse`: a register that is declared
    stable returns its last value while no device has changed."""
    memory = memory_at(machine, address, size)
    if address & size - 1 and not (memory is not None and machine.misaligned):
        machine.fault = Cause.MISALIGNED_LOAD
        return 0
    if memory is not None:
        return load_memory(machine, memory, address, size, start)
    if machine.guarded:
        before_access(machine, address, size, 0, start)
    if address >> 32:
        return refuse_load(machine, address, size, start)
    if size == DOUBLE and machine.hart.wide and is_mapped(machine, address, 0):
        return load_double(machine, address, start)
    register = register_at(machine, address, size)
    if not register.readable:
        return refuse_load(machine, address, size, start)
    unchanged = register.stable and register.changes == machine.changes
    if reuse and unchanged and start + register.load_acts < machine.next:
        machine.cycles = register.load_cycles
        machine.fault = 0
        if machine.kinds:
            log_access(machine, register, LogKind.LOAD, address, register.value, start)
        return register.value
    value = load_register(machine, register, address, size, start)
    if machine.fault:
        machine.fault = Cause.LOAD_FAULT
    return value


def store(machine: Machine, address: int, size: int, value: int, start: int) -> None:
    """Execute a store whose first cycle is `start`."""
    memory = memory_at(machine, address, size)
    if address & size - 1 and not (memory is not None and machine.misaligned):
        machine.fault = Cause.MISALIGNED_STORE
        return
    if memory is not None and memory.writable:
        store_memory(machine, memory, address, size, value, start)
        return
    if machine.guarded:
        before_access(machine, address, size, 1, start)
    if memory is not None:
        machine.fault = Cause.STORE_FAULT
        return
    if address >> 32:
        refuse_store(machine, address, size, start)
        return
    if size == DOUBLE and machine.hart.wide and is_mapped(machine, address, 1):
        store_double(machine, address, value, start)
        return
    register = register_at(machine, address, size)
    if not register.writable:
        refuse_store(machine, address, size, start)
        return
    store_register(machine, register, address, size, value, start)
    if machine.fault:
        machine.fault = Cause.STORE_FAULT


def refuse_load(machine: Machine, address: int, size: int, start: int) -> int:
    """Raise the fault of a load from an address that is not readable; return 0."""
    refuse_access(machine, address, size, 0, start)
    machine.fault = Cause.LOAD_FAULT
    return 0


def refuse_store(machine: Machine, address: int, size: int, start: int) -> None:
    """Raise the fault of a store to an address that is not writable."""
    refuse_access(machine, address, size, 1, start)
    machine.fault = Cause.STORE_FAULT


def is_mapped(machine: Machine, address: int, write: int) -> bool:
    """Check whether 8 bytes are two device registers of 4 bytes, both readable or, with `write`, writable."""
    for half in range(address, address + DOUBLE, 4):
        register = register_at(machine, half, 4)
        if not (register.writable if write else register.readable):
            return False
    return True


def load_double(machine: Machine, address: int, start: int) -> int:
    """Load two device registers in the same cycle, at the cost of the slower one; devices see two accesses of 4
    bytes."""
    low = load(machine, address, 4, start, 0)
    cycles = machine.cycles
    high = 0 if machine.fault else load(machine, address + 4, 4, start, 0)
    machine.cycles = max(cycles, machine.cycles)
    return i32(high) << 32 | low


def store_double(machine: Machine, address: int, value: int, start: int) -> None:
    """Store to two device registers, as `load_double`."""
    store(machine, address, 4, u32(value), start)
    cycles = machine.cycles
    if not machine.fault:
        store(machine, address + 4, 4, u32(value >> 32), start)
        machine.cycles = max(cycles, machine.cycles)


def log_store(machine: Machine, address: int, start: int, cycles: int) -> None:
    """Log a store that has retired, if it is to memory: a store to a device is logged by its access."""
    if memory_at(machine, address, 1) is not None:
        log_cycles(machine, LogKind.STORES, start, cycles, address & -LINE)


# -- atomics: of memory only, always aligned ---------------------------------------------------------------------------


def atomic_memory(machine: Machine, address: int, size: int, write: int, start: int) -> MemoryRecord | None:
    """Find the memory of an LR (`write` 0), SC or AMO; None if it traps."""
    if address & size - 1:
        machine.fault = Cause.MISALIGNED_STORE if write else Cause.MISALIGNED_LOAD
        return None
    memory = memory_at(machine, address, size)
    if memory is None or (write and not memory.writable):
        refuse_access(machine, address, size, write, start)
        machine.fault = Cause.STORE_FAULT if write else Cause.LOAD_FAULT
        return None
    return memory


def load_atomic(machine: Machine, address: int, size: int, write: int, start: int) -> int:
    """Load for LR or AMO (`write`); return the value, or 0 if it traps."""
    memory = atomic_memory(machine, address, size, write, start)
    return 0 if memory is None else load_memory(machine, memory, address, size, start)


def load_reserved(machine: Machine, address: int, size: int, start: int) -> int:
    """Execute LR; return the value, or 0 if it traps."""
    value = load_atomic(machine, address, size, 0, start)
    if not machine.fault:
        reserve(machine, address, value)
    return value


def store_conditional(machine: Machine, address: int, size: int, value: int, start: int, cycles: int) -> int:
    """Execute SC; return 0 on success, 1 on failure or trap. `cycles`: cost of a failed SC."""
    memory = atomic_memory(machine, address, size, 1, start)
    if memory is None:
        return 1
    is_held = is_reserved(machine, address, read_memory(memory.data + address - memory.base, size))
    machine.cycles = cycles
    machine.fault = 0
    if is_held:
        store_memory(machine, memory, address, size, value, start)
    cancel_reservation(machine)
    return not is_held


def store_atomic(machine: Machine, address: int, size: int, value: int, start: int) -> None:
    """Store for an AMO, after its `load_atomic`, whose cycles are those of the instruction."""
    memory = memory_at(machine, address, size)
    cycles = machine.cycles
    if memory is not None:
        store_memory(machine, memory, address, size, value, start)
    machine.cycles = cycles


# -- fences ------------------------------------------------------------------------------------------------------------


def fence(machine: Machine, immediate: int, start: int, cycles: int) -> int:
    """Execute a fence in cycle `start`; return its cycles, at least `cycles`. With O in its predecessor set it waits
    for the last posted store to arrive."""
    if immediate & W_BEFORE_O == W_BEFORE_O:
        machine.fence_cycle = start
    if not immediate & O_BEFORE:
        return cycles
    machine.drain_cycle = start
    return max(cycles, machine.drained - start)
