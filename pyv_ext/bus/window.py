"""Address window of a device: the cost of its accesses, and the cycle of their effect (docs/core-timing.md)."""

from pyv_ext.bus.clock import Clock
from pyv_ext.machine.state import RegisterRecord
from pyv_ext.protocols import Device
from pyv_ext.timing import CoreTiming


class DeviceWindow:
    """Addresses base..end-1 of a device. Accesses are naturally aligned and lie inside."""

    def __init__(self, base: int, device: Device, near: bool, clock: Clock, timing: CoreTiming) -> None:
        """`near` devices cost a load or store plus `near_extra` instead of an MMIO access."""
        self.base = base
        self.end = base + device.size
        self.device = device
        self.logged = False
        """Whether all accesses are in the core log."""
        self.device_id = clock.attach(device)
        self._clock = clock
        if near:
            self.load_cycles = timing.load + timing.near_extra
            self.load_acts = self.load_cycles - 1
            self.store_cycles, self.one_way = timing.store + timing.near_extra, 0
        else:
            self.load_cycles = timing.mmio_read
            self.load_acts = min(1 + timing.mmio_one_way, timing.mmio_read) - 1
            self.store_cycles, self.one_way = timing.mmio_write, timing.mmio_one_way

    def fill(self, register: RegisterRecord, address: int, size: int) -> None:
        """Set the record of a register."""
        device, offset = self.device, address - self.base
        stable = getattr(device, "stable", None)
        register.device_id, register.addr = self.device_id, offset
        register.readable, register.writable = device.accepts(offset, size, False), device.accepts(offset, size, True)
        register.stable = register.readable and stable is not None and stable(offset, size)
        register.logged = self.logged
        register.load_cycles, register.load_acts = self.load_cycles, self.load_acts
        register.store_cycles, register.one_way = self.store_cycles, self.one_way

    def refuse(self, address: int, size: int, write: bool, start: int) -> None:
        """Report an access fault in cycle `start` to a device that counts faults."""
        count = getattr(self.device, "refused", None)
        if count is not None:
            self._clock.advance(start)
            count(address - self.base, size, write, start)
            self._clock.device_changed(self.device_id, start + 1)
