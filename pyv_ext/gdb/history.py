"""Reverse execution: back to the latest earlier snapshot, and forward from there.

A position counts what the hart has done: instructions retired and traps taken. It never falls while the machine runs,
each takes at least a cycle, and the same position is always the same state, so it names a moment exactly.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

from pyv_ext.engines.engine import Engine
from pyv_ext.gdb.pacing import Intervals

MAX_SNAPSHOTS = 32
"""Snapshots kept; beyond that every second one goes, and the distance doubles."""
STEP_DISTANCE = 16
"""From here on to the aim, step by step."""


class TimeMachine(NamedTuple):
    """Snapshots that the owner of the machine offers; their format is the owner's."""

    save: Callable[[Any], Any]
    """`save(before)`: a snapshot of now, which may share memory with `before`, an earlier one or None.

    PyvExtError when the machine cannot be saved."""
    restore: Callable[[Any], None]
    replaying: Callable[[], AbstractContextManager[None]]
    """While what has happened already happens again: output that was shown is not shown twice."""


class _Snapshot(NamedTuple):
    position: int
    snapshot: Any


class SnapshotHistory:
    """Snapshots of one run, from the first `remember` on."""

    def __init__(self, engine: Engine, machine: TimeMachine, intervals: Intervals | None = None) -> None:
        self._engine = engine
        self._machine = machine
        self._snapshots: list[_Snapshot] = []
        self._intervals = intervals or Intervals()

    @property
    def begin(self) -> int:
        """Earliest position that can be restored."""
        return self._snapshots[0].position

    @property
    def position(self) -> int:
        hart = self._engine.hart
        return hart.instret + hart.traps

    def remember(self) -> None:
        """Take a snapshot if one is due. No point may be planted."""
        if not self.due:
            return
        self._intervals.begin()
        before = self._snapshots[-1].snapshot if self._snapshots else None
        self._snapshots.append(_Snapshot(self.position, self._machine.save(before)))
        self._intervals.end()
        if len(self._snapshots) > MAX_SNAPSHOTS:
            del self._snapshots[1::2]
            self._intervals.double()

    @property
    def due(self) -> bool:
        """Check whether `remember` would take a snapshot: the latest is old enough."""
        return not self._snapshots or (self._intervals.due and self.position > self._snapshots[-1].position)

    def forget(self) -> None:
        """Drop all snapshots: the debugger has changed the machine, so its future does not follow from them."""
        self._snapshots.clear()

    def rewind(self, position: int) -> int:
        """Restore the latest snapshot at or before `position`; return its position."""
        mark = next(mark for mark in reversed(self._snapshots) if mark.position <= position)
        self._machine.restore(mark.snapshot)
        return mark.position

    def go_to(self, position: int) -> None:
        """Restore `position`, not before `begin`."""
        with self._machine.replaying():
            self.rewind(position)
            while self.position < position:
                self.approach(position)

    def replaying(self) -> AbstractContextManager[None]:
        """Return the context in which a caller replays by `rewind` and `approach`."""
        return self._machine.replaying()

    def approach(self, position: int) -> bool:
        """Run towards a later position without passing it; return whether the run was stopped on the way."""
        engine, distance = self._engine, position - self.position
        if distance < STEP_DISTANCE or engine.hart.waiting is not None:
            return engine.step() is not None
        return engine.run(engine.hart.cycle + distance) is not None
