"""From acceptance to completion: hazards and barriers, start, end, retirement in the order of each stream."""

from collections import deque
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from npu_device.abi.errors import TicketError
from npu_device.abi.opcodes import Opcode, TicketState
from npu_device.config import NpuConfig
from npu_device.decode.command import AccumulatorSum, Command
from npu_device.decode.decoder import Decoder
from npu_device.event_loop.l2 import L2
from npu_device.event_loop.timeline import Agenda, Phase, Timeline
from npu_device.issue.barriers import STREAMS, Barriers
from npu_device.issue.compute import compute
from npu_device.issue.engines import Engines
from npu_device.issue.hazards import Hazards
from npu_device.issue.in_flight import ENDED, RUNNING, WAITING, InFlight, command_of, state_of
from npu_device.issue.plans import Plans
from npu_device.issue.results import Results
from npu_device.issue.retirement import Completion, Tickets
from npu_device.issue.scheduler import CommandQueue, Scheduler
from npu_device.memory.memory import Memory
from npu_device.operations.checks import DescriptorError
from npu_device.trace.events import CORE, FRONTEND, Cause, What
from npu_device.trace.stream import EventStream
from pyv_native.state import LATEST, WORD32, Fields, StateError, inside

if TYPE_CHECKING:
    from npu_device.external.link import External
    from npu_device.issue.injection import Injector


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
        barriers: Barriers,
        values: bool = True,
        analytic: bool = False,
        external: "External | None" = None,
        plans: Plans | None = None,
        interpreted: bool = False,
    ) -> None:
        """`values`: whether results are computed; without them all memory but status words stays as it is. `plans`,
        `interpreted`: as of `Engines`."""
        self.enabled = False
        self.injector: Injector | None = None
        self._memory = memory
        self._values = values
        self._external = external
        self.barriers = barriers
        self._events = events
        self._queue = queue
        self._tickets = tickets
        self._completion = completion
        self.engines = Engines(
            config, timeline, events, self._ended, self.request_start, analytic, external, plans, interpreted
        )
        self._scheduler = Scheduler(config, self.engines)
        self._hazards = Hazards()
        self.l2 = L2(config, memory, self.engines.machine, events) if config.l2.enabled else None
        self._results = Results(memory, self.l2 if self.l2 is not None and self.l2.incoherent else None)
        self._streams: list[deque[Command]] = [deque() for _ in range(STREAMS)]
        self._freed: list[Command] = []
        self._release = Agenda(timeline, "release", Phase.RELEASE, self._release_freed)
        self._start = Agenda(timeline, "start", Phase.START, self._start_ready)
        self.agendas = self._release, self._start, *self.engines.agendas

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
        if command.opcode is Opcode.CORE:
            self._core_worked(cycle, command)
        self._hazards.add(command)
        if not command.hazards and not command.gates:
            self._ready(cycle, command)
        if self.injector is not None:
            self.injector.accepted(cycle, command, len(self._queue.waiting))

    def _core_worked(self, cycle: int, command: Command) -> None:
        """What a CORE command says of the work behind it: the cycle of its begin, and how many it took."""
        began, took = command.descriptor.tile_m, command.descriptor.tile_n
        since = cycle - began & WORD32
        if took and took <= since <= cycle:
            self._events.emit(cycle, CORE, What.CORE, command.ticket, command.descriptor.function, took, since)

    def request_start(self, cycle: int) -> None:
        """Something that may let a command start has changed."""
        self._start.request(cycle)

    def in_flight(self) -> list[Command]:
        """Commands that were accepted and have not retired, oldest first."""
        return sorted((command for stream in self._streams for command in stream), key=lambda command: command.number)

    def reset(self, cycle: int, reason: str) -> None:
        """Work in flight vanishes: its tickets become errors. The timeline has been cleared; queue and barriers are to
        be reset after this."""
        self.enabled = False
        for command in self.in_flight():
            code, opcode = TicketError.RESET, command.opcode
            self._completion.error(cycle, command.ticket, code, reason, None, command.number, opcode, command.unit)
        self._scheduler.reset()
        if self.l2 is not None:
            self.l2.flush(cycle)
        self.engines.reset()
        self._hazards.reset()
        self._results.reset()
        self._start.reset()
        for stream in self._streams:
            stream.clear()

    # -- snapshots ---------------------------------------------------------------------------------------------

    def _stage(self, command: Command) -> str:
        return ENDED if command.ended else WAITING if command in self._queue.waiting else RUNNING

    def stages(self) -> Iterable[tuple[int, TicketState]]:
        """The ticket of each command in flight, oldest first, and how far it is."""
        for command in self.in_flight():
            yield command.ticket, TicketState.QUEUED if self._stage(command) == WAITING else TicketState.RUNNING

    def state(self, sums: Sequence[AccumulatorSum]) -> dict[str, Any]:
        """What a snapshot keeps. `sums`: what commands refer to by number."""
        commands = [
            state_of(
                command, self._stage(command), self._results.parked(command.number),
                self.barriers.epochs_of(command), sums,
            )
            for command in self.in_flight()
        ]  # fmt: skip
        return {
            "enabled": self.enabled,
            "commands": commands,
            "freed": [command.number for command in self._freed],
            "engines": self.engines.state(),
        }

    def load_state(self, state: Any, decoder: Decoder, sums: Sequence[AccumulatorSum]) -> None:
        """Take on a state. Barriers have taken on theirs, without commands."""
        fields = Fields(state, "enabled", "commands", "freed", "engines")
        self.enabled = fields.flag("enabled")
        restored: list[InFlight] = []
        for index, item in enumerate(fields.listed("commands")):
            with inside("commands", index):
                restored.append(command_of(item, decoder, sums, self._memory, self._values))
                if index and restored[index].command.number <= restored[index - 1].command.number:
                    raise StateError("must be more than that of the command before", "number")
        with inside("commands"):
            self.barriers.load_commands((one.command, one.epochs) for one in restored)
        self._load_order(restored)
        self._load_sums(restored, sums)
        by_number = {one.command.number: one for one in restored}
        freed = fields.integers("freed", 0, LATEST)
        waiting = [one.command for one in restored if one.stage == WAITING]
        ready = [command for command in waiting if command.ready]
        for place, number in enumerate(freed):
            if number not in by_number or by_number[number].command not in ready or freed.count(number) > 1:
                raise StateError(f"{number} is no command that is ready", "freed", place)
        self._freed = [by_number[number].command for number in freed]
        self._queue.load_waiting(waiting)
        self._scheduler.load_ready(command for command in ready if command.number not in freed)
        with inside("engines"):
            running = {one.command.number: one.command for one in restored if one.stage == RUNNING}
            self.engines.load_state(fields["engines"], running, self._results.read)

    def _load_order(self, restored: Sequence[InFlight]) -> None:
        """Streams, hazards and results that wait follow from the commands."""
        self._hazards.reset()
        self._results.reset()
        for stream in self._streams:
            stream.clear()
        for command, _, parked, _ in restored:
            stream = self._streams[command.stream]
            command.oldest = not stream
            stream.append(command)
            command.hazards = 0
            self._hazards.add(command)
            if parked is not None:
                self._results.park(command.number, parked)
        for index, (command, stage, _, _) in enumerate(restored):
            units = self.engines.units(command.unit_class)
            with inside("commands", index):
                if stage == ENDED:
                    self._hazards.ended(command)
                if (stage == ENDED and command.oldest) or (stage == RUNNING and command.unit_class is None):
                    raise StateError("a command like this one retires at once", "stage")
                allowed = {RUNNING: units, WAITING: (FRONTEND,), ENDED: (*units, FRONTEND)}[stage]
                if command.unit not in allowed:
                    raise StateError(f"{command.unit:#x} is none for this command", "unit")
        for index, (command, stage, _, _) in enumerate(restored):
            if stage != WAITING and not command.ready:
                raise StateError("the command waits for others", "commands", index, "stage")

    def _load_sums(self, restored: Sequence[InFlight], sums: Sequence[AccumulatorSum]) -> None:
        """A sum without a value is that of a command to come."""
        begun = set()
        for command, stage, _, _ in restored:
            if stage != ENDED and not command.descriptor.accumulate:
                begun.add(id(command.accumulator))
        for index, total in enumerate(sums):
            if self._values and total.value is None and id(total) not in begun:
                raise StateError("is missing", "sums", index, "value")

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
            if unit is not None and not self._sample(cycle, command):
                unit = None
            self._scheduler.start(command)
            self._tickets.start(command.ticket)
            if unit is None:
                self._ended(cycle, command)
                continue
            command.unit = unit
            if self.l2 is not None and self.l2.on_use is not None:
                self.l2.on_use((*command.reads(), *command.writes()))
            if self.injector is not None and self.injector.takes(cycle, command):
                self.engines.stuck[unit] = command
                continue
            self.engines.begin(cycle, command)
        self.engines.schedule()
        self.engines.want(self._scheduler.wanted() if self.enabled else [])

    def resume(self, cycle: int, command: Command) -> None:
        """The unit that was stuck with a command begins it, unless a reset came first."""
        if self.engines.stuck.get(command.unit) is not command:
            return
        del self.engines.stuck[command.unit]
        self.engines.begin(cycle, command)
        self.engines.schedule()
        self.request_start(cycle)

    def _sample(self, cycle: int, command: Command) -> bool:
        """Take the inputs, at the start: False when they do not allow the command to run."""
        try:
            if command.macro is not None:
                command.macro = command.macro.start(self._results.read)
                if accesses := command.macro.kv_accesses:
                    self.engines.mmu.begin(cycle, command.ticket, accesses)
            if self._values:
                read = self._results.read if self._external is None else self._external.remembered(self._results.read)
                command.result = self._results.sampled(compute(command, read))
                if self._external is not None:
                    command.products = self._external.products(command, read)
            if self.injector is not None:
                self.injector.sampled(cycle, command)
        except DescriptorError as failure:
            command.failure = failure
        return command.failure is None

    # -- end and retirement ------------------------------------------------------------------------------------

    def _ended(self, cycle: int, command: Command) -> None:
        command.ended = True
        if self._queue.waiting and command.kind is not None and command.failure is None:
            self._start.request(cycle)
        if self._external is not None and command.products is not None:
            made = self._external.over(command)
            command.result = command.result if made is None else self._results.sampled(made)
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
            self._completion.error(
                cycle, command.ticket, failure.code, failure.reason, command.status_address, command.number,
                command.opcode,
            )  # fmt: skip
        if freed := self._hazards.retired(command):
            self._free_hazards(cycle, freed)
        if freed := self.barriers.completed(cycle, command):
            self._free_gates(cycle, freed)


def _accumulator(command: Command) -> AccumulatorSum:
    assert command.accumulator is not None
    return command.accumulator
