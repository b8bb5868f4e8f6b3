"""Host side of a device: registers, ring, custom instructions and CSRs, and the queue that they feed.

A device creates it at its first use (`npu_device.device`).
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from npu_device.abi import DESCRIPTOR_SIZE
from npu_device.abi.errors import TicketError
from npu_device.abi.opcodes import FullPolicy
from npu_device.abi.registers import IRQ_ALL, REGISTERS
from npu_device.config import NpuConfig
from npu_device.host.command_port import CommandPort
from npu_device.host.registers import CsrWindow, RegisterFile, RegisterState
from npu_device.host.ring import MAX_SIZE, MIN_SIZE, Ring
from npu_device.memory.memory import Memory
from npu_device.reservation.tickets import MODULUS
from npu_device.trace.counters import Counters
from npu_device.trace.stream import EventStream
from pyv_native.state import LATEST, WORD32, Fields, StateError, inside

if TYPE_CHECKING:
    from npu_device.decode.decoder import Decoder
    from npu_device.event_loop.l2 import L2
    from npu_device.external.link import External
    from npu_device.host.pipeline import DeviceLink, Pipeline
    from npu_device.issue.execution import Execution
    from npu_device.issue.injection import Injector
    from npu_device.issue.plans import Plans

_CTRL = {bits.name: bits for register in REGISTERS if register.name == "CTRL" for bits in register.fields}
_ENABLE, _RESET, _FLUSH = (1 << _CTRL[name].low for name in ("ENABLE", "RESET", "FLUSH_L2"))
_POLICY = _CTRL["FULL_POLICY"]
_POLICY_MASK = (1 << _POLICY.width) - 1 << _POLICY.low
_WORD = (0, WORD32)
_LIMITS = {
    "ring_size": (MIN_SIZE, MAX_SIZE), "policy": (0, max(FullPolicy)), "base_low": _WORD, "base_high": _WORD,
    "head": _WORD, "tail": _WORD, "next_fetch": _WORD, "irq_mask": (0, IRQ_ALL), "irq_status": (0, IRQ_ALL),
    "error_ticket": (0, MODULUS - 1), "error_code": (0, max(TicketError)), "accepted": (0, LATEST),
    "depth": (0, LATEST), "depth_max": (0, LATEST), "selected": _WORD,
}  # fmt: skip
"""Bounds of the fields of `RegisterState`."""


class HostSide:
    """Host side of a device.

    `registers` is the window on the bus, `port` executes the custom instructions, `csr` maps the custom CSRs, `ring`
    has base, size, head and tail of the descriptor ring.
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
        report_link: "Callable[[DeviceLink | None], None]",
    ) -> None:
        """`caps`: value of the register CAPS. `report_link`: as in `Pipeline`. The others are the parameters of the
        device."""
        self._report_link = report_link
        self._config, self._memory, self._events = config, memory, events
        self._values, self._analytic, self._external, self._interpreted = values, analytic, external, interpreted
        self._counters = counters
        self._injector: Injector | None = None
        self.plans: Plans | None = None
        """Plans shared with other devices of the same configuration."""
        self.active: Pipeline | None = None
        """The pipeline, or None before its first use."""
        self._first = RegisterState(config.queue.size, FullPolicy[config.queue.full_policy.upper()])
        """Registers before the first submission."""
        self._enabled = False
        self.ring = Ring(lambda: self.front)
        self.port = CommandPort(lambda: self.pipeline, counters)
        self.registers = RegisterFile(config, events, self, counters, caps)
        self.csr = CsrWindow(self.registers)

    @property
    def pipeline(self) -> "Pipeline":
        """Front end and queue, created at first use: a program without submissions imports neither their modules nor
        NumPy."""
        if self.active is None:
            from npu_device.host.pipeline import Pipeline

            self.active = Pipeline(
                self._config, self._memory, self._events, self._first, self._enabled, self._injector,
                values=self._values, analytic=self._analytic, external=self._external, plans=self.plans,
                interpreted=self._interpreted, report_link=self._report_link,
            )  # fmt: skip
        return self.active

    @property
    def front(self) -> Any:
        """Register values, with the field names of `RegisterState`."""
        return self._first if self.active is None else self.active.front

    @property
    def enabled(self) -> bool:
        """CTRL.enable."""
        return self._enabled if self.active is None else bool(self.active.loop.enabled)

    @property
    def decoder(self) -> "Decoder":
        return self.pipeline.decoder

    @property
    def execution(self) -> "Execution":
        return self.pipeline.execution

    @property
    def l2(self) -> "L2 | None":
        """L2 cache as the core sees it, or None."""
        return self.execution.l2 if self._config.l2.enabled else None

    # -- registers ---------------------------------------------------------------------------------------------

    def register_value(self, offset: int) -> int:
        """Return COMPLETED, IRQ_STATUS, QUEUE_HEAD or TICKET_STATUS without side effects: 0 and unknown before the
        first submission."""
        return 0 if self.active is None else self.active.register_value(offset)

    def read_register(self, offset: int, now: int) -> int:
        """Read COMPLETED, IRQ_STATUS or TICKET_STATUS in cycle `now`."""
        return 0 if self.active is None else self.active.read_register(offset, now)

    def mask_irq(self, cycle: int, mask: int) -> None:
        """Set IRQ_MASK."""
        if self.active is None:
            self._first.irq_mask = mask & IRQ_ALL
        else:
            self.active.mask_irq(cycle, mask)

    def acknowledge_irq(self, cycle: int, bits: int) -> None:
        """Clear bits of IRQ_STATUS."""
        if self.active is not None:
            self.active.acknowledge_irq(cycle, bits)

    def doorbell(self, tail: int, cycle: int) -> None:
        """Move the tail of the ring."""
        self.pipeline.doorbell(tail, cycle)

    def read_control(self) -> int:
        """Return CTRL."""
        return self.enabled * _ENABLE | int(self.front.policy) << _POLICY.low

    def write_control(self, value: int, cycle: int) -> bool:
        """Write CTRL with effect from `cycle`. Return False if reserved bits were set; these are ignored."""
        self.front.policy = (value & _POLICY_MASK) >> _POLICY.low
        if value & _FLUSH and self.l2 is not None:
            self.l2.flush(cycle)
        if value & _RESET:
            self._reset(cycle)
        else:
            self._enable(bool(value & _ENABLE), cycle)
        return not value & ~(_ENABLE | _RESET | _FLUSH | _POLICY_MASK)

    def _enable(self, enable: bool, cycle: int) -> None:
        self._enabled = enable
        if self.active is None and (not enable or self.ring.tail == self.ring.next):
            return
        self.pipeline.enable(enable, cycle)

    def _reset(self, cycle: int) -> None:
        """Perform a soft reset: discard work in flight; keep configuration, accept count and counters."""
        self._enabled = False
        if self.active is None:
            first = self._first
            first.head = first.tail = first.next_fetch = first.irq_mask = 0
        else:
            self.active.reset(cycle)
        self.port.reset()

    # -- snapshots ---------------------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """Return the state of a snapshot, without memory and events."""
        if self._config.l2.enabled or self._external is not None:
            self.pipeline  # noqa: B018 - an L2 or external engines have state before the first submission
        return {
            "enabled": self.enabled,
            "front_end": {name: int(getattr(self.front, name)) for name in _LIMITS},
            "pipeline": None if self.active is None else self.active.state(),
            "port": self.port.state(),
            "registers": self.registers.state(),
            "counters": self._counters.state(),
        }

    def load_state(self, state: Any) -> None:
        """Restore a state. Memory and event stream have been restored before."""
        fields = Fields(state, "enabled", "front_end", "pipeline", "port", "registers", "counters")
        self._enabled = fields.flag("enabled")
        with inside("front_end"):
            self._first = _registers(fields["front_end"])
        busy: list[int] = []
        if fields["pipeline"] is None and not self._config.l2.enabled and self._external is None:
            self._events.detach()
            self.active = None
            self._report_link(None)
        else:
            with inside("pipeline"):
                self.pipeline.load_state(fields["pipeline"], self._first, self._enabled)
            busy = self.execution.machine.busy_units()
        fields.load("port", self.port)
        fields.load("registers", self.registers)
        with inside("counters"):
            self._counters.load_state(fields["counters"], busy)

    # -- injected faults ---------------------------------------------------------------------------------------

    def inject(self, injector: "Injector | None") -> None:
        """Install a fault injector; None removes it."""
        self._injector = self.registers.injector = injector
        if self.active is not None:
            self.active.inject(injector)


def _registers(state: Any) -> RegisterState:
    """Restore registers. Raise StateError for values that no device has."""
    fields = Fields(state, *_LIMITS)
    registers = RegisterState(**{name: fields.integer(name, *limits) for name, limits in _LIMITS.items()})
    size, head, tail = registers.ring_size, registers.head, registers.tail
    if registers.base_low % DESCRIPTOR_SIZE:
        raise StateError(f"{registers.base_low:#x} is no multiple of {DESCRIPTOR_SIZE}", "base_low")
    if size & (size - 1):
        raise StateError(f"{size} is no power of two", "ring_size")
    if not (registers.next_fetch - head) & WORD32 <= (tail - head) & WORD32 <= size:
        raise StateError("head, next_fetch and tail do not fit a ring of this size", "tail")
    return registers
