"""Dependencies between commands, against byte sets and brute force."""

from itertools import pairwise
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from shares import draws

from npu_device.abi.descriptor import Descriptor
from npu_device.abi.memory_map import SPM_BASE
from npu_device.abi.opcodes import Opcode
from npu_device.config import NpuConfig, SpmConfig
from npu_device.decode.command import Command, Order
from npu_device.levels.runner import Runner
from npu_device.memory.memory import Memory
from npu_device.memory.region import Region, conflict, make_region
from npu_device.reservation import hazards as rules
from npu_device.reservation.buffer import LINKAGE, Dependencies, list_buffer
from npu_device.reservation.state import ENDED, Access, Dependency, Entry, Issue
from npu_device.trace.events import Kind
from pyv_native.module import NativeModule

regions = st.builds(
    make_region,
    st.integers(0, 200),
    st.integers(1, 6),
    st.integers(1, 24),
    st.sampled_from((0, 24, 32, 40)),
)


def byte_set(region: Region) -> set[int]:
    return {region.address + row * region.stride + i for row in range(region.rows) for i in range(region.row_bytes)}


@settings(max_examples=draws(500), deadline=None)
@given(regions, regions)
def test_a_shared_byte_is_a_conflict(a: Region, b: Region) -> None:
    if byte_set(a) & byte_set(b):
        assert conflict(a, b)
    assert conflict(a, b) == conflict(b, a)


@settings(max_examples=draws(500), deadline=None)
@given(regions, regions)
def test_the_rule_for_conflicts(a: Region, b: Region) -> None:
    """Equal strides: the boxes overlap and a column is shared. Others: the boxes overlap."""
    boxes = a.address < b.address + (b.rows - 1) * b.stride + b.row_bytes and (
        b.address < a.address + (a.rows - 1) * a.stride + a.row_bytes
    )
    if boxes and a.rows > 1 and b.rows > 1 and a.stride == b.stride:
        columns = [{(r.address + i) % r.stride for i in range(r.row_bytes)} for r in (a, b)]
        boxes = bool(columns[0] & columns[1])
    assert conflict(a, b) == boxes


def new_command(number: int, reads: list[Region], write: Region | None) -> Command:
    writes = () if write is None else (write,)
    built = Command(Order(Descriptor(), Opcode.COPY, Kind.VE, reads=tuple(reads), writes=writes))
    built.number = number
    return built


class Hazards:
    """The hazards of a device by themselves: commands end and retire in any order."""

    def __init__(self) -> None:
        self._buffer = list_buffer()
        functions = (rules.add_hazards, rules.end_hazards, rules.retire_hazards)
        module = NativeModule(functions, Issue, linkage=LINKAGE, checked=True)
        self._add, self._end, self._retire = (module.entry(function) for function in functions)
        self._commands: dict[int, Command] = {}

    def add(self, command: Command) -> None:
        command.entry = self._buffer.new_entry()
        self._buffer.add_operands(command.entry, command.operands())
        self._commands[command.entry] = command
        self.entry(command).number = command.number
        self._add(self._buffer.arena, command.entry)

    def entry(self, command: Command) -> Any:
        return self._buffer.arena.view(Entry, command.entry)

    def waits(self, command: Command) -> int:
        count: int = self.entry(command).hazards
        return count

    def ended(self, *commands: Command) -> list[Command]:
        """The commands that these set free, oldest first."""
        for command in commands:
            self.entry(command).stage = ENDED
            self._end(self._buffer.arena, command.entry, 0)
        return self._released()

    def retired(self, command: Command) -> list[Command]:
        self._retire(self._buffer.arena, command.entry, 0)
        return self._released()

    def _released(self) -> list[Command]:
        issue, released = self._buffer.issue, []
        entry, issue.released, issue.last_released = issue.released, None, None
        while entry is not None:
            released.append(self._commands[entry.offset])
            entry = entry.next
        return released

    def records(self, record: type) -> int:
        """Records of one kind that are in use."""
        name = {Access: "accesses", Dependency: "dependencies"}[record]
        return int(self._buffer.totals[record] - getattr(self._buffer.issue, f"spare_{name}"))


