"""The NPU as the bus, the core and the reports see it."""

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any

from npu_device.abi.instructions import CUSTOM_INSTRUCTIONS
from npu_device.abi.memory_map import NPU_WINDOW
from npu_device.abi.opcodes import FullPolicy, TicketState
from npu_device.abi.registers import REGISTERS
from npu_device.config import NpuConfig, check
from npu_device.event_loop.timeline import Timeline
from npu_device.host.command_port import CommandPort
from npu_device.host.front_end import FrontEnd
from npu_device.host.registers import CsrWindow, RegisterFile
from npu_device.host.ring import Ring
from npu_device.issue.barriers import Barriers
from npu_device.issue.interrupts import Interrupts
from npu_device.issue.retirement import Completion, ErrorEntry, Tickets
from npu_device.issue.scheduler import CommandQueue
from npu_device.memory.memory import Memory, scratchpads
from npu_device.trace.counters import Counters
from npu_device.trace.events import Refusal
from npu_device.trace.stream import EventStream
from pyv_state import Fields, Stateful, inside

if TYPE_CHECKING:
    from npu_device.decode.command import Command
    from npu_device.decode.decoder import Decoder, Uses
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


def _caps(config: NpuConfig, instructions: Collection[str] | None) -> int:
    if instructions is None:
        instructions = [row.isa_name for row in CUSTOM_INSTRUCTIONS] if config.mode == "tight" else []
    return sum(1 << row.caps_bit for row in CUSTOM_INSTRUCTIONS if row.isa_name in instructions)


