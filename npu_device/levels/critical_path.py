"""Critical path of a list of commands: its cycles with a unit for every step, a lower bound of every run.

A step begins when its command may start and its predecessors have completed. Its duration is that of CA_HYBRID without
contention, with a warm pipeline, and with hits in the L2 for all cacheable transfers.
"""

from collections.abc import Sequence
from typing import NamedTuple

from npu_device.abi.descriptor import Descriptor
from npu_device.abi.errors import NpuDeviceError
from npu_device.abi.opcodes import Opcode, Scope
from npu_device.config import NpuConfig
from npu_device.cost.durations import Timing
from npu_device.cost.plan import NONE, single
from npu_device.cost.tensor import once_per_command
from npu_device.decode.command import Command, units_by_class
from npu_device.decode.decoder import Decoder
from npu_device.event_loop.encoding import locate
from npu_device.issue.mmu import Mmu
from npu_device.memory.memory import Memory
from npu_device.operations.checks import DescriptorError
from npu_device.operations.macro.base import setting_of
from npu_device.reservation.buffer import Dependencies
from npu_device.reservation.state import STREAMS
from npu_device.reservation.sums import Accumulators
from npu_device.trace.events import Kind


class Path(NamedTuple):
    """Critical path of a list of commands."""

    cycles: int
    """Cycle of the last completion."""
    engines: tuple[tuple[int, int], ...]
    """(kind, maximum number of engines in parallel) of each command."""
    waits: tuple[tuple[int, ...], ...] = ()
    """Indices of the older commands on which each command has a hazard, ascending."""


NO_PATH = Path(0, ())


class _Domain:
    """Barriers of a domain: `latest` is the last completion so far, `gate` the earliest start of a new command."""

    def __init__(self) -> None:
        self.latest = 0
        self.gate = 0

    def stamp(self) -> None:
        self.gate = self.latest


class CriticalPath:
    """Critical path of lists of commands on a device."""

    def __init__(self, config: NpuConfig, memory: Memory) -> None:
        """`memory`: memory that commands read when they start."""
        self._timing = Timing(config)
        self._setting = setting_of(config)
        self._decoder = Decoder(config, memory, Accumulators(config))
        self._memory = memory
        self._config = config
        self._mmu: Mmu | None = None
        self._units = units_by_class(config)
        self._once = once_per_command(config.te)
        self._streams = [_Domain() for _ in range(STREAMS)]
        self._clusters = [_Domain() for _ in range(config.clusters)]
        self._global = _Domain()
        self._engines: list[tuple[int, int]] = []

    def walk(self, descriptors: Sequence[Descriptor], accepted: Sequence[int]) -> Path:
        """Return the path. `accepted`: cycle of acceptance of each command.

        Raise NpuDeviceError for a command that the device would end with an error.
        """
        dependencies = Dependencies()
        stops: list[int] = []
        done: list[int] = []
        waits: list[tuple[int, ...]] = []
        retired = [0] * STREAMS
        for index, descriptor in enumerate(descriptors):
            command = self._decode(index, descriptor)
            domains = (self._streams[command.stream], self._clusters[command.descriptor.cluster], self._global)
            ends, retirements = dependencies.add(command)
            waits.append(tuple(sorted(number - 1 for number in ends | retirements)))
            start = max(accepted[index], *(domain.gate for domain in domains))
            start = max([start, *(stops[number - 1] for number in ends), *(done[number - 1] for number in retirements)])
            if command.kind is None:
                scope = self._scope(command)
                self._engines.append((Kind.FRONTEND, 0))
                stops.append(max(start, retired[command.stream], scope.latest if scope else 0))
            else:
                stops.append(self._end(command, start))
            done.append(max(stops[index], retired[command.stream]))
            retired[command.stream] = done[index]
            for domain in domains:
                domain.latest = max(domain.latest, done[index])
            if (scope := self._scope(command)) is not None:
                scope.stamp()
        return Path(max(done, default=0), tuple(self._engines), tuple(waits))

    def _decode(self, index: int, descriptor: Descriptor) -> Command:
        try:
            command = self._decoder.decode(descriptor, 0, 0)
            if command.macro is not None:
                command.macro = command.macro.start(self._memory.rows)
                if accesses := command.macro.kv_accesses:
                    self.mmu.begin(0, 0, accesses)
        except DescriptorError as error:
            raise NpuDeviceError(f"command {index}: {error.code.name}: {error.reason}; correct the list") from None
        command.number = command.ticket = index + 1
        return command

    @property
    def mmu(self) -> Mmu:
        """MMU of encoded keys and values, created at first use since most lists have none."""
        if self._mmu is None:
            self._mmu = Mmu(self._config)
        return self._mmu

    def _scope(self, command: Command) -> _Domain | None:
        if command.opcode is not Opcode.BARRIER:
            return None
        return {
            Scope.TILE: self._streams[command.stream],
            Scope.CLUSTER: self._clusters[command.descriptor.cluster],
            Scope.GLOBAL: self._global,
        }[Scope(command.descriptor.function)]

    def _end(self, command: Command, start: int) -> int:
        """Return the cycle of the last result of a command that starts in `start`."""
        macro, kind = command.macro, command.kind
        assert kind is not None
        if macro is None:
            assert command.order.step is not None, "what runs on a unit has a step"
            plan = single(*command.order.step)
            lanes = 1
        else:
            moves = kind is Kind.DMA
            units = self._units[kind, command.descriptor.cluster, 0 if moves else command.affinity]
            lanes = 1 if moves else macro.lanes(len(units))
            plan = macro.plan(self._setting, lanes)
            if accesses := macro.kv_accesses:
                plan = self.mmu.translate(plan, accesses)
        self._engines.append((kind, lanes))
        pieces, index = locate(plan, self._timing)
        costs = [self._timing.cost(piece) for piece in pieces]
        releases: list[int] = []
        done: list[int] = []
        once = self._once
        for piece, after in zip(index.tolist(), plan.after.tolist(), strict=True):
            cost = costs[piece]
            reads = cost.kind is Kind.DMA and not cost.write
            ends = releases if reads else done
            begin = max([start, *(ends[predecessor] for predecessor in after if predecessor != NONE)])
            cycles = cost.cached_duration if cost.kind is Kind.DMA else cost.duration
            if cost.kind is Kind.TE:
                cycles += once
                once = 0
            releases.append(begin + max(0, cycles))
            done.append(releases[-1] + cost.drain)
        return max(done, default=start)
