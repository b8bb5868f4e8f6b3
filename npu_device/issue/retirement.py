"""Tickets, and how the end of a command becomes visible (docs/interface.md, "Order and visibility" and "Tickets")."""

from collections import deque
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

from npu_device.abi.errors import TicketError
from npu_device.abi.opcodes import StatusWord, TicketState
from npu_device.issue.history import History
from npu_device.issue.interrupts import Interrupts, Irq
from npu_device.memory.memory import Memory
from npu_device.trace.events import FRONTEND, What
from npu_device.trace.stream import EventStream
from pyv_native.state import LATEST, Fields, StateError, inside, listed, row

if TYPE_CHECKING:
    from npu_device.decode.command import Command
    from npu_device.issue.injection import Injector

MODULUS = 1 << 31
"""Tickets are 1..MODULUS-1."""


class Tickets:
    """Tickets in flight, and the last `history` that completed."""

    def __init__(self, history: int) -> None:
        self.taken = 0
        """Descriptors taken up so far: the accept count from which the device's own tickets are made."""
        self.completed = 0
        """Completions, errors included."""
        self.in_flight: dict[int, Command | None] = {}
        """Commands by ticket, in the order in which these were given; None: the descriptor was not accepted yet."""
        self.waits: Callable[[Command], bool] = lambda command: True
        """Whether a command has not started."""
        self._ended = History(history)
        self._history = history

    def take(self) -> int:
        """Assign the acceptance number of one more descriptor, from 1."""
        self.taken += 1
        return self.taken

    def assign(self, number: int) -> int:
        """Give a ticket of the device's own to the descriptor with acceptance number `number`."""
        ticket = number % MODULUS
        while ticket == 0 or ticket in self.in_flight:
            ticket = (ticket + 1) % MODULUS
        self._enter(ticket)
        return ticket

    def claim(self, ticket: int) -> bool:
        """Take a host's ticket; False, and nothing changes, when it is not 1..2^31-1 or is in flight."""
        if not 0 < ticket < MODULUS or ticket in self.in_flight:
            return False
        self._enter(ticket)
        return True

    def _enter(self, ticket: int) -> None:
        self._ended.discard(ticket)
        self.in_flight[ticket] = None

    def accept(self, ticket: int, command: "Command") -> None:
        """Assign a ticket in flight to its command."""
        self.in_flight[ticket] = command

    def finish(self, ticket: int, code: int = 0) -> None:
        """End a ticket: done, or in an error with a code."""
        del self.in_flight[ticket]
        self.completed += 1
        self._ended.add(ticket, code)

    def result(self, ticket: int) -> int | None:
        """0 for a ticket that is done, its code for one that failed, None for one in flight or unknown."""
        return self._ended.get(ticket)

    def status(self, ticket: int) -> int:
        """Return TICKET_STATUS: state in [7:0], error code from bit 8."""
        if ticket in self.in_flight:
            command = self.in_flight[ticket]
            return TicketState.QUEUED if command is None or self.waits(command) else TicketState.RUNNING
        code = self._ended.get(ticket)
        if code is None:
            return TicketState.UNKNOWN
        return TicketState.ERROR | code << 8 if code else TicketState.DONE

    # -- snapshots ---------------------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """Return the state of a snapshot; the tickets in flight follow from the commands."""
        ended = [list(entry) for entry in self._ended]
        return {"taken": self.taken, "completed": self.completed, "ended": ended}

    def load_state(self, state: Any) -> None:
        fields = Fields(state, "taken", "completed", "ended")
        self.taken, self.completed = (fields.integer(name, 0, LATEST) for name in ("taken", "completed"))
        self._ended = History(self._history)
        for ticket, code in fields.table("ended", (1, MODULUS - 1), (0, max(TicketError))).items():
            self._ended.add(ticket, code)
        self.in_flight = {}

    def load_in_flight(self, tickets: "Iterable[tuple[int, Command | None]]") -> None:
        """Restore the tickets in flight, and their commands."""
        for ticket, command in tickets:
            if ticket in self.in_flight:
                raise StateError(f"ticket {ticket} is in flight twice")
            self.in_flight[ticket] = command


LOG_SIZE = 1024


