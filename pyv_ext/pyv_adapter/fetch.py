"""Instruction fetch: Py-V's, with access faults, interrupts, and a predecoder in front of Py-V's decoder."""

from functools import cache
from typing import Any

from pyv.port import Input, Output, Wire
from pyv.reg import Reg
from pyv.stages import IFID_t, IFStage

from pyv_ext.hart.hart import Hart
from pyv_ext.isa import Instruction, OpClass
from pyv_ext.machine.traps import Cause
from pyv_ext.pyv_adapter.signals import NO_WORK, Duty, SystemWork, TrapRequest

NOP = 0x0000_0013

_PY_V = frozenset((OpClass.OP, OpClass.LOAD, OpClass.STORE, OpClass.BRANCH, OpClass.JUMP, OpClass.ECALL, OpClass.XRET))
"""Kinds that Py-V's decoder supports (it decodes multiplications, too, which our ALU executes)."""


class Fetch(IFStage):
    """Fetch stage. Instructions that the stock decoder lacks go to the system unit, and a NOP takes their place.

    An interrupt that is due squashes the instruction here, so that no later stage sees any of it.
    """

    def __init__(self, imem: Any, hart: Hart) -> None:
        super().__init__(imem)
        self._hart = hart
        self._csrs = hart.csrs
        self._decode = cache(hart.isa.decode)
        self.irq_i = Input(int, [self.write_output])
        """Interrupt to take now, as in mcause; 0: none."""
        self.fault_reg = Reg(bool, False)
        """Whether the fetch at the pc faults."""
        self.fault_w = Wire(bool, [self.write_output])
        self.fault_w << self.fault_reg.cur
        self.fault_reg.next << imem.fault_o
        self.work_o = Output(SystemWork)
        self.instruction: Instruction | None = None
        """Instruction at the pc; None: it is illegal, or the fetch faults."""

    @property
    def holds_wfi(self) -> bool:
        """Check whether the instruction register holds a WFI."""
        instruction = None if self.fault_reg.cur.read() else self._decode(self.ir_reg.cur.read())
        return instruction is not None and instruction.row.op_class is OpClass.WFI

    def write_output(self) -> None:
        pc = self.pc_reg_w.read()
        word = self.ir_reg_w.read()
        work = self._work(pc, word)
        self.IFID_o.write(IFID_t(word if work is None else NOP, pc))
        self.work_o.write(work or NO_WORK)

    def _work(self, pc: int, word: int) -> SystemWork | None:
        """Return the work of the system unit; None: the instruction is for Py-V's stages alone."""
        instruction = self.instruction = self._instruction(word)
        op_class = None if instruction is None else instruction.row.op_class
        irq = self.irq_i.read()
        if irq:
            return SystemWork(Duty.TRAP, pc, instruction, TrapRequest(irq))
        if op_class in _PY_V and instruction is not None and instruction.row.custom is None:
            return None
        if instruction is None:
            return SystemWork(Duty.TRAP, pc, None, self._fetch_trap(pc, word))
        return self._system(pc, word, instruction)

    def _instruction(self, word: int) -> Instruction | None:
        return None if self.fault_w.read() else self._decode(word)

    def _fetch_trap(self, pc: int, word: int) -> TrapRequest:
        if self.fault_w.read():
            return TrapRequest(Cause.FETCH_FAULT, pc)
        return TrapRequest(Cause.ILLEGAL, word if word & 3 == 3 else word & 0xFFFF)

    def _system(self, pc: int, word: int, instruction: Instruction) -> SystemWork | None:
        op_class = instruction.row.op_class
        if op_class in (OpClass.CSR_WRITE, OpClass.CSR_UPDATE):
            if not self._csrs.accessible(instruction.csr, instruction.writes_csr):
                return SystemWork(Duty.TRAP, pc, instruction, TrapRequest(Cause.ILLEGAL, word))
            return SystemWork(Duty.CSR_WINDOW, pc, instruction) if instruction.csr in self._csrs.windows else None
        if op_class is OpClass.EBREAK and self._hart.semihosting is not None:
            return SystemWork(Duty.EBREAK, pc, instruction)
        if op_class is OpClass.EBREAK:
            return SystemWork(Duty.TRAP, pc, instruction, TrapRequest(Cause.BREAKPOINT, pc))
        if instruction.row.custom is not None:
            return SystemWork(Duty.CUSTOM, pc, instruction)
        # fences need none: this core executes one access at a time, and fetches directly from memory
        return SystemWork(Duty.WFI if op_class is OpClass.WFI else Duty.NONE, pc, instruction)
