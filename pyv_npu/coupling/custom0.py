"""The glue between the core's custom instructions and the NPU's command port (docs/interface.md).

The core handles encodings and outcomes, the device handles submissions; neither depends on the other.
"""

from collections.abc import Callable, Sequence

from npu_device.abi import DESCRIPTOR_SIZE
from npu_device.abi.instructions import (
    CSRS,
    CUSTOM_INSTRUCTIONS,
    CustomEncoding,
    PortReply,
    PortTrap,
    PortWait,
    match_mask,
)
from npu_device.device import NpuDevice
from pyv_ext.protocols import CustomInstruction, Operands, Outcome, Stall, Trap, Value
from pyv_ext.timing import CoreTiming

MASK = 0xFFFF_FFFF
ILLEGAL_INSTRUCTION, LOAD_MISALIGNED, LOAD_FAULT = 2, 4, 5

Observer = Callable[[str, Operands, Outcome], None]
"""Callback for each answer of the device: instruction name, operands, outcome."""

CsrObserver = Callable[[int, int, int], None]
"""Callback for each read of a CSR of the device: address, value, cycle."""


def custom_instructions(
    device: NpuDevice, enabled: Sequence[str], slot: int, timing: CoreTiming, observe: Observer,
    holds: Callable[[int, int], bool],
) -> list[CustomInstruction]:  # fmt: skip
    """Return the instructions named by `enabled` (names as in `--isa`) in opcode slot 0..3.

    `holds(address, size)`: whether the device can read these bytes: RAM or scratchpad, but no ROM.
    """
    handlers = _Handlers(device, timing.custom_response, holds)
    rows = []
    for encoding in CUSTOM_INSTRUCTIONS:
        if encoding.isa_name in enabled:
            handler = getattr(handlers, encoding.isa_name)
            rows.append(_row(encoding, slot, _add_observer(encoding.name, handler, observe), device))
    return rows


def ignored_instructions(enabled: Sequence[str], slot: int) -> list[CustomInstruction]:
    """Return the instructions not in `enabled` as no-operations, for `tight_off: nop`."""
    absent = [encoding for encoding in CUSTOM_INSTRUCTIONS if encoding.isa_name not in enabled]
    return [_row(encoding, slot, _no_operation, syntax="")._replace(present=False) for encoding in absent]


def _no_operation(operands: Operands) -> Outcome:
    return Value()


def _row(
    encoding: CustomEncoding,
    slot: int,
    handler: Callable[[Operands], Outcome],
    device: NpuDevice | None = None,
    syntax: str | None = None,
) -> CustomInstruction:
    match, mask = match_mask(encoding, slot)
    text = encoding.syntax if syntax is None else syntax
    submits = device is not None and encoding.isa_name == "enqcmd"
    return CustomInstruction(encoding.name.lower(), match, mask, text, handler, device=device, submits=submits)


def _add_observer(
    name: str, handler: Callable[[Operands], Outcome], observe: Observer
) -> Callable[[Operands], Outcome]:
    def handle(operands: Operands) -> Outcome:
        outcome = handler(operands)
        observe(name, operands, outcome)
        return outcome

    return handle


class ObservedCsrs:
    """The device's CSR window with an observer."""

    addresses = frozenset(entry.address for entry in CSRS)

    def __init__(self, device: NpuDevice, observe: CsrObserver, observe_write: Callable[[int, int], None]) -> None:
        """`observe_write(address, cycle)` is called for each write."""
        self.device = device
        self._observe_write = observe_write
        self._observe = observe

    def stable(self, address: int) -> bool:
        return self.device.csr.stable(address)

    def offset(self, address: int) -> int:
        """Return the offset of the register behind a CSR."""
        return self.device.csr.offset(address)

    def read(self, address: int, now: int) -> int:
        value = self.device.csr.read(address, now)
        self._observe(address, value, now)
        return value

    def write(self, address: int, value: int, now: int, written: int) -> None:
        self.device.csr.write(address, value, now, written)
        self._observe_write(address, now)


class _Handlers:
    """Handlers of the custom instructions, methods named as in `--isa`."""

    def __init__(self, device: NpuDevice, response: int, holds: Callable[[int, int], bool]) -> None:
        self._device = device
        self._holds = holds
        self._response = response

    def enqcmd(self, operands: Operands) -> Outcome:
        address = operands.rs1
        if address % DESCRIPTOR_SIZE:
            return Trap(LOAD_MISALIGNED, address)
        descriptor = operands.load(address, DESCRIPTOR_SIZE)
        if descriptor is None or not self._holds(address, DESCRIPTOR_SIZE):
            return Trap(LOAD_FAULT, address)
        return self._answer(self._device.port.enqcmd(address, descriptor, operands.rs2, operands.now))

    def twait(self, operands: Operands) -> Outcome:
        units = operands.word >> 20
        return self._answer(self._device.port.twait(operands.rs1, units, operands.pc, operands.now, operands.resumed))

    def tbar(self, operands: Operands) -> Outcome:
        immediate = operands.word >> 20
        if not self._device.port.tbar_legal(immediate):
            return Trap(ILLEGAL_INSTRUCTION, operands.word)
        self._device.port.tbar(immediate, operands.now)
        return Value()

    def tstat(self, operands: Operands) -> Outcome:
        return Value(self._device.port.tstat(operands.now).value & MASK)

    def _answer(self, reply: PortReply | PortWait | PortTrap) -> Outcome:
        """Return the outcome `custom_response` cycles after the device's answer."""
        if isinstance(reply, PortReply):
            return Value(reply.value & MASK, reply.cycles + self._response)
        if isinstance(reply, PortWait):
            return Stall(reply.until)
        return Trap(reply.cause, reply.value)
