"""F and D: single- and double-precision floating point (RISC-V unprivileged manual, version 2.2 of both).

Zcf and Zcd are their compressed loads and stores.

f registers hold 64 bits, whether the hart has D or not. A single is boxed: its upper bits are ones; an operand that is
not boxed counts as the canonical NaN.
"""

from collections.abc import Callable

from pyv_ext.isa import formats, softfloat
from pyv_ext.isa.formats import BOX, Format
from pyv_ext.isa.row import Compute, InstructionDef, OpClass, alias
from pyv_ext.isa.softfloat import DOUBLE, SINGLE, Result

_WORD = (1 << 32) - 1
_SIGNED, _UNSIGNED = (-(1 << 31), (1 << 31) - 1), (0, _WORD)


def single(register: int) -> int:
    """Return the single in an f register."""
    return register & _WORD if register >= BOX else SINGLE.nan


class _Type:
    """Floating-point format with the operations of its instructions."""

    def __init__(self, letter: str, form: softfloat.FloatFormat, bits: str) -> None:
        self.letter = letter
        self.form = form
        self.bits = bits
        """Field fmt of the encoding."""
        self._boxed = form is SINGLE

    def read(self, register: int) -> int:
        return single(register) if self._boxed else register

    def write(self, encoding: int) -> int:
        return encoding | BOX if self._boxed else encoding

    def arithmetic(self, function: Callable[..., Result], operands: int) -> Compute:
        """Return an operation with a rounding mode and `operands` operands."""
        form, read, write = self.form, self.read, self.write

        def compute(a: int, b: int, c: int, mode: int) -> Result:
            value, flags = function(form, *(read(register) for register in (a, b, c)[:operands]), mode)
            return write(value), flags

        return compute

    def fused(self, product: int, addend: int) -> Compute:
        """Return rs1 · rs2 + rs3; `product` and `addend` are 1 where that term is negated."""
        form, read, write = self.form, self.read, self.write

        def compute(a: int, b: int, c: int, mode: int) -> Result:
            multiplicand, multiplier, addend_bits = read(a), read(b), read(c)
            multiplicand ^= form.sign if product else 0  # a NaN stays quiet or signaling
            addend_bits ^= form.sign if addend else 0
            value, flags = softfloat.fma(form, multiplicand, multiplier, addend_bits, mode)
            return write(value), flags

        return compute

    def selection(self, function: Callable[..., Result]) -> Compute:
        """Return a minimum or maximum operation."""
        form, read, write = self.form, self.read, self.write

        def compute(a: int, b: int, c: int, mode: int) -> Result:
            value, flags = function(form, read(a), read(b))
            return write(value), flags

        return compute

    def comparison(self, function: Callable[..., Result]) -> Compute:
        form, read = self.form, self.read
        return lambda a, b, c, mode: function(form, read(a), read(b))

    def sign(self, of: Callable[[int, int], int]) -> Compute:
        """Return a sign injection: a with a sign computed from the signs of a and b."""
        form, read, write = self.form, self.read, self.write

        def compute(a: int, b: int, c: int, mode: int) -> Result:
            magnitude = read(a)
            return write(magnitude & ~form.sign | of(magnitude, read(b)) & form.sign), 0

        return compute

    def to_integer(self, bounds: tuple[int, int]) -> Compute:
        form, read = self.form, self.read

        def compute(a: int, b: int, c: int, mode: int) -> Result:
            value, flags = softfloat.to_integer(form, read(a), mode, *bounds)
            return value & _WORD, flags

        return compute

    def from_integer(self, signed: bool) -> Compute:
        form, write = self.form, self.write
        sign = 1 << 31 if signed else 0

        def compute(a: int, b: int, c: int, mode: int) -> Result:
            value, flags = softfloat.from_integer(form, (a ^ sign) - sign, mode)
            return write(value), flags

        return compute

    def rows(self) -> tuple[InstructionDef, ...]:
        """Return the rows that both formats have."""
        return (*self._arithmetic_rows(), *self._fused(), *self._unrounded(), *self._conversion_rows())

    def _arithmetic_rows(self) -> list[InstructionDef]:
        rows = [
            _row(f"{name}.{self.letter}", formats.F_R, f"{funct5} {self.bits} ----- ----- --- ----- 1010011", timing,
                 self.arithmetic(function, 2))
            for name, funct5, timing, function in (
                ("fadd", "00000", "fp_add", softfloat.add),
                ("fsub", "00001", "fp_add", softfloat.sub),
                ("fmul", "00010", "fp_mul", softfloat.mul),
                ("fdiv", "00011", "fp_div", softfloat.div),
            )
        ]  # fmt: skip
        bits = f"01011 {self.bits} 00000 ----- --- ----- 1010011"
        return [*rows, _row(f"fsqrt.{self.letter}", formats.F_UNARY, bits, "fp_div",
                             self.arithmetic(softfloat.sqrt, 1))]  # fmt: skip

    def _fused(self) -> list[InstructionDef]:
        return [
            _row(f"{name}.{self.letter}", formats.F_R4, f"----- {self.bits} ----- ----- --- ----- 100{bits}11",
                 "fp_fma", self.fused(product, addend))
            for name, bits, product, addend in (
                ("fmadd", "00", 0, 0),
                ("fmsub", "01", 0, 1),
                ("fnmsub", "10", 1, 0),
                ("fnmadd", "11", 1, 1),
            )
        ]  # fmt: skip

    def _unrounded(self) -> list[InstructionDef]:
        """Return the rows without a rounding mode."""
        form, read = self.form, self.read
        table: tuple[tuple[str, Format, str, str, str, Compute], ...] = (
            ("fsgnj", formats.F_R_PLAIN, "00100", "000", "fp_move", self.sign(lambda a, b: b)),
            ("fsgnjn", formats.F_R_PLAIN, "00100", "001", "fp_move", self.sign(lambda a, b: ~b)),
            ("fsgnjx", formats.F_R_PLAIN, "00100", "010", "fp_move", self.sign(lambda a, b: a ^ b)),
            ("fmin", formats.F_R_PLAIN, "00101", "000", "fp_add", self.selection(softfloat.minimum)),
            ("fmax", formats.F_R_PLAIN, "00101", "001", "fp_add", self.selection(softfloat.maximum)),
            ("feq", formats.F_COMPARE, "10100", "010", "fp_add", self.comparison(softfloat.equal)),
            ("flt", formats.F_COMPARE, "10100", "001", "fp_add", self.comparison(softfloat.less)),
            ("fle", formats.F_COMPARE, "10100", "000", "fp_add", self.comparison(softfloat.less_equal)),
        )
        rows = [
            _row(f"{name}.{self.letter}", format, f"{funct5} {self.bits} ----- ----- {funct3} ----- 1010011", timing,
                 compute)
            for name, format, funct5, funct3, timing, compute in table
        ]  # fmt: skip
        bits = f"11100 {self.bits} 00000 ----- 001 ----- 1010011"
        compute: Compute = lambda a, b, c, mode: (softfloat.classify(form, read(a)), 0)  # noqa: E731
        return [*rows, _row(f"fclass.{self.letter}", formats.F_MOVE_TO_X, bits, "fp_move", compute)]

    def _conversion_rows(self) -> list[InstructionDef]:
        exact = self.form is DOUBLE  # every integer is a double
        from_x = formats.F_FROM_X_EXACT if exact else formats.F_FROM_X
        table = (
            (f"fcvt.w.{self.letter}", formats.F_TO_X, "11000", "00000", self.to_integer(_SIGNED)),
            (f"fcvt.wu.{self.letter}", formats.F_TO_X, "11000", "00001", self.to_integer(_UNSIGNED)),
            (f"fcvt.{self.letter}.w", from_x, "11010", "00000", self.from_integer(True)),
            (f"fcvt.{self.letter}.wu", from_x, "11010", "00001", self.from_integer(False)),
        )
        return [
            _row(name, format, f"{funct5} {self.bits} {rs2} ----- --- ----- 1010011", "fp_convert", compute)
            for name, format, funct5, rs2, compute in table
        ]


