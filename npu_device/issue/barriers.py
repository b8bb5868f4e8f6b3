"""Barriers by epoch: TBAR and BARRIER (docs/interface.md, "Order and visibility").

A domain is a stream, a cluster, or the whole device. A barrier ends the domain's epoch; commands of an epoch may start
once those of all earlier epochs have completed.
"""

from collections import deque
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

from npu_device.abi.opcodes import Scope
from npu_device.trace.events import FRONTEND, What
from npu_device.trace.stream import EventStream
from pyv_native.state import WORD32, StateError, inside, integer, listed, rows

if TYPE_CHECKING:
    from npu_device.decode.command import Command

STREAMS = 16


class Stamp(NamedTuple):
    """A barrier that is in force."""

    ticket: int
    """Of BARRIER; 0 for TBAR."""
    aux: int
    """Scope, index of stream or cluster << 4."""


class Epoch:
    """Commands between two barriers of one domain."""

    __slots__ = ("domain", "in_flight", "stamps", "waiting")

    def __init__(self, domain: "Domain") -> None:
        self.domain = domain
        self.in_flight = 0
        """Commands accepted and not completed."""
        self.waiting: list[Command] = []
        """Commands that this epoch's turn sets free."""
        self.stamps: list[Stamp] = []
        """Barriers that its turn lifts."""


class Domain:
    """The epochs of one scope, oldest first; the last is open for new commands."""

    def __init__(self) -> None:
        self.epochs: deque[Epoch] = deque([Epoch(self)])

    def stamp(self, stamp: Stamp | None) -> bool:
        """End the epoch; False when nothing is in flight, so that there is nothing to wait for."""
        if len(self.epochs) == 1 and not self.epochs[0].in_flight:
            return False
        if self.epochs[-1].in_flight:
            self.epochs.append(Epoch(self))
        if stamp is not None:
            self.epochs[-1].stamps.append(stamp)
        return True


class Barriers:
    """The domains of a device."""

    def __init__(self, clusters: int, events: EventStream) -> None:
        self._clusters = clusters
        self._events = events
        self.reset()

    def reset(self) -> None:
        self._streams = [Domain() for _ in range(STREAMS)]
        self._cluster = [Domain() for _ in range(self._clusters)]
        self._global = Domain()
        self._entered: dict[int, tuple[Epoch, ...]] = {}
        """The epochs that each command in flight is in, by acceptance number."""

    def stamp(self, cycle: int, scope: Scope, stream: int) -> None:
        """TBAR: of one stream, of each cluster, or of the device; commands accepted from now on wait."""
        if scope == Scope.TILE:
            domains = [(self._streams[stream], stream)]
        elif scope == Scope.CLUSTER:
            domains = [(domain, index) for index, domain in enumerate(self._cluster)]
        else:
            domains = [(self._global, 0)]
        for domain, index in domains:
            stamp = Stamp(0, scope | index << 4)
            self._events.emit(cycle, FRONTEND, What.BARRIER_OPEN, aux=stamp.aux)
            if not domain.stamp(stamp):
                self._events.emit(cycle, FRONTEND, What.BARRIER_CLOSE, aux=stamp.aux)

    def accept(self, command: "Command") -> None:
        """Put a command into the current epochs and count in `command.gates` those it waits for."""
        domains = self._streams[command.stream], self._cluster[command.descriptor.cluster], self._global
        self._entered[command.number] = entered = tuple([domain.epochs[-1] for domain in domains])
        for epoch in entered:
            self._enter(epoch, command)

    @staticmethod
    def _enter(epoch: Epoch, command: "Command") -> None:
        epoch.in_flight += 1
        if epoch is not epoch.domain.epochs[0]:
            epoch.waiting.append(command)
            command.gates += 1

    def accept_barrier(self, cycle: int, command: "Command") -> None:
        """BARRIER: it waits for what came before in its scope, and what comes later waits for it."""
        scope = Scope(command.descriptor.function)
        cluster = command.descriptor.cluster
        domain, index = {
            Scope.TILE: (self._streams[command.stream], command.stream),
            Scope.CLUSTER: (self._cluster[cluster], cluster),
            Scope.GLOBAL: (self._global, 0),
        }[scope]
        stamp = Stamp(command.ticket, scope | index << 4)
        self._events.emit(cycle, FRONTEND, What.BARRIER_OPEN, stamp.ticket, aux=stamp.aux)
        domain.stamp(None)
        self.accept(command)
        domain.stamp(stamp)

    def completed(self, cycle: int, command: "Command") -> "list[Command]":
        """A command has completed: which commands that sets free."""
        free = []
        for epoch in self._entered.pop(command.number):
            epoch.in_flight -= 1
            epochs = epoch.domain.epochs
            while len(epochs) > 1 and not epochs[0].in_flight:
                epochs.popleft()
                turn = epochs[0]
                for stamp in turn.stamps:
                    self._events.emit(cycle, FRONTEND, What.BARRIER_CLOSE, stamp.ticket, aux=stamp.aux)
                turn.stamps.clear()
                for waiting in turn.waiting:
                    waiting.gates -= 1
                    if not waiting.gates:
                        free.append(waiting)
                turn.waiting.clear()
        return free

    # -- snapshots ---------------------------------------------------------------------------------------------

    def _domains(self) -> list[Domain]:
        return [*self._streams, *self._cluster, self._global]

    def epochs_of(self, command: "Command") -> list[int]:
        """Which epoch of its stream, its cluster and the device a command in flight is in, from the oldest."""
        return [epoch.domain.epochs.index(epoch) for epoch in self._entered[command.number]]

    def state(self) -> list[Any]:
        """What a snapshot keeps of each domain: the barriers that the turn of each epoch lifts."""
        return [[[list(stamp) for stamp in epoch.stamps] for epoch in domain.epochs] for domain in self._domains()]

    def load_state(self, state: Any) -> None:
        self.reset()
        domains = self._domains()
        for index, (domain, epochs) in enumerate(zip(domains, listed(state, len(domains)), strict=True)):
            with inside(index):
                domain.epochs = deque(Epoch(domain) for _ in listed(epochs))
                if not domain.epochs:
                    raise StateError("there is no epoch")
                for position, (epoch, stamps) in enumerate(zip(domain.epochs, epochs, strict=True)):
                    with inside(position):
                        epoch.stamps = [Stamp(*one) for one in rows(stamps, (0, WORD32 >> 1), (0, WORD32))]

    def load_commands(self, commands: "Iterable[tuple[Command, list[int]]]") -> None:
        """Commands in flight, oldest first, and which epochs they are in; their gates follow."""
        for command, positions in commands:
            domains = self._streams[command.stream], self._cluster[command.descriptor.cluster], self._global
            with inside("epochs"):
                entered = []
                for index, (domain, position) in enumerate(zip(domains, positions, strict=True)):
                    with inside(index):
                        entered.append(domain.epochs[integer(position, 0, len(domain.epochs) - 1)])
            self._entered[command.number] = tuple(entered)
            command.gates = 0
            for epoch in entered:
                self._enter(epoch, command)
        if any(not epoch.in_flight for domain in self._domains() for epoch in list(domain.epochs)[:-1]):
            raise StateError("an epoch that is over holds later ones back")
