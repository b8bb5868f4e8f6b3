"""UART 16550A with byte registers, and the console that its characters go to.

The line takes no time: what is sent is gone at once, what is fed is there. The console captures characters always and
shows them live on request.
"""

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from pyv_ext.devices.base import DeviceBase
from pyv_state import Fields, data


class Console:
    """Output of one or more character devices, in the order in which they sent it."""

    def __init__(self, sink: Callable[[bytes], None] | None = None) -> None:
        self.data = bytearray()
        self.sink = sink
        """Called with each piece of output as it is sent."""

    def write(self, data: bytes) -> None:
        self.data += data
        if self.sink is not None:
            self.sink(data)

    @property
    def text(self) -> str:
        """The output as UTF-8; bytes that are not become U+FFFD."""
        return self.data.decode("utf-8", "replace")

    def state(self) -> bytes:
        """What a snapshot keeps."""
        return bytes(self.data)

    def load_state(self, state: Any) -> None:
        self.data[:] = data(state)


# Register offsets; the names say what a read and a write of the offset reach. With LCR.DLAB set, offsets 0 and 1
# are the divisor latch.
RBR_THR, IER, IIR_FCR, LCR, MCR, LSR, MSR, SCR = range(8)

IER_RX, IER_THRE = 1, 2
IIR_NONE, IIR_THRE, IIR_RX, IIR_TIMEOUT, IIR_FIFO = 0x01, 0x02, 0x04, 0x0C, 0xC0
FCR_ENABLE, FCR_CLEAR_RX, FCR_CLEAR_TX = 1, 2, 4
LCR_DLAB = 0x80
MCR_LOOP = 0x10
LSR_DR, LSR_THRE_TEMT = 0x01, 0x60
MSR_CONNECTED = 0xB0
"""DCD, DSR and CTS: the other end is connected."""

_RECALLED = {LCR: 0xFF, SCR: 0xFF, LSR: 0}
"""Of registers that deferrable stores to others do not change: the bits that show what was stored last."""

FIFO_DEPTH = 16
TRIGGERS = (1, 4, 8, 14)
"""Receiver FIFO trigger level by FCR[7:6]."""
RESET_DIVISOR = 12


