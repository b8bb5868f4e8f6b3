"""Acceptance: a descriptor that was fetched becomes a command in flight, or an error ticket.

With decoder and execution behind it, this is the part of the device that a program needs which submits something.
"""

from typing import Any

from npu_device.abi.descriptor import STATUS_OFFSET, TICKET_OFFSET
from npu_device.abi.errors import TicketError
from npu_device.decode.decoder import Decoder
from npu_device.host.taken import Taken
from npu_device.issue.command_queue import CommandQueue
from npu_device.issue.execution import Execution
from npu_device.issue.retirement import MODULUS, UNKNOWN, Completion, Tickets
from npu_device.operations.checks import DescriptorError
from npu_device.trace.events import FRONTEND, What
from npu_device.trace.stream import EventStream
from pyv_native.state import Fields, inside


class Acceptance:
    """Behind the front end, which hands over one descriptor at a time."""

    def __init__(
        self,
        events: EventStream,
        queue: CommandQueue,
        tickets: Tickets,
        completion: Completion,
        decoder: Decoder,
        execution: Execution,
    ) -> None:
        self.decoder = decoder
        self.execution = execution
        self.priority_access = execution.engines.priority_access
        self._events = events
        self._queue = queue
        self._tickets = tickets
        self._completion = completion

    def accept(self, cycle: int, taken: Taken, data: bytes | None) -> None:
        """Take the 64 bytes of a descriptor; None where they could not be read."""
        if data is None:
            ticket = self._tickets.assign(taken.number)
            self._announce(cycle, ticket, taken)
            invalid = DescriptorError(TicketError.FETCH, f"{taken.address:#x}: QUEUE_BASE must lead to DRAM")
            self._fail(cycle, ticket, invalid, None, taken.number, UNKNOWN)
            return
        request = self.decoder.requests.of(data)
        status_address = taken.address + STATUS_OFFSET if request.descriptor.write_status else None
        asked = int.from_bytes(data[TICKET_OFFSET:], "little")
        ticket, claimed = self._ticket(taken, asked)
        self._announce(cycle, ticket, taken)
        try:
            if not claimed:
                rule = f"must be 0 or 1..{MODULUS - 1:#x}, and of no command in flight"
                raise DescriptorError(TicketError.TICKET, f"{asked:#x}: {rule}")
            command = self.decoder.command(request, taken.prio, taken.stream)
        except DescriptorError as invalid:
            self._fail(cycle, ticket, invalid, status_address, taken.number, request.descriptor.opcode)
            return
        command.ticket, command.number, command.status_address = ticket, taken.number, status_address
        self.execution.accept(cycle, command)

    def _ticket(self, taken: Taken, asked: int) -> tuple[int, bool]:
        """Return (ticket, whether it is the one that the descriptor asks for)."""
        if taken.ticket:
            return taken.ticket, True
        if not asked:
            return self._tickets.assign(taken.number), True
        if self._tickets.claim(asked):
            return asked, True
        return self._tickets.assign(taken.number), False

    def _announce(self, cycle: int, ticket: int, taken: Taken) -> None:
        self._events.emit(cycle, FRONTEND, What.ACCEPT, ticket, 0, taken.began, taken.slot)

    def _fail(
        self, cycle: int, ticket: int, invalid: DescriptorError, status_address: int | None, number: int, opcode: int
    ) -> None:
        self._completion.error(cycle, ticket, invalid.code, invalid.reason, status_address, number, opcode)
        self._queue.cancel(cycle)

    # -- snapshots ---------------------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """Return the state of a snapshot."""
        sums = self.decoder.sums(self.execution.in_flight())
        return {"decoder": self.decoder.state(sums), "execution": self.execution.state(sums)}

    def load_state(self, state: Any) -> None:
        """Take on a state, after queue and tickets."""
        fields = Fields(state, "decoder", "execution")
        with inside("decoder"):
            sums = self.decoder.load_state(fields["decoder"])
        with inside("execution"):
            self.execution.load_state(fields["execution"], self.decoder, sums)
