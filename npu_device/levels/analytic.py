"""IA_TIMING: a list of commands laid out by recurrences (docs/npu-timing.md, "Tiles at IA_TIMING").

One pass in the order of acceptance. Every unit serves in that order: one channel reads and one writes per cluster (one
does both where there is only one), a computation takes the engine that is free first. A step starts when its unit is
free and everything it depends on is over:

    load[i]  = max(load[i-1], comp[i-B_in]) + L
    comp[i]  = max(comp[i-1], load[i], store[i-B_out]) + P
    store[i] = max(store[i-1], comp[i]) + W

Durations are those of CA_HYBRID without contention. Nothing is shared and nothing conflicts.
"""

from collections.abc import Sequence
from typing import NamedTuple

from npu_device.abi.descriptor import Descriptor
from npu_device.abi.errors import NpuDeviceError
from npu_device.abi.opcodes import Opcode, Scope
from npu_device.config import NpuConfig
from npu_device.cost.durations import Timing
from npu_device.cost.plan import Plan, single
from npu_device.cost.tensor import once_per_command
from npu_device.decode.command import Command
from npu_device.decode.decoder import Decoder
from npu_device.event_loop.encoding import locate
from npu_device.issue.barriers import STREAMS
from npu_device.issue.hazards import Hazards
from npu_device.issue.results import Results
from npu_device.issue.scheduler import units_by_class
from npu_device.memory.memory import Memory
from npu_device.operations.checks import DescriptorError
from npu_device.operations.macro.base import setting_of
from npu_device.trace.events import FRONTEND, TIGHT, EventStream, Kind, What, unit_code

_BEGIN = {Kind.TE: What.TE_BEGIN, Kind.VE: What.VE_BEGIN, Kind.DMA: What.DMA_BEGIN}
_END, _START = 0, 1
"""Order of events in one cycle."""

Event = tuple[int, int, int, int, int, int, int, int, int]
"""(cycle, order, index, unit, what, ticket, tile, bytes, aux)."""


class Estimate(NamedTuple):
    """What a list of commands takes."""

    cycles: int
    """Cycle of the last completion."""
    done: tuple[int, ...]
    """Cycle of completion of each command."""


class _Domain:
    """Barriers of one scope: when everything so far is done, and what a new command waits for."""

    def __init__(self) -> None:
        self.latest = 0
        self.gate = 0

    def stamp(self) -> None:
        self.gate = self.latest


