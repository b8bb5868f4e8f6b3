"""The reservation station: commands in flight, those that run or have ended until they retire included, as records of
a buffer, and the functions of the issue stage."""

from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from typing import Any, NamedTuple

from npu_device.abi.opcodes import Opcode, Scope
from npu_device.config import NpuConfig
from npu_device.decode.command import Command, UnitClass, units_by_class
from npu_device.event_loop import machine
from npu_device.event_loop.machine import request_bit
from npu_device.memory.region import OPERAND_WORDS
from npu_device.reservation import barriers, commands, hazards, scheduler
from npu_device.reservation.state import (
    DOMAINS,
    ENDED,
    GLOBAL_DOMAIN,
    MAX_OPERANDS,
    NO_SCOPE,
    STREAMS,
    WAITING,
    Access,
    Dependency,
    Entry,
    Epoch,
    Issue,
    PendingBarrier,
)
from npu_device.trace.stream import EventStream
from pyv_native.arena import Arena
from pyv_native.emitter import Definition
from pyv_native.module import Linkage, NativeModule, interpreted
from pyv_native.records import WORD, layout
from pyv_native.state import WORD32, StateError, inside, integer, listed, rows

FUNCTIONS: tuple[Definition, ...] = (
    commands.accept, commands.end, commands.fill_entry, commands.restore, scheduler.release_commands,
    scheduler.start_next, scheduler.mark_ready, scheduler.enqueue_released, barriers.block_domains,
    barriers.open_domains, barriers.append_epoch, barriers.append_barrier, hazards.add_hazards, hazards.end_hazards,
)  # fmt: skip
LINKAGE = Linkage(hazards.report_dependency, scheduler.take_events, scheduler.find_unit, commands.retire)
OPERAND_BYTES = OPERAND_WORDS * WORD
CHUNK = MAX_OPERANDS * OPERAND_BYTES
MIN_RECORDS = 64
"""Records that a free list begins with."""
MAX_WINDOW = 1 << 32
_LISTS = {Entry: "entries", Access: "accesses", Dependency: "dependencies", Epoch: "epochs", PendingBarrier: "barriers"}
"""Records of free lists, and the names of these."""


@cache
def _compiled(checked: bool) -> dict[Definition, Callable[..., int]]:
    module = NativeModule(FUNCTIONS, Issue, linkage=LINKAGE, checked=checked)
    return {function: module.entry(function) for function in FUNCTIONS}


@cache
def _interpreted() -> dict[Definition, Callable[..., int]]:
    return {function: interpreted(function, Issue) for function in FUNCTIONS}


def _word(record: type, field: str) -> int:
    return layout(record).fields[field].offset // WORD


