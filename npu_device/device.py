"""The NPU as the bus, the core and the reports see it."""

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
    from npu_device.host.pipeline import DeviceLink
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
    """NPU on the bus. Satisfies the device protocol: `now` is the cycle in which a call acts, its effect starts at now
    + 1.

    | attribute | for | |---|---| | `registers`, `port`, `csr`, `ring` | programs, as in `host` | | `counters` |
    reports: totals so far | | `error_log` | the latest error tickets with their reasons |
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
        """`instructions`: the custom instructions that the core decodes, named as in `--isa`, for CAPS; None: all in
        tight mode, none in loose mode. `values`: whether results are computed; cycles and events are the same without.
        `analytic`: IA_TIMING. `external`: external engines in place of tensor engines (CA_FULL). `interpreted`: CPython
        runs the event loop, for lock-step and debugging; nothing else changes.

        NpuDeviceError when the configuration and the memory do not fit together.
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
        """Called when the device is about to be used for the first time."""

    @property
    def host(self) -> "HostSide":
        """Part of the device that programs access, made at first use: a program without the NPU imports none of its
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
        """Check whether a `host` was made."""
        return self._host is not None

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
        """L2 as the core sees it, or None."""
        return self.host.l2 if self._config.l2.enabled else None

    # -- the device protocol -----------------------------------------------------------------------------------

    def link(self, receiver: "Callable[[DeviceLink | None], None]") -> None:
        """Give a clock the entry points for native code, now and at each change of them; None: there are none."""
        self._on_link = receiver
        receiver(self._link)

    def _set_link(self, link: "DeviceLink | None") -> None:
        self._link = link
        self._on_link(link)

    @property
    def level(self) -> bool:
        """Level of the interrupt line as the device drives it."""
        pipeline = None if self._host is None else self._host.active
        if pipeline is None:
            return False
        storage = pipeline.storage
        return storage.arena.bytes[storage.level] != 0

    @property
    def irq(self) -> bool:
        """Level of the interrupt line as the core sees it."""
        return self.level if self._injector is None else self._injector.line(self.level)

    def accepts(self, offset: int, size: int, write: bool) -> bool:
        """Check whether such an access is legal (pure); reading and writing do not differ."""
        return self.host.registers.accepts(offset, size)

    def stable(self, offset: int, size: int) -> bool:
        """Check whether a register keeps its value until the device is written or its next event is due."""
        return self.host.registers.stable(offset)

    def read(self, offset: int, size: int, now: int) -> int:
        return (self._host or self.host).registers.read(offset, now)

    def write(self, offset: int, size: int, value: int, now: int) -> None:
        (self._host or self.host).registers.write(offset, value, now)

    def peek(self, offset: int, size: int, now: int) -> int | None:
        """Return a register for a debugger, None where no register is."""
        registers = self.host.registers
        return registers.peek(offset, now) if registers.accepts(offset, size) else None

    def refused(self, offset: int, size: int, write: bool, now: int) -> None:
        """Count and trace an access that the bus has refused because of `accepts`."""
        self.host.registers.trace(offset, Refusal.ACCESS, now)

    def next_event(self) -> int | None:
        """Return the cycle at whose start the device next changes by itself, or None."""
        pipeline = None if self._host is None else self._host.active
        if pipeline is None:
            return None
        storage = pipeline.storage
        due = storage.arena.words[storage.due]
        return None if due >= LATEST else due

    def advance(self, now: int) -> None:
        """Do everything that is due at the start of cycle `now` or earlier."""
        pipeline = None if self._host is None else self._host.active
        if pipeline is not None:
            pipeline.advance(now)

    def use_plans(self, plans: "Plans") -> None:
        """Have plans in common with other devices of its configuration: those of commands that such a device had before
        are not made again. To be called before the first command. Nothing else changes."""
        self.host.use_plans(plans)

    def core_access(self, address: int, now: int, size: int | None = None) -> None:
        """The core reads or writes data in DRAM: `size` bytes, `dram.core_bytes` unless given, go before transfers.

        All that was due by cycle `now` has happened; the access moves from now + 1 on and makes nothing happen earlier.
        """
        engines = self.host.execution.engines
        engines.priority_access(now + 1, address, self._core_bytes if size is None else size)

    # -- snapshots ---------------------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """Return the state of a snapshot, without memory and events."""
        return self.host.state()

    def load_state(self, state: Any) -> None:
        """Take on a state. Memory and event stream are those of then already."""
        self.host.load_state(state)

    # -- injected faults ---------------------------------------------------------------------------------------

    def inject(self, injector: "Injector | None") -> None:
        """Let faults act on the device; None: none do."""
        self._injector = injector
        self.host.inject(injector)

    def resume(self, cycle: int, command: "Command") -> None:
        """A unit that the injector said to be stuck begins its command in `cycle`, up to which all has happened."""
        self.host.execution.resume(cycle, command)

    def slow_dram(self, cycle: int, factor: int) -> None:
        """The DRAM is `factor` times as slow from `cycle` on, up to which all has happened, until a soft reset."""
        self.host.execution.engines.slow_down(cycle, factor)

    def dram_at(self, cycle: int, slowdown: int) -> None:
        """The DRAM is `slowdown` times as slow as it is configured from `cycle` on, up to which all has happened."""
        self.host.execution.engines.dram_at(cycle, slowdown)

    # -- reports -----------------------------------------------------------------------------------------------

    def uses(self, descriptor: bytes) -> "Uses":
        """Return the memory that a descriptor asks for. Nothing changes."""
        return self.host.decoder.uses(descriptor)

    @property
    def counters(self) -> Counters:
        """Totals of all events so far."""
        if self._host is not None:
            self._counters.depth_max = int(self._host.front.depth_max)
        return self._counters.up_to_date()

    @property
    def error_log(self) -> "Sequence[ErrorEntry]":
        """Latest error tickets, oldest first."""
        return () if self._host is None else self._host.error_log

    @property
    def in_flight(self) -> "Sequence[tuple[Command, TicketState]]":
        """Commands that were accepted and have not retired, oldest first."""
        return () if self._host is None else self._host.in_flight

    def entry(self, command: "Command") -> Any:
        """View of the entry of a command in flight: `reservation.state.Entry`."""
        return self.host.execution.station.entry(command)
