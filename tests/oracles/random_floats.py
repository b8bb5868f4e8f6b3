"""Random programs of floating point over operands at the edges of the formats, which store all that they compute.

After each instruction its result and fcsr go into memory. A trap stores its cause and goes on behind the instruction.
"""

import random
import struct
from collections.abc import Iterator
from typing import NamedTuple

from pyv_ext.isa import InstructionDef, Isa
from pyv_ext.isa.csr_names import ADDRESSES
from pyv_ext.isa.formats import F0
from pyv_ext.isa.row import OpClass
from pyv_ext.isa.softfloat import DOUBLE, SINGLE, FloatFormat

CODE, OPERANDS, OUTPUT = 0x8000_0000, 0x8040_0000, 0x8080_0000
WORDS = 512
"""Of operands, 64 bits each."""
OUT, IN, T0, T1 = 8, 9, 10, 11
"""Registers: where output goes on, operands, and scratch."""
FINISHER, RESET = 0x10_0000, 0x7777
FS = 3 << 13


class FloatProgram(NamedTuple):
    code: bytes
    operands: bytes
    output: int
    """Bytes that it stores at most."""


def edges(form: FloatFormat) -> list[int]:
    """Encodings around which results change their kind."""
    one = (1 << form.exponent - 1) - 1 << form.fraction
    found = [0, 1, 2, form.quiet, (1 << form.fraction) - 1, 1 << form.fraction, (1 << form.fraction) + 1]
    found += [one, one - 1, one + 1, one + form.quiet, one + (2 << form.fraction), one - (1 << form.fraction)]
    found += [form.infinity - 1, form.infinity, form.nan, form.infinity + 1, form.nan + 5]
    found += [one + (bits << form.fraction) + near for bits in (30, 31, 32) for near in (-1, 0, 1)]
    found += [one + (form.fraction + more << form.fraction) + near for more in (0, 1) for near in (-1, 0, 1)]
    return found


def encodings(form: FloatFormat, chance: random.Random) -> Iterator[int]:
    """Edges, numbers near them, numbers of nearby exponents, and anything."""
    low = form.sign - 1
    one = (1 << form.exponent - 1) - 1
    while True:
        bits = chance.choice(edges(form))
        match chance.randrange(5):
            case 0:
                bits = bits + chance.randint(-3, 3) & low
            case 1:
                few = chance.getrandbits(form.fraction) & -1 << chance.randrange(form.fraction)
                bits = one + chance.randint(-60, 60) << form.fraction | few
            case 2:
                bits = chance.getrandbits(form.exponent + form.fraction)
        yield bits | (form.sign if chance.getrandbits(1) else 0)


def operands(chance: random.Random) -> bytes:
    singles, doubles = encodings(SINGLE, chance), encodings(DOUBLE, chance)
    words = []
    for _ in range(WORDS):
        match chance.randrange(8):
            case 0 | 1 | 2:
                words.append(next(doubles))
            case 3:
                words.append(0xFFFF_FFFE << 32 | next(singles))  # nearly boxed
            case _:
                words.append(0xFFFF_FFFF << 32 | next(singles))
    return struct.pack(f"<{WORDS}Q", *words)


def float_program(isa: Isa, seed: int, items: int) -> FloatProgram:
    """`isa` has f registers."""
    chance = random.Random(seed)
    writer = _Writer(isa, chance)
    writer.begin()
    for _ in range(items):
        writer.item()
    writer.end()
    return FloatProgram(b"".join(writer.words), operands(chance), writer.stored)


