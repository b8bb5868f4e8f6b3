"""ENQCMD_T and accesses of device registers through CSRs, compiled to machine code (docs/native-subset.md).

They call a device's native functions (`Link`). They return SLOW if an observer is attached, PMP restricts the hart
or it is not in machine mode, there is no link, or the device leaves the register or the descriptor to Python.
"""

from pyv_ext.machine.accesses import memory_at
from pyv_ext.machine.bus import advance, update_native, update_outputs
from pyv_ext.machine.hart import call_custom
from pyv_ext.machine.log import log_csr, log_leave
from pyv_ext.machine.state import READ, SUBMIT, WRITE, Answer, DeviceCall, DeviceRecord, Machine
from pyv_ext.machine.traps import MACHINE
from pyv_native.intrinsics import call_native, i32, load_u32, u32

SLOW = -2
"""Result: execute the instruction in Python instead. Only events due by the cycle in which it acts have been processed,
unless the device's buffer holds an error, which is raised next."""
DESCRIPTOR_SIZE = 64


def call_device(machine: Machine, index: int, acts: int, a: int, b: int) -> int:
    """Execute `device_calls[index]` with the operands `a` (rs1) and `b` (rs2) in cycle `acts`. Return cycles after its
    issue, with rd in `answer`; SLOW; or another negative number: the engine must finish it (trap, wait)."""
    call = machine.device_calls[index]
    if call.kind == SUBMIT:
        return submit_command(machine, machine.devices[call.device_id], acts, a, b)
    if call.kind == READ:
        return read_device_csr(machine, machine.devices[call.device_id], call, acts)
    if call.kind == WRITE:
        return write_device_csr(machine, machine.devices[call.device_id], call, acts, a)
    outcome = call_custom(machine, index, acts, a, b)
    machine.answer = i32(outcome)
    return outcome >> 32


def submit_command(machine: Machine, device: DeviceRecord, acts: int, address: int, operand: int) -> int:
    """Execute ENQCMD_T: submit the descriptor at an address; SLOW if it is misaligned or not in memory."""
    settings = machine.submission
    if not device.buffer or settings.observed or machine.hart.guarded or address % DESCRIPTOR_SIZE:
        return SLOW
    memory = memory_at(machine, address, DESCRIPTOR_SIZE)
    if memory is None:
        return SLOW
    advance(machine, acts)
    answer = call_native(device.submit, device.buffer, address, operand, acts + 1)
    if not update_native(device) or answer < 0:
        return SLOW
    update_outputs(machine, acts + 1)
    answer += settings.response << 32
    outcome = Answer.DROPPED
    if i32(answer) > 0:
        outcome = Answer.ACCEPTED
    elif u32(answer) == settings.busy:
        outcome = Answer.REFUSED
    hart = machine.hart
    cycles = acts + 1 + (answer >> 32) - hart.cycle
    flags = load_u32(memory.data + address - memory.base + settings.flags_offset)
    log_leave(machine, hart.cycle, cycles, hart.pc, address, flags, outcome, operand & 0xFF)
    machine.answer = i32(answer)
    return answer >> 32


def read_device_csr(machine: Machine, device: DeviceRecord, call: DeviceCall, acts: int) -> int:
    """Read the device register of a CSR; SLOW outside machine mode."""
    hart = machine.hart
    if not device.buffer or machine.submission.observed or hart.guarded or hart.priv != MACHINE:
        return SLOW
    advance(machine, acts)
    value = call_native(device.read, device.buffer, call.addr, acts, 0)
    if not update_native(device) or value < 0:
        return SLOW
    if not call.stable:
        update_outputs(machine, acts + 1)
    log_csr(machine, acts, hart.pc, call.addr, value)
    machine.answer = value
    return 0


def write_device_csr(machine: Machine, device: DeviceRecord, call: DeviceCall, acts: int, value: int) -> int:
    """Store to the device register of a CSR; SLOW outside machine mode, or if `device.write` leaves it to Python."""
    hart = machine.hart
    if not device.buffer or machine.submission.observed or hart.guarded or hart.priv != MACHINE:
        return SLOW
    advance(machine, acts)
    is_processed = call_native(device.write, device.buffer, call.addr, value, acts)
    if not update_native(device) or not is_processed:
        return SLOW
    update_outputs(machine, acts + 1)
    machine.answer = 0
    return 0
