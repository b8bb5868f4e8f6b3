"""The standard devices at their usual addresses: `Rig` accesses them by hand, `Machine` runs programs."""

from pathlib import Path

from pyv_ext.bus.bus import Bus
from pyv_ext.bus.clock import Clock
from pyv_ext.bus.memory import Ram
from pyv_ext.cores import make_engine
from pyv_ext.devices.clint import Clint
from pyv_ext.devices.interrupts import InterruptWiring
from pyv_ext.devices.plic import Plic
from pyv_ext.devices.program_exit import Finisher
from pyv_ext.devices.uart import Uart
from pyv_ext.elf import load, read_elf
from pyv_ext.engines.core import Stop, StopReason
from pyv_ext.hart.hart import Hart
from pyv_ext.isa import Isa
from pyv_ext.timing import CoreTiming

FINISHER, CLINT, PLIC, UART, RAM = 0x10_0000, 0x200_0000, 0xC00_0000, 0x1000_0000, 0x8000_0000
UART_SOURCE = 10


class Rig:
    """One access per cycle, without a hart."""

    def __init__(self, timing: CoreTiming | None = None, divider: int = 120) -> None:
        self.clock = Clock()
        self.clock.compile()
        self.bus = Bus(self.clock, timing or CoreTiming())
        self.ram = Ram("dram", RAM, 0x10_0000)
        self.bus.add_ram(self.ram)
        self.exits: list[int] = []
        self.resets: list[int] = []
        self.finisher = Finisher(self._exit, lambda: self.resets.append(self.now))
        self.clint, self.plic, self.uart = Clint(divider), Plic(), Uart()
        self.bus.add_device(FINISHER, self.finisher)
        self.bus.add_device(CLINT, self.clint, near=True)
        self.bus.add_device(PLIC, self.plic)
        self.bus.add_device(UART, self.uart)
        self.wiring = InterruptWiring(self.clock, clint=self.clint, plic=self.plic, sources={UART_SOURCE: self.uart})
        self.now = 1

    def _exit(self, code: int) -> None:
        self.exits.append(code)

    @property
    def mip(self) -> int:
        return self.wiring.lines

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


class Machine(Rig):
    """A hart and an engine on the same devices."""

    def __init__(
        self, elf: Path, timing: CoreTiming | None = None, divider: int = 120, engine: str = "reference"
    ) -> None:
        program = read_elf(elf)
        super().__init__(timing, divider)
        isa = Isa("rv32im_zicsr_zifencei")
        self.hart = Hart(isa, timing or CoreTiming(), self.clock.records, reset_pc=program.entry)
        load(program, self.bus)
        self.engine = make_engine(engine, self.hart, self.bus)

    def _exit(self, code: int) -> None:
        super()._exit(code)
        self.engine.stop(Stop(StopReason.EXIT, code))

    def run(self, limit: int = 1_000_000) -> Stop | None:
        """How the program ended; None after `limit` cycles."""
        return self.engine.run(limit)
