"""Breakpoints and watchpoints: hooks in the engine and watches on the bus. Guest memory and time do not change."""

from collections.abc import Callable
from enum import Enum
from functools import partial
from typing import NamedTuple

from pyv_ext.bus.memory import PAGE
from pyv_ext.engines.core import AccessStopped, Stop, StopReason
from pyv_ext.engines.engine import Engine
from pyv_ext.errors import PyvExtError
from pyv_ext.hart.hart import Hart

BREAKPOINT = Stop(StopReason.BREAKPOINT)
MAX_POINTS = 4096
"""Maximum number of breakpoints and watchpoints together."""


class PointKind(Enum):
    """Kinds of points; the values are the names in stop replies."""

    SOFTWARE = "swbreak"
    HARDWARE = "hwbreak"
    WRITE = "watch"
    READ = "rwatch"
    ACCESS = "awatch"


BREAKPOINTS = frozenset((PointKind.SOFTWARE, PointKind.HARDWARE))


class DebugPoint(NamedTuple):
    """Breakpoint at `address`, or watchpoint on `size` bytes from there."""

    kind: PointKind
    address: int
    size: int


class Hit(NamedTuple):
    """Point that stopped the hart."""

    kind: PointKind
    address: int
    """Address of the breakpoint, or of the first watched byte that was accessed."""


Guard = Callable[[int, int, bool], None]


class DebugPoints:
    """Points of one engine. All stop before the instruction, which GDB expects of RISC-V watchpoints, too."""

    def __init__(self, engine: Engine) -> None:
        self._hit: Hit | None = None
        self.skipped_position: int | None = None
        """Position (count of instructions and traps) at which points are ignored: the hart is already stopped there."""
        self._engine = engine
        self._bus = engine.bus
        self._points: dict[DebugPoint, None] = {}
        self._guards: dict[DebugPoint, Guard] = {}
        """Guards of the planted watchpoints; without any, accesses take the fast path."""
        self._planted = False

    def take_hit(self) -> Hit | None:
        """Return the hit since the last call, and clear it."""
        hit, self._hit = self._hit, None
        return hit

    def insert(self, point: DebugPoint) -> None:
        """Set a point, unless it is set. PyvExtError for too many points."""
        if point not in self._points:
            if len(self._points) == MAX_POINTS:
                raise PyvExtError(f"there are {MAX_POINTS} breakpoints and watchpoints; delete some")
            self._points[point] = None
            if self._planted:
                self._plant(point)

    def remove(self, point: DebugPoint) -> None:
        """Remove a point, if it is set."""
        if point in self._points:
            if self._planted:
                self._unplant(point)
            del self._points[point]

    def clear(self) -> None:
        for point in tuple(self._points):
            self.remove(point)

    def plant(self) -> None:
        """Activate all points. Until `unplant` no snapshot may be taken or restored: it would contain watches."""
        self._planted = True
        for point in self._points:
            self._plant(point)

    def unplant(self) -> None:
        """Undo `plant`."""
        for point in self._points:
            self._unplant(point)
        self._planted = False

    # -- planting ----------------------------------------------------------------------------------------------

    def _plant(self, point: DebugPoint) -> None:
        if point.kind in BREAKPOINTS:
            self._engine.code.add_hook(point.address, self._on_breakpoint, first=True)
        else:
            self._guards[point] = guard = partial(self._on_access, point)
            self._bus.guards.append(guard)
        for page in self._pages(point):
            self._bus.watch(page)
            self._bus.watch_stores(page, _ignore_store)

    def _unplant(self, point: DebugPoint) -> None:
        if point.kind in BREAKPOINTS:
            self._engine.code.remove_hook(point.address, self._on_breakpoint)
        else:
            self._bus.guards.remove(self._guards.pop(point))
        for page in self._pages(point):
            self._bus.unwatch(page)
            self._bus.unwatch_stores(page, _ignore_store)

    def _pages(self, point: DebugPoint) -> list[int]:
        """Return the pages of memory whose accesses must go through the bus; accesses of devices always do."""
        if point.kind in BREAKPOINTS:
            return []
        pages = range(point.address & -PAGE, point.address + point.size, PAGE)
        return [page for page in pages if self._bus.ram_at(page, 1) is not None]

    # -- callbacks of engine and bus ---------------------------------------------------------------------------

    def _is_passing(self) -> bool:
        return self.skipped_position == self._engine.hart.position

    def _on_breakpoint(self, hart: Hart) -> Stop | None:
        if self._is_passing():
            return None
        kind = next(point.kind for point in self._points if point.address == hart.pc and point.kind in BREAKPOINTS)
        self._hit = Hit(kind, hart.pc)
        return BREAKPOINT

    def _on_access(self, point: DebugPoint, address: int, size: int, write: bool) -> None:
        kind, start, length = point
        concerns = kind is PointKind.ACCESS or (kind is PointKind.WRITE) == write
        if concerns and start < address + size and address < start + length and not self._is_passing():
            self._hit = Hit(kind, max(start, address))
            raise AccessStopped(BREAKPOINT)


def _ignore_store(address: int, size: int, now: int) -> None:
    """Ignore a store, which the guard has already checked."""
