"""The device queue and the scheduler (docs/npu-timing.md, "Scheduler").

The queue holds accepted commands that have not started, and reserves entries for those on their way. The scheduler
chooses the next to start, and its unit.
"""

from collections import deque
from collections.abc import Callable, Collection, Iterable
from itertools import islice
from typing import TYPE_CHECKING, Any, Protocol

from npu_device.config import NpuConfig
from npu_device.issue.interrupts import Interrupts, Irq
from npu_device.trace.events import unit_code, unit_counts
from pyv_native.state import Fields

if TYPE_CHECKING:
    from npu_device.decode.command import Command, UnitClass


class CommandQueue:
    """At most `capacity` commands, in the order of acceptance."""

    def __init__(self, capacity: int, interrupts: Interrupts) -> None:
        self.capacity = capacity
        self.on_room: Callable[[int], None] | None = None
        """Called with the cycle from whose start there is room."""
        self.waiting: deque[Command] = deque()
        self._reserved = 0
        self._interrupts = interrupts
        self._wanted = False

    @property
    def room(self) -> bool:
        return len(self.waiting) + self._reserved < self.capacity

    def want(self) -> None:
        """A submission was refused or waits: IRQ_STATUS.SPACE when the queue next leaves full."""
        self._wanted = True

    def reserve(self) -> None:
        """Reserve an entry for a descriptor whose fetch begins."""
        self._reserved += 1

    def enter(self, command: "Command") -> None:
        """The command takes its reserved entry."""
        self._reserved -= 1
        self.waiting.append(command)

    def give_back(self, cycle: int) -> None:
        """The reserved entry is not needed: the descriptor was in error."""
        self._reserved -= 1
        self._left(cycle, cycle)

    def leave(self, cycle: int, index: int) -> "Command":
        """Take out the `index`-th oldest command: it starts. Fetches of this cycle came before, its room is for later
        ones."""
        command = self.waiting[index]
        del self.waiting[index]
        self._left(cycle, cycle + 1)
        return command

    def _left(self, cycle: int, room: int) -> None:
        if self._wanted:
            self._wanted = False
            self._interrupts.set(cycle, Irq.SPACE)
        if self.on_room is not None:
            self.on_room(room)

    def reset(self) -> None:
        self.waiting.clear()
        self._reserved = 0
        self._wanted = False

    def state(self) -> dict[str, Any]:
        """What a snapshot keeps; the rest follows from the commands that wait and the descriptors on their way."""
        return {"wanted": self._wanted}

    def load_state(self, state: Any) -> None:
        fields = Fields(state, "wanted")
        self.reset()
        self._wanted = fields.flag("wanted")

    def load_waiting(self, commands: "Iterable[Command]") -> None:
        """The commands that wait, in the order of acceptance."""
        self.waiting = deque(commands)


Key = Callable[["Command"], tuple[int, ...]]


def _by_age(command: "Command") -> tuple[int, ...]:
    return (command.number,)


def _by_priority(command: "Command") -> tuple[int, ...]:
    return (-command.prio, command.number)


def _by_critical_path(command: "Command") -> tuple[int, ...]:
    return (-command.descriptor.rank, -command.prio, command.number)


POLICIES: dict[str, Key] = {"fifo": _by_age, "prio": _by_priority, "cp": _by_critical_path}
"""The smallest starts first. Age is the acceptance number."""


def units_by_class(config: NpuConfig) -> "dict[UnitClass, tuple[int, ...]]":
    """The codes of the units that each class has, lowest first."""
    classes: dict[UnitClass, tuple[int, ...]] = {}
    for kind, count in unit_counts(config).items():
        for cluster in range(config.clusters):
            codes = tuple(unit_code(kind, cluster * count + index) for index in range(count))
            classes[kind, cluster, 0] = codes
            classes |= {(kind, cluster, index + 1): (code,) for index, code in enumerate(codes)}
    return classes


class Units(Protocol):
    """The engines of all clusters, as far as commands are given to them."""

    def find(self, unit_class: "UnitClass") -> int | None:
        """The lowest free unit of those that `unit_class` names: its code, or None."""


class Scheduler:
    """Looks at the oldest `window` commands that have not started."""

    def __init__(self, config: NpuConfig, units: Units) -> None:
        self._window = config.scheduler.window
        self._key = POLICIES[config.scheduler.policy]
        self._units = units
        self.reset()

    def reset(self) -> None:
        self._ready: dict[UnitClass | None, int] = {}
        """How many commands for each class of units are ready and wait, in the window or beyond."""

    def load_ready(self, commands: "Iterable[Command]") -> None:
        """These wait and are ready, as a snapshot says."""
        self.reset()
        for command in commands:
            self.ready(command)

    def ready(self, command: "Command") -> None:
        """A waiting command has become ready, and READY says so."""
        command.announced = True
        self._ready[command.unit_class] = self._ready.get(command.unit_class, 0) + 1

    def choose(self, waiting: "Collection[Command]") -> tuple[int, int | None] | None:
        """(index in `waiting`, unit code) of the command to start now; unit None for one that needs none.

        None: nothing can start.
        """
        if not waiting:
            return None
        free: dict[UnitClass, int] = {}
        for unit_class, count in self._ready.items():
            if count and unit_class is not None and (unit := self._units.find(unit_class)) is not None:
                free[unit_class] = unit
        if not free and not self._ready.get(None):
            return None
        best: Command | None = None
        best_index = 0
        for index, command in enumerate(islice(waiting, self._window)):
            if not command.announced:
                continue
            unit_class = command.unit_class
            if unit_class is None:
                if command.oldest:
                    return index, None
            elif unit_class in free and (best is None or self._key(command) < self._key(best)):
                best, best_index = command, index
        return None if best is None or best.unit_class is None else (best_index, free[best.unit_class])

    def start(self, command: "Command") -> None:
        """The choice is followed."""
        self._ready[command.unit_class] = self._ready.get(command.unit_class, 0) - 1

    def wanted(self) -> "list[UnitClass]":
        """Classes of units that ready commands wait for."""
        return [unit_class for unit_class, count in self._ready.items() if count and unit_class is not None]
