"""The instruction table as Python closures: one per decoded instruction, created by the factory of its row.

A factory is compiled when its row is first decoded.

A closure executes its instruction and returns (next pc, cycles). It returns None, and changes nothing, if the
instruction needs more than registers and memory of the fast path: then `pyv_ext.engines.steps` executes it.
"""

from collections.abc import Callable
from typing import Any

from pyv_ext.bus.bus import ADDRESS_SPACE, Bus
from pyv_ext.bus.memory import PAGE_BITS
from pyv_ext.hart.hart import Hart
from pyv_ext.isa import Instruction, InstructionDef, Isa, OpClass
from pyv_ext.isa.expressions import functions, operands, python_source
from pyv_ext.machine.slots import SINK

After = tuple[int, int]
"""The next pc, and the cycles that the instruction took."""

Step = Callable[[], After | None]

_PARAMETERS = {
    OpClass.OP: "x, rd, rs1, rs2, imm, pc, after",
    OpClass.BRANCH: "x, rs1, rs2, after, taken",
    OpClass.JUMP: "x, rd, rs1, imm, pc, next_pc, cost, odd",
    OpClass.LOAD: "x, rd, rs1, imm, after, ok, base, ram",
    OpClass.STORE: "x, rs1, rs2, imm, after, ok, base, ram",
}
"""Parameters of a factory (`Closures.make`); its closure keeps those that it uses."""

_FACTORY = "factory"
"""Name of a factory in its source text."""

_TIMED = "timed"
"""An OP whose cycles depend on its operands."""

_STATEMENTS: dict[OpClass | str, str] = {
    OpClass.OP: """
        x[rd] = {value}
        return after""",
    _TIMED: """
        result, cycles = {value}, {extra}
        x[rd] = result
        return after[0], after[1] + cycles""",
    OpClass.BRANCH: """
        return taken if {value} else after""",
    OpClass.JUMP: """
        target = {value}
        if target & odd:
            return None
        x[rd] = next_pc
        return target, cost""",
    OpClass.LOAD: """
        address = (x[rs1] + imm) & {mask}
        if {beyond}not ok[address >> {page}] or address & {low}:
            return None
        x[rd] = {register_value}
        return after""",
    OpClass.STORE: """
        address = (x[rs1] + imm) & {mask}
        if {beyond}not ok[address >> {page}] or address & {low}:
            return None
        ram[(address - base) >> {shift}] = x[rs2]{narrow}
        return after""",
}


def leave() -> None:
    """Return None: the closure of every instruction that always takes the slow path."""


class Closures:
    """Factory of the closures of one hart."""

    def __init__(self, isa: Isa, hart: Hart, bus: Bus) -> None:
        self._isa = isa
        self._hart = hart
        self._bus = bus
        self._factories: dict[str, Callable[..., Step]] = {}

    def makes(self, instruction: Instruction) -> bool:
        """Check whether an instruction has a closure; any other has `leave`."""
        row = instruction.row
        is_observed = self._bus.shadow is not None and row.op_class in (OpClass.LOAD, OpClass.STORE)
        return row.op_class in _STATEMENTS and not row.floating and not is_observed

    def make(self, instruction: Instruction, pc: int) -> Step:
        """Make the closure of the instruction at `pc`, for which `makes` holds."""
        row = instruction.row
        factory = self._factories.get(row.name)
        if factory is None:
            factory = self._factories[row.name] = self._factory(row)
        hart, timing, mask = self._hart, self._hart.timing, self._isa.mask
        _, _, rd, rs1, rs2, imm, _, _ = instruction
        x, rd, imm, cost = hart.x, rd or SINK, imm & mask, row.cost(timing)
        next_pc = pc + row.length & mask
        after = next_pc, cost
        if row.op_class is OpClass.OP:
            return factory(x, rd, rs1, rs2, imm, pc, after)
        if row.op_class is OpClass.BRANCH:
            target = pc + imm & mask
            return factory(x, rs1, rs2, after, None if target % self._isa.alignment else (target, timing.taken))
        if row.op_class is OpClass.JUMP:
            return factory(x, rd, rs1, imm, pc, next_pc, cost, self._isa.alignment - 1)
        ram = self._bus.rams[0]
        cells = {1: ram.u8, 2: ram.u16, 4: ram.u32, 8: ram.u64}[row.size]
        if row.op_class is OpClass.LOAD:
            return factory(x, rd, rs1, imm, after, self._bus.load_ok, ram.base, cells)
        return factory(x, rs1, rs2, imm, after, self._bus.store_ok, ram.base, cells)

    def _factory(self, row: InstructionDef) -> Callable[..., Step]:
        """Compile the factory of a row."""
        namespace: dict[str, Any] = functions(self._isa.xlen)
        exec(compile(_factory_text(row, self._isa), f"<{row.name}>", "exec"), namespace)
        factory: Callable[..., Step] = namespace[_FACTORY]
        return factory


def _factory_text(row: InstructionDef, isa: Isa) -> str:
    """Return Python for the factory of a row whose kind has statements."""
    scale = max(row.size.bit_length() - 1, 0)
    statements = _STATEMENTS[_TIMED if row.extra else row.op_class].format(
        value=_python(row, isa, row.expr),
        extra=_python(row, isa, row.extra),
        register_value=register_value(row, isa, f"ram[(address - base) >> {scale}]"),
        narrow="" if 8 * row.size in (0, isa.xlen) else f" & {(1 << 8 * row.size) - 1}",
        mask=isa.mask,
        beyond=f"address >= {ADDRESS_SPACE} or " if isa.mask >= ADDRESS_SPACE else "",
        page=PAGE_BITS,
        low=max(row.size - 1, 0),
        shift=scale,
    )
    reads = "".join(f"\n        {name} = x[{register}]" for name, register in _read_twice(row))
    return f"def {_FACTORY}({_PARAMETERS[row.op_class]}):\n    def step():{reads}{statements}\n    return step\n"


def _python(row: InstructionDef, isa: Isa, expr: str) -> str:
    """Return Python for an expression of a row."""
    if not expr:
        return ""
    b = "x[rs2]" if row.format.rs2 else "imm"
    names = {"a": "x[rs1]", "b": b, **{name: name for name, _ in _read_twice(row)}}
    return python_source(expr, isa.xlen, names)


def _read_twice(row: InstructionDef) -> list[tuple[str, str]]:
    """Return the register operands that its expressions mention more than once, with the fields that name them."""
    mentioned = operands(f"{row.expr} {row.extra}")
    registers = [("a", "rs1"), ("b", "rs2")] if row.format.rs2 else [("a", "rs1")]
    return [(name, field) for name, field in registers if mentioned.count(name) > 1]


def register_value(row: InstructionDef, isa: Isa, cell: str) -> str:
    """Return Python for the register value of a load; `cell` is the memory that it reads, zero-extended."""
    if not row.signed or row.size * 8 == isa.xlen:
        return cell
    sign = 1 << 8 * row.size - 1
    return f"(({cell} ^ {sign}) - {sign}) & {isa.mask}"
