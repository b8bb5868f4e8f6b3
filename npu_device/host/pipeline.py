"""Submission pipeline of a device: front end, decoder, execution. It is created with the first submission.

A fetched descriptor becomes a command in flight, or an error ticket.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from npu_device.abi import DESCRIPTOR_SIZE
from npu_device.abi.descriptor import STATUS_OFFSET, TICKET_OFFSET
from npu_device.abi.errors import TicketError
from npu_device.abi.opcodes import TicketState
from npu_device.config import NpuConfig
from npu_device.decode.command import Command
from npu_device.decode.decoder import Decoder, request_of
from npu_device.decode.tile_state import DESCRIPTOR_WORDS, add_regions
from npu_device.event_loop import dispatch
from npu_device.front_end import acceptance, fetch, interrupts, registers, submissions
from npu_device.host.registers import RegisterState
from npu_device.issue.execution import Execution
from npu_device.issue.retirement import UNKNOWN, Completion, ended_tickets, load_ended, load_in_flight
from npu_device.memory.memory import Memory
from npu_device.operations.checks import DescriptorError
from npu_device.reservation.buffer import LINKAGE
from npu_device.reservation.commands import observe_submission
from npu_device.reservation.hazards import LISTED
from npu_device.reservation.state import (
    MAX_OPERANDS,
    STREAMS,
    WAITING,
    Access,
    Dependency,
    Entry,
    Span,
    Ticket,
)
from npu_device.reservation.tickets import MODULUS, NO_RECORDS
from npu_device.trace.events import FRONTEND, TIGHT, What
from npu_device.trace.stream import EventStream
from npu_device.units.state import ACCEPT, ANNOUNCE, EVENT_KINDS, FOREVER, GRANT
from pyv_native.arena import STATUS
from pyv_native.emitter import Definition
from pyv_native.intrinsics import address_of
from pyv_native.records import WORD, layout
from pyv_native.state import LATEST, WORD32, WORD64, Fields, StateError, data, inside, integers, row, sequence, unpack

if TYPE_CHECKING:
    from npu_device.external.link import External
    from npu_device.issue.injection import Injector
    from npu_device.issue.plans import Plans


class DeviceLink(NamedTuple):
    """Entry points of the device for native code of the core, as `pyv_ext.protocols.Link`."""

    buffer: int
    """Host address of the records."""
    next_deadline: int
    """Offset in the buffer of the cycle of the next event, 64 bits."""
    level: int
    """Offset in the buffer of the level of the interrupt line, a byte."""
    advance: int
    """Address of `dispatch.advance_device`."""
    read: int
    write: int
    submit: int
    """Addresses of `registers.read_register`, `registers.write_register` and `submissions.submit_descriptor`."""


_WORDS = layout(Entry).fields["words"].offset
_RECORDS = {
    Ticket: 1, Access: MAX_OPERANDS, Dependency: 2 * LISTED * MAX_OPERANDS, Span: 1,
}  # fmt: skip
"""Maximum number of records that the acceptance of a command allocates."""
_CYCLE, _FLAG, _WORD = (0, LATEST), (0, 1), (0, WORD32)
_LIMITS = {
    "ring_refused": _FLAG, "queue_refused": _FLAG, "stalled": (-1, LATEST), "fetch_free": _CYCLE,
    "validate_free": _CYCLE, "irq_line": _FLAG,
}  # fmt: skip
"""Bounds of the front end's integers that a snapshot has in addition to `RegisterState`."""
_SUBMISSION = {
    "number": (1, LATEST), "address": (0, WORD64), "ring_index": _WORD, "fetch_start": _CYCLE,
    "fetch_end": (-1, LATEST), "acceptance_cycle": _CYCLE, "ticket": (0, MODULUS - 1), "prio": (0, 15),
    "stream": (0, STREAMS - 1), "fetch_emitted": _FLAG, "readable": _FLAG,
}  # fmt: skip
"""Bounds of the fields of a pending submission."""
_UNCHANGED = (
    "base_low",
    "base_high",
    "ring_size",
    "policy",
    "accepted",
    "depth_max",
    "irq_line",
    "error_ticket",
    "error_code",
    "selected",
)
"""Fields of the front end that a soft reset keeps."""


