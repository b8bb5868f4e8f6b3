"""The slow way of the commonest instructions, prepared for one address: accesses of devices, CSRs, custom instructions.

Each does what `pyv_ext.engines.slow` does for its kind, and hands over to it where an instruction meets something
rarer than it was prepared for. What does not change from one execution to the next is looked up once.
"""

from collections.abc import Callable

from pyv_ext.bus.window import Load, Store
from pyv_ext.engines.closures import After, Step, leave
from pyv_ext.engines.slow import SLOW, Core, answered
from pyv_ext.hart.csr import REGISTERS, Csr
from pyv_ext.hart.hart import SINK
from pyv_ext.hart.traps import MACHINE, Cause
from pyv_ext.isa import Instruction, Kind
from pyv_ext.isa.expressions import evaluator
from pyv_ext.protocols import CsrWindow, Operands, Stall, Value

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
    """Of the table or of a window, in machine mode."""
    writes = instruction.row.kind is Kind.CSR_WRITE or bool(instruction.word >> 15 & 31)
    if writes and instruction.csr >> 10 == 3:
        return _general(core, instruction)
    register, window = REGISTERS.get(instruction.csr), core.hart.csrs.windows.get(instruction.csr)
    if register is not None:
        return _table_csr(core, pc, instruction, register, writes)
    return _general(core, instruction) if window is None else _window_csr(core, pc, instruction, window, writes)


def _table_csr(core: Core, pc: int, instruction: Instruction, register: Csr, writes: bool) -> Step:
    read, write = register.read, register.write if writes else None
    hart, row, mask = core.hart, instruction.row, core.isa.mask
    csrs, x, rs1, rd, imm = hart.csrs, hart.x, instruction.rs1, instruction.rd or SINK, instruction.imm
    general = _general(core, instruction)
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


def _window_csr(core: Core, pc: int, instruction: Instruction, window: CsrWindow, writes: bool) -> Step:
    hart, row, clock, address = core.hart, instruction.row, core.bus.clock, instruction.csr
    x, rs1, rd, imm = hart.x, instruction.rs1, instruction.rd or SINK, instruction.imm
    general, acted = _general(core, instruction), clock.follow(getattr(window, "device", None))
    reads, by_register = row.kind is not Kind.CSR_WRITE or bool(instruction.rd), row.format.rs1
    cost, value = hart.timing.csr, evaluator(row.expr, core.isa.xlen)
    after = pc + instruction.length & core.isa.mask, cost

    def step() -> After | None:
        if hart.priv != MACHINE:
            return general()
        now = hart.cycle + cost - 1
        clock.advance(now)
        old = window.read(address, now) if reads else 0
        if writes:
            new = value(x[rs1], imm, pc, old)
            window.write(address, new, now, (x[rs1] if by_register else imm) & new)
        acted(now + 1)
        x[rd] = old
        return after

    return step


def _custom(core: Core, pc: int, instruction: Instruction) -> Step:
    """One that has not waited."""
    hart, clock, peek, custom, word = core.hart, core.bus.clock, core.peek, instruction.row.custom, instruction.word
    assert custom is not None  # rows of this kind have one
    x, rs1, rs2, rd, mask = hart.x, word >> 15 & 31, word >> 20 & 31, instruction.rd or SINK, core.isa.mask
    acts_after = max(hart.timing.custom if custom.issue is None else custom.issue, 1) - 1
    general, ready, handler, acted = (
        _general(core, instruction),
        custom.ready,
        custom.handler,
        clock.follow(custom.device),
    )
    next_pc = pc + instruction.length & mask

    def step() -> After | None:
        if hart.waiting is not None:
            return general()
        start = hart.cycle
        acts = start + acts_after
        clock.advance(acts)
        operands = Operands(pc, word, x[rs1], x[rs2], acts, peek, False)
        if ready is not None and not ready(operands):
            return answered(core, instruction, Stall(), start, acts)
        outcome = handler(operands)
        acted(acts + 1)
        if not isinstance(outcome, Value):
            return answered(core, instruction, outcome, start, acts)
        x[rd] = outcome.value & mask
        return next_pc, acts_after + 1 + outcome.cycles

    return step


_PREPARED: dict[Kind, Prepare] = {
    Kind.LOAD: _load,
    Kind.STORE: _store,
    Kind.CSR_WRITE: _csr,
    Kind.CSR_UPDATE: _csr,
    Kind.CUSTOM: _custom,
}