class Analytic:
    """The units of a device, each with the cycle from which it is free."""

    def __init__(
        self, config: NpuConfig, memory: Memory, events: EventStream | None = None, *, unlimited: bool = False
    ) -> None:
        """`unlimited`: as if every step had a unit to itself; what is left is the critical path."""
        self._config = config
        self._timing = Timing(config)
        self._setting = setting_of(config)
        self._decoder = Decoder(config, memory)
        self._results = Results(memory)
        self._events = events or EventStream()
        self._unlimited = unlimited
        self._units = units_by_class(config)
        self._free: dict[int, int] = {}
        self._once = once_per_command(config.te)
        self._log: list[Event] = []
        self._streams = [_Domain() for _ in range(STREAMS)]
        self._clusters = [_Domain() for _ in range(config.clusters)]
        self._global = _Domain()

    def run(self, descriptors: Sequence[Descriptor], accepted: Sequence[int]) -> Estimate:
        """Lay out all commands; `accepted`: cycle of acceptance of each.

        NpuDeviceError for a command that the device would end with an error.
        """
        hazards = Hazards()
        commands = [self._decode(index, descriptor) for index, descriptor in enumerate(descriptors)]
        ended, done = [0] * len(commands), [0] * len(commands)
        retired = [0] * STREAMS
        for index, command in enumerate(commands):
            self._emit(accepted[index], _END, FRONTEND, What.ACCEPT, command.ticket, 0, accepted[index], TIGHT)
            domains = (self._streams[command.stream], self._clusters[command.descriptor.cluster], self._global)
            ends, retirements = hazards.before(command)
            start = max(accepted[index], *(domain.gate for domain in domains))
            start = max([start, *(ended[one - 1] for one in ends), *(done[one - 1] for one in retirements)])
            if command.kind is None:
                scope = self._scope(command)
                ended[index] = max(start, retired[command.stream], scope.latest if scope else 0)
            else:
                ended[index] = self._lay_out(command, start)
            done[index] = retired[command.stream] = max(ended[index], retired[command.stream])
            self._emit(done[index], _END, command.unit, What.DONE, command.ticket, 0, 0, 0)
            for domain in domains:
                domain.latest = max(domain.latest, done[index])
            if command.opcode is Opcode.BARRIER and (scope := self._scope(command)) is not None:
                scope.stamp()
        self._flush()
        return Estimate(max(done, default=0), tuple(done))

    # -- one command -------------------------------------------------------------------------------------------

    def _decode(self, index: int, descriptor: Descriptor) -> Command:
        try:
            command = self._decoder.decode(descriptor, 0, 0)
            if command.macro is not None:
                command.macro = command.macro.start(self._results.read)
        except DescriptorError as error:
            raise NpuDeviceError(f"command {index}: {error.code.name}: {error.reason}; correct the list") from None
        command.number = command.ticket = index + 1
        return command

    def _scope(self, command: Command) -> _Domain | None:
        if command.opcode is not Opcode.BARRIER:
            return None
        return {
            Scope.TILE: self._streams[command.stream],
            Scope.CLUSTER: self._clusters[command.descriptor.cluster],
            Scope.GLOBAL: self._global,
        }[Scope(command.descriptor.function)]

    def _lay_out(self, command: Command, start: int) -> int:
        """Place the steps of a command; the cycle at which its last result is there."""
        assert command.kind is not None
        cluster = command.descriptor.cluster
        moves = command.kind is Kind.DMA
        codes = self._units[command.kind, cluster, 0 if moves else command.affinity]
        own = command.unit = self._unit(codes, command.opcode in (Opcode.STORE, Opcode.KV_APPEND), start)
        if not moves and not self._unlimited:
            start = max(start, self._free.get(own, 0))
        macro, units = command.macro, [own]
        if macro is None:
            assert command.order.step is not None, "what runs on a unit has a step"
            plan = single(*command.order.step)
        else:
            units = self._beside(command, own, start)
            units = units[: macro.lanes(len(units))]
            plan = macro.plan(self._setting, len(units))
        released, finished = self._steps(command, plan, cluster, units, start)
        if not moves:
            self._free |= {unit: max(self._free.get(unit, 0), released) for unit in units}
        return finished

    def _beside(self, command: Command, own: int, start: int) -> list[int]:
        """The units that a macro command may take: its own, and those of its kind that are free when it starts."""
        assert command.kind is not None
        if command.kind is Kind.DMA:
            return [own]
        codes = self._units[command.kind, command.descriptor.cluster, command.affinity]
        return [code for code in codes if self._unlimited or self._free.get(code, 0) <= start]

    def _steps(self, command: Command, plan: Plan, cluster: int, units: Sequence[int], start: int) -> tuple[int, int]:
        """(cycle at which all steps are over, cycle at which all results are there)."""
        pieces, index = locate(plan, self._timing)
        costs = [self._timing.cost(piece) for piece in pieces]
        over: list[int] = []
        done: list[int] = []
        once = self._once
        turn = dict.fromkeys((Kind.TE, Kind.VE), 0)
        """Steps of a class start in their order, on whichever engine."""
        columns = zip(index.tolist(), plan.tile.tolist(), plan.after.tolist(), plan.lane.tolist(), strict=True)
        for piece, tile, after, lane in columns:
            cost = costs[piece]
            kind = cost.kind
            ready = start if self._unlimited else max(start, turn.get(kind, 0))
            ends = over if kind is Kind.DMA and not cost.write else done
            for before in after:
                if before < 0:
                    break
                ready = max(ready, ends[before])
            own = kind is command.kind
            unit = units[lane] if own else self._unit(self._units[kind, cluster, 0], cost.write, ready)
            free = 0 if self._unlimited else self._free.get(unit, 0)
            begin = max(ready, free)
            cycles = cost.least if self._unlimited and kind is Kind.DMA else cost.alone
            if kind is Kind.TE:
                cycles += once + (cost.cold if not self._unlimited and (begin != free or not free) else 0)
                once = 0
            end = begin + max(0, cycles)
            self._free[unit] = end
            if kind is not Kind.DMA:
                turn[kind] = begin
            over.append(end)
            done.append(end + cost.drain)
            what = _BEGIN[kind]
            self._emit(begin, _START, unit, what, command.ticket, tile, cost.payload, cost.aux)
            for bank, cause, lost in cost.stalls:
                at = begin + self._timing.latency if kind is Kind.DMA else begin
                self._emit(at, _START, unit_code(Kind.BANK, bank), What.STALL, command.ticket, tile, lost, cause)
            self._emit(end, _END, unit, what + 1, command.ticket, tile, cost.payload, cost.aligned)
        return max(over, default=start), max(done, default=start)

    def _unit(self, codes: Sequence[int], write: bool, ready: int) -> int:
        """The channel of a direction, or the lowest of those engines that are free first from `ready` on."""
        if codes[0] >> 8 == Kind.DMA:
            return codes[1 if write and len(codes) > 1 else 0]
        soonest = max(ready, min(self._free.get(code, 0) for code in codes))
        return next(code for code in codes if self._free.get(code, 0) <= soonest)

    # -- events ------------------------------------------------------------------------------------------------

    def _emit(self, cycle: int, order: int, unit: int, what: int, ticket: int, tile: int, size: int, aux: int) -> None:
        self._log.append((cycle, order, len(self._log), unit, what, ticket, tile, size, aux))

    def _flush(self) -> None:
        for cycle, _, _, *rest in sorted(self._log):
            self._events.emit(cycle, *rest)
        self._events.flush()
        self._log.clear()
