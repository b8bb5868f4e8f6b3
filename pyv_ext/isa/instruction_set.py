"""An instruction set: the rows that a hart knows, and what is made from them."""

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from functools import cached_property

from pyv_ext.errors import PyvExtError
from pyv_ext.isa import atomics, bit_manipulation, compressed, formats, integer
from pyv_ext.isa.row import Instruction, Kind, Row
from pyv_ext.protocols import CustomInstruction

EXTENSIONS: dict[str, tuple[Row, ...]] = {
    "i": integer.RV32I,
    "m": integer.M,
    "a": atomics.ROWS,
    "c": compressed.ROWS,
    "u": (),
    "zicsr": integer.ZICSR,
    "zifencei": integer.ZIFENCEI,
    "zba": bit_manipulation.ZBA,
    "zbb": bit_manipulation.ZBB,
    "zbc": bit_manipulation.ZBC,
    "zbs": bit_manipulation.ZBS,
    "zicbom": integer.ZICBOM,
}
"""The rows of each extension; "u" is user mode, which adds none."""

_KEY = {2: 0xE003, 4: 0x707F}
"""Per instruction length, the bits by which rows are grouped: opcode and funct3."""


class Isa:
    """What a hart can decode, built from an ISA string and custom instructions.

    `name` is an ISA string such as "rv32imac_zicsr_zifencei": single letters, then the others after underscores.
    PyvExtError if it names an unknown extension, or if a custom encoding overlaps another.
    """

    def __init__(self, name: str, custom: Sequence[CustomInstruction] = ()) -> None:
        self.name = name
        self.extensions = _extensions(name)
        self.xlen = 32
        self.mask = (1 << self.xlen) - 1
        """The largest value of a register."""
        self.custom = tuple(custom)
        self.rows: tuple[Row, ...] = (
            *integer.PRIVILEGED,
            *(row for extension in self.extensions for row in EXTENSIONS[extension]),
            *_custom_rows(self.custom),
        )
        _refuse_overlap(self.rows)
        self._groups = _grouped(self.rows)

    @property
    def misa(self) -> int:
        """The value of CSR misa: MXL, a bit for each single-letter extension, X for custom instructions."""
        letters = {*(name for name in self.extensions if len(name) == 1), *("x" if self.custom else "")}
        return 1 << self.xlen - 2 | sum(1 << ord(letter) - ord("a") for letter in letters)

    @property
    def alignment(self) -> int:
        """Instructions lie at multiples of this many bytes."""
        return 2 if "c" in self.extensions else 4

    @property
    def user_mode(self) -> bool:
        return "u" in self.extensions

    @cached_property
    def by_name(self) -> dict[str, Row]:
        """The rows by mnemonic."""
        return {row.name: row for row in self.rows}

    def decode(self, word: int) -> Instruction | None:
        """The instruction in the low bits of `word`, or None where the word is illegal."""
        length = 4 if word & 3 == 3 else 2
        word &= (1 << 8 * length) - 1
        for row in self._groups.get((length, word & _KEY[length]), ()):
            if word & row.mask == row.match:
                instruction = _operands(row, word)
                if all(getattr(instruction, name) for name in row.nonzero):
                    return instruction
        return None

    def encode(self, name: str, *, rd: int = 0, rs1: int = 0, rs2: int = 0, imm: int = 0, csr: int = 0) -> int:
        """The word of an instruction; operands that its text does not have are ignored.

        PyvExtError for an unknown mnemonic or an operand that the encoding cannot hold.
        """
        row = self.by_name.get(name)
        if row is None:
            raise PyvExtError(f"unknown instruction {name!r}: {self.name} has {', '.join(sorted(self.by_name))}")
        word = row.match
        values = {"rd": rd, "rs1": rs1, "rs2": rs2, "imm": imm, "csr": csr}
        for field in row.format.written:
            bits, value = getattr(row.format, field), values[field]
            if not bits.fits(value) or (value == 0 and field in row.nonzero):
                raise PyvExtError(f"{name}: {field} cannot be {value}: choose one that the encoding holds")
            word |= bits.insert(value)
        return word

    def disassemble(self, word: int, pc: int, *, numeric: bool = False) -> str:
        """The text of `word` at `pc` as objdump prints it (`-M no-aliases`, with `numeric` `-M no-aliases,numeric`).

        Illegal words become data directives.
        """
        instruction = self.decode(word)
        if instruction is not None:
            from pyv_ext.isa import text

            return text.text(instruction, pc + instruction.imm & self.mask, numeric=numeric)
        return f".4byte\t{word & 0xFFFFFFFF:#x}" if word & 3 == 3 else f".2byte\t{word & 0xFFFF:#x}"