uses = st.tuples(st.lists(regions, max_size=2), st.none() | regions)


def some_region(random: Random) -> Region:
    """Rows that often touch or share a byte with those of others; one in eight is all memory."""
    if not random.randrange(8):
        return make_region(0, 1, 80)
    size = random.randrange(1, 10)
    return make_region(random.randrange(48), random.randrange(1, 4), size, random.choice((0, 10, 12)))


def test_two_commands_are_ordered_when_their_regions_conflict() -> None:
    random = Random(5)
    for _ in range(draws(6000)):
        a, b = some_region(random), some_region(random)
        dependencies = Dependencies()
        dependencies.add(new_command(0, [], a))
        reader, writer = dependencies.add(new_command(1, [b], None)), dependencies.add(new_command(2, [], b))
        assert reader == ({0} if conflict(a, b) else set(), set())
        assert writer == ({1}, {0} if conflict(a, b) else set())


def blockers(commands: list[Command]) -> list[tuple[set[int], set[int]]]:
    """Older commands whose end, and whose retirement, each command has to wait for."""

    def meet(first: tuple[Region, ...], second: tuple[Region, ...]) -> bool:
        return any(conflict(a, b) for a in first for b in second)

    return [
        (
            {
                o.number
                for o in commands[: command.number]
                if meet(command.reads(), o.writes()) or meet(command.writes(), o.reads())
            },
            {o.number for o in commands[: command.number] if meet(command.writes(), o.writes())},
        )
        for command in commands
    ]


@pytest.mark.parametrize("seed", range(draws(200)))
def test_commands_run_as_a_brute_force_check_of_all_pairs_allows(seed: int) -> None:
    """Ready exactly when no older conflicting command is before its end (before retirement: write after write).

    Commands come, start, end and retire in any order that the table allows.
    """
    random, hazards = Random(seed), Hazards()
    commands = [
        new_command(
            number,
            [some_region(random) for _ in range(random.randrange(3))],
            some_region(random) if random.randrange(4) else None,
        )
        for number in range(40)
    ]
    waits = blockers(commands)
    queued, running, ended, retired = list[Command](), list[Command](), list[Command](), set[int]()
    coming = commands[::-1]
    while len(retired) < len(commands):
        over = retired | {command.number for command in ended}
        for command in queued:
            ends, retirements = waits[command.number]
            assert (hazards.waits(command) == 0) == (ends <= over and retirements <= retired)
        ready = [command for command in queued if not hazards.waits(command)]
        movable = [*ready, *running, *ended]
        if coming and (not movable or random.random() < 0.6):
            hazards.add(coming[-1])
            queued.append(coming.pop())
            continue
        command = random.choice(movable)
        if command in ready:
            queued.remove(command)
            running.append(command)
        elif command in running:
            running.remove(command)
            ended.append(command)
            hazards.ended(command)
        else:
            ended.remove(command)
            retired.add(command.number)
            hazards.retired(command)
    assert not hazards.records(Access) and not hazards.records(Dependency)


@settings(max_examples=draws(100), deadline=None)
@given(st.lists(uses, max_size=12))
def test_what_comes_before_is_what_conflicts_and_leads_to_all_that_does(
    todo: list[tuple[list[Region], Region | None]],
) -> None:
    dependencies = Dependencies()
    commands = [new_command(number, reads, write) for number, (reads, write) in enumerate(todo)]
    reached: list[set[int]] = []
    for command in commands:
        older = commands[: command.number]
        readers = {a.number for a in older if any(conflict(w, r) for w in command.writes() for r in a.reads())}
        writers = {a.number for a in older if any(conflict(r, w) for r in command.reads() for w in a.writes())}
        overwritten = {a.number for a in older if any(conflict(w, v) for w in command.writes() for v in a.writes())}
        ends, retirements = dependencies.add(command)
        assert ends <= readers | writers and retirements <= overwritten
        reached.append((ends | retirements).union(*(reached[number] for number in ends | retirements)))
        assert readers | writers | overwritten <= reached[-1]


