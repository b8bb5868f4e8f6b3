"""Clock and bus in the native subset: events and posted stores in their order, loads and stores of device registers.

At equal cycles a posted store that arrives comes first (it acted in the cycle before), then the devices in the order of
their indices. Effects of a device in cycle n are visible from the start of cycle n + 1.
"""

from pyv_ext.machine.clint import decide, read_clint, write_clint
from pyv_ext.machine.log import append, log_access
from pyv_ext.machine.plic import output, read_plic, set_levels, write_plic
from pyv_ext.machine.state import (
    CLINT,
    MEIP,
    MSIP,
    MTIP,
    NEVER,
    PLIC,
    PYTHON,
    REGISTERS,
    SENT,
    STIP,
    SUPERVISOR_INTERRUPTS,
    UART,
    DeviceRecord,
    LogKind,
    Machine,
    PostedStore,
    RegisterRecord,
)
from pyv_ext.machine.uart import line, read_uart, write_uart
from pyv_native.arena import STATUS_OFFSET, callback
from pyv_native.intrinsics import call_native, load_i64, load_u8

LEAVE = -1
"""Result of `wait_for_interrupt` instead of a cycle: the WFI continues to wait."""
_MIX = 0x9E37


@callback
def find_register(machine: Machine, register: RegisterRecord, address: int, size: int) -> int:
    """Set the record of a register."""
    raise NotImplementedError


@callback
def read_device(machine: Machine, device_id: int, offset: int, size: int, now: int) -> int:
    """Read a register of a device in Python, then update its interrupt line and its next event."""
    raise NotImplementedError


@callback
def write_device(machine: Machine, device_id: int, offset: int, size: int, value: int, now: int) -> int:
    """Store to a register of a device in Python, then update its interrupt line and its next event."""
    raise NotImplementedError


@callback
def advance_device(machine: Machine, device_id: int, now: int) -> int:
    """Process the due events of a device in Python, then update its interrupt line and its next event, or those of all
    devices if it may change others."""
    raise NotImplementedError


@callback
def serve_uart(machine: Machine) -> int:
    """Pass the output of the UART to the console, and fill its receiver."""
    raise NotImplementedError


# -- interrupt lines ---------------------------------------------------------------------------------------------------


def update_lines(machine: Machine, cycle: int) -> None:
    """Update the bits of mip from the start of a cycle on, or from that of the last update if it is later: the host may
    act within an access."""
    wiring = machine.wiring
    levels = 0
    direct = False
    for device in machine.devices:
        if device.level:
            levels |= device.source
            direct = direct or device.direct
    if levels != machine.plic.levels:
        set_levels(machine.plic, levels)
    wiring.last_cycle = max(cycle, wiring.last_cycle)
    if not output(machine.plic):
        wiring.deadline = NEVER
    elif wiring.deadline == NEVER:
        wiring.deadline = wiring.last_cycle + wiring.delay
    lines = (MSIP if machine.clint.msip else 0) | (MTIP if machine.clint.timer else 0)
    if direct or wiring.deadline <= wiring.last_cycle:
        lines |= MEIP
    software = SUPERVISOR_INTERRUPTS  # bits of mip that no line drives
    if machine.hart.compares:
        software &= ~STIP
        lines |= STIP if machine.clint.supervisor_timer else 0
    changed = lines ^ wiring.lines
    if changed:
        wiring.lines = lines
        machine.hart.mip = machine.hart.mip & software | lines
        if changed & MEIP:
            wiring.changed = wiring.last_cycle
        if machine.kinds >> LogKind.LINES & 1:
            append(machine, LogKind.LINES, wiring.last_cycle, 0, 0, changed, lines)


def find_next(machine: Machine) -> None:
    """Update `next` and `limit` from all deadlines."""
    next_deadline = NEVER
    for device in machine.devices:
        next_deadline = min(next_deadline, device.deadline)
    if machine.wiring.last_cycle < machine.wiring.deadline:
        next_deadline = min(next_deadline, machine.wiring.deadline)
    if machine.count:
        next_deadline = min(next_deadline, machine.stores[machine.first].arrival)
    machine.next = next_deadline
    machine.limit = 0 if machine.leave else min(next_deadline, machine.until)


