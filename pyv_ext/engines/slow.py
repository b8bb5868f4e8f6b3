"""What the closures leave: devices, traps, CSRs, atomics, waiting and custom instructions.

One function per kind of row. Each executes the instruction at the hart's pc, which starts in the hart's cycle, and
returns (next pc, cycles) when it retires; None when it trapped or waits, which the engine has then done already.
"""

from collections.abc import Callable
from typing import Protocol

from pyv_ext.bus.bus import Bus
from pyv_ext.bus.clock import NEVER
from pyv_ext.engines.closures import After
from pyv_ext.hart.csr import CBCFE, CBIE, TW
from pyv_ext.hart.hart import SINK, Hart, Wait
from pyv_ext.hart.traps import MACHINE, Cause
from pyv_ext.isa import Instruction, Isa, Kind
from pyv_ext.protocols import Operands, Outcome, Retry, Stall, Trap, Value


class Core(Protocol):
    """What the slow way needs of an engine."""

    isa: Isa
    hart: Hart
    bus: Bus
    misaligned: bool
    fetches_ahead: bool
    """Whether a store is not seen by the instruction right after it."""
    peek: Callable[[int, int], bytes | None]
    """The load port of custom instructions."""

    @property
    def stopping(self) -> object | None:
        """What ends the run before the next instruction."""

    @property
    def tracer(self) -> object | None:
        """Who looks at every instruction."""

    def trap(self, cause: int, value: int, delay: int = 0) -> After | None:
        """Take a synchronous trap that is found `delay` cycles after the hart's. None: nothing retired."""

    def wait(self, wait: Wait, cycle: int) -> After | None:
        """Let the instruction wait; the hart has come to `cycle`. None: nothing retired."""

    def flush(self) -> None:
        """Drop all decoded instructions."""

    def evaluate(self, instruction: Instruction, old: int = 0) -> int:
        """The value of the row's expression."""


def _next(core: Core, instruction: Instruction, cycles: int) -> After:
    return core.hart.pc + instruction.length & core.isa.mask, cycles


def _illegal(core: Core, instruction: Instruction) -> After | None:
    return core.trap(Cause.ILLEGAL, instruction.word)


def _control(core: Core, instruction: Instruction) -> After | None:
    """A branch or jump to a misaligned target: nothing else of these comes here."""
    if instruction.row.kind is Kind.BRANCH and not core.evaluate(instruction):
        return _next(core, instruction, core.hart.timing.branch)
    if instruction.row.kind is Kind.BRANCH:
        target = core.hart.pc + instruction.imm & core.isa.mask
    else:
        target = core.evaluate(instruction)
    return core.trap(Cause.MISALIGNED_FETCH, target)


# -- memory ----------------------------------------------------------------------------------------------------


def _misaligned(core: Core, address: int, size: int) -> bool:
    """Whether the access must trap: misaligned, and not memory of a core that can do it."""
    return bool(address & size - 1) and not (core.misaligned and core.bus.ram_at(address, size))


def _extended(core: Core, instruction: Instruction, value: int) -> int:
    row = instruction.row
    sign = 1 << 8 * row.size - 1 if row.signed else 0
    return (value ^ sign) - sign & core.isa.mask


def _load(core: Core, instruction: Instruction) -> After | None:
    hart, size = core.hart, instruction.row.size
    address = hart.x[instruction.rs1] + instruction.imm & core.isa.mask
    if _misaligned(core, address, size):
        return core.trap(Cause.MISALIGNED_LOAD, address)
    answer = core.bus.load(address, size, hart.cycle)
    if answer is None:
        return core.trap(Cause.LOAD_FAULT, address)
    value, cycles = answer
    hart.x[instruction.rd or SINK] = _extended(core, instruction, value)
    return _next(core, instruction, cycles)


def _store(core: Core, instruction: Instruction) -> After | None:
    hart, size = core.hart, instruction.row.size
    address = hart.x[instruction.rs1] + instruction.imm & core.isa.mask
    if _misaligned(core, address, size):
        return core.trap(Cause.MISALIGNED_STORE, address)
    cycles = core.bus.store(address, size, hart.x[instruction.rs2] & (1 << 8 * size) - 1, hart.cycle)
    if cycles is None:
        return core.trap(Cause.STORE_FAULT, address)
    return _next(core, instruction, cycles)