class _Writer:
    def __init__(self, isa: Isa, chance: random.Random) -> None:
        self._isa = isa
        self._chance = chance
        self._double = isa.flen == 64
        self._rows = [row for row in isa.rows if row.op_class is OpClass.FLOAT]
        self._memory = [row for row in isa.rows if row.floating and row.op_class is not OpClass.FLOAT]
        self.words: list[bytes] = []
        self.stored = 0

    def emit(self, name: str, **given: int) -> None:
        row = self._isa.by_name[name]
        self.words.append(self._isa.encode(name, **given).to_bytes(row.length, "little"))

    def _li(self, register: int, value: int) -> None:
        self.emit("lui", rd=register, imm=(value + 0x800 & 0xFFFF_F000 ^ 1 << 31) - (1 << 31))
        self.emit("addi", rd=register, rs1=register, imm=(value & 0xFFF ^ 0x800) - 0x800)

    def begin(self) -> None:
        """A handler at the start, which stores mcause and mepc and skips the instruction, jumped over."""
        handler = [
            ("csrrs", {"rd": T0, "csr": ADDRESSES["mcause"]}),
            ("sw", {"rs1": OUT, "rs2": T0, "imm": 0}),
            ("csrrs", {"rd": T0, "csr": ADDRESSES["mepc"]}),
            ("sw", {"rs1": OUT, "rs2": T0, "imm": 4}),
            ("lhu", {"rd": T1, "rs1": T0}),
            ("andi", {"rd": T1, "rs1": T1, "imm": 3}),
            ("sltiu", {"rd": T1, "rs1": T1, "imm": 3}),  # compressed
            ("xori", {"rd": T1, "rs1": T1, "imm": 1}),
            ("slli", {"rd": T1, "rs1": T1, "imm": 1}),
            ("add", {"rd": T0, "rs1": T0, "rs2": T1}),
            ("addi", {"rd": T0, "rs1": T0, "imm": 2}),
            ("csrrw", {"rs1": T0, "csr": ADDRESSES["mepc"]}),
            ("addi", {"rd": OUT, "rs1": OUT, "imm": 8}),
            ("mret", {}),
        ]
        self.emit("jal", imm=4 + 4 * len(handler))
        for name, given in handler:
            self.emit(name, **given)
        self._li(T0, CODE + 4)
        self.emit("csrrw", rs1=T0, csr=ADDRESSES["mtvec"])
        self._li(OUT, OUTPUT)
        self._li(IN, OPERANDS + 2048)
        self._switch(on=True)
        for number in range(32):
            self._load(number)
        for number in range(T1 + 1, 32):
            self._integer(number)

    def _integer(self, number: int) -> None:
        """A register that conversions read: QEMU's boot code and ours leave other values there."""
        chance = self._chance
        value = chance.getrandbits(32) >> chance.randrange(32)
        self._li(number, (value if chance.getrandbits(1) else -value) & 0xFFFF_FFFF)

    def end(self) -> None:
        self._switch(on=True)
        for number in range(32):
            self._store(number)
        self._li(T0, FINISHER)
        self._li(T1, RESET)
        self.emit("sw", rs1=T0, rs2=T1)
        self.emit("jal")

    def _switch(self, *, on: bool) -> None:
        self._li(T0, FS)
        self.emit("csrrs" if on else "csrrc", rs1=T0, csr=ADDRESSES["mstatus"])

    def _load(self, number: int) -> None:
        chance = self._chance
        if self._double and chance.random() < 0.7:
            self.emit("fld", rd=F0 + number, rs1=IN, imm=8 * chance.randrange(-256, 255))
        else:
            self.emit("flw", rd=F0 + number, rs1=IN, imm=4 * chance.randrange(-512, 511))

    def _store(self, number: int) -> None:
        if self._double:
            self.emit("fsd", rs1=OUT, rs2=F0 + number)
        else:
            self.emit("fsw", rs1=OUT, rs2=F0 + number)
        self._advance()

    def _advance(self) -> None:
        self.emit("addi", rd=OUT, rs1=OUT, imm=8)
        self.stored += 16  # of a trap, too

    def item(self) -> None:
        chance = self._chance
        match chance.randrange(24):
            case 0:
                self.emit("csrrwi", rd=T1, imm=chance.randrange(8), csr=ADDRESSES["frm"])
            case 1:
                self.emit("csrrwi", rd=T1, imm=chance.randrange(5), csr=ADDRESSES["frm"])
            case 2:
                self.emit("csrrwi", rd=T1, imm=chance.randrange(32), csr=ADDRESSES["fflags"])
            case 3:
                self.emit("csrrs", rd=T1, csr=ADDRESSES["mstatus"])
                self._li(T0, FS)
                self.emit("and", rd=T1, rs1=T1, rs2=T0)
                self.emit("sltu", rd=T1, rs2=T1)
                self.emit("sw", rs1=OUT, rs2=T1)
                self._advance()
            case 4:
                self._switch(on=chance.random() < 0.8)
            case 5:
                self._integer(chance.randrange(T1 + 1, 32))
            case 6 | 7:
                self._access(chance.choice(self._memory))
            case 8 | 9 | 10 | 11:
                self._load(chance.randrange(32))
            case _:
                self._compute(chance.choice(self._rows))

    def _access(self, row: InstructionDef) -> None:
        """A load or store with an immediate of its own, in any encoding of it."""
        chance = self._chance
        base = 2 if row.name.endswith("sp") else IN
        if base != IN:
            self.emit("addi", rd=base, rs1=IN)
        imm = row.size * chance.randrange(31)
        number = F0 + (chance.randrange(8, 16) if row.length == 2 else chance.randrange(32))
        self.emit(row.name, rd=number, rs2=number, rs1=base, imm=imm)

    def _compute(self, row: InstructionDef) -> None:
        chance = self._chance
        word = row.match | chance.getrandbits(32) & ~row.mask
        to_x = row.format.rd is not None and row.format.rd.base < F0
        if to_x:
            word = word & ~(31 << 7) | T1 << 7
        from_x = row.format.rs1 is not None and row.format.rs1.base < F0
        if from_x:
            word = word & ~(31 << 15) | chance.randrange(T1 + 1, 32) << 15
        if chance.random() < 0.4 and row.format.imm is not None:
            word |= 7 << 12
        self.words.append(word.to_bytes(4, "little"))
        if to_x:
            self.emit("sw", rs1=OUT, rs2=T1)
            self._advance()
        else:
            self._store(word >> 7 & 31)
        self.emit("csrrwi" if chance.random() < 0.5 else "csrrs", rd=T1, csr=ADDRESSES["fflags"])
        self.emit("sw", rs1=OUT, rs2=T1)
        self._advance()
