"""Stages of Py-V after fetch, with added parts and corrected errors (listed in docs/py-v.md)."""

from typing import Any

from pyv.csr import CSRUnit
from pyv.exception_unit import ExceptionUnit
from pyv.isa import CSR, OPCODES
from pyv.port import Input, Output
from pyv.stages import LOAD, BranchUnit, EXStage, IDStage, MEMStage, WBStage

from pyv_ext.isa import Isa
from pyv_ext.isa.expressions import evaluator
from pyv_ext.isa.integer import M as MULDIV
from pyv_ext.machine.traps import INTERRUPT, Cause
from pyv_ext.pyv_adapter.signals import NO_TRAP, SystemResult, TrapRequest

MASK = 0xFFFF_FFFF

_OP, _OP_IMM, _JALR = OPCODES["OP"], OPCODES["OP-IMM"], OPCODES["JALR"]
_MTVEC, _MEPC = CSR["mtvec"]["addr"], CSR["mepc"]["addr"]
_MULDIV = 1
"""funct7 of the M extension."""
_SLT = 2
"""funct3 of SLT and SLTI."""
_LINK = 1
"""Value of `wb_sel` that writes pc + 4."""


class Decode(IDStage):
    """Decode stage. Corrected: JALR writes pc + 4. Illegal words never reach it (stock raises Python exceptions for
    some)."""

    def wb_sel(self, opcode: int, funct3: int) -> int:
        return _LINK if opcode == _JALR else int(super().wb_sel(opcode, funct3))


class Execute(EXStage):
    """Execute stage with the M extension and the trap of a misaligned target. Corrected: SLT and SLTI of two negative
    numbers."""

    def __init__(self, isa: Isa) -> None:
        super().__init__()
        self._muldiv = {row.match >> 12 & 7: evaluator(row.expr, isa.xlen) for row in MULDIV}
        self._slt = evaluator(isa.by_name["slt"].expr, isa.xlen)
        self._misaligned = isa.alignment - 1
        self.trap_o = Output(TrapRequest)

    def alu(self, opcode: int, rs1: int, rs2: int, imm: int, pc: int, f3: int, f7: int) -> int:
        if opcode == _OP:
            if f7 == _MULDIV:
                return self._muldiv[f3](rs1, rs2, pc, 0)
            if f3 == _SLT:
                return self._slt(rs1, rs2, pc, 0)
        elif opcode == _OP_IMM and f3 == _SLT:
            return self._slt(rs1, imm, pc, 0)
        return int(super().alu(opcode, rs1, rs2, imm, pc, f3, f7))

    def process(self) -> None:
        super().process()
        out = self.exmem_val
        wrong = out.take_branch and out.alu_res & self._misaligned
        self.trap_o.write(TrapRequest(Cause.MISALIGNED_FETCH, out.alu_res) if wrong else NO_TRAP)

    def write_output(self) -> None:
        self.exmem_val.pc4 &= MASK
        super().write_output()


class MemoryAccess(MEMStage):
    """Memory stage with traps of misaligned and faulting accesses. Corrected: a load that differs from the last
    only in extension."""

    def __init__(self, dmem_read: Any, dmem_write: Any) -> None:
        super().__init__(dmem_read, dmem_write)
        self.fault_i = Input(bool)
        """The bus has refused the access."""
        self.fault_i << dmem_read.fault_o
        self.trap_o = Output(TrapRequest)

    def process(self) -> None:
        super().process()
        access = self.EXMEM_i.read()
        trap = NO_TRAP
        if access.mem:
            address, loads = access.alu_res, access.mem == LOAD
            if address & self.w - 1:
                self.read_port.re_i.write(False)
                self.write_port.we_i.write(False)
                trap = TrapRequest(Cause.MISALIGNED_LOAD if loads else Cause.MISALIGNED_STORE, address)
            elif self.fault_i.read():
                trap = TrapRequest(Cause.LOAD_FAULT if loads else Cause.STORE_FAULT, address)
            if loads:
                self.process_load()
        self.trap_o.write(trap)


class WriteBack(WBStage):
    """Write-back stage with the register write of the system unit; a trap kills the instruction's own."""

    def __init__(self, regf: Any) -> None:
        super().__init__(regf)
        self.kill_i = Input(bool)
        self.result_i = Input(SystemResult)

    def process(self) -> None:
        super().process()
        result = self.result_i.read()
        if self.kill_i.read():
            self.regfile.we = False
        elif result.rd:
            self.regfile.write_request(result.rd, result.value)


class Exceptions(ExceptionUnit):
    """Exception unit: all traps, by priority; interrupts through the vector table if mtvec is vectored."""

    def __init__(self, csr: CSRUnit) -> None:
        super().__init__(csr, "Exceptions")
        self.system_i = Input(TrapRequest)
        self.target_i = Input(TrapRequest)
        self.access_i = Input(TrapRequest)
        self.mtval_o = Output(int)
        self.trap = NO_TRAP
        """The trap that this cycle takes."""

    def process(self) -> None:
        trap = self.trap = self._first()
        raised = trap.cause >= 0
        returns = self.mret_i.read() and not raised
        npc = self._vector(trap.cause) if raised else self.csr.read(_MEPC) if returns else 0
        self.raise_exception_o.write(raised)
        self.npc_o.write(npc)
        self.mcause_o.write(int(trap.cause) if raised else 0)
        self.mtval_o.write(int(trap.value))
        self.trap_return_o.write(returns)

    def _first(self) -> TrapRequest:
        trap: TrapRequest = self.system_i.read()
        if trap.cause < 0:
            trap = TrapRequest(Cause.ECALL_MACHINE) if self.ecall_i.read() else self.target_i.read()
        return trap if trap.cause >= 0 else self.access_i.read()

    def _vector(self, cause: int) -> int:
        mtvec = int(self.csr.read(_MTVEC))
        vectored = mtvec & 1 and cause & INTERRUPT
        return (mtvec & -4) + (4 * (cause & ~INTERRUPT) if vectored else 0) & MASK


class Branch(BranchUnit):
    """Branch unit in which a stalled instruction keeps its pc, and the pc wraps."""

    def __init__(self) -> None:
        super().__init__()
        self.stall_i = Input(bool)

    def process(self) -> None:
        if self.stall_i.read() and not self.raise_exception_i.read():
            self.npc_o.write(self.pc_i.read())
            return
        super().process()
        if self.npc_o.read() > MASK:
            self.npc_o.write(self.npc_o.read() & MASK)
