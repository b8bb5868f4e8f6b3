"""RAW, WAR and WAW between commands in flight, by byte range (specification 20, "Order and visibility").

A range is known once however many commands name it; a write replaces what it covers, because whatever comes later and
meets the covered range meets the write too. So the tables hold a few ranges, not the queue, and a look-up touches only
ranges near the one asked for. Readers look at ranges that are written only, however many are read.
"""

from collections.abc import Iterable
from typing import Generic, TypeVar

from npu_device.command import Command
from npu_device.held import HELD_SUMS
from npu_device.region import Region, conflict


class _Range:
    """A region in use."""

    __slots__ = ("address", "cell", "end", "region", "whole")

    def __init__(self, region: Region) -> None:
        self.region = region
        self.address = region.address
        self.end = region.end
        self.whole = region.rows == 1
        class_ = (self.end - self.address).bit_length()
        self.cell = class_, self.address >> class_
        """Its size is below 2^class; all ranges of a class that begin in the same 2^class bytes share a cell."""


class _Written(_Range):
    """The last writer until it retires, or for held sums until it ends."""

    __slots__ = ("writer",)

    writer: Command


class _Read(_Range):
    """Those that have read it since it was written, by number, until they end."""

    __slots__ = ("readers",)

    def __init__(self, region: Region) -> None:
        super().__init__(region)
        self.readers: dict[int, Command] = {}


_R = TypeVar("_R", bound=_Range)


_Cells = dict[int, list[_R]]


class _Table(Generic[_R]):
    """Ranges by class of size and by place: adding one and looking around it takes no longer when there are many."""

    def __init__(self, make: type[_R]) -> None:
        self._make = make
        self._ranges: dict[Region, _R] = {}
        self._classes: dict[int, _Cells[_R]] = {}

    def __len__(self) -> int:
        return len(self._ranges)

    def meeting(self, region: Region) -> list[_R]:
        """Ranges that conflict with a region."""
        met: list[_R] = []
        low, end, simple = region.address, region.end, region.rows == 1
        for class_, cells in self._classes.items():
            first, last = (low >> class_) - 1, end - 1 >> class_
            near: Iterable[list[_R]] = cells.values()
            if last - first < len(cells):
                near = [cells[place] for place in range(first, last + 1) if place in cells]
            for cell in near:
                for one in cell:
                    if one.end > low and one.address < end and (simple or one.whole or conflict(region, one.region)):
                        met.append(one)
        return met

    def use(self, region: Region) -> _R:
        """The range of a region, a new one if there is none."""
        used = self._ranges.get(region)
        if used is None:
            used = self._ranges[region] = self._make(region)
            class_, place = used.cell
            cells = self._classes.get(class_)
            if cells is None:
                cells = self._classes[class_] = {}
            cell = cells.get(place)
            if cell is None:
                cells[place] = [used]
            else:
                cell.append(used)
        return used

    def forget(self, used: _R) -> None:
        if self._ranges.get(used.region) is used:
            del self._ranges[used.region]
            class_, place = used.cell
            cells = self._classes[class_]
            cell = cells[place]
            cell.remove(used)
            if not cell:
                del cells[place]
                if not cells:
                    del self._classes[class_]

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
