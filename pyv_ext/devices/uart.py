"""UART 16550A with byte registers, and the console that its characters go to.

The line takes no time: what is sent is gone at once, what is fed is there. The console captures characters always and
shows them live on request.
"""

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from pyv_ext.devices.base import DeviceBase
from pyv_ext.devices.programs import NativeForm, Programs
from pyv_native.state import WORD64, Fields, StateError, data


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
RESET_DIVISOR = 12

_WORDS = ("ier", "fcr", "lcr", "mcr", "scr", "divisor", "thre", "low", "high", "count", "waiting")
"""The state: registers; whether the empty transmitter interrupts; the receiver's bytes, the next one lowest in `low`,
and how many; how many more were fed for which it has no room."""

_CAUSE = f"""
trigger = fcr >> 6
trigger = (14 if trigger == 3 else 8) if trigger > 1 else (4 if trigger else 1)
cause = {IIR_THRE} if ier >> 1 & thre else {IIR_NONE}
cause = ({IIR_RX} if count >= trigger else {IIR_TIMEOUT}) if ier & (count != 0) else cause
"""
"""By priority; FCR[7:6] is the trigger level of the receiver's FIFO."""
_IDENTITY = f"cause | ({IIR_FIFO} if fcr & {FCR_ENABLE} else 0)"
_IDENTIFY = f"{_CAUSE}\nthre = 0 if cause == {IIR_THRE} else thre\n{_IDENTITY}"
_LATCHED = "lcr >> 7"
_RECEIVE = f"""
latched = {_LATCHED}
received = divisor & 0xFF if latched else low & 0xFF
count = count - ((count != 0) & (latched == 0))
low = low if latched else low >> 8 | (high & 0xFF) << 56
high = high if latched else high >> 8
received
"""
_PUSH = """
low = low | (value << 8 * (count & 7) if count < 8 else 0)
high = high | (value << 8 * (count & 7) if count >= 8 else 0)
count = count + 1
"""
_SEND = f"""
thre = thre if {_LATCHED} else 1
divisor = divisor & 0xFF00 | value if {_LATCHED} else divisor
"""
_ENABLE = f"""
thre = 1 if ({_LATCHED} == 0) & (value & ~ier & {IER_THRE}) >> 1 else thre
ier = ier if {_LATCHED} else value & 0x0F
divisor = divisor & 0xFF | value << 8 if {_LATCHED} else divisor
"""
_CONTROL = f"""
clear = {FCR_CLEAR_RX | FCR_CLEAR_TX} if (value ^ fcr) & {FCR_ENABLE} else (value if value & {FCR_ENABLE} else 0)
low = 0 if clear & {FCR_CLEAR_RX} else low
high = 0 if clear & {FCR_CLEAR_RX} else high
count = 0 if clear & {FCR_CLEAR_RX} else count
thre = 1 if clear & {FCR_CLEAR_TX} else thre
fcr = value & 0xC1 if value & {FCR_ENABLE} else 0
"""
"""An emptied transmitter interrupts, as in QEMU. Without FCR[0] the other bits are not programmed; the clear bits clear
themselves."""
_MODEM = f"(mcr & 0xC) << 4 | (mcr & 1) << 5 | (mcr & 2) << 3 if mcr & {MCR_LOOP} else {MSR_CONNECTED}"
_FORM = NativeForm(
    names=_WORDS,
    size=1,
    loads={
        RBR_THR: _RECEIVE,
        IER: f"divisor >> 8 if {_LATCHED} else ier",
        IIR_FCR: _IDENTIFY,
        LCR: "lcr",
        MCR: "mcr",
        LSR: f"{LSR_THRE_TEMT} | ({LSR_DR} if count else 0)",
        MSR: _MODEM,
        SCR: "scr",
    },
    stores={
        RBR_THR: _SEND,
        IER: _ENABLE,
        IIR_FCR: _CONTROL,
        LCR: "lcr = value",
        MCR: "mcr = value & 0x1F",
        SCR: "scr = value",
    },
    lines="(ier & (count != 0) | ier >> 1 & thre) & 1",
    quiet=frozenset((IER, LCR, MCR, LSR, MSR, SCR)),
    python={_RECEIVE: "waiting", _CONTROL: "waiting", _SEND: f"mcr & {MCR_LOOP}"},
    sends={RBR_THR: f"{_LATCHED} == 0"},
)
_IER, _FCR, _LCR, _MCR, _SCR, _DIVISOR, _THRE, _LOW, _HIGH, _COUNT, _WAITING = range(len(_WORDS))


