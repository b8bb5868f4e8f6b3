"""Custom instructions, and reads of CSRs that are registers of devices, in the native subset.

A device that has code in the subset is called without Python, as long as nobody observes its instructions.
"""

from pyv_ext.machine.accesses import memory_at
from pyv_ext.machine.bus import advance, update_outputs, update_port
from pyv_ext.machine.hart import call_custom
from pyv_ext.machine.log import log_csr, log_leave
from pyv_ext.machine.state import READ, SUBMIT, Answer, DeviceCall, DeviceRecord, Machine
from pyv_ext.machine.traps import MACHINE
from pyv_native.intrinsics import call_port, i32, load_u32, u32

SLOW = -2
"""Result in place of cycles and rd: the instruction takes the slow path. Nothing but time has changed."""
COMMAND = 64
"""Bytes of a descriptor."""


def call_device(machine: Machine, number: int, acts: int, a: int, b: int) -> int:
    """Execute an instruction that takes effect in cycle `acts`; return the cycles beyond its issue << 32 | rd, or SLOW,
    or another number below 0: the engine has to finish it."""
    call = machine.device_calls[number]
    if call.kind == SUBMIT:
        return submit_command(machine, machine.devices[call.number], acts, a, b)
    if call.kind == READ:
        return read_device_csr(machine, machine.devices[call.number], call, acts)
    return call_custom(machine, number, acts, a, b)


def submit_command(machine: Machine, device: DeviceRecord, acts: int, address: int, operand: int) -> int:
    """Submit the 64 bytes at an address."""
    settings = machine.submission
    if not device.buffer or settings.observed or machine.hart.guarded or address % COMMAND:
        return SLOW
    memory = memory_at(machine, address, COMMAND)
    if memory is None:
        return SLOW
    advance(machine, acts)
    answer = call_port(device.submit, device.buffer, address, operand, acts + 1)
    if not update_port(device) or answer < 0:
        return SLOW
    update_outputs(machine, acts + 1)
    answer += settings.response << 32
    kind = Answer.DROPPED
    if i32(answer) > 0:
        kind = Answer.ACCEPTED
    elif u32(answer) == settings.busy:
        kind = Answer.REFUSED
    hart = machine.hart
    cycles = acts + 1 + (answer >> 32) - hart.cycle
    flags = load_u32(memory.data + address - memory.base + settings.flags_offset)
    log_leave(machine, hart.cycle, cycles, hart.pc, address, flags, kind, operand & 0xFF)
    return answer


def read_device_csr(machine: Machine, device: DeviceRecord, call: DeviceCall, acts: int) -> int:
    """Read a register of a device by its CSR."""
    hart = machine.hart
    if not device.buffer or machine.submission.observed or hart.guarded or hart.priv != MACHINE:
        return SLOW
    advance(machine, acts)
    value = call_port(device.read, device.buffer, call.addr, acts, 0)
    if not update_port(device) or value < 0:
        return SLOW
    if not call.stable:
        update_outputs(machine, acts + 1)
    log_csr(machine, acts, hart.pc, call.addr, value)
    return value
