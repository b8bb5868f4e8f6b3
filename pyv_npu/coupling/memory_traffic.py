"""DRAM traffic of the core, and the memory ranges that the NPU writes. `coherence` covers the L2.

With `npu.dram.core_traffic: accesses` the core's data accesses are traffic of the DRAM (docs/npu-timing.md). Every
engine reports each access in its own cycle: all pages of the DRAM are watched, so loads and stores go over the bus,
at the cost of speed. Without the key, accesses are not observed and cost nothing.

The digest of the NPU's output does not depend on how commands were submitted or how long they took.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from npu_device.abi import DESCRIPTOR_SIZE
from npu_device.device import NpuDevice
from npu_device.trace.stream import NOTHING
from pyv_ext.bus.bus import Bus, WatchedLoad
from pyv_ext.bus.memory import PAGE, Ram
from pyv_ext.protocols import Operands, Outcome, Stall
from pyv_native.state import WORD64, rows


class CoreTraffic:
    """Reporter of the data accesses of the hart on `bus` to `ram`, to the NPU."""

    def __init__(self, bus: Bus, ram: Ram, npu: NpuDevice) -> None:
        self._ram = ram
        self._npu = npu
        self._store_acts = bus.timing.store - 1
        bus.watchers.append(self._on_load)
        for page in range(ram.base, ram.end, PAGE):
            bus.watch(page)
            bus.watch_stores(page, self._on_store)

    def _on_load(self, load: WatchedLoad) -> None:
        self._access(load.address, load.start)

    def _on_store(self, address: int, size: int, now: int) -> None:
        self._access(address, now - self._store_acts)

    def _access(self, address: int, start: int, size: int | None = None) -> None:
        if self._ram.base <= address < self._ram.end:
            self._npu.core_access(address, start, size)

    def submitted(self, operands: Operands, outcome: Outcome) -> None:
        """Record the descriptor that ENQCMD_T has read; a waiting ENQCMD_T reads once."""
        if not isinstance(outcome, Stall):
            self._access(operands.rs1, operands.now, DESCRIPTOR_SIZE)


STATUS_SIZE = 8
"""Bytes of status and ticket, which are written back into a descriptor and are no result."""


SMALL = 4 << 20
"""Bytes of a scratchpad up to which a scan takes no longer than the import that queries the host for used pages."""


class Outputs:
    """Memory ranges that the device writes; a scratchpad counts as a whole."""

    def __init__(self, bus: Bus, spm: Sequence[Ram], is_status: Callable[[int], bool]) -> None:
        """`is_status(address)`: whether a command asked for its status word at that address."""
        self._bus = bus
        self._spm = spm
        self._is_status = is_status
        self._ranges: dict[tuple[int, int], None] = {}
        self.in_spm: dict[tuple[int, int], None] | None = None
        """Ranges in scratchpads that the device has written; None: not recorded."""

    def written(self, address: int, size: int) -> None:
        """Record a write of the device: `size` bytes at `address`."""
        if any(ram.base <= address < ram.end for ram in self._spm):
            if self.in_spm is not None:
                self.in_spm[address, size] = None
            return
        if size != STATUS_SIZE or not self._is_status(address):
            self._ranges[address, size] = None

    def state(self) -> list[list[int]]:
        """Return the state of a snapshot."""
        return [list(span) for span in self._ranges]

    def load_state(self, state: Any) -> None:
        self._ranges = {}
        for address, size in rows(state, (0, WORD64), (0, WORD64)):
            self._ranges[address, size] = None

    def ranges(self) -> list[tuple[int, int]]:
        """Return disjoint [start, end) ranges of DRAM, ascending."""
        return _merge(self._ranges)

    def covered(self) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
        """Return disjoint [start, end) ranges that the device has written, in DRAM and, if recorded, scratchpads."""
        return self.ranges(), _merge(self.in_spm or {})

    def sha256(self, *, everywhere: bool = True) -> str:
        """Return the SHA-256 of all non-zero scratchpad pages and all ranges written to DRAM, with their addresses.
        Not `everywhere`: of scratchpads only the ranges in `in_spm`."""
        in_dram, in_spm = self.covered()
        ranges = [] if everywhere else in_spm
        for ram in self._spm if everywhere else ():
            ranges += (
                (ram.base + page * PAGE, ram.base + (page + 1) * PAGE) for page in ram.used_pages(ask=ram.size > SMALL)
            )
        ranges += in_dram
        if not ranges:
            return NOTHING
        import hashlib  # OpenSSL takes a while

        digest = hashlib.sha256()
        for start, end in ranges:
            digest.update(f"{start:x}..{end:x}:".encode())
            digest.update(self._bus.peek(start, end - start) or b"")
        return digest.hexdigest()


def _merge(ranges: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Merge ranges (address, size) into disjoint [start, end), ascending."""
    merged: list[tuple[int, int]] = []
    for address, size in sorted(ranges):
        if merged and address <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], address + size))
        else:
            merged.append((address, address + size))
    return merged
