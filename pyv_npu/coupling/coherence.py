"""Coherence of the core with the NPU's L2.

An incoherent L2 sees each load and store to pages that NPU commands have used, in every engine: these pages are
watched on the bus. Accesses to all other pages stay on the engines' fast path.
"""

from collections.abc import Iterable
from typing import Any

from npu_device.event_loop.l2 import L2
from npu_device.memory.region import Region
from npu_device.units import cache
from pyv_ext.bus.bus import Bus, WatchedLoad
from pyv_ext.bus.memory import PAGE, PAGE_BITS, Ram
from pyv_native.state import integers

ACTIONS = {"cbo.clean": cache.CLEAN, "cbo.flush": cache.FLUSH, "cbo.inval": cache.INVALIDATE}


class Coherence:
    """Connection of the hart on `bus` to the L2, for the memory `ram`."""

    def __init__(self, bus: Bus, ram: Ram, l2: L2) -> None:
        self._bus = bus
        self._ram = ram
        self._l2 = l2
        self._pages: set[int] = set()
        """Pages that commands have used."""
        bus.on_cbo.append(self._cbo)
        if l2.incoherent:
            l2.on_use = self._watch_pages
            bus.guards.append(self._stores)
            bus.watchers.append(self._on_load)

    # -- pages of commands -------------------------------------------------------------------------------------

    def _watch_pages(self, regions: Iterable[Region]) -> None:
        for region in regions:
            low, high = max(region.address, self._ram.base), min(region.end, self._ram.end)
            for page in range(low >> PAGE_BITS, high + PAGE - 1 >> PAGE_BITS):
                if page not in self._pages:
                    self._pages.add(page)
                    self._bus.watch(page << PAGE_BITS)
                    self._bus.watch_stores(page << PAGE_BITS, _ignore_store)

    # -- accesses of the core ----------------------------------------------------------------------------------

    def _stores(self, address: int, size: int, write: bool) -> None:
        """Copy a line's current DRAM content to the L2 before a store, which is correct even if the store traps."""
        if write and address >> PAGE_BITS in self._pages:
            self._l2.core_writes(address, size)

    def _on_load(self, load: WatchedLoad) -> None:
        if load.address >> PAGE_BITS in self._pages:
            self._l2.core_reads(load.address, load.size, load.start)

    def _cbo(self, name: str, address: int, start: int) -> None:
        self._l2.act(start + 1, address, ACTIONS[name])

    # -- snapshots ---------------------------------------------------------------------------------------------

    def state(self) -> list[int]:
        """Return the pages; the bus saves which pages are watched for loads."""
        return sorted(self._pages)

    def load_state(self, state: Any) -> None:
        pages = set(integers(state, self._ram.base >> PAGE_BITS, (self._ram.end >> PAGE_BITS) - 1))
        for page in self._pages - pages:
            self._bus.unwatch_stores(page << PAGE_BITS, _ignore_store)
        for page in pages - self._pages:
            self._bus.watch_stores(page << PAGE_BITS, _ignore_store)
        self._pages = pages


def _ignore_store(address: int, size: int, now: int) -> None:
    """Ignore the store, which `Coherence` has seen before it happened."""