def _extensions(name: str) -> tuple[str, ...]:
    """The extensions that an ISA string names, in its order."""
    found = re.fullmatch(r"rv32(i[a-y]*)((?:_[a-z0-9]+)*)", name.lower())
    known = ", ".join(extension for extension in EXTENSIONS if extension != "i")
    if found is None:
        raise PyvExtError(f"ISA {name!r} must be rv32i, then of {known}: for example rv32imac_zicsr_zifencei")
    extensions = (*found[1], *found[2].split("_")[1:])
    for extension in extensions:
        if extension not in EXTENSIONS:
            raise PyvExtError(f"ISA {name!r}: extension {extension!r} is not among {known}: remove it")
        if extensions.count(extension) > 1:
            raise PyvExtError(f"ISA {name!r}: extension {extension!r} appears more than once: name it once")
    return extensions


def _custom_rows(custom: Iterable[CustomInstruction]) -> list[Row]:
    rows = []
    for item in custom:
        fixed = item.mask & 0xFFFFFFFF
        if item.match & ~fixed or item.mask != fixed or fixed & 0x7F != 0x7F or item.match & 3 != 3:
            raise PyvExtError(
                f"custom instruction {item.name}: match {item.match:#x} under mask {item.mask:#x} must fix all seven "
                "opcode bits of a 32-bit word and no bit outside the mask: correct them"
            )
        syntax = item.syntax.replace(" ", "")
        unknown = [part for part in syntax.split(",") if part not in ("", "rd", "rs1", "rs2", "imm")]
        if unknown:
            raise PyvExtError(
                f"custom instruction {item.name}: operand {unknown[0]!r} is none of rd, rs1, rs2, imm: rewrite syntax"
            )
        bits = "".join(str(item.match >> i & 1) if fixed >> i & 1 else "-" for i in reversed(range(32)))
        rows.append(Row(item.name, formats.custom(syntax), bits, Kind.CUSTOM, "custom", custom=item))
    return rows


def _refuse_overlap(rows: Sequence[Row]) -> None:
    """PyvExtError if a custom row shares a word or a name with any other row.

    Standard rows may share words: the one with more fixed bits wins, as in the manual's encodings.
    """
    for index, row in enumerate(rows):
        if row.kind is not Kind.CUSTOM:
            continue
        for other in rows[:index]:
            common = row.mask & other.mask
            if row.name == other.name or (row.length == other.length and not (row.match ^ other.match) & common):
                raise PyvExtError(
                    f"custom instruction {row.name} ({row.bits}) overlaps {other.name} ({other.bits}): change one"
                )


def _grouped(rows: Iterable[Row]) -> dict[tuple[int, int], list[Row]]:
    """Rows by length and key bits, those with more fixed bits first."""
    groups: defaultdict[tuple[int, int], list[Row]] = defaultdict(list)
    for row in sorted(rows, key=lambda row: -row.mask.bit_count()):
        key = _KEY[row.length]
        free = key & ~row.mask
        subset = free
        while True:
            groups[row.length, row.match & key | subset].append(row)
            if not subset:
                break
            subset = subset - 1 & free
    return dict(groups)


def _operands(row: Row, word: int) -> Instruction:
    format = row.format
    return Instruction(
        row,
        word,
        rd=format.rd.extract(word) if format.rd else 0,
        rs1=format.rs1.extract(word) if format.rs1 else 0,
        rs2=format.rs2.extract(word) if format.rs2 else 0,
        imm=format.imm.extract(word) if format.imm else 0,
        csr=format.csr.extract(word) if format.csr else 0,
    )
