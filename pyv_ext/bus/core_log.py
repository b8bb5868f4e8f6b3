"""Core log of a machine for observers in Python (`pyv_ext.machine.log`)."""

from collections.abc import Callable, Iterable, Iterator
from struct import Struct
from typing import Any

from pyv_ext.errors import PyvExtError
from pyv_ext.machine import log
from pyv_ext.machine.state import SUBMIT_FUNCTIONS, LogKind
from pyv_native.intrinsics import address_of

CoreRow = tuple[int, int, int, int, int, int]
"""start, cycles, pc, address, value, kind: as in `pyv_ext.machine.state.CoreRecord`."""
ROW = Struct("<qqIIIB3x")
_KIND = 28
"""Byte offset of the kind in a row."""


class CoreChunk:
    """Records of the core log, an iterable of rows. It is valid until the observers that receive it return."""

    def __init__(self, data: memoryview) -> None:
        """`data`: buffer of records, of which the first `count` are the chunk."""
        self._data = data
        self.address = address_of(data)
        """Host address of the first record."""
        self.count = 0

    def __iter__(self) -> Iterator[CoreRow]:
        return ROW.iter_unpack(self._data[: ROW.size * self.count])

    def __len__(self) -> int:
        return self.count

    def kinds(self) -> bytes:
        """Return the kind of each record."""
        return bytes(self._data[_KIND : ROW.size * self.count : ROW.size])


class CoreLog:
    """Distributor of the log to its observers, in chunks."""

    def __init__(self, machine: Any, mark_return: Callable[[int], int]) -> None:
        """`machine`: view of the root record; `mark_return(address)` enables the log of returns to an address."""
        self._machine = machine
        self._mark_return = mark_return
        self._chunk = CoreChunk(machine.log.reserved())
        self._observers: list[Callable[[CoreChunk], None]] = []

    def subscribe(
        self, observer: Callable[[CoreChunk], None], kinds: Iterable[LogKind] = (), *, at_once: bool = False
    ) -> None:
        """Pass each later chunk to `observer`; `kinds` are logged in addition to those of other observers.

        `at_once`: each access of a logged register and each interrupt flush the log, so that the observer sees hart and
        devices as they are at that point.
        """
        self.read()
        self._machine.at_once = self._machine.at_once or at_once
        self._observers.append(observer)
        self._machine.base_kinds |= _bits(kinds)
        self._machine.kinds |= self._machine.base_kinds

    def unsubscribe(self, observer: Callable[[CoreChunk], None]) -> None:
        """Undo one `subscribe`; kinds stay enabled."""
        self.read()
        self._observers.remove(observer)

    def follow_submissions(self, functions: Iterable[int], kinds: Iterable[LogKind], doorbell: int) -> None:
        """Log `kinds` during submissions: from the entry of one of `functions` or, if there are none, from the first
        access of a logged register. A store to `doorbell` flushes the log."""
        addresses = sorted(functions)
        if len(addresses) > SUBMIT_FUNCTIONS:
            raise PyvExtError(f"{len(addresses)} submit functions: at most {SUBMIT_FUNCTIONS} are followed; name fewer")
        self._machine.entries.fill(addresses)
        self._machine.submission_kinds, self._machine.doorbell = _bits(kinds), doorbell

    def follow(self) -> None:
        """Follow submissions from now on."""
        log.follow(self._machine)
        self._machine.call_count = 0

    def restore(self, following: bool, handed_over: bool, depth: int, calls: Iterable[tuple[int, int, int]]) -> None:
        """Restore the state of submissions: `calls` are return address, sp and depth of active submit functions."""
        machine = self._machine
        self.follow()
        machine.logged, machine.handed_over, machine.depth = 0, handed_over, depth
        if not following:
            machine.following, machine.kinds = False, machine.base_kinds
        for call, (return_address, sp, trap_depth) in zip(machine.calls, calls, strict=False):
            machine.call_count += 1
            call.return_address, call.sp, call.depth = return_address, sp, trap_depth
            self._mark_return(return_address)

    def read(self) -> int:
        """Pass the logged records to the observers. Returns 0."""
        count = self._machine.logged
        if count:
            self._machine.logged = 0
            self._chunk.count = count
            for observer in self._observers:
                observer(self._chunk)
        return 0


def _bits(kinds: Iterable[LogKind]) -> int:
    return sum(1 << kind for kind in kinds)
