"""How a command's end becomes visible (specification 20, "Order and visibility")."""

from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from npu_device.abi.descriptor import WORDS
from npu_device.abi.errors import TicketError
from npu_device.abi.opcodes import StatusWord
from npu_device.events import FRONTEND, EventStream, What
from npu_device.interrupts import Interrupts, Irq
from npu_device.memory import Memory
from npu_device.tickets import Tickets

STATUS_OFFSET, TICKET_OFFSET = (word.offset for word in WORDS if word.name in ("status", "ticket"))
"""Of the last two words of a descriptor."""

LOG_SIZE = 1024


class ErrorEntry(NamedTuple):
    """One line of the error log."""

    cycle: int
    ticket: int
    code: TicketError
    reason: str


class Completion:
    """Status word, then ticket and COMPLETED, then IRQ_STATUS; outputs are in memory before."""

    def __init__(self, memory: Memory, tickets: Tickets, interrupts: Interrupts, events: EventStream) -> None:
        self._memory = memory
        self._tickets = tickets
        self._interrupts = interrupts
        self._events = events
        self.log: deque[ErrorEntry] = deque(maxlen=LOG_SIZE)
        """The latest errors, oldest first."""
        self.on_end: Callable[[int], None] | None = None
        """Called with each ticket that ends."""
        self.error_ticket = 0
        self.error_code = 0

    def done(self, cycle: int, ticket: int, unit: int, status_address: int | None, irq: bool) -> None:
        if status_address is not None:
            self._write_status(status_address, StatusWord.DONE, ticket)
        self._finish(ticket)
        self._events.emit(cycle, unit, What.DONE, ticket)
        if irq:
            self._interrupts.set(cycle, Irq.DONE)

    def error(
        self, cycle: int, ticket: int, code: TicketError, reason: str, status_address: int | None, unit: int = FRONTEND
    ) -> None:
        if status_address is not None:
            self._write_status(status_address, StatusWord.ERROR | code << 8, ticket)
        self._finish(ticket, code)
        self.error_ticket, self.error_code = ticket, code
        self.log.append(ErrorEntry(cycle, ticket, code, reason))
        self._events.emit(cycle, unit, What.ERROR, ticket, aux=code)
        self._interrupts.set(cycle, Irq.ERROR)

    def _finish(self, ticket: int, code: int = 0) -> None:
        self._tickets.finish(ticket, code)
        if self.on_end is not None:
            self.on_end(ticket)

    def _write_status(self, address: int, status: int, ticket: int) -> None:
        self._memory.write_bytes(address, status.to_bytes(4, "little") + ticket.to_bytes(4, "little"))
