"""State of the hart in Py-V's register file and CSR unit: a single copy, which debuggers and reports use, too."""

from pyv.clocked import Clocked, MemList
from pyv.module import Module
from pyv.port import Input
from pyv.reg import Regfile

from pyv_ext.hart.hart import Hart
from pyv_ext.machine.hart import return_from_trap
from pyv_ext.machine.traps import INTERRUPT, MACHINE


class Registers(Regfile):
    """Register file of Py-V on `Hart.x`."""

    def __init__(self, hart: Hart) -> None:
        super().__init__()
        self.regs = hart.x

    def read(self, reg: int) -> int:
        return self.regs[reg]

    def _reset(self) -> None:
        self.we = False


class CsrUnit(Module, Clocked):
    """CSR unit with the ports of Py-V's, and mtval and mret in addition; the registers are `Hart.csrs`."""

    def __init__(self, hart: Hart) -> None:
        super().__init__("CsrUnit")
        MemList.add_to_mem_list(self)
        self._hart = hart
        self.write_addr_i = Input(int, [None])
        self.write_val_i = Input(int, [None])
        self.write_en_i = Input(bool, [None])
        self.ex_i = Input(bool, [None])
        self.mepc_i = Input(int, [None])
        self.mcause_i = Input(int, [None])
        self.mtval_i = Input(int, [None])
        self.mret_i = Input(bool, [None])

    def read(self, addr: int) -> int:
        """Read a CSR for the running instruction."""
        return self._hart.csrs.read(addr)

    def _prepare_next_val(self) -> None:
        pass  # nothing that a clock edge changes drives our inputs directly

    def _tick(self) -> None:
        hart = self._hart
        if self.ex_i.read():
            cause = self.mcause_i.read()
            hart.enter_trap(cause & ~INTERRUPT, self.mtval_i.read(), interrupt=bool(cause & INTERRUPT))
        elif self.mret_i.read():
            hart.records.execute(return_from_trap, MACHINE)
        elif self.write_en_i.read():
            hart.csrs.write(self.write_addr_i.read(), self.write_val_i.read())

    def _reset(self) -> None:
        pass  # the hart is created in its reset state
