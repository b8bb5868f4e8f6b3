"""Execution from acceptance to completion: hazards and barriers, start, end, retirement in the order of each stream."""

from collections.abc import Callable, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np

from npu_device.abi.errors import TicketError
from npu_device.abi.opcodes import Opcode
from npu_device.config import NpuConfig
from npu_device.decode.accumulators import AccumulatorMemory
from npu_device.decode.command import ACCUMULATORS_BASE, Command
from npu_device.decode.decoder import Decoder
from npu_device.event_loop import dispatch
from npu_device.event_loop.l2 import L2
from npu_device.front_end import deadlines
from npu_device.issue.compute import compute
from npu_device.issue.engines import Engines
from npu_device.issue.in_flight import InFlight, command_of, state_of
from npu_device.issue.plans import Plans
from npu_device.issue.results import Results, detach
from npu_device.issue.retirement import Completion
from npu_device.issue.station import Station
from npu_device.memory.arrays import WriteSet
from npu_device.memory.memory import Memory
from npu_device.operations.checks import DescriptorError
from npu_device.reservation import results
from npu_device.reservation.state import ENDED, RUNNING, WAITING
from npu_device.trace.events import CORE, FRONTEND, What
from npu_device.trace.stream import EventStream
from npu_device.units.state import START
from pyv_native.emitter import Definition
from pyv_native.state import LATEST, WORD32, Fields, StateError, data, inside, integer, sequence

if TYPE_CHECKING:
    from npu_device.external.link import External
    from npu_device.issue.injection import Injector


