"""The engines: what lies between the start of a command on a unit and its end.

The front end and the scheduler know engines only through `Engines`; another model of time replaces this module.
"""

from collections.abc import Callable
from typing import Protocol

from npu_device.command import Command
from npu_device.events import EventStream, Kind, What
from npu_device.timeline import Phase, Timeline
from npu_device.timing import Timing

Ended = Callable[[int, Command], None]

BEGIN = {Kind.TE: What.TE_BEGIN, Kind.VE: What.VE_BEGIN, Kind.DMA: What.DMA_BEGIN}
END = {Kind.TE: What.TE_END, Kind.VE: What.VE_END, Kind.DMA: What.DMA_END}


class Engines(Protocol):
    """A model of time."""

    def begin(self, cycle: int, command: Command) -> None:
        """Start `command` on the free unit `command.unit`; the model reports its end later."""

    def reset(self) -> None:
        """Forget what runs; the timeline has been cleared."""


class AnalyticEngines:
    """L1: each command takes what the closed forms of `Timing` say, whatever runs beside it.

    There is no contention for DRAM, NoC or banks here: bank busy and bank conflict counters stay 0.
    """

    def __init__(self, timing: Timing, timeline: Timeline, events: EventStream, ended: Ended) -> None:
        """`ended(cycle, command)` is called in phase END."""
        self._timing = timing
        self._timeline = timeline
        self._events = events
        self._ended = ended

    def begin(self, cycle: int, command: Command) -> None:
        kind = command.kind
        assert kind is not None
        aux = command.opcode | command.descriptor.function << 8
        self._events.emit(cycle, command.unit, BEGIN[kind], command.ticket, 0, payload(command), aux)
        traffic = self._timing.dram_traffic(command)
        self._timeline.at(cycle + self._timing.duration(command, traffic), Phase.END, self._end, (command, traffic[0]))

    def reset(self) -> None:
        pass

    def _end(self, cycle: int, ending: tuple[Command, int]) -> None:
        command, aligned = ending
        assert command.kind is not None
        self._events.emit(
            cycle, command.unit, END[command.kind], command.ticket, 0, payload(command), aligned & 0xFFFF_FFFF
        )
        self._ended(cycle, command)


def payload(command: Command) -> int:
    """Bytes that the command is about: what a transfer moves, what a computation writes."""
    return 0 if command.output is None or command.holds else command.output.region.payload
