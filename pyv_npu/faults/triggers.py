"""Triggers of a plan's faults on a machine: its clock, doorbells, commands, program counter and accesses.

The triggers are a device on the clock, with a bus guard and engine hooks for the faults that need them. The core's
registers change only between two instructions: the engine stops with `BETWEEN`, the platform calls `between` and
resumes.
"""

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from heapq import heappop, heappush
from random import Random
from typing import NamedTuple, Protocol

from npu_device.device import NpuDevice
from npu_device.issue.injection import Injector
from npu_device.trace.events import FRONTEND, What
from npu_device.trace.stream import EventStream
from pyv_ext.bus.bus import Bus
from pyv_ext.bus.clock import Clock
from pyv_ext.bus.memory import PAGE
from pyv_ext.devices.clint import Clint
from pyv_ext.elf import Program
from pyv_ext.engines.core import AccessStopped, Stop, StopReason
from pyv_ext.engines.engine import Engine
from pyv_ext.hart.hart import Hart
from pyv_npu.errors import BadInputError, did_you_mean
from pyv_npu.faults.plan import Fault, Point

BETWEEN = Stop(StopReason.BREAKPOINT, text="a fault acts between two instructions")
LOAD_FAULT, STORE_FAULT = 5, 7
NPU_TRIGGERS = "doorbell", "command", "depth", "opcode"
"""Triggers that observe the NPU."""
MOST_FIRINGS = 1000
"""Maximum number of recorded firings per fault."""


class Machine(Protocol):
    """The parts of a platform on which faults act."""

    @property
    def bus(self) -> Bus: ...
    @property
    def clock(self) -> Clock: ...
    @property
    def hart(self) -> Hart: ...
    @property
    def engine(self) -> Engine: ...
    @property
    def clint(self) -> Clint: ...
    @property
    def npu(self) -> NpuDevice: ...
    @property
    def events(self) -> EventStream: ...


class Firing(NamedTuple):
    """Firing of a fault."""

    cycle: int
    ticket: int
    """Ticket of the affected command; 0: none."""
    description: str


class ArmedFault:
    """Fault of a plan with the state of its trigger."""

    def __init__(self, request: Fault, fault: Fault, number: int) -> None:
        """`request`: as in the plan; `fault`: with addresses in place of symbols."""
        self.request = request
        self.fault = fault
        self.number = number
        self.fired: list[Firing] = []
        self.remaining = fault.times
        self.active = False
        """True once the trigger has fired: the fault acts at the next point of its action."""
        self.occurrences = 0
        """Number of occurrences of its trigger."""
        at = fault.at
        self.random = Random(at.value[0]) if at is not None and at.kind == "random" else None

    def value(self, name: str) -> int:
        """Return a parameter that is a number."""
        value = self.fault.values[name]
        assert isinstance(value, int), name
        return value


