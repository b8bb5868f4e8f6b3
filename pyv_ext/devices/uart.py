"""UART 16550A with byte registers, and the console that its characters go to.

Transmission takes no time: characters are sent and received at once. The console always captures characters, and shows
them live on request.
"""

from collections import deque
from collections.abc import Callable
from typing import Any

from pyv_ext.devices.base import DeviceBase, move_record, new_record
from pyv_ext.machine import state, uart
from pyv_ext.machine.state import FIFO_DEPTH, UART, Machine
from pyv_ext.machine.uart import FCR_ENABLE, IER, IIR_FCR, LCR_DLAB, LSR, MSR, RBR_THR, SCR
from pyv_native.state import Fields, StateError, data


class Console:
    """Output of one or more character devices, in the order in which they sent it."""

    def __init__(self, sink: Callable[[bytes], None] | None = None) -> None:
        self.sink = sink
        """`sink(data)` receives each piece of output at once."""
        self.sources: list[Callable[[], bytes]] = []
        """Callbacks that return and clear the pending output of a device."""
        self._data = bytearray()

    @property
    def data(self) -> bytearray:
        """Output so far."""
        self.collect()
        return self._data

    def collect(self) -> None:
        """Collect the pending output of all devices."""
        for source in self.sources:
            sent = source()
            if sent:
                self._add(sent)

    def write(self, data: bytes) -> None:
        """Append output after the pending output of all devices."""
        self.collect()
        self._add(data)

    def _add(self, data: bytes) -> None:
        self._data += data
        if self.sink is not None:
            self.sink(data)

    @property
    def text(self) -> str:
        """Output as UTF-8; invalid bytes become U+FFFD."""
        return self.data.decode("utf-8", "replace")

    def state(self) -> bytes:
        """Return the state of a snapshot."""
        return bytes(self.data)

    def load_state(self, state: Any) -> None:
        self.data[:] = data(state)


RESET_DIVISOR = 12


class Uart(DeviceBase):
    """UART. Interrupts by priority: received data at the trigger level, received data below it, transmitter empty.

    The conditions that this line cannot produce (errors, break, modem changes) never interrupt. Loads and stores are
    bytes; line and modem status are read-only. `pyv_ext.machine.uart` implements the registers.
    """

    name = "uart"
    size = 0x100
    kind = UART

    def __init__(self, console: Console | None = None) -> None:
        self.console = console if console is not None else Console()
        self.console.sources.append(self._take_output)
        self._backlog: deque[int] = deque()
        """Fed bytes that wait for space in the receiver."""
        self.record = new_record(state.UartRecord)
        self.record.divisor = RESET_DIVISOR

    def bind(self, machine: Machine) -> None:
        """Move the registers into the record of a machine."""
        self.record = move_record(self.record, machine.uart)

    # -- host side ---------------------------------------------------------------------------------------------

    @property
    def text(self) -> str:
        """Output of the guest so far."""
        return self.console.text

    def feed(self, data: bytes) -> None:
        """Send `data` to the guest; call `clock.changed(clock.now)` afterwards during a run."""
        self._backlog.extend(data)
        self._fill()

    def serve(self) -> None:
        """Pass output to the console, and looped-back or waiting input to the receiver."""
        record = self.record
        if record.looped:
            back = record.sent[len(record.sent) - 1]
            del record.sent[len(record.sent) - 1 :]
            record.looped = False
            self._backlog.append(back)
        self.console.collect()
        self._fill()

    def _take_output(self) -> bytes:
        output = self.record.sent
        if not len(output):
            return b""
        characters = bytes(output.reserved()[: len(output)])  # type: ignore[attr-defined]  # a view
        output.clear()
        return characters

    def _fill(self) -> None:
        record, backlog = self.record, self._backlog
        capacity = FIFO_DEPTH if record.fcr & FCR_ENABLE else 1
        while backlog and record.count < capacity:
            record.received[record.count] = backlog.popleft()
            record.count += 1
        record.backlog = len(backlog)

    # -- guest side ----------------------------------------------------------------------------------------------

    @property
    def irq(self) -> bool:
        return bool(uart.line(self.record))

    def accepts(self, offset: int, size: int, write: bool) -> bool:
        return size == 1 and offset <= SCR and not (write and offset in (LSR, MSR))

    def stable(self, offset: int, size: int) -> bool:
        """Check that a read has no effect: RBR takes a byte, IIR an interrupt."""
        return offset not in (RBR_THR, IIR_FCR)

    def read(self, offset: int, size: int, now: int) -> int:
        value = uart.read_uart(self.record, offset)
        self._fill()
        return value

    def peek(self, offset: int, size: int, now: int) -> int | None:
        """Return up to four registers for a debugger, without taking a character or an interrupt."""
        if offset + size > SCR + 1:
            return None
        return sum(self._peek(offset + register) << 8 * register for register in range(size))

    def _peek(self, offset: int) -> int:
        record = self.record
        latched = offset <= IER and record.lcr & LCR_DLAB
        if offset == RBR_THR and not latched:
            return record.received[0] if record.count else 0
        if offset == IIR_FCR:
            return uart.identity(record)
        return uart.read_uart(record, offset)

    def write(self, offset: int, size: int, value: int, now: int) -> None:
        uart.write_uart(self.record, offset, value)
        self.serve()

    # -- snapshots ---------------------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """Return the state of a snapshot; the console has a state of its own."""
        record: Any = self.record
        registers: dict[str, Any] = {name: getattr(record, name) for name in _REGISTERS}
        fifo = bytes(record.received.reserved()[: record.count])
        return registers | {"fifo": fifo, "waiting": bytes(self._backlog), "thre_pending": bool(record.thre)}

    def load_state(self, state: Any) -> None:
        fields = Fields(state, *_REGISTERS, "fifo", "waiting", "thre_pending")
        record: Any = self.record
        for name, highest in _REGISTERS.items():
            setattr(record, name, fields.integer(name, 0, highest))
        fifo, self._backlog = fields.data("fifo"), deque(fields.data("waiting"))
        if len(fifo) > FIFO_DEPTH:
            raise StateError(f"holds {len(fifo)} bytes: at most {FIFO_DEPTH}", "fifo")
        record.received.fill(fifo.ljust(FIFO_DEPTH, b"\0"))
        record.count = len(fifo)
        record.sent.clear()
        record.backlog = len(self._backlog)
        record.thre = fields.flag("thre_pending")


_REGISTERS = {"ier": 0x0F, "fcr": 0xC1, "lcr": 0xFF, "mcr": 0x1F, "scr": 0xFF, "divisor": 0xFFFF}
"""Registers in a snapshot, and their maximum values."""