class NpuDevice:
    """One NPU. Satisfies the device protocol: `now` is the cycle in which a call acts, its effect starts at now + 1.

    | attribute | for |
    |---|---|
    | `port` | the custom instructions |
    | `csr` | the custom CSRs |
    | `ring` | base, size, head and tail of the descriptor ring |
    | `counters` | reports: totals so far |
    | `error_log` | the latest error tickets with their reasons |
    """

    name = "npu"
    size = NPU_WINDOW

    def __init__(
        self,
        config: NpuConfig,
        memory: Memory,
        events: EventStream,
        instructions: Collection[str] | None = None,
        *,
        values: bool = True,
        analytic: bool = False,
        external: "External | None" = None,
    ) -> None:
        """`instructions`: the custom instructions that the core decodes, named as in `--isa`, for CAPS; None: all in
        tight mode, none in loose mode. `values`: whether results are computed; cycles and events are the same without.
        `analytic`: IA_TIMING. `external`: engines outside, in place of tensor engines (CA_FULL).

        NpuDeviceError when the configuration and the memory do not fit together.
        """
        check(config)
        scratchpads(config, memory)
        self._config, self._memory, self._events = config, memory, events
        self._values, self._analytic, self._external = values, analytic, external
        self._timeline = Timeline()
        self._core_bytes = config.dram.core_bytes
        self._policy = FullPolicy[config.queue.full_policy.upper()]
        self._tickets = Tickets(config.queue.history)
        self._interrupts = Interrupts(self._timeline, events)
        self.ring = Ring(config.queue.size)
        self._counters = Counters(config, events)
        self._queue = CommandQueue(config.device_queue, self._interrupts)
        self._completion = Completion(memory, self._tickets, self._interrupts, events)
        self._barriers = Barriers(config.clusters, events)
        self._acceptance: Acceptance | None = None
        self._compiled = False
        self._plans: Plans | None = None
        self._frontend = FrontEnd(
            config.frontend, memory, self._timeline, events, self.ring, self._queue, self._tickets, self._interrupts,
            self._completion, self._behind,
        )  # fmt: skip
        self.port = CommandPort(
            events, self._frontend, self._queue, self._tickets, self._barriers, self._interrupts,
            self._counters, lambda: self._policy,
        )  # fmt: skip
        self._completion.on_end = self.port.completed
        self.registers = RegisterFile(
            config, events, self, self.ring, self._frontend, self._queue, self._tickets, self._interrupts,
            self._completion, self._counters, _caps(config, instructions),
        )  # fmt: skip
        self.csr = CsrWindow(self.registers)
        self._injector: Injector | None = None

    def _behind(self) -> "Acceptance":
        """What is behind the front end, made when it is first needed: a program that submits nothing waits for neither
        its modules nor NumPy."""
        made = self._acceptance
        if made is None:
            from npu_device.decode.decoder import Decoder
            from npu_device.host.acceptance import Acceptance
            from npu_device.issue.execution import Execution

            execution = Execution(
                self._config, self._memory, self._timeline, self._events, self._queue, self._tickets, self._completion,
                self._barriers, self._values, self._analytic, self._external, self._plans,
            )  # fmt: skip
            execution.enabled, execution.injector = self._frontend.enabled, self._injector
            if self._compiled:
                execution.engines.machine.use_compiled()
            decoder = Decoder(self._config, self._memory)
            made = Acceptance(self._events, self._queue, self._tickets, self._completion, decoder, execution)
            self._acceptance = made
        return made

    def _forget(self) -> None:
        """Be as a device is before its first command."""
        if self._acceptance is not None:
            self._timeline.forget(self._execution.agendas)
            self._acceptance = None

    @property
    def _always(self) -> bool:
        """Whether others know what is behind the front end from the start: the core its L2, the link its engines."""
        return self._config.l2.enabled or self._external is not None

    @property
    def _decoder(self) -> "Decoder":
        return self._behind().decoder

    @property
    def _execution(self) -> "Execution":
        return self._behind().execution

    @property
    def l2(self) -> "L2 | None":
        """The L2 as the core sees it; None where there is none."""
        return self._execution.l2 if self._config.l2.enabled else None

    # -- the device protocol -----------------------------------------------------------------------------------

    @property
    def irq(self) -> bool:
        """The level of the interrupt line."""
        level = self._interrupts.level
        return level if self._injector is None else self._injector.line(level)

    def accepts(self, offset: int, size: int, write: bool) -> bool:
        """Whether such an access is legal (pure); reading and writing do not differ."""
        return self.registers.accepts(offset, size)

    def stable(self, offset: int, size: int) -> bool:
        """Whether a register keeps its value until the device is written or its next event is due."""
        return self.registers.stable(offset)

    def read(self, offset: int, size: int, now: int) -> int:
        return self.registers.read(offset, now)

    def write(self, offset: int, size: int, value: int, now: int) -> None:
        self.registers.write(offset, value, now)

    def peek(self, offset: int, size: int, now: int) -> int | None:
        """What a debugger sees of a register, None where there is none."""
        return self.registers.peek(offset, now) if self.registers.accepts(offset, size) else None

    def refused(self, offset: int, size: int, write: bool, now: int) -> None:
        """The bus has turned away an access that `accepts` did not like: count and trace it."""
        self.registers.trace(offset, Refusal.ACCESS, now)

    def next_event(self) -> int | None:
        """The cycle at whose start the device next changes by itself, or None."""
        return self._timeline.next_event()

    def use_compiled(self) -> None:
        """Do not wait for many steps before compiled code does them: it has been made, or will pay. Nothing else
        changes."""
        self._compiled = True
        if self._acceptance is not None:
            self._execution.engines.machine.use_compiled()

    def use_plans(self, plans: "Plans") -> None:
        """Have plans in common with other devices of its configuration: those of commands that such a device had before
        are not made again. To be called before the first command. Nothing else changes."""
        self._plans = plans

    def advance(self, now: int) -> None:
        """Do everything that is due at the start of cycle `now` or earlier."""
        self._timeline.advance(now)

    def core_access(self, address: int, now: int, size: int | None = None) -> None:
        """The core reads or writes data in DRAM: `size` bytes, `dram.core_bytes` unless given, go before transfers.

        All that was due by cycle `now` has happened; the access moves from now + 1 on and makes nothing happen earlier.
        """
        self._execution.engines.priority_access(now + 1, address, self._core_bytes if size is None else size)

    # -- snapshots ---------------------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """What a snapshot keeps; memory and events are kept by themselves."""
        if self._always:
            self._behind()
        return {
            "policy": int(self._policy),
            "timeline": self._timeline.state(),
            "ring": self.ring.state(),
            "queue": self._queue.state(),
            "tickets": self._tickets.state(),
            "interrupts": self._interrupts.state(),
            "completion": self._completion.state(),
            "barriers": self._barriers.state(),
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
            state, "policy", "timeline", "ring", "queue", "tickets", "interrupts", "completion", "barriers",
            "acceptance", "l2", "front_end", "port", "registers", "counters",
        )  # fmt: skip
        none = fields["acceptance"] is None and not self._always
        made = None if none else self._behind()  # which names its actions on the timeline
        if made is None:
            self._forget()
        self._policy = FullPolicy(fields.integer("policy", 0, max(FullPolicy)))
        parts: tuple[tuple[str, Stateful], ...] = (
            ("timeline", self._timeline), ("ring", self.ring), ("queue", self._queue), ("tickets", self._tickets),
            ("interrupts", self._interrupts), ("completion", self._completion), ("barriers", self._barriers),
        )  # fmt: skip
        for name, part in parts:
            fields.load(name, part)
        if made is None:
            self._queue.load_waiting(())
        else:
            fields.load("acceptance", made)
        if self.l2 is not None:
            fields.load("l2", self.l2)
        parts = (("front_end", self._frontend), ("port", self.port), ("registers", self.registers))
        for name, part in parts:
            fields.load(name, part)
        with inside("tickets"):
            promised = ((ticket, TicketState.QUEUED) for ticket in self._frontend.promised())
            self._tickets.load_in_flight([*(() if made is None else made.execution.stages()), *promised])
        with inside("counters"):
            busy = [] if made is None else made.execution.engines.machine.busy_units()
            self._counters.load_state(fields["counters"], busy)

    # -- injected faults ---------------------------------------------------------------------------------------

    def inject(self, injector: "Injector | None") -> None:
        """Let faults act on the device; None: none do."""
        self._injector = injector
        for part in (self._frontend, self._completion, self.port, self.registers):
            part.injector = injector
        if self._acceptance is not None:
            self._execution.injector = injector

    def resume(self, cycle: int, command: "Command") -> None:
        """A unit that the injector said to be stuck begins its command in `cycle`, up to which all has happened."""
        self._execution.resume(cycle, command)

    def slow_dram(self, cycle: int, factor: int) -> None:
        """The DRAM is `factor` times as slow from `cycle` on, up to which all has happened, until a soft reset."""
        self._execution.engines.slow_down(cycle, factor)

    def dram_at(self, cycle: int, slowdown: int) -> None:
        """The DRAM is `slowdown` times as slow as it is configured from `cycle` on, up to which all has happened."""
        self._execution.engines.dram_at(cycle, slowdown)

    # -- reports -----------------------------------------------------------------------------------------------

    def uses(self, descriptor: bytes) -> "Uses":
        """The memory that a descriptor asks for. Nothing changes."""
        return self._decoder.uses(descriptor)

    @property
    def counters(self) -> Counters:
        """Totals of all events so far."""
        return self._counters.up_to_date()

    @property
    def error_log(self) -> Sequence[ErrorEntry]:
        """The latest error tickets, oldest first."""
        return tuple(self._completion.log)

    @property
    def in_flight(self) -> "Sequence[tuple[Command, TicketState]]":
        """Commands that were accepted and have not retired, oldest first."""
        if self._acceptance is None:
            return []
        return [(command, self._tickets.in_flight[command.ticket]) for command in self._execution.in_flight()]

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
            self._execution.enabled = enable
            if enable:
                self._execution.request_start(cycle)

    def _reset(self, cycle: int) -> None:
        """Soft reset: work in flight vanishes; configuration, accept count and counters stay."""
        reason = "soft reset"
        self._timeline.clear()
        self._frontend.reset(cycle, reason)
        if self._acceptance is not None:
            self._execution.reset(cycle, reason)
            self._decoder.reset()
        self._queue.reset()
        self._barriers.reset()
        self._tickets.taken = self.counters.accepted
        self.port.reset()
        self.ring.reset()
        self._interrupts.reset(cycle)
