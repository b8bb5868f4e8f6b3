"""Engines: run commands on units, from start to end, on the device's timeline."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from npu_device.config import NpuConfig
from npu_device.cost.plan import Column, Compute, Plan
from npu_device.decode.command import Command, UnitClass, units_by_class
from npu_device.event_loop.encoding import Encoded, encode
from npu_device.event_loop.machine import Machine
from npu_device.event_loop.snapshot import CommandPlan
from npu_device.front_end import deadlines
from npu_device.issue.plans import Plans
from npu_device.memory.arrays import Read
from npu_device.operations.macro.base import Macro, setting_of
from npu_device.reservation.state import Entry
from npu_device.trace.events import Kind
from npu_device.trace.stream import EventStream
from npu_device.units.state import GRANT
from pyv_native.state import LATEST, Fields, StateError, inside

if TYPE_CHECKING:
    from npu_device.external.link import End, External
    from npu_device.issue.mmu import Mmu


class Engines:
    """Engines with DMA channels, DRAM, NoC and banks, event by event; at IA_TIMING step by step (`fluid`).

    Steps run in bulk while no other event is due and no command waits for a free unit.
    """

    def __init__(
        self,
        config: NpuConfig,
        events: EventStream,
        command_of: Callable[[int], Command],
        analytic: bool = False,
        external: "External | None" = None,
        plans: Plans | None = None,
        interpreted: bool = False,
        prepare: Callable[[Any], None] | None = None,
    ) -> None:
        """`command_of`: returns the command of an entry. `plans`: plans shared by devices of one configuration; those
        of another configuration are ignored. `interpreted`, `prepare`: as in `Machine`."""
        if external is not None:
            config = external.adopted
        external_units = () if external is None else external.units
        self._external = external
        self._plans = plans if plans is not None and plans.fit(config) else Plans(config)
        self.machine = Machine(
            config, self._plans.pieces.timing, events, analytic=analytic, external=external_units,
            interpreted=interpreted, prepare=prepare,
        )  # fmt: skip
        self._config, self._events = config, events
        self._mmu: Mmu | None = None
        self._command_of = command_of
        self._units = units_by_class(config)
        self._setting = setting_of(config)
        self._stuck: dict[int, Command] = {}
        """Units that do not begin the command they were assigned, because of an injected fault."""
        self._tensor_steps: dict[int, Column] = {}
        """For external engines: by slot, the number of tensor steps before each step of its plan."""

    def running(self) -> dict[int, Command]:
        """Return the commands on units, by the slots of their runs."""
        return {
            slot: self._command_of(entry.offset)
            for slot, entry in enumerate(self.machine.storage.loop.running)
            if entry is not None
        }

    def hold(self, unit: int, command: Command) -> None:
        """Suspend a unit before the command that it was assigned, because of an injected fault."""
        self._stuck[unit] = command
        self.machine.set_stuck(unit, True)

    def free_stuck(self, command: Command) -> bool:
        """Resume the unit that is stuck with a command. Return False if none is."""
        if self._stuck.get(command.unit) is not command:
            return False
        del self._stuck[command.unit]
        self.machine.set_stuck(command.unit, False)
        return True

    def begin(self, cycle: int, command: Command, macro: Macro) -> None:
        """Start a command in macro form on as many free units as it can use, with the steps that can start now.

        The caller calls `schedule` in this cycle.
        """
        machine, unit_class = self.machine, command.unit_class
        assert unit_class is not None
        units = machine.free_units(*unit_class)
        units = units[: macro.lanes(len(units))]
        plan = self._encode_plan(macro, len(units))
        slot = machine.add(
            plan, command.number, command.ticket, units, command.descriptor.cluster, cycle, command.entry
        )
        if self._external is not None:
            self._tensor_steps[slot] = _tensor_steps(plan.plan)
        machine.start(cycle)

    def _encode_plan(self, macro: Macro, lanes: int) -> Encoded:
        """Return the encoded plan of a command on `lanes` units."""
        encoded, accesses = self._plans.of(macro, self._setting, lanes), macro.kv_accesses
        if not accesses:
            return encoded
        plan, pieces = self.mmu.translate(encoded.plan, accesses), self._plans.pieces
        return encoded.relocate(plan.dram) if pieces.timing.turn == 1 else encode(plan, pieces)

    @property
    def mmu(self) -> "Mmu":
        """MMU of encoded keys and values, created at first use since most runs have none."""
        if self._mmu is None:
            from npu_device.issue.mmu import Mmu

            self._mmu = Mmu(self._config, self._events)
        return self._mmu

    def priority_access(self, cycle: int, address: int, size: int) -> int:
        """Fetch a descriptor from DRAM with priority over transfers. Return its latency in cycles."""
        wait = self.machine.priority_access(cycle, address, size)
        if not self.machine.idle:
            self.machine.schedule()
        return wait

    def slow_down(self, cycle: int, factor: int) -> None:
        """Multiply the DRAM's time per byte by `factor`, until it is reset."""
        self.machine.slow_down(factor)
        self._update_rates(cycle)

    def dram_at(self, cycle: int, slowdown: int) -> None:
        """Set the DRAM's time per byte to `slowdown` times the configured one, until it is reset."""
        self.machine.dram_at(slowdown)
        self._update_rates(cycle)

    def _update_rates(self, cycle: int) -> None:
        """Share the changed rates of the DRAM from `cycle` on."""
        self.machine.start(cycle)
        self.start_external_steps(cycle)
        self.machine.schedule()

    def reset(self) -> None:
        """Discard everything that runs."""
        self._stuck.clear()
        self.machine.reset()
        self._mmu = None
        self._tensor_steps.clear()
        if self._external is not None:
            self._external.reset()

    # -- external engines --------------------------------------------------------------------------------------

    def start_external_steps(self, cycle: int) -> None:
        """Send steps that have begun in this cycle on external engines to these engines."""
        external = self._external
        if external is None:
            return
        for unit, slot, step in self.machine.pop_begun():
            command, steps = self.running()[slot], self._tensor_steps.get(slot)
            tensor = 0 if steps is None else int(steps[step])
            end = external.begin(unit, cycle, command, tensor, len(self.machine.storage.runs[slot].units))
            self._grant_unit(external, unit, cycle, end)

    def _grant_unit(self, external: "External", unit: int, cycle: int, end: "End | None") -> None:
        """Report the end of an external engine's step to the event loop. While `end` is None, grant the engine time."""
        while end is None:
            deadline = external.grant_deadline(unit, self.machine.stalled(unit))
            if deadline is None:
                return
            if deadline > cycle:
                self.machine.call(deadlines.request_event, GRANT, deadline)
                return
            end = external.grant(unit)
        self.machine.report_end(unit, *end)

    def grant_time(self, cycle: int) -> None:
        """Grant external engines the time that they requested, up to `cycle`."""
        assert self._external is not None
        for unit in self._external.running:
            self._grant_unit(self._external, unit, cycle, None)
        self.machine.schedule()

    # -- snapshots ---------------------------------------------------------------------------------------------

    def units(self, unit_class: UnitClass | None) -> tuple[int, ...]:
        """Return the codes of the units of a class; none for None."""
        return () if unit_class is None else self._units[unit_class]

    def state(self) -> dict[str, Any]:
        """Return the state of a snapshot. References to commands are their numbers."""
        loop = self.machine.storage.loop
        return {
            "requested": loop.requested,
            "ended_steps": bool(loop.ended_steps),
            "machine": self.machine.state(),
            "mmu": None if self._mmu is None else self._mmu.state(),
            "external": None if self._external is None else self._external.state(self.running().values()),
        }

    def load_state(self, state: Any, running: Mapping[int, Command], read: Read) -> None:
        """Restore a state. `running`: the commands on units, by number; `read`: reads a region as they see it."""
        fields = Fields(state, "requested", "ended_steps", "machine", "mmu", "external")
        self._mmu = None
        if fields["mmu"] is not None:
            fields.load("mmu", self.mmu)
        has_external = fields["external"] is not None
        if has_external is not (self._external is not None):
            raise StateError("was taken with engines outside" if has_external else "was taken without", "external")
        self._stuck.clear()
        loop = self.machine.storage.loop
        loop.requested = fields.integer("requested", 0, LATEST)
        loop.ended_steps = int(fields.flag("ended_steps"))

        def plan_of(number: int, units: tuple[int, ...]) -> CommandPlan:
            command = running.get(number)
            if command is None:
                raise StateError(f"{number} is no command that runs", "number")
            return self._plan_of(command, units)

        with inside("machine"):
            self.machine.load_state(fields["machine"], plan_of)
            slots = {slot: running[number] for slot, number in self.machine.numbers().items()}
            if len(slots) != len(running) or len(set(slots.values())) != len(running):
                raise StateError("these are not the commands that run", "runs")
        for slot, command in slots.items():
            self.machine.run_entry(slot, command.entry)
        if self._external is not None:
            self._tensor_steps.clear()
            for slot, command in slots.items():
                if command.macro is not None:
                    lanes = len(self.machine.storage.runs[slot].units)
                    self._tensor_steps[slot] = _tensor_steps(self._encode_plan(command.macro, max(1, lanes)).plan)
            with inside("external"):
                self._external.load_state(fields["external"], running, read)

    def _plan_of(self, command: Command, units: tuple[int, ...]) -> CommandPlan:
        """Return the plan of a command in flight on these units. Raise StateError if it cannot run on them."""
        macro = command.macro
        allowed = self.units(command.unit_class)
        ticket, cluster = command.ticket, command.descriptor.cluster
        if macro is None:
            if units != (command.unit,):
                raise StateError("are not those of the command", "units")
            return CommandPlan(ticket, cluster, None, command.order.step)
        if not set(units) <= set(allowed) or (units and macro.lanes(len(units)) != len(units)):
            raise StateError("are not those of the command", "units")
        plan = self._encode_plan(macro, max(1, len(units))).plan
        if bool(len(plan)) != bool(units):
            raise StateError("are not those of the command", "units")
        return CommandPlan(ticket, cluster, plan, None)

    def release(self, command: Command) -> None:
        """Release the slot of a command in macro form that has ended."""
        slot = self.machine.storage.arena.view(Entry, command.entry).run_slot
        self._tensor_steps.pop(slot, None)
        self.machine.release(slot)


def _tensor_steps(plan: Plan) -> Column:
    """Return for each step on a tensor engine the number of such steps before it in the plan."""
    tensor = np.array([isinstance(piece, Compute) and piece.kind is Kind.TE for piece in plan.pieces], bool)
    return np.cumsum(tensor[plan.piece]) - 1
