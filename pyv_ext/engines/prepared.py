"""The slow way of the commonest instructions, prepared for one address: accesses of devices, and CSRs.

Each does what `pyv_ext.engines.slow` does for its kind, and hands over to it where an instruction meets something
rarer than it was prepared for. What does not change from one execution to the next is looked up once.
"""

from collections.abc import Callable

from pyv_ext.csr import REGISTERS
from pyv_ext.engines.closures import After, Step, leave
from pyv_ext.engines.slow import SLOW, Core
from pyv_ext.hart import SINK
from pyv_ext.isa import Instruction, Kind
from pyv_ext.isa.expressions import evaluator
from pyv_ext.traps import MACHINE, Cause
from pyv_ext.window import Load, Store

Prepare = Callable[[Core, int, Instruction], Step]


def prepare(core: Core, pc: int, instruction: Instruction) -> Step:
    """The slow way of the instruction at `pc`."""
    kind = instruction.row.kind
    if kind is Kind.OP:
        return leave  # there is no slow way, and no need of one
    special = _PREPARED.get(kind)
    return _general(core, instruction) if special is None else special(core, pc, instruction)


def _general(core: Core, instruction: Instruction) -> Step:
    slow = SLOW[instruction.row.kind]
    return lambda: slow(core, instruction)


def _load(core: Core, pc: int, instruction: Instruction) -> Step:
    """Of a device register, as long as the address stays the same."""
    hart, bus, row, mask = core.hart, core.bus, instruction.row, core.isa.mask
    x, rs1, rd, imm, size = hart.x, instruction.rs1, instruction.rd or SINK, instruction.imm, row.size
    sign = 1 << 8 * size - 1 if row.signed else 0
    next_pc = pc + instruction.length & mask
    general = _general(core, instruction)
    place = -1
    load: Load

    def step() -> After | None:
        nonlocal place, load
        address = x[rs1] + imm & mask
        if address != place:
            window = None if address & size - 1 else bus.window_at(address, size)
            if window is None:
                return general()
            place, load = address, window.load(address, size)
        if bus.guards:
            return general()
        answer = load(hart.cycle)
        if answer is None:
            return core.trap(Cause.LOAD_FAULT, address)
        x[rd] = (answer[0] ^ sign) - sign & mask
        return next_pc, answer[1]

    return step


def _store(core: Core, pc: int, instruction: Instruction) -> Step:
    hart, bus, mask = core.hart, core.bus, core.isa.mask
    x, rs1, rs2, imm, size = hart.x, instruction.rs1, instruction.rs2, instruction.imm, instruction.row.size
    narrow = (1 << 8 * size) - 1
    next_pc = pc + instruction.length & mask
    general = _general(core, instruction)
    place = -1
    store: Store

    def step() -> After | None:
        nonlocal place, store
        address = x[rs1] + imm & mask
        if address != place:
            window = None if address & size - 1 else bus.window_at(address, size)
            if window is None:
                return general()
            place, store = address, window.store(address, size)
        if bus.guards:
            return general()
        cycles = store(x[rs2] & narrow, hart.cycle)
        if cycles is None:
            return core.trap(Cause.STORE_FAULT, address)
        return next_pc, cycles

    return step


def _csr(core: Core, pc: int, instruction: Instruction) -> Step:
    """A register of the table, in machine mode."""
    hart, row, mask = core.hart, instruction.row, core.isa.mask
    csrs, x, rs1, rd, imm = hart.csrs, hart.x, instruction.rs1, instruction.rd or SINK, instruction.imm
    general = _general(core, instruction)
    register = REGISTERS.get(instruction.csr)
    writes = row.kind is Kind.CSR_WRITE or bool(instruction.word >> 15 & 31)
    if register is None or (writes and instruction.csr >> 10 == 3):
        return general
    read, write = register.read, register.write if writes else None
    value = evaluator(row.expr, core.isa.xlen)
    after = pc + instruction.length & mask, hart.timing.csr

    def step() -> After | None:
        if hart.priv != MACHINE:
            return general()
        old = read(csrs)
        if write is not None:
            write(csrs, value(x[rs1], imm, pc, old))
        x[rd] = old
        return after

    return step


_PREPARED: dict[Kind, Prepare] = {
    Kind.LOAD: _load,
    Kind.STORE: _store,
    Kind.CSR_WRITE: _csr,
    Kind.CSR_UPDATE: _csr,
}
