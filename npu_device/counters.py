"""The device's counters: a fold over the event stream and nothing else (specification 40, "Events")."""

from collections.abc import Callable
from typing import Any

from npu_device.abi.opcodes import Opcode
from npu_device.config import NpuConfig
from npu_device.events import FRONTEND, SUBMISSION_REFUSALS, Cause, Kind, What, unit_code
from npu_device.scheduler import unit_counts


class Counters:
    """Totals since the device was made; a soft reset does not touch them."""

    def __init__(self, config: NpuConfig) -> None:
        self.accepted = 0
        self.completed = 0
        """Errors included."""
        self.errors = 0
        self.rejected = 0
        self.bad_accesses = 0
        self.depth = 0
        """Accepted and not started."""
        self.depth_max = 0
        self.barrier_wait = 0
        self.dram_bytes_read = 0
        """Aligned bytes of LOAD; fetches of descriptors are not among them."""
        self.dram_bytes_written = 0
        self.bank_conflict_stall = 0
        """Stays 0, as the busy cycles of banks do: L1 has no model of banks."""
        self.cycle = 0
        """Of the latest event."""
        counts = {kind: count * config.clusters for kind, count in unit_counts(config).items()}
        counts[Kind.BANK] = config.spm.banks * config.clusters
        self._units = {kind: [unit_code(kind, index) for index in range(count)] for kind, count in counts.items()}
        self._busy = {unit: 0 for units in self._units.values() for unit in units}
        self._running: dict[int, tuple[int, int, int]] = {}
        """Unit -> (ticket, cycle of its start, opcode)."""
        self._counts: dict[int, Callable[[int, int, int, int, int], None]] = {
            What.ACCEPT: self._accept,
            What.REJECT: self._reject,
            What.STALL: self._stall,
            What.DONE: self._complete,
            What.ERROR: self._error,
            **dict.fromkeys((What.DMA_BEGIN, What.TE_BEGIN, What.VE_BEGIN), self._begin),
            **dict.fromkeys((What.DMA_END, What.TE_END, What.VE_END), self._end),
        }

    @property
    def submitted(self) -> int:
        return self.accepted + self.rejected

    @property
    def noc_bytes(self) -> int:
        """Every DRAM transfer crosses the NoC."""
        return self.dram_bytes_read + self.dram_bytes_written

    def units(self, kind: Kind) -> list[int]:
        """Codes of the units of a kind, of all clusters."""
        return self._units.get(kind, [])

    def busy(self, unit: int, cycle: int) -> int:
        """Busy cycles of a unit until the start of `cycle`; what it runs is counted so far."""
        running = self._running.get(unit)
        return self._busy[unit] + (max(0, cycle - running[1]) if running is not None else 0)

    def to_json(self) -> dict[str, Any]:
        """The `npu` object of specification 70, as of the latest event."""
        return {
            "submitted": self.submitted,
            "accepted": self.accepted,
            "completed": self.completed,
            "errors": self.errors,
            "rejected": self.rejected,
            "queue_depth_max": self.depth_max,
            "dram_bytes_read": self.dram_bytes_read,
            "dram_bytes_written": self.dram_bytes_written,
            "te_busy": self._all_busy(Kind.TE),
            "ve_busy": self._all_busy(Kind.VE),
            "dma_busy": self._all_busy(Kind.DMA),
            "bank_busy": self._all_busy(Kind.BANK),
            "bank_conflict_stall": [0] * len(self._units[Kind.BANK]),
            "barrier_wait": self.barrier_wait,
        }

    def _all_busy(self, kind: Kind) -> list[int]:
        return [self.busy(unit, self.cycle) for unit in self._units[kind]]

    def observe(self, cycle: int, unit: int, what: int, ticket: int, size: int, aux: int) -> None:
        """One event; a listener of the EventStream."""
        self.cycle = cycle
        count = self._counts.get(what)
        if count is not None:
            count(cycle, unit, ticket, size, aux)

    # -- one method per kind of event: (cycle, unit, ticket, bytes, aux) ----------------------------------------

    def _accept(self, cycle: int, unit: int, ticket: int, size: int, aux: int) -> None:
        self.accepted += 1
        self.depth += 1
        if self.depth > self.depth_max:
            self.depth_max = self.depth

    def _reject(self, cycle: int, unit: int, ticket: int, size: int, aux: int) -> None:
        if aux in SUBMISSION_REFUSALS:
            self.rejected += 1
        else:
            self.bad_accesses += 1

    def _stall(self, cycle: int, unit: int, ticket: int, size: int, aux: int) -> None:
        if aux == Cause.BARRIER:
            self.barrier_wait += size

    def _begin(self, cycle: int, unit: int, ticket: int, size: int, aux: int) -> None:
        self.depth -= 1
        self._running[unit] = (ticket, cycle, aux & 0xFF)

    def _end(self, cycle: int, unit: int, ticket: int, size: int, aux: int) -> None:
        _, start, opcode = self._running.pop(unit)
        self._busy[unit] += cycle - start
        if opcode == Opcode.LOAD:
            self.dram_bytes_read += aux
        elif opcode == Opcode.STORE:
            self.dram_bytes_written += aux

    def _error(self, cycle: int, unit: int, ticket: int, size: int, aux: int) -> None:
        self.errors += 1
        self._complete(cycle, unit, ticket, size, aux)

    def _complete(self, cycle: int, unit: int, ticket: int, size: int, aux: int) -> None:
        self.completed += 1
        if unit == FRONTEND:
            self.depth -= 1  # it never ran on a unit
            return
        running = self._running.get(unit)
        if running is not None and running[0] == ticket:  # a reset has stopped it
            del self._running[unit]
            self._busy[unit] += cycle - running[1]
