"""Reservation station: commands from acceptance to retirement, as records of a buffer, and calls of the issue stage's
functions."""

from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import chain
from operator import attrgetter
from typing import Any, NamedTuple

from npu_device.abi.descriptor import STATUS_OFFSET, Descriptor
from npu_device.abi.opcodes import Opcode, Scope
from npu_device.config import NpuConfig
from npu_device.cost.plan import Piece
from npu_device.decode.command import ACCUMULATORS_BASE, Command, Order, UnitClass, tile_order, units_by_class
from npu_device.decode.decoder import Decoder, request_of
from npu_device.event_loop.machine import Machine
from npu_device.front_end import acceptance
from npu_device.issue.retirement import Completion
from npu_device.memory.region import Region
from npu_device.reservation import barriers, commands, hazards, pieces, scheduler
from npu_device.reservation.buffer import LINKAGE, iterate
from npu_device.reservation.state import (
    CRITICAL_PATH,
    ENDED,
    FIFO,
    GLOBAL_DOMAIN,
    NO_SCOPE,
    PRIORITY,
    STREAMS,
    WAITING,
    Access,
    Entry,
    Epoch,
    PendingBarrier,
    TilePiece,
)
from npu_device.reservation.sums import Accumulators
from pyv_native.emitter import Definition
from pyv_native.records import WORD, layout
from pyv_native.state import WORD32, StateError, inside, integer, rows, sequence

MAX_WINDOW = 1 << 32
MAX_PIECES = 1 << 14
"""Records of the table of pieces, about."""
POLICIES = {"fifo": FIFO, "prio": PRIORITY, "cp": CRITICAL_PATH}
_NUMBER, _PIECE, _ACCESSES, _NEXT_IN_STREAM = (
    layout(Entry).fields[name].word for name in ("number", "piece", "accesses", "next_in_stream")
)
_ACCESS_WORDS = [layout(Access).fields[name].word for name in ("low", "end", "next")]


@lru_cache(1 << 10)  # programs repeat their descriptors
def _order_of(descriptor: bytes) -> Order:
    """Return the order of a valid descriptor in tile form."""
    return tile_order(Descriptor.unpack(descriptor))


class EntryState(NamedTuple):
    """Fields of an entry in a snapshot."""

    stage: int
    accepted: int
    hazards_clear: int
    barriers_clear: int
    epochs: list[int]
    """Epochs of its stream, its cluster and the device, counted from the oldest."""


