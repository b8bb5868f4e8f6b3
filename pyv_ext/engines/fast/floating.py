"""F and D in LLVM IR, by the arithmetic of the host, which is that of IEEE 754, too.

Native code executes an operation only if it changes nothing but rd; any other takes the slow path, which is the
definition (`pyv_ext.isa.softfloat`). So mstatus.FS must be Dirty already, and the rounding mode to nearest even (or
towards zero, to an integer). A result that may raise an exception other than NX takes the slow path: infinite, NaN, or
below the normal numbers and inexact. NX is sticky: if it is clear, an operation must be proven exact, by its rounding
error, which is a floating-point number, too (Knuth's TwoSum; Boldo and Daumas 2003, "Representable correcting terms for
possibly underflowing floating point operations").

The interpreter executes operations of the slow path by `float_functions`, if available. Their rounding mode and
exceptions are those of MXCSR, whose masked responses are those of IEEE 754 with tininess after rounding, as in RISC-V;
NaN becomes the canonical NaN. The mode RMM, which x86-64 lacks, is executed in Python.
"""

import struct
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from pyv_ext.engines.floating import DYNAMIC
from pyv_ext.isa import Instruction, InstructionDef, OpClass
from pyv_ext.isa.formats import BOX
from pyv_ext.isa.softfloat import DOUBLE, RNE, RTZ, RUP, SINGLE, FloatFormat
from pyv_ext.machine.slots import FFLAGS, FRM, FS
from pyv_ext.machine.state import DIRTY
from pyv_native.host import x86_64_linux
from pyv_native.ir import Ir, Target

_BOX = BOX - (1 << 64)
"""`BOX` as a signed integer, as in LLVM."""
_MAGIC = 3 << 51
"""Addend that rounds a double of a smaller magnitude to an integer: the sum has no bits for a fraction."""
_TINY = 110
"""Minimum exponent field of a product of two doubles that has no bits below the subnormal numbers."""

_INEXACT, _UNDERFLOW, _INVALID = 1, 2, 16
"""NX, UF and NV in fflags."""

FUSED = ("fmadd", "fmsub", "fnmsub", "fnmadd")
ROUNDING = ("fadd", "fsub", "fmul", "fdiv", "fsqrt", *FUSED)
COMPARISONS = {"feq": "oeq", "flt": "olt", "fle": "ole"}
"""Conditions of LLVM by comparison."""
_EXACT = ("fcvt.d.w", "fcvt.d.wu", "fcvt.d.s")


class FloatOperation(NamedTuple):
    """Floating-point operation of an instruction, without its registers."""

    row: InstructionDef
    towards_zero: bool = False
    strict: bool = False
    """Whether only `float_functions` has it: a static rounding mode other than to nearest even."""

    @property
    def base(self) -> str:
        """Name without types."""
        return self.row.name.partition(".")[0]

    @property
    def rounds(self) -> bool:
        """Check whether it depends on the rounding mode in frm."""
        return self.row.kind is OpClass.FLOAT and self.row.format.imm is not None and not self.towards_zero

    @property
    def inexact(self) -> bool:
        """Check whether it may raise NX."""
        return self.row.format.imm is not None and self.row.kind is OpClass.FLOAT and self.row.name not in _EXACT


def operations(rows: Iterable[InstructionDef], *, fused: bool) -> tuple[FloatOperation, ...]:
    """Return the operations of an instruction set that have a native form; `fused`: the host has a fused
    multiply-add."""
    result = []
    for row in rows:
        if row.floating and host_agrees():
            operation = FloatOperation(row)
            if fused or operation.base not in FUSED:
                result.append(operation)
            if _to_integer(row):
                result.append(FloatOperation(row, towards_zero=True))
            if row.format.imm is not None and row.kind is OpClass.FLOAT and has_strict(row, fused=fused):
                result.append(FloatOperation(row, strict=True))
    return tuple(result)


def operation_of(instruction: Instruction) -> FloatOperation | None:
    """Return the operation of an instruction; None for RMM and reserved rounding modes."""
    row, mode = instruction.row, instruction.imm
    if row.kind is not OpClass.FLOAT or row.format.imm is None or mode in (RNE, DYNAMIC):
        return FloatOperation(row)
    if mode == RTZ and _to_integer(row):
        return FloatOperation(row, towards_zero=True)
    return FloatOperation(row, strict=True) if mode <= RUP else None


