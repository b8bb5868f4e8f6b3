"""Instruction formats: positions of operands in the word, and their assembly text.

Operand fields are integers scattered over the word. Source: RISC-V unprivileged manual, "Base Instruction Formats" and
"Compressed Instruction Formats". Operand text is that of GNU objdump with `-M no-aliases`; its words are defined in
`pyv_ext.isa.text`.
"""

from dataclasses import dataclass, replace
from functools import cached_property


@dataclass(frozen=True)
class OperandBits:
    """Operand field of an instruction word.

    `layout` lists its pieces as in the manual's figures, "high:low@position": bits high..low of the operand are at
    `position` of the word, counted from bit 0. Bits in no piece are zero. `base` is added to the encoded value (the
    compressed formats name x8..x15 by three bits).
    """

    layout: str
    signed: bool = False
    base: int = 0

    @cached_property
    def pieces(self) -> tuple[tuple[int, int, int], ...]:
        """(lowest operand bit, bit mask, position in the word) of each piece."""
        pieces = []
        for piece in self.layout.split():
            span, position = piece.split("@")
            high, _, low = span.partition(":")
            first = int(low or high)
            pieces.append((first, (1 << int(high) - first + 1) - 1, int(position)))
        return tuple(pieces)

    @cached_property
    def sign(self) -> int:
        """Sign bit of the operand, or 0."""
        return 1 << max(low + mask.bit_length() - 1 for low, mask, _ in self.pieces) if self.signed else 0

    def extract(self, word: int) -> int:
        """Return the operand of `word`, sign-extended where it is signed."""
        value = 0
        for low, mask, position in self.pieces:
            value |= (word >> position & mask) << low
        return (value ^ self.sign) - self.sign + self.base

    def insert(self, value: int) -> int:
        """Return the bits of a word that encode `value`, which must fit."""
        word = 0
        for low, mask, position in self.pieces:
            word |= (value - self.base >> low & mask) << position
        return word

    def fits(self, value: int) -> bool:
        """Check whether a word can encode `value`."""
        return self.extract(self.insert(value)) == value


OPERANDS = ("rd", "rs1", "rs2", "imm", "csr", "rs3")
"""Operands of an instruction, in the order of its fields."""

F0 = 64
"""Number of register f0; f0..f31 are consecutive, above the integer registers."""

BOX = 0xFFFF_FFFF << 32
"""The upper bits of an f register that holds a single."""


def fixed(value: int) -> OperandBits:
    """Return an operand that the format implies and the word does not encode."""
    return OperandBits("", base=value)


@dataclass(frozen=True)
class Format:
    """Operand fields of a format (None: absent) and its operand text.

    Registers are numbered x0 = 0 to x31, then from `F0` on f0 to f31. `csr` is the address of a control and status
    register. In expressions `a` is the register rs1, and `b` the register rs2 or, in a format without rs2, the
    immediate. The immediate of an instruction with a rounding mode is the mode.
    """

    text: str = ""
    rd: OperandBits | None = None
    rs1: OperandBits | None = None
    rs2: OperandBits | None = None
    rs3: OperandBits | None = None
    imm: OperandBits | None = None
    csr: OperandBits | None = None

    @cached_property
    def _operands(self) -> tuple[OperandBits | None, ...]:
        """Operand fields in the order of OPERANDS."""
        return self.rd, self.rs1, self.rs2, self.imm, self.csr, self.rs3

    def extract(self, word: int) -> list[int]:
        """Return OPERANDS of `word`; 0 for each that the format does not have."""
        return [0 if bits is None else bits.extract(word) for bits in self._operands]

    @property
    def written(self) -> tuple[str, ...]:
        """Names of the fields in the operand text; the other fields are implied."""
        return tuple(field for part in self.text.split(",") if part for field in _FIELDS[part])


