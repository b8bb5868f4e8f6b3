"""A bus with the standard devices at their usual addresses, accessed without a hart: one access per cycle."""

from pyv_ext.bus import Bus
from pyv_ext.clock import Clock
from pyv_ext.devices.clint import Clint
from pyv_ext.devices.finisher import Finisher
from pyv_ext.devices.plic import Plic
from pyv_ext.devices.uart import Uart
from pyv_ext.interrupts import InterruptWiring
from pyv_ext.memory import Ram
from pyv_ext.timing import CoreTiming

FINISHER, CLINT, PLIC, UART, RAM = 0x10_0000, 0x200_0000, 0xC00_0000, 0x1000_0000, 0x8000_0000
UART_SOURCE = 10


class Rig:
    def __init__(self, timing: CoreTiming | None = None, divider: int = 120) -> None:
        self.clock = Clock()
        self.bus = Bus(self.clock, timing or CoreTiming())
        self.ram = Ram("dram", RAM, 0x10_0000)
        self.bus.add_ram(self.ram)
        self.exits: list[int] = []
        self.resets: list[int] = []
        self.finisher = Finisher(self.exits.append, lambda: self.resets.append(self.now))
        self.clint, self.plic, self.uart = Clint(divider), Plic(), Uart()
        self.bus.add_device(FINISHER, self.finisher)
        self.bus.add_device(CLINT, self.clint, near=True)
        self.bus.add_device(PLIC, self.plic)
        self.bus.add_device(UART, self.uart)
        self.mip = 0
        self.wiring = InterruptWiring(
            self.clock, self._set_lines, clint=self.clint, plic=self.plic, sources={UART_SOURCE: self.uart}
        )
        self.now = 1

    def _set_lines(self, bits: int) -> None:
        self.mip = bits

    def load(self, address: int, size: int = 4) -> int | None:
        """The value, or None for an access fault."""
        answer = self.bus.load(address, size, self.now)
        self.now += answer[1] if answer else 1
        self.clock.advance(self.now)
        return answer[0] if answer else None

    def store(self, address: int, value: int, size: int = 4) -> bool:
        """False for an access fault."""
        cycles = self.bus.store(address, size, value, self.now)
        self.now += cycles or 1
        self.clock.advance(self.now)
        return cycles is not None