def host_agrees() -> bool:
    """Check that this process computes by IEEE 754: a library may have changed rounding, or flush subnormal numbers."""
    ulp, smallest = 2.0**-52, 5e-324
    return 1 + ulp / 2 == 1 and 1 + ulp + ulp / 2 == 1 + 2 * ulp and smallest + smallest == 2 * smallest != 0


def has_strict(row: InstructionDef, *, fused: bool) -> bool:
    """Check whether `float_functions` has a function of the row on this host."""
    base = row.name.partition(".")[0]
    supported = base in ROUNDING or base in (*COMPARISONS, "fmin", "fmax", "fcvt")
    return x86_64_linux() and row.kind is OpClass.FLOAT and supported and (fused or base not in FUSED)


def _to_integer(row: InstructionDef) -> bool:
    return row.name.startswith(("fcvt.w.", "fcvt.wu."))


def declarations() -> str:
    """Return declarations of the intrinsics that the operations use."""
    return "".join(
        f"declare {kind} @llvm.sqrt.{name}({kind})\ndeclare {kind} @llvm.fma.{name}({kind}, {kind}, {kind})\n"
        for kind, name in (("float", "f32"), ("double", "f64"))
    )


def ready(ir: Ir, x: str, *, rounds: bool, inexact: bool = False) -> str:
    """Emit an i1: FS is Dirty and, if `rounds`, the mode is to nearest even, and, if `inexact`, NX is set. `x`: the
    registers."""
    condition = ir.value(f"icmp eq i64 {ir.load('i64', x, 8 * FS)}, {DIRTY}")
    if rounds:
        nearest = ir.value(f"icmp eq i64 {ir.load('i64', x, 8 * FRM)}, {RNE}")
        condition = ir.value(f"and i1 {condition}, {nearest}")
    return ir.value(f"and i1 {condition}, {sticky(ir, x)}") if inexact else condition


def accrued(ir: Ir, x: str) -> str:
    """Emit the load of fflags, as an i64."""
    return ir.load("i64", x, 8 * FFLAGS)


def sticky(ir: Ir, x: str) -> str:
    """Emit an i1: NX is set."""
    return ir.value(f"trunc i64 {accrued(ir, x)} to i1")  # NX is bit 0


def boxed(ir: Ir, word: str) -> str:
    """Emit the f register (an i64) that holds a single (an i32)."""
    return ir.value(f"or i64 {ir.value(f'zext i32 {word} to i64')}, {_BOX}")


class NumberType(NamedTuple):
    """Floating-point format with its names in LLVM."""

    form: FloatFormat
    name: str
    short: str
    bits: str
    """Integer type of its size."""


S, D = NumberType(SINGLE, "float", "f32", "i32"), NumberType(DOUBLE, "double", "f64", "i64")
TYPES = {"s": S, "d": D}


