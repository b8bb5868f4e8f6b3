"""Core under its clock: an evaluation and the edge that ends it (docs/core-timing.md, "Cycle contract").

Devices are ticked between an edge and the next evaluation; to the core that is a part of the edge.
"""

from pyv_ext.bus.bus import Bus
from pyv_ext.hart.hart import Hart
from pyv_ext.isa import Instruction
from pyv_ext.machine.traps import INTERRUPT
from pyv_ext.pyv_adapter.core import PyvCore
from pyv_ext.pyv_adapter.evaluation import ChangeDriven, Evaluation, Ordered
from pyv_ext.pyv_adapter.fetch import NOP
from pyv_ext.pyv_adapter.isolation import OwnSimulator
from pyv_ext.pyv_adapter.memory import BusMemory
from pyv_ext.pyv_adapter.signals import TrapRequest
from pyv_ext.pyv_adapter.system import SystemUnit


class ClockedCore:
    """Clocked core that shares registers and CSRs with `hart`, whose pc and counters follow at every edge."""

    def __init__(self, hart: Hart, bus: Bus, *, specialised: bool) -> None:
        simulator = OwnSimulator()
        with simulator.building():
            core = PyvCore(hart, bus)
            simulator.addObj(core)
            simulator.init()
        self.core = core
        self.cycles = 1
        """Length of the cycle that was evaluated last."""
        self._hart = hart
        self._evaluation: Evaluation = Ordered(core, simulator) if specialised else ChangeDriven(core, simulator)
        self._active_unit: SystemUnit | BusMemory | None = None

    # -- between cycles ----------------------------------------------------------------------------------------

    def select_instruction(self, pc: int, word: int | None = None) -> None:
        """Select the instruction at `pc` for the coming cycle, through a bubble that takes no time.

        `word`: its word, if it was fetched before memory changed.
        """
        core, fetch = self.core, self.core.if_stg
        with self._evaluation.driving:
            core.irq.write(0)
            fetch.pc_reg.cur.write(pc - 4)
            fetch.ir_reg.cur.write(NOP)
            fetch.fault_reg.cur.write(False)
        self._evaluation.requeue(core.system.process, core.id_stg.process, core.mem.process_read1)
        self._evaluation.settle()
        core.regf.we = False
        self._load_registers()
        if word is not None:
            with self._evaluation.driving:
                fetch.ir_reg.cur.write(word)

    @property
    def stale_fetch(self) -> tuple[int, bytes] | None:
        """Instruction of the coming cycle, and the bytes with which the hart has overwritten it since; None if it has
        not."""
        word, memory_word = self.core.if_stg.ir_reg.cur.read(), self.core.mem.fetched_word
        return None if memory_word is None or word == memory_word else (int(word), memory_word.to_bytes(4, "little"))

    def begin(self) -> bool:
        """Apply changes by devices; return whether an interrupt squashes the instruction of the coming cycle."""
        self._after_devices()
        hart, csrs = self._hart, self._hart.csrs
        waits = hart.waiting is not None and self.holds_wfi
        interrupt = hart.interrupt() if csrs.mip & csrs.mie and not waits else None
        line = 0 if interrupt is None else interrupt | INTERRUPT
        if line != self.core.irq.read():
            with self._evaluation.driving:
                self.core.irq.write(line)
        return bool(line)

    @property
    def holds_wfi(self) -> bool:
        """Check whether the instruction of the coming cycle is a WFI."""
        return self.core.if_stg.holds_wfi

    @property
    def instruction(self) -> Instruction | None:
        """Instruction that was evaluated last; None: no legal instruction."""
        return self.core.if_stg.instruction

    # -- a cycle -----------------------------------------------------------------------------------------------

    def evaluate(self) -> TrapRequest:
        """Evaluate the cycle up to its edge, device access or custom commit included; return the trap that it takes."""
        core, evaluation = self.core, self._evaluation
        evaluation.settle()
        self._active_unit = core.system if core.system.acts else core.mem if core.mem.acts else None
        unit = self._active_unit
        if unit is None:
            self.cycles = 1
        else:
            with evaluation.driving:
                unit._prepare_next_val()
            self.cycles = unit.cycles
            if unit.has_answered:
                evaluation.settle_answer()
        return core.excep.trap

    def tick(self) -> None:
        """Execute the clock edge."""
        core, hart = self.core, self._hart
        pc, npc = core.pc.read(), core.bu.npc_o.read()
        trapped = core.excep.raise_exception_o.read()
        stalled = core.system.stall_o.read() and not trapped
        core.csr_unit._tick()
        core.regf._tick()
        if stalled:
            hart.waiting = core.system.wait
            self._after_stall()
        elif not trapped:
            hart.waiting = None
            hart.instret += 1
        hart.pc = npc
        hart.cycle += self.cycles
        self._load_registers()
        if npc == pc:
            self._after_jump_to_itself()
        if core.mem.has_stored:
            self._after_store()
        self.release()

    def release(self) -> None:
        """Release the ports driven by the active unit."""
        if self._active_unit is not None:
            with self._evaluation.driving:
                self._active_unit._tick()
            self._active_unit = None

    def _load_registers(self) -> None:
        registers = self.core.registers
        with self._evaluation.driving:
            for register in registers:
                register._prepare_next_val()
            for register in registers:
                register._tick()

    # -- changed results of unchanged ports, which a change-driven evaluation would miss -----------------------

    def _after_stall(self) -> None:
        """Evaluate the stalled instruction again."""
        self._evaluation.requeue(self.core.system.process)

    def _after_jump_to_itself(self) -> None:
        """Evaluate a jump to itself again: it may have written a register that it reads."""
        self._evaluation.requeue(self.core.id_stg.process)

    def _after_store(self) -> None:
        """Evaluate the fetch again: the word fetched in the cycle of the store may be fetched once more."""
        self._evaluation.requeue(self.core.mem.process_read1)

    def _after_devices(self) -> None:
        """Fetch and load again: DMA may have changed a word that was fetched or loaded in the last cycle."""
        memory = self.core.mem
        if memory.fetch_is_stale:
            with self._evaluation.driving:
                memory.process_read1()
            self._load_registers()
        if memory.read_port0.re_i.read():
            self._evaluation.requeue(memory.process_read0)
