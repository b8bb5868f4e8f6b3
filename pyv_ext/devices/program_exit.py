"""Exits of a program: test finisher, host-target interface, semihosting.

- The finisher of QEMU `virt` (SiFive test device): one store ends the run or requests a reset.
- HTIF: the words `tohost` and `fromhost` in RAM, as riscv-tests and Spike's front end use them.
- Semihosting (RISC-V Semihosting 0.4): SYS_EXIT and SYS_EXIT_EXTENDED. The other operations, if enabled, are in
  `pyv_ext.devices.semihosting`.
"""

from collections.abc import Callable
from typing import Any

from pyv_ext.bus.bus import Bus
from pyv_ext.devices.base import Register, RegisterDevice
from pyv_ext.devices.uart import Console
from pyv_ext.errors import PyvExtError
from pyv_ext.protocols import Reply
from pyv_native.state import LATEST, Fields

FAIL = 0x3333
PASS = 0x5555
RESET = 0x7777


class Finisher(RegisterDevice):
    """Test finisher: bits 15:0 are the command, bits 31:16 the exit code of `FAIL`. Any other value is an access fault.

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
        command, code = value & 0xFFFF, value >> 16
        if command == PASS:
            self._on_exit(0)
        elif command == FAIL:
            self._on_exit(code)
        elif command == RESET:
            self._on_reset()
        else:
            return Reply(fault=True)
        return None


SETTLE = 1000
"""Cycles after which a store to one half of `tohost` takes effect without a store to the other half."""

SYSCALL, CONSOLE_WRITE = 0x0000, 0x0101
"""Device << 8 | command: the upper 16 bits of `tohost`; the lower 48 bits are the payload."""
SYS_WRITE, SYS_EXIT = 64, 93
EBADF, EFAULT, ENOSYS = 9, 14, 38
"""Linux error numbers, returned negative."""
BOTH_HALVES = 0b11


class Htif:
    """HTIF device, which executes each command that the hart stores to `tohost`, a 64-bit word written by two 32-bit
    stores in any order.

    `SYSCALL`: an odd payload ends the run with exit code payload >> 1; an even payload is the address of a block of
    64-bit words {number, arg0, arg1, arg2}; `write` and `exit` are supported. `CONSOLE_WRITE` prints a character. As in
    Spike's front end, a command is removed from `tohost` (0 is written there), and a system call writes its result to
    the first word of the block, and 1 to `fromhost`.
    """

    irq = False

    def __init__(
        self, bus: Bus, tohost: int, fromhost: int | None, console: Console, on_exit: Callable[[int], None]
    ) -> None:
        for name, address in (("tohost", tohost), ("fromhost", fromhost)):
            if address is not None and not self._in_memory(bus, address, 8):
                raise PyvExtError(
                    f"{name} at {address:#x} is not in RAM: HTIF needs its 8 bytes there, link it into RAM"
                )
        self.ignored = 0
        """Count of unknown commands."""
        self._bus = bus
        self._tohost = tohost
        self._fromhost = fromhost
        self._console = console
        self._on_exit = on_exit
        self._stored = 0
        """Mask of the halves that have been stored since the last command."""
        self._deadline: int | None = None
        bus.watch_stores(tohost, self._on_store)
        bus.clock.attach(self, shared=True)

    def next_event(self) -> int | None:
        return self._deadline

    def advance(self, now: int) -> None:
        if self._deadline is not None and self._deadline <= now:
            self._take()

    def state(self) -> dict[str, Any]:
        """Return the state of a snapshot."""
        return {"ignored": self.ignored, "stored": self._stored, "due": self._deadline}

    def load_state(self, state: Any) -> None:
        fields = Fields(state, "ignored", "stored", "due")
        self.ignored, self._stored = fields.integer("ignored", 0, LATEST), fields.integer("stored", 0, BOTH_HALVES)
        self._deadline = fields.optional("due", 0, LATEST)

    def _on_store(self, address: int, size: int, now: int) -> None:
        halves = 0
        for half in (0, 1):
            start = self._tohost + 4 * half
            if address < start + 4 and start < address + size:
                halves |= 1 << half
        if not halves:
            return
        self._stored |= halves
        clock = self._bus.clock
        clock.advance(now)
        if self._stored == BOTH_HALVES:
            self._take()
        elif self._deadline is None:
            self._deadline = now + 1 + SETTLE
        clock.changed(now + 1)

    def _take(self) -> None:
        self._stored = 0
        self._deadline = None
        command = self._word(self._tohost)
        if not command:
            return
        self._put(self._tohost, 0)
        request = command >> 48
        if request == SYSCALL and command & 1:
            self._on_exit(command >> 1)
        elif request == SYSCALL and self._in_memory(self._bus, command, 32):
            self._system_call(command)
            if self._fromhost is not None:
                self._put(self._fromhost, 1)
        elif request == CONSOLE_WRITE:
            self._console.write(bytes((command & 0xFF,)))
        else:
            self.ignored += 1

    def _system_call(self, block: int) -> None:
        operation, arg0, arg1, arg2 = (self._word(block + 8 * index) for index in range(4))
        result = -ENOSYS
        if operation == SYS_EXIT:
            self._on_exit(arg0)
            result = 0
        elif operation == SYS_WRITE:
            result = self._write(arg0, arg1, arg2)
        self._put(block, result % (1 << 64))

    def _write(self, file: int, address: int, size: int) -> int:
        if file not in (1, 2):
            return -EBADF
        data = self._bus.peek(address, size)
        if data is None:
            return -EFAULT
        self._console.write(data)
        return size

    def _word(self, address: int) -> int:
        return int.from_bytes(self._bus.peek(address, 8) or b"", "little")

    def _put(self, address: int, value: int) -> None:
        self._bus.poke(address, value.to_bytes(8, "little"))

    @staticmethod
    def _in_memory(bus: Bus, address: int, size: int) -> bool:
        ram = bus.ram_at(address, size)
        return ram is not None and ram.writable


ExitCalls = Callable[[int, int], int | None]
"""`exits(operation, parameter)`: a0 after a semihosting call; None for any other operation."""
SEMIHOSTING_EXIT, SEMIHOSTING_EXIT_EXTENDED = 0x18, 0x20
APPLICATION_EXIT = 0x2_0026
"""Reason ADP_Stopped_ApplicationExit; any other reason is a failure."""


def exit_calls(bus: Bus, on_exit: Callable[[int], None]) -> ExitCalls:
    """Return the semihosting calls that end a program."""

    def call(operation: int, parameter: int) -> int | None:
        if operation == SEMIHOSTING_EXIT:
            on_exit(0 if parameter == APPLICATION_EXIT else 1)
            return operation
        block = bus.peek(parameter, 8) if operation == SEMIHOSTING_EXIT_EXTENDED else None
        if block is None:
            return None
        reason, code = (int.from_bytes(block[offset : offset + 4], "little") for offset in (0, 4))
        on_exit(code if reason == APPLICATION_EXIT else 1)
        return operation

    return call
