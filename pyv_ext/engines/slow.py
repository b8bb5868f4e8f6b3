"""The slow path: what the closures and native code leave, which is devices, traps, CSRs, atomics and waiting.

One function per kind of row. It executes the instruction at the hart's pc, which starts in the hart's cycle, and
returns (next pc, cycles) when it retires; None when it trapped or waits, which the engine has then done already.
CSR and custom instructions have an inline cache: their functions make a step that keeps what it has looked up.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

from pyv_ext.bus.bus import Bus
from pyv_ext.bus.clock import NEVER
from pyv_ext.engines.closures import After, Step, leave
from pyv_ext.engines.stop import Stop
from pyv_ext.engines.tracer import Tracer
from pyv_ext.hart.csr import REGISTERS
from pyv_ext.hart.hart import Hart, Wait
from pyv_ext.isa import Instruction, Isa, Kind
from pyv_ext.isa.expressions import evaluator
from pyv_ext.machine import csr
from pyv_ext.machine import hart as machine
from pyv_ext.machine.slots import PRIV, SINK
from pyv_ext.machine.state import CBCFE, CBIE, DRAINED, TVM
from pyv_ext.machine.traps import MACHINE, SUPERVISOR, USER, Cause
from pyv_ext.protocols import CsrWindow, Operands, Retry, Stall, Trap, Value


class Core(Protocol):
    """What the slow path needs of an engine."""

    isa: Isa
    hart: Hart
    bus: Bus
    misaligned: bool
    fetches_ahead: bool
    """Whether a store is not seen by the instruction right after it."""
    peek: Callable[[int, int], bytes | None]
    """The load port of custom instructions."""

    @property
    def has_fetched_ahead(self) -> bool:
        """Whether the next instruction was fetched before a store overwrote it."""

    @property
    def stopping(self) -> object | None:
        """What ends the run before the next instruction."""

    @property
    def tracer(self) -> Tracer | None:
        """What is told of instructions and traps."""

    def trap(self, cause: int, value: int, delay: int = 0) -> After | None:
        """Take a synchronous trap that is found `delay` cycles after the hart's. None: nothing retired."""

    def wait(self, wait: Wait, cycle: int) -> After | None:
        """Let the instruction wait; the hart has come to `cycle`. None: nothing retired."""

    def stop(self, stop: Stop) -> None:
        """Let the run end after the current instruction, or before one whose hook says so."""

    def flush(self) -> None:
        """Drop all decoded instructions."""


def slow_path(core: Core, pc: int, instruction: Instruction) -> Step:
    """The slow path of the instruction at `pc`; instructions that only compute have none."""
    kind = instruction.row.kind
    cached, execute = _CACHED.get(kind), _UNCACHED.get(kind)
    if instruction.row.floating:
        from pyv_ext.engines.floating import floating_step

        access = leave if execute is None else partial(execute, core, instruction)
        return floating_step(core.hart, pc, instruction, access, partial(_illegal, core, instruction))
    if cached is not None:
        return cached(core, pc, instruction)
    return leave if execute is None else partial(execute, core, instruction)


def _value(core: Core, instruction: Instruction, old: int = 0) -> int:
    """The value of the row's expression, with the registers as they are; `old` as the row's kind says."""
    row, hart = instruction.row, core.hart
    b = hart.x[instruction.rs2] if row.format.rs2 else instruction.imm & core.isa.mask
    return evaluator(row.expr, core.isa.xlen)(hart.x[instruction.rs1], b, hart.pc, old)


def _next(core: Core, instruction: Instruction, cycles: int) -> After:
    return core.hart.pc + instruction.length & core.isa.mask, cycles


def _illegal(core: Core, instruction: Instruction) -> After | None:
    return core.trap(Cause.ILLEGAL, instruction.word)


def _control(core: Core, instruction: Instruction) -> After | None:
    """A branch or jump to a misaligned target: nothing else of these comes here."""
    if instruction.row.kind is Kind.BRANCH and not _value(core, instruction):
        return _next(core, instruction, core.hart.timing.branch)
    if instruction.row.kind is Kind.BRANCH:
        target = core.hart.pc + instruction.imm & core.isa.mask
    else:
        target = _value(core, instruction)
    return core.trap(Cause.MISALIGNED_FETCH, target)


