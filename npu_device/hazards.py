"""RAW, WAR and WAW between commands in flight, by byte range (specification 20, "Order and visibility").

A range is known once however many commands name it; a write replaces what it covers, because whatever comes later and
meets the covered range meets the write too. So the tables hold a few ranges, not the queue, and a look-up touches only
ranges near the one asked for. Readers look at ranges that are written only, however many are read.
"""

from bisect import bisect_left
from collections.abc import Iterator
from typing import Generic, TypeVar

from npu_device.command import Command
from npu_device.held import HELD_SUMS
from npu_device.region import Region, conflict


class _Range:
    """A region in use."""

    __slots__ = ("address", "class_", "end", "region", "serial")

    def __init__(self, region: Region, serial: int) -> None:
        self.region = region
        self.address = region.address
        self.end = region.end
        self.class_ = (self.end - region.address).bit_length()
        self.serial = serial


class _Written(_Range):
    """The last writer until it retires, or for held sums until it ends."""

    __slots__ = ("writer",)

    writer: Command


class _Read(_Range):
    """Those that have read it since it was written, by number, until they end."""

    __slots__ = ("readers",)

    def __init__(self, region: Region, serial: int) -> None:
        super().__init__(region, serial)
        self.readers: dict[int, Command] = {}


_R = TypeVar("_R", bound=_Range)


class _Table(Generic[_R]):
    """Ranges, in the order of addresses within their class of size."""

    def __init__(self, make: type[_R]) -> None:
        self._make = make
        self._ranges: dict[Region, _R] = {}
        self._classes: dict[int, list[tuple[int, int, _R]]] = {}
        """Ranges shorter than 2^class bytes, by (address, serial)."""
        self._serial = 0

    def __len__(self) -> int:
        return len(self._ranges)

    def meeting(self, region: Region) -> Iterator[_R]:
        """Ranges that conflict with a region."""
        low, end = region.address, region.end
        simple = region.rows == 1
        for class_, rows in self._classes.items():
            at = bisect_left(rows, (low - (1 << class_) + 1,))
            count = len(rows)
            while at < count:
                row = rows[at]
                if row[0] >= end:
                    break
                met = row[2]
                if met.end > low and (simple or met.region.rows == 1 or conflict(region, met.region)):
                    yield met
                at += 1

    def find(self, region: Region) -> _R | None:
        return self._ranges.get(region)

    def use(self, region: Region) -> _R:
        """The range of a region, a new one if there is none."""
        used = self._ranges.get(region)
        if used is None:
            self._serial += 1
            used = self._ranges[region] = self._make(region, self._serial)
            rows = self._classes.get(used.class_)
            if rows is None:
                rows = self._classes[used.class_] = []
            row = (used.address, used.serial, used)
            rows.insert(bisect_left(rows, row[:2]), row)
        return used

    def forget(self, used: _R) -> None:
        if self._ranges.get(used.region) is used:
            del self._ranges[used.region]
            rows = self._classes[used.class_]
            del rows[bisect_left(rows, (used.address, used.serial))]

    def clear(self) -> None:
        self._ranges.clear()
        self._classes.clear()


class Hazards:
    """Which older commands a new one has to wait for."""

    def __init__(self) -> None:
        self._written = _Table(_Written)
        self._read = _Table(_Read)
        self._uses: dict[int, tuple[list[_Read], list[_Written]]] = {}
        """Ranges of each command in flight, by acceptance number."""

    def __len__(self) -> int:
        """Ranges in use."""
        return len(self._written) + len(self._read)

    def add(self, command: Command) -> None:
        """Count the older commands that `command` waits for in `command.hazards`, and have them release it.

        A reader waits for the writer to end (its result is forwarded), a writer for readers to end and for the writer
        before it to retire, so that results reach memory in order.
        """
        reads, writes = command.reads(), command.writes()
        waits = 0
        for region in reads:
            for met in self._written.meeting(region):
                if not met.writer.ended:
                    met.writer.after_end.append(command)
                    waits += 1
        for region in writes:
            waits += self._displace(command, region)
        command.hazards += waits
        number = command.number
        read = [self._read.use(region) for region in reads]
        for use in read:
            use.readers[number] = command
        written = [self._written.use(region) for region in writes]
        for made in written:
            made.writer = command
        self._uses[number] = read, written

    def _displace(self, command: Command, region: Region) -> int:
        """A write waits for who uses its region, and replaces what it covers: how many it waits for."""
        waits = 0
        low, end, whole, held = region.address, region.end, region.rows == 1, region.address >= HELD_SUMS
        covered = []
        for met in self._written.meeting(region):
            (met.writer.after_end if held else met.writer.after_retire).append(command)
            waits += 1
            if whole and low <= met.address and met.end <= end:
                covered.append(met)
        for old in covered:
            self._written.forget(old)
        gone = []
        for use in self._read.meeting(region):
            for reader in use.readers.values():
                reader.after_end.append(command)
            waits += len(use.readers)
            if use.region == region or (whole and low <= use.address and use.end <= end):
                gone.append(use)
        for use in gone:
            self._read.forget(use)
        return waits

    def ended(self, command: Command) -> list[Command]:
        """The command has read, and its results can be forwarded: which commands that sets free."""
        read, written = self._uses[command.number]
        for use in read:
            use.readers.pop(command.number, None)
            if not use.readers:
                self._read.forget(use)
        for made in written:
            if made.address >= HELD_SUMS and made.writer is command:
                self._written.forget(made)
        return _release(command.after_end) if command.after_end else []

    def retired(self, command: Command) -> list[Command]:
        """The command's results are in memory: which commands that sets free."""
        for made in self._uses.pop(command.number)[1]:
            if made.writer is command:
                self._written.forget(made)
        return _release(command.after_retire) if command.after_retire else []

    def reset(self) -> None:
        self._written.clear()
        self._read.clear()
        self._uses.clear()


def _release(waiting: list[Command]) -> list[Command]:
    """One reason less for each of `waiting`: those that have no reason left."""
    free = []
    for command in waiting:
        command.hazards -= 1
        if not command.hazards:
            free.append(command)
    waiting.clear()
    return free
