"""Steps of the slow path: accesses of devices, atomics, fences, traps, CSRs, waits, and custom instructions.

A step executes the instruction at the hart's pc, which starts in the hart's cycle, and returns (next pc, cycles) when
it retires; None if it traps or waits, which the engine has then recorded. CSR and custom instructions have an inline
cache: their functions return a step that holds the results of look-ups.
"""

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from pyv_ext.bus.bus import Bus
from pyv_ext.bus.clock import NEVER
from pyv_ext.engines.closures import After, Step, leave
from pyv_ext.hart.csr import REGISTERS
from pyv_ext.hart.hart import Hart, Wait
from pyv_ext.isa import Instruction, OpClass
from pyv_ext.isa.expressions import evaluator
from pyv_ext.machine import accesses, csr
from pyv_ext.machine import hart as machine
from pyv_ext.machine.slots import CYCLE, INSTRET, PRIV, SINK
from pyv_ext.machine.state import CBCFE, CBIE
from pyv_ext.machine.traps import MACHINE, Cause
from pyv_ext.protocols import CsrWindow, Operands, Retry, Stall, Trap, Value

if TYPE_CHECKING:
    from pyv_ext.engines.engine import Engine


def step_of(core: "Engine", pc: int, instruction: Instruction) -> Step:
    """Return the step of the instruction at `pc`; `leave` for those that only compute."""
    op_class = instruction.row.op_class
    cached, execute = _CACHED.get(op_class), _UNCACHED.get(op_class)
    if instruction.row.floating:
        from pyv_ext.engines.floating import floating_step  # programs without floating point start without it

        access = leave if execute is None else partial(execute, core, instruction)
        return floating_step(core.hart, pc, instruction, access, partial(_illegal, core, instruction))
    if cached is not None:
        return cached(core, pc, instruction)
    return leave if execute is None else partial(execute, core, instruction)


def _value(core: "Engine", instruction: Instruction, previous: int = 0) -> int:
    """Evaluate the row's expression with the current registers; `previous` as the row's kind defines."""
    row, hart = instruction.row, core.hart
    b = hart.x[instruction.rs2] if row.format.rs2 else instruction.imm & core.isa.mask
    return evaluator(row.expr, core.isa.xlen)(hart.x[instruction.rs1], b, hart.pc, previous)


def _next(core: "Engine", instruction: Instruction, cycles: int) -> After:
    return core.hart.pc + instruction.length & core.isa.mask, cycles


def _illegal(core: "Engine", instruction: Instruction) -> After | None:
    return core.trap(Cause.ILLEGAL, instruction.word)


def _control(core: "Engine", instruction: Instruction) -> After | None:
    """Execute a branch or jump whose closure takes the slow path because the target is misaligned."""
    if instruction.row.op_class is OpClass.BRANCH and not _value(core, instruction):
        return _next(core, instruction, core.hart.timing.branch)
    if instruction.row.op_class is OpClass.BRANCH:
        target = core.hart.pc + instruction.imm & core.isa.mask
    else:
        target = _value(core, instruction)
    return core.trap(Cause.MISALIGNED_FETCH, target)


# -- memory ----------------------------------------------------------------------------------------------------


def _register(core: "Engine", instruction: Instruction, value: int) -> int:
    """Return the register value of a load."""
    row, mask = instruction.row, (1 << 8 * instruction.row.size) - 1
    sign = 1 << 8 * row.size - 1 if row.signed else 0
    return (value & mask ^ sign) - sign & (core.isa.mask | mask)


def _load(core: "Engine", instruction: Instruction) -> After | None:
    hart, bus = core.hart, core.bus
    address = hart.x[instruction.rs1] + instruction.imm & core.isa.mask
    value = bus.access(accesses.load, address, instruction.row.size, hart.cycle, 0)
    if bus.fault:
        return core.trap(bus.fault, address)
    hart.x[instruction.rd or SINK] = _register(core, instruction, value)
    return _next(core, instruction, bus.cycles)