class Floating:
    """Generator of operations in straight-line code: each register value is unpacked once."""

    def __init__(self, ir: Ir, flags: Callable[[], str], *, fused: bool, sticky: str | None = None) -> None:
        """`flags`: emits the load of fflags, as an i64. `sticky`: an i1, whether NX is set; None: it is set."""
        self._ir = ir
        self._flags = flags
        self._fused = fused
        self._sticky = sticky
        self._numbers: dict[tuple[str, NumberType], str] = {}
        """Numbers by register value and type."""
        self._leave: Target = ("", ())

    def value(self, operation: FloatOperation, operands: Sequence[str], leave: Target) -> str:
        """Emit the value of rd: an i64 for an f register, else an i32, as for the operands rs1, rs2 and rs3.

        Branches to `leave` if the slow path must execute the instruction.
        """
        self._leave = leave
        name, base = operation.row.name, operation.base
        parts = name.split(".")
        if base == "fmv":
            return self._move(name, operands[0])
        if base == "fcvt":
            return self._convert(parts[1], parts[2], operands[0], towards_zero=operation.towards_zero)
        kind = TYPES[parts[1]]
        count = 3 if base in FUSED else 1 if base in ("fsqrt", "fclass") else 2
        numbers = [self._read(operand, kind) for operand in operands[:count]]
        if base in ROUNDING:
            return self._write(self._arithmetic(base, kind, numbers), kind)
        if base == "fclass":
            return self._class(kind, numbers[0])
        if base in ("feq", "flt", "fle"):
            return self._comparison(base, kind, *numbers)
        return self._selection(base, kind, *numbers)

    # -- registers ---------------------------------------------------------------------------------------------

    def _read(self, register: str, kind: NumberType) -> str:
        """Emit the number in an f register; a single that is not boxed takes the slow path."""
        ir, number = self._ir, self._numbers.get((register, kind))
        if number is None:
            bits = register
            if kind is S:
                upper = ir.value(f"icmp uge i64 {register}, {_BOX}")
                ir.unless(upper, self._leave)
                bits = ir.value(f"trunc i64 {register} to i32")
            number = self._numbers[register, kind] = ir.value(f"bitcast {kind.bits} {bits} to {kind.name}")
        return number

    def _write(self, number: str, kind: NumberType) -> str:
        bits = self._bits(kind, number)
        register = boxed(self._ir, bits) if kind is S else bits
        self._numbers[register, kind] = number
        return register

    def _bits(self, kind: NumberType, number: str) -> str:
        return self._ir.value(f"bitcast {kind.name} {number} to {kind.bits}")

    def _from_bits(self, kind: NumberType, bits: str) -> str:
        return self._write(self._ir.value(f"bitcast {kind.bits} {bits} to {kind.name}"), kind)

    # -- guards of an operation --------------------------------------------------------------------------------

    def _compare(self, condition: str, kind: NumberType, a: str, b: str = "0.0") -> str:
        return self._ir.value(f"fcmp {condition} {kind.name} {a}, {b}")

    def _combine(self, left: str, right: str, operator: str = "and") -> str:
        return self._ir.value(f"{operator} i1 {left}, {right}")

    def _has_exponent(self, kind: NumberType, number: str, minimum: int = 0) -> str:
        """Emit whether a number is finite and its exponent field at least `minimum`."""
        ir, shift = self._ir, kind.form.fraction + 1
        magnitude = ir.value(f"shl {kind.bits} {self._bits(kind, number)}, 1")
        if minimum:
            magnitude = ir.value(f"sub {kind.bits} {magnitude}, {minimum << shift}")
        return ir.value(f"icmp ult {kind.bits} {magnitude}, {-(minimum + 1) << shift}")

    def _guard_result(
        self, kind: NumberType, result: str, min_exponent: int, tiny: Callable[[], str] | None, exact: Callable[[], str]
    ) -> None:
        """Emit guards: leave unless the exponent field is at least `min_exponent`, and the result exact or NX set. With
        `tiny`, a result with a smaller field may also be `tiny`, or finite while UF and NX are set."""
        ir, accepted, rounded, special = self._ir, self._ir.new_label(), self._ir.new_label(), self._ir.new_label()
        normal = self._has_exponent(kind, result, min_exponent)
        if tiny is None:
            ir.unless(normal, self._leave)
        else:
            ir.branch(normal, (rounded, ()), (special, ()))
            ir.block(special)
            accrued = ir.value(f"and i64 {self._flags()}, {_UNDERFLOW | _INEXACT}")
            both = ir.value(f"icmp eq i64 {accrued}, {_UNDERFLOW | _INEXACT}")
            ir.branch(
                self._combine(tiny(), self._combine(both, self._has_exponent(kind, result)), "or"),
                (accepted, ()),
                self._leave,
            )
            ir.block(rounded)
        if self._sticky is not None:
            check = ir.new_label()
            ir.branch(self._sticky, (accepted, ()), (check, ()))
            ir.block(check)
            ir.unless(exact(), self._leave)
        ir.goto(accepted)
        ir.block(accepted)

    def _is_exact_sum(self, kind: NumberType, a: str, b: str, total: str) -> str:
        """Emit whether `total`, which is a + b rounded, equals a + b: TwoSum."""
        ir, name = self._ir, kind.name
        virtual_b = ir.value(f"fsub {name} {total}, {a}")
        left = ir.value(f"fsub {name} {a}, {ir.value(f'fsub {name} {total}, {virtual_b}')}")
        right = ir.value(f"fsub {name} {b}, {virtual_b}")
        return self._compare("oeq", kind, ir.value(f"fadd {name} {left}, {right}"))

    def _is_product(self, kind: NumberType, a: str, b: str, product: str, guard: str) -> str:
        """Emit whether `product` equals a . b. The double `guard` has about the same magnitude."""
        ir = self._ir
        if kind is S:
            a, b, product = map(self._widen, (a, b, product))
            return self._compare("oeq", D, ir.value(f"fmul double {a}, {b}"), product)
        if not self._fused:
            return "false"
        rest = self._fma(D, a, b, ir.value(f"fneg double {product}"))
        return self._combine(self._compare("oeq", D, rest), self._has_exponent(D, guard, _TINY))

    def _is_fused(self, kind: NumberType, a: str, b: str, c: str, result: str) -> str:
        """Emit whether `result` provably equals a . b + c; with an inexact product it does not."""
        ir = self._ir
        if kind is S:
            a, b, c, result = map(self._widen, (a, b, c, result))
            product = ir.value(f"fmul double {a}, {b}")
            total = ir.value(f"fadd double {product}, {c}")
            return self._combine(self._is_exact_sum(D, product, c, total), self._compare("oeq", D, total, result))
        product = ir.value(f"fmul double {a}, {b}")
        exact = self._is_product(D, a, b, product, product)
        return self._combine(exact, self._is_exact_sum(D, product, c, result))

    def _widen(self, single: str) -> str:
        return self._ir.value(f"fpext float {single} to double")

    def _fma(self, kind: NumberType, a: str, b: str, c: str) -> str:
        name = kind.name
        return self._ir.value(f"call {name} @llvm.fma.{kind.short}({name} {a}, {name} {b}, {name} {c})")

    # -- arithmetic --------------------------------------------------------------------------------------------

    def _arithmetic(self, base: str, kind: NumberType, numbers: Sequence[str]) -> str:
        ir, name = self._ir, kind.name
        if base in FUSED:
            return self._multiply_add(base, kind, *numbers)
        if base == "fsqrt":
            (a,) = numbers
            result = ir.value(f"call {name} @llvm.sqrt.{kind.short}({name} {a})")
            self._guard_result(kind, result, 2, lambda: self._compare("oeq", kind, a),
                        lambda: self._is_product(kind, result, result, a, a))  # fmt: skip
            return result
        a, b = numbers
        result = ir.value(f"{base} {name} {a}, {b}")
        if base in ("fadd", "fsub"):
            added = ir.value(f"fneg {name} {b}") if base == "fsub" and self._sticky is not None else b
            self._guard_result(kind, result, 0, None, lambda: self._is_exact_sum(kind, a, added, result))
        elif base == "fmul":
            self._guard_result(kind, result, 2, lambda: self._tiny_product(kind, a, b, result),
                        lambda: self._is_product(kind, a, b, result, result))  # fmt: skip
        else:
            self._guard_result(kind, result, 2,
                        lambda: self._combine(self._compare("oeq", kind, a), self._compare("oeq", kind, result)),
                        lambda: self._is_product(kind, result, b, a, a))  # fmt: skip
        return result

    def _tiny_product(self, kind: NumberType, a: str, b: str, result: str) -> str:
        """Emit whether a result below the normal numbers equals a . b; for doubles only if it is zero."""
        if kind is S:
            return self._is_product(kind, a, b, result, result)
        return self._zero_product(kind, a, b, result)

    def _zero_product(self, kind: NumberType, a: str, b: str, result: str) -> str:
        """Emit whether a or b is zero and the result finite."""
        zero = self._combine(self._compare("oeq", kind, a), self._compare("oeq", kind, b), "or")
        return self._combine(zero, self._has_exponent(kind, result))

    def _multiply_add(self, base: str, kind: NumberType, a: str, b: str, c: str) -> str:
        ir, name = self._ir, kind.name
        if base in ("fnmsub", "fnmadd"):
            a = ir.value(f"fneg {name} {a}")
        if base in ("fmsub", "fnmadd"):
            c = ir.value(f"fneg {name} {c}")
        result = self._fma(kind, a, b, c)

        def zero() -> str:
            cancelled = self._combine(self._compare("oeq", kind, result), self._is_fused(kind, a, b, c, result))
            return self._combine(self._zero_product(kind, a, b, result), cancelled, "or")

        self._guard_result(kind, result, 2, zero, lambda: self._combine(
            self._is_fused(kind, a, b, c, result), self._zero_product(kind, a, b, result), "or"))  # fmt: skip
        return result

    # -- comparison, selection, conversion ---------------------------------------------------------------------

    def _comparison(self, base: str, kind: NumberType, a: str, b: str) -> str:
        self._ir.unless(self._compare("ord", kind, a, b), self._leave)
        condition = self._compare(COMPARISONS[base], kind, a, b)
        return self._ir.value(f"zext i1 {condition} to i32")

    def _selection(self, base: str, kind: NumberType, a: str, b: str) -> str:
        """Emit minimum, maximum or sign injection, which select bits of their operands."""
        ir, bits, sign = self._ir, kind.bits, -kind.form.sign
        a_bits, b_bits = self._bits(kind, a), self._bits(kind, b)
        if base in ("fmin", "fmax"):
            ir.unless(self._compare("ord", kind, a, b), self._leave)
            low, high = (a_bits, b_bits) if base == "fmin" else (b_bits, a_bits)
            below = self._compare("olt", kind, a, b)
            selected = ir.value(f"select i1 {below}, {bits} {low}, {bits} {high}")
            zeros = ir.value(f"{'or' if base == 'fmin' else 'and'} {bits} {a_bits}, {b_bits}")  # equal but for the sign
            equal = self._compare("oeq", kind, a, b)
            return self._from_bits(kind, ir.value(f"select i1 {equal}, {bits} {zeros}, {bits} {selected}"))
        if base == "fsgnjn":
            b_bits = ir.value(f"xor {bits} {b_bits}, {sign}")
        signed = ir.value(f"and {bits} {b_bits}, {sign}")
        base_bits = a_bits if base == "fsgnjx" else ir.value(f"and {bits} {a_bits}, {kind.form.sign - 1}")
        return self._from_bits(kind, ir.value(f"{'xor' if base == 'fsgnjx' else 'or'} {bits} {base_bits}, {signed}"))

    def _class(self, kind: NumberType, number: str) -> str:
        """Emit `softfloat.classify`."""
        ir, form = self._ir, kind.form
        bits = self._bits(kind, number)
        magnitude = ir.value(f"and {kind.bits} {bits}, {form.sign - 1}")
        rank = "0"
        for bound in (form.infinity, 1 << form.fraction, 1):
            below = ir.value(f"icmp ult {kind.bits} {magnitude}, {bound}")
            rank = ir.value(f"add i32 {rank}, {ir.value(f'zext i1 {below} to i32')}")
        negative = ir.value(f"icmp slt {kind.bits} {bits}, 0")
        rank = ir.value(f"xor i32 {rank}, {ir.value(f'select i1 {negative}, i32 0, i32 7')}")
        quiet = ir.value(f"icmp uge {kind.bits} {magnitude}, {form.nan}")
        nan = ir.value(f"icmp ugt {kind.bits} {magnitude}, {form.infinity}")
        nan_rank = ir.value(f"select i1 {quiet}, i32 9, i32 8")
        return ir.value(f"shl i32 1, {ir.value(f'select i1 {nan}, i32 {nan_rank}, i32 {rank}')}")

    def _move(self, name: str, register: str) -> str:
        if name == "fmv.x.w":
            return self._ir.value(f"trunc i64 {register} to i32")
        return boxed(self._ir, register)

    def _convert(self, to: str, source: str, operand: str, *, towards_zero: bool) -> str:
        ir = self._ir
        if to in ("w", "wu"):
            number = self._read(operand, TYPES[source])
            wide = self._widen(number) if source == "s" else number
            return self._integer(wide, (-1 << 31, 1 << 31) if to == "w" else (0, 1 << 32), towards_zero)
        kind = TYPES[to]
        if source in ("w", "wu"):
            exact = ir.value(f"{'sitofp' if source == 'w' else 'uitofp'} i32 {operand} to double")
            return self._write(exact if kind is D else self._narrow(exact), kind)
        number = self._read(operand, TYPES[source])
        if kind is S:
            return self._write(self._narrow(number), kind)
        ir.unless(self._compare("ord", S, number, number), self._leave)
        return self._write(self._widen(number), kind)

    def _narrow(self, double: str) -> str:
        result = self._ir.value(f"fptrunc double {double} to float")
        self._guard_result(S, result, 2, lambda: self._compare("oeq", D, double),
                    lambda: self._compare("oeq", D, self._widen(result), double))  # fmt: skip
        return result

    def _integer(self, double: str, bounds: tuple[int, int], towards_zero: bool) -> str:
        """Emit an integer from `bounds` (the upper one exclusive), rounded towards zero or to nearest even."""
        ir, (low, high) = self._ir, bounds
        rounded = double
        if not towards_zero:
            magic = _constant(_MAGIC)
            rounded = ir.value(f"fsub double {ir.value(f'fadd double {double}, {magic}')}, {magic}")
        inside = self._combine(
            self._compare("ogt", D, rounded, _constant(low - 1)), self._compare("olt", D, rounded, _constant(high))
        )
        ir.unless(inside, self._leave)
        integer = ir.value(f"fptosi double {rounded} to i64")
        if self._sticky is not None:
            back = self._compare("oeq", D, ir.value(f"sitofp i64 {integer} to double"), double)
            ir.unless(self._combine(self._sticky, back, "or"), self._leave)
        return ir.value(f"trunc i64 {integer} to i32")


