"""RAW, WAR and WAW between commands in flight, by byte range (docs/interface.md, "Order and visibility").

Memory is a line of intervals, each with the command that wrote it last and those that have read it since. A command
waits for these in the intervals of its own regions and replaces them where it writes: a later command that uses the
same bytes waits for the newer writer, which has waited for all before it. So the cost of a command grows with its
neighbours, not with the commands in flight.

Rows with gaps between them lie in a plane, one for each distance of rows. Its columns are intervals modulo that
distance, and each column is a line of addresses: there two accesses conflict when they share a column and their
addresses overlap, the rule for equal distances. All others conflict when their addresses overlap, and there may be
thousands of them: a command watches the youngest, and checks again when that one is over.
"""

from typing import NamedTuple

from npu_device.abi.memory_map import DRAM_BASE
from npu_device.decode.command import ACCUMULATORS_BASE, Command
from npu_device.issue.ranges import InFlightRanges, Intervals
from npu_device.memory.region import Region

NO_WRITER = -1
_FEW_READERS = 16
_FEW_USES = 256
"""Up to these numbers uses that are over are not pruned."""


class _Watch(NamedTuple):
    """A command waits for all older accesses of a ranges that overlap a range."""

    command: Command
    ranges: InFlightRanges
    low: int
    end: int
    retirement: bool
    """Whether it waits until they retire."""


class _Access:
    """One command collects those that it has to wait for."""

    __slots__ = ("command", "ends", "number", "retirements", "unended", "unretired", "watches")

    def __init__(self, command: Command, unended: set[int], unretired: set[int]) -> None:
        self.command = command
        self.number = command.number
        self.unended = unended
        self.unretired = unretired
        self.ends: set[int] = set()
        """Whose end it waits for, those that are over and itself included."""
        self.retirements: set[int] = set()
        self.watches: list[_Watch] = []


class _Use:
    """The commands that use an interval, by acceptance number; some may be over."""

    __slots__ = ("limit", "readers", "writer")

    def __init__(self) -> None:
        self.writer = NO_WRITER
        self.readers: list[int] = []
        """Since it was written."""
        self.limit = _FEW_READERS
        """At how many readers those that are over are dropped."""

    def copy(self) -> "_Use":
        made = _Use()
        made.writer, made.readers = self.writer, self.readers.copy()
        return made

    def collect(self, access: _Access, writers: set[int] | None) -> None:
        """A reader waits for the writer to end: its result is forwarded. A writer also for the readers; it puts the
        writer before it into `writers`."""
        if writers is None:
            access.ends.add(self.writer)
        else:
            access.ends.update(self.readers)
            writers.add(self.writer)

    def prune(self, access: _Access) -> bool:
        """Drop the commands that are over: whether any is left."""
        if self.writer not in access.unretired:
            self.writer = NO_WRITER
        self.readers = [reader for reader in self.readers if reader in access.unended]
        self.limit = max(_FEW_READERS, 2 * len(self.readers))
        return self.writer != NO_WRITER or bool(self.readers)


class _Line(Intervals[_Use]):
    """Addresses in use."""

    __slots__ = ("limit",)

    def __init__(self) -> None:
        super().__init__()
        self.limit = _FEW_USES
        """At how many intervals those that are not in use any more are dropped."""

    def empty(self) -> _Use:
        return _Use()

    def use(self, low: int, end: int, access: _Access, writers: set[int] | None) -> None:
        """Collect the users of `low`..`end` - 1, and record the access."""
        if len(self.starts) > self.limit:
            self.keep([index for index, use in enumerate(self.contents) if use.prune(access)])
            self.limit = max(_FEW_USES, 2 * len(self.starts))
        first, last = self.cut(low, end)
        for use in self.contents[first:last]:
            use.collect(access, writers)
            if writers is None:
                if len(use.readers) >= use.limit or last - first > 1:
                    use.prune(access)
                use.readers.append(access.number)
            else:
                use.writer = access.number
                use.readers.clear()
        if last - first > 1:
            one, *others = self.contents[first:last]
            if all(one.writer == other.writer and one.readers == other.readers for other in others):
                self.join(first, last)


class _Plane(Intervals[_Line]):
    """Rows at one distance in one memory, by column and by address alone."""

    __slots__ = ("high", "key", "low", "reads", "results", "writes")

    def __init__(self, key: tuple[bool, int]) -> None:
        super().__init__()
        self.key = key
        self.reads = InFlightRanges()
        """Until they end."""
        self.writes = InFlightRanges()
        """Until they end."""
        self.results = InFlightRanges()
        """Writes until they retire."""
        self.low, self.high = ACCUMULATORS_BASE, 0
        """All its addresses lie between these."""

    def empty(self) -> _Line:
        return _Line()

    def watch(self, low: int, end: int, access: _Access, writers: set[int] | None) -> None:
        """Watch the users of these addresses, in any column."""
        if writers is None:
            waits: tuple[tuple[InFlightRanges, bool], ...] = ((self.writes, False),)
        else:
            waits = ((self.reads, False), (self.results, True))
        for ranges, retirement in waits:
            if ranges.near(low, end):
                access.watches.append(_Watch(access.command, ranges, low, end, retirement))

    def use(self, region: Region, access: _Access, writers: set[int] | None) -> None:
        """Collect the users of a region, and record the access."""
        low, end = region.address, region.end
        self.low, self.high = min(self.low, low), max(self.high, end)
        for ranges in (self.reads,) if writers is None else (self.writes, self.results):
            ranges.add(access.number, low, end)
        column, beyond = low % region.stride, low % region.stride + region.row_bytes - region.stride
        if region.row_bytes >= region.stride:
            parts = [(0, region.stride)]
        elif beyond > 0:
            parts = [(0, beyond), (column, region.stride)]
        else:
            parts = [(column, column + region.row_bytes)]
        for left, right in parts:
            first, last = self.cut(left, right)
            for line in self.contents[first:last]:
                line.use(low, end, access, writers)


