"""The front end: fetch and validation of descriptors, from the ring and from ENQCMD_T, in one pipeline.

One descriptor is in the fetch stage and one in the validate stage at a time; both ways in share them in
order. An entry of the device queue is reserved when a fetch begins, so the ring waits for room in memory.
"""

from typing import NamedTuple

from npu_device.abi.descriptor import DESCRIPTOR_SIZE, STATUS_OFFSET, TICKET_OFFSET
from npu_device.abi.errors import TicketError
from npu_device.abi.memory_map import DRAM_BASE
from npu_device.config import FrontEndConfig
from npu_device.decode.decoder import Decoder
from npu_device.event_loop.timeline import Agenda, Phase, Timeline
from npu_device.host.ring import Ring
from npu_device.issue.execution import Execution
from npu_device.issue.interrupts import Interrupts, Irq
from npu_device.issue.retirement import Completion, Tickets
from npu_device.issue.scheduler import CommandQueue
from npu_device.memory.memory import Memory
from npu_device.operations.checks import DescriptorError
from npu_device.trace.events import FRONTEND, TIGHT, EventStream, What


class Taken(NamedTuple):
    """A descriptor on its way through the pipeline."""

    address: int
    slot: int
    """Index in the ring, or TIGHT."""
    began: int
    """Cycle at which its fetch began."""
    number: int
    """Acceptance number."""
    ticket: int = 0
    """ENQCMD_T: given on arrival. 0: the descriptor's own word decides."""
    data: bytes | None = None
    """ENQCMD_T: read by the core."""
    prio: int = 0
    stream: int = 0