# -- memory ----------------------------------------------------------------------------------------------------


def _misaligned(core: Core, address: int, size: int) -> bool:
    """Whether the access must trap: misaligned, and not memory of a core that can do it."""
    return bool(address & size - 1) and not (core.misaligned and core.bus.ram_at(address, size))


def _load(core: Core, instruction: Instruction) -> After | None:
    hart, row, mask = core.hart, instruction.row, core.isa.mask
    address, size = hart.x[instruction.rs1] + instruction.imm & mask, row.size
    if _misaligned(core, address, size):
        return core.trap(Cause.MISALIGNED_LOAD, address)
    core.bus.clock.machine.pc = hart.pc
    answer = core.bus.load(address, size, hart.cycle)
    if answer is None:
        return core.trap(Cause.LOAD_FAULT, address)
    sign, kept = 1 << 8 * size - 1 if row.signed else 0, mask | (1 << 8 * size) - 1
    hart.x[instruction.rd or SINK] = (answer[0] ^ sign) - sign & kept
    return _next(core, instruction, answer[1])


def _store(core: Core, instruction: Instruction) -> After | None:
    hart, size = core.hart, instruction.row.size
    address = hart.x[instruction.rs1] + instruction.imm & core.isa.mask
    if _misaligned(core, address, size):
        return core.trap(Cause.MISALIGNED_STORE, address)
    value = hart.x[instruction.rs2] & (1 << 8 * size) - 1
    core.bus.clock.machine.pc = hart.pc
    cycles = core.bus.store(address, size, value, hart.cycle)
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
    if ram is None:
        bus.refuse(address, row.size, not reads_only, hart.cycle)
        return core.trap(Cause.LOAD_FAULT if reads_only else Cause.STORE_FAULT, address)
    if not bus.check(address, row.size, not reads_only):
        return core.trap(Cause.LOAD_FAULT if reads_only else Cause.STORE_FAULT, address)
    if row.kind is Kind.SC:
        word = ram.read(address, row.size)
        holds = bool(hart.records.execute(machine.is_reserved, address, word))
        return _store_conditional(core, instruction, address, holds)
    answer = bus.load(address, row.size, hart.cycle)
    assert answer is not None  # memory, as checked above
    old, cycles = answer
    if reads_only:
        hart.records.execute(machine.reserve, address, old)
    else:
        bus.store(address, row.size, _value(core, instruction, old), hart.cycle)
    sign = 1 << 8 * row.size - 1 if row.signed else 0
    hart.x[instruction.rd or SINK] = (old ^ sign) - sign & core.isa.mask
    return _next(core, instruction, cycles)


def _store_conditional(core: Core, instruction: Instruction, address: int, holds: bool) -> After:
    hart = core.hart
    cycles = getattr(hart.timing, instruction.row.timing)
    if holds:
        cycles = core.bus.store(address, instruction.row.size, hart.x[instruction.rs2], hart.cycle) or cycles
    hart.records.execute(machine.cancel_reservation)
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


W_BEFORE_O = 0x14
"""Of a fence's immediate: w among its predecessors, o among its successors."""


def publishes(instruction: Instruction) -> bool:
    """Whether it is a fence that orders earlier stores to memory before later stores to devices."""
    return instruction.row.kind is Kind.FENCE and instruction.imm & W_BEFORE_O == W_BEFORE_O


def _fence(core: Core, instruction: Instruction) -> After:
    """Waits for posted stores, if it waits for something."""
    cycles, shadow = core.hart.timing.fence, core.bus.shadow
    if shadow is not None and publishes(instruction):
        shadow.fenced[0] = core.hart.cycle
    if not waits_for_nothing(instruction):
        if shadow is not None:
            shadow.fenced[DRAINED] = core.hart.cycle
        cycles = max(cycles, core.bus.clock.drained - core.hart.cycle)
    return _next(core, instruction, cycles)


def _fence_i(core: Core, instruction: Instruction) -> After:
    core.flush()
    return _next(core, instruction, core.hart.timing.fence)


# -- system ----------------------------------------------------------------------------------------------------