class Hazards:
    """Which older commands a new one has to wait for."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Nothing is in flight."""
        self._unended: set[int] = set()
        """Acceptance numbers of the commands that have not ended."""
        self._unretired: set[int] = set()
        self._after_end: dict[int, list[Command | _Watch]] = {}
        """Waiting commands, by the number of the command that they wait for."""
        self._after_retire: dict[int, list[Command | _Watch]] = {}
        self._line = _Line()
        """What is one row."""
        self._planes: dict[tuple[bool, int], _Plane] = {}
        """By memory and distance of rows."""
        self._planes_of: dict[int, list[_Plane]] = {}
        """Of commands in flight that use any."""

    @property
    def in_flight(self) -> int:
        """Commands that have not retired."""
        return len(self._unretired)

    @property
    def intervals(self) -> int:
        """How many are known."""
        columns = [line for plane in self._planes.values() for line in plane.contents]
        return sum(len(line.starts) for line in (self._line, *columns))

    def add(self, command: Command) -> None:
        """Count in `command.hazards` what `command` waits for, and have the older commands release it.

        A reader waits for the writer to end (its result is forwarded), a writer for readers to end and for the writer
        before it to retire, so that results reach memory in order; writers of accumulators for the writer's end.
        """
        access = self._collect(command)
        number = command.number
        waits = 0
        for older in access.ends:
            if older in self._unended and older != number:
                self._after_end.setdefault(older, []).append(command)
                waits += 1
        for older in access.retirements:
            if older in self._unretired and older != number:
                self._after_retire.setdefault(older, []).append(command)
                waits += 1
        for watch in access.watches:
            waits += self._watch(watch)
        command.hazards += waits

    def before(self, command: Command) -> tuple[set[int], set[int]]:
        """Instead of `add`, where none retires: numbers of those whose end, and whose retirement, it waits for."""
        access = self._collect(command)
        for _, ranges, low, end, retirement in access.watches:
            numbers = access.retirements if retirement else access.ends
            numbers.update(ranges.overlapping(low, end, command.number))
        ignored = {NO_WRITER, command.number}
        return access.ends - ignored, access.retirements - ignored

    def _collect(self, command: Command) -> _Access:
        number = command.number
        self._unended.add(number)
        self._unretired.add(number)
        access = _Access(command, self._unended, self._unretired)
        uses: list[tuple[Region, set[int] | None]] = [(region, None) for region in command.reads()]
        for region in command.writes():
            uses.append((region, access.ends if region.address >= ACCUMULATORS_BASE else access.retirements))
        for region, writers in uses:
            low, rows, row_bytes, stride = region
            if rows == 1:
                own, end = None, low + row_bytes
                self._line.use(low, end, access, writers)
            else:
                own, end = self._plane(low >= DRAM_BASE, stride), region.end
                for use in self._line.overlapping(low, end):
                    use.collect(access, writers)
                own.use(region, access, writers)
                planes = self._planes_of.setdefault(number, [])
                if own not in planes:
                    planes.append(own)
            if self._planes:
                for plane in self._planes.values():
                    if plane is not own and low < plane.high and end > plane.low:
                        plane.watch(low, end, access, writers)
        return access

    def _plane(self, in_dram: bool, stride: int) -> _Plane:
        key = in_dram, stride
        plane = self._planes.get(key)
        if plane is None:
            plane = self._planes[key] = _Plane(key)
        return plane

    def _watch(self, watch: _Watch) -> bool:
        """Have the youngest release it; False: there is none left."""
        number = watch.ranges.youngest(watch.low, watch.end, watch.command.number)
        if number is None:
            return False
        (self._after_retire if watch.retirement else self._after_end).setdefault(number, []).append(watch)
        return True

    def ended(self, command: Command) -> list[Command]:
        """The command has read, and its results can be forwarded: which commands that sets free."""
        number = command.number
        self._unended.remove(number)
        for plane in self._planes_of.get(number, ()):
            plane.reads.remove(number)
            plane.writes.remove(number)
        waiting = self._after_end.pop(number, None)
        return self._release(waiting) if waiting else []

    def retired(self, command: Command) -> list[Command]:
        """The command's results are in memory: which commands that sets free."""
        number = command.number
        self._unretired.remove(number)
        for plane in self._planes_of.pop(number, ()):
            plane.results.remove(number)
            if not (plane.reads.alive or plane.results.alive):
                self._planes = {key: one for key, one in self._planes.items() if one is not plane}
        waiting = self._after_retire.pop(number, None)
        return self._release(waiting) if waiting else []

    def _release(self, waiting: list[Command | _Watch]) -> list[Command]:
        """One reason less for each of `waiting`: those that have no reason left."""
        free = []
        for waiter in waiting:
            if isinstance(waiter, _Watch):
                if self._watch(waiter):
                    continue
                command = waiter.command
            else:
                command = waiter
            command.hazards -= 1
            if not command.hazards:
                free.append(command)
        return free
