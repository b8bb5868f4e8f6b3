"""Input of a UART, buffered until the program has initialized the UART."""

from typing import Any

from pyv_ext.bus.clock import Clock
from pyv_ext.devices.uart import Uart
from pyv_ext.machine.uart import FCR_ENABLE
from pyv_native.state import LATEST, Fields

INTERVAL = 10_000
"""Cycles between two polls of the UART's state."""
PATIENCE = 100_000_000
"""Cycle from which on input is delivered in any case."""


class SerialInput:
    """Input buffer in front of a UART.

    A driver clears the receiver when it initializes the UART, so earlier input would be lost. Input waits until the
    program has sent a character or enabled FIFO or receive interrupt, but no longer than until cycle `PATIENCE`.
    """

    irq = False

    def __init__(self, uart: Uart, clock: Clock) -> None:
        self._uart = uart
        self._clock = clock
        self._pending = bytearray()
        self._next_poll: int | None = None
        clock.attach(self, shared=True)

    def send(self, data: bytes) -> None:
        """Accept bytes from the host while the machine is stopped."""
        now = self._clock.now
        if self._pending or not self._ready(now):
            self._pending += data
            self._next_poll = now + INTERVAL if self._next_poll is None else self._next_poll
        else:
            self._uart.feed(data)
        self._clock.changed(now)

    def _ready(self, now: int) -> bool:
        record = self._uart.record
        return bool(now >= PATIENCE or record.ier & 1 or record.fcr & FCR_ENABLE or self._uart.console.data)

    def next_event(self) -> int | None:
        return self._next_poll

    def advance(self, now: int) -> None:
        if self._next_poll is None or self._next_poll > now:
            return
        self._next_poll = None if self._ready(now) else now + INTERVAL
        if self._next_poll is None:
            self._uart.feed(bytes(self._pending))
            self._pending.clear()

    def state(self) -> dict[str, Any]:
        """Return the state of a snapshot."""
        return {"held": bytes(self._pending), "due": self._next_poll}

    def load_state(self, state: Any) -> None:
        fields = Fields(state, "held", "due")
        self._pending[:] = fields.data("held")
        self._next_poll = fields.optional("due", 0, LATEST)