def _row(name: str, format: Format, bits: str, timing: str, compute: Compute) -> InstructionDef:
    return InstructionDef(name, format, bits, OpClass.FLOAT, timing, floating=True, compute=compute)


def _memory(letter: str, funct3: str, size: int) -> tuple[InstructionDef, InstructionDef]:
    load = f"------------ ----- {funct3} ----- 0000111"
    store = f"------- ----- ----- {funct3} ----- 0100111"
    return (
        InstructionDef(f"fl{letter}", formats.F_LOAD, load, OpClass.LOAD, "load", size=size, floating=True),
        InstructionDef(f"fs{letter}", formats.F_STORE, store, OpClass.STORE, "store", size=size, floating=True),
    )


_S, _D = _Type("s", SINGLE, "00"), _Type("d", DOUBLE, "01")


def _narrow(a: int, b: int, c: int, mode: int) -> Result:
    value, flags = softfloat.convert(DOUBLE, a, SINGLE, mode)
    return value | BOX, flags


F = (
    *_memory("w", "010", 4),
    *_S.rows(),
    _row("fmv.x.w", formats.F_MOVE_TO_X, "11100 00 00000 ----- 000 ----- 1010011", "fp_move",
         lambda a, b, c, mode: (a & _WORD, 0)),
    _row("fmv.w.x", formats.F_MOVE_FROM_X, "11110 00 00000 ----- 000 ----- 1010011", "fp_move",
         lambda a, b, c, mode: (a | BOX, 0)),
)  # fmt: skip

D = (
    *_memory("d", "011", 8),
    *_D.rows(),
    _row("fcvt.s.d", formats.F_UNARY, "01000 00 00001 ----- --- ----- 1010011", "fp_convert", _narrow),
    _row("fcvt.d.s", formats.F_EXACT, "01000 01 00000 ----- --- ----- 1010011", "fp_convert",
         lambda a, b, c, mode: softfloat.convert(SINGLE, single(a), DOUBLE, mode)),
)  # fmt: skip

_FLW, _FSW, _FLD, _FSD = *F[:2], *D[:2]

ZCF = (
    alias("c.flw", _FLW, formats.CF_L, "011 --- --- -- --- 00"),
    alias("c.fsw", _FSW, formats.CF_S, "111 --- --- -- --- 00"),
    alias("c.flwsp", _FLW, formats.CF_LSP, "011 - ----- ----- 10"),
    alias("c.fswsp", _FSW, formats.CF_SSP, "111 ------ ----- 10"),
)

ZCD = (
    alias("c.fld", _FLD, formats.CD_L, "001 --- --- -- --- 00"),
    alias("c.fsd", _FSD, formats.CD_S, "101 --- --- -- --- 00"),
    alias("c.fldsp", _FLD, formats.CD_LSP, "001 - ----- ----- 10"),
    alias("c.fsdsp", _FSD, formats.CD_SSP, "101 ------ ----- 10"),
)
