"""The core's data accesses as traffic of the DRAM (specification 40, "Rates"; `npu.dram.core_traffic: accesses`).

Every access is reported at its own cycle, by all engines alike: all pages of the DRAM are watched, so loads and stores
take the way over the bus, at the cost of speed. Without the key nothing is watched, and nothing is slower.
"""

from npu_device.abi.descriptor import DESCRIPTOR_SIZE
from npu_device.device import NpuDevice
from pyv_ext.bus import Bus, WatchedLoad
from pyv_ext.memory import PAGE, Ram
from pyv_ext.protocols import Operands, Outcome, Stall


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
