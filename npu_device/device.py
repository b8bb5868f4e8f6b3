"""NPU device: its interface to the bus, the core and the reports."""

from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, Any

from npu_device.abi.instructions import CUSTOM_INSTRUCTIONS
from npu_device.abi.memory_map import NPU_WINDOW
from npu_device.config import NpuConfig, check
from npu_device.memory.memory import Memory, scratchpads
from npu_device.trace.counters import Counters
from npu_device.trace.events import Refusal
from npu_device.trace.stream import EventStream
from pyv_native.state import LATEST

if TYPE_CHECKING:
    from npu_device.abi.opcodes import TicketState
    from npu_device.decode.command import Command
    from npu_device.decode.decoder import Uses
    from npu_device.event_loop.l2 import L2
    from npu_device.external.link import External
    from npu_device.host.command_port import CommandPort
    from npu_device.host.host_side import HostSide
    from npu_device.host.pipeline import DeviceLink, Pipeline
    from npu_device.host.registers import CsrWindow, RegisterFile
    from npu_device.host.ring import Ring
    from npu_device.issue.injection import Injector
    from npu_device.issue.plans import Plans
    from npu_device.issue.retirement import ErrorEntry


def _caps(config: NpuConfig, instructions: Collection[str] | None) -> int:
    if instructions is None:
        instructions = [row.isa_name for row in CUSTOM_INSTRUCTIONS] if config.mode == "tight" else []
    return sum(1 << row.caps_bit for row in CUSTOM_INSTRUCTIONS if row.isa_name in instructions)