def _constant(number: int) -> str:
    """Return a double as a constant of LLVM."""
    return f"0x{struct.pack('>d', number).hex()}"


# -- all exceptions and rounding modes --------------------------------------------------------------------------------

_MASKED = 0x1F82
"""MXCSR with all exceptions masked, rounding to nearest even, and no exception raised except that of a subnormal
operand, which RISC-V does not have."""
_MODES = 0b10_01_11_00
"""Modes of MXCSR for RNE, RTZ, RDN and RUP, two bits each."""
_ASSEMBLY = {
    "fadd": "add{0} $2, $0", "fsub": "sub{0} $2, $0", "fmul": "mul{0} $2, $0", "fdiv": "div{0} $2, $0",
    "fsqrt": "sqrt{0} $1, $0", **dict.fromkeys(FUSED, "vfmadd213{0} $3, $2, $0"),
}  # fmt: skip


def float_functions(rows: Iterable[InstructionDef]) -> str:
    """Return functions `strict.NAME(rs1, rs2, rs3, mode, registers) -> rd` of rows: raw f registers, modes RNE to RUP,
    exceptions accrued."""
    return "".join(_Function(row).text() for row in rows)


class _Function:
    """Generator of the function of one row."""

    def __init__(self, row: InstructionDef) -> None:
        self._ir = Ir()
        self._name = row.name
        self._base, *self._types = row.name.split(".")

    def text(self) -> str:
        ir = self._ir
        ir.block("entry")
        if self._base in COMPARISONS:
            value, flags = self._comparison()
        elif self._base in ("fmin", "fmax"):
            value, flags = self._selection()
        elif self._base == "fcvt":
            value, flags = self._conversion()
        else:
            value, flags = self._arithmetic()
        wide = ir.value(f"zext i32 {flags} to i64")
        ir.store("i64", ir.value(f"or i64 {ir.load('i64', '%x', 8 * FFLAGS)}, {wide}"), "%x", 8 * FFLAGS)
        raised = ir.value(f"icmp ne i64 {wide}, 0")
        ir.store("i64", ir.value(f"select i1 {raised}, i64 {DIRTY}, i64 {ir.load('i64', '%x', 8 * FS)}"), "%x", 8 * FS)
        ir.do(f"ret i64 {value}")
        return ir.text(f"internal i64 @strict.{self._name}(i64 %a, i64 %b, i64 %c, i32 %mode, ptr %x)")

    def _operand(self, register: str, kind: NumberType) -> str:
        """Emit the bits of a number; a single that is not boxed is NaN."""
        ir = self._ir
        if kind is D:
            return register
        boxed = ir.value(f"icmp uge i64 {register}, {BOX - (1 << 64)}")
        return ir.value(f"select i1 {boxed}, i32 {ir.value(f'trunc i64 {register} to i32')}, i32 {S.form.nan}")

    def _number(self, bits: str, kind: NumberType) -> str:
        return self._ir.value(f"bitcast {kind.bits} {bits} to {kind.name}")

    def _magnitude(self, bits: str, kind: NumberType) -> str:
        return self._ir.value(f"and {kind.bits} {bits}, {kind.form.sign - 1}")

    def _is_nan(self, bits: str, kind: NumberType) -> str:
        return self._ir.value(f"icmp ugt {kind.bits} {self._magnitude(bits, kind)}, {kind.form.infinity}")

    def _is_signaling(self, bits: str, kind: NumberType) -> str:
        quiet = self._ir.value(f"icmp ult {kind.bits} {self._magnitude(bits, kind)}, {kind.form.nan}")
        return self._ir.value(f"and i1 {self._is_nan(bits, kind)}, {quiet}")

    def _or(self, left: str, right: str) -> str:
        return self._ir.value(f"or i1 {left}, {right}")

    def _invalid(self, condition: str) -> str:
        return self._ir.value(f"select i1 {condition}, i32 {_INVALID}, i32 0")

    def _register(self, bits: str, kind: NumberType) -> str:
        """Emit the f register with these bits; any NaN becomes the canonical NaN."""
        ir = self._ir
        value = ir.value(f"select i1 {self._is_nan(bits, kind)}, {kind.bits} {kind.form.nan}, {kind.bits} {bits}")
        return value if kind is D else boxed(ir, value)

    def _execute(self, result: str, assembly: str, operands: Sequence[tuple[str, str]]) -> tuple[str, str]:
        """Emit an instruction of the host under the rounding mode; return its result, and the exceptions that it
        raises.

        For an f register these include NV, UF and NX if they have accrued: raising an exception that is clear takes the
        host ten times as long.
        """
        ir = self._ir
        saved, control = ir.value("alloca i32"), ir.value("alloca i32")
        nearest = str(_MASKED)
        if result != "i64":
            accrued = ir.load("i32", "%x", 8 * FFLAGS)
            for bit, shift, count in ((_INEXACT, "shl", 5), (_UNDERFLOW, "shl", 3), (_INVALID, "lshr", 4)):
                shifted_flag = ir.value(f"{shift} i32 {ir.value(f'and i32 {accrued}, {bit}')}, {count}")
                nearest = ir.value(f"or i32 {nearest}, {shifted_flag}")
        shifted = ir.value(f"lshr i32 {_MODES}, {ir.value('shl i32 %mode, 1')}")
        mode = ir.value(f"shl i32 {ir.value(f'and i32 {shifted}, 3')}, 13")
        ir.store("i32", nearest, saved)
        ir.store("i32", ir.value(f"or i32 {mode}, {nearest}"), control)
        self._status("ldmxcsr", control)
        constraints = ["=r" if result == "i64" else "=x"]
        tied = "213" in assembly or assembly.endswith("$2, $0")
        constraints += [
            "0" if tied and not at else "r" if kind == "i64" else "x" for at, (kind, _) in enumerate(operands)
        ]
        arguments = ", ".join(f"{kind} {value}" for kind, value in operands)
        answer = ir.value(f'call {result} asm sideeffect "{assembly}", "{",".join(constraints)}"({arguments})')
        self._status("stmxcsr", control)
        self._status("ldmxcsr", saved)  # as `host_agrees` has checked
        return answer, self._exceptions(ir.load("i32", control))

    def _status(self, instruction: str, address: str) -> None:
        """Emit a load of MXCSR from an address, or a store to it."""
        self._ir.do(f'call void asm sideeffect "{instruction} ($0)", "r,~{{memory}}"(ptr {address})')

    def _exceptions(self, status: str) -> str:
        """Emit fflags from MXCSR, whose exceptions from bit 0 on are invalid, denormal, zero, overflow, underflow,
        inexact."""
        ir = self._ir
        flags = ir.value(f"and i32 {ir.value(f'lshr i32 {status}, 5')}, 1")
        for shift, bit in (("lshr", 2), ("lshr", 4), ("shl", 8), ("shl", 16)):
            count = {2: 3, 4: 1, 8: 1, 16: 4}[bit]
            shifted_flag = ir.value(f"and i32 {ir.value(f'{shift} i32 {status}, {count}')}, {bit}")
            flags = ir.value(f"or i32 {flags}, {shifted_flag}")
        return flags

    def _arithmetic(self) -> tuple[str, str]:
        ir, base, kind = self._ir, self._base, TYPES[self._types[0]]
        fused = base in FUSED
        count = 3 if fused else 1 if base == "fsqrt" else 2
        bits = [self._operand(register, kind) for register in ("%a", "%b", "%c")[:count]]
        sign = -kind.form.sign
        if base in ("fnmsub", "fnmadd"):
            bits[0] = ir.value(f"xor {kind.bits} {bits[0]}, {sign}")
        if base in ("fmsub", "fnmadd"):
            bits[2] = ir.value(f"xor {kind.bits} {bits[2]}, {sign}")
        operands = [(kind.name, self._number(each, kind)) for each in bits]
        suffix = "ss" if kind is S else "sd"
        number, flags = self._execute(kind.name, _ASSEMBLY[base].format(suffix), operands)
        if fused:  # infinity times zero is invalid with any addend
            a_magnitude, b_magnitude = (self._magnitude(each, kind) for each in bits[:2])
            products = []
            for left, right in ((a_magnitude, b_magnitude), (b_magnitude, a_magnitude)):
                infinite = ir.value(f"icmp eq {kind.bits} {left}, {kind.form.infinity}")
                products.append(ir.value(f"and i1 {infinite}, {ir.value(f'icmp eq {kind.bits} {right}, 0')}"))
            flags = ir.value(f"or i32 {flags}, {self._invalid(self._or(*products))}")
        return self._register(ir.value(f"bitcast {kind.name} {number} to {kind.bits}"), kind), flags

    def _comparison(self) -> tuple[str, str]:
        ir, kind = self._ir, TYPES[self._types[0]]
        a, b = (self._operand(register, kind) for register in ("%a", "%b"))
        is_invalid = self._is_signaling if self._base == "feq" else self._is_nan
        invalid = self._or(is_invalid(a, kind), is_invalid(b, kind))
        left, right = self._number(a, kind), self._number(b, kind)
        condition = ir.value(f"fcmp {COMPARISONS[self._base]} {kind.name} {left}, {right}")
        return ir.value(f"zext i1 {condition} to i64"), self._invalid(invalid)

    def _selection(self) -> tuple[str, str]:
        ir, kind = self._ir, TYPES[self._types[0]]
        a, b = (self._operand(register, kind) for register in ("%a", "%b"))
        left, right = self._number(a, kind), self._number(b, kind)
        low, high = (a, b) if self._base == "fmin" else (b, a)
        below = ir.value(f"fcmp olt {kind.name} {left}, {right}")
        selected = ir.value(f"select i1 {below}, {kind.bits} {low}, {kind.bits} {high}")
        zeros = ir.value(f"{'or' if self._base == 'fmin' else 'and'} {kind.bits} {a}, {b}")
        equal = ir.value(f"fcmp oeq {kind.name} {left}, {right}")
        selected = ir.value(f"select i1 {equal}, {kind.bits} {zeros}, {kind.bits} {selected}")
        selected = ir.value(f"select i1 {self._is_nan(b, kind)}, {kind.bits} {a}, {kind.bits} {selected}")
        selected = ir.value(f"select i1 {self._is_nan(a, kind)}, {kind.bits} {b}, {kind.bits} {selected}")
        invalid = self._or(self._is_signaling(a, kind), self._is_signaling(b, kind))
        return self._register(selected, kind), self._invalid(invalid)

    def _conversion(self) -> tuple[str, str]:
        ir, (to, source) = self._ir, self._types
        if to in ("w", "wu"):
            return self._integer(TYPES[source], (-1 << 31, (1 << 31) - 1) if to == "w" else (0, (1 << 32) - 1))
        kind = TYPES[to]
        suffix = "ss" if kind is S else "sd"
        if source in ("w", "wu"):
            low = ir.value("trunc i64 %a to i32")
            wide = ir.value(f"{'sext' if source == 'w' else 'zext'} i32 {low} to i64")
            number, flags = self._execute(kind.name, f"cvtsi2{suffix}q $1, $0", [("i64", wide)])
        else:
            other = TYPES[source]
            number_in = self._number(self._operand("%a", other), other)
            assembly = f"cvt{'sd' if kind is S else 'ss'}2{suffix} $1, $0"
            number, flags = self._execute(kind.name, assembly, [(other.name, number_in)])
        return self._register(ir.value(f"bitcast {kind.name} {number} to {kind.bits}"), kind), flags

    def _integer(self, kind: NumberType, bounds: tuple[int, int]) -> tuple[str, str]:
        """Emit a rounding to an integer within `bounds`; NaN becomes the upper bound. The host's result beyond 64 bits
        is the minimum."""
        ir, (low, high) = self._ir, bounds
        bits = self._operand("%a", kind)
        assembly = f"cvt{'ss' if kind is S else 'sd'}2siq $1, $0"
        result, flags = self._execute("i64", assembly, [(kind.name, self._number(bits, kind))])
        positive = self._or(ir.value(f"icmp sge {kind.bits} {bits}, 0"), self._is_nan(bits, kind))
        beyond = ir.value(f"icmp eq i64 {result}, {-1 << 63}")
        upper = ir.value(f"and i1 {positive}, {beyond}")
        result = ir.value(f"select i1 {upper}, i64 {(1 << 63) - 1}, i64 {result}")
        above, below = ir.value(f"icmp sgt i64 {result}, {high}"), ir.value(f"icmp slt i64 {result}, {low}")
        clamped = ir.value(f"select i1 {below}, i64 {low}, i64 {result}")
        inside = ir.value(f"select i1 {above}, i64 {high}, i64 {clamped}")
        outside = self._or(above, below)
        flags = ir.value(f"select i1 {outside}, i32 {_INVALID}, i32 {flags}")
        return ir.value(f"and i64 {inside}, {(1 << 32) - 1}"), flags