def _atomic(core: Core, instruction: Instruction) -> After | None:
    """LR, SC and AMO: on memory only, always aligned.

    A reservation lasts as long as the reserved word keeps its value: what else may have written it since, a device or
    the hart itself, needs no watching, and a write of the same value could as well have come before the LR.
    """
    hart, bus, row = core.hart, core.bus, instruction.row
    address = hart.x[instruction.rs1]
    reads_only = row.kind is Kind.LR
    if address & row.size - 1:
        return core.trap(Cause.MISALIGNED_LOAD if reads_only else Cause.MISALIGNED_STORE, address)
    ram = bus.ram_at(address, row.size)
    if ram is None or not bus.check(address, row.size, not reads_only):
        return core.trap(Cause.LOAD_FAULT if reads_only else Cause.STORE_FAULT, address)
    if row.kind is Kind.SC:
        return _store_conditional(
            core, instruction, address, hart.reservation == (address, ram.read(address, row.size))
        )
    answer = bus.load(address, row.size, hart.cycle)
    assert answer is not None  # memory, as checked above
    old, cycles = answer
    if reads_only:
        hart.reservation = address, old
    else:
        bus.store(address, row.size, core.evaluate(instruction, old), hart.cycle)
    hart.x[instruction.rd or SINK] = _extended(core, instruction, old)
    return _next(core, instruction, cycles)


def _store_conditional(core: Core, instruction: Instruction, address: int, holds: bool) -> After:
    hart = core.hart
    cycles = getattr(hart.timing, instruction.row.timing)
    if holds:
        cycles = core.bus.store(address, instruction.row.size, hart.x[instruction.rs2], hart.cycle) or cycles
    hart.reservation = None
    hart.x[instruction.rd or SINK] = not holds
    return _next(core, instruction, cycles)


def _cbo(core: Core, instruction: Instruction) -> After | None:
    if not core.hart.csrs.permits_cbo(CBIE if instruction.name == "cbo.inval" else CBCFE):
        return _illegal(core, instruction)
    address = core.hart.x[instruction.rs1]
    if not core.bus.check(address & -4, 4, False):
        return core.trap(Cause.STORE_FAULT, address)
    for listener in core.bus.on_cbo:
        listener(instruction.name, address, core.hart.cycle)
    return _next(core, instruction, core.hart.timing.store)


def waits_for_nothing(instruction: Instruction) -> bool:
    """Whether it is a fence whose predecessor set, imm[7:4] = iorw, has no O: it orders what is in order already."""
    return instruction.row.kind is Kind.FENCE and not instruction.imm & 0x40


def _fence(core: Core, instruction: Instruction) -> After:
    """Waits for posted stores, if it waits for something."""
    cycles = core.hart.timing.fence
    if not waits_for_nothing(instruction):
        cycles = max(cycles, core.bus.posted.drained - core.hart.cycle)
    return _next(core, instruction, cycles)


def _fence_i(core: Core, instruction: Instruction) -> After:
    core.flush()
    return _next(core, instruction, core.hart.timing.fence)


# -- system ----------------------------------------------------------------------------------------------------


def _csr(core: Core, instruction: Instruction) -> After | None:
    hart, csrs, address = core.hart, core.hart.csrs, instruction.csr
    always = instruction.row.kind is Kind.CSR_WRITE
    write = always or bool(instruction.word >> 15 & 31)
    if not csrs.accessible(address, write):
        return _illegal(core, instruction)
    window = csrs.windows.get(address)
    if window is None:
        old = csrs.read(address)
        if write:
            csrs.write(address, core.evaluate(instruction, old))
    else:
        now = csrs.csr_end() - 1
        core.bus.clock.advance(now)
        old = window.read(address, now) if instruction.rd or not always else 0
        if write:
            value = core.evaluate(instruction, old)
            operand = hart.x[instruction.rs1] if instruction.row.format.rs1 else instruction.imm
            window.write(address, value, now, operand & value)
        core.bus.clock.acted(getattr(window, "device", None), now + 1)
    hart.x[instruction.rd or SINK] = old
    return _next(core, instruction, hart.timing.csr)


