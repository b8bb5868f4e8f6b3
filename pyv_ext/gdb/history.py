"""Reverse execution: restore of the latest earlier snapshot, and replay from there.

A position (`Hart.position`) never decreases while the machine runs, and equal positions have equal states.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

from pyv_ext.engines.engine import Engine
from pyv_ext.gdb.pacing import Intervals

MAX_SNAPSHOTS = 32
"""Maximum number of snapshots; beyond it every second snapshot is deleted, and the interval doubles."""
STEP_DISTANCE = 16
"""Distance to a target position below which the replay steps single instructions."""


class TimeMachine(NamedTuple):
    """Snapshot functions of the owner of the machine, who defines the format of snapshots."""

    save: Callable[[Any], Any]
    """`save(before)`: a snapshot of the current state, which may share memory with `before`, an earlier snapshot or
    None. PyvExtError if the machine cannot be saved."""
    restore: Callable[[Any], None]
    replaying: Callable[[], AbstractContextManager[None]]
    """Context of a replay, during which output is not shown again."""


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

    def remember(self) -> None:
        """Take a snapshot if it is due. No point may be planted."""
        if not self.is_due:
            return
        self._intervals.begin()
        previous = self._snapshots[-1].snapshot if self._snapshots else None
        self._snapshots.append(_Snapshot(self._engine.hart.position, self._machine.save(previous)))
        self._intervals.end()
        if len(self._snapshots) > MAX_SNAPSHOTS:
            del self._snapshots[1::2]
            self._intervals.double()

    @property
    def is_due(self) -> bool:
        """Check whether `remember` would take a snapshot: the latest is old enough."""
        if not self._snapshots:
            return True
        return self._intervals.is_due and self._engine.hart.position > self._snapshots[-1].position

    def forget(self) -> None:
        """Delete all snapshots: the debugger has changed the machine, so replays from them would differ."""
        self._snapshots.clear()

    def rewind(self, position: int) -> int:
        """Restore the latest snapshot at or before `position`; return its position."""
        mark = next(mark for mark in reversed(self._snapshots) if mark.position <= position)
        self._machine.restore(mark.snapshot)
        return mark.position

    def restore_position(self, position: int) -> None:
        """Restore `position`, not before `begin`."""
        with self._machine.replaying():
            self.rewind(position)
            while self._engine.hart.position < position:
                self.approach(position)

    def replaying(self) -> AbstractContextManager[None]:
        """Return the context in which a caller replays by `rewind` and `approach`."""
        return self._machine.replaying()

    def approach(self, position: int) -> bool:
        """Run towards a later position without passing it; return whether the run was stopped on the way."""
        engine, distance = self._engine, position - self._engine.hart.position
        if distance < STEP_DISTANCE or engine.hart.waiting is not None:
            return engine.step() is not None
        return engine.run(engine.hart.cycle + distance) is not None
