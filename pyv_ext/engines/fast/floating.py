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
        return self.row.op_class is OpClass.FLOAT and self.row.format.imm is not None and not self.towards_zero

    @property
    def inexact(self) -> bool:
        """Check whether it may raise NX."""
        return self.row.format.imm is not None and self.row.op_class is OpClass.FLOAT and self.row.name not in _EXACT


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
            if row.format.imm is not None and row.op_class is OpClass.FLOAT and has_strict(row, fused=fused):
                result.append(FloatOperation(row, strict=True))
    return tuple(result)


def operation_of(instruction: Instruction) -> FloatOperation | None:
    """Return the operation of an instruction; None for RMM and reserved rounding modes."""
    row, mode = instruction.row, instruction.imm
    if row.op_class is not OpClass.FLOAT or row.format.imm is None or mode in (RNE, DYNAMIC):
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
    is_supported = base in ROUNDING or base in (*COMPARISONS, "fmin", "fmax", "fcvt")
    return x86_64_linux() and row.op_class is OpClass.FLOAT and is_supported and (fused or base not in FUSED)


def _to_integer(row: InstructionDef) -> bool:
    return row.name.startswith(("fcvt.w.", "fcvt.wu."))


def declarations() -> str:
    """Return declarations of the intrinsics that the operations use."""
    return "".join(
        f"declare {fp} @llvm.sqrt.{name}({fp})\ndeclare {fp} @llvm.fma.{name}({fp}, {fp}, {fp})\n"
        for fp, name in (("float", "f32"), ("double", "f64"))
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


def box(ir: Ir, word: str) -> str:
    """Emit the f register (an i64) that holds a single (an i32)."""
    return ir.value(f"or i64 {ir.value(f'zext i32 {word} to i64')}, {_BOX}")


class NumberType(NamedTuple):
    """Floating-point format with its names in LLVM."""

    form: FloatFormat
    name: str
    short: str
    bits: str
    """Integer type of its size."""


def _bits(ir: Ir, fp: NumberType, number: str) -> str:
    return ir.value(f"bitcast {fp.name} {number} to {fp.bits}")


def _number(ir: Ir, fp: NumberType, bits: str) -> str:
    return ir.value(f"bitcast {fp.bits} {bits} to {fp.name}")


def _extreme(ir: Ir, base: str, fp: NumberType, bits: Sequence[str], numbers: Sequence[str]) -> str:
    """Emit the bits of the minimum or maximum of two numbers; zeros of either sign are equal to a comparison."""
    below, equal = (ir.value(f"fcmp {name} {fp.name} {', '.join(numbers)}") for name in ("olt", "oeq"))
    low, high = bits if base == "fmin" else reversed(bits)
    selected = ir.value(f"select i1 {below}, {fp.bits} {low}, {fp.bits} {high}")
    zeros = ir.value(f"{'or' if base == 'fmin' else 'and'} {fp.bits} {', '.join(bits)}")
    return ir.value(f"select i1 {equal}, {fp.bits} {zeros}, {fp.bits} {selected}")


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
        fp = TYPES[parts[1]]
        count = 3 if base in FUSED else 1 if base in ("fsqrt", "fclass") else 2
        numbers = [self._read(operand, fp) for operand in operands[:count]]
        if base in ROUNDING:
            return self._write(self._arithmetic(base, fp, numbers), fp)
        if base == "fclass":
            return self._class(fp, numbers[0])
        if base in ("feq", "flt", "fle"):
            return self._comparison(base, fp, *numbers)
        return self._selection(base, fp, *numbers)

    # -- registers ---------------------------------------------------------------------------------------------

    def _read(self, register: str, fp: NumberType) -> str:
        """Emit the number in an f register; a single that is not boxed takes the slow path."""
        ir, number = self._ir, self._numbers.get((register, fp))
        if number is None:
            bits = register
            if fp is S:
                upper = ir.value(f"icmp uge i64 {register}, {_BOX}")
                ir.unless(upper, self._leave)
                bits = ir.value(f"trunc i64 {register} to i32")
            number = self._numbers[register, fp] = _number(ir, fp, bits)
        return number

    def _write(self, number: str, fp: NumberType) -> str:
        bits = _bits(self._ir, fp, number)
        register = box(self._ir, bits) if fp is S else bits
        self._numbers[register, fp] = number
        return register

    def _from_bits(self, fp: NumberType, bits: str) -> str:
        return self._write(_number(self._ir, fp, bits), fp)

    # -- guards of an operation --------------------------------------------------------------------------------

    def _compare(self, condition: str, fp: NumberType, a: str, b: str = "0.0") -> str:
        return self._ir.value(f"fcmp {condition} {fp.name} {a}, {b}")

    def _combine(self, left: str, right: str, operator: str = "and") -> str:
        return self._ir.value(f"{operator} i1 {left}, {right}")

    def _has_exponent(self, fp: NumberType, number: str, minimum: int = 0) -> str:
        """Emit whether a number is finite and its exponent field at least `minimum`."""
        ir, shift = self._ir, fp.form.fraction + 1
        magnitude = ir.value(f"shl {fp.bits} {_bits(ir, fp, number)}, 1")
        if minimum:
            magnitude = ir.value(f"sub {fp.bits} {magnitude}, {minimum << shift}")
        return ir.value(f"icmp ult {fp.bits} {magnitude}, {-(minimum + 1) << shift}")

    def _guard_result(
        self, fp: NumberType, result: str, min_exponent: int, tiny: Callable[[], str] | None, exact: Callable[[], str]
    ) -> None:
        """Emit guards: leave unless the exponent field is at least `min_exponent`, and the result exact or NX set. With
        `tiny`, a result with a smaller field may also be `tiny`, or finite while UF and NX are set."""
        ir, accepted, rounded, special = self._ir, self._ir.new_label(), self._ir.new_label(), self._ir.new_label()
        normal = self._has_exponent(fp, result, min_exponent)
        if tiny is None:
            ir.unless(normal, self._leave)
        else:
            ir.branch(normal, (rounded, ()), (special, ()))
            ir.block(special)
            accrued = ir.value(f"and i64 {self._flags()}, {_UNDERFLOW | _INEXACT}")
            is_accrued = ir.value(f"icmp eq i64 {accrued}, {_UNDERFLOW | _INEXACT}")
            ir.branch(
                self._combine(tiny(), self._combine(is_accrued, self._has_exponent(fp, result)), "or"),
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

    def _is_exact_sum(self, fp: NumberType, a: str, b: str, total: str) -> str:
        """Emit whether `total`, which is a + b rounded, equals a + b: TwoSum."""
        ir, name = self._ir, fp.name
        virtual_b = ir.value(f"fsub {name} {total}, {a}")
        a_error = ir.value(f"fsub {name} {a}, {ir.value(f'fsub {name} {total}, {virtual_b}')}")
        right = ir.value(f"fsub {name} {b}, {virtual_b}")
        return self._compare("oeq", fp, ir.value(f"fadd {name} {a_error}, {right}"))

    def _is_product(self, fp: NumberType, a: str, b: str, product: str, guard: str) -> str:
        """Emit whether `product` equals a . b. The double `guard` has about the same magnitude."""
        ir = self._ir
        if fp is S:
            a, b, product = map(self._widen, (a, b, product))
            return self._compare("oeq", D, ir.value(f"fmul double {a}, {b}"), product)
        if not self._fused:
            return "false"
        residue = self._fma(D, a, b, ir.value(f"fneg double {product}"))
        return self._combine(self._compare("oeq", D, residue), self._has_exponent(D, guard, _TINY))

    def _is_fused(self, fp: NumberType, a: str, b: str, c: str, result: str) -> str:
        """Emit whether `result` provably equals a . b + c; with an inexact product it does not."""
        ir = self._ir
        if fp is S:
            a, b, c, result = map(self._widen, (a, b, c, result))
            product = ir.value(f"fmul double {a}, {b}")
            total = ir.value(f"fadd double {product}, {c}")
            return self._combine(self._is_exact_sum(D, product, c, total), self._compare("oeq", D, total, result))
        product = ir.value(f"fmul double {a}, {b}")
        exact = self._is_product(D, a, b, product, product)
        return self._combine(exact, self._is_exact_sum(D, product, c, result))

    def _widen(self, single: str) -> str:
        return self._ir.value(f"fpext float {single} to double")

    def _fma(self, fp: NumberType, a: str, b: str, c: str) -> str:
        name = fp.name
        return self._ir.value(f"call {name} @llvm.fma.{fp.short}({name} {a}, {name} {b}, {name} {c})")

    # -- arithmetic --------------------------------------------------------------------------------------------

    def _arithmetic(self, base: str, fp: NumberType, numbers: Sequence[str]) -> str:
        ir, name = self._ir, fp.name
        if base in FUSED:
            return self._multiply_add(base, fp, *numbers)
        if base == "fsqrt":
            (a,) = numbers
            result = ir.value(f"call {name} @llvm.sqrt.{fp.short}({name} {a})")
            self._guard_result(fp, result, 2, lambda: self._compare("oeq", fp, a),
                        lambda: self._is_product(fp, result, result, a, a))  # fmt: skip
            return result
        a, b = numbers
        result = ir.value(f"{base} {name} {a}, {b}")
        if base in ("fadd", "fsub"):
            added = ir.value(f"fneg {name} {b}") if base == "fsub" and self._sticky is not None else b
            self._guard_result(fp, result, 0, None, lambda: self._is_exact_sum(fp, a, added, result))
        elif base == "fmul":
            self._guard_result(fp, result, 2, lambda: self._tiny_product(fp, a, b, result),
                        lambda: self._is_product(fp, a, b, result, result))  # fmt: skip
        else:
            self._guard_result(fp, result, 2,
                        lambda: self._combine(self._compare("oeq", fp, a), self._compare("oeq", fp, result)),
                        lambda: self._is_product(fp, result, b, a, a))  # fmt: skip
        return result

    def _tiny_product(self, fp: NumberType, a: str, b: str, result: str) -> str:
        """Emit whether a result below the normal numbers equals a . b; for doubles only if it is zero."""
        if fp is S:
            return self._is_product(fp, a, b, result, result)
        return self._zero_product(fp, a, b, result)

    def _zero_product(self, fp: NumberType, a: str, b: str, result: str) -> str:
        """Emit whether a or b is zero and the result finite."""
        zero = self._combine(self._compare("oeq", fp, a), self._compare("oeq", fp, b), "or")
        return self._combine(zero, self._has_exponent(fp, result))

    def _multiply_add(self, base: str, fp: NumberType, a: str, b: str, c: str) -> str:
        ir, name = self._ir, fp.name
        if base in ("fnmsub", "fnmadd"):
            a = ir.value(f"fneg {name} {a}")
        if base in ("fmsub", "fnmadd"):
            c = ir.value(f"fneg {name} {c}")
        result = self._fma(fp, a, b, c)

        def zero() -> str:
            cancelled = self._combine(self._compare("oeq", fp, result), self._is_fused(fp, a, b, c, result))
            return self._combine(self._zero_product(fp, a, b, result), cancelled, "or")

        self._guard_result(fp, result, 2, zero, lambda: self._combine(
            self._is_fused(fp, a, b, c, result), self._zero_product(fp, a, b, result), "or"))  # fmt: skip
        return result

    # -- comparison, selection, conversion ---------------------------------------------------------------------

    def _comparison(self, base: str, fp: NumberType, a: str, b: str) -> str:
        self._ir.unless(self._compare("ord", fp, a, b), self._leave)
        condition = self._compare(COMPARISONS[base], fp, a, b)
        return self._ir.value(f"zext i1 {condition} to i32")

    def _selection(self, base: str, fp: NumberType, a: str, b: str) -> str:
        """Emit minimum, maximum or sign injection, which select bits of their operands."""
        ir, bits, sign = self._ir, fp.bits, -fp.form.sign
        a_bits, b_bits = _bits(ir, fp, a), _bits(ir, fp, b)
        if base in ("fmin", "fmax"):
            ir.unless(self._compare("ord", fp, a, b), self._leave)
            return self._from_bits(fp, _extreme(ir, base, fp, (a_bits, b_bits), (a, b)))
        if base == "fsgnjn":
            b_bits = ir.value(f"xor {bits} {b_bits}, {sign}")
        signed = ir.value(f"and {bits} {b_bits}, {sign}")
        base_bits = a_bits if base == "fsgnjx" else ir.value(f"and {bits} {a_bits}, {fp.form.sign - 1}")
        return self._from_bits(fp, ir.value(f"{'xor' if base == 'fsgnjx' else 'or'} {bits} {base_bits}, {signed}"))

    def _class(self, fp: NumberType, number: str) -> str:
        """Emit `softfloat.classify`."""
        ir, form = self._ir, fp.form
        bits = _bits(ir, fp, number)
        magnitude = ir.value(f"and {fp.bits} {bits}, {form.sign - 1}")
        rank = "0"
        for bound in (form.infinity, 1 << form.fraction, 1):
            below = ir.value(f"icmp ult {fp.bits} {magnitude}, {bound}")
            rank = ir.value(f"add i32 {rank}, {ir.value(f'zext i1 {below} to i32')}")
        negative = ir.value(f"icmp slt {fp.bits} {bits}, 0")
        rank = ir.value(f"xor i32 {rank}, {ir.value(f'select i1 {negative}, i32 0, i32 7')}")
        quiet = ir.value(f"icmp uge {fp.bits} {magnitude}, {form.nan}")
        nan = ir.value(f"icmp ugt {fp.bits} {magnitude}, {form.infinity}")
        nan_rank = ir.value(f"select i1 {quiet}, i32 9, i32 8")
        return ir.value(f"shl i32 1, {ir.value(f'select i1 {nan}, i32 {nan_rank}, i32 {rank}')}")

    def _move(self, name: str, register: str) -> str:
        if name == "fmv.x.w":
            return self._ir.value(f"trunc i64 {register} to i32")
        return box(self._ir, register)

    def _convert(self, to: str, source: str, operand: str, *, towards_zero: bool) -> str:
        ir = self._ir
        if to in ("w", "wu"):
            number = self._read(operand, TYPES[source])
            wide = self._widen(number) if source == "s" else number
            return self._integer(wide, (-1 << 31, 1 << 31) if to == "w" else (0, 1 << 32), towards_zero)
        fp = TYPES[to]
        if source in ("w", "wu"):
            exact = ir.value(f"{'sitofp' if source == 'w' else 'uitofp'} i32 {operand} to double")
            return self._write(exact if fp is D else self._narrow(exact), fp)
        number = self._read(operand, TYPES[source])
        if fp is S:
            return self._write(self._narrow(number), fp)
        ir.unless(self._compare("ord", S, number, number), self._leave)
        return self._write(self._widen(number), fp)

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
        is_in_range = self._combine(
            self._compare("ogt", D, rounded, _constant(low - 1)), self._compare("olt", D, rounded, _constant(high))
        )
        ir.unless(is_in_range, self._leave)
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

    def _operand(self, register: str, fp: NumberType) -> str:
        """Emit the bits of a number; a single that is not boxed is NaN."""
        ir = self._ir
        if fp is D:
            return register
        box = ir.value(f"icmp uge i64 {register}, {BOX - (1 << 64)}")
        return ir.value(f"select i1 {box}, i32 {ir.value(f'trunc i64 {register} to i32')}, i32 {S.form.nan}")

    def _magnitude(self, bits: str, fp: NumberType) -> str:
        return self._ir.value(f"and {fp.bits} {bits}, {fp.form.sign - 1}")

    def _is_nan(self, bits: str, fp: NumberType) -> str:
        return self._ir.value(f"icmp ugt {fp.bits} {self._magnitude(bits, fp)}, {fp.form.infinity}")

    def _is_signaling(self, bits: str, fp: NumberType) -> str:
        quiet = self._ir.value(f"icmp ult {fp.bits} {self._magnitude(bits, fp)}, {fp.form.nan}")
        return self._ir.value(f"and i1 {self._is_nan(bits, fp)}, {quiet}")

    def _or(self, left: str, right: str) -> str:
        return self._ir.value(f"or i1 {left}, {right}")

    def _invalid(self, condition: str) -> str:
        return self._ir.value(f"select i1 {condition}, i32 {_INVALID}, i32 0")

    def _register(self, bits: str, fp: NumberType) -> str:
        """Emit the f register with these bits; any NaN becomes the canonical NaN."""
        ir = self._ir
        value = ir.value(f"select i1 {self._is_nan(bits, fp)}, {fp.bits} {fp.form.nan}, {fp.bits} {bits}")
        return value if fp is D else box(ir, value)

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
            "0" if tied and not index else "r" if word == "i64" else "x" for index, (word, _) in enumerate(operands)
        ]
        arguments = ", ".join(f"{word} {value}" for word, value in operands)
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
        for shift, count, bit in (("lshr", 3, 2), ("lshr", 1, 4), ("shl", 1, 8), ("shl", 4, 16)):
            shifted_flag = ir.value(f"and i32 {ir.value(f'{shift} i32 {status}, {count}')}, {bit}")
            flags = ir.value(f"or i32 {flags}, {shifted_flag}")
        return flags

    def _arithmetic(self) -> tuple[str, str]:
        ir, base, fp = self._ir, self._base, TYPES[self._types[0]]
        fused = base in FUSED
        count = 3 if fused else 1 if base == "fsqrt" else 2
        bits = [self._operand(register, fp) for register in ("%a", "%b", "%c")[:count]]
        sign = -fp.form.sign
        if base in ("fnmsub", "fnmadd"):
            bits[0] = ir.value(f"xor {fp.bits} {bits[0]}, {sign}")
        if base in ("fmsub", "fnmadd"):
            bits[2] = ir.value(f"xor {fp.bits} {bits[2]}, {sign}")
        operands = [(fp.name, _number(ir, fp, word)) for word in bits]
        suffix = "ss" if fp is S else "sd"
        number, flags = self._execute(fp.name, _ASSEMBLY[base].format(suffix), operands)
        if fused:  # infinity times zero is invalid with any addend
            a_magnitude, b_magnitude = (self._magnitude(word, fp) for word in bits[:2])
            products = []
            for left, right in ((a_magnitude, b_magnitude), (b_magnitude, a_magnitude)):
                infinite = ir.value(f"icmp eq {fp.bits} {left}, {fp.form.infinity}")
                products.append(ir.value(f"and i1 {infinite}, {ir.value(f'icmp eq {fp.bits} {right}, 0')}"))
            flags = ir.value(f"or i32 {flags}, {self._invalid(self._or(*products))}")
        return self._register(_bits(ir, fp, number), fp), flags

    def _comparison(self) -> tuple[str, str]:
        ir, fp = self._ir, TYPES[self._types[0]]
        a, b = (self._operand(register, fp) for register in ("%a", "%b"))
        is_invalid = self._is_signaling if self._base == "feq" else self._is_nan
        invalid = self._or(is_invalid(a, fp), is_invalid(b, fp))
        left, right = _number(ir, fp, a), _number(ir, fp, b)
        condition = ir.value(f"fcmp {COMPARISONS[self._base]} {fp.name} {left}, {right}")
        return ir.value(f"zext i1 {condition} to i64"), self._invalid(invalid)

    def _selection(self) -> tuple[str, str]:
        ir, fp = self._ir, TYPES[self._types[0]]
        a, b = (self._operand(register, fp) for register in ("%a", "%b"))
        selected = _extreme(ir, self._base, fp, (a, b), (_number(ir, fp, a), _number(ir, fp, b)))
        selected = ir.value(f"select i1 {self._is_nan(b, fp)}, {fp.bits} {a}, {fp.bits} {selected}")
        selected = ir.value(f"select i1 {self._is_nan(a, fp)}, {fp.bits} {b}, {fp.bits} {selected}")
        invalid = self._or(self._is_signaling(a, fp), self._is_signaling(b, fp))
        return self._register(selected, fp), self._invalid(invalid)

    def _conversion(self) -> tuple[str, str]:
        ir, (to, source) = self._ir, self._types
        if to in ("w", "wu"):
            return self._integer(TYPES[source], (-1 << 31, (1 << 31) - 1) if to == "w" else (0, (1 << 32) - 1))
        fp = TYPES[to]
        suffix = "ss" if fp is S else "sd"
        if source in ("w", "wu"):
            low = ir.value("trunc i64 %a to i32")
            wide = ir.value(f"{'sext' if source == 'w' else 'zext'} i32 {low} to i64")
            number, flags = self._execute(fp.name, f"cvtsi2{suffix}q $1, $0", [("i64", wide)])
        else:
            source_type = TYPES[source]
            number_in = _number(ir, source_type, self._operand("%a", source_type))
            assembly = f"cvt{'sd' if fp is S else 'ss'}2{suffix} $1, $0"
            number, flags = self._execute(fp.name, assembly, [(source_type.name, number_in)])
        return self._register(_bits(ir, fp, number), fp), flags

    def _integer(self, fp: NumberType, bounds: tuple[int, int]) -> tuple[str, str]:
        """Emit a rounding to an integer within `bounds`; NaN becomes the upper bound. The host's result beyond 64 bits
        is the minimum."""
        ir, (low, high) = self._ir, bounds
        bits = self._operand("%a", fp)
        assembly = f"cvt{'ss' if fp is S else 'sd'}2siq $1, $0"
        result, flags = self._execute("i64", assembly, [(fp.name, _number(ir, fp, bits))])
        positive = self._or(ir.value(f"icmp sge {fp.bits} {bits}, 0"), self._is_nan(bits, fp))
        is_beyond = ir.value(f"icmp eq i64 {result}, {-1 << 63}")
        upper = ir.value(f"and i1 {positive}, {is_beyond}")
        result = ir.value(f"select i1 {upper}, i64 {(1 << 63) - 1}, i64 {result}")
        above, below = ir.value(f"icmp sgt i64 {result}, {high}"), ir.value(f"icmp slt i64 {result}, {low}")
        clamped = ir.value(f"select i1 {below}, i64 {low}, i64 {result}")
        bounded = ir.value(f"select i1 {above}, i64 {high}, i64 {clamped}")
        is_outside = self._or(above, below)
        flags = ir.value(f"select i1 {is_outside}, i32 {_INVALID}, i32 {flags}")
        return ir.value(f"and i64 {bounded}, {(1 << 32) - 1}"), flags
