"""RAW, WAR and WAW between commands in flight, by byte range (specification 20, "Order and visibility").

A range is known once however many commands name it; a write replaces what it covers, because whatever comes later and
meets the covered range meets the write too. So the table holds a few ranges, not the queue, and a look-up touches only
ranges near the one asked for.
"""

from bisect import bisect_left
from collections.abc import Iterator

from npu_device.command import Command
from npu_device.held import HELD_SUMS
from npu_device.region import Region, conflict

_Row = tuple[int, int, "Range"]


class Range:
    """A region in use: its last writer until that retires, and those that have read it since until they end."""

    __slots__ = ("class_", "end", "readers", "region", "serial", "writer")

    def __init__(self, region: Region, serial: int) -> None:
        self.region = region
        self.end = region.end
        self.class_ = (self.end - region.address).bit_length()
        self.serial = serial
        self.writer: Command | None = None
        self.readers: dict[int, Command] = {}


class Hazards:
    """Which older commands a new one has to wait for."""

    def __init__(self) -> None:
        self._ranges: dict[Region, Range] = {}
        self._classes: dict[int, list[_Row]] = {}
        """Ranges shorter than 2^class bytes, by (address, serial)."""
        self._serial = 0
        self._used: dict[int, tuple[list[Range], list[Range]]] = {}
        """Ranges that each command in flight reads and writes, by acceptance number."""

    def add(self, command: Command) -> None:
        """Count the older commands that `command` waits for in `command.hazards`, and have them release it.

        A reader waits for the writer to end (its result is forwarded), a writer for readers to end and for the writer
        before it to retire, so that results reach memory in order.
        """
        reads, writes = command.reads(), command.writes()
        for region in reads:
            for met in self._meeting(region):
                writer = met.writer
                if writer is not None and not writer.ended:
                    writer.after_end.append(command)
                    command.hazards += 1
        covered = []
        for region in writes:
            for met in self._meeting(region):
                writer = met.writer
                if writer is not None:
                    (writer.after_retire if region.address < HELD_SUMS else writer.after_end).append(command)
                    command.hazards += 1
                for reader in met.readers.values():
                    reader.after_end.append(command)
                    command.hazards += 1
                if region.rows == 1 and region.address <= met.region.address and met.end <= region.end:
                    covered.append(met)
        read = [self._use(region) for region in reads]
        for used in read:
            used.readers[command.number] = command
        for old in covered:
            self._forget(old)
        written = [self._use(region) for region in writes]
        for used in written:
            used.writer = command
            used.readers.clear()
        self._used[command.number] = read, written

    def ended(self, command: Command) -> list[Command]:
        """The command has read, and its results can be forwarded: which commands that sets free."""
        read, written = self._used[command.number]
        for used in read:
            used.readers.pop(command.number, None)
            self._tidy(used)
        for used in written:
            if used.region.address >= HELD_SUMS:
                self._written(used, command)
        return _release(command.after_end)

    def retired(self, command: Command) -> list[Command]:
        """The command's results are in memory: which commands that sets free."""
        for used in self._used.pop(command.number)[1]:
            self._written(used, command)
        return _release(command.after_retire)

    def reset(self) -> None:
        self._ranges.clear()
        self._classes.clear()
        self._used.clear()

    # -- the table ---------------------------------------------------------------------------------------------

    def _meeting(self, region: Region) -> Iterator[Range]:
        low, end = region.address, region.end
        for class_, rows in self._classes.items():
            at = bisect_left(rows, (low - (1 << class_) + 1,))
            while at < len(rows) and rows[at][0] < end:
                met = rows[at][2]
                if met.end > low and conflict(region, met.region):
                    yield met
                at += 1

    def _use(self, region: Region) -> Range:
        used = self._ranges.get(region)
        if used is None:
            self._serial += 1
            used = self._ranges[region] = Range(region, self._serial)
            rows = self._classes.setdefault(used.class_, [])
            row = (region.address, used.serial, used)
            rows.insert(bisect_left(rows, row[:2]), row)
        return used

    def _forget(self, used: Range) -> None:
        if self._ranges.get(used.region) is used:
            del self._ranges[used.region]
            rows = self._classes[used.class_]
            del rows[bisect_left(rows, (used.region.address, used.serial))]

    def _written(self, used: Range, command: Command) -> None:
        if used.writer is command:
            used.writer = None
            self._tidy(used)

    def _tidy(self, used: Range) -> None:
        if used.writer is None and not used.readers:
            self._forget(used)


def _release(waiting: list[Command]) -> list[Command]:
    """One reason less for each of `waiting`: those that have no reason left."""
    free = []
    for command in waiting:
        command.hazards -= 1
        if not command.hazards:
            free.append(command)
    waiting.clear()
    return free