def _ecall(core: Core, instruction: Instruction) -> After | None:
    return core.trap(Cause.ECALL_MACHINE if core.hart.priv == MACHINE else Cause.ECALL_USER, 0)


def _ebreak(core: Core, instruction: Instruction) -> After | None:
    return core.trap(Cause.BREAKPOINT, core.hart.pc)


def _mret(core: Core, instruction: Instruction) -> After | None:
    if core.hart.priv != MACHINE:
        return _illegal(core, instruction)
    return core.hart.leave_trap(), core.hart.timing.jump


def _wfi(core: Core, instruction: Instruction) -> After | None:
    hart = core.hart
    if hart.priv != MACHINE and hart.csrs.mstatus & TW:
        return _illegal(core, instruction)
    if hart.csrs.mip & hart.csrs.mie:
        return _next(core, instruction, hart.timing.wfi)
    start = hart.waiting.start if hart.waiting else hart.cycle
    return core.wait(Wait(start, hart.cycle + 1, NEVER), hart.cycle + 1)


def _custom(core: Core, instruction: Instruction) -> After | None:
    """A custom instruction acts in the last cycle of its issue, or, after it has waited, when it is asked again."""
    hart, clock, custom = core.hart, core.bus.clock, instruction.row.custom
    assert custom is not None  # rows of this kind have one
    start, acts, resumed = hart.cycle, hart.cycle, hart.waiting is not None
    if hart.waiting is not None:
        start = hart.waiting.start
    else:
        issue = hart.timing.custom if custom.issue is None else custom.issue
        acts += max(issue, 1) - 1
    clock.advance(acts)
    word = instruction.word
    rs1, rs2 = hart.x[word >> 15 & 31], hart.x[word >> 20 & 31]
    operands = Operands(hart.pc, word, rs1, rs2, acts, core.peek, resumed)
    outcome: Outcome = Stall()
    if custom.ready is None or custom.ready(operands):
        outcome = custom.handler(operands)
        clock.acted(custom.device, acts + 1)
    return answered(core, instruction, outcome, start, acts)


def answered(core: Core, instruction: Instruction, outcome: Outcome, start: int, acts: int) -> After | None:
    """What the outcome of a custom instruction means that began in cycle `start` and was asked in cycle `acts`."""
    hart = core.hart
    if isinstance(outcome, Trap):
        return core.trap(outcome.cause, outcome.value, acts - hart.cycle)
    if isinstance(outcome, Stall):
        until = NEVER if outcome.until is None else max(outcome.until, acts + 1)
        return core.wait(Wait(start, acts + 1, until), acts + 1)
    if isinstance(outcome, Retry):
        again = acts + max(outcome.cycles, 1)
        return core.wait(Wait(start, again, again), acts + 1)
    value, cycles = outcome if isinstance(outcome, Value) else (outcome, 0)
    hart.x[instruction.rd or SINK] = value & core.isa.mask
    return _next(core, instruction, acts + 1 + cycles - hart.cycle)


SLOW: dict[Kind, Callable[[Core, Instruction], After | None]] = {
    Kind.BRANCH: _control,
    Kind.JUMP: _control,
    Kind.LOAD: _load,
    Kind.STORE: _store,
    Kind.LR: _atomic,
    Kind.SC: _atomic,
    Kind.AMO: _atomic,
    Kind.CBO: _cbo,
    Kind.FENCE: _fence,
    Kind.FENCE_I: _fence_i,
    Kind.CSR_WRITE: _csr,
    Kind.CSR_UPDATE: _csr,
    Kind.ECALL: _ecall,
    Kind.EBREAK: _ebreak,
    Kind.MRET: _mret,
    Kind.WFI: _wfi,
    Kind.CUSTOM: _custom,
}
"""The slow way of each kind; OP has none."""