def _store(core: "Engine", instruction: Instruction) -> After | None:
    hart, bus, size = core.hart, core.bus, instruction.row.size
    address = hart.x[instruction.rs1] + instruction.imm & core.isa.mask
    value = hart.x[instruction.rs2] & (1 << 8 * size) - 1
    bus.access(accesses.store, address, size, value, hart.cycle)
    return core.trap(bus.fault, address) if bus.fault else _next(core, instruction, bus.cycles)


def _atomic(core: "Engine", instruction: Instruction) -> After | None:
    hart, bus, row = core.hart, core.bus, instruction.row
    address, operand = hart.x[instruction.rs1], hart.x[instruction.rs2]
    access = address, row.size
    if row.op_class is OpClass.LR:
        value = bus.access(accesses.load_reserved, *access, hart.cycle)
    elif row.op_class is OpClass.SC:
        value = bus.access(accesses.store_conditional, *access, operand, hart.cycle, row.cost(hart.timing))
    else:
        value = bus.access(accesses.load_atomic, *access, 1, hart.cycle)
    if bus.fault:
        return core.trap(bus.fault, address)
    previous = _register(core, instruction, value)
    if row.op_class is OpClass.AMO:
        bus.access(accesses.store_atomic, *access, _value(core, instruction, previous), hart.cycle)
    hart.x[instruction.rd or SINK] = previous
    return _next(core, instruction, bus.cycles)


def _cbo(core: "Engine", instruction: Instruction) -> After | None:
    field = CBIE if instruction.name == "cbo.inval" else CBCFE
    if not core.hart.records.execute(machine.permits_cache_block, field):
        return _illegal(core, instruction)
    address = core.hart.x[instruction.rs1]
    if not core.bus.check(address & -4, 4, False):
        return core.trap(Cause.STORE_FAULT, address)
    for listener in core.bus.on_cbo:
        listener(instruction.name, address, core.hart.cycle)
    return _next(core, instruction, core.hart.timing.store)


def _fence(core: "Engine", instruction: Instruction) -> After:
    hart = core.hart
    cycles = hart.records.execute(accesses.fence, instruction.imm, hart.cycle, hart.timing.fence)
    return _next(core, instruction, cycles)


def _fence_i(core: "Engine", instruction: Instruction) -> After:
    core.flush()
    return _next(core, instruction, core.hart.timing.fence)


# -- system ----------------------------------------------------------------------------------------------------


def _csr(core: "Engine", pc: int, instruction: Instruction) -> Step:
    """Return the step of a CSR instruction; its inline cache holds the register."""
    csrs, address = core.hart.csrs, instruction.csr
    writes = instruction.writes_csr
    if writes and address >> 10 == 3:
        return partial(_illegal, core, instruction)
    window = csrs.windows.get(address)
    if address in REGISTERS:
        return _table_csr(core, pc, instruction, writes)
    if window is not None:
        return _window_csr(core, pc, instruction, window, writes)

    def trap_until_mapped() -> After | None:
        """Trap as illegal until a window with the register is added."""
        return _csr(core, pc, instruction)() if address in csrs.windows else _illegal(core, instruction)

    return trap_until_mapped


def _table_csr(core: "Engine", pc: int, instruction: Instruction, writes: bool) -> Step:
    hart, address, execute = core.hart, instruction.csr, core.hart.records.execute
    x, rs1, rd, imm = hart.x, instruction.rs1, instruction.rd or SINK, instruction.imm
    value, cost = evaluator(instruction.row.expr, core.isa.xlen), hart.timing.csr
    after, mask, records = (pc + instruction.length & core.isa.mask, cost), core.isa.mask, hart.records.machine

    def step() -> After | None:
        records.absent = False
        previous = execute(csr.load_csr, address, writes, x[CYCLE], x[INSTRET]) & mask
        if records.absent:
            return _illegal(core, instruction)
        if writes:
            execute(csr.write_csr, address, value(x[rs1], imm, pc, previous), x[CYCLE] + cost, x[INSTRET])
        x[rd] = previous
        return after

    return step


