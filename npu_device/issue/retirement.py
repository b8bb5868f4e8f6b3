"""Completion of tickets with errors, and status words (docs/interface.md, "Order and visibility" and "Tickets")."""

from array import array
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from npu_device.abi.errors import TicketError
from npu_device.abi.opcodes import StatusWord
from npu_device.front_end import acceptance
from npu_device.memory.memory import Memory
from npu_device.reservation import tickets
from npu_device.reservation.buffer import IssueBuffer
from npu_device.reservation.state import Ticket
from npu_device.trace.events import FRONTEND, What
from npu_device.trace.stream import EventStream
from pyv_native.records import WORD
from pyv_native.state import LATEST, Fields, StateError, inside, row, sequence

if TYPE_CHECKING:
    from npu_device.decode.command import Command
    from npu_device.issue.injection import Injector


LOG_SIZE = 1024


class ErrorEntry(NamedTuple):
    """Entry of the error log."""

    cycle: int
    ticket: int
    code: TicketError
    reason: str
    number: int
    """Acceptance number of the command, from 1."""
    opcode: int
    """Opcode; UNKNOWN if no descriptor was read."""


UNKNOWN = 256
"""Value greater than every opcode."""


class Completion:
    """Error log and writer of status words, which precede the completion of their tickets."""

    def __init__(self, memory: Memory, events: EventStream, call: Callable[..., int]) -> None:
        """`call(function, *arguments)`: calls a function of the device."""
        self._memory = memory
        self._events = events
        self._call = call
        self.log: deque[ErrorEntry] = deque(maxlen=LOG_SIZE)
        """The latest errors, oldest first."""
        self.injector: Injector | None = None

    def write_status(self, cycle: int, command: "Command") -> None:
        """Write the status word of a command that retires."""
        assert command.status_address is not None
        failure = command.failure
        status = StatusWord.DONE if failure is None else StatusWord.ERROR | failure.code << 8
        self._write_status(cycle, command.status_address, status, command.ticket)

    def log_failure(self, cycle: int, command: "Command") -> None:
        """Log the error of a command that has retired."""
        failure = command.failure
        assert failure is not None
        self.log.append(ErrorEntry(cycle, command.ticket, failure.code, failure.reason, command.number, command.opcode))

    def error(
        self, cycle: int, ticket: int, code: TicketError, reason: str, status_address: int | None, number: int,
        opcode: int = UNKNOWN, unit: int = FRONTEND,
    ) -> None:  # fmt: skip
        """End a ticket without a command in flight with an error."""
        if status_address is not None:
            self._write_status(cycle, status_address, StatusWord.ERROR | code << 8, ticket)
        self._events.emit(cycle, unit, What.ERROR, ticket, aux=code)
        self.log.append(ErrorEntry(cycle, ticket, code, reason, number, opcode))
        self._call(acceptance.fail_ticket, cycle, ticket, code)

    def state(self) -> dict[str, Any]:
        """Return the state of a snapshot."""
        log = [
            [entry.cycle, entry.ticket, int(entry.code), entry.number, int(entry.opcode), entry.reason]
            for entry in self.log
        ]
        return {"log": log}

    def load_state(self, state: Any) -> None:
        fields = Fields(state, "log")
        entries = []
        for index, item in enumerate(fields.sequence("log")):
            with inside("log", index):
                *numbers, reason = sequence(item, 6)
                cycle, ticket, code, number, opcode = row(
                    numbers, (0, LATEST), (0, tickets.MODULUS - 1), (1, max(TicketError)), (1, LATEST), (0, UNKNOWN)
                )
                if code not in list(TicketError) or type(reason) is not str:
                    raise StateError("is no error of a ticket")
                entries.append(ErrorEntry(cycle, ticket, TicketError(code), reason, number, opcode))
        self.log.clear()
        self.log.extend(entries)

    def _write_status(self, cycle: int, address: int, status: int, ticket: int) -> None:
        if self.injector is not None and not self.injector.writes_status(cycle, ticket):
            return
        self._memory.write_bytes(address, status.to_bytes(4, "little") + ticket.to_bytes(4, "little"))


def ended_tickets(buffer: IssueBuffer) -> "array[int]":
    """Return the ended tickets, each followed by its code, in the order of completion."""
    ended = array("q", bytes(2 * WORD * buffer.issue.ended))
    buffer.call(tickets.copy_ended, ended.buffer_info()[0])
    return ended


def load_ended(buffer: IssueBuffer, ended: "array[int]") -> None:
    """Restore the value of `ended_tickets`."""
    buffer.reserve(Ticket, len(ended) // 2)
    buffer.call(tickets.restore_ended, ended.buffer_info()[0], len(ended) // 2)


def load_in_flight(buffer: IssueBuffer, ticket: int, entry: int = 0) -> None:
    """Restore a ticket in flight. `entry`: that of its command, 0 before acceptance. Raise StateError."""
    if buffer.call(tickets.ticket_code, ticket) == tickets.IN_FLIGHT:
        raise StateError(f"ticket {ticket} is in flight twice")
    buffer.reserve(Ticket, 1)
    buffer.call(tickets.enter_ticket, ticket)
    if entry:
        buffer.call(tickets.set_command, ticket, entry)