def _csr(core: Core, pc: int, instruction: Instruction) -> Step:
    """Cached: which register it is."""
    csrs, address = core.hart.csrs, instruction.csr
    writes = instruction.row.kind is Kind.CSR_WRITE or bool(instruction.word >> 15 & 31)
    if writes and address >> 10 == 3:
        return partial(_illegal, core, instruction)
    window = csrs.windows.get(address)
    if address in REGISTERS:
        return _table_csr(core, pc, instruction, writes)
    if window is not None:
        return _window_csr(core, pc, instruction, window, writes)

    def missing() -> After | None:
        """Illegal until a window is added that has the register."""
        return _csr(core, pc, instruction)() if address in csrs.windows else _illegal(core, instruction)

    return missing


def _table_csr(core: Core, pc: int, instruction: Instruction, writes: bool) -> Step:
    hart, address, execute = core.hart, instruction.csr, core.hart.records.execute
    x, rs1, rd, imm = hart.x, instruction.rs1, instruction.rd or SINK, instruction.imm
    value, cost = evaluator(instruction.row.expr, core.isa.xlen), hart.timing.csr
    after = pc + instruction.length & core.isa.mask, cost

    def step() -> After | None:
        old = execute(csr.load_csr, address, writes, hart.cycle, hart.instret)
        if old == csr.ABSENT:
            return _illegal(core, instruction)
        if writes:
            execute(csr.write_csr, address, value(x[rs1], imm, pc, old), hart.cycle + cost, hart.instret)
        x[rd] = old
        return after

    return step


def _window_csr(core: Core, pc: int, instruction: Instruction, window: CsrWindow, writes: bool) -> Step:
    """It acts in the last cycle of the instruction."""
    hart, row, clock, address = core.hart, instruction.row, core.bus.clock, instruction.csr
    csrs, x, rs1, rd, imm = hart.csrs, hart.x, instruction.rs1, instruction.rd or SINK, instruction.imm
    acted, declared = clock.follow(getattr(window, "device", None)), getattr(window, "stable", None)
    quiet = not writes and declared is not None and declared(address)
    reads, by_register = row.kind is not Kind.CSR_WRITE or bool(instruction.rd), row.format.rs1
    cost, value = hart.timing.csr, evaluator(row.expr, core.isa.xlen)
    after = pc + instruction.length & core.isa.mask, cost

    def step() -> After | None:
        if x[PRIV] != MACHINE and not csrs.accessible(address, writes):
            return _illegal(core, instruction)
        now = hart.cycle + cost - 1
        clock.advance(now)
        old = window.read(address, now) if reads else 0
        if writes:
            new = value(x[rs1], imm, pc, old)
            window.write(address, new, now, (x[rs1] if by_register else imm) & new)
        if not quiet:
            acted(now + 1)
        x[rd] = old
        return after

    return step


def _ecall(core: Core, instruction: Instruction) -> After | None:
    return core.trap(Cause.ECALL_USER + core.hart.priv, 0)


def _ebreak(core: Core, instruction: Instruction) -> After | None:
    hart = core.hart
    answer = semihosting_answer(hart, core.bus)
    if answer is None:
        return core.trap(Cause.BREAKPOINT, hart.pc)
    hart.x[A0] = answer
    return _next(core, instruction, hart.timing.trap)


_CALL = b"".join(word.to_bytes(4, "little") for word in (0x01F0_1013, 0x0010_0073, 0x4070_5013))
"""slli zero, zero, 31; ebreak; srai zero, zero, 7: around an ebreak, which does not arise by chance."""
A0, _A1 = 10, 11


def semihosting_answer(hart: Hart, bus: Bus) -> int | None:
    """What a0 holds after the ebreak at pc, if that is a semihosting call (RISC-V Semihosting 0.4) which is served."""
    if hart.semihosting is None or bus.peek(hart.pc - 4, len(_CALL)) != _CALL:
        return None
    answer = hart.semihosting(int(hart.x[A0]), int(hart.x[_A1]))
    return None if answer is None else answer & hart.isa.mask


def _xret(core: Core, instruction: Instruction) -> After | None:
    pc = core.hart.records.execute(machine.return_from_trap, instruction.level)
    if pc == machine.NONE:
        return _illegal(core, instruction)
    if core.bus.shadow is not None:
        core.bus.shadow.on_return(core.hart.cycle)
    return pc, core.hart.timing.jump


