"""The machine's records in LLVM IR: fields, progress, and calls of functions of the native subset and of Python.

Functions of IR that execute instructions have one pointer as an argument, `%machine`: the beginning of the buffer
(`pyv_native.arena`). An exception of a callback sets the status there; native code then exits.
"""

from functools import cache
from typing import Final

from pyv_ext.hart.hart import constant_fields
from pyv_ext.isa import Isa
from pyv_ext.machine import pmp
from pyv_ext.machine.functions import LINKAGE
from pyv_ext.machine.state import LogKind, Machine
from pyv_native.arena import LINKS, ROOT, STATUS, is_callback
from pyv_native.emitter import Definition
from pyv_native.ir import Ir, Target
from pyv_native.module import module_context, module_text, symbol
from pyv_native.records import WORD, Inner, Scalar, layout

MACHINE = "%machine"
_MACHINE = f"ptr {MACHINE}"
BIAS = 1 << 31
"""Added to the remaining cycles, so that an instruction beyond the budget does not borrow from the upper half."""


class Exit:
    """Reason for an exit of native code."""

    BUDGET: Final = 0
    """The cycle budget is used up, or something else precedes the next instruction."""
    DECODE: Final = 1
    """The next instruction has no entry yet."""
    HOT: Final = 2
    """The next instruction begins a block that is hot enough to be translated."""
    FAULT: Final = 3
    """The next instruction has met a fault of a device, or an exception of Python, which is in the status."""
    WAITING: Final = 4
    """A WFI continues to wait."""


class RegionExit:
    """Reason for a return of a region to the interpreter."""

    JUMP: Final = 0
    """The next instruction is in no block of the region."""
    STEP: Final = 1
    """The interpreter tries the next instruction: regions do not support it, or its block exceeds the remaining
    cycles."""
    INTERRUPT: Final = 2
    """An interrupt or another privilege mode may take effect before the next instruction."""


# -- fields ------------------------------------------------------------------------------------------------------------


@cache
def _field(path: str) -> tuple[int, int]:
    """Return offset in the buffer and size of a field, as `hart.pc`."""
    record: type = Machine
    offset = ROOT
    *inner, name = path.split(".")
    for part in inner:
        at, shape, _ = layout(record).fields[part]
        assert isinstance(shape, Inner)
        record, offset = shape.record, offset + at
    field = layout(record).fields[name]
    assert isinstance(field.shape, Scalar)
    return offset + field.offset, field.shape.size


def get(ir: Ir, path: str) -> str:
    """Emit a load of an unsigned field; an i64."""
    offset, size = _field(path)
    value = ir.load(f"i{8 * size}", MACHINE, offset)
    return value if size == WORD else ir.value(f"zext i{8 * size} {value} to i64")


def put(ir: Ir, path: str, value: str) -> None:
    """Emit a store to a field, of a value in its width."""
    offset, size = _field(path)
    ir.store(f"i{8 * size}", value, MACHINE, offset)


def pointer(ir: Ir, path: str) -> str:
    """Emit a load of a field that is an address; a ptr."""
    return ir.load("ptr", MACHINE, _field(path)[0])


def registers(ir: Ir) -> str:
    """Emit the address of the hart's words (`pyv_ext.machine.slots`); a ptr."""
    return ir.at(MACHINE, ROOT + layout(Machine).fields["hart"].offset)


def logs(ir: Ir, *kinds: LogKind) -> str:
    """Emit whether any of the kinds of the core log is enabled; an i1."""
    bits = ir.value(f"and i64 {get(ir, 'kinds')}, {sum(1 << kind for kind in kinds)}")
    return ir.value(f"icmp ne i64 {bits}, 0")


# -- progress (`NativeState`) ------------------------------------------------------------------------------------------


def advance(cycles: int, instructions: int = 1) -> int:
    """Return the increment of progress for retired instructions and the cycles that they take."""
    return (instructions << 32) - cycles


def with_cycles(ir: Ir, progress: str, cycles: str) -> str:
    """Emit progress with another number of remaining cycles (an i64)."""
    retired = ir.value(f"and i64 {progress}, {-1 << 32}")
    return ir.value(f"or i64 {retired}, {ir.value(f'add i64 {cycles}, {BIAS}')}")


def cycle_of(ir: Ir, progress: str) -> str:
    """Emit the cycle of a progress; an i64."""
    cycles = ir.value(f"and i64 {progress}, {(1 << 32) - 1}")
    end = ir.value(f"add i64 {get(ir, 'native.deadline')}, {BIAS}")
    return ir.value(f"sub i64 {end}, {cycles}")