class Uart(DeviceBase):
    """Interrupts by priority: received data at the trigger level, received data below it, transmitter empty.

    The conditions that this line cannot produce (errors, break, modem changes) never interrupt. Loads and stores are
    bytes; line and modem status are read-only.
    """

    name = "uart"
    size = 0x100

    def __init__(self, console: Console | None = None) -> None:
        self.console = console if console is not None else Console()
        self._waiting: deque[int] = deque()
        """Fed bytes for which the receiver has no room yet."""
        self._fifo: deque[int] = deque()
        self._ier = self._fcr = self._lcr = self._mcr = self._scr = 0
        self._divisor = RESET_DIVISOR
        self._thre_pending = False
        self._readers: tuple[Callable[[], int], ...] = (
            self._receive,
            lambda: self._ier,
            self._identify,
            lambda: self._lcr,
            lambda: self._mcr,
            lambda: LSR_THRE_TEMT | (LSR_DR if self._fifo else 0),
            self._modem_status,
            lambda: self._scr,
        )

    # -- the host's end of the line ----------------------------------------------------------------------------

    @property
    def text(self) -> str:
        """What the guest has sent so far."""
        return self.console.text

    def feed(self, data: bytes) -> None:
        """Send `data` to the guest; call `clock.changed(clock.now)` afterwards when a run is under way."""
        self._waiting.extend(data)
        self._fill()

    # -- the guest's end -----------------------------------------------------------------------------------------

    @property
    def irq(self) -> bool:
        return self._cause() != IIR_NONE

    def accepts(self, offset: int, size: int, write: bool) -> bool:
        return size == 1 and offset <= SCR and not (write and offset in (LSR, MSR))

    def stable(self, offset: int, size: int) -> bool:
        """A read of the first takes a byte, one of the third an interrupt."""
        return offset not in (RBR_THR, IIR_FCR)

    def deferrable(self, offset: int, size: int) -> bool:
        """While no interrupt is enabled; the registers that may enable one are excepted, and what may send characters
        back."""
        return not self._ier and offset not in (IER, IIR_FCR, MCR) and not (offset == RBR_THR and self._mcr & MCR_LOOP)

    def recalls(self, offset: int, size: int) -> int | None:
        return _RECALLED.get(offset)

    def read(self, offset: int, size: int, now: int) -> int:
        if offset <= IER and self._lcr & LCR_DLAB:
            return self._divisor >> 8 * offset & 0xFF
        return self._readers[offset]()

    def peek(self, offset: int, size: int, now: int) -> int | None:
        """What a debugger sees: four registers at once, without taking a character or an interrupt."""
        if offset + size > SCR + 1:
            return None
        return sum(self._peek(offset + at) << 8 * at for at in range(size))

    def _peek(self, offset: int) -> int:
        if offset <= IER and self._lcr & LCR_DLAB:
            return self._divisor >> 8 * offset & 0xFF
        if offset == RBR_THR:
            return self._fifo[0] if self._fifo else 0
        if offset == IIR_FCR:
            return self._cause() | (IIR_FIFO if self._fcr & FCR_ENABLE else 0)
        return self._readers[offset]()

    def write_in_a_row(self, offset: int, size: int, values: Sequence[int], now: int) -> None:
        """Deferrable stores to one register: of text, one piece of output."""
        if offset == RBR_THR and not self._lcr & LCR_DLAB:
            self.console.write(bytes(values))
            self._thre_pending = True
        else:
            self.write(offset, size, values[-1], now)

    def write(self, offset: int, size: int, value: int, now: int) -> None:
        if offset <= IER and self._lcr & LCR_DLAB:
            shift = 8 * offset
            self._divisor = self._divisor & ~(0xFF << shift) | value << shift
        elif offset == RBR_THR:
            self._transmit(value)
        elif offset == IER:
            if value & ~self._ier & IER_THRE:
                self._thre_pending = True
            self._ier = value & 0x0F
        elif offset == IIR_FCR:
            self._control_fifo(value)
        elif offset == LCR:
            self._lcr = value
        elif offset == MCR:
            self._mcr = value & 0x1F
        else:
            self._scr = value

    # -- parts -----------------------------------------------------------------------------------------------------

    def _fill(self) -> None:
        room = FIFO_DEPTH if self._fcr & FCR_ENABLE else 1
        while self._waiting and len(self._fifo) < room:
            self._fifo.append(self._waiting.popleft())

    def _receive(self) -> int:
        value = self._fifo.popleft() if self._fifo else 0
        self._fill()
        return value

    def _transmit(self, value: int) -> None:
        if self._mcr & MCR_LOOP:
            self.feed(bytes((value,)))
        else:
            self.console.write(bytes((value,)))
        self._thre_pending = True

    def _control_fifo(self, value: int) -> None:
        if (value ^ self._fcr) & FCR_ENABLE:
            clear = FCR_CLEAR_RX | FCR_CLEAR_TX
        else:
            clear = value if value & FCR_ENABLE else 0
        if clear & FCR_CLEAR_RX:
            self._fifo.clear()
        if clear & FCR_CLEAR_TX:
            self._thre_pending = True  # an emptied transmitter interrupts, as in QEMU
        # Without FCR[0] the other bits are not programmed; the clear bits clear themselves.
        self._fcr = value & 0xC1 if value & FCR_ENABLE else 0
        self._fill()

    def _cause(self) -> int:
        if self._ier & IER_RX and self._fifo:
            return IIR_RX if len(self._fifo) >= TRIGGERS[self._fcr >> 6] else IIR_TIMEOUT
        if self._ier & IER_THRE and self._thre_pending:
            return IIR_THRE
        return IIR_NONE

    def _identify(self) -> int:
        cause = self._cause()
        if cause == IIR_THRE:
            self._thre_pending = False
        return cause | (IIR_FIFO if self._fcr & FCR_ENABLE else 0)

    def _modem_status(self) -> int:
        if not self._mcr & MCR_LOOP:
            return MSR_CONNECTED
        dtr, rts, outs = self._mcr & 1, self._mcr >> 1 & 1, self._mcr >> 2 & 3
        return outs << 6 | dtr << 5 | rts << 4

    # -- snapshots ---------------------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """What a snapshot keeps; the console has a state of its own."""
        registers: dict[str, Any] = {name: getattr(self, f"_{name}") for name in _REGISTERS}
        return registers | {
            "fifo": bytes(self._fifo),
            "waiting": bytes(self._waiting),
            "thre_pending": self._thre_pending,
        }

    def load_state(self, state: Any) -> None:
        fields = Fields(state, *_REGISTERS, "fifo", "waiting", "thre_pending")
        for name, highest in _REGISTERS.items():
            setattr(self, f"_{name}", fields.integer(name, 0, highest))
        self._fifo, self._waiting = deque(fields.data("fifo")), deque(fields.data("waiting"))
        self._thre_pending = fields.flag("thre_pending")


_REGISTERS = {"ier": 0x0F, "fcr": 0xC1, "lcr": 0xFF, "mcr": 0x1F, "scr": 0xFF, "divisor": 0xFFFF}
"""What a snapshot keeps of them, and the highest value of each."""
