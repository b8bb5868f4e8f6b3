"""Register file: access to the device's state by the tables of `abi.registers` (docs/interface.md, "NPU registers").

The custom CSRs mirror the registers that a driver uses.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from npu_device.abi.instructions import CSRS
from npu_device.abi.memory_map import NPU_WINDOW
from npu_device.abi.registers import IRQ_ALL, REGISTERS, TOTALS, TOTALS_OFFSET, UNITS
from npu_device.config import NpuConfig
from npu_device.host.ring import Ring
from npu_device.trace.counters import Counters
from npu_device.trace.events import FRONTEND, Kind, Refusal, What
from npu_device.trace.stream import EventStream
from pyv_native.state import Fields, StateError

if TYPE_CHECKING:
    from npu_device.issue.injection import Injector

WORD = 4
MASK32 = 0xFFFF_FFFF

_BY_OFFSET = {register.offset: register for register in REGISTERS}
_OFFSET = {register.name: register.offset for register in REGISTERS}
_SHOWS_COMPLETIONS = frozenset(_OFFSET[name] for name in ("TICKET_STATUS", "COMPLETED", "IRQ_STATUS"))


@dataclass
class RegisterState:
    """Registers of a device before its first submission: those that firmware sets up, and zeros. The front end has
    fields of the same names."""

    ring_size: int
    policy: int
    """FullPolicy of CTRL."""
    base_low: int = 0
    base_high: int = 0
    head: int = 0
    tail: int = 0
    next_fetch: int = 0
    irq_mask: int = 0
    irq_status: int = 0
    error_ticket: int = 0
    error_code: int = 0
    accepted: int = 0
    depth: int = 0
    depth_max: int = 0
    selected: int = 0
    """TICKET_SEL."""


class Host(Protocol):
    """Device that the registers access. Changes take effect in `cycle`."""

    @property
    def front(self) -> Any: ...
    @property
    def ring(self) -> Ring: ...
    @property
    def enabled(self) -> bool: ...
    def register_value(self, offset: int) -> int: ...
    def read_register(self, offset: int, now: int) -> int: ...
    def mask_irq(self, cycle: int, mask: int) -> None: ...
    def acknowledge_irq(self, cycle: int, bits: int) -> None: ...
    def doorbell(self, tail: int, cycle: int) -> None: ...
    def read_control(self) -> int: ...
    def write_control(self, value: int, cycle: int) -> bool: ...


class RegisterFile:
    """32-bit registers in the window of the device. `now` as in the device protocol."""

    def __init__(self, config: NpuConfig, events: EventStream, host: Host, counters: Counters, caps: int) -> None:
        """`caps`: the available custom instructions, as in the register CAPS."""
        self.injector: Injector | None = None
        self._events = events
        self._host = host
        self._ring = host.ring
        self._counters = counters
        self._latched: dict[int, int] = {}
        """Offset of a LO half -> the HI half at the time of its last read, unless 0."""
        self._identification = _identification(config, caps)
        self._counts = self._counter_sources()
        self._running = frozenset(self._counts) - frozenset(
            TOTALS_OFFSET + 8 * index for index, counter in enumerate(TOTALS) if counter.name != "CYCLES"
        )
        """Offsets of the counters that advance with time."""
        self._reads = self._read_table()
        self._writes = self._write_table()

    # -- access ------------------------------------------------------------------------------------------------

    def accepts(self, offset: int, size: int) -> bool:
        """Check whether a register of `size` bytes exists at the offset."""
        return size == WORD and (offset in _BY_OFFSET or offset in self._counts or offset - WORD in self._counts)

    def read(self, offset: int, now: int) -> int:
        """Return the value in cycle `now`; 0 for a write-only register."""
        if offset in self._counts:
            value = self._counts[offset](now)
            high = value >> 32 & MASK32
            if high:  # zero has no entry: native code reads a small counter without latching it
                self._latched[offset] = high
            else:
                self._latched.pop(offset, None)
            return value & MASK32
        if offset - WORD in self._counts:
            return self._latched.get(offset - WORD, 0)
        if offset in _SHOWS_COMPLETIONS:
            return self._host.read_register(offset, now)
        source = self._reads.get(offset)
        return source() & MASK32 if source is not None else 0

    def stable(self, offset: int) -> bool:
        """Check whether repeated reads of a register return the same value and have no effect.

        False for counts of cycles, and for the HI half of a counter, which a read of the LO half changes.
        """
        return offset - WORD not in self._counts and offset not in self._running

    def peek(self, offset: int, now: int) -> int:
        """Return a register in cycle `now` without side effects: no value is latched or recorded."""
        if offset in self._counts:
            return self._counts[offset](now) & MASK32
        if offset - WORD in self._counts:
            return self._counts[offset - WORD](now) >> 32 & MASK32
        source = self._reads.get(offset)
        return source() & MASK32 if source is not None else 0

    def write(self, offset: int, value: int, now: int) -> None:
        """Store a word with effect from `now + 1`. Ignored writes are counted and traced."""
        register = _BY_OFFSET.get(offset)
        target = self._writes.get(offset)
        if register is None or target is None or (register.disabled_only and self._host.enabled):
            done = False
        else:
            done = target(value & MASK32, now + 1)
        if not done:
            self.trace(offset, Refusal.IGNORED_WRITE, now)

    def read_named(self, name: str, now: int) -> int:
        """Read a register by its name."""
        return self.read(_OFFSET[name], now)

    def write_named(self, name: str, value: int, now: int) -> None:
        self.write(_OFFSET[name], value, now)

    def trace(self, offset: int, refusal: Refusal, now: int) -> None:
        """Count and trace an access that faulted or was ignored."""
        self._events.emit(now + 1, FRONTEND, What.REJECT, 0, 0, offset, refusal)

    # -- snapshots ---------------------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """Return the state of a snapshot."""
        return {"latched": [list(item) for item in self._latched.items()]}

    def load_state(self, state: Any) -> None:
        latched = Fields(state, "latched").table("latched", (0, NPU_WINDOW), (0, MASK32))
        for offset in latched:
            if offset not in self._counts:
                raise StateError(f"{offset:#x} is no such register", "latched")
        self._latched = latched

    # -- source and target of each register --------------------------------------------------------------------

    def _read_table(self) -> dict[int, Callable[[], int]]:
        ring, host = self._ring, self._host
        table: dict[str, Callable[[], int]] = {
            "QUEUE_BASE_LO": lambda: ring.base,
            "QUEUE_BASE_HI": lambda: ring.base >> 32,
            "QUEUE_SIZE": lambda: ring.size,
            "CTRL": host.read_control,
            "QUEUE_HEAD": self._head,
            "QUEUE_TAIL": lambda: ring.tail,
            "ERROR_TICKET": lambda: host.front.error_ticket,
            "ERROR_CODE": lambda: host.front.error_code,
            "IRQ_STATUS": lambda: host.front.irq_status,
            "IRQ_MASK": lambda: host.front.irq_mask,
            "TICKET_SEL": lambda: host.front.selected,
        }
        for name in ("COMPLETED", "TICKET_STATUS"):
            table[name] = partial(host.register_value, _OFFSET[name])
        for name, value in self._identification.items():
            table[name] = lambda value=value: value  # type: ignore[misc]
        return {_OFFSET[name]: source for name, source in table.items()}

    def _write_table(self) -> dict[int, Callable[[int, int], bool]]:
        table: dict[str, Callable[[int, int], bool]] = {
            "QUEUE_BASE_LO": lambda value, _: self._ring.set_base(self._ring.base & ~MASK32 | value),
            "QUEUE_BASE_HI": lambda value, _: self._ring.set_base(self._ring.base & MASK32 | value << 32),
            "QUEUE_SIZE": lambda value, _: self._ring.set_size(value),
            "CTRL": self._host.write_control,
            "QUEUE_TAIL": lambda value, _: self._ring.set_tail(value),
            "DOORBELL": self._doorbell,
            "IRQ_MASK": self._mask,
            "IRQ_ACK": self._acknowledge,
            "TICKET_SEL": self._select,
        }
        return {_OFFSET[name]: target for name, target in table.items()}

    def _head(self) -> int:
        return self._ring.head if self.injector is None else self.injector.head(self._ring.head, self._ring.size)

    def _doorbell(self, tail: int, cycle: int) -> bool:
        if self.injector is None or self.injector.doorbell(cycle, tail):
            self.ring_doorbell(tail, cycle)
        return True

    def ring_doorbell(self, tail: int, cycle: int) -> None:
        """Handle a doorbell."""
        self._host.doorbell(tail, cycle)

    def _mask(self, value: int, cycle: int) -> bool:
        self._host.mask_irq(cycle, value)
        return not value & ~IRQ_ALL

    def _acknowledge(self, value: int, cycle: int) -> bool:
        self._host.acknowledge_irq(cycle, value)
        return not value & ~IRQ_ALL

    def _select(self, value: int, _: int) -> bool:
        self._host.front.selected = value
        return True

    def _counter_sources(self) -> dict[int, Callable[[int], int]]:
        """Return by the offset of each LO half a function of `now` that reads the counter."""
        counters = self._counters.up_to_date
        totals: dict[str, Callable[[int], int]] = {
            "CYCLES": lambda now: now,
            "SUBMITTED": lambda _: counters().submitted,
            "ACCEPTED": lambda _: self._host.front.accepted,  # firmware polls it while it submits
            "COMPLETED": lambda _: counters().completed,
            "ERRORS": lambda _: counters().errors,
            "REJECTED": lambda _: counters().rejected,
            "BAD_ACCESSES": lambda _: counters().bad_accesses,
            "QUEUE_DEPTH": lambda _: self._host.front.depth,
            "QUEUE_DEPTH_MAX": lambda _: self._host.front.depth_max,
            "BARRIER_WAIT": lambda _: counters().barrier_wait,
            "BANK_CONFLICT_STALL": lambda _: counters().bank_conflict_stall,
            "DRAM_BYTES_READ": lambda _: counters().dram_bytes_read,
            "DRAM_BYTES_WRITTEN": lambda _: counters().dram_bytes_written,
            "NOC_BYTES": lambda _: counters().noc_bytes,
        }
        sources = {TOTALS_OFFSET + 8 * index: totals[counter.name] for index, counter in enumerate(TOTALS)}
        for row in UNITS:
            for index, unit in enumerate(self._counters.units(Kind[row.name])[: row.limit]):
                sources[row.offset + 8 * index] = lambda now, unit=unit: counters().busy(unit, now)  # type: ignore[misc]
        return sources


def _identification(config: NpuConfig, caps: int) -> dict[str, int]:
    """Return the constant registers by name."""
    return {
        "ID_VERSION": _BY_OFFSET[_OFFSET["ID_VERSION"]].reset,
        "CAPS": caps,
        "CLUSTERS": config.clusters,
        "TE_COUNT": config.te.count,
        "VE_COUNT": config.ve.count,
        "DMA_COUNT": config.dma.channels,
        "BANK_COUNT": config.spm.banks,
        "SPM_BYTES": config.spm.size,
        "QUEUE_LIMIT": config.queue_limit,
    }


_REGISTER = {entry.address: entry.register for entry in CSRS}
_ACKNOWLEDGE = "IRQ_ACK"


class CsrWindow:
    """Custom CSRs, mapped to registers."""

    addresses = frozenset(_REGISTER)

    def __init__(self, registers: RegisterFile) -> None:
        self._registers = registers

    def stable(self, address: int) -> bool:
        """See `RegisterFile.stable`."""
        return self._registers.stable(self.offset(address))

    def offset(self, address: int) -> int:
        """Return the offset of the register that a CSR mirrors."""
        return _OFFSET[_REGISTER[address]]

    def read(self, address: int, now: int) -> int:
        return self._registers.read_named(_REGISTER[address], now)

    def write(self, address: int, value: int, now: int, written: int) -> None:
        """Write `value`. `written`: the operand of csrrw or csrrs; 0 for csrrc, which acknowledges nothing."""
        name = _REGISTER[address]
        self._registers.write_named(name, written if name == _ACKNOWLEDGE else value, now)