class Pipeline:
    """Records of a device, and the Python objects that operate on them."""

    def __init__(
        self,
        config: NpuConfig,
        memory: Memory,
        events: EventStream,
        registers: RegisterState,
        enabled: bool,
        injector: "Injector | None",
        *,
        values: bool,
        analytic: bool,
        external: "External | None",
        plans: "Plans | None",
        interpreted: bool,
        report_link: Callable[[DeviceLink | None], None],
    ) -> None:
        """`registers`, `enabled`: current state. `report_link` receives the entry points for native code."""
        self._memory, self._events, self._external = memory, events, external
        self.completion = Completion(memory, events, self.call)
        self._injector: Injector | None = None
        self.execution = Execution(
            config, memory, events, self.completion, values, analytic, external, plans, interpreted, self._prepare
        )
        self._machine = self.execution.machine
        self.storage = self._machine.storage
        self.decoder = Decoder(config, memory, self.execution.station.sums)
        self.loop.enabled = enabled
        for name, value in vars(registers).items():
            setattr(self.front, name, value)
        arena = self._machine.storage.arena
        arena.link_callback(LINKAGE.slots[observe_submission], observe_submission, self._observe_submission)
        self._report_link = report_link
        self.storage.on_bind = self._update_link
        self.inject(injector)

    def _prepare(self, loop: Any) -> None:
        """Initialise the front end: fault injection and the memory regions."""
        loop.front.observed = self._injector is not None
        add_regions(loop.tile, self._memory)

    @property
    def loop(self) -> Any:
        """View of the event loop."""
        return self.storage.loop

    @property
    def front(self) -> Any:
        """View of the front end."""
        return self.storage.loop.front

    def call(self, function: Any, *arguments: int) -> int:
        """Call a function of the device."""
        return self._machine.call(function, *arguments)

    def inject(self, injector: "Injector | None") -> None:
        """Install a fault injector; None removes it."""
        self._injector = self.execution.injector = self.completion.injector = injector
        self.front.observed = injector is not None
        self._update_link()

    def _update_link(self) -> None:
        """Report the entry points, or None if an injector drives the interrupt line or CPython runs the device."""
        storage, module = self.storage, self._machine.module
        if module is None or (self._injector is not None and self._injector.drives_line):
            self._report_link(None)
            return
        functions = (
            dispatch.advance_device, registers.read_register, registers.write_register, submissions.submit_descriptor,
        )  # fmt: skip
        self._report_link(
            DeviceLink(storage.arena.address, storage.deadline * WORD, storage.level, *map(module.address, functions))
        )

    def _observe_submission(self, _: int, arrival: int, address: int) -> int:
        return self._injector is None or int(self._injector.submission(arrival, address))

    # -- events ------------------------------------------------------------------------------------------------

    def advance(self, now: int) -> None:
        """Process all events due at the start of cycle `now` or earlier."""
        arena, storage = self.storage.arena, self.storage
        if arena.words[STATUS]:
            arena.raise_error()
        if arena.words[storage.deadline] > now and not arena.words[storage.answer]:
            return
        self._run(dispatch.run_events, now)

    def submit_list(self, address: int, count: int) -> None:
        """Submit `count` descriptors at a host address by `dispatch.submit_list`."""
        self.front.list_address, self.front.list_count = address, count
        self._run(dispatch.submit_list)
        assert not self.front.list_count, "a full queue moves on"

    def _run(self, function: Definition, *arguments: int) -> None:
        """Call a function of `dispatch` until all its events are processed."""
        while answer := self.execution.run(function, *arguments):
            if answer == dispatch.STARVED:
                self._machine.issue.reserve(Ticket, 1)
                self._machine.issue.reserve(Entry, 1)
            else:
                self._accept(self.storage.arena.words[self.storage.cycle])

    def submit(self, address: int, descriptor: bytes, operand: int, arrival: int) -> tuple[int, int]:
        """Execute ENQCMD_T: return the reply of `submissions.submit`, and its latency in cycles."""
        machine, storage = self._machine, self.storage
        content = bytearray(descriptor)
        data = address_of(content)
        while (answer := machine.call(submissions.submit, address, data, operand, arrival)) == NO_RECORDS:
            machine.issue.reserve(Ticket, 1)
            machine.issue.reserve(Entry, 1)
        return answer, storage.arena.words[storage.response]

    def _accept(self, cycle: int) -> None:
        """Accept the oldest pending submission."""
        machine = self._machine
        for record, count in _RECORDS.items():
            machine.issue.reserve(record, count)
        submission = self.front.oldest
        entry = submission.offset
        first = entry + _WORDS
        content = machine.storage.arena.bytes[first : first + DESCRIPTOR_SIZE]
        if submission.readable and self._injector is not None:
            content[:] = self._injector.descriptor(cycle, bytes(content))
        descriptor, address, number = bytes(content), submission.address, submission.number
        readable, prio, stream = submission.readable, submission.prio, submission.stream
        if self.execution.accept_tile(cycle, entry, descriptor, self.decoder):
            return
        d = request_of(descriptor)
        ticket = machine.call(acceptance.admit, cycle)
        is_free, ticket = ticket > 0, abs(ticket)
        if not readable:
            reason = f"{address & WORD64:#x}: QUEUE_BASE must lead to DRAM"
            self._fail(entry, cycle, ticket, DescriptorError(TicketError.FETCH, reason), None, number, UNKNOWN)
            return
        status_address = address + STATUS_OFFSET if d.write_status else None
        try:
            if not is_free:
                ticket_field = int.from_bytes(descriptor[TICKET_OFFSET:], "little")
                rule = f"must be 0 or 1..{MODULUS - 1:#x}, and of no command in flight"
                raise DescriptorError(TicketError.TICKET, f"{ticket_field:#x}: {rule}")
            command = self.decoder.decode(d, prio, stream)
        except DescriptorError as invalid:
            self._fail(entry, cycle, ticket, invalid, status_address, number, d.opcode)
            return
        command.ticket, command.number, command.status_address = ticket, number, status_address
        command.entry = entry
        self.execution.accept(cycle, command)

    def _fail(
        self, entry: int, cycle: int, ticket: int, invalid: DescriptorError, status_address: int | None, number: int,
        opcode: int,
    ) -> None:  # fmt: skip
        self.completion.error(cycle, ticket, invalid.code, invalid.reason, status_address, number, opcode)
        self.call(fetch.cancel_entry, entry, cycle)

    # -- registers ---------------------------------------------------------------------------------------------

    def enable(self, enable: bool, cycle: int) -> None:
        """Enable or disable the start of fetches and commands from a cycle on."""
        self.loop.enabled = enable
        if enable:
            self.call(fetch.request_fetch, cycle)
            self.execution.request_start(cycle)

    def read_register(self, offset: int, now: int) -> int:
        """Call `front_end.registers.read_register`."""
        return self.call(registers.read_register, offset, now, 0)

    def register_value(self, offset: int) -> int:
        """Call `front_end.registers.register_value`."""
        return self.call(registers.register_value, offset)

    def mask_irq(self, cycle: int, mask: int) -> None:
        """Set IRQ_MASK."""
        self.call(interrupts.mask_irq, cycle, mask)

    def acknowledge_irq(self, cycle: int, bits: int) -> None:
        """Clear bits of IRQ_STATUS."""
        self.call(interrupts.acknowledge_irq, cycle, bits)

    def doorbell(self, tail: int, cycle: int) -> None:
        """Move the tail of the ring."""
        self.call(submissions.doorbell, tail, cycle)

    def query_ticket(self, ticket: int, cycle: int) -> int:
        """Call `submissions.query_ticket`."""
        return self.call(submissions.query_ticket, ticket, cycle)

    def ticket_since(self, ticket: int) -> int:
        """Return the value that distinguishes a ticket in flight from earlier tickets with its number."""
        return self.call(submissions.ticket_since, ticket)

    @property
    def in_flight(self) -> list[tuple[Command, TicketState]]:
        """Accepted commands that have not retired, oldest first."""
        entry = self.execution.station.entry
        return [
            (command, TicketState.QUEUED if entry(command).stage == WAITING else TicketState.RUNNING)
            for command in self.execution.in_flight()
        ]

    def _submissions(self) -> Iterator[Any]:
        """Iterate over views of the pending submissions, oldest first."""
        submission = self.front.oldest
        while submission is not None:
            yield submission
            submission = submission.next

    def reset(self, cycle: int) -> None:
        """Perform a soft reset: discard work in flight; keep configuration and counts."""
        reason = "soft reset"
        self.loop.enabled = False
        for submission in self._submissions():
            if submission.ticket:
                self.front.accepted += 1
                start, number = min(submission.fetch_start, cycle), submission.number
                self._events.emit(cycle, FRONTEND, What.ACCEPT, submission.ticket, 0, start, TIGHT)
                self.completion.error(cycle, submission.ticket, TicketError.RESET, reason, None, number)
        self.execution.fail(cycle, reason)
        unchanged, notified = {name: getattr(self.front, name) for name in _UNCHANGED}, list(self.front.notified)
        tickets, completed = ended_tickets(self._machine.issue), self.loop.issue.tickets_ended
        self.execution.reset()
        load_ended(self._machine.issue, tickets)
        self.loop.issue.tickets_ended, self.loop.issue.submission_count = completed, unchanged["accepted"]
        for name, value in unchanged.items():
            setattr(self.front, name, value)
        self.front.notified.fill(notified)
        self.call(interrupts.clear_irq, cycle)

    # -- snapshots ---------------------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """Return the state of a snapshot, without `RegisterState`."""
        execution, front, issue = self.execution, self.front, self.loop.issue
        deadlines = list(front.deadlines)
        deadlines[ACCEPT] = deadlines[ANNOUNCE] = FOREVER
        return {
            "numbers": {name: int(getattr(front, name)) for name in _LIMITS},
            "shown": list(front.notified),
            "deadlines": deadlines,
            "submissions": [
                [
                    [getattr(submission, name) & (WORD64 if name == "address" else -1) for name in _SUBMISSION],
                    bytes(submission.words.reserved()),
                ]
                for submission in self._submissions()
            ],
            "taken": issue.submission_count,
            "completed": issue.tickets_ended,
            "ended": ended_tickets(self._machine.issue).tobytes(),
            "completion": self.completion.state(),
            "execution": execution.state(),
            "l2": None if execution.l2 is None else execution.l2.state(),
        }

    def load_state(self, state: Any, registers: RegisterState, enabled: bool) -> None:
        """Restore a state with these `registers` and `enabled`. Memory and event stream have been restored before.
        Raise StateError for a state that no device has."""
        fields = Fields(
            state, "numbers", "shown", "deadlines", "submissions", "taken", "completed", "ended", "completion",
            "execution", "l2",
        )  # fmt: skip
        execution, issue = self.execution, self._machine.issue
        with inside("execution"):
            execution.load_state(fields["execution"], self.decoder)
        if execution.l2 is not None:
            fields.load("l2", execution.l2)
        fields.load("completion", self.completion)
        issue = self._machine.issue
        with inside("ended"):
            tickets = unpack(fields["ended"], (1, MODULUS - 1), (0, max(TicketError)))
            if len(set(tickets[::2])) < len(tickets) // 2:
                raise StateError("a ticket comes twice")
            load_ended(issue, tickets)
            for command in execution.in_flight():
                load_in_flight(issue, command.ticket, command.entry)
        self.loop.issue.submission_count = fields.integer("taken", 0, LATEST)
        self.loop.issue.tickets_ended = fields.integer("completed", 0, LATEST)
        with inside("submissions"):
            self._load_submissions(fields.sequence("submissions"))
        with inside("numbers"):
            numbers = Fields(fields["numbers"], *_LIMITS)
        front = self.front
        for name, limits in _LIMITS.items():
            with inside("numbers"):
                setattr(front, name, numbers.integer(name, *limits))
        for name, value in vars(registers).items():
            if name != "depth":
                setattr(front, name, value)
        self.loop.enabled = enabled
        front.irq_level = front.irq_status & front.irq_mask != 0
        in_ring = [submission for submission in self._submissions() if submission.ring_index != TIGHT]
        unread = [submission.ring_index for submission in in_ring if submission.fetch_end >= 0]
        if unread != [(front.head + index) & WORD32 for index in range((front.next_fetch - front.head) & WORD32)]:
            raise StateError("these are not the pending descriptors of the ring", "submissions")
        with inside("shown"):
            front.notified.fill(integers(fields["shown"], 0, LATEST, len(front.notified)))
        with inside("deadlines"):
            cycles = integers(fields["deadlines"], 0, FOREVER, EVENT_KINDS)
            if self._external is None and cycles[GRANT] != FOREVER:
                raise StateError("is of external engines, which this device does not have", int(GRANT))
        cycles[ACCEPT] = cycles[ANNOUNCE] = FOREVER
        front.deadlines.fill(cycles)
        front.next_deadline = min(cycles)
        self.call(fetch.restore_pipeline)

    def _load_submissions(self, items: Sequence[Any]) -> None:
        """Restore the pending submissions, which follow the commands in flight. Raise StateError."""
        flight, issue = self.execution.in_flight(), self._machine.issue
        last, ready, count = flight[-1].number if flight else 0, 0, self.loop.issue.submission_count
        for index, item in enumerate(items):
            with inside(index):
                numbers, content = sequence(item, 2)
                values = dict(zip(_SUBMISSION, row(numbers, *_SUBMISSION.values()), strict=True))
                tight = values["ring_index"] == TIGHT
                if not last < values["number"] <= count:
                    raise StateError("is not in the order of acceptance")
                if bool(values["ticket"]) != tight or (tight and not values["readable"]):
                    raise StateError("is neither of the ring nor of ENQCMD_T")
                if not max(values["fetch_start"], values["fetch_end"], ready) <= values["acceptance_cycle"]:
                    raise StateError("is accepted before it is fetched")
                if values["readable"] and not self._memory.holds(values["address"], DESCRIPTOR_SIZE):
                    raise StateError(f"{values['address']:#x} is not in memory")
                last, ready = values["number"], values["acceptance_cycle"]
                issue.reserve(Entry, 1)
                self.call(fetch.append_submission, 0, 0, 0)
                submission = self.front.youngest
                for name, value in values.items():
                    setattr(submission, name, value)
                submission.words.reserved()[:] = data(content, DESCRIPTOR_WORDS * WORD)
                if tight:
                    load_in_flight(issue, values["ticket"])
        self.loop.issue.submission_count = count
