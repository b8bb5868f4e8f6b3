"""Rows of the instruction table: encoding, operands, meaning and cost of an instruction."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from enum import Enum, auto
from typing import NamedTuple

from pyv_ext.isa.formats import SHIFT, Format
from pyv_ext.protocols import CustomInstruction
from pyv_ext.timing import CoreTiming


class OpClass(Enum):
    """Op class of a row, by which engines execute it. Rows of a class differ in their fields."""

    OP = auto()
    """rd = expr"""
    LOAD = auto()
    """rd = `size` bytes at a + imm, sign-extended if `signed`"""
    STORE = auto()
    """`size` bytes at a + imm = b"""
    BRANCH = auto()
    """if expr: pc = pc + imm"""
    JUMP = auto()
    """rd = pc of the next instruction; pc = expr"""
    LR = auto()
    SC = auto()
    AMO = auto()
    """old = memory at a; memory = expr; rd = old"""
    CSR_WRITE = auto()
    """old = CSR unless rd is x0; CSR = expr; rd = old"""
    CSR_UPDATE = auto()
    """old = CSR; CSR = expr unless the rs1 field is 0; rd = old"""
    FENCE = auto()
    FENCE_I = auto()
    ECALL = auto()
    EBREAK = auto()
    XRET = auto()
    """return from a trap: MRET, SRET"""
    SFENCE = auto()
    """SFENCE.VMA"""
    WFI = auto()
    CBO = auto()
    """cache-block operation on the block of a: no effect on data"""
    FLOAT = auto()
    """rd, exceptions = compute(rs1, rs2, rs3, rounding mode)"""
    CUSTOM = auto()
    """as defined by `custom.handler`"""


MAX_EXTRA = 0xFFFF
"""Maximum cycles beyond its issue that an instruction declares."""

Compute = Callable[[int, int, int, int], tuple[int, int]]
"""`f(rs1, rs2, rs3, rounding mode) -> (rd, exceptions)`: raw contents of registers, exceptions as bits of fflags."""


@dataclass(frozen=True)
class InstructionDef:
    """Instruction definition.

    `bits` is its encoding as the manuals print it, most significant bit first: 0 and 1 are fixed, "-" belongs to an
    operand, blanks are ignored; the number of bits, 16 or 32, is its length. Words in which an operand of `nonzero` is
    0 are another instruction or reserved. `timing` names the field of `CoreTiming` that is its cost (a taken branch
    costs `taken` instead). `expr` is in the dialect of `pyv_ext.isa.expressions`. `floating` rows, those with f
    registers, are illegal while mstatus.FS is Off. `xlen` is the only width of registers that has the row; 0: any.
    """

    name: str
    format: Format
    bits: str
    op_class: OpClass
    timing: str
    expr: str = ""
    size: int = 0
    signed: bool = False
    nonzero: tuple[str, ...] = ()
    custom: CustomInstruction | None = None
    floating: bool = False
    compute: Compute | None = None
    xlen: int = 0
    match: int = field(init=False)
    mask: int = field(init=False)
    length: int = field(init=False)
    """Length in bytes."""

    def __post_init__(self) -> None:
        bits = self.bits.replace(" ", "")
        match, mask = int(bits.replace("-", "0"), 2), int(bits.replace("0", "1").replace("-", "0"), 2)
        self.__dict__.update(match=match, mask=mask, length=len(bits) // 8)

    def cost(self, timing: CoreTiming) -> int:
        """Return the cycles without those of `extra`; a taken branch costs `taken` instead."""
        cycles = 0 if self.custom is None else self.custom.cycles
        return self.issue_cycles(timing) + (cycles if isinstance(cycles, int) else 0)

    def issue_cycles(self, timing: CoreTiming) -> int:
        """Return the issue cycles, in the last of which a custom instruction takes effect."""
        cycles: int = getattr(timing, self.timing)
        if self.custom is None:
            return cycles
        return max(cycles if self.custom.issue is None else self.custom.issue, 1)

    @property
    def extra(self) -> str:
        """Expression of the cycles beyond `cost`, at most `MAX_EXTRA`; empty: none."""
        cycles = 0 if self.custom is None else self.custom.cycles
        return cycles if isinstance(cycles, str) else ""


def op(name: str, format: Format, bits: str, expr: str, timing: str = "alu", xlen: int = 0) -> InstructionDef:
    return InstructionDef(name, format, bits, OpClass.OP, timing, expr, xlen=xlen)


def shift(name: str, funct6: str, funct3: str, expr: str) -> tuple[InstructionDef, InstructionDef]:
    """Return the rows of a shift by an immediate of 5 bits with 32-bit registers, and of 6 with 64-bit registers."""
    counts, fixed = {32: "0 -----", 64: "------"}, f"----- {funct3} ----- 0010011"
    first, second = (op(name, SHIFT, f"{funct6} {bits} {fixed}", expr, xlen=xlen) for xlen, bits in counts.items())
    return first, second


def alias(name: str, base: InstructionDef, format: Format, bits: str, *nonzero: str, xlen: int = 0) -> InstructionDef:
    """Return a compressed instruction: `base` under another encoding."""
    return replace(base, name=name, format=format, bits=bits, nonzero=nonzero, xlen=xlen or base.xlen)


class Instruction(NamedTuple):
    """Decoded word: its row and OPERANDS. Registers are numbers, the immediate is signed as its format defines."""

    row: InstructionDef
    word: int
    rd: int = 0
    rs1: int = 0
    rs2: int = 0
    imm: int = 0
    csr: int = 0
    rs3: int = 0

    @property
    def name(self) -> str:
        """Mnemonic."""
        return self.row.name

    @property
    def level(self) -> int:
        """Privilege mode of an XRET, bits 29:28 of the word: 3 for MRET, 1 for SRET."""
        return self.word >> 28 & 3

    @property
    def writes_csr(self) -> bool:
        """Check whether an instruction that accesses a CSR writes it."""
        return self.row.op_class is OpClass.CSR_WRITE or bool(self.word >> 15 & 31)

    @property
    def length(self) -> int:
        """Length in bytes."""
        return self.row.length