class Station:
    """Commands in flight of one device, between acceptance and retirement."""

    def __init__(self, config: NpuConfig, machine: Machine, completion: Completion) -> None:
        """`completion`: writes the status words and logs the errors of retiring commands."""
        self._config, self._machine, self._completion = config, machine, completion
        self._classes: list[UnitClass | None] = [None, *units_by_class(config)]
        self._class_index = {unit_class: index for index, unit_class in enumerate(self._classes)}
        for declaration, call in (commands.write_status, self._on_status), (commands.log_failure, self._on_failure):
            machine.storage.arena.link_callback(LINKAGE.slots[declaration], declaration, call)
        self.sums = Accumulators(config, machine.issue)
        self._empty()

    def reset(self) -> None:
        """Empty the station. The machine was reset before."""
        self.sums.reset(self._machine.issue)
        self._empty()

    def _empty(self) -> None:
        self.buffer = self._machine.issue
        self._commands: dict[int, Command] = {}
        """Commands by the offsets of their entries, including some that have retired."""
        issue, classes = self.buffer.issue, self._classes
        issue.policy = POLICIES[self._config.scheduler.policy]
        issue.window = min(self._config.scheduler.window, MAX_WINDOW)
        issue.clusters = self._config.clusters
        issue.heaps.fill([None] * len(classes))
        issue.ready.fill([0] * len(classes))
        units = [(0, 0, 0) if unit_class is None else unit_class for unit_class in classes]
        issue.request_bits.fill(1 << 16 * kind + cluster if kind else 0 for kind, cluster, _ in units)
        issue.kinds.fill(kind for kind, _, _ in units)
        issue.unit_clusters.fill(cluster for _, cluster, _ in units)
        issue.unit_indices.fill(index for _, _, index in units)

    def _call(self, function: Definition, *arguments: int) -> int:
        return self.buffer.call(function, *arguments)

    def _on_status(self, _: int, entry: int, cycle: int) -> int:
        self._completion.write_status(cycle, self.command(entry))
        return 0

    def _on_failure(self, _: int, entry: int, cycle: int) -> int:
        self._completion.log_failure(cycle, self.command(entry))
        return 0

    def _reserve_barriers(self, count: int) -> None:
        self.buffer.reserve(Epoch, count)
        self.buffer.reserve(PendingBarrier, count)

    # -- commands ----------------------------------------------------------------------------------------------

    @property
    def commands(self) -> Sequence[Command]:
        """Commands in flight, oldest first."""
        entries = chain.from_iterable(iterate(stream.first, "next_in_stream") for stream in self.buffer.issue.streams)
        return [self.command(entry.offset) for entry in sorted(entries, key=attrgetter("number"))]

    def command(self, entry: int) -> Command:
        """Return the command of an entry. Create it if native code has accepted it."""
        command, words, word = self._commands.get(entry), self.buffer.arena.words, entry // WORD
        if command is None or command.number != words[word + _NUMBER]:
            view = self.buffer.arena.view(Entry, entry)
            order = _order_of(bytes(view.words.reserved()))
            command = self._commands[entry] = Command(order, view.stream, view.prio)
            command.unit_class = self._classes[view.unit_class]
            command.affinity = 0 if command.unit_class is None else command.unit_class[2]
            if order.total is not None:
                twice = order.holds and order.descriptor.accumulate
                command.accumulator_regions = self._sum_regions(words[word + _ACCESSES], twice)
            command.ticket, command.number, command.entry = view.ticket, view.number, entry
            command.piece, command.unit = words[word + _PIECE], view.unit
            if order.descriptor.write_status:
                command.status_address = view.address + STATUS_OFFSET
        return command

    def _sum_regions(self, access: int, twice: bool | int) -> tuple[Region, ...]:
        """Return the accumulator regions among the accesses of a command, which are linked in reverse. `twice`: the
        command reads and writes them."""
        words, regions = self.buffer.arena.words, list[Region]()
        low_word, end_word, next_word = _ACCESS_WORDS
        while access:
            at = access // WORD
            low, end, access = words[at + low_word], words[at + end_word], words[at + next_word]
            if low >= ACCUMULATORS_BASE:
                regions.append(Region(low, 1, end - low, end - low))
        regions.reverse()
        return tuple(regions[: len(regions) // 2] if twice else regions)

    def _set_class(self, command: Command) -> None:
        if command.kind is not None:
            command.unit_class = (command.kind, command.descriptor.cluster, command.affinity)

    def accept(self, cycle: int, command: Command) -> None:
        """Accept a command, which has its number, ticket and entry."""
        self._set_class(command)
        self._enter(command)
        scope = NO_SCOPE
        if command.opcode is Opcode.BARRIER:
            scope = command.descriptor.function
            self._reserve_barriers(2)
        self._machine.call(acceptance.accept_command, command.entry, *self._fields(command), scope, cycle)

    def accept_tile(self, entry: int, descriptor: bytes, decoder: Decoder, cycle: int) -> Command | None:
        """Accept the oldest pending submission and return its command; None: it is no valid tile command. Records are
        spare."""
        accepted = self._machine.call(acceptance.accept_tile, entry, cycle)
        if not accepted and self.buffer.issue.piece_missing:
            self._add_piece(decoder.step(tile_order(request_of(descriptor))))
            accepted = self._machine.call(acceptance.accept_tile, entry, cycle)
        return self.command(entry) if accepted else None

    def _add_piece(self, step: tuple[Piece, int]) -> None:
        """Add the work of the descriptor that was decoded last to the table."""
        if self.buffer.totals[TilePiece] > MAX_PIECES and not self.buffer.issue.spare_pieces:
            self._call(pieces.clear_pieces)
        self.buffer.reserve(TilePiece, 1)
        piece = self._place_piece(step)
        self._call(pieces.add_piece, self._machine.storage.loop.tile.offset, piece)

    def _place_piece(self, step: tuple[Piece, int]) -> int:
        piece, storage = self._machine.place_piece(step), self._machine.storage
        if storage.crowded:
            self._call(pieces.clear_pieces)
            storage.drop_pieces({piece, *self._pieces_in_flight()})
        return piece

    def _pieces_in_flight(self) -> Iterator[int]:
        """Yield the pieces of commands in flight."""
        words = self.buffer.arena.words
        for stream in self.buffer.issue.streams:
            entry = 0 if stream.first is None else stream.first.offset
            while entry:
                yield words[entry // WORD + _PIECE]
                entry = words[entry // WORD + _NEXT_IN_STREAM]

    def _enter(self, command: Command) -> None:
        if command.order.step is not None:
            command.piece = self._place_piece(command.order.step)
        self.buffer.add_operands(command.entry, command.operands())
        self._commands[command.entry] = command

    def _fields(self, command: Command) -> tuple[int, ...]:
        """Return the arguments of `accept_command` and `restore` between the entry and the scope or stage."""
        step = command.order.step
        return (
            command.number, command.ticket, command.stream, command.descriptor.cluster,
            self._class_index[command.unit_class], self._key(command), command.piece, 0 if step is None else step[1],
            command.status_address is not None, command.descriptor.irq,
        )  # fmt: skip

    def _key(self, command: Command) -> int:
        """Return the sort key of a ready command; the smallest starts first."""
        return acceptance.start_key(
            self.buffer.issue, self._class_index[command.unit_class], command.descriptor.rank, command.prio
        )

    def block_domains(self, cycle: int, scope: Scope, stream: int) -> None:
        """Block the domains of a scope, for TBAR."""
        self._reserve_barriers(self._config.clusters)
        self._call(barriers.block_domains, scope, stream, cycle)

    def entry(self, command: Command) -> Any:
        """Return a view of the entry of a command in flight."""
        return self.buffer.arena.view(Entry, command.entry)

    # -- snapshots ---------------------------------------------------------------------------------------------

    def domains(self) -> list[list[Any]]:
        """Return views of the epochs of each domain, oldest first. Domains are streams, clusters and the device."""
        domains = []
        for index in _domain_indices(self._config.clusters):
            epochs, epoch = [], self.buffer.issue.domains[index].first
            while epoch is not None:
                epochs.append(epoch)
                epoch = epoch.next
            domains.append(epochs)
        return domains

    def barriers(self) -> list[Any]:
        """Return, for each domain and epoch, the barriers that complete when it becomes the oldest epoch."""
        return [
            [[[barrier.ticket, barrier.aux] for barrier in iterate(epoch.barriers)] for epoch in epochs]
            for epochs in self.domains()
        ]

    def load_barriers(self, state: Any) -> None:
        """Restore the value of `barriers`. No command may be in flight."""
        buffer, indices = self.buffer, _domain_indices(self._config.clusters)
        for index, epochs in zip(indices, sequence(state, len(indices)), strict=True):
            with inside(indices.index(index)):
                if not sequence(epochs):
                    raise StateError("there is no epoch")
                for position, item in enumerate(epochs):
                    with inside(position):
                        pending = rows(item, (0, WORD32 >> 1), (0, WORD32))
                    buffer.reserve(Epoch, 1)
                    buffer.reserve(PendingBarrier, len(pending))
                    if position:
                        self._call(barriers.append_epoch, buffer.issue.domains[index].offset)
                    for ticket, aux in pending:
                        self._call(barriers.append_barrier, index, ticket, aux)

    def epochs_of(self, command: Command, domains: Sequence[Sequence[Any]]) -> list[int]:
        """Return the epochs of a command in its stream, its cluster and the device, counted from the oldest."""
        cluster = command.descriptor.cluster
        return [
            domains[index].index(epoch)
            for index, epoch in zip((command.stream, STREAMS + cluster, -1), self.entry(command).epochs, strict=True)
        ]

    def load_command(self, command: Command, state: EntryState, epochs: Sequence[int]) -> None:
        """Restore a command, after all older commands. `epochs`: number of epochs of each domain."""
        command.entry = self.buffer.new_entry()
        self._enter(command)
        with inside("epochs"):
            for scope, index in enumerate((command.stream, STREAMS + command.descriptor.cluster, -1)):
                with inside(scope):
                    integer(state.epochs[scope], 0, epochs[index] - 1)
        self._call(commands.restore, command.entry, *self._fields(command), state.stage, *state.epochs)
        view = self.entry(command)
        view.unit, view.failure = command.unit, 0 if command.failure is None else command.failure.code

    def load_ends(self, restored: Iterable[tuple[Command, EntryState]]) -> None:
        """Restore which hazards have cleared, and when. All commands have been restored before. Raise StateError."""
        if any(not epoch.in_flight for epochs in self.domains() for epoch in epochs[:-1]):
            raise StateError("an epoch that is over holds later ones back")
        pairs = list(restored)
        for command, state in pairs:
            if state.stage == ENDED:
                self._call(hazards.end_hazards, command.entry, 0)
        self.buffer.issue.released = self.buffer.issue.last_released = None
        for command, state in pairs:
            view = self.entry(command)
            view.acceptance_cycle, view.hazards_clear, view.barriers_clear = state[1:4]

    def blocked(self, command: Command) -> bool:
        """Check whether hazards or barriers prevent a command from starting."""
        entry = self.entry(command)
        return bool(entry.hazards or entry.barriers_pending)

    def startable(self, command: Command) -> bool:
        """Check whether a command waits only for the scheduler."""
        return self.entry(command).stage == WAITING and not self.blocked(command)

    def is_oldest(self, command: Command) -> bool:
        """Check whether a command is the oldest of its stream."""
        oldest: bool = self.buffer.issue.streams[command.stream].first.number == command.number
        return oldest

    def released(self) -> list[Command]:
        """Return the commands that are about to become ready."""
        return [self.command(entry.offset) for entry in iterate(self.buffer.issue.released)]

    def load_ready(self, command: Command, announced: bool) -> None:
        """Restore a startable command. `announced`: whether READY was emitted."""
        self._call(scheduler.mark_ready if announced else scheduler.enqueue_released, command.entry)


def _domain_indices(clusters: int) -> list[int]:
    """Return the indices of the domains of a device."""
    return [*range(STREAMS + clusters), GLOBAL_DOMAIN]
