"""System unit, next to decode: waits, traps detected at fetch, custom instructions and CSRs that belong to devices.

Ports are evaluated any number of times in a cycle. Calls of a device or a handler, which must happen only once, are in
`_prepare_next_val`, when all ports have settled.
"""

from pyv.clocked import Clocked
from pyv.module import Module
from pyv.port import Input, Output

from pyv_ext.bus.bus import Bus
from pyv_ext.bus.clock import NEVER
from pyv_ext.engines.protection import load_port
from pyv_ext.engines.steps import A0, repetition, semihosting_answer
from pyv_ext.hart.hart import Hart, Wait
from pyv_ext.isa import Instruction, OpClass
from pyv_ext.isa.expressions import evaluator
from pyv_ext.machine.traps import Cause
from pyv_ext.protocols import Operands, Outcome, Retry, Stall, Trap, Value
from pyv_ext.pyv_adapter.signals import NO_RESULT, NO_TRAP, Duty, SystemResult, SystemWork, TrapRequest


class SystemUnit(Module, Clocked):
    """System unit, which executes `SystemWork`. The instruction takes effect in the hart's cycle."""

    def __init__(self, hart: Hart, bus: Bus) -> None:
        super().__init__("SystemUnit")
        self._hart = hart
        self._bus = bus
        self._peek = load_port(hart, bus)
        self.work_i = Input(SystemWork)
        self.trap_o = Output(TrapRequest)
        self.stall_o = Output(bool)
        self.result_o = Output(SystemResult)
        self.wait: Wait | None = None
        """Wait of the instruction while `stall_o` is high."""
        self.cycles = 1
        """Length of this cycle: the core's clock is stopped while a custom instruction is busy."""
        self.has_answered = True
        """Whether `_prepare_next_val` has driven ports: always."""

    def process(self) -> None:
        """Evaluate the logic that may be evaluated any number of times."""
        work = self.work_i.read()
        self.trap_o.write(work.trap)
        csrs, now = self._hart.csrs, self._hart.cycle
        self.result_o.write(NO_RESULT)
        if work.duty is Duty.WFI and not csrs.mip & csrs.mie:
            self._stall(now + 1, NEVER)
        else:
            self.stall_o.write(False)

    def _stall(self, not_before: int, until: int) -> None:
        hart = self._hart
        start = hart.cycle if hart.waiting is None else hart.waiting.start
        self.wait = Wait(start, not_before, until)
        self.stall_o.write(True)

    @property
    def acts(self) -> bool:
        """Check for work to be done once in this cycle."""
        return self.work_i.read().duty in (Duty.CUSTOM, Duty.CSR_WINDOW, Duty.EBREAK)

    def _prepare_next_val(self) -> None:
        self.cycles = 1
        work = self.work_i.read()
        instruction = work.instruction
        if work.duty is Duty.CUSTOM:
            self._custom(instruction)
        elif work.duty is Duty.CSR_WINDOW:
            self._window(instruction)
        elif work.duty is Duty.EBREAK:
            self._ebreak()

    def _tick(self) -> None:
        """Release the ports that the answer of this cycle drove."""
        self.trap_o.write(NO_TRAP)
        self.stall_o.write(False)
        self.result_o.write(NO_RESULT)

    def _reset(self) -> None:
        self._tick()

    # -- custom instructions -----------------------------------------------------------------------------------

    def _custom(self, instruction: Instruction) -> None:
        hart, clock, custom = self._hart, self._bus.clock, instruction.row.custom
        assert custom is not None and custom.handler is not None  # rows of this kind have both
        acts = hart.cycle
        if hart.waiting is None:
            acts += instruction.row.issue_cycles(hart.timing) - 1
        clock.advance(acts)
        word = instruction.word
        rs1, rs2 = hart.x[word >> 15 & 31], hart.x[word >> 20 & 31]
        operands = Operands(hart.pc, word, rs1, rs2, acts, self._peek, hart.waiting is not None)
        outcome: Outcome = Stall()
        if custom.ready is None or custom.ready(operands):
            outcome = custom.handler(operands)
            if custom.touches == "devices":
                clock.changed(acts + 1)
        self.cycles = acts + 1 - hart.cycle
        self._answer(instruction, outcome, acts)

    def _answer(self, instruction: Instruction, outcome: Outcome, acts: int) -> None:
        if isinstance(outcome, Trap):
            self.trap_o.write(TrapRequest(outcome.cause, outcome.value))
        elif isinstance(outcome, Stall | Retry):
            self._stall(*repetition(outcome, acts))
        else:
            value, cycles = outcome if isinstance(outcome, Value) else (outcome, 0)
            self.cycles += cycles
            self.result_o.write(SystemResult(instruction.rd, value & self._hart.isa.mask))

    # -- semihosting -------------------------------------------------------------------------------------------

    def _ebreak(self) -> None:
        answer = semihosting_answer(self._hart, self._bus)
        if answer is None:
            self.trap_o.write(TrapRequest(Cause.BREAKPOINT, self._hart.pc))
        else:
            self.result_o.write(SystemResult(A0, answer))

    # -- CSRs of devices ---------------------------------------------------------------------------------------

    def _window(self, instruction: Instruction) -> None:
        hart, clock = self._hart, self._bus.clock
        window, now = hart.csrs.windows[instruction.csr], hart.cycle
        always = instruction.row.op_class is OpClass.CSR_WRITE
        operand = hart.x[instruction.rs1] if instruction.row.format.rs1 else instruction.imm
        clock.advance(now)
        previous = window.read(instruction.csr, now) if instruction.rd or not always else 0
        if instruction.writes_csr:
            value = evaluator(instruction.row.expr, hart.isa.xlen)(operand, operand, hart.pc, previous)
            window.write(instruction.csr, value, now, operand & value)
        clock.changed(now + 1)
        self.result_o.write(SystemResult(instruction.rd, previous))
