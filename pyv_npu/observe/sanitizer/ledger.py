"""Submissions in flight from the point of view of firmware.

A submission is in flight from its doorbell or ENQCMD_T until firmware has observed its completion, directly by a read
or by implication (docs/interface.md, "Order and visibility"). Completion in the device alone does not end it.
"""

from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from npu_device.abi.descriptor import Descriptor
from npu_device.abi.opcodes import Opcode, Scope
from npu_device.memory.region import Region
from npu_device.reservation.state import STREAMS
from npu_device.trace.events import PACKED, TIGHT, Refusal, What
from npu_device.trace.stream import EventStream
from pyv_npu.observe.sanitizer.findings import AccessSide
from pyv_npu.observe.sanitizer.held import Holding, HoldingRole, Holdings, OpenSubmission

_ENDS = (What.DONE, What.ERROR)
_RELEVANT = (What.ACCEPT, *_ENDS, What.REJECT, What.STALE)
_HALF = 1 << 31
_MASK = (1 << 32) - 1


class Ledger:
    """Submissions and holdings of a run from the point of view of firmware."""

    def __init__(self, events: EventStream, clusters: int) -> None:
        self.holdings = Holdings()
        self.submissions = 0
        self._events = events
        self._event_count = events.count
        self._in_flight: dict[int, OpenSubmission] = {}
        self._ring: dict[int, OpenSubmission] = {}
        """Index in the ring -> submission that the device has not accepted yet."""
        self._slots: deque[OpenSubmission] = deque()
        """Submissions whose slots firmware must not write, in ring order."""
        self._tickets: dict[int, OpenSubmission] = {}
        self._streams: list[deque[OpenSubmission]] = [deque() for _ in range(STREAMS)]
        self._ended: dict[int, OpenSubmission] = {}
        """Number -> completed submission that firmware has not observed yet."""
        self._reset_after = 0
        """Last submission number that a pending reset ends; 0 if no reset is pending."""
        self._all_before = 0
        self._cluster_before = [0] * clusters
        self.on_accepted: Callable[[OpenSubmission], None] = _ignore
        """Callback for a ring submission that the device accepts."""
        self.on_refused: Callable[[int], None] = _ignore
        """Callback for a doorbell that the device ignores: tail."""
        self.on_stale: Callable[[int, int, int, int], None] = _ignore
        """Callback for a read of stale data: cycle, ticket or 0, address, size."""
        events.subscribe(self._batch)

    # -- submission --------------------------------------------------------------------------------------------

    def hand_over(
        self,
        side: AccessSide,
        address: int,
        index: int | None,
        descriptor: Descriptor,
        holdings: Iterable[tuple[Any, HoldingRole]],
    ) -> OpenSubmission:
        """Open the submission of a descriptor that owns these regions."""
        self.submissions += 1
        cluster = min(descriptor.cluster, len(self._cluster_before) - 1)
        submission = OpenSubmission(
            self.submissions, side, address, index, descriptor, descriptor.stream, cluster, self._all_before,
            self._cluster_before[cluster],
        )  # fmt: skip
        submission.holdings = [Holding(region, role, submission) for region, role in holdings]
        for holding in submission.holdings:
            self.holdings.add(holding)
        self._in_flight[submission.number] = submission
        if index is not None:
            self._ring[index] = submission
            self._slots.append(submission)
        if descriptor.opcode == Opcode.BARRIER:
            self.barrier(descriptor.function, [submission.cluster])
        return submission

    def accepted(self, submission: OpenSubmission, ticket: int, stream: int) -> None:
        """Record the ticket of an accepted submission; calls are in order of acceptance."""
        submission.ticket, submission.stream = ticket, stream
        submission.side = submission.side._replace(ticket=ticket)
        self._tickets[ticket] = submission
        queue = self._streams[stream]
        while queue and queue[0].observed:
            queue.popleft()
        queue.append(submission)

    def barrier(self, scope: int, clusters: Iterable[int]) -> None:
        """Record a barrier: later submissions wait for earlier ones in its scope."""
        if scope == Scope.GLOBAL:
            self._all_before = self.submissions
        elif scope == Scope.CLUSTER:
            for cluster in clusters:
                self._cluster_before[cluster] = self.submissions

    # -- events of the device ----------------------------------------------------------------------------------

    def catch_up(self) -> None:
        """Process all events so far."""
        if self._events.count > self._event_count:
            records = PACKED.iter_unpack(self._events.pending(self._event_count))
            self._event_count = self._events.count
            for cycle, _, event, ticket, _, size, aux in records:
                if event in _RELEVANT:
                    self._event(cycle, event, ticket, size, aux)

    def _batch(self, batch: Any) -> None:
        """Read a batch of events."""
        first = self._events.count - len(batch)
        events = batch[max(0, self._event_count - first) :]
        self._event_count = first + len(batch)
        rows = events[np.isin(events["what"], _RELEVANT)]
        columns = (rows[name].tolist() for name in ("cycle", "what", "ticket", "bytes", "aux"))
        for event in zip(*columns, strict=True):
            self._event(*event)

    def _event(self, cycle: int, kind: int, ticket: int, size: int, aux: int) -> None:
        if kind == What.ACCEPT:
            submission = None if aux == TIGHT else self._ring.pop(aux, None)
            if submission is not None:
                self.accepted(submission, ticket, submission.stream)
                self.on_accepted(submission)
        elif kind in _ENDS:
            submission = self._tickets.get(ticket)
            if submission is not None and not submission.ended:
                submission.ended = True
                self._ended[submission.number] = submission
        elif kind == What.STALE:
            self.on_stale(cycle, ticket, size, aux)
        elif aux == Refusal.RING_OVERFLOW:
            self.on_refused(size)

    # -- observations of firmware ------------------------------------------------------------------------------

    def by_ticket(self, ticket: int) -> OpenSubmission | None:
        """Return the latest submission with this ticket."""
        return self._tickets.get(ticket)

    def saw_all(self) -> None:
        """Observe all completions."""
        for submission in tuple(self._ended.values()):
            self._observe(submission)

    def saw(self, submission: OpenSubmission) -> None:
        """Observe a completion, and those of all submissions ordered before it."""
        stream = self._streams[submission.stream]
        while stream and stream[0].number <= submission.number:
            self._observe(stream.popleft())
        self._observe(submission)
        if submission.all_before or submission.cluster_before:
            for candidate in tuple(self._in_flight.values()):
                if candidate.number > max(submission.all_before, submission.cluster_before):
                    break
                if candidate.number <= submission.all_before or candidate.cluster == submission.cluster:
                    self._observe(candidate)

    def saw_running(self, submission: OpenSubmission) -> None:
        """Release the inputs of a submission that has started."""
        self._release(submission, HoldingRole.INPUT, HoldingRole.BLOCK)

    def saw_head(self, head: int) -> None:
        """Mark all entries of the ring before `head` as fetched."""
        slots = self._slots
        while slots:
            index = slots[0].index
            assert index is not None
            if not 0 < (head - index) & _MASK < _HALF:
                break
            submission = slots.popleft()
            if not submission.writes_status:
                self._release(submission, HoldingRole.SLOT)

    def _release(self, submission: OpenSubmission, *roles: HoldingRole) -> None:
        """Remove the holdings of a submission that have these roles."""
        for holding in [holding for holding in submission.holdings if holding.role in roles]:
            self.drop(holding)

    def _observe(self, submission: OpenSubmission) -> None:
        if submission.observed:
            return
        submission.observed = True
        self._in_flight.pop(submission.number, None)
        self._ended.pop(submission.number, None)
        for holding in submission.holdings:
            self.holdings.remove(holding)
        submission.holdings = []
        if submission.index is not None:
            self.saw_head(submission.index + 1 & _MASK)

    # -- withdrawal and reset ----------------------------------------------------------------------------------

    def take_back(self, submissions: Iterable[OpenSubmission]) -> None:
        """Withdraw the submissions of an ignored doorbell."""
        for submission in submissions:
            if submission.index is not None:
                self._ring.pop(submission.index, None)
                self._slots = deque(slot for slot in self._slots if slot is not submission)
            self._observe(submission)

    def drop(self, holding: Holding) -> None:
        """Remove a holding whose bytes have a new owner."""
        if holding in holding.owner.holdings:
            holding.owner.holdings.remove(holding)
            self.holdings.remove(holding)

    def clear(self) -> None:
        """Forget all submissions in flight."""
        self._event_count = self._events.count
        for submission in tuple(self._in_flight.values()):
            self._observe(submission)
        self._ring.clear()
        self._slots.clear()
        for stream in self._streams:
            stream.clear()
        self._reset_after = 0

    def reset(self) -> None:
        """Begin a soft reset; the device owns the memory of submissions in flight until the reset arrives."""
        self.catch_up()
        self._ring.clear()
        self._slots.clear()
        self._reset_after = self.submissions

    @property
    def resetting(self) -> bool:
        """True if, from firmware's point of view, a reset is pending."""
        return bool(self._reset_after)

    def reset_arrived(self) -> list[Region]:
        """End all submissions before the reset; return their outputs, whose contents are undefined."""
        ended = [submission for submission in self._in_flight.values() if submission.number <= self._reset_after]
        outputs = [
            holding.region
            for submission in ended
            for holding in submission.holdings
            if holding.role is HoldingRole.OUTPUT
        ]
        for submission in ended:
            submission.index = None  # the index is of the ring before the reset
            self._observe(submission)
        self._reset_after = 0
        return outputs

    @property
    def idle(self) -> bool:
        """True if firmware has observed the completion of every submission."""
        return not self._in_flight

    def in_flight(self) -> Iterable[OpenSubmission]:
        """Return submissions whose completion firmware has not observed, oldest first."""
        return self._in_flight.values()


def _ignore(*event: object) -> None:
    """Ignore a notification."""
