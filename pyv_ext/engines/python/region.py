"""Regions: blocks of code that run often, translated into one Python function with an entry for each block.

Registers are local variables. A block is entered only if all of its instructions begin within the budget; its cost is
known beforehand. Blocks that follow one another are written one after the other, a few deep, and a block that jumps
to itself is a loop; all else goes through a decision tree over the number of the block.
"""

from collections.abc import Callable, Sequence
from typing import Any

from pyv_ext.bus.bus import Bus
from pyv_ext.bus.memory import PAGE_BITS
from pyv_ext.engines.blocks import CONTROL, Block, target_of
from pyv_ext.engines.closures import loaded
from pyv_ext.hart.hart import Hart
from pyv_ext.isa import Instruction, Kind
from pyv_ext.isa.expressions import functions, python_source

Function = Callable[[int, int], tuple[int, int, int, tuple[int, ...]]]
"""f(number of the block, cycles left) -> (pc, cycles left, instructions retired, values of the registers written)."""

DEEP = 1
"""How many blocks are written one after the other at most."""


class PythonRegion:
    """A translated region: its function, and the registers that the function's last result is for."""

    def __init__(self, hart: Hart, bus: Bus, blocks: Sequence[Block]) -> None:
        source = _Source(hart, bus, blocks)
        self.written = source.written
        self.heads = tuple(block.pc for block in blocks)
        self.pcs = frozenset(pc for block in blocks for pc, _ in block.instructions)
        ram = bus.rams[0]
        namespace: dict[str, Any] = functions(hart.isa.xlen)
        namespace |= {"x": hart.x, "u1": ram.u8, "u2": ram.u16, "u4": ram.u32}
        namespace |= {"load_ok": bus.load_ok, "store_ok": bus.store_ok, "numbers": source.numbers}
        exec(compile(source.text(), f"<region {blocks[0].pc:#x}>", "exec"), namespace)
        self.run: Function = namespace["region"]


