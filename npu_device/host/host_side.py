"""Host side of a device: registers, ring, custom instructions and CSRs, and the queue behind them.

A device makes it when it is first used (`npu_device.device`).
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from npu_device.abi.opcodes import FullPolicy, Scope, TicketState
from npu_device.abi.registers import REGISTERS
from npu_device.config import NpuConfig
from npu_device.event_loop.timeline import Timeline
from npu_device.host.command_port import CommandPort
from npu_device.host.front_end import FrontEnd
from npu_device.host.registers import CsrWindow, RegisterFile
from npu_device.host.ring import Ring
from npu_device.issue.command_queue import CommandQueue
from npu_device.issue.interrupts import Interrupts
from npu_device.issue.retirement import Completion, ErrorEntry, Tickets
from npu_device.memory.memory import Memory
from npu_device.trace.counters import Counters
from npu_device.trace.stream import EventStream
from pyv_native.state import Fields, Stateful, inside

if TYPE_CHECKING:
    from npu_device.decode.command import Command
    from npu_device.decode.decoder import Decoder
    from npu_device.event_loop.l2 import L2
    from npu_device.external.link import External
    from npu_device.host.acceptance import Acceptance
    from npu_device.issue.execution import Execution
    from npu_device.issue.injection import Injector
    from npu_device.issue.plans import Plans

_CTRL = {bits.name: bits for register in REGISTERS if register.name == "CTRL" for bits in register.fields}
_ENABLE, _RESET, _FLUSH = (1 << _CTRL[name].low for name in ("ENABLE", "RESET", "FLUSH_L2"))
_POLICY = _CTRL["FULL_POLICY"]
_POLICY_MASK = (1 << _POLICY.width) - 1 << _POLICY.low


class HostSide:
    """Host side of a device.

    | attribute | for | |---|---| | `registers` | the window on the bus | | `port` | the custom instructions | | `csr` |
    the custom CSRs | | `ring` | base, size, head and tail of the descriptor ring | | `timeline` | what is to happen in
    the device |
    """

    def __init__(
        self,
        config: NpuConfig,
        memory: Memory,
        events: EventStream,
        counters: Counters,
        caps: int,
        *,
        values: bool,
        analytic: bool,
        external: "External | None",
        interpreted: bool,
    ) -> None:
        """`counters`: of the device. `caps`: of the register CAPS. The others are those of the device."""
        self._config, self._memory, self._events = config, memory, events
        self._values, self._analytic, self._external, self._interpreted = values, analytic, external, interpreted
        self.timeline = Timeline()
        self._policy = FullPolicy[config.queue.full_policy.upper()]
        self._tickets = Tickets(config.queue.history)
        self.interrupts = Interrupts(self.timeline, events)
        self.ring = Ring(config.queue.size)
        self._counters = counters
        self.queue = CommandQueue(config.device_queue, self.interrupts)
        self._completion = Completion(memory, self._tickets, self.interrupts, events)
        self._acceptance: Acceptance | None = None
        self._plans: Plans | None = None
        self._frontend = FrontEnd(
            config.frontend, memory, self.timeline, events, self.ring, self.queue, self._tickets, self.interrupts,
            self._completion, self._behind,
        )  # fmt: skip
        self.port = CommandPort(
            events, self._frontend, self.queue, self._tickets, self._stamp, self.interrupts,
            counters, lambda: self._policy,
        )  # fmt: skip
        self._completion.on_end = self.port.completed
        self.registers = RegisterFile(
            config, events, self, self.ring, self._frontend, self.queue, self._tickets, self.interrupts,
            self._completion, counters, caps,
        )  # fmt: skip
        self.csr = CsrWindow(self.registers)
        self._injector: Injector | None = None

    def _behind(self) -> "Acceptance":
        """Return the acceptance after the front end, made at first use: a program that submits nothing imports neither
        its modules nor NumPy."""
        acceptance = self._acceptance
        if acceptance is None:
            from npu_device.decode.decoder import Decoder
            from npu_device.host.acceptance import Acceptance
            from npu_device.issue.execution import Execution

            execution = Execution(
                self._config, self._memory, self.timeline, self._events, self.queue, self._tickets, self._completion,
                self._values, self._analytic, self._external, self._plans, self._interpreted,
            )  # fmt: skip
            execution.enabled, execution.injector = self._frontend.enabled, self._injector
            decoder = Decoder(self._config, self._memory)
            acceptance = Acceptance(self._events, self.queue, self._tickets, self._completion, decoder, execution)
            self._acceptance = acceptance
        return acceptance

    def _stamp(self, cycle: int, scope: Scope, stream: int) -> None:
        self.execution.station.block_domains(cycle, scope, stream)

    def _forget(self) -> None:
        """Be as a device is before its first command."""
        if self._acceptance is not None:
            self.timeline.forget(self.execution.agendas)
            self._acceptance = None

    @property
    def _always(self) -> bool:
        """Check whether the acceptance is made at the start: the core has an L2, or the link has engines."""
        return self._config.l2.enabled or self._external is not None

    @property
    def decoder(self) -> "Decoder":
        return self._behind().decoder

    @property
    def execution(self) -> "Execution":
        return self._behind().execution

    @property
    def l2(self) -> "L2 | None":
        """L2 as the core sees it, or None."""
        return self.execution.l2 if self._config.l2.enabled else None

    def use_plans(self, plans: "Plans") -> None:
        """Have plans in common with other devices of its configuration: those of commands that such a device had before
        are not made again. To be called before the first command. Nothing else changes."""
        self._plans = plans

    # -- snapshots ---------------------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """Return the state of a snapshot, without memory and events."""
        if self._always:
            self._behind()
        return {
            "policy": int(self._policy),
            "timeline": self.timeline.state(),
            "ring": self.ring.state(),
            "queue": self.queue.state(),
            "tickets": self._tickets.state(),
            "interrupts": self.interrupts.state(),
            "completion": self._completion.state(),
            "acceptance": None if self._acceptance is None else self._acceptance.state(),
            "l2": None if self.l2 is None else self.l2.state(),
            "front_end": self._frontend.state(),
            "port": self.port.state(),
            "registers": self.registers.state(),
            "counters": self._counters.state(),
        }

    def load_state(self, state: Any) -> None:
        """Take on a state. Memory and event stream are those of then already."""
        fields = Fields(
            state, "policy", "timeline", "ring", "queue", "tickets", "interrupts", "completion", "acceptance", "l2",
            "front_end", "port", "registers", "counters",
        )  # fmt: skip
        none = fields["acceptance"] is None and not self._always
        acceptance = None if none else self._behind()  # which names its actions on the timeline
        if acceptance is None:
            self._forget()
        self._policy = FullPolicy(fields.integer("policy", 0, max(FullPolicy)))
        parts: tuple[tuple[str, Stateful], ...] = (
            ("timeline", self.timeline), ("ring", self.ring), ("queue", self.queue), ("tickets", self._tickets),
            ("interrupts", self.interrupts), ("completion", self._completion),
        )  # fmt: skip
        for name, part in parts:
            fields.load(name, part)
        if acceptance is not None:
            fields.load("acceptance", acceptance)
        if self.l2 is not None:
            fields.load("l2", self.l2)
        parts = (("front_end", self._frontend), ("port", self.port), ("registers", self.registers))
        for name, part in parts:
            fields.load(name, part)
        with inside("tickets"):
            accepted = [] if acceptance is None else acceptance.execution.in_flight()
            self._tickets.load_in_flight((command.ticket, command) for command in accepted)
            self._tickets.load_in_flight((ticket, None) for ticket in self._frontend.promised())
        with inside("counters"):
            busy = [] if acceptance is None else acceptance.execution.engines.machine.busy_units()
            self._counters.load_state(fields["counters"], busy)

    # -- injected faults ---------------------------------------------------------------------------------------

    def inject(self, injector: "Injector | None") -> None:
        """Let faults act on the device; None: none do."""
        self._injector = injector
        for part in (self._frontend, self._completion, self.port, self.registers):
            part.injector = injector
        if self._acceptance is not None:
            self.execution.injector = injector

    # -- reports -----------------------------------------------------------------------------------------------

    @property
    def error_log(self) -> Sequence[ErrorEntry]:
        """Latest error tickets, oldest first."""
        return tuple(self._completion.log)

    @property
    def in_flight(self) -> "Sequence[tuple[Command, TicketState]]":
        """Commands that were accepted and have not retired, oldest first."""
        if self._acceptance is None:
            return []
        return [(command, TicketState(self._tickets.status(command.ticket))) for command in self.execution.in_flight()]

    # -- CTRL --------------------------------------------------------------------------------------------------

    def read_control(self) -> int:
        return self._frontend.enabled * _ENABLE | self._policy << _POLICY.low

    def write_control(self, value: int, cycle: int) -> bool:
        """CTRL with effect from `cycle`; False when reserved bits were set, which are ignored."""
        self._policy = FullPolicy((value & _POLICY_MASK) >> _POLICY.low)
        if value & _FLUSH and self.l2 is not None:
            self.l2.flush(cycle)
        if value & _RESET:
            self._reset(cycle)
        else:
            self._enable(bool(value & _ENABLE), cycle)
        return not value & ~(_ENABLE | _RESET | _FLUSH | _POLICY_MASK)

    def _enable(self, enable: bool, cycle: int) -> None:
        self._frontend.enabled = enable
        if enable:
            self._frontend.request_fetch(cycle)
        if self._acceptance is not None:
            self.execution.enabled = enable
            if enable:
                self.execution.request_start(cycle)

    def _reset(self, cycle: int) -> None:
        """Soft reset: work in flight vanishes; configuration, accept count and counters stay."""
        reason = "soft reset"
        self.timeline.clear()
        self._frontend.reset(cycle, reason)
        if self._acceptance is not None:
            self.execution.reset(cycle, reason)
            self.decoder.reset()
        self.queue.reset()
        self._tickets.taken = self._counters.up_to_date().accepted
        self.port.reset()
        self.ring.reset()
        self.interrupts.reset(cycle)