_FIELDS: dict[str, tuple[str, ...]] = {
    **{name: (name,) for name in ("rd", "rs1", "rs2", "rs3", "imm", "csr")},
    "(rs1)": ("rs1",),
    "imm(rs1)": ("imm", "rs1"),
    **dict.fromkeys(("hex", "upper", "target", "pred", "succ", "mode", "mode!"), ("imm",)),
}
"""Fields of each part of an operand text."""


RD, RS1, RS2 = OperandBits("4:0@7"), OperandBits("4:0@15"), OperandBits("4:0@20")
IMM_I = OperandBits("11:0@20", signed=True)

NONE = Format()
R = Format("rd,rs1,rs2", RD, RS1, RS2)
UNARY = Format("rd,rs1", RD, RS1)
I = Format("rd,rs1,imm", RD, RS1, imm=IMM_I)  # noqa: E741 - the manual's name
LOAD = replace(I, text="rd,imm(rs1)")
JALR = LOAD
SHIFT = Format("rd,rs1,hex", RD, RS1, imm=OperandBits("5:0@20"))
S = Format("rs2,imm(rs1)", rs1=RS1, rs2=RS2, imm=OperandBits("11:5@25 4:0@7", signed=True))
B = Format("rs1,rs2,target", rs1=RS1, rs2=RS2, imm=OperandBits("12@31 11@7 10:5@25 4:1@8", signed=True))
U = Format("rd,upper", RD, imm=OperandBits("31:12@12", signed=True))
J = Format("rd,target", RD, imm=OperandBits("20@31 19:12@12 11@20 10:1@21", signed=True))
CSR = Format("rd,csr,rs1", RD, RS1, csr=OperandBits("11:0@20"))
CSR_I = replace(CSR, text="rd,csr,imm", rs1=None, imm=OperandBits("4:0@15"))
SFENCE = Format("rs1,rs2", rs1=RS1, rs2=RS2)
FENCE = Format("pred,succ", imm=OperandBits("7:0@20"))
AMO = Format("rd,rs2,(rs1)", RD, RS1, RS2)
LR = Format("rd,(rs1)", RD, RS1)
CBO = Format("(rs1)", rs1=RS1)

# Floating point: fd, fs1, fs2 and fs3 are the manual's rd, rs1, rs2 and rs3 where they name f registers.
_FD, _FS1, _FS2, _FS3 = (
    OperandBits("4:0@7", base=F0),
    OperandBits("4:0@15", base=F0),
    OperandBits("4:0@20", base=F0),
    OperandBits("4:0@27", base=F0),
)
_MODE = OperandBits("2:0@12")
F_LOAD = replace(LOAD, rd=_FD)
F_STORE = replace(S, rs2=_FS2)
F_R4 = Format("rd,rs1,rs2,rs3,mode", _FD, _FS1, _FS2, _FS3, imm=_MODE)
F_R = Format("rd,rs1,rs2,mode", _FD, _FS1, _FS2, imm=_MODE)
F_UNARY = Format("rd,rs1,mode", _FD, _FS1, imm=_MODE)
F_EXACT = replace(F_UNARY, text="rd,rs1,mode!")
F_TO_X = replace(F_UNARY, rd=RD)
F_FROM_X = replace(F_UNARY, rs1=RS1)
F_FROM_X_EXACT = replace(F_EXACT, rs1=RS1)
F_R_PLAIN = Format("rd,rs1,rs2", _FD, _FS1, _FS2)
F_COMPARE = replace(F_R_PLAIN, rd=RD)
F_MOVE_TO_X = Format("rd,rs1", RD, _FS1)
F_MOVE_FROM_X = Format("rd,rs1", _FD, RS1)


def custom(syntax: str) -> Format:
    """Return the format of a custom instruction with the operands in `syntax`."""
    fields = {"rd": RD, "rs1": RS1, "rs2": RS2, "imm": IMM_I}
    return Format(syntax, **{name: fields[name] for name in fields if name in syntax.split(",")})