class NpuDevice:
    """NPU on the bus, which implements the device protocol: a call in cycle `now` takes effect at `now + 1`.

    `registers`, `port`, `csr` and `ring` are for programs, as in `host`. For reports, `counters` has the totals so far,
    and `error_log` the latest errors with their reasons.
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
        interpreted: bool = False,
    ) -> None:
        """`instructions`: names in `--isa` of the custom instructions that the core decodes, for CAPS; None for all in
        tight mode and none in loose mode. `values`: whether results are computed; it does not affect cycles or events.
        `analytic`: IA_TIMING. `external`: external engines that replace tensor engines (CA_FULL). `interpreted`:
        CPython runs the event loop, for lock-step and debugging, with identical results.

        Raise NpuDeviceError for an illegal configuration, or if the memory lacks a scratchpad.
        """
        check(config)
        scratchpads(config, memory)
        self._config, self._memory, self._events = config, memory, events
        self._values, self._analytic, self._external, self._interpreted = values, analytic, external, interpreted
        self._caps = _caps(config, instructions)
        self._core_bytes = config.dram.core_bytes
        self._counters = Counters(config, events)
        self._host: HostSide | None = None
        self._injector: Injector | None = None
        self._link: DeviceLink | None = None
        self._on_link: Callable[[DeviceLink | None], None] = lambda link: None
        self.on_use: Callable[[], None] | None = None
        """Callback at the first use of the device."""

    @property
    def host(self) -> "HostSide":
        """Part of the device that programs access, created at first use: a program without the NPU imports none of its
        modules."""
        host = self._host
        if host is None:
            from npu_device.host.host_side import HostSide

            host = self._host = HostSide(
                self._config, self._memory, self._events, self._counters, self._caps,
                values=self._values, analytic=self._analytic, external=self._external, interpreted=self._interpreted,
                report_link=self._set_link,
            )  # fmt: skip
            if self.on_use is not None:
                self.on_use()
        return host

    @property
    def used(self) -> bool:
        """Whether `host` has been created."""
        return self._host is not None

    @property
    def _pipeline(self) -> "Pipeline | None":
        """The submission pipeline, or None before its first use."""
        return None if self._host is None else self._host.active

    @property
    def registers(self) -> "RegisterFile":
        return (self._host or self.host).registers

    @property
    def port(self) -> "CommandPort":
        return (self._host or self.host).port

    @property
    def csr(self) -> "CsrWindow":
        return (self._host or self.host).csr

    @property
    def ring(self) -> "Ring":
        return (self._host or self.host).ring

    @property
    def l2(self) -> "L2 | None":
        """L2 cache as the core sees it, or None."""
        return self.host.l2 if self._config.l2.enabled else None

    # -- device protocol ---------------------------------------------------------------------------------------

    def link(self, receiver: "Callable[[DeviceLink | None], None]") -> None:
        """Report the entry points for native code to `receiver`, now and at each change; None for none."""
        self._on_link = receiver
        receiver(self._link)

    def _set_link(self, link: "DeviceLink | None") -> None:
        self._link = link
        self._on_link(link)

    @property
    def level(self) -> bool:
        """Level of the interrupt line as the device drives it."""
        pipeline = self._pipeline
        if pipeline is None:
            return False
        storage = pipeline.storage
        return storage.arena.bytes[storage.level] != 0

    @property
    def irq(self) -> bool:
        """Level of the interrupt line as the core sees it."""
        return self.level if self._injector is None else self._injector.line(self.level)

    def accepts(self, offset: int, size: int, write: bool) -> bool:
        """Check whether an access is legal, without side effects. Reads and writes have the same rules."""
        return self.host.registers.accepts(offset, size)

    def stable(self, offset: int, size: int) -> bool:
        """Check whether a register keeps its value until the next write to the device or its next event."""
        return self.host.registers.stable(offset)

    def read(self, offset: int, size: int, now: int) -> int:
        return (self._host or self.host).registers.read(offset, now)

    def write(self, offset: int, size: int, value: int, now: int) -> None:
        (self._host or self.host).registers.write(offset, value, now)

    def peek(self, offset: int, size: int, now: int) -> int | None:
        """Return a register for a debugger, or None if the offset has none."""
        registers = self.host.registers
        return registers.peek(offset, now) if registers.accepts(offset, size) else None

    def refused(self, offset: int, size: int, write: bool, now: int) -> None:
        """Count and trace an access that the bus has rejected because of `accepts`."""
        self.host.registers.trace(offset, Refusal.ACCESS, now)

    def next_event(self) -> int | None:
        """Return the cycle at whose start the device next changes by itself, or None."""
        pipeline = self._pipeline
        if pipeline is None:
            return None
        storage = pipeline.storage
        deadline = storage.arena.words[storage.deadline]
        return None if deadline >= LATEST else deadline

    def advance(self, now: int) -> None:
        """Process all events due at the start of cycle `now` or earlier."""
        pipeline = self._pipeline
        if pipeline is not None:
            pipeline.advance(now)

    def use_plans(self, plans: "Plans") -> None:
        """Share plans with other devices of the same configuration, so that each plan is made only once. Call it before
        the first command. Results and timing do not change."""
        self.host.plans = plans

    def core_access(self, address: int, now: int, size: int | None = None) -> None:
        """Move `size` bytes (default `dram.core_bytes`) of the core's data in DRAM with priority over transfers.

        All events due by cycle `now` have been processed. The access begins at now + 1 and makes no event earlier.
        """
        engines = self.host.execution.engines
        engines.priority_access(now + 1, address, self._core_bytes if size is None else size)

    # -- snapshots ---------------------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """Return the state of a snapshot, without memory and events."""
        return self.host.state()

    def load_state(self, state: Any) -> None:
        """Restore a state. Memory and event stream have been restored before."""
        self.host.load_state(state)

    # -- injected faults ---------------------------------------------------------------------------------------

    def inject(self, injector: "Injector | None") -> None:
        """Install a fault injector; None removes it."""
        self._injector = injector
        self.host.inject(injector)

    def resume(self, cycle: int, command: "Command") -> None:
        """Begin the command of a stuck unit in `cycle`. All earlier events have been processed."""
        self.host.execution.resume(cycle, command)

    def slow_dram(self, cycle: int, factor: int) -> None:
        """Slow the DRAM by `factor` from `cycle` until a soft reset. All earlier events have been processed."""
        self.host.execution.engines.slow_down(cycle, factor)

    def dram_at(self, cycle: int, slowdown: int) -> None:
        """Set the DRAM's slowdown from its configured speed from `cycle` on. All earlier events have been processed."""
        self.host.execution.engines.dram_at(cycle, slowdown)

    # -- reports -----------------------------------------------------------------------------------------------

    def uses(self, descriptor: bytes) -> "Uses":
        """Return the memory that a descriptor uses, without side effects."""
        return self.host.decoder.uses(descriptor)

    @property
    def counters(self) -> Counters:
        """Totals of all events so far."""
        if self._host is not None:
            self._counters.depth_max = int(self._host.front.depth_max)
        return self._counters.up_to_date()

    @property
    def error_log(self) -> "Sequence[ErrorEntry]":
        """Latest entries of the error log, oldest first."""
        return () if self._pipeline is None else tuple(self._pipeline.completion.log)

    @property
    def in_flight(self) -> "Sequence[tuple[Command, TicketState]]":
        """Accepted commands that have not retired, oldest first."""
        return () if self._pipeline is None else self._pipeline.in_flight

    def entry(self, command: "Command") -> Any:
        """Return a view of the entry (`reservation.state.Entry`) of a command in flight."""
        return self.host.execution.station.entry(command)
