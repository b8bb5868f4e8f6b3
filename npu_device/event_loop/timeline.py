"""The deterministic event queue of the device: a heap of (cycle, phase, sequence, action, argument).

Actions have names, so that a snapshot can keep the events to come.
"""

from collections.abc import Callable, Iterable
from enum import IntEnum
from heapq import heappop, heappush
from typing import Any, NamedTuple

from pyv_native.state import LATEST, Fields, StateError, inside, integer, listed

NEVER = LATEST
"""Later than any cycle."""


class Phase(IntEnum):
    """Order of events at equal cycles (docs/npu-timing.md, "Events"). The core acts after all of them."""

    END = 0
    RELEASE = 1
    RATE = 2
    ACCEPT = 3
    FETCH = 4
    START = 5
    IRQ = 6


class Action(NamedTuple):
    """Handler of an event: `call(cycle, argument)`."""

    name: str
    phase: Phase
    call: Callable[[int, Any], None]
    load: Callable[[Any], Any] | None
    """The argument from the list of its fields; None: there is no argument."""


class Timeline:
    """Events to come. Within one cycle and phase they happen in the order in which they were scheduled."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, int, Action, Any]] = []
        self._actions: dict[str, Action] = {}
        self._agendas: dict[str, Agenda] = {}
        self._sequence = 0
        self._until = 0

    def action(
        self, name: str, phase: Phase, call: Callable[[int, Any], None], load: Callable[[Any], Any] | None = None
    ) -> Action:
        """Name an action, which exists once."""
        assert name not in self._actions, name
        made = self._actions[name] = Action(name, phase, call, load)
        return made

    def at(self, cycle: int, action: Action, argument: Any = None) -> None:
        """Call `action.call(cycle, argument)` at the start of `cycle`; an action may schedule for its own cycle.

        The argument is None or a NamedTuple of plain data.
        """
        self._sequence += 1
        heappush(self._heap, (cycle, action.phase, self._sequence, action, argument))

    def next_event(self) -> int | None:
        """Return the cycle of the next event, or None."""
        return self._heap[0][0] if self._heap else None

    def horizon(self) -> int:
        """Return, for an action, the first cycle in which another event is due, or which `advance` was not asked
        for."""
        after = self._until + 1
        return self._heap[0][0] if self._heap and self._heap[0][0] < after else after

    def advance(self, now: int) -> None:
        """Do all that is due at the start of cycle `now` or earlier."""
        heap = self._heap
        self._until = now
        while heap and heap[0][0] <= now:
            cycle, _, _, action, argument = heappop(heap)
            action.call(cycle, argument)

    def clear(self) -> None:
        """Forget everything that was to come."""
        self._heap.clear()

    def pending(self, action: Action) -> list[tuple[int, Any]]:
        """Return (cycle, argument) of the events of an action, in their order."""
        return [(cycle, argument) for cycle, _, _, one, argument in sorted(self._heap) if one is action]

    # -- snapshots ---------------------------------------------------------------------------------------------

    def join(self, agenda: "Agenda") -> Action:
        """Return the action of an agenda, whose state is a part of the timeline's."""
        self._agendas[agenda.name] = agenda
        return self.action(agenda.name, agenda.phase, agenda.run)

    def forget(self, agendas: "Iterable[Agenda]") -> None:
        """Remove agendas; a state is loaded into the timeline afterwards."""
        for agenda in agendas:
            del self._agendas[agenda.name], self._actions[agenda.name]

    def state(self) -> dict[str, Any]:
        """Return the state of a snapshot: the events in their order."""
        events = [
            [cycle, action.name, None if argument is None else list(argument)]
            for cycle, _, _, action, argument in sorted(self._heap)
        ]
        planned = {name: agenda.planned for name, agenda in self._agendas.items() if agenda.planned != NEVER}
        return {"events": events, "planned": planned}

    def load_state(self, state: Any) -> None:
        fields = Fields(state, "events", "planned")
        heap: list[tuple[int, int, int, Action, Any]] = []
        for index, item in enumerate(fields.listed("events")):
            with inside("events", index):
                cycle, name, argument = listed(item, 3)
                action = self._actions.get(name) if type(name) is str else None
                if action is None or (argument is None) != (action.load is None):
                    raise StateError("is no event of this device")
                made = None if action.load is None else action.load(argument)
                entry = (integer(cycle, 0, LATEST), action.phase, index, action, made)
                if heap and entry < heap[-1]:
                    raise StateError("comes after a later event")
                heap.append(entry)
        given = fields["planned"]
        names = [name for name in self._agendas if name in given] if isinstance(given, dict) else []
        with inside("planned"):
            planned = Fields(given, *names)
        for name, agenda in self._agendas.items():
            agenda.planned = planned.integer(name, 0, LATEST) if name in names else NEVER
        self._heap, self._sequence = heap, len(heap)


class Agenda:
    """Action that is planned at most once per cycle, however often it is requested.

    A request for an earlier cycle than the one planned comes in addition: actions must bear being called in vain.
    """

    def __init__(self, timeline: Timeline, name: str, phase: Phase, call: Callable[[int], None]) -> None:
        self.name = name
        self.phase = phase
        self.planned = NEVER
        """The earliest cycle that was asked for and has not come."""
        self._at = timeline.at
        self._call = call
        self._action = timeline.join(self)

    def request(self, cycle: int) -> None:
        """Make sure that the action is called at `cycle` or earlier, and at `cycle` if not earlier."""
        if cycle < self.planned:
            self.planned = cycle
            self._at(cycle, self._action)

    def reset(self) -> None:
        """Clear the plan, after the timeline was cleared."""
        self.planned = NEVER

    def run(self, cycle: int, _: Any) -> None:
        """Execute the action in its cycle."""
        if self.planned == cycle:
            self.planned = NEVER
        self._call(cycle)
