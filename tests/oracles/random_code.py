"""Random instructions with operands that make sense together: the pieces of random programs."""

import random
from collections.abc import Callable

from pyv_ext.isa import InstructionDef, Isa, OpClass

EDGES = (0, 1, 2, 31, 32, 0x7F, 0x80, 0xFF, 0x7FFF, 0x8000, 0xFFFF, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 0xFFFFFFFE)
WIDE_EDGES = (*EDGES, 63, 64, 1 << 32, (1 << 63) - 1, 1 << 63, -(1 << 31), -1, -2)


class Deck:
    """Rows drawn in random order, each once before any comes again."""

    def __init__(self, rows: list[InstructionDef], chance: random.Random) -> None:
        self.rows = rows
        self._chance = chance
        self._left: list[InstructionDef] = []

    def draw(self) -> InstructionDef:
        if not self._left:
            self._left = self._chance.sample(self.rows, len(self.rows))
        return self._left.pop()


class Coder:
    """Encodes instructions; those that are random write the registers in `free` only.

    The others: `base` points into the middle of the data, `recovery` is where the trap handler goes on, `scratch` is
    the handler's own.
    """

    def __init__(self, isa: Isa, chance: random.Random) -> None:
        self.isa = isa
        self.chance = chance
        self.base, self.recovery, self.scratch = chance.sample(range(3, 32), 3)
        self.free = [n for n in range(1, 32) if n not in (self.base, self.recovery, self.scratch)]

    def deck(self, *kinds: OpClass, where: Callable[[InstructionDef], bool] = lambda row: True) -> Deck:
        return Deck([row for row in self.isa.rows if row.op_class in kinds and where(row)], self.chance)

    def one(self, name: str, **operands: int) -> bytes:
        """The code of one instruction."""
        row = self.isa.by_name[name]
        return self.isa.encode(name, **operands).to_bytes(row.length, "little")

    def li(self, register: int, value: int) -> bytes:
        """Code that loads a value: eight bytes for one of 32 bits, with its sign where registers have more."""
        if self.isa.xlen > 32:
            value = (value & self.isa.mask ^ self.isa.sign) - self.isa.sign
            lower = (value & 0xFFF ^ 0x800) - 0x800
            if not -1 << 31 <= value - lower < 1 << 31:
                shifted = self.li(register, value - lower >> 12) + self.one("slli", rd=register, rs1=register, imm=12)
                return shifted + self.one("addi", rd=register, rs1=register, imm=lower)
        upper = (value + 0x800 & 0xFFFFF000 ^ 1 << 31) - (1 << 31)
        lower = (value & 0xFFF ^ 0x800) - 0x800
        return self.one("lui", rd=register, imm=upper) + self.one("addi", rd=register, rs1=register, imm=lower)

    def here(self, register: int, distance: int) -> bytes:
        """Eight bytes that load the address `distance` bytes after their start."""
        return self.one("auipc", rd=register) + self.one("addi", rd=register, rs1=register, imm=distance)

    def register(self) -> int:
        return self.chance.choice(self.free)

    def random_word(self, row: InstructionDef) -> int:
        """A word of the row, with operands that keep the reserved registers."""
        while True:
            word = row.match | self.chance.getrandbits(8 * row.length) & ~row.mask
            instruction = self.isa.decode(word)
            if instruction is not None and instruction.row is row and instruction.rd in (0, *self.free):
                return word

    def random_one(self, row: InstructionDef) -> bytes:
        return self.random_word(row).to_bytes(row.length, "little")

    def value(self) -> int:
        if self.isa.xlen == 32:
            return self.chance.choice(EDGES) if self.chance.random() < 0.4 else self.chance.getrandbits(32)
        bits = self.chance.choice((32, 64))
        chosen = self.chance.choice(WIDE_EDGES) if self.chance.random() < 0.4 else self.chance.getrandbits(bits)
        return chosen & self.isa.mask

    def risky(self, code: bytes) -> bytes:
        """`code`, after whose end the program goes on if it traps."""
        return self.here(self.recovery, 8 + len(code)) + code

    def target(self) -> int:
        return self.chance.choice([0, *self.free])

    def pointer(self, register: int, step: int) -> bytes:
        """Four bytes that make a register point into the middle of the data."""
        return self.one("addi", rd=register, rs1=self.base, imm=self.chance.randrange(-1024, 1024, step))