class FrontEnd:
    """Feeds `Execution`. `enabled` mirrors CTRL.enable: while False no fetch begins."""

    def __init__(
        self,
        config: FrontEndConfig,
        memory: Memory,
        timeline: Timeline,
        events: EventStream,
        ring: Ring,
        queue: CommandQueue,
        tickets: Tickets,
        interrupts: Interrupts,
        decoder: Decoder,
        execution: Execution,
        completion: Completion,
    ) -> None:
        self.enabled = False
        self.accepted = 0
        """ACCEPT events so far."""
        self._config = config
        self._memory = memory
        self._timeline = timeline
        self._events = events
        self._ring = ring
        self._queue = queue
        self._tickets = tickets
        self._interrupts = interrupts
        self._decoder = decoder
        self._execution = execution
        self._priority_access = execution.engines.priority_access
        self._completion = completion
        self._fetch_free = 0
        self._validate_free = 0
        self._promised: dict[int, Taken] = {}
        """ENQCMD_T whose ticket the core has, by ticket, until acceptance."""
        self._fetches: dict[int, bytes | None] = {}
        """Ring index -> the 64 bytes between fetch and validation."""
        self._fetch = Agenda(timeline, Phase.FETCH, self._begin_fetches)
        queue.on_room = self.request_fetch

    def request_fetch(self, cycle: int) -> None:
        """Something that may let a fetch from the ring begin has changed."""
        if self._ring.waiting and self.enabled:
            self._fetch.request(cycle)

    def submit(self, arrival: int, address: int, data: bytes, prio: int, stream: int) -> tuple[int, int]:
        """ENQCMD_T with room in the queue: (ticket, cycle of acceptance)."""
        self._queue.reserve()
        began = max(arrival, self._fetch_free)
        number = self._tickets.take()
        ticket = self._tickets.assign(number)
        taken = Taken(address, TIGHT, began, number, ticket, data, prio, stream)
        self._promised[ticket] = taken
        if began == arrival:
            self._announce(began, taken)
        else:
            self._timeline.at(began, Phase.FETCH, self._announce, taken)
        _, accepted = self._occupy(began, self._config.fetch_tight)
        self._timeline.at(accepted, Phase.ACCEPT, self._accept, taken)
        return ticket, accepted

    def reset(self, cycle: int, reason: str) -> None:
        """The pipeline is empty; the timeline has been cleared. Call it before `Execution.reset`.

        What came from the ring was not accepted yet and is gone. The core has the tickets of ENQCMD_T: they are
        accepted and end with an error.
        """
        self.enabled = False
        self._fetch_free = self._validate_free = 0
        self._fetch.reset()
        self._fetches.clear()
        for taken in self._promised.values():
            self.accepted += 1
            self._events.emit(cycle, FRONTEND, What.ACCEPT, taken.ticket, 0, min(taken.began, cycle), TIGHT)
            self._completion.error(cycle, taken.ticket, TicketError.RESET, reason, None)
        self._promised.clear()

    # -- the pipeline ------------------------------------------------------------------------------------------

    def _occupy(self, began: int, fetch: int) -> tuple[int, int]:
        """Pass through both stages: (cycle at which the fetch is over, cycle of acceptance)."""
        fetched = began + fetch
        self._fetch_free = max(fetched, self._validate_free)
        self._validate_free = self._fetch_free + self._config.validate
        return fetched, self._validate_free

    def _begin_fetches(self, cycle: int) -> None:
        ring, queue, at = self._ring, self._queue, self._timeline.at
        while self.enabled and ring.next != ring.tail and queue.room:
            if self._fetch_free > cycle:
                self._fetch.request(self._fetch_free)
                return
            queue.reserve()
            index = ring.take()
            address = ring.slot(index)
            taken = Taken(address, index, cycle, self._tickets.take())
            self._announce(cycle, taken)
            wait = self._priority_access(cycle, address, DESCRIPTOR_SIZE) if address >= DRAM_BASE else 0
            fetched, accepted = self._occupy(cycle, wait + self._config.fetch_loose)
            at(fetched, Phase.ACCEPT, self._fetched, taken)
            at(accepted, Phase.ACCEPT, self._accept, taken)

    def _announce(self, cycle: int, taken: Taken) -> None:
        self._events.emit(cycle, FRONTEND, What.FETCH, 0, 0, taken.address, taken.slot)

    def _fetched(self, cycle: int, taken: Taken) -> None:
        self._fetches[taken.slot] = self._memory.read(taken.address, DESCRIPTOR_SIZE)
        if self._ring.fetched():
            self._interrupts.set(cycle, Irq.SPACE)

    # -- acceptance --------------------------------------------------------------------------------------------

    def _accept(self, cycle: int, taken: Taken) -> None:
        data = taken.data
        if taken.ticket:
            del self._promised[taken.ticket]
        else:
            data = self._fetches.pop(taken.slot)
        if data is None:
            ticket = self._tickets.assign(taken.number)
            self._announce_accept(cycle, ticket, taken)
            self._fail(cycle, ticket, DescriptorError(TicketError.FETCH, f"{taken.address:#x}"), None)
            return
        request = self._decoder.requests.of(data)
        status_address = taken.address + STATUS_OFFSET if request.descriptor.write_status else None
        asked = int.from_bytes(data[TICKET_OFFSET:], "little")
        ticket, claimed = self._ticket(taken, asked)
        self._announce_accept(cycle, ticket, taken)
        try:
            if not claimed:
                raise DescriptorError(TicketError.TICKET, f"{asked:#x}")
            command = self._decoder.command(request, taken.prio, taken.stream)
        except DescriptorError as invalid:
            self._fail(cycle, ticket, invalid, status_address)
            return
        command.ticket, command.number, command.status_address = ticket, taken.number, status_address
        self._execution.accept(cycle, command)

    def _ticket(self, taken: Taken, asked: int) -> tuple[int, bool]:
        """(ticket, whether it is the one that the descriptor asks for)."""
        if taken.ticket:
            return taken.ticket, True
        if not asked:
            return self._tickets.assign(taken.number), True
        if self._tickets.claim(asked):
            return asked, True
        return self._tickets.assign(taken.number), False

    def _announce_accept(self, cycle: int, ticket: int, taken: Taken) -> None:
        self.accepted += 1
        self._events.emit(cycle, FRONTEND, What.ACCEPT, ticket, 0, taken.began, taken.slot)

    def _fail(self, cycle: int, ticket: int, invalid: DescriptorError, status_address: int | None) -> None:
        self._completion.error(cycle, ticket, invalid.code, invalid.reason, status_address)
        self._queue.give_back(cycle)