def retired(ir: Ir, progress: str) -> str:
    """Emit the count of retired instructions at a progress; an i64."""
    return ir.value(f"add i64 {get(ir, 'native.first')}, {ir.value(f'lshr i64 {progress}, 32')}")


def point(ir: Ir, progress: str) -> tuple[str, str]:
    """Emit the cycle and the instructions retired at a progress."""
    return cycle_of(ir, progress), retired(ir, progress)


def progress_at(ir: Ir, progress: str, end: str) -> str:
    """Emit progress at cycle `end`, with the budget up to the next deadline."""
    limit = _extend_deadline(ir, end)
    return with_cycles(ir, progress, ir.value(f"sub i64 {limit}, {end}"))


def _extend_deadline(ir: Ir, cycle: str) -> str:
    """Emit an update of the deadline, which is never before a cycle; return it."""
    limit = get(ir, "limit")
    has_budget = ir.value(f"icmp sgt i64 {limit}, {cycle}")
    limit = ir.value(f"select i1 {has_budget}, i64 {limit}, i64 {cycle}")
    put(ir, "native.deadline", limit)
    return limit


def read_hart(ir: Ir, word: str) -> tuple[str, str]:
    """Emit loads of the hart's position: pc, in the type of a register, and progress."""
    pc, cycle = ir.resize(get(ir, "hart.pc"), "i64", word), get(ir, "hart.cycle")
    put(ir, "native.first", get(ir, "hart.instret"))
    limit = _extend_deadline(ir, cycle)
    return pc, with_cycles(ir, "0", ir.value(f"sub i64 {limit}, {cycle}"))


def write_hart(ir: Ir, word: str, pc: str, progress: str) -> None:
    """Emit stores of the hart's position for Python: the inverse of `read_hart`."""
    cycle, count = point(ir, progress)
    put(ir, "hart.pc", ir.resize(pc, word, "i64"))
    put(ir, "hart.cycle", cycle)
    put(ir, "hart.instret", count)


# -- calls -------------------------------------------------------------------------------------------------------------


def call(ir: Ir, function: Definition, *arguments: str | int) -> str:
    """Emit the call of a linked function or callback with i64 arguments; return the i64 result."""
    address = ir.load("ptr", MACHINE, LINKS + WORD * LINKAGE.slots[function])
    operands = [f"i64 {argument}" for argument in arguments]
    return ir.value(f"call i64 {address}({', '.join(operands if is_callback(function) else [_MACHINE, *operands])})")


def exit_on_exception(ir: Ir, target: Target) -> None:
    """Emit a branch to `target` if a callback has raised an exception."""
    ir.unless(ir.value(f"icmp eq i64 {ir.load('i64', MACHINE, WORD * STATUS)}, 0"), target)


_OUTLINED = {function: LINKAGE.slots[function] for function in (pmp.guard, pmp.write_config, pmp.write_address)}
"""Functions that are too long to be inlined."""


class HartFunctions:
    """Functions of the hart (`pyv_ext.machine.hart`, `csr`) that a function of IR calls; they are inlined as part of
    its module."""

    def __init__(self, ir: Ir, isa: Isa, *, linked: bool = False) -> None:
        """Remove code that is dead for the ISA from them. `linked`: inline only functions without a link."""
        self._ir = ir
        self._linked = linked
        constants = constant_fields(isa).items()
        self._constants = tuple((f"HartState.{name}", value - (value >> 63 << 64)) for name, value in constants)
        self._called: dict[Definition, None] = {}

    def call(self, function: Definition, *arguments: str | int) -> str:
        """Emit a call with i64 arguments; return the i64 result."""
        if self._linked and function in LINKAGE.slots:
            return call(self._ir, function, *arguments)
        self._called[function] = None
        operands = ", ".join([_MACHINE, *(f"i64 {argument}" for argument in arguments)])
        return self._ir.value(f"call i64 @{symbol(function)}({operands})")

    def holds(self, function: Definition, *arguments: str | int) -> str:
        """Emit a call; return an i1: its result is not 0."""
        return self._ir.value(f"icmp ne i64 {self.call(function, *arguments)}, 0")

    def text(self) -> str:
        """Return the IR of the called functions, a part of the module."""
        return _hart_text(tuple(self._called), self._constants) if self._called else ""


@cache
def _hart_text(functions: tuple[Definition, ...], constants: tuple[tuple[str, int], ...]) -> str:
    return module_text(functions, module_context(functions, Machine, dict(constants), {}, False), outlined=_OUTLINED)
