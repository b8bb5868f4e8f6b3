"""Netlist: Py-V's single-cycle core with our parts instead of its own."""

from types import FunctionType
from typing import Any

from pyv.models.singlecycle import SingleCycle
from pyv.port import Wire

from pyv_ext.bus.bus import Bus
from pyv_ext.hart.hart import Hart
from pyv_ext.pyv_adapter.fetch import Fetch
from pyv_ext.pyv_adapter.memory import BusMemory
from pyv_ext.pyv_adapter.stages import Branch, Decode, Exceptions, Execute, MemoryAccess, WriteBack
from pyv_ext.pyv_adapter.state import CsrUnit, Registers
from pyv_ext.pyv_adapter.system import SystemUnit


class PyvCore(SingleCycle):
    """Extended core, created within `OwnSimulator.building`."""

    def __init__(self, hart: Hart, bus: Bus) -> None:
        parts: dict[str, Any] = {
            "Regfile": lambda: Registers(hart),
            "CSRUnit": lambda: CsrUnit(hart),
            "Memory": lambda size: BusMemory(hart, bus),
            "IFStage": lambda imem: Fetch(imem, hart),
            "IDStage": Decode,
            "EXStage": lambda: Execute(hart.isa),
            "MEMStage": MemoryAccess,
            "WBStage": WriteBack,
            "BranchUnit": Branch,
            "ExceptionUnit": Exceptions,
        }
        # A port refuses a second driver, so parts of a finished core cannot be replaced: it is built with ours.
        stock = SingleCycle.__init__
        FunctionType(stock.__code__, {**stock.__globals__, **parts}, closure=stock.__closure__)(self)
        self.name = "core"
        self.system = SystemUnit(hart, bus)
        self.irq = Wire(int, [None])
        self._connect_additions()

    def _connect_additions(self) -> None:
        excep, system = self.excep, self.system
        # fmt: off
        self.if_stg.irq_i      << self.irq
        system.work_i          << self.if_stg.work_o
        excep.system_i         << system.trap_o
        excep.target_i         << self.ex_stg.trap_o
        excep.access_i         << self.mem_stg.trap_o
        self.bu.stall_i        << system.stall_o
        self.wb_stg.kill_i     << excep.raise_exception_o
        self.wb_stg.result_i   << system.result_o
        self.csr_unit.mtval_i  << excep.mtval_o
        self.csr_unit.mret_i   << excep.trap_return_o
        # fmt: on

    @property
    def registers(self) -> tuple[Any, ...]:
        """Registers that a clock edge loads, in addition to the hart's state."""
        fetch = self.if_stg
        return fetch.pc_reg, fetch.ir_reg, fetch.fault_reg