class ErrorEntry(NamedTuple):
    """Line of the error log."""

    cycle: int
    ticket: int
    code: TicketError
    reason: str
    number: int
    """Acceptance number of the command, from 1."""
    opcode: int
    """UNKNOWN where no descriptor was read."""


UNKNOWN = 256
"""Above every opcode."""


class Completion:
    """Status word, then ticket and COMPLETED, then IRQ_STATUS; outputs are in memory before."""

    def __init__(self, memory: Memory, tickets: Tickets, interrupts: Interrupts, events: EventStream) -> None:
        self._memory = memory
        self._tickets = tickets
        self._interrupts = interrupts
        self._events = events
        self.log: deque[ErrorEntry] = deque(maxlen=LOG_SIZE)
        """The latest errors, oldest first."""
        self.injector: Injector | None = None
        self.on_end: Callable[[int], None] | None = None
        """Called with each ticket that ends."""
        self.error_ticket = 0
        self.error_code = 0

    def write_status(self, cycle: int, command: "Command") -> None:
        """Write the status word of a command that retires."""
        assert command.status_address is not None
        failure = command.failure
        status = StatusWord.DONE if failure is None else StatusWord.ERROR | failure.code << 8
        self._write_status(cycle, command.status_address, status, command.ticket)

    def retire(self, cycle: int, command: "Command") -> None:
        """Complete the ticket of a command, after its status word and its event."""
        failure = command.failure
        if failure is None:
            self._finish(command.ticket)
            if command.descriptor.irq:
                self._interrupts.set(cycle, Irq.DONE)
        else:
            self._fail(cycle, command.ticket, failure.code, failure.reason, command.number, command.opcode)

    def error(
        self, cycle: int, ticket: int, code: TicketError, reason: str, status_address: int | None, number: int,
        opcode: int = UNKNOWN, unit: int = FRONTEND,
    ) -> None:  # fmt: skip
        """End a ticket that is of no command in flight, with an error."""
        if status_address is not None:
            self._write_status(cycle, status_address, StatusWord.ERROR | code << 8, ticket)
        self._events.emit(cycle, unit, What.ERROR, ticket, aux=code)
        self._fail(cycle, ticket, code, reason, number, opcode)

    def _fail(self, cycle: int, ticket: int, code: TicketError, reason: str, number: int, opcode: int) -> None:
        self._finish(ticket, code)
        self.error_ticket, self.error_code = ticket, code
        self.log.append(ErrorEntry(cycle, ticket, code, reason, number, opcode))
        self._interrupts.set(cycle, Irq.ERROR)

    def state(self) -> dict[str, Any]:
        """Return the state of a snapshot."""
        log = [
            [entry.cycle, entry.ticket, int(entry.code), entry.number, int(entry.opcode), entry.reason]
            for entry in self.log
        ]
        return {"log": log, "error_ticket": self.error_ticket, "error_code": int(self.error_code)}

    def load_state(self, state: Any) -> None:
        fields = Fields(state, "log", "error_ticket", "error_code")
        entries = []
        for index, item in enumerate(fields.listed("log")):
            with inside("log", index):
                *numbers, reason = listed(item, 6)
                cycle, ticket, code, number, opcode = row(
                    numbers, (0, LATEST), (0, MODULUS - 1), (1, max(TicketError)), (1, LATEST), (0, UNKNOWN)
                )
                if code not in list(TicketError) or type(reason) is not str:
                    raise StateError("is no error of a ticket")
                entries.append(ErrorEntry(cycle, ticket, TicketError(code), reason, number, opcode))
        self.log.clear()
        self.log.extend(entries)
        self.error_ticket = fields.integer("error_ticket", 0, MODULUS - 1)
        self.error_code = fields.integer("error_code", 0, max(TicketError))

    def _finish(self, ticket: int, code: int = 0) -> None:
        self._tickets.finish(ticket, code)
        if self.on_end is not None:
            self.on_end(ticket)

    def _write_status(self, cycle: int, address: int, status: int, ticket: int) -> None:
        if self.injector is not None and not self.injector.writes_status(cycle, ticket):
            return
        self._memory.write_bytes(address, status.to_bytes(4, "little") + ticket.to_bytes(4, "little"))