def _window_csr(core: "Engine", pc: int, instruction: Instruction, window: CsrWindow, writes: bool) -> Step:
    """Return the step of an access of a window, which takes effect in the last cycle of the instruction."""
    hart, row, clock, address = core.hart, instruction.row, core.bus.clock, instruction.csr
    csrs, x, rs1, rd, imm = hart.csrs, hart.x, instruction.rs1, instruction.rd or SINK, instruction.imm
    acted, declared = clock.change_reporter(getattr(window, "device", None)), getattr(window, "stable", None)
    quiet = not writes and declared is not None and declared(address)
    reads, by_register = row.op_class is not OpClass.CSR_WRITE or bool(instruction.rd), row.format.rs1
    cost, value = hart.timing.csr, evaluator(row.expr, core.isa.xlen)
    after = pc + instruction.length & core.isa.mask, cost

    def step() -> After | None:
        if x[PRIV] != MACHINE and not csrs.accessible(address, writes):
            return _illegal(core, instruction)
        now = x[CYCLE] + cost - 1
        clock.advance(now)
        previous = window.read(address, now) if reads else 0
        if writes:
            result = value(x[rs1], imm, pc, previous)
            window.write(address, result, now, (x[rs1] if by_register else imm) & result)
        if not quiet:
            acted(now + 1)
        x[rd] = previous
        return after

    return step


def _ecall(core: "Engine", instruction: Instruction) -> After | None:
    return core.trap(Cause.ECALL_USER + core.hart.priv, 0)


def _ebreak(core: "Engine", instruction: Instruction) -> After | None:
    hart = core.hart
    answer = semihosting_answer(hart, core.bus)
    if answer is None:
        return core.trap(Cause.BREAKPOINT, hart.pc)
    hart.x[A0] = answer
    return _next(core, instruction, hart.timing.trap)


_CALL = b"".join(word.to_bytes(4, "little") for word in (0x01F0_1013, 0x0010_0073, 0x4070_5013))
"""slli zero, zero, 31; ebreak; srai zero, zero, 7: the ebreak of a semihosting call with its markers."""
A0, _A1 = 10, 11


def semihosting_answer(hart: Hart, bus: Bus) -> int | None:
    """Return a0 after the ebreak at pc; None unless it is a supported semihosting call (RISC-V Semihosting 0.4)."""
    if hart.semihosting is None or bus.peek(hart.pc - 4, len(_CALL)) != _CALL:
        return None
    answer = hart.semihosting(int(hart.x[A0]), int(hart.x[_A1]))
    return None if answer is None else answer & hart.isa.mask


def _xret(core: "Engine", instruction: Instruction) -> After | None:
    pc = core.hart.records.execute(machine.return_from_trap, instruction.level)
    if pc == machine.NONE:
        return _illegal(core, instruction)
    if core.bus.shadow is not None:
        core.bus.shadow.on_return(core.hart.cycle)
    return pc & core.isa.mask, core.hart.timing.jump


def _sfence(core: "Engine", instruction: Instruction) -> After | None:
    if not core.hart.records.execute(machine.permits_translation_fence):
        return _illegal(core, instruction)
    return _next(core, instruction, core.hart.timing.fence)


def _wfi(core: "Engine", instruction: Instruction) -> After | None:
    hart = core.hart
    if not hart.records.execute(machine.permits_wait):
        return _illegal(core, instruction)
    if hart.csrs.mip & hart.csrs.mie:
        return _next(core, instruction, hart.timing.wfi)
    start = hart.waiting.start if hart.waiting else hart.cycle
    return core.wait(Wait(start, hart.cycle + 1, NEVER), hart.cycle + 1)