def _sfence(core: Core, instruction: Instruction) -> After | None:
    """There is no translation of addresses to order."""
    hart = core.hart
    if hart.priv == USER or (hart.priv == SUPERVISOR and hart.csrs.mstatus & TVM):
        return _illegal(core, instruction)
    return _next(core, instruction, hart.timing.fence)


def _wfi(core: Core, instruction: Instruction) -> After | None:
    hart = core.hart
    if not hart.records.execute(machine.permits_wait):
        return _illegal(core, instruction)
    if hart.csrs.mip & hart.csrs.mie:
        return _next(core, instruction, hart.timing.wfi)
    start = hart.waiting.start if hart.waiting else hart.cycle
    return core.wait(Wait(start, hart.cycle + 1, NEVER), hart.cycle + 1)


_operands: Callable[[tuple[int, int, int, int, int, Any, bool]], Operands] = partial(tuple.__new__, Operands)
"""One of these values; a call of the class takes twice as long."""


def _custom(core: Core, pc: int, instruction: Instruction) -> Step:
    """It acts in the last cycle of its issue, or, after it has waited, when it is asked again.

    Cached: what it needs of its row, and how its device is told.
    """
    hart, clock, peek, custom, word = core.hart, core.bus.clock, core.peek, instruction.row.custom, instruction.word
    assert custom is not None and custom.handler is not None  # rows of this kind have one
    x, rs1, rs2, rd, mask = hart.x, word >> 15 & 31, word >> 20 & 31, instruction.rd or SINK, core.isa.mask
    later = acts_after(core, instruction)
    ready, acted = custom.ready, clock.follow(custom.device)
    handler: Any = custom.handler  # gives an Outcome, or an integer of NumPy
    looks, changes = custom.touches != "nothing", custom.touches == "devices"
    next_pc = pc + instruction.length & mask

    def step() -> After | None:
        waiting = hart.waiting
        acts = hart.cycle + later if waiting is None else hart.cycle
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
            return unfinished(core, outcome, hart.cycle if waiting is None else waiting.start, acts)
        else:
            value, cycles = int(outcome), 0
        x[rd] = value & mask
        return next_pc, acts + 1 + cycles - hart.cycle

    return step


def acts_after(core: Core, instruction: Instruction) -> int:
    """Cycles from the begin of a custom instruction to the last one of its issue."""
    custom = instruction.row.custom
    issue = None if custom is None else custom.issue
    return max(core.hart.timing.custom if issue is None else issue, 1) - 1


def unfinished(core: Core, outcome: Trap | Stall | Retry, start: int, acts: int) -> After | None:
    """Trap, or wait: a custom instruction that began in cycle `start` was asked in cycle `acts` and does not retire."""
    if isinstance(outcome, Trap):
        return core.trap(outcome.cause, outcome.value, acts - core.hart.cycle)
    if isinstance(outcome, Stall):
        until = NEVER if outcome.until is None else max(outcome.until, acts + 1)
        return core.wait(Wait(start, acts + 1, until), acts + 1)
    again = acts + max(outcome.cycles, 1)
    return core.wait(Wait(start, again, again), acts + 1)


_CACHED: dict[Kind, Callable[[Core, int, Instruction], Step]] = {
    Kind.CSR_WRITE: _csr,
    Kind.CSR_UPDATE: _csr,
    Kind.CUSTOM: _custom,
}
"""Kinds whose steps have an inline cache."""

_UNCACHED: dict[Kind, Callable[[Core, Instruction], After | None]] = {
    Kind.LOAD: _load,
    Kind.STORE: _store,
    Kind.BRANCH: _control,
    Kind.JUMP: _control,
    Kind.LR: _atomic,
    Kind.SC: _atomic,
    Kind.AMO: _atomic,
    Kind.CBO: _cbo,
    Kind.FENCE: _fence,
    Kind.FENCE_I: _fence_i,
    Kind.ECALL: _ecall,
    Kind.EBREAK: _ebreak,
    Kind.XRET: _xret,
    Kind.SFENCE: _sfence,
    Kind.WFI: _wfi,
}
"""Rarer kinds."""
