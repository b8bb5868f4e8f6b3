"""The test finisher of QEMU `virt` (SiFive test device): one store ends the run or asks for a reset."""

from collections.abc import Callable

from pyv_ext.devices.base import Register, RegisterDevice
from pyv_ext.protocols import Reply

FAIL = 0x3333
PASS = 0x5555
RESET = 0x7777


class Finisher(RegisterDevice):
    """Bits 15:0 say what happens, bits 31:16 are the exit code of `FAIL`. Any other value is an access fault.

    Stores of 16 or 32 bits are accepted, as in QEMU.
    """

    name = "finisher"
    size = 0x1000
    registers = (Register("FINISH", 0, "wo"),)

    def __init__(self, on_exit: Callable[[int], None], on_reset: Callable[[], None]) -> None:
        super().__init__()
        self._on_exit = on_exit
        self._on_reset = on_reset

    def accepts(self, offset: int, size: int, write: bool) -> bool:
        return write and offset == 0 and size in (2, 4)

    def on_write(self, name: str, value: int, now: int) -> Reply | None:
        what, code = value & 0xFFFF, value >> 16
        if what == PASS:
            self._on_exit(0)
        elif what == FAIL:
            self._on_exit(code)
        elif what == RESET:
            self._on_reset()
        else:
            return Reply(fault=True)
        return None
