"""Isolation of one core's simulation from every other: Py-V has its lists of parts in classes.

`OwnSimulator` is Py-V's simulator with lists of its own. Parts are created, and ports are written, while it is
`active`; at all other times Py-V's classes are unchanged.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from pyv.clocked import MemList, RegList
from pyv.port import PortList
from pyv.simulator import Simulator

_LISTS = (
    (RegList, "_reg_list"),
    (MemList, "_mem_list"),
    (PortList, "port_list"),
    (PortList, "port_list_filtered"),
    (Simulator, "_stable_callbacks"),
)
"""The state that Py-V keeps in classes, besides `Simulator.globalSim`."""


class OrderedEvents:
    """Py-V's event queue, with events of equal time in the order in which they were added (stock: at random)."""

    def __init__(self) -> None:
        self._events: list[tuple[int, int, Callable[[], None]]] = []
        self._serial = 0

    def add_event(self, time_abs: int, callback: Callable[[], None]) -> None:
        self._serial += 1
        self._events.append((time_abs, self._serial, callback))
        self._events.sort(key=lambda event: event[:2])

    def get_next_event(self) -> tuple[int, int, Callable[[], None]]:
        return self._events.pop(0)

    def next_event_time(self) -> int:
        return self._events[0][0] if self._events else -1


class OwnSimulator(Simulator):
    """Change queue of one core, which executes its clock edges itself."""

    def __init__(self) -> None:
        before = Simulator.globalSim
        super().__init__()
        Simulator.globalSim = before
        self._event_queue = OrderedEvents()
        self.ports: list[Any] = []
        """Every port of the core."""
        self.active = _Active(self)
        """Context in which ports may be written: their changes enter this queue."""

    @contextmanager
    def building(self) -> Iterator[None]:
        """Collect new parts in lists of this simulator instead of Py-V's."""
        previous = [(owner, name, getattr(owner, name)) for owner, name in _LISTS]
        for owner, name in _LISTS:
            setattr(owner, name, [])
        try:
            with self.active:
                yield
        finally:
            self.ports = PortList.port_list
            for owner, name, value in previous:
                setattr(owner, name, value)

    def settle(self) -> None:
        """Evaluate until no port changes."""
        with self.active:
            self._process_changes()

    def _process_changes(self) -> None:
        queue = self._change_queue
        while queue:
            queue.popleft()()

    def _add_to_change_queue(self, fn: Callable[[], None]) -> None:
        if fn not in self._change_queue:
            self._change_queue.append(fn)

    def requeue(self, *methods: Callable[[], None]) -> None:
        """Evaluate these methods in the next cycle even if none of their ports changes."""
        for method in methods:
            self._add_to_change_queue(method)


class _Active:
    """Context in which ports report to a simulator (`contextmanager` would cost more than the code that it guards)."""

    def __init__(self, simulator: OwnSimulator) -> None:
        self._simulator = simulator
        self._before: list[object] = []

    def __enter__(self) -> None:
        self._before.append(Simulator.globalSim)
        Simulator.globalSim = self._simulator

    def __exit__(self, *error: object) -> None:
        Simulator.globalSim = self._before.pop()