def update_outputs(machine: Machine, cycle: int) -> None:
    """Update lines and deadlines after a change of devices, with effect from the start of a cycle."""
    machine.changes += 1
    if machine.wiring.on:
        update_lines(machine, cycle)
    find_next(machine)


# -- devices -----------------------------------------------------------------------------------------------------------


def update_device(machine: Machine, device: DeviceRecord) -> None:
    """Update line and next event of a device in the subset."""
    if device.kind == CLINT:
        device.deadline = machine.clint.deadline
    elif device.kind == UART:
        device.level = line(machine.uart)


def update_native(device: DeviceRecord) -> bool:
    """Update line and next event of a device with a native buffer; return False if the buffer holds an error."""
    device.deadline = min(load_i64(device.buffer + device.deadline_offset), NEVER)
    device.level = load_u8(device.buffer + device.level_offset) != 0
    return load_i64(device.buffer + STATUS_OFFSET) == 0


def advance_native(device: DeviceRecord, now: int) -> bool:
    """Process the events of a device with a native buffer; False: Python must process them."""
    if not device.buffer:
        return False
    is_processed = call_native(device.advance, device.buffer, now, 0, 0) == 0
    return update_native(device) and is_processed


def read_register(machine: Machine, register: RegisterRecord, size: int, now: int) -> int:
    """Read a register in cycle `now`."""
    device = machine.devices[register.device_id]
    if device.kind == PYTHON:
        if device.buffer:
            value = call_native(device.read, device.buffer, register.addr, now, 0)
            if update_native(device) and value >= 0:
                return value
        machine.synchronized = False
        return read_device(machine, register.device_id, register.addr, size, now)
    if device.kind == CLINT:
        return read_clint(machine.clint, register.addr, now)
    if device.kind == PLIC:
        return read_plic(machine.plic, register.addr)
    value = read_uart(machine.uart, register.addr)
    if machine.uart.backlog:
        serve_uart(machine)
    update_device(machine, device)
    return value


def write_register(machine: Machine, device_id: int, offset: int, size: int, value: int, now: int) -> None:
    """Store to a register in cycle `now`."""
    device = machine.devices[device_id]
    if device.kind == PYTHON:
        if device.buffer:
            is_processed = call_native(device.write, device.buffer, offset, value, now)
            if update_native(device) and is_processed:
                return
        machine.synchronized = False
        write_device(machine, device_id, offset, size, value, now)
        return
    if device.kind == CLINT:
        write_clint(machine.clint, offset, value, now)
    elif device.kind == PLIC:
        write_plic(machine.plic, offset, value)
    else:
        uart = machine.uart
        write_uart(uart, offset, value)
        if uart.looped or uart.backlog or len(uart.sent) == SENT:
            serve_uart(machine)
    update_device(machine, device)


# -- time --------------------------------------------------------------------------------------------------------------


def deliver(machine: Machine, now: int) -> None:
    """Deliver posted stores that are due. No instruction waits for them: a store that its device refuses is dropped."""
    while machine.count:
        store = machine.stores[machine.first]
        if store.arrival > now:
            return
        machine.count -= 1
        machine.first = (machine.first + 1) % len(machine.stores)
        write_register(machine, store.device_id, store.addr, store.size, store.value, now - 1)
        machine.fault = 0
        machine.wait = 0


def advance(machine: Machine, cycle: int) -> None:
    """Deliver all events due at the start of `cycle` or earlier."""
    while machine.next <= cycle:
        now = machine.next
        machine.now = now
        deliver(machine, now)
        for device_id in range(len(machine.devices)):
            device = machine.devices[device_id]
            if device.deadline <= now:
                if device.kind == CLINT:
                    decide(machine.clint, now)
                    update_device(machine, device)
                else:
                    machine.synchronized = False
                    if not advance_native(device, now):
                        advance_device(machine, device_id, now)
        update_outputs(machine, now)
    machine.now = max(machine.now, cycle)


