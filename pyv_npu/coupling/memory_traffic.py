"""The core's accesses and the NPU's memory: coherence with the L2, traffic on the DRAM, what the NPU wrote.

An L2 that is not coherent sees loads and stores of pages that NPU commands have used, one by one and in all engines
equally: these pages are watched on the bus. All others stay on the engines' fast path.

With `npu.dram.core_traffic: accesses` the core's data accesses are traffic of the DRAM (docs/npu-timing.md). Every
access is reported at its own cycle, by all engines: all pages of the DRAM are watched, so loads and stores take
the way over the bus, at the cost of speed. Without the key nothing is watched, and nothing is slower.

The digest of what the NPU left behind does not depend on how commands were submitted or how long they took.
"""

import hashlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from npu_device.abi.descriptor import DESCRIPTOR_SIZE
from npu_device.device import NpuDevice
from npu_device.event_loop import cache
from npu_device.event_loop.l2 import L2
from npu_device.memory.region import Region
from pyv_ext.bus.bus import Bus, WatchedLoad
from pyv_ext.bus.memory import PAGE, PAGE_BITS, Ram
from pyv_ext.protocols import Operands, Outcome, Stall
from pyv_state import WORD64, integers, rows

ACTIONS = {"cbo.clean": cache.CLEAN, "cbo.flush": cache.FLUSH, "cbo.inval": cache.INVALIDATE}


class Coherence:
    """Between the hart on `bus` and the L2, for the memory `ram`."""

    def __init__(self, bus: Bus, ram: Ram, l2: L2) -> None:
        self._bus = bus
        self._ram = ram
        self._l2 = l2
        self._pages: set[int] = set()
        """Pages that commands have used."""
        bus.on_cbo.append(self._cbo)
        if l2.incoherent:
            l2.on_use = self._used
            bus.guards.append(self._stores)
            bus.watchers.append(self._loaded)

    # -- what commands use -------------------------------------------------------------------------------------

    def _used(self, regions: Iterable[Region]) -> None:
        for region in regions:
            low, high = max(region.address, self._ram.base), min(region.end, self._ram.end)
            for page in range(low >> PAGE_BITS, high + PAGE - 1 >> PAGE_BITS):
                if page not in self._pages:
                    self._pages.add(page)
                    self._bus.watch(page << PAGE_BITS)
                    self._bus.watch_stores(page << PAGE_BITS, _seen)

    # -- what the core does ------------------------------------------------------------------------------------

    def _stores(self, address: int, size: int, write: bool) -> None:
        """Before the store, which may still be prevented: the L2's copy is DRAM's of now in any case."""
        if write and address >> PAGE_BITS in self._pages:
            self._l2.core_writes(address, size)

    def _loaded(self, seen: WatchedLoad) -> None:
        if seen.address >> PAGE_BITS in self._pages:
            self._l2.core_reads(seen.address, seen.size, seen.start)

    def _cbo(self, name: str, address: int, start: int) -> None:
        self._l2.act(start + 1, address, ACTIONS[name])

    # -- snapshots ---------------------------------------------------------------------------------------------

    def state(self) -> list[int]:
        """The pages; that their loads are watched is part of the bus's state."""
        return sorted(self._pages)

    def load_state(self, state: Any) -> None:
        pages = set(integers(state, self._ram.base >> PAGE_BITS, (self._ram.end >> PAGE_BITS) - 1))
        for page in self._pages - pages:
            self._bus.unwatch_stores(page << PAGE_BITS, _seen)
        for page in pages - self._pages:
            self._bus.watch_stores(page << PAGE_BITS, _seen)
        self._pages = pages


def _seen(address: int, size: int, now: int) -> None:
    """`Coherence` has seen the store before it happened."""


class CoreTraffic:
    """Tells the NPU of the data accesses of the hart on `bus` to `ram`."""

    def __init__(self, bus: Bus, ram: Ram, npu: NpuDevice) -> None:
        self._ram = ram
        self._npu = npu
        self._store_acts = bus.timing.store - 1
        bus.watchers.append(self._loaded)
        for page in range(ram.base, ram.end, PAGE):
            bus.watch(page)
            bus.watch_stores(page, self._stored)

    def _loaded(self, seen: WatchedLoad) -> None:
        self._access(seen.address, seen.start)

    def _stored(self, address: int, size: int, now: int) -> None:
        self._access(address, now - self._store_acts)

    def _access(self, address: int, start: int, size: int | None = None) -> None:
        if self._ram.base <= address < self._ram.end:
            self._npu.core_access(address, start, size)

    def submitted(self, operands: Operands, outcome: Outcome) -> None:
        """ENQCMD_T has read a descriptor; while it waits it does not read again."""
        if not isinstance(outcome, Stall):
            self._access(operands.rs1, operands.now, DESCRIPTOR_SIZE)


STATUS_SIZE = 8
"""Status and ticket, written back into a descriptor: the submission's, not a result."""


class Outputs:
    """Collects the memory ranges that the device writes; the scratchpad counts as a whole."""

    def __init__(self, bus: Bus, spm: Sequence[Ram], is_status: Callable[[int], bool]) -> None:
        """`is_status(address)`: whether a command asked for its status word at that address."""
        self._bus = bus
        self._spm = spm
        self._is_status = is_status
        self._ranges: dict[tuple[int, int], None] = {}
        self.in_spm: dict[tuple[int, int], None] | None = None
        """Ranges in scratchpads that the device has written; None: they are not recorded."""

    def written(self, address: int, size: int) -> None:
        """The device wrote `size` bytes at `address`."""
        if any(ram.base <= address < ram.end for ram in self._spm):
            if self.in_spm is not None:
                self.in_spm[address, size] = None
            return
        if size != STATUS_SIZE or not self._is_status(address):
            self._ranges[address, size] = None

    def state(self) -> list[list[int]]:
        """What a snapshot keeps."""
        return [list(written) for written in self._ranges]

    def load_state(self, state: Any) -> None:
        self._ranges = {}
        for address, size in rows(state, (0, WORD64), (0, WORD64)):
            self._ranges[address, size] = None

    def ranges(self) -> list[tuple[int, int]]:
        """Disjoint [start, end) ranges of DRAM, ascending."""
        return _merged(self._ranges)

    def sha256(self, *, everywhere: bool = True) -> str:
        """Hash of the scratchpads and of all that was written to DRAM, with its addresses. Not `everywhere`: of the
        scratchpads only what was written while `in_spm` was asked for."""
        digest = hashlib.sha256()
        for ram in self._spm if everywhere else ():
            digest.update(ram.u8)
        for start, end in [*([] if everywhere else _merged(self.in_spm or {})), *self.ranges()]:
            digest.update(f"{start:x}..{end:x}:".encode())
            digest.update(self._bus.peek(start, end - start) or b"")
        return digest.hexdigest()


def _merged(ranges: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Disjoint [start, end) of ranges (address, size), ascending."""
    merged: list[tuple[int, int]] = []
    for address, size in sorted(ranges):
        if merged and address <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], address + size))
        else:
            merged.append((address, address + size))
    return merged