class _Source:
    def __init__(self, hart: Hart, bus: Bus, blocks: Sequence[Block]) -> None:
        self._isa = hart.isa
        self._timing = hart.timing
        self._base = bus.rams[0].base
        self._blocks = blocks
        self.numbers = {block.pc: number for number, block in enumerate(blocks)}
        self._lines: list[str] = []
        instructions = [instruction for block in blocks for _, instruction in block.instructions]
        self.written = tuple(sorted({i.rd for i in instructions if i.rd}))
        self._used = sorted({n for i in instructions for n in (i.rd, i.rs1, i.rs2) if n})
        self._results = "".join(f"r{number}, " for number in self.written)

    def text(self) -> str:
        given = "x=x, u1=u1, u2=u2, u4=u4, load_ok=load_ok, store_ok=store_ok, numbers=numbers"
        self._line(0, f"def region(block, left, {given}):")
        for number in self._used:
            self._line(1, f"r{number} = x[{number}]")
        self._line(1, "done = 0")
        self._line(1, "while True:")
        self._tree(0, len(self._blocks), 2)
        return "\n".join(self._lines) + "\n"

    def _line(self, depth: int, text: str) -> None:
        self._lines.append(" " * depth + text)

    def _tree(self, low: int, high: int, depth: int) -> None:
        """Code for the blocks low..high-1, of which `block` is one."""
        if high - low == 1:
            self._entry(self._blocks[low], depth)
            return
        middle = (low + high) // 2
        self._line(depth, f"if block < {middle}:")
        self._tree(low, middle, depth + 1)
        self._line(depth, "else:")
        self._tree(middle, high, depth + 1)

    # -- blocks ------------------------------------------------------------------------------------------------

    def _cost(self, instruction: Instruction) -> int:
        cost: int = getattr(self._timing, instruction.row.timing)
        return cost

    def _before_last(self, block: Block) -> int:
        """Cycles from the start of the block to the start of its last instruction."""
        return sum(self._cost(instruction) for _, instruction in block.instructions[:-1])

    def _exit(self, pc: int | str, cycles: int, count: int) -> str:
        """Leave the region at `pc` after `count` instructions of a block, which took `cycles`."""
        left = f"left - {cycles}" if cycles else "left"
        done = f"done + {count}" if count else "done"
        return f"return {pc}, {left}, {done}, ({self._results})"

    def _entry(self, block: Block, depth: int) -> None:
        """A block to which the decision tree has led."""
        pc, last = block.instructions[-1]
        if target_of(pc, last, self._isa.mask) == block.pc and last.row.kind is Kind.BRANCH:
            self._line(depth, f"while left > {self._before_last(block)}:")
            self._body(block, depth + 1, block.pc, 0)
            self._line(depth, "else:")
            self._line(depth + 1, self._exit(block.pc, 0, 0))
        else:
            self._block(block, depth, None, 0)

    def _block(self, block: Block, depth: int, loop: int | None, deep: int) -> None:
        """A block, if it fits; `loop` is the block of the innermost loop, if any."""
        self._line(depth, f"if left <= {self._before_last(block)}: {self._exit(block.pc, 0, 0)}")
        self._body(block, depth, loop, deep)

    def _body(self, block: Block, depth: int, loop: int | None, deep: int) -> None:
        cycles = 0
        for count, (pc, instruction) in enumerate(block.instructions):
            kind = instruction.row.kind
            if kind in CONTROL:
                self._control(pc, instruction, cycles, count, depth, loop, deep)
                return
            if kind is Kind.OP:
                if instruction.rd:
                    self._line(depth, f"r{instruction.rd} = {self._value(pc, instruction)}")
            else:
                self._memory(pc, instruction, cycles, count, depth)
            cycles += self._cost(instruction)
        self._count(cycles, len(block.instructions), depth)
        self._goto(block.end, depth, loop, deep)

    def _count(self, cycles: int, count: int, depth: int) -> None:
        self._line(depth, f"left -= {cycles}; done += {count}")

    def _goto(self, pc: int, depth: int, loop: int | None, deep: int) -> None:
        """Go on at `pc`: at the head of the loop, with its block right here, through the tree, or out of the region."""
        number = self.numbers.get(pc)
        if number is None:
            self._line(depth, self._exit(pc, 0, 0))
        elif pc == loop:
            self._line(depth, "continue")
        elif deep < DEEP:
            self._block(self._blocks[number], depth, loop, deep + 1)
        else:
            self._line(depth, f"block = {number}; {'continue' if loop is None else 'break'}")

    # -- instructions ------------------------------------------------------------------------------------------

    def _register(self, number: int) -> str:
        return f"r{number}" if number else "0"

    def _value(self, pc: int, instruction: Instruction) -> str:
        row = instruction.row
        b = self._register(instruction.rs2) if row.format.rs2 else str(instruction.imm & self._isa.mask)
        return python_source(row.expr, self._isa.xlen, {"a": self._register(instruction.rs1), "b": b, "pc": str(pc)})

    def _memory(self, pc: int, instruction: Instruction, cycles: int, count: int, depth: int) -> None:
        row = instruction.row
        base = self._register(instruction.rs1)
        self._line(depth, f"a = {base} + {instruction.imm} & {self._isa.mask}")
        allowed = "store_ok" if row.kind is Kind.STORE else "load_ok"
        misaligned = f"a & {row.size - 1} or " if row.size > 1 else ""
        self._line(depth, f"if {misaligned}not {allowed}[a >> {PAGE_BITS}]: {self._exit(pc, cycles, count)}")
        cell = f"u{row.size}[a - {self._base} >> {row.size.bit_length() - 1}]"
        if row.kind is Kind.STORE:
            narrow = f" & {(1 << 8 * row.size) - 1}" if 8 * row.size < self._isa.xlen else ""
            self._line(depth, f"{cell} = {self._register(instruction.rs2)}{narrow}")
        elif instruction.rd:
            self._line(depth, f"r{instruction.rd} = {loaded(row, self._isa, cell)}")

    def _control(
        self, pc: int, instruction: Instruction, cycles: int, count: int, depth: int, loop: int | None, deep: int
    ) -> None:
        next_pc = pc + instruction.length & self._isa.mask
        target = target_of(pc, instruction, self._isa.mask)
        total = cycles + self._cost(instruction)
        if instruction.row.kind is Kind.BRANCH:
            assert target is not None
            self._line(depth, f"if {self._value(pc, instruction)}:")
            self._count(cycles + self._timing.taken, count + 1, depth + 1)
            self._goto(target, depth + 1, loop, deep)
            self._count(total, count + 1, depth)
            self._goto(next_pc, depth, loop, deep)
            return
        if target is None:
            self._line(depth, f"a = {self._value(pc, instruction)}")
            if self._isa.alignment > 2:
                self._line(depth, f"if a & {self._isa.alignment - 1}: {self._exit(pc, cycles, count)}")
        if instruction.rd:
            self._line(depth, f"r{instruction.rd} = {next_pc}")
        self._count(total, count + 1, depth)
        if target is None:
            self._line(depth, f"if (block := numbers.get(a, -1)) < 0: {self._exit('a', 0, 0)}")
            self._line(depth, "continue" if loop is None else "break")
        else:
            self._goto(target, depth, loop, deep)
