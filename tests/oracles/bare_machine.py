"""A hart with memory, CLINT and HTIF and nothing else: what the programs of outside test suites run on."""

from pyv_ext import elf
from pyv_ext.bus.bus import Bus
from pyv_ext.bus.clock import Clock
from pyv_ext.bus.memory import Ram
from pyv_ext.cores import ENGINES as ALL_ENGINES
from pyv_ext.cores import make_engine
from pyv_ext.devices.clint import Clint, SupervisorTimer
from pyv_ext.devices.interrupts import InterruptWiring
from pyv_ext.devices.plic import Plic
from pyv_ext.devices.program_exit import Htif
from pyv_ext.devices.uart import Console
from pyv_ext.engines.core import Stop, StopReason
from pyv_ext.hart.hart import Hart
from pyv_ext.isa import Isa
from pyv_ext.timing import CoreTiming

ENGINES = [name for name in ALL_ENGINES if name != "pyv"]
"""All but the Py-V core, which has rv32im only."""
RAM, RAM_SIZE = 0x8000_0000, 16 << 20
CLINT = 0x200_0000


class BareMachine:
    """`isa` at 0x8000_0000, where QEMU's `virt` machine starts too; `divider` as for the CLINT."""

    def __init__(self, isa: str, *, engine: str = "reference", misaligned: bool = False, divider: int = 120) -> None:
        timing = CoreTiming()
        self.clock = Clock()
        self.bus = Bus(self.clock, timing)
        self.ram = Ram("ram", RAM, RAM_SIZE)
        self.bus.add_ram(self.ram)
        self.hart = Hart(Isa(isa), timing, self.clock.records, reset_pc=RAM)
        self.clint = Clint(divider)
        if "sstc" in self.hart.isa.extensions:
            self.hart.csrs.add_window(SupervisorTimer(self.clint, self.hart.isa.xlen))
        self.bus.add_device(CLINT, self.clint, near=True)
        InterruptWiring(self.clock, clint=self.clint, plic=Plic(), sources={})
        self.engine = make_engine(engine, self.hart, self.bus, misaligned=misaligned)
        self.console = Console()

    def load(self, program: elf.Program) -> None:
        """Start at the program's entry; a store to its `tohost`, if it has one, ends the run."""
        elf.load(program, self.bus)
        self.hart.pc = program.entry
        tohost, fromhost = program.symbols.get("tohost"), program.symbols.get("fromhost")
        if tohost is not None:
            Htif(self.bus, tohost.address, fromhost.address if fromhost else None, self.console, self._exit)

    def _exit(self, code: int) -> None:
        self.engine.stop(Stop(StopReason.EXIT, code))

    def run(self, cycles: int) -> Stop | None:
        """Why the program ended, or None if it did not within `cycles`."""
        return self.engine.run(cycles)
