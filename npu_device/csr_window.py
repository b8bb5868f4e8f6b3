"""The custom CSRs: mirrors of what a driver touches (specification 20)."""

from npu_device.abi.instructions import CSRS
from npu_device.registers import RegisterFile

_REGISTER = {entry.address: entry.register for entry in CSRS}
_ACKNOWLEDGE = "IRQ_ACK"


class CsrWindow:
    """CSR accesses as accesses of the registers of the same names."""

    addresses = frozenset(_REGISTER)

    def __init__(self, registers: RegisterFile) -> None:
        self._registers = registers

    def read(self, address: int, now: int) -> int:
        return self._registers.read_named(_REGISTER[address], now)

    def write(self, address: int, value: int, now: int, written: int) -> None:
        """`value`: the new content; `written`: the bits of csrrw and csrrs, 0 for csrrc, which acknowledges nothing."""
        name = _REGISTER[address]
        self._registers.write_named(name, written if name == _ACKNOWLEDGE else value, now)
