"""Content of L2 lines that differs from DRAM, and the core's view of memory (docs/npu-timing.md, "L2").

With `l2.coherence: none` the core's accesses bypass the L2. The core sees the NPU's writes after the lines are written
back to DRAM; the NPU sees the core's writes after the lines leave the L2. Until then a read returns the old bytes, and
a STALE event records it. CTRL.FLUSH_L2 or Zicbom restore coherence. NPU commands always see each other's writes.
Descriptors, extended blocks and status words bypass the L2.

With `io_coherent` core and NPU share one view.
"""

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from npu_device.abi.memory_map import DRAM_BASE
from npu_device.config import NpuConfig
from npu_device.event_loop.machine import Machine
from npu_device.memory.arrays import Bytes
from npu_device.memory.memory import Memory
from npu_device.memory.region import Region
from npu_device.trace.events import Kind, What, unit_code
from npu_device.trace.stream import EventStream
from npu_device.units import cache
from pyv_native.state import WORD64, StateError, data, inside, integer, sequence

CORE = unit_code(Kind.CORE, 0)


class L2:
    """Memory as commands see it. A line's number is address // `l2.line`."""

    def __init__(self, config: NpuConfig, memory: Memory, machine: Machine, events: EventStream) -> None:
        self._memory = memory
        self._machine = machine
        self._events = events
        self._line = config.l2.line
        self.incoherent = config.l2.enabled and config.l2.coherence == "none"
        self._lines: dict[int, bytearray] = {}
        """Bytes of lines in the L2 that may differ from DRAM. Their tags are WATCHED, so evictions are reported."""
        self.on_use: Callable[[Iterable[Region]], None] | None = None
        """Receives the regions that a starting command uses, of which the L2 may have lines from then on."""
        if self.incoherent:
            machine.on_dropped = self._remove_lines

    # -- memory interface of `Results` -------------------------------------------------------------------------

    def rows(self, region: Region) -> Bytes:
        """Return the bytes of a region, shape (rows, row_bytes); a view of memory if the L2 equals DRAM there."""
        rows = self._memory.rows(region)
        if not self._lines or region.address < DRAM_BASE:
            return rows
        size = region.end - region.address
        numbers = [number for number in self._numbers(region.address, size) if number in self._lines]
        if not numbers:
            return rows
        flat = self._memory.rows(Region(region.address, 1, size, size))[0].copy()
        for number in numbers:
            low = number * self._line - region.address
            skipped = max(0, -low)
            content = np.frombuffer(self._lines[number], np.uint8)[skipped : size - low]
            flat[low + skipped : low + skipped + len(content)] = content
        return np.ndarray((region.rows, region.row_bytes), np.uint8, flat, 0, (region.stride, 1))

    def write(self, region: Region, data: Bytes) -> None:
        """Write a region: to the L2 for its dirty lines, to DRAM for all others."""
        if region.address < DRAM_BASE or not (self._lines or self._machine.dirty_lines):
            self._memory.write(region, data)
            return
        for start, row in zip(region.row_addresses, data.reshape(region.rows, region.row_bytes), strict=True):
            for number in self._numbers(start, region.row_bytes):
                low = max(start, number * self._line)
                part = row[low - start : (number + 1) * self._line - start]
                dirty = self._is_dirty(number)
                if dirty:
                    self._keep(number)
                if number in self._lines:
                    at = low - number * self._line
                    self._lines[number][at : at + len(part)] = part.tobytes()
                if not dirty:
                    self._memory.write_bytes(low, part.tobytes())

    # -- the core ----------------------------------------------------------------------------------------------

    def core_reads(self, address: int, size: int, now: int) -> None:
        """Emit STALE for a load of the core in cycle `now` if the L2 has newer bytes than DRAM."""
        if any(self._is_dirty(number) for number in self._numbers(address, size)):
            self._events.emit(now + 1, CORE, What.STALE, 0, 0, address, size)

    def core_writes(self, address: int, size: int) -> None:
        """Save the L2's lines before a store of the core changes DRAM, as they become stale."""
        for number in self._numbers(address, size):
            if self._machine.mark(number, cache.STALE):
                self._keep(number)

    def act(self, cycle: int, address: int, action: int) -> None:
        """Clean, flush or invalidate (`cache`) the line of an address, for Zicbom. Its traffic precedes transfers."""
        self._machine.maintain(cycle, address // self._line, action)

    def flush(self, cycle: int) -> None:
        """Write back dirty lines and invalidate all, for CTRL.FLUSH_L2."""
        self._machine.maintain(cycle, 0, cache.FLUSH)

    # -- snapshots ---------------------------------------------------------------------------------------------

    def state(self) -> list[Any]:
        """Return the state of a snapshot: the bytes of lines by their numbers."""
        return [[number, bytes(content)] for number, content in self._lines.items()]

    def load_state(self, state: Any) -> None:
        """Restore a state. The event loop has been restored before."""
        lines: dict[int, bytearray] = {}
        for index, item in enumerate(sequence(state)):
            with inside(index):
                number, content = sequence(item, 2)
                address = integer(number, 0, WORD64) * self._line
                if number in lines or not self._memory.holds(address, self._line):
                    raise StateError(f"{number} is no line of the memory, or comes twice")
                lines[number] = bytearray(data(content, self._line))
        if sorted(lines) != sorted(self._machine.watched_lines()):
            raise StateError("these are not the lines that differ from DRAM")
        self._lines = lines

    # -- lines -------------------------------------------------------------------------------------------------

    def _numbers(self, address: int, size: int) -> range:
        return range(address // self._line, (address + size - 1) // self._line + 1)

    def _is_dirty(self, number: int) -> bool:
        return bool(self._machine.mark(number, 0) & cache.DIRTY)

    def _keep(self, number: int) -> None:
        """Copy a line from DRAM, which equals the L2's content until the next write."""
        if number not in self._lines:
            self._lines[number] = bytearray(self._memory.read(number * self._line, self._line) or bytes(self._line))
            self._machine.mark(number, cache.WATCHED)

    def _remove_lines(self, tags: Iterable[int]) -> None:
        for tag in tags:
            data = self._lines.pop(tag >> cache.FLAGS)
            if tag & cache.DIRTY:
                self._memory.write_bytes((tag >> cache.FLAGS) * self._line, bytes(data))
