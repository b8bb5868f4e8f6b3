"""Instruction set of a hart: its rows, its decoder, assembler and disassembler."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import cached_property

from pyv_ext.errors import PyvExtError
from pyv_ext.isa import atomics, bit_manipulation, compressed, expressions, floating, formats, integer
from pyv_ext.isa.csr_names import ADDRESSES
from pyv_ext.isa.expression_tree import check
from pyv_ext.isa.row import MAX_EXTRA, Instruction, InstructionDef, OpClass
from pyv_ext.protocols import CustomInstruction, Operands, Value

EXTENSIONS: dict[str, tuple[InstructionDef, ...]] = {
    "i": integer.BASE,
    "m": integer.M,
    "a": atomics.ROWS,
    "f": floating.F,
    "d": floating.D,
    "c": compressed.ROWS,
    "s": integer.SUPERVISOR,
    "u": (),
    "zicsr": integer.ZICSR,
    "zifencei": integer.ZIFENCEI,
    "zba": bit_manipulation.ZBA,
    "zbb": bit_manipulation.ZBB,
    "zbc": bit_manipulation.ZBC,
    "zbs": bit_manipulation.ZBS,
    "zicbom": integer.ZICBOM,
    "sstc": (),
    "zcf": floating.ZCF,
    "zcd": floating.ZCD,
}
"""The rows of each extension; "u" is user mode and "sstc" the timer of supervisor mode, which add none."""

_IMPLIED = (
    ("g", ("m", "a", "f", "d", "zicsr", "zifencei")),
    ("d", ("f",)),
    ("f", ("zicsr",)),
    ("sstc", ("s",)),
    ("s", ("u",)),
)
"""Extensions that an extension implies; later rows also apply to the results of earlier rows."""

_LETTERS = frozenset("abcdefghijklmnopqrstuvwxy")
"""Letters of single-letter extensions; names that begin with z follow an underscore."""

_COMBINED = {"zcf": "cf", "zcd": "cd"}
"""Extensions that two letters imply together, and that require both."""

WIDTHS = {"rv32": 32, "rv64": 64}
"""Bits of an integer register by prefix of an ISA string."""

_NARROW = ("f", "d", *_COMBINED)
"""Extensions that are supported with 32-bit registers only."""

_RESERVED_MODES = (5, 6)
"""Reserved rounding modes; 7 selects the mode in frm."""

_OPCODE = 0x7F

_instruction: Callable[[type[Instruction], tuple[object, ...]], Instruction] = tuple.__new__
"""Constructor from all values, twice as fast as `Instruction._make`."""

KEY = {2: 0xE003, 4: 0x707F}
"""Per instruction length, the bits by which rows are grouped: opcode and funct3."""


class Isa:
    """Instruction set built from an ISA string and custom instructions.

    `name` is an ISA string such as "rv32imac_zicsr_zifencei" or "rv64imac": single letters, then the others after
    underscores; g is imafd_zicsr_zifencei. PyvExtError if it names an unknown extension, or if a custom encoding
    overlaps another.
    """

    def __init__(self, name: str, custom: Sequence[CustomInstruction] = ()) -> None:
        self.name = name
        self.extensions = extensions_of(name)
        self.xlen = xlen_of(name)
        self.mask = (1 << self.xlen) - 1
        """The largest value of a register."""
        self.custom = tuple(custom)
        self.rows: tuple[InstructionDef, ...] = (
            *integer.PRIVILEGED,
            *(row for extension in self.extensions for row in EXTENSIONS[extension] if row.xlen in (0, self.xlen)),
            *_custom_rows(self.custom, self.xlen),
        )
        _refuse_overlap(self.rows)
        self.groups = _group_rows(self.rows)
        """Rows by length and the bits of `KEY`; the first row that matches a word is its instruction."""

    @property
    def misa(self) -> int:
        """Value of CSR misa: MXL, a bit for each single-letter extension, X for custom instructions."""
        letters = {
            *(name for name in self.extensions if len(name) == 1),
            *("x" if any(instruction.present for instruction in self.custom) else ""),
        }
        return self.xlen // 32 << self.xlen - 2 | sum(1 << ord(letter) - ord("a") for letter in letters)

    @property
    def sign(self) -> int:
        """Highest bit of a register: the sign of values, and Interrupt in mcause."""
        return 1 << self.xlen - 1

    @property
    def alignment(self) -> int:
        """Alignment of instructions in bytes."""
        return 2 if "c" in self.extensions else 4

    @property
    def user_mode(self) -> bool:
        return "u" in self.extensions

    @property
    def supervisor_mode(self) -> bool:
        return "s" in self.extensions

    @property
    def floating(self) -> bool:
        """Check for f registers."""
        return "f" in self.extensions

    @property
    def flen(self) -> int:
        """Visible bits of an f register."""
        return 64 if "d" in self.extensions else 32

    @cached_property
    def by_name(self) -> dict[str, InstructionDef]:
        """Rows by mnemonic."""
        return {row.name: row for row in self.rows}

    def decode(self, word: int) -> Instruction | None:
        """Decode the instruction in the low bits of `word`; None: the word is illegal."""
        length = 4 if word & 3 == 3 else 2
        word &= (1 << 8 * length) - 1
        for row in self.groups.get((length, word & KEY[length]), ()):
            if word & row.mask == row.match:
                instruction = _instruction(Instruction, (row, word, *row.format.extract(word)))
                if row.nonzero and not all(getattr(instruction, name) for name in row.nonzero):
                    continue
                if row.op_class is not OpClass.FLOAT or instruction.imm not in _RESERVED_MODES:
                    return instruction
        return None

    def encode(
        self, name: str, *, rd: int = 0, rs1: int = 0, rs2: int = 0, imm: int = 0, csr: int = 0, rs3: int = 0
    ) -> int:
        """Encode an instruction; operands that its text does not have are ignored. f0 is register 64.

        PyvExtError for an unknown mnemonic or an operand that the encoding cannot hold.
        """
        row = self.by_name.get(name)
        if row is None:
            raise PyvExtError(f"unknown instruction {name!r}: {self.name} has {', '.join(sorted(self.by_name))}")
        word = row.match
        values = {"rd": rd, "rs1": rs1, "rs2": rs2, "imm": imm, "csr": csr, "rs3": rs3}
        for field in row.format.written:
            bits, value = getattr(row.format, field), values[field]
            if not bits.fits(value) or (value == 0 and field in row.nonzero):
                raise PyvExtError(f"{name}: {field} cannot be {value}: choose one that the encoding holds")
            word |= bits.insert(value)
        return word

    def disassemble(self, word: int, pc: int, *, numeric: bool = False) -> str:
        """Return the text of `word` at `pc` as objdump prints it (`-M no-aliases`, with `numeric` `-M
        no-aliases,numeric`).

        Illegal words become data directives.
        """
        instruction = self.decode(word)
        if instruction is not None:
            from pyv_ext.isa.text import text  # a run disassembles nothing

            return text(instruction, pc + instruction.imm & self.mask, numeric=numeric)
        return f".4byte\t{word & 0xFFFFFFFF:#x}" if word & 3 == 3 else f".2byte\t{word & 0xFFFF:#x}"

    def meaning(self, word: int) -> str:
        """Explain a word that a hart has found illegal: its assembly text, and the extension that is lacking.

        A word that decodes may be illegal for a CSR that does not exist or that the privilege mode may not access, an
        instruction of a higher mode, or floating point that is off. Empty for a word without a meaning.
        """
        decoded = self.decode(word)
        if decoded is not None:
            # relative to 0: a jump shows its distance
            text = " ".join(self.disassemble(word, 0).split())
            supervisor = (decoded.csr >> 8 & 3 == 1 or decoded.csr in _DELEGATION) and not self.supervisor_mode
            return f"{text}: a CSR of supervisor mode, which this hart lacks" if supervisor else text
        complete_isa = Isa(complete(self.xlen))
        instruction = complete_isa.decode(word)
        if instruction is None:
            return ""
        extension = next(name for name, rows in EXTENSIONS.items() if instruction.row in rows)
        absent = [name for name in _COMBINED.get(extension, (extension,)) if name not in self.extensions]
        return f"{complete_isa.meaning(word)}: extension {' and '.join(absent)}, which {self.name} lacks"


def xlen_of(name: str) -> int:
    """Return the width of registers that an ISA string names, in bits. PyvExtError if it names none."""
    base = name.lower()
    if base[:4] not in WIDTHS:
        raise PyvExtError(f"ISA {name!r} must begin with {' or '.join(WIDTHS)}: for example rv32imac_zicsr_zifencei")
    return WIDTHS[base[:4]]


def complete(xlen: int) -> str:
    """Return the ISA string of all extensions that a hart with registers of a width may have."""
    names = [name for name in EXTENSIONS if xlen == WIDTHS["rv32"] or name not in _NARROW]
    letters = "".join(name for name in names if len(name) == 1)
    return "_".join((f"rv{xlen}{letters}", *(name for name in names if len(name) > 1)))


def extensions_of(name: str) -> tuple[str, ...]:
    """Return the extensions that an ISA string names, in its order. PyvExtError as for `Isa`."""
    xlen = xlen_of(name)
    base, *words = name.lower().split("_")
    letters = base[4:]
    names = ", ".join(extension for extension in EXTENSIONS if extension != "i")
    if letters[:1] not in ("i", "g") or not set(letters) <= _LETTERS:
        raise PyvExtError(f"ISA {name!r} must be rv{xlen}i or rv{xlen}g, then of {names}: for example rv{xlen}imac")
    named = [*letters.replace("g", "ig", 1), *words]
    for extension in named:
        if extension not in EXTENSIONS and extension != "g":
            raise PyvExtError(f"ISA {name!r}: extension {extension!r} is not among {names}: remove it")
        if named.count(extension) > 1:
            raise PyvExtError(f"ISA {name!r}: extension {extension!r} appears more than once: name it once")
    extensions = dict.fromkeys(named)
    for letter, implied in _IMPLIED:
        if letter in extensions:
            extensions |= dict.fromkeys(implied)
    wide = [extension for extension in extensions if extension in _NARROW and xlen > WIDTHS["rv32"]]
    if wide:
        raise PyvExtError(f"ISA {name!r}: extension {wide[0]!r} goes with rv32 only: remove it, or write rv32")
    for extension, letters in _COMBINED.items():
        if all(letter in extensions for letter in letters):
            extensions[extension] = None
        elif extension in extensions:
            raise PyvExtError(f"ISA {name!r}: extension {extension!r} needs {' and '.join(letters)}: add them")
    return tuple(extension for extension in extensions if extension != "g")


_DELEGATION = ADDRESSES["medeleg"], ADDRESSES["mideleg"]
"""CSRs of machine mode that exist with supervisor mode only."""


def _custom_rows(custom: Iterable[CustomInstruction], xlen: int) -> list[InstructionDef]:
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
        format = formats.custom(syntax)
        if item.cycles and not item.expr:
            raise PyvExtError(
                f"custom instruction {item.name}: cycles goes with expr; a handler returns Value(value, cycles)"
            )
        if item.expr:
            row = InstructionDef(item.name, format, bits, OpClass.OP, "custom", item.expr)
            rows.append(_native_row(item, row, xlen))
        elif item.handler is None:
            raise PyvExtError(f"custom instruction {item.name}: has neither a handler nor an expr: give one")
        else:
            rows.append(InstructionDef(item.name, format, bits, OpClass.CUSTOM, "custom", custom=item))
    return rows


def _native_row(item: CustomInstruction, row: InstructionDef, xlen: int) -> InstructionDef:
    """Return the row of an expression instruction; engines that execute no expressions call its handler."""
    if item.handler is not None or item.ready is not None or item.device is not None:
        raise PyvExtError(f"custom instruction {item.name}: an expr has no handler, ready or device: drop one of them")
    format = row.format
    fields = {"a": format.rs1, "b": format.rs2 or format.imm, "pc": True}
    if format.rd is None:
        raise PyvExtError(f"custom instruction {item.name}: an expr is the value of rd: add rd to its syntax")
    names = [name for name, field in fields.items() if field]
    for field, text in (("expr", item.expr), ("cycles", str(item.cycles))):
        try:
            low, high = check(text, xlen, names)
            if field == "cycles" and not 0 <= low <= high <= MAX_EXTRA:
                raise ValueError(f"may be {low if low < 0 else high}: must be 0..{MAX_EXTRA}, by & or >> for example")
        except ValueError as error:
            raise PyvExtError(f"custom instruction {item.name}: {field} {text!r}: {error}") from None
    expr = f"({item.expr}) & M"
    value, cycles = expressions.evaluator(expr, xlen), expressions.evaluator(str(item.cycles), xlen)
    rs2, mask = format.rs2, (1 << xlen) - 1

    def handler(operands: Operands) -> Value:
        imm = format.imm.extract(operands.word) & mask if format.imm else 0
        inputs = operands.rs1, operands.rs2 if rs2 else imm, operands.pc, 0
        return Value(value(*inputs), cycles(*inputs))

    return replace(row, expr=expr, custom=item._replace(handler=handler, touches="nothing"))


def _refuse_overlap(rows: Sequence[InstructionDef]) -> None:
    """Raise PyvExtError if a custom row shares a word or a name with any other row.

    Standard rows may share words: the row with more fixed bits wins, as in the manual's encodings.
    """
    named: dict[str, InstructionDef] = {}
    by_opcode: dict[int, list[InstructionDef]] = {}
    for row in rows:
        alike = by_opcode.setdefault(row.match & _OPCODE, [])  # each row of 32 bits fixes all of it
        if row.custom is not None:
            words = (alike_row for alike_row in alike if not (row.match ^ alike_row.match) & row.mask & alike_row.mask)
            clash = named.get(row.name) or next(words, None)
            if clash is not None:
                raise PyvExtError(
                    f"custom instruction {row.name} ({row.bits}) overlaps {clash.name} ({clash.bits}): change one"
                )
        named[row.name] = row
        alike.append(row)


def _group_rows(rows: Iterable[InstructionDef]) -> dict[tuple[int, int], list[InstructionDef]]:
    """Group rows by length and key bits, those with more fixed bits first."""
    groups: defaultdict[tuple[int, int], list[InstructionDef]] = defaultdict(list)
    for row in sorted(rows, key=lambda row: -row.mask.bit_count()):
        key = KEY[row.length]
        free = key & ~row.mask
        subset = free
        while True:
            groups[row.length, row.match & key | subset].append(row)
            if not subset:
                break
            subset = subset - 1 & free
    return dict(groups)