@settings(max_examples=draws(200), deadline=None)
@given(st.lists(regions, max_size=6), regions, st.integers(0, 2**32 - 1))
def test_parked_results_are_read_as_if_they_were_in_memory(writes: list[Region], look: Region, seed: int) -> None:
    random = np.random.default_rng(seed)
    runner = Runner(NpuConfig(spm=SpmConfig(size=4096, banks=1)))
    runner.memory.write_bytes(SPM_BASE, before := random.bytes(4096))
    wanted = Memory([("SPM0", SPM_BASE, bytearray(before))])
    execution = runner.device.host.execution
    taken: list[Region] = []
    for region in (each._replace(address=SPM_BASE + each.address) for each in writes):
        if not any(conflict(region, other) for other in taken):
            taken.append(region)
            content = random.integers(0, 256, region.payload, np.uint8)
            execution._results.store(execution.station.buffer.new_entry(), ((region, content),))
            wanted.write(region, content)
    look = look._replace(address=SPM_BASE + look.address)
    assert np.array_equal(execution._results.read(look), wanted.rows(look))
    assert runner.memory.read(SPM_BASE, 4096) == before


def test_what_is_over_is_forgotten() -> None:
    """Ten commands in flight that go through memory, and all read one table: records stay few."""
    hazards, flying = Hazards(), list[Command]()
    table = make_region(0, 1, 64)
    for number in range(3000):
        address = 4096 + 4096 * number
        command = new_command(number, [table, make_region(address, 4, 16, 64)], make_region(address + 1024, 1, 64))
        hazards.add(command)
        assert not hazards.waits(command)
        flying.append(command)
        if len(flying) == 10:
            oldest = flying.pop(0)
            hazards.ended(oldest)
            hazards.retired(oldest)
    assert hazards.records(Access) == 9 * 3


def test_a_command_keeps_no_list_of_thousands_that_it_waits_for() -> None:
    """Columns of a matrix, then its rows: each row waits for all columns."""
    hazards = Hazards()
    columns = [new_command(number, [], make_region(8 * number, 16, 8, 8000)) for number in range(1000)]
    rows = [new_command(1000 + row, [make_region(8000 * row, 1, 8000)], None) for row in range(16)]
    for command in (*columns, *rows):
        hazards.add(command)
    assert not hazards.records(Dependency)
    free: list[Command] = []
    for command in columns[::-1]:
        assert not free
        free = hazards.ended(command)
    assert free == rows


def test_writers_of_one_tile_wait_for_the_latest_of_them_only() -> None:
    """A queue of 4,096 commands that write one tile: each waits for one, however many came before."""
    hazards, tile = Hazards(), make_region(64, 1, 4096)
    queue = [new_command(number, [make_region(8192 + 64 * number, 1, 64)], tile) for number in range(4096)]
    for command in queue:
        hazards.add(command)
    assert [hazards.waits(command) for command in queue] == [0] + [1] * 4095
    for command, following in pairwise(queue):
        assert not hazards.ended(command), "results reach memory in order: a writer waits until the one before retires"
        assert hazards.retired(command) == [following]


def test_commands_that_others_release_in_one_cycle_become_ready_in_the_order_of_acceptance() -> None:
    hazards, tiles = Hazards(), [make_region(64 * index, 1, 64) for index in range(2)]
    first, second = (new_command(number, [], tile) for number, tile in enumerate(tiles))
    readers = [new_command(2 + number, [tiles[number % 2]], None) for number in range(4)]
    for command in (first, second, *readers):
        hazards.add(command)
    assert hazards.ended(first, second) == readers