def proceed(machine: Machine, cycle: int) -> int:
    """Deliver the events due at the start of a cycle; return the cycle budget of native code, 0 if it must exit."""
    if machine.leave or cycle >= machine.until:
        return 0
    advance(machine, cycle)
    return max(machine.limit - cycle, 0)


def wait_for_interrupt(machine: Machine, cycle: int) -> int:
    """Advance from event to event for a WFI that began in `cycle`; return the cycle in which it retires.

    LEAVE: it continues to wait; `cycles` is the cycle reached, `recheck_cycle` the cycle of the next interrupt check.
    """
    if machine.hart.mip & machine.hart.mie:
        return cycle
    machine.cycles = cycle + 1
    machine.recheck_cycle = cycle + 1
    while machine.cycles < machine.until and machine.next < NEVER:
        machine.cycles = min(max(machine.next, machine.cycles), machine.until)
        if machine.cycles == machine.until:
            return LEAVE
        advance(machine, machine.cycles)
        if machine.leave:
            return LEAVE
        if machine.hart.mip & machine.hart.mie:
            return machine.cycles
        machine.cycles += 1
        machine.recheck_cycle = machine.cycles
    return LEAVE


# -- device registers -------------------------------------------------------------------------------------------------


def register_at(machine: Machine, address: int, size: int) -> RegisterRecord:
    """Find the record of a device register; it is neither readable nor writable if the address has no register."""
    tag = address | size << 32
    index = (address * _MIX >> 12) % REGISTERS
    while machine.registers[index].tag != tag and machine.registers[index].tag:
        index = (index + 1) % REGISTERS
    register = machine.registers[index]
    if not register.tag:
        find_register(machine, register, address, size)
    return register


def load_register(machine: Machine, register: RegisterRecord, address: int, size: int, start: int) -> int:
    """Load from a register in cycle `start`; return the value. Sets `cycles` and `fault`."""
    acts = start + register.load_acts
    machine.cycles = register.load_cycles
    machine.fault = 0
    advance(machine, acts)
    machine.wait = 0
    value = read_register(machine, register, size, acts)
    machine.cycles += machine.wait
    if register.stable and not machine.wait and not machine.fault:
        register.changes = machine.changes
        register.value = value
    else:
        update_outputs(machine, acts + 1)
    if (machine.kinds or register.logged) and not machine.fault:
        log_access(machine, register, LogKind.LOAD, address, value, start)
    return value


def store_register(machine: Machine, register: RegisterRecord, address: int, size: int, value: int, start: int) -> None:
    """Store to a register in cycle `start`. Sets `cycles` and `fault`. A posted store stalls while the write buffer is
    full, until the oldest store has arrived."""
    machine.cycles = register.store_cycles
    machine.fault = 0
    if register.one_way:
        end = max(machine.departures[machine.departure], start) + register.store_cycles
        machine.drained = end + register.one_way
        machine.departures[machine.departure] = machine.drained
        machine.departure = (machine.departure + 1) % len(machine.departures)
        post(
            machine.stores[(machine.first + machine.count) % len(machine.stores)],
            machine.drained,
            register.device_id,
            register.addr,
            size,
            value,
        )
        machine.count += 1
        machine.cycles = end - start
        if machine.drained < machine.next:
            find_next(machine)
        if machine.kinds or register.logged:
            log_access(machine, register, LogKind.STORE, address, value, start)
        return
    acts = start + register.store_cycles - 1
    advance(machine, acts)
    machine.wait = 0
    write_register(machine, register.device_id, register.addr, size, value, acts)
    machine.cycles += machine.wait
    update_outputs(machine, acts + 1)
    if (machine.kinds or register.logged) and not machine.fault:
        log_access(machine, register, LogKind.STORE, address, value, start)


def post(store: PostedStore, arrival: int, device_id: int, addr: int, size: int, value: int) -> None:
    """Set the record of a posted store."""
    store.arrival = arrival
    store.device_id = device_id
    store.addr = addr
    store.size = size
    store.value = value