class Uart(DeviceBase):
    """Interrupts by priority: received data at the trigger level, received data below it, transmitter empty.

    The conditions that this line cannot produce (errors, break, modem changes) never interrupt. Loads and stores are
    bytes; line and modem status are read-only. Native code is made from the same programs (`native`).
    """

    name = "uart"
    size = 0x100
    native = _FORM

    def __init__(self, console: Console | None = None) -> None:
        self.console = console if console is not None else Console()
        self._waiting: deque[int] = deque()
        """Fed bytes for which the receiver has no room yet."""
        self._execute = Programs(_WORDS)
        self.words = self._execute.words
        self.words[_DIVISOR] = RESET_DIVISOR

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
        return bool(self.words[_IER] and self._execute(_FORM.lines))

    def accepts(self, offset: int, size: int, write: bool) -> bool:
        return size == 1 and offset <= SCR and not (write and offset in (LSR, MSR))

    def stable(self, offset: int, size: int) -> bool:
        """A read of the first takes a byte, one of the third an interrupt."""
        return offset not in (RBR_THR, IIR_FCR)

    def deferrable(self, offset: int, size: int) -> bool:
        """While no interrupt is enabled; the registers that may enable one are excepted, and what may send characters
        back."""
        words = self.words
        loops = offset == RBR_THR and words[_MCR] & MCR_LOOP
        return not words[_IER] and offset not in (IER, IIR_FCR, MCR) and not loops

    def recalls(self, offset: int, size: int) -> int | None:
        return _RECALLED.get(offset)

    def read(self, offset: int, size: int, now: int) -> int:
        value = self._execute(_FORM.loads[offset])
        if self._waiting:
            self._fill()
        return value

    def peek(self, offset: int, size: int, now: int) -> int | None:
        """What a debugger sees: four registers at once, without taking a character or an interrupt."""
        if offset + size > SCR + 1:
            return None
        return sum(self._peek(offset + at) << 8 * at for at in range(size))

    def _peek(self, offset: int) -> int:
        latched = offset <= IER and self.words[_LCR] & LCR_DLAB
        if offset == RBR_THR and not latched:
            return self.words[_LOW] & 0xFF
        if offset == IIR_FCR:
            return self._execute(f"{_CAUSE}\n{_IDENTITY}")
        return self._execute(_FORM.loads[offset])

    def write_in_a_row(self, offset: int, size: int, values: Sequence[int], now: int) -> None:
        """Deferrable stores to one register: of text, one piece of output."""
        if offset == RBR_THR and not self.words[_LCR] & LCR_DLAB:
            self.sent(bytes(values))
            self.words[_THRE] = 1
        else:
            self.write(offset, size, values[-1], now)

    def sent(self, characters: bytes) -> None:
        """These have left the transmitter."""
        self.console.write(characters)

    def write(self, offset: int, size: int, value: int, now: int) -> None:
        self._execute(_FORM.stores[offset], value=value)
        if offset == RBR_THR and not self.words[_LCR] & LCR_DLAB:
            if self.words[_MCR] & MCR_LOOP:
                self.feed(bytes((value,)))
            else:
                self.sent(bytes((value,)))
        elif self._waiting:
            self._fill()

    def _fill(self) -> None:
        words, waiting = self.words, self._waiting
        room = FIFO_DEPTH if words[_FCR] & FCR_ENABLE else 1
        while waiting and words[_COUNT] < room:
            self._execute(_PUSH, value=waiting.popleft())
        words[_WAITING] = len(waiting)

    # -- snapshots ---------------------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """What a snapshot keeps; the console has a state of its own."""
        words = self.words
        registers: dict[str, Any] = {name: words[_WORDS.index(name)] for name in _REGISTERS}
        fifo = (words[_LOW] | words[_HIGH] << 64).to_bytes(FIFO_DEPTH, "little")[: words[_COUNT]]
        return registers | {"fifo": fifo, "waiting": bytes(self._waiting), "thre_pending": bool(words[_THRE])}

    def load_state(self, state: Any) -> None:
        fields = Fields(state, *_REGISTERS, "fifo", "waiting", "thre_pending")
        words = self.words
        for name, highest in _REGISTERS.items():
            words[_WORDS.index(name)] = fields.integer(name, 0, highest)
        fifo, self._waiting = fields.data("fifo"), deque(fields.data("waiting"))
        if len(fifo) > FIFO_DEPTH:
            raise StateError(f"holds {len(fifo)} bytes: at most {FIFO_DEPTH}", "fifo")
        received = int.from_bytes(fifo, "little")
        words[_LOW], words[_HIGH], words[_COUNT] = received & WORD64, received >> 64, len(fifo)
        words[_WAITING] = len(self._waiting)
        words[_THRE] = fields.flag("thre_pending")


_REGISTERS = {"ier": 0x0F, "fcr": 0xC1, "lcr": 0xFF, "mcr": 0x1F, "scr": 0xFF, "divisor": 0xFFFF}
"""What a snapshot keeps of them, and the highest value of each."""