class IssueBuffer:
    """The records of one issue stage, and its functions: `call[function](arena, *arguments)`."""

    def __init__(self, classes: int = 0, interpreted: bool = False) -> None:
        """`classes`: of units."""
        self.call = _interpreted() if interpreted else _compiled(machine.CHECKED)
        self.arena = Arena(Issue, dict.fromkeys(("heaps", "ready", "request_bits"), classes))
        self.totals = dict.fromkeys(_LISTS, 0)
        """Records so far, in use or spare."""
        root = self.arena.root.offset // WORD
        self._spare = {record: root + _word(Issue, f"spare_{name}") for record, name in _LISTS.items()}
        self._free = {record: root + _word(Issue, f"free_{name}") for record, name in _LISTS.items()}
        """Words of the root: how many records a free list has, and the first."""
        self._operands = self.arena.root.operands.offset
        self.arena.root.domains.resize(DOMAINS)
        self.arena.root.streams.resize(STREAMS)
        self._extend(Epoch, DOMAINS)
        self.call[barriers.open_domains](self.arena)

    @property
    def issue(self) -> Any:
        """View of the root record."""
        return self.arena.root

    def reserve(self, record: type, count: int) -> None:
        """Make sure that a free list has so many records."""
        if self.arena.words[self._spare[record]] < count:
            self._extend(record, count)

    def _extend(self, record: type, count: int) -> None:
        """Add at least `count` records to a free list, and as many as there are."""
        count = max(count, self.totals[record], MIN_RECORDS)
        self.totals[record] += count
        size = layout(record).size
        first = self.arena.allocate(size * count)
        self.arena.bytes[first : first + size * count] = bytes(size * count)
        words, head = self.arena.words, self._free[record]
        links = array("q", range(first + size, first + size * count + 1, size))
        links[-1] = words[head]
        words[head] = first
        begin = first // WORD + _word(record, "next")
        words[begin : begin + (count - 1) * size // WORD + 1 : size // WORD] = memoryview(links)
        words[self._spare[record]] += count

    def add_operands(self, words: bytes) -> int:
        """Reserve the records of a command with these operands, and an entry, which gets all but the operands that
        remain in `issue.operands`: its offset."""
        count = len(words) // OPERAND_BYTES
        self.reserve(Entry, 1)
        self.reserve(Access, count)
        self.reserve(Dependency, 2 * hazards.LISTED * count)
        arena, head, first = self.arena, self._free[Entry], self._operands + WORD
        entry = arena.words[head]
        arena.words[head] = arena.words[entry // WORD + _NEXT]
        arena.words[self._spare[Entry]] -= 1
        for at in range(0, len(words), CHUNK):
            if at:
                self.call[hazards.add_hazards](arena, entry)
            part = words[at : at + CHUNK]
            arena.bytes[first : first + len(part)] = part
            arena.words[self._operands // WORD] = len(part) // WORD
        return entry


_NEXT = _word(Entry, "next")


class Dependencies:
    """Dependencies between commands of a list, none of which retires."""

    def __init__(self) -> None:
        self._buffer = IssueBuffer()
        self._waits: tuple[set[int], set[int]] = set(), set()
        slot = LINKAGE.slots[hazards.report_dependency]
        self._buffer.arena.link_callback(slot, hazards.report_dependency, self._report)
        self._buffer.issue.reporting = True

    def _report(self, number: int, at_end: int) -> int:
        self._waits[not at_end].add(number)
        return 0

    def add(self, command: Command) -> tuple[set[int], set[int]]:
        """Numbers of the earlier commands whose end, and whose retirement, a command waits for.

        Of several to the same bytes it names the latest, which has waited for the others.
        """
        self._waits = set(), set()
        buffer = self._buffer
        entry = buffer.add_operands(command.operands())
        buffer.arena.view(Entry, entry).number = command.number
        buffer.call[hazards.add_hazards](buffer.arena, entry)
        return self._waits


class EntryState(NamedTuple):
    """Fields of an entry, as a snapshot keeps them."""

    stage: int
    accepted: int
    hazards_clear: int
    barriers_clear: int
    epochs: list[int]
    """Epochs of its stream, its cluster and the device, counted from the oldest."""


class Station:
    """The commands in flight of one device, between acceptance and retirement."""

    def __init__(
        self,
        config: NpuConfig,
        events: EventStream,
        find_unit: Callable[[UnitClass], int | None],
        retire: Callable[[int, Command], None],
        interpreted: bool = False,
    ) -> None:
        """`find_unit`: the lowest free unit of a class. `retire`: is called with the cycle and each command that
        retires, in the order of its stream. `interpreted`: CPython runs the functions."""
        self._config, self._events = config, events
        self._find_unit, self._on_retirement = find_unit, retire
        self._interpreted = interpreted
        self._classes: list[UnitClass | None] = [None, *units_by_class(config)]
        self._class_index = {unit_class: index for index, unit_class in enumerate(self._classes)}
        self.reset()

    def reset(self) -> None:
        """Nothing is in flight."""
        self.buffer = buffer = IssueBuffer(len(self._classes), self._interpreted)
        self._commands: dict[int, Command] = {}
        """Commands by the offset of their entries, oldest first."""
        issue = buffer.issue
        issue.window = min(self._config.scheduler.window, MAX_WINDOW)
        issue.clusters = self._config.clusters
        bits = [0 if unit_class is None else request_bit(unit_class) for unit_class in self._classes]
        issue.request_bits.fill(bits)
        issue.heaps.fill([None] * len(bits))
        issue.ready.fill([0] * len(bits))
        self._requested = issue.offset // WORD + _word(Issue, "requested")
        self._pending_events = issue.events.offset // WORD
        arena = buffer.arena
        arena.link_callback(LINKAGE.slots[scheduler.take_events], scheduler.take_events, self._take_events)
        arena.link_callback(LINKAGE.slots[scheduler.find_unit], scheduler.find_unit, self._find)
        arena.link_callback(LINKAGE.slots[commands.retire], commands.retire, self._retire)
        self._arena = arena

    def _call(self, function: Definition, *arguments: int) -> int:
        answer = self.buffer.call[function](self._arena, *arguments)
        if self._arena.words[self._pending_events]:
            self._take_events()
        return answer

    # -- callbacks ---------------------------------------------------------------------------------------------

    def _take_events(self) -> int:
        words, at = self._arena.words, self._pending_events
        size = words[at] * WORD
        self._events.extend(self._arena.bytes[(at + 1) * WORD : (at + 1) * WORD + size])
        words[at] = 0
        return 0

    def _find(self, unit_class: int) -> int:
        unit = self._find_unit(self._classes[unit_class])  # type: ignore[arg-type]
        return scheduler.NO_FREE_UNIT if unit is None else unit

    def _retire(self, entry: int, cycle: int) -> int:
        if self._arena.words[self._pending_events]:
            self._take_events()
        self._on_retirement(cycle, self._commands.pop(entry))
        return 0

    # -- commands ----------------------------------------------------------------------------------------------

    @property
    def commands(self) -> Sequence[Command]:
        """Commands in flight, oldest first."""
        return list(self._commands.values())

    def accept(self, cycle: int, command: Command) -> int:
        """Accept a command, which has its number and ticket."""
        entry, d, scope = self._enter(command), command.descriptor, NO_SCOPE
        if command.opcode is Opcode.BARRIER:
            scope = d.function
            self.buffer.reserve(Epoch, 2)
            self.buffer.reserve(PendingBarrier, 1)
        return self._call(
            commands.accept, entry, command.number, command.ticket, command.stream, d.cluster,
            self._class_index[command.unit_class], self._key(command), scope, cycle,
        )  # fmt: skip

    def _enter(self, command: Command) -> int:
        entry = command.entry = self.buffer.add_operands(command.operands())
        self._commands[entry] = command
        return entry

    def _key(self, command: Command) -> int:
        """Order in which ready commands start; the smallest is first."""
        policy = self._config.scheduler.policy
        if command.unit_class is None or policy == "fifo":
            return 0
        return -command.prio if policy == "prio" else -(command.descriptor.rank << 4 | command.prio)

    def release(self, cycle: int) -> int:
        """Announce commands whose hazards and barriers are over."""
        return self._call(scheduler.release_commands, cycle)

    def start_next(self) -> tuple[Command, int | None] | None:
        """The command that starts now, and the code of its unit, None for one that needs none; None: nothing starts."""
        entry = self._call(scheduler.start_next)
        if not entry:
            return None
        unit = self.buffer.issue.unit
        return self._commands[entry], None if unit == scheduler.NO_FREE_UNIT else unit

    def end(self, cycle: int, command: Command) -> int:
        """A command has ended."""
        return self._call(commands.end, command.entry, cycle)

    def block_domains(self, cycle: int, scope: Scope, stream: int) -> None:
        """TBAR."""
        self.buffer.reserve(Epoch, self._config.clusters)
        self.buffer.reserve(PendingBarrier, self._config.clusters)
        self._call(barriers.block_domains, scope, stream, cycle)

    def requested(self) -> int:
        """Units that ready commands wait for, as `request_bit` says."""
        return int(self._arena.words[self._requested])

    def entry(self, command: Command) -> Any:
        """View of the entry of a command in flight."""
        return self._arena.view(Entry, command.entry)

    # -- snapshots ---------------------------------------------------------------------------------------------

    def _domains(self) -> list[list[Any]]:
        """Views of the epochs of each domain, oldest first: streams, clusters, the device."""
        domains = []
        for index in _domain_indices(self._config.clusters):
            epochs, epoch = [], self.buffer.issue.domains[index].first
            while epoch is not None:
                epochs.append(epoch)
                epoch = epoch.next
            domains.append(epochs)
        return domains

    def barriers(self) -> list[Any]:
        """Return what a snapshot keeps of each domain: the barriers that the turn of each epoch lifts."""
        return [
            [[[barrier.ticket, barrier.aux] for barrier in _linked(epoch.barriers)] for epoch in epochs]
            for epochs in self._domains()
        ]

    def load_barriers(self, state: Any) -> None:
        """Restore the value of `barriers`. Nothing is in flight."""
        buffer, indices = self.buffer, _domain_indices(self._config.clusters)
        for index, epochs in zip(indices, listed(state, len(indices)), strict=True):
            with inside(indices.index(index)):
                if not listed(epochs):
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

    def epochs_of(self, command: Command) -> list[int]:
        """Epochs of its stream, its cluster and the device that a command is in, counted from the oldest."""
        cluster = command.descriptor.cluster
        domains = self._domains()
        return [
            domains[index].index(epoch)
            for index, epoch in zip((command.stream, STREAMS + cluster, -1), self.entry(command).epochs, strict=True)
        ]

    def load_command(self, command: Command, state: EntryState) -> None:
        """Restore a command, after all older ones."""
        entry = self._enter(command)
        domains = self._domains()
        with inside("epochs"):
            for place, index in enumerate((command.stream, STREAMS + command.descriptor.cluster, -1)):
                with inside(place):
                    integer(state.epochs[place], 0, len(domains[index]) - 1)
        self._call(
            commands.fill_entry, entry, command.number, command.ticket, command.stream, command.descriptor.cluster,
            self._class_index[command.unit_class], self._key(command),
        )  # fmt: skip
        self.entry(command).stage = state.stage
        self._call(commands.restore, entry, *state.epochs)

    def load_ends(self, restored: Iterable[tuple[Command, EntryState]]) -> None:
        """All commands were restored: which hazards are over, and since when."""
        if any(not epoch.in_flight for epochs in self._domains() for epoch in epochs[:-1]):
            raise StateError("an epoch that is over holds later ones back")
        pairs = list(restored)
        for command, state in pairs:
            if state.stage == ENDED:
                self._call(hazards.end_hazards, command.entry, 0)
        self.buffer.issue.released = self.buffer.issue.last_released = None
        for command, state in pairs:
            view = self.entry(command)
            view.accepted, view.hazards_clear, view.barriers_clear = state[1:4]

    def blocked(self, command: Command) -> bool:
        """Whether hazards or barriers keep a command from starting."""
        entry = self.entry(command)
        return bool(entry.hazards or entry.barriers_pending)

    def startable(self, command: Command) -> bool:
        """Whether a command waits, and only for the scheduler."""
        return self.entry(command).stage == WAITING and not self.blocked(command)

    def is_oldest(self, command: Command) -> bool:
        """Whether a command is the oldest of its stream."""
        oldest: bool = self.buffer.issue.streams[command.stream].first.number == command.number
        return oldest

    def released(self) -> list[Command]:
        """Commands that are to become ready."""
        return [self._commands[entry.offset] for entry in _linked(self.buffer.issue.released)]

    def load_ready(self, command: Command, announced: bool) -> None:
        """A command is startable; `announced`: READY was emitted."""
        self._call(scheduler.mark_ready if announced else scheduler.enqueue_released, command.entry)


def _domain_indices(clusters: int) -> list[int]:
    """Domains of a device."""
    return [*range(STREAMS + clusters), GLOBAL_DOMAIN]


def _linked(first: Any) -> Iterator[Any]:
    """Views of the records of a list, by their fields `next`."""
    while first is not None:
        yield first
        first = first.next