class Execution:
    """Pipeline after the front end."""

    def __init__(
        self,
        config: NpuConfig,
        memory: Memory,
        events: EventStream,
        completion: Completion,
        values: bool = True,
        analytic: bool = False,
        external: "External | None" = None,
        plans: Plans | None = None,
        interpreted: bool = False,
        prepare: Callable[[Any], None] | None = None,
    ) -> None:
        """`values`: whether results are computed; if not, only status words are written to memory. `plans`,
        `interpreted`, `prepare`: as in `Engines`."""
        self.injector: Injector | None = None
        self._memory = memory
        self._values = values
        self._external = external
        self._events = events
        self._completion = completion
        self.engines = Engines(
            config, events, lambda entry: self.station.command(entry), analytic, external, plans, interpreted, prepare
        )
        self.machine = self.engines.machine
        self.station = Station(config, self.machine, completion)
        self.l2 = L2(config, memory, self.engines.machine, events) if config.l2.enabled else None
        self._accumulators = AccumulatorMemory(config)
        incoherent = self.l2 is not None and self.l2.incoherent
        self._results = Results(memory, self.machine, self.l2 if incoherent else None)
        self._copies = values and external is None and not incoherent

    def accept_tile(self, cycle: int, entry: int, descriptor: bytes, decoder: Decoder) -> bool:
        """Accept the oldest pending submission, if it is a valid tile command."""
        command = self.station.accept_tile(entry, descriptor, decoder, cycle)
        if command is not None:
            self._report_acceptance(cycle, command)
        return command is not None

    def accept(self, cycle: int, command: Command) -> None:
        """Accept a valid command, which has its ticket and number, into its reserved entry of the queue."""
        if command.opcode is Opcode.CORE:
            self._emit_core_work(cycle, command)
        self.station.accept(cycle, command)
        self._report_acceptance(cycle, command)

    def _report_acceptance(self, cycle: int, command: Command) -> None:
        if self.injector is not None:
            self.injector.accepted(cycle, command, self.machine.storage.loop.front.depth)

    def _emit_core_work(self, cycle: int, command: Command) -> None:
        """Emit the core's work that a CORE command reports by its first cycle and its number of cycles."""
        began, cycles = command.descriptor.tile_m, command.descriptor.tile_n
        elapsed = cycle - began & WORD32
        if cycles and cycles <= elapsed <= cycle:
            self._events.emit(cycle, CORE, What.CORE, command.ticket, command.descriptor.function, cycles, elapsed)

    def request_start(self, cycle: int) -> None:
        """Schedule the start of commands after a change that may permit it."""
        self.machine.call(deadlines.request_event, START, cycle)

    def in_flight(self) -> list[Command]:
        """Return the accepted commands that have not retired, oldest first."""
        return list(self.station.commands)

    def fail(self, cycle: int, reason: str) -> None:
        """End the tickets of all work in flight with errors. The caller calls `reset` next."""
        for command in self.in_flight():
            code, opcode = TicketError.RESET, command.opcode
            unit = self.station.entry(command).unit
            self._completion.error(cycle, command.ticket, code, reason, None, command.number, opcode, unit)
        if self.l2 is not None:
            self.l2.flush(cycle)

    def reset(self) -> None:
        """Reset the event loop, including the front end, to the state after power-up."""
        self.engines.reset()
        self.station.reset()
        self._results.reset()

    # -- snapshots ---------------------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """Return the state of a snapshot."""
        station = self.station
        domains = station.domains()
        commands = [
            state_of(
                command, station.entry(command), self._outputs(command), station.epochs_of(command, domains),
                station.sums,
            )
            for command in self.in_flight()
        ]  # fmt: skip
        return {
            "barriers": station.barriers(),
            "sums": station.sums.state(),
            "accumulators": self._accumulator_contents() if self._values else [],
            "commands": commands,
            "freed": [command.number for command in station.released()],
            "engines": self.engines.state(),
        }

    def _outputs(self, command: Command) -> WriteSet | None:
        """Return the outputs of a command that are not in memory yet; None before its start or without values."""
        entry, total = self.station.entry(command), None
        if command.result is not None or not self._values or entry.stage == WAITING:
            return command.result
        if command.order.holds and entry.stage == RUNNING:
            total = self._accumulators.read(command)
        return WriteSet(self._results.outputs(entry), total)

    def _accumulator_contents(self) -> list[list[Any]]:
        """Return [offset, bytes] of all sums in the accumulators."""
        regions = chain.from_iterable(command.accumulator_regions for command in self.in_flight())
        return [
            [region.address - ACCUMULATORS_BASE, self._accumulators.bytes_of(region).tobytes()]
            for region in sorted({*self.station.sums.regions(), *regions})
        ]

    def load_state(self, state: Any, decoder: Decoder) -> None:
        """Restore a state."""
        fields = Fields(state, "barriers", "sums", "accumulators", "commands", "freed", "engines")
        restored: list[InFlight] = []
        for index, item in enumerate(fields.sequence("commands")):
            with inside("commands", index):
                restored.append(command_of(item, decoder, self.station.sums, self._memory, self._values))
                if index and restored[index].command.number <= restored[index - 1].command.number:
                    raise StateError("must be more than that of the command before", "number")
        station = self.station
        self.machine.reset()
        station.reset()
        fields.load("sums", station.sums)
        self._load_accumulators(fields.sequence("accumulators"))
        with inside("barriers"):
            station.load_barriers(fields["barriers"])
        self._load_commands(restored)
        by_number = {flight.command.number: flight.command for flight in restored if station.startable(flight.command)}
        freed = fields.integers("freed", 0, LATEST)
        for position, number in enumerate(freed):
            if number not in by_number or freed.count(number) > 1:
                raise StateError(f"{number} is no command that is ready", "freed", position)
        for number, command in by_number.items():
            station.load_ready(command, announced=number not in freed)
        with inside("engines"):
            running = {flight.command.number: flight.command for flight in restored if flight.entry.stage == RUNNING}
            self.engines.load_state(fields["engines"], running, self._results.read)

    def _load_commands(self, restored: Sequence[InFlight]) -> None:
        """Rebuild queue, streams, epochs, hazards and stored results from the restored commands."""
        self._results.reset()
        station = self.station
        epochs = [len(domain) for domain in station.domains()]
        for index, flight in enumerate(restored):
            with inside("commands", index):
                station.load_command(flight.command, flight.entry, epochs)
            if flight.entry.stage == WAITING:
                self.machine.storage.loop.front.depth += 1
            if self._external is None or flight.entry.stage == ENDED:
                self._store_results(flight.command)
        with inside("commands"):
            station.load_ends((flight.command, flight.entry) for flight in restored)
        for index, (command, entry) in enumerate(restored):
            units = self.engines.units(command.unit_class)
            with inside("commands", index):
                oldest = station.is_oldest(command)
                if (entry.stage == ENDED and oldest) or (entry.stage == RUNNING and command.unit_class is None):
                    raise StateError("a command like this one retires at once", "stage")
                allowed = {RUNNING: units, WAITING: (FRONTEND,), ENDED: (*units, FRONTEND)}[entry.stage]
                if command.unit not in allowed:
                    raise StateError(f"{command.unit:#x} is none for this command", "unit")
                if entry.stage != WAITING and station.blocked(command):
                    raise StateError("the command waits for others", "stage")

    def _load_accumulators(self, items: Sequence[Any]) -> None:
        """Restore the bytes of the accumulators. Raise StateError."""
        content = self._accumulators.content
        for index, item in enumerate(items):
            with inside("accumulators", index):
                begin, values = sequence(item, 2)
                begin, values = integer(begin, 0, len(content)), data(values)
                if begin + len(values) > len(content):
                    raise StateError(f"must be in the first {len(content)} bytes")
                content[begin : begin + len(values)] = np.frombuffer(values, np.uint8)

    # -- start -------------------------------------------------------------------------------------------------

    def run(self, function: Definition, *arguments: int) -> int:
        """Call `dispatch.run_events` or `submit_list`, until the front end must act. Return
        ACCEPTED or STARVED, else DONE."""
        storage = self.machine.storage
        words = storage.arena.words
        observed = self.injector is not None or (self.l2 is not None and self.l2.on_use is not None)
        words[storage.sampled] = self._values or self._external is not None or observed
        words[storage.copied] = self._copies and not observed
        words[storage.inspected] = self.machine.on_dropped is not None
        while True:
            words = storage.arena.words
            answer, words[storage.answer] = words[storage.answer], dispatch.DONE
            if not answer:
                answer = self.machine.call(function, *arguments)
                words = storage.arena.words
            if answer == dispatch.GRANTED:
                self.engines.grant_time(words[storage.cycle])
            elif answer in (dispatch.STARTED, dispatch.STEPPED):
                cycle, entry = words[storage.cycle], words[storage.entry]
                self._observe(cycle)
                if entry:
                    outcome = self._start(cycle, entry) if answer == dispatch.STARTED else self._end(entry)
                    storage.arena.words[storage.outcome] = outcome
            else:
                return answer

    def _observe(self, cycle: int) -> None:
        """Report dropped lines, and begin the steps on external engines in this cycle."""
        self.machine.report_dropped()
        if self._external is not None:
            self.engines.start_external_steps(cycle)
            self.machine.schedule()

    def _start(self, cycle: int, entry: int) -> int:
        """Start a command. Return its outcome for `dispatch`."""
        command, storage = self.station.command(entry), self.machine.storage
        if storage.arena.words[storage.copied] and (size := self.machine.call(results.move_size, entry)):
            self._results.reserve(size)  # native code lacked a block
            self.machine.issue.call(results.sample_move, storage.loop.tile.offset, entry)
            return dispatch.BEGIN
        if not self._sample(cycle, command):
            return dispatch.FAIL
        if self._makes_stuck(cycle, command):
            return dispatch.SKIP
        if command.macro is not None:
            self.engines.begin(cycle, command, command.macro)
            return dispatch.SKIP
        return dispatch.BEGIN

    def _makes_stuck(self, cycle: int, command: Command) -> bool:
        """Suspend the unit of a starting command if an injected fault selects it. Return True if so."""
        if self.l2 is not None and self.l2.on_use is not None:
            self.l2.on_use((*command.reads(), *command.writes()))
        if self.injector is None or not self.injector.takes(cycle, command):
            return False
        self.engines.hold(command.unit, command)
        return True

    def resume(self, cycle: int, command: Command) -> None:
        """Begin a command on the unit that was stuck with it, unless a reset has discarded it."""
        if not self.engines.free_stuck(command):
            return
        if command.macro is None:
            self.machine.call(dispatch.begin, command.entry, cycle)
        else:
            self.engines.begin(cycle, command, command.macro)
        self._observe(cycle)
        self.machine.schedule()
        self.request_start(cycle)

    def _sample(self, cycle: int, command: Command) -> bool:
        """Sample the inputs of a starting command. Return False if they are invalid and the command fails."""
        view = self.station.entry(command)
        command.unit = view.unit
        try:
            if command.macro is not None:
                command.macro = command.macro.start(self._results.read)
                if accesses := command.macro.kv_accesses:
                    self.engines.mmu.begin(cycle, command.ticket, accesses)
            if self._values:
                read = self._results.read if self._external is None else self._external.cache_reads(self._results.read)
                command.result = compute(command, read, self._accumulators)
                if self._external is not None:  # which may replace the results at the end
                    command.result = detach(command.result)
                    command.products = self._external.products(command, read)
            if self.injector is not None:
                self.injector.sampled(cycle, command)
            if self._external is None:
                self._store_results(command)
        except DescriptorError as failure:
            command.result, command.failure = None, failure
            command.unit = view.unit = FRONTEND
            view.failure = failure.code
        return command.failure is None

    # -- end and retirement ------------------------------------------------------------------------------------

    def _end(self, entry: int) -> int:
        """End a command whose last step has ended. Return its outcome for `dispatch`."""
        command = self.station.command(entry)
        if command.macro is not None:
            self.engines.release(command)
        if self._external is not None:
            if command.products is not None:
                outputs = self._external.end(command, self._accumulators)
                command.result = command.result if outputs is None else detach(outputs)
            self._store_results(command)
        return dispatch.FINISH

    def _store_results(self, command: Command) -> None:
        """Store the results of a command. Commands that depend on them start after its end."""
        result, command.result = command.result, None
        if result is not None:
            self._results.store(command.entry, result.writes)
            if result.accumulator is not None:
                self._accumulators.write(command, result.accumulator)