_operands: Callable[[tuple[int, int, int, int, int, Any, bool]], Operands] = partial(tuple.__new__, Operands)
"""Constructor from all values, twice as fast as a call of the class."""


def _custom(core: "Engine", pc: int, instruction: Instruction) -> Step:
    """Return the step of a custom instruction; its inline cache holds inputs of its row, and the call that notifies its
    device.

    It takes effect in the last cycle of its issue, or, after a wait, in the cycle in which it is polled.
    """
    hart, clock, peek, custom, word = core.hart, core.bus.clock, core.peek, instruction.row.custom, instruction.word
    assert custom is not None and custom.handler is not None  # rows of this kind have both
    x, rs1, rs2, rd, mask = hart.x, word >> 15 & 31, word >> 20 & 31, instruction.rd or SINK, core.isa.mask
    delay = instruction.row.issue_cycles(hart.timing) - 1
    ready, acted = custom.ready, clock.change_reporter(custom.device)
    handler: Any = custom.handler  # returns an Outcome, or an integer of NumPy
    looks, changes = custom.touches != "nothing", custom.touches == "devices"
    next_pc = pc + instruction.length & mask

    def step() -> After | None:
        waiting = hart.waiting
        start = x[CYCLE]
        acts = start + delay if waiting is None else start
        if looks:
            clock.advance(acts)
        operands = _operands((pc, word, x[rs1], x[rs2], acts, peek, waiting is not None))
        outcome: Any = Stall()
        if ready is None or ready(operands):
            outcome = handler(operands)
            if changes:
                acted(acts + 1)
        if isinstance(outcome, Value):
            value, cycles = outcome
        elif isinstance(outcome, Trap | Stall | Retry):
            return trap_or_wait(core, outcome, start if waiting is None else waiting.start, acts)
        else:
            value, cycles = int(outcome), 0
        x[rd] = value & mask
        return next_pc, acts + 1 + cycles - start

    return step


def trap_or_wait(core: "Engine", outcome: Trap | Stall | Retry, start: int, acts: int) -> After | None:
    """Trap or wait, for a custom instruction that began in cycle `start` and did not retire when called in cycle
    `acts`."""
    if isinstance(outcome, Trap):
        return core.trap(outcome.cause, outcome.value, acts - core.hart.cycle)
    return core.wait(Wait(start, *repetition(outcome, acts)), acts + 1)


def repetition(outcome: Stall | Retry, acts: int) -> tuple[int, int]:
    """Return the (first, last) cycle, as in `Wait`, of the next call of a custom instruction that was called in cycle
    `acts`."""
    if isinstance(outcome, Stall):
        return acts + 1, NEVER if outcome.until is None else max(outcome.until, acts + 1)
    next_call = acts + max(outcome.cycles, 1)
    return next_call, next_call


_CACHED: dict[OpClass, Callable[["Engine", int, Instruction], Step]] = {
    OpClass.CSR_WRITE: _csr,
    OpClass.CSR_UPDATE: _csr,
    OpClass.CUSTOM: _custom,
}
"""Kinds whose steps have an inline cache."""

_UNCACHED: dict[OpClass, Callable[["Engine", Instruction], After | None]] = {
    OpClass.LOAD: _load,
    OpClass.STORE: _store,
    OpClass.BRANCH: _control,
    OpClass.JUMP: _control,
    OpClass.LR: _atomic,
    OpClass.SC: _atomic,
    OpClass.AMO: _atomic,
    OpClass.CBO: _cbo,
    OpClass.FENCE: _fence,
    OpClass.FENCE_I: _fence_i,
    OpClass.ECALL: _ecall,
    OpClass.EBREAK: _ebreak,
    OpClass.XRET: _xret,
    OpClass.SFENCE: _sfence,
    OpClass.WFI: _wfi,
}
"""Kinds whose steps have no inline cache."""
