"""Instructions with f registers in Python: loads, stores and those that `InstructionDef.compute` defines.

They are illegal while mstatus.FS is Off, or with a reserved rounding mode. FS becomes Dirty with every write of an f
register and every exception that accrues (RISC-V privileged manual, version 1.12, "Extension Context Status").
"""

from collections.abc import Callable

from pyv_ext.engines.closures import After, Step
from pyv_ext.hart.hart import Hart
from pyv_ext.isa import Instruction
from pyv_ext.isa.formats import BOX, F0
from pyv_ext.isa.softfloat import RMM
from pyv_ext.machine.slots import FFLAGS, FRM, FS, SINK
from pyv_ext.machine.state import DIRTY

DYNAMIC = 7
"""Rounding mode of an instruction that selects the mode in frm."""


def floating_step(
    hart: Hart, pc: int, instruction: Instruction, access: Step, illegal: Callable[[], After | None]
) -> Step:
    """Return the step of the instruction at `pc`. `access` executes a load or store except NaN boxing and mstatus.FS;
    `illegal` takes the trap."""
    if instruction.row.compute is not None:
        return _compute(hart, pc, instruction, illegal)
    x, rd = hart.x, instruction.rd
    box = BOX if instruction.row.size == 4 else 0

    def step() -> After | None:
        if not x[FS]:
            return illegal()
        after = access()
        if after is not None and rd:
            x[rd] |= box
            x[FS] = DIRTY
        return after

    return step


def _compute(hart: Hart, pc: int, instruction: Instruction, illegal: Callable[[], After | None]) -> Step:
    row, x = instruction.row, hart.x
    compute = row.compute
    assert compute is not None
    rd, rs1, rs2, rs3 = instruction.rd or SINK, instruction.rs1, instruction.rs2, instruction.rs3
    static, dynamic = instruction.imm, instruction.imm == DYNAMIC
    after = pc + row.length & hart.isa.mask, row.cost(hart.timing)

    def step() -> After | None:
        mode = x[FRM] if dynamic else static
        if not x[FS] or mode > RMM:
            return illegal()
        value, flags = compute(x[rs1], x[rs2], x[rs3], mode)
        x[rd] = value
        if flags:
            x[FFLAGS] |= flags
        if flags or rd >= F0:
            x[FS] = DIRTY
        return after

    return step