class Triggers(Injector):
    """Faults of one run and their triggers; `_act` performs immediate actions."""

    name = "faults"
    irq = False
    between_instructions = BETWEEN

    def __init__(self, machine: Machine, program: Program) -> None:
        self._machine = machine
        self._program = program
        self._queue: list[tuple[int, int, Callable[[int], None]]] = []
        """Pending calls: (cycle, sequence number, call)."""
        self._sequence = 0
        self._between: list[Callable[[], None]] = []
        self._undo: list[Callable[[], None]] = []
        self.armed: list[ArmedFault] = []
        self._clear()
        self._place = machine.clock.attach(self, shared=True)
        """Index of the device at the clock."""

    def _clear(self) -> None:
        self._queue.clear()
        self._between.clear()
        self._by_trigger: dict[str, list[ArmedFault]] = defaultdict(list)
        self._by_point: dict[Point, list[ArmedFault]] = defaultdict(list)
        self._counts = {"doorbell": 0, "command": 0}
        self._recorded: dict[Point, list[int]] | None = None
        self._at_boundary = False
        self._attached = self._raw = False

    def arm(self, faults: Sequence[Fault], recorded: dict[Point, list[int]] | None = None) -> None:
        """Arm these faults in place of all others; `recorded` receives the cycles in which each point occurs.

        BadInputError for an unknown symbol.
        """
        for undo in self._undo:
            undo()
        self._undo.clear()
        self._clear()
        self.armed = [ArmedFault(fault, self._resolve(fault), number) for number, fault in enumerate(faults)]
        for armed_fault in self.armed:
            at = armed_fault.fault.at
            assert at is not None, "a campaign has drawn it"
            self._by_point[armed_fault.fault.action.point].append(armed_fault)
            if at.kind == "random":
                armed_fault.active = True
            elif at.kind == "cycle":
                self._at(at.value, lambda cycle, armed_fault=armed_fault: self._trigger(armed_fault, cycle))  # type: ignore[misc]
            elif at.kind == "pc":
                self._hook(armed_fault, at.value)
            else:
                self._by_trigger[at.kind].append(armed_fault)
        if self._by_trigger["address"]:
            self._guard()
        self._recorded = recorded
        self.detach()
        if (
            recorded is not None
            or any(self._by_trigger[kind] for kind in NPU_TRIGGERS)
            or any(armed_fault.active for armed_fault in self.armed)
        ):
            self._attach()
        self._machine.clock.changed(self._machine.clock.now)

    def _attach(self) -> None:
        """Subscribe to the NPU's points of injection."""
        if not self._attached:
            self._attached, self._raw = True, self._machine.npu.level
            self._machine.npu.inject(self)

    def detach(self) -> None:
        """Unsubscribe from the NPU's points of injection, until a fault's trigger fires."""
        self._attached = False
        self._machine.npu.inject(None)

    def _resolve(self, fault: Fault) -> Fault:
        """Return the fault with addresses in place of symbols."""
        values = {
            name: self._address(value) if fault.action.parameters[name].kind == "address" else value
            for name, value in fault.values.items()
        }
        at = fault.at
        if at is not None and at.kind == "symbol":
            at = at._replace(kind="pc", value=self._address(at.value))
        elif at is not None and at.kind == "address":
            at = at._replace(value=tuple(self._address(end) for end in at.value))
        return replace(fault, values=values, at=at)

    def _address(self, value: int | str) -> int:
        if isinstance(value, int):
            return value
        name, _, offset = value.partition("+")
        symbol = self._program.symbols.get(name.strip())
        try:
            more = int(offset, 0) if offset else 0
        except ValueError:
            raise BadInputError(f"fault: {value}: must be an address, a symbol or symbol+offset") from None
        if symbol is None:
            hint = did_you_mean(name, self._program.symbols)
            raise BadInputError(f"fault: {name}: {self._program.name} has no such symbol{hint}")
        return symbol.address + more

    # -- a device on the clock ---------------------------------------------------------------------------------

    def next_event(self) -> int | None:
        return self._queue[0][0] if self._queue else None

    def advance(self, now: int) -> None:
        while self._queue and self._queue[0][0] <= now:
            heappop(self._queue)[2](now)

    def _at(self, cycle: int, call: Callable[[int], None]) -> None:
        self._sequence += 1
        heappush(self._queue, (cycle, self._sequence, call))
        self._machine.clock.update_event(self._place)

    # -- triggers ----------------------------------------------------------------------------------------------

    def _hook(self, armed_fault: ArmedFault, pc: int) -> None:
        engine = self._machine.engine

        def reached(hart: Hart) -> None:
            self._at_boundary = True
            self._count(armed_fault, hart.cycle)
            self._at_boundary = False

        engine.code.add_hook(pc, reached)
        self._undo.append(lambda: engine.code.remove_hook(pc, reached))

    def _guard(self) -> None:
        """Watch the addresses of triggers for accesses of the core."""
        bus, watched = self._machine.bus, self._by_trigger["address"]

        def accessed(address: int, size: int, write: bool) -> None:
            for armed_fault in watched:
                assert armed_fault.fault.at is not None
                first, last = armed_fault.fault.at.value
                if first < address + size and address <= last:
                    self._count(armed_fault, self._machine.hart.cycle, (address, write))

        bus.guards.append(accessed)
        self._undo.append(lambda: bus.guards.remove(accessed))
        for armed_fault in watched:
            assert armed_fault.fault.at is not None
            first, last = armed_fault.fault.at.value
            for ram in bus.rams:
                for page in range(max(first & -PAGE, ram.base), min(last + 1, ram.end), PAGE):
                    bus.watch(page)
                    bus.watch_stores(page, _ignore_store)
                    self._undo.append(lambda page=page: bus.unwatch(page))  # type: ignore[misc]
                    self._undo.append(lambda page=page: bus.unwatch_stores(page, _ignore_store))  # type: ignore[misc]

    def _count(self, armed_fault: ArmedFault, cycle: int, access: tuple[int, bool] | None = None) -> None:
        """Count an occurrence of a fault's trigger; from occurrence `nth` on, trigger the fault."""
        armed_fault.occurrences += 1
        if (
            armed_fault.fault.at is not None
            and armed_fault.occurrences >= armed_fault.fault.at.nth
            and armed_fault.remaining > 0
        ):
            if access is None or armed_fault.fault.action.point is not Point.ACCESS:
                if armed_fault.occurrences == armed_fault.fault.at.nth:
                    self._trigger(armed_fault, cycle)
                return
            address, write = access
            self._record_firing(
                armed_fault, cycle, f"{'store to' if write else 'load from'} {address:#x} answered with an error"
            )
            self._between.append(
                lambda: self._machine.engine.trap(STORE_FAULT if write else LOAD_FAULT, address) and None
            )
            raise AccessStopped(BETWEEN)

    def _number(self, kind: str, cycle: int) -> None:
        """Count a doorbell or command, and trigger the faults of that ordinal."""
        count = self._counts[kind] = self._counts[kind] + 1
        for armed_fault in self._by_trigger[kind]:
            if armed_fault.fault.at is not None and count == armed_fault.fault.at.value:
                self._trigger(armed_fault, cycle)

    def _trigger(self, armed_fault: ArmedFault, cycle: int) -> None:
        armed_fault.active = True
        self._attach()
        if armed_fault.fault.action.point is Point.NOW:
            self._act(armed_fault, cycle)

    def _select(self, point: Point, cycle: int, *actions: str) -> list[ArmedFault]:
        """Return the faults that act at this point in this cycle; `actions`: of these only."""
        if self._recorded is not None:
            self._recorded.setdefault(point, []).append(cycle)
        return [
            armed_fault
            for armed_fault in self._by_point.get(point, ())
            if armed_fault.active
            and armed_fault.remaining > 0
            and (not actions or armed_fault.fault.do in actions)
            and (armed_fault.random is None or armed_fault.random.random() < _rate(armed_fault))
        ]

    def _record_firing(self, armed_fault: ArmedFault, cycle: int, description: str, ticket: int = 0) -> None:
        events = self._machine.events
        cycle = max(cycle, events.last_cycle)
        armed_fault.remaining -= 1
        if len(armed_fault.fired) < MOST_FIRINGS:
            armed_fault.fired.append(Firing(cycle, ticket, description))
        events.emit(cycle, FRONTEND, What.FAULT, ticket, aux=armed_fault.number)
        self._at(cycle, wake)

    def _act(self, armed_fault: ArmedFault, cycle: int) -> None:
        """Perform an immediate action."""
        raise NotImplementedError

    def between(self) -> None:
        """Perform the actions that waited for an instruction boundary, after the engine has stopped with BETWEEN."""
        waiting, self._between = self._between, []
        for call in waiting:
            call()


def _rate(armed_fault: ArmedFault) -> float:
    assert armed_fault.fault.at is not None
    rate: float = armed_fault.fault.at.value[1]
    return rate


def _ignore_store(address: int, size: int, now: int) -> None:
    """Ignore the store: the guard has seen it before."""


def wake(now: int) -> None:
    """Do nothing: the event makes the clock sample all lines, and lets an injector without pending faults detach."""
