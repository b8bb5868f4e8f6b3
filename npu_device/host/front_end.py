"""The front end: fetch and validation of descriptors, from the ring and from ENQCMD_T, in one pipeline.

One descriptor is in the fetch stage and one in the validate stage at a time; both ways in share them in
order. An entry of the device queue is reserved when a fetch begins, so the ring waits for room in memory.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from npu_device.abi import DESCRIPTOR_SIZE
from npu_device.abi.errors import TicketError
from npu_device.abi.memory_map import DRAM_BASE
from npu_device.config import FrontEndConfig
from npu_device.event_loop.timeline import Agenda, Phase, Timeline
from npu_device.host.ring import INDEX_MASK, Ring
from npu_device.host.taken import Taken
from npu_device.issue.command_queue import CommandQueue
from npu_device.issue.interrupts import Interrupts, Irq
from npu_device.issue.retirement import Completion, Tickets
from npu_device.memory.memory import Memory
from npu_device.trace.events import FRONTEND, TIGHT, What
from npu_device.trace.stream import EventStream
from pyv_native.state import LATEST, WORD32, Fields, StateError, data, inside, integer, listed

if TYPE_CHECKING:
    from npu_device.host.acceptance import Acceptance
    from npu_device.issue.injection import Injector


class FrontEnd:
    """Feeds `Acceptance`. `enabled` mirrors CTRL.enable: while False no fetch begins."""

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
        completion: Completion,
        behind: "Callable[[], Acceptance]",
    ) -> None:
        """`behind` is asked for what takes the descriptors when there is one."""
        self.enabled = False
        self.injector: Injector | None = None
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
        self._completion = completion
        self._behind = behind
        self._fetch_free = 0
        self._validate_free = 0
        self._promised: dict[int, Taken] = {}
        """ENQCMD_T whose ticket the core has, by ticket, until acceptance."""
        self._fetches: dict[int, bytes | None] = {}
        """Ring index -> the 64 bytes between fetch and validation."""
        self._fetch = Agenda(timeline, "fetch", Phase.FETCH, self._begin_fetches)
        self._announcing = timeline.action("announce", Phase.FETCH, self._announce, Taken.of)
        self._fetching = timeline.action("fetched", Phase.ACCEPT, self._fetched, Taken.of)
        self._accepting = timeline.action("accept", Phase.ACCEPT, self._accept, Taken.of)
        queue.on_room = self.request_fetch

    def request_fetch(self, cycle: int) -> None:
        """Plan a fetch from the ring, after a change that may permit it."""
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
            self._timeline.at(began, self._announcing, taken)
        _, accepted = self._occupy(began, self._config.fetch_tight)
        self._timeline.at(accepted, self._accepting, taken)
        return ticket, accepted

    def reset(self, cycle: int, reason: str) -> None:
        """Empty the pipeline; the timeline has been cleared. Call it before `Execution.reset`."""
        self.enabled = False
        self._fetch_free = self._validate_free = 0
        self._fetch.reset()
        self._fetches.clear()
        for taken in self._promised.values():
            self.accepted += 1
            self._events.emit(cycle, FRONTEND, What.ACCEPT, taken.ticket, 0, min(taken.began, cycle), TIGHT)
            self._completion.error(cycle, taken.ticket, TicketError.RESET, reason, None, taken.number)
        self._promised.clear()

    # -- snapshots ---------------------------------------------------------------------------------------------

    def promised(self) -> list[int]:
        """Return the tickets that the core holds of descriptors not yet accepted."""
        return list(self._promised)

    def state(self) -> dict[str, Any]:
        """Return the state of a snapshot, without the pending events."""
        return {
            "enabled": self.enabled,
            "accepted": self.accepted,
            "fetch_free": self._fetch_free,
            "validate_free": self._validate_free,
            "fetches": [[slot, content] for slot, content in self._fetches.items()],
        }

    def load_state(self, state: Any) -> None:
        """Take on a state; timeline, ring, queue and the commands in flight have taken on theirs."""
        fields = Fields(state, "enabled", "accepted", "fetch_free", "validate_free", "fetches")
        self.enabled = fields.flag("enabled")
        self.accepted, self._fetch_free, self._validate_free = (
            fields.integer(name, 0, LATEST) for name in ("accepted", "fetch_free", "validate_free")
        )
        self._fetches = {}
        for index, item in enumerate(fields.listed("fetches")):
            with inside("fetches", index):
                slot, content = listed(item, 2)
                self._fetches[integer(slot, 0, WORD32)] = None if content is None else data(content, DESCRIPTOR_SIZE)
        accepts = [taken for _, taken in self._timeline.pending(self._accepting)]
        self._promised = {taken.ticket: taken for taken in accepts if taken.ticket}
        self._check_pipeline(accepts)
        for _ in accepts:
            self._queue.reserve()

    def _check_pipeline(self, accepts: list[Taken]) -> None:
        """Check that each descriptor on its way has been fetched, or will be before it is accepted. StateError."""
        flight = self._behind().execution.in_flight() if accepts else []
        last = flight[-1].number if flight else 0
        fetched = dict(self._fetches)
        to_come = {taken: cycle for cycle, taken in self._timeline.pending(self._fetching)}
        begun = {taken.slot: None for taken in to_come}
        for cycle, taken in self._timeline.pending(self._accepting):
            if taken.number <= last or taken.number > self._tickets.taken:
                raise StateError("descriptors on their way are not in the order of acceptance", "accept")
            last = taken.number
            content = taken.data
            if not taken.ticket:
                if taken not in to_come and taken.slot not in fetched:
                    raise StateError(f"descriptor {taken.slot} of the ring is accepted and not fetched", "fetches")
                if to_come.pop(taken, cycle) > cycle:
                    raise StateError(f"descriptor {taken.slot} of the ring is accepted before it is fetched", "fetches")
                content = fetched.pop(taken.slot, None)
            if content is not None and not self._memory.holds(taken.address, DESCRIPTOR_SIZE):
                raise StateError(f"{taken.address:#x} is not in memory", "fetches")
        if fetched or to_come:
            raise StateError("descriptors are fetched and not accepted", "fetches")
        if len(begun) != (self._ring.next - self._ring.head) & INDEX_MASK or len(self._promised) != sum(
            bool(taken.ticket) for taken in accepts
        ):
            raise StateError("a descriptor is fetched twice, or is not of the ring", "fetches")

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
            wait = self._behind().priority_access(cycle, address, DESCRIPTOR_SIZE) if address >= DRAM_BASE else 0
            fetched, accepted = self._occupy(cycle, wait + self._config.fetch_loose)
            at(fetched, self._fetching, taken)
            at(accepted, self._accepting, taken)

    def _announce(self, cycle: int, taken: Taken) -> None:
        self._events.emit(cycle, FRONTEND, What.FETCH, 0, 0, taken.address, taken.slot)

    def _fetched(self, cycle: int, taken: Taken) -> None:
        self._fetches[taken.slot] = self._memory.read(taken.address, DESCRIPTOR_SIZE)
        if self._ring.fetched():
            self._interrupts.set(cycle, Irq.SPACE)

    def _accept(self, cycle: int, taken: Taken) -> None:
        data = taken.data
        if taken.ticket:
            del self._promised[taken.ticket]
        else:
            data = self._fetches.pop(taken.slot)
        if data is not None and self.injector is not None:
            data = self.injector.descriptor(cycle, data)
        self.accepted += 1
        self._behind().accept(cycle, taken, data)