# Compressed: three-bit register fields name x8..x15.
_FULL_RD, _FULL_RS2 = OperandBits("4:0@7"), OperandBits("4:0@2")
_LOW, _HIGH = OperandBits("2:0@2", base=8), OperandBits("2:0@7", base=8)
_ZERO, _RA, _SP = fixed(0), fixed(1), fixed(2)
_IMM_CI = OperandBits("5@12 4:0@2", signed=True)

CI = Format("rd,imm", _FULL_RD, _FULL_RD, imm=_IMM_CI)
CI_LI = Format("rd,imm", _FULL_RD, _ZERO, imm=_IMM_CI)
CI_LUI = Format("rd,upper", _FULL_RD, imm=OperandBits("17@12 16:12@2", signed=True))
CI_SP = Format("rd,imm", _SP, _SP, imm=OperandBits("9@12 8:7@3 6@5 5@2 4@6", signed=True))
CI_SHIFT = Format("rd,hex", _FULL_RD, _FULL_RD, imm=OperandBits("5@12 4:0@2"))
CI_LWSP = Format("rd,imm(rs1)", _FULL_RD, _SP, imm=OperandBits("7:6@2 5@12 4:2@4"))
CSS = Format("rs2,imm(rs1)", rs1=_SP, rs2=_FULL_RS2, imm=OperandBits("7:6@7 5:2@9"))
CIW = Format("rd,rs1,imm", _LOW, _SP, imm=OperandBits("9:6@7 5:4@11 3@5 2@6"))
CL = Format("rd,imm(rs1)", _LOW, _HIGH, imm=OperandBits("6@5 5:3@10 2@6"))
CS = Format("rs2,imm(rs1)", rs1=_HIGH, rs2=_LOW, imm=CL.imm)
_F_LOW = OperandBits("2:0@2", base=F0 + 8)
_IMM_DOUBLE, _IMM_LDSP, _IMM_SDSP = (
    OperandBits("7:6@5 5:3@10"),
    OperandBits("8:6@2 5@12 4:3@5"),
    OperandBits("8:6@7 5:3@10"),
)
CL_D, CS_D = replace(CL, imm=_IMM_DOUBLE), replace(CS, imm=_IMM_DOUBLE)
CI_LDSP, CSS_D = replace(CI_LWSP, imm=_IMM_LDSP), replace(CSS, imm=_IMM_SDSP)
CF_L = replace(CL, rd=_F_LOW)
CF_S = replace(CS, rs2=_F_LOW)
CF_LSP = replace(CI_LWSP, rd=_FD)
CF_SSP = replace(CSS, rs2=OperandBits("4:0@2", base=F0))
CD_L, CD_S = replace(CF_L, imm=_IMM_DOUBLE), replace(CF_S, imm=_IMM_DOUBLE)
CD_LSP, CD_SSP = replace(CF_LSP, imm=_IMM_LDSP), replace(CF_SSP, imm=_IMM_SDSP)
CA = Format("rd,rs2", _HIGH, _HIGH, _LOW)
CB = Format("rs1,target", rs1=_HIGH, rs2=_ZERO, imm=OperandBits("8@12 7:6@5 5@2 4:3@10 2:1@3", signed=True))
CB_SHIFT = Format("rd,hex", _HIGH, _HIGH, imm=CI_SHIFT.imm)
CB_IMM = Format("rd,imm", _HIGH, _HIGH, imm=_IMM_CI)
CJ = Format("target", _ZERO, imm=OperandBits("11@12 10@8 9:8@9 7@6 6@7 5@2 4@11 3:1@3", signed=True))
CJ_LINK = replace(CJ, rd=_RA)
CR_JUMP = Format("rs1", _ZERO, _FULL_RD, imm=_ZERO)
CR_LINK = replace(CR_JUMP, rd=_RA)
CR_MOVE = Format("rd,rs2", _FULL_RD, _ZERO, _FULL_RS2)
CR_ADD = Format("rd,rs2", _FULL_RD, _FULL_RD, _FULL_RS2)
