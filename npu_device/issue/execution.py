"""From acceptance to completion: hazards and barriers, start, end, retirement in the order of each stream."""

from collections import deque

from npu_device.abi.errors import TicketError
from npu_device.abi.opcodes import Opcode
from npu_device.config import NpuConfig
from npu_device.decode.command import AccumulatorSum, Command
from npu_device.event_loop.l2 import L2
from npu_device.event_loop.timeline import Agenda, Phase, Timeline
from npu_device.issue.barriers import STREAMS, Barriers
from npu_device.issue.engines import Engines
from npu_device.issue.hazards import Hazards
from npu_device.issue.results import Results
from npu_device.issue.retirement import Completion, Tickets
from npu_device.issue.scheduler import CommandQueue, Scheduler
from npu_device.memory.memory import Memory
from npu_device.operations.checks import DescriptorError
from npu_device.trace.events import FRONTEND, Cause, EventStream, What


class Execution:
    """Everything behind the front end. `enabled` mirrors CTRL.enable: while False nothing starts."""

    def __init__(
        self,
        config: NpuConfig,
        memory: Memory,
        timeline: Timeline,
        events: EventStream,
        queue: CommandQueue,
        tickets: Tickets,
        completion: Completion,
        values: bool = True,
    ) -> None:
        """`values`: whether results are computed; without them all memory but status words stays as it is."""
        self.enabled = False
        self._values = values
        self.barriers = Barriers(config.clusters, events)
        self._events = events
        self._queue = queue
        self._tickets = tickets
        self._completion = completion
        self.engines = Engines(config, timeline, events, self._ended, self.request_start)
        self._scheduler = Scheduler(config, self.engines)
        self._hazards = Hazards()
        self.l2 = L2(config, memory, self.engines.machine, events) if config.l2.enabled else None
        self._results = Results(memory if self.l2 is None or not self.l2.incoherent else self.l2)
        self._streams: list[deque[Command]] = [deque() for _ in range(STREAMS)]
        self._freed: list[Command] = []
        self._release = Agenda(timeline, Phase.RELEASE, self._release_freed)
        self._start = Agenda(timeline, Phase.START, self._start_ready)

    def accept(self, cycle: int, command: Command) -> None:
        """A valid command, with ticket and number, takes its reserved entry of the queue."""
        command.accepted = command.hazards_clear = command.gates_clear = cycle
        if command.kind is not None:
            command.unit_class = (command.kind, command.descriptor.cluster, command.affinity)
        self._queue.enter(command)
        stream = self._streams[command.stream]
        command.oldest = not stream
        stream.append(command)
        if command.opcode is Opcode.BARRIER:
            self.barriers.accept_barrier(cycle, command)
        else:
            self.barriers.accept(command)
        self._hazards.add(command)
        if not command.hazards and not command.gates:
            self._ready(cycle, command)

    def request_start(self, cycle: int) -> None:
        """Something that may let a command start has changed."""
        self._start.request(cycle)

    def in_flight(self) -> list[Command]:
        """Commands that were accepted and have not retired, oldest first."""
        return sorted((command for stream in self._streams for command in stream), key=lambda command: command.number)

    def reset(self, cycle: int, reason: str) -> None:
        """Work in flight vanishes: its tickets become errors. The timeline has been cleared."""
        self.enabled = False
        for command in self.in_flight():
            self._completion.error(cycle, command.ticket, TicketError.RESET, reason, None, command.unit)
        self._queue.reset()
        self._scheduler.reset()
        if self.l2 is not None:
            self.l2.flush(cycle)
        self.engines.reset()
        self._hazards.reset()
        self._results.reset()
        self.barriers.reset()
        self._start.reset()
        for stream in self._streams:
            stream.clear()

    # -- release -----------------------------------------------------------------------------------------------

    def _free_hazards(self, cycle: int, commands: list[Command]) -> None:
        for command in commands:
            command.hazards_clear = cycle
        self._free(cycle, commands)

    def _free_gates(self, cycle: int, commands: list[Command]) -> None:
        for command in commands:
            command.gates_clear = cycle
        self._free(cycle, commands)

    def _free(self, cycle: int, commands: list[Command]) -> None:
        ready = [command for command in commands if command.ready]
        if ready:
            self._freed += ready
            self._release.request(cycle)

    def _release_freed(self, cycle: int) -> None:
        freed = sorted(self._freed, key=lambda command: command.number)
        self._freed.clear()
        for command in freed:
            self._ready(cycle, command)

    def _ready(self, cycle: int, command: Command) -> None:
        if cycle != command.accepted:
            hazard = command.hazards_clear - command.accepted
            barrier = command.gates_clear - command.hazards_clear
            if hazard:
                self._events.emit(cycle, FRONTEND, What.STALL, command.ticket, 0, hazard, Cause.HAZARD)
            if barrier > 0:
                self._events.emit(cycle, FRONTEND, What.STALL, command.ticket, 0, barrier, Cause.BARRIER)
        self._events.emit(cycle, FRONTEND, What.READY, command.ticket, aux=command.stream)
        self._scheduler.ready(command)
        self._start.request(cycle)

    # -- start -------------------------------------------------------------------------------------------------

    def _start_ready(self, cycle: int) -> None:
        self.engines.start(cycle)
        while self.enabled:
            choice = self._scheduler.choose(self._queue.waiting)
            if choice is None:
                break
            index, unit = choice
            command = self._queue.leave(cycle, index)
            if unit is not None and not self._sample(command):
                unit = None
            self._scheduler.start(command)
            self._tickets.start(command.ticket)
            if unit is None:
                self._ended(cycle, command)
                continue
            command.unit = unit
            if self.l2 is not None and self.l2.on_use is not None:
                self.l2.on_use((*command.reads(), *command.writes()))
            self.engines.begin(cycle, command)
        self.engines.schedule()
        self.engines.want(self._scheduler.wanted() if self.enabled else [])

    def _sample(self, command: Command) -> bool:
        """Take the inputs, at the start: False when they do not allow the command to run."""
        try:
            if command.macro is not None:
                command.macro = command.macro.start(self._results.read)
            if self._values:
                from npu_device.issue.compute import compute  # the kernels, which no run needs before its first command

                command.result = compute(command, self._results.read)
        except DescriptorError as failure:
            command.failure = failure
        return command.failure is None

    # -- end and retirement ------------------------------------------------------------------------------------

    def _ended(self, cycle: int, command: Command) -> None:
        command.ended = True
        if self._queue.waiting and command.kind is not None and command.failure is None:
            self._start.request(cycle)
        result = command.result
        if result is not None:
            self._results.park(command.number, result.writes)
            if result.accumulator is not None:
                _accumulator(command).value = result.accumulator
        command.result = None
        if freed := self._hazards.ended(command):
            self._free_hazards(cycle, freed)
        stream = self._streams[command.stream]
        while stream and stream[0].ended:
            self._retire(cycle, stream.popleft())
        if stream and not stream[0].oldest:
            stream[0].oldest = True
            self._start.request(cycle)

    def _retire(self, cycle: int, command: Command) -> None:
        self._results.publish(command.number)
        failure = command.failure
        if failure is None:
            irq = bool(command.descriptor.irq)
            self._completion.done(cycle, command.ticket, command.unit, command.status_address, irq)
        else:
            self._completion.error(cycle, command.ticket, failure.code, failure.reason, command.status_address)
        if freed := self._hazards.retired(command):
            self._free_hazards(cycle, freed)
        if freed := self.barriers.completed(cycle, command):
            self._free_gates(cycle, freed)


def _accumulator(command: Command) -> AccumulatorSum:
    assert command.accumulator is not None
    return command.accumulator
