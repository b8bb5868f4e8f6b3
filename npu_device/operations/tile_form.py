"""Tile forms by opcode, as one table: units, rules of types and shapes, operands (docs/opcodes.md has tables).

The device decodes by the table (`decode.tile_decode`); Python makes matrices of a valid descriptor, and sentences of a
rule that fails.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from enum import IntEnum
from typing import NamedTuple

from npu_device.abi.descriptor import Descriptor
from npu_device.abi.errors import TicketError
from npu_device.abi.opcodes import FUNCTIONS, DataType, Eltwise, Gemm, Norm, Opcode, Pool, Reduce
from npu_device.memory.operands import FLOATS, INTEGERS, TYPES, Matrix, make_matrix, row_bytes
from npu_device.operations.windows import Windows
from npu_device.trace.events import Kind

SMALL_INTEGERS = tuple(kind for kind in INTEGERS if kind is not DataType.INT32)
REQUANTIZED = (DataType.INT8, DataType.UINT8)
"""Integer results of GEMM_T that are scaled down from the int32 sum."""


class Broadcast(IntEnum):
    """ELTWISE param1 with two operands: the shape of in1."""

    FULL = 0
    ROW = 1
    COLUMN = 2
    SCALAR = 3


FIELDS = ("tile_m", "tile_n", "tile_k", "param0", "param1", "type_in0", "type_in1", "type_out", "type_kv")
"""Parts of a descriptor that rules are about."""


class Requirement(IntEnum):
    """Demand of a rule on a field."""

    TYPE = 0
    """One of some types, or the type of another field."""
    ZERO = 1
    """0: the operation does not use the field."""
    NONZERO = 2
    LIMIT = 3
    STRIDE = 4
    """At least the bytes of a row of tile_k elements, or 0 for packed rows."""
    EVEN = 5
    WINDOWS = 6
    """Windows of `pool_window` each of which overlaps the image."""


class Rule(NamedTuple):
    """Rule of a field. A descriptor that breaks it ends in an error with `code`."""

    check: Requirement
    field: str
    code: TicketError
    types: tuple[DataType, ...] = ()
    other: str = ""
    """TYPE: field whose type is allowed, too. STRIDE: field of the type of the elements."""
    limit: int = 0
    names: str = ""
    """LIMIT: the legal values, for messages."""
    condition: str = ""
    """Field of a type; the rule applies if it is one of `condition_types`; "": always."""
    condition_types: Collection[DataType] = ()

    def only_for(self, field: str, types: Collection[DataType]) -> "Rule":
        """Return the rule for descriptors in which the type of a field is one of some."""
        return self._replace(condition=field, condition_types=types)

    def reason(self, d: Descriptor) -> str:
        """Return value and rule for a descriptor that breaks it."""
        name, value = self.field, getattr(d, self.field)
        match self.check:
            case Requirement.TYPE:
                same = (DataType(getattr(d, self.other)),) if self.other else ()
                names = ", ".join(kind.name for kind in dict.fromkeys((*self.types, *same)))
                return f"{name} {value}: must be one of {names}"
            case Requirement.ZERO:
                text = f"{value:#x}" if self.code is TicketError.RESERVED else value
                return f"{name} {text}: must be 0, it is not used"
            case Requirement.NONZERO:
                return f"{name} is 0: must be at least 1"
            case Requirement.LIMIT:
                return f"{name} {value}: must be {self.names}"
            case Requirement.STRIDE:
                size = row_bytes(d.tile_k, DataType(getattr(d, self.other)))
                return f"{name} {value}: rows of {size} overlap: must be 0 or at least {size}"
            case Requirement.EVEN:
                return f"{name} {value}: must be even"
            case Requirement.WINDOWS:
                s = pool_window(d)
                return f"windows of {s.kh} x {s.kw} must fit {s.h} x {s.w} with its pads and see some of it"


def _type(field: str, types: Iterable[DataType] = (), same: str = "") -> Rule:
    return Rule(Requirement.TYPE, field, TicketError.DATA_TYPE, tuple(types), same)


def _unused(*fields: str) -> tuple[Rule, ...]:
    return tuple(
        Rule(Requirement.ZERO, field, TicketError.DATA_TYPE if field.startswith("type") else TicketError.RESERVED)
        for field in fields
    )


def _nonzero(dimensions: str) -> tuple[Rule, ...]:
    return tuple(Rule(Requirement.NONZERO, f"tile_{letter}", TicketError.SHAPE) for letter in dimensions)


def _limit(field: str, limit: int, names: str, code: TicketError = TicketError.RESERVED) -> Rule:
    return Rule(Requirement.LIMIT, field, code, limit=limit, names=names)


def _stride(field: str, kind: str) -> Rule:
    return Rule(Requirement.STRIDE, field, TicketError.SHAPE, other=kind)


class Extent(IntEnum):
    """Number of rows or columns of an operand."""

    ONE = 0
    TWO = 1
    M = 2
    N = 3
    K = 4
    PIXELS = 5
    """Pixels of an image of M x N."""
    WINDOWS = 6
    """Windows of POOL."""
    BROADCAST_ROWS = 7
    BROADCAST_COLUMNS = 8
    WEIGHT_ROWS = 9
    """K; N with in1_nk."""
    WEIGHT_COLUMNS = 10


_EXTENTS: Mapping[Extent, Callable[[Descriptor], int]] = {
    Extent.ONE: lambda d: 1,
    Extent.TWO: lambda d: 2,
    Extent.M: lambda d: d.tile_m,
    Extent.N: lambda d: d.tile_n,
    Extent.K: lambda d: d.tile_k,
    Extent.PIXELS: lambda d: d.tile_m * d.tile_n,
    Extent.WINDOWS: lambda d: pool_window(d).pixels,
    Extent.BROADCAST_ROWS: lambda d: 1 if d.param1 in (Broadcast.ROW, Broadcast.SCALAR) else d.tile_m,
    Extent.BROADCAST_COLUMNS: lambda d: 1 if d.param1 in (Broadcast.COLUMN, Broadcast.SCALAR) else d.tile_n,
    Extent.WEIGHT_ROWS: lambda d: d.tile_n if d.in1_nk else d.tile_k,
    Extent.WEIGHT_COLUMNS: lambda d: d.tile_k if d.in1_nk else d.tile_n,
}


class OperandForm(NamedTuple):
    """Matrix of a command."""

    name: str
    """in0, in1 or out."""
    rows: Extent
    columns: Extent
    type: str
    """Field of the type of its elements."""
    stride: str = ""
    """Field of the bytes between its rows; "": they are packed."""

    def matrix(self, d: Descriptor) -> Matrix:
        """Return the matrix of a descriptor that satisfies the rules."""
        address, kind, stride = d[_INDICES[self.name]], _TYPES[d[_INDICES[self.type]]], 0
        if self.stride:
            stride = d[_INDICES[self.stride]]
        return make_matrix(address, _EXTENTS[self.rows](d), _EXTENTS[self.columns](d), kind, stride)


_INDICES = {name.removesuffix("_addr"): index for index, name in enumerate(Descriptor._fields)}
_TYPES = tuple(DataType)
"""Types by their values."""


class TileForm(NamedTuple):
    """Tile form of a function of an opcode."""

    rules: tuple[Rule, ...] = ()
    """In the order in which they are checked."""
    operands: tuple[OperandForm, ...] = ()
    """Inputs, then the result; none: the command needs no unit."""


class Operation(NamedTuple):
    """Commands of an opcode."""

    kind: Kind | None
    """Unit that executes it; None: none, it takes no time."""
    forms: Mapping[int, TileForm]
    """By function; none: declared, not executed in tile form."""
    options: Collection[str] = ()
    """Option flags that it takes."""
    macro: bool = False
    """Whether it has a macro form (extended block)."""
    in_dram: str = ""
    """Operand that must be in DRAM: `in0` or `out`. All others are in the scratchpad."""


ALIGNING = frozenset((Opcode.LOAD, Opcode.STORE, Opcode.KV_READ, Opcode.KV_APPEND))
"""Moves whose tile_n is an alignment."""


def own_alignment(d: Descriptor) -> int:
    """Return the bytes to which the accesses of a move in tile form are widened; 0: those of the device."""
    return d.tile_n if d.opcode in ALIGNING else 0


# -- forms -------------------------------------------------------------------------------------------------------------

_M, _N, _K = Extent.M, Extent.N, Extent.K


def _forms(opcode: Opcode, form: TileForm) -> dict[int, TileForm]:
    """Return the form of all functions of an opcode."""
    return dict.fromkeys(map(int, FUNCTIONS.get(opcode, (0,))), form)


def _move(in_stride: str, out_stride: str) -> TileForm:
    rules = (
        _type("type_in0", TYPES),
        *_unused("type_in1", "type_kv"),
        _type("type_out", (DataType.NONE,), "type_in0"),
        *_nonzero("mk"),
        _stride(in_stride, "type_in0"),
        _stride(out_stride, "type_in0"),
    )
    source, target = (
        OperandForm(name, _M, _K, "type_in0", stride) for name, stride in (("in0", in_stride), ("out", out_stride))
    )
    return TileForm(rules, (source, target))


_LOAD, _STORE = _move("param0", "param1"), _move("param1", "param0")

_GEMM = TileForm(
    (
        _type("type_in0", (*SMALL_INTEGERS, *FLOATS)),
        _type("type_in1", SMALL_INTEGERS).only_for("type_in0", SMALL_INTEGERS),
        _type("type_out", (DataType.INT32, *REQUANTIZED)).only_for("type_in0", SMALL_INTEGERS),
        _type("type_in1", same="type_in0").only_for("type_in0", FLOATS),
        _type("type_out", (DataType.FP32,), "type_in0").only_for("type_in0", FLOATS),
        *_unused("type_kv"),
        *_nonzero("mnk"),
        *(rule.only_for("type_out", (*FLOATS, DataType.INT32)) for rule in _unused("param0", "param1")),
    ),
    (
        OperandForm("in0", _M, _K, "type_in0"),
        OperandForm("in1", Extent.WEIGHT_ROWS, Extent.WEIGHT_COLUMNS, "type_in1"),
        OperandForm("out", _M, _N, "type_out"),
    ),
)


def _rowwise(rules: Iterable[Rule], *more: OperandForm, columns: Extent = _N) -> TileForm:
    """Return a form with in0 of M x N elements, and a result, by default of the same shape."""
    return TileForm(
        tuple(rules), (OperandForm("in0", _M, _N, "type_in0"), *more, OperandForm("out", _M, columns, "type_out"))
    )


FLOAT_ONLY = frozenset(
    (
        Eltwise.SIGMOID, Eltwise.TANH, Eltwise.ERF, Eltwise.EXP, Eltwise.SQRT, Eltwise.POW, Eltwise.SIN, Eltwise.COS,
        Eltwise.LOG, Eltwise.FLOOR, Eltwise.CEIL, Eltwise.ROUND, Eltwise.RELU6, Eltwise.SILU, Eltwise.HARD_SIGMOID,
        Eltwise.HARD_SWISH, Eltwise.MISH,
    )
)  # fmt: skip
COMPARE = frozenset((Eltwise.EQUAL, Eltwise.GREATER, Eltwise.LESS))
INTEGER_ONLY = frozenset((Eltwise.AND, Eltwise.OR, Eltwise.XOR, Eltwise.SHL, Eltwise.SHR))
BINARY = INTEGER_ONLY | {
    Eltwise.ADD, Eltwise.SUB, Eltwise.MUL, Eltwise.DIV, Eltwise.MAX, Eltwise.MIN, Eltwise.POW, Eltwise.WHERE,
    Eltwise.REM,
}  # fmt: skip
CONVERSIONS: dict[int, tuple[Collection[DataType], Collection[DataType]]] = {
    Eltwise.CAST: (TYPES, TYPES),
    Eltwise.QUANT: ((*FLOATS, DataType.INT32), INTEGERS),
    Eltwise.DEQUANT: (INTEGERS, FLOATS),
}
"""Types that in0 and out may have, for functions that change the type."""


def source_types(function: Eltwise) -> Collection[DataType]:
    """Return the types that in0 may have, for functions that do not change the type."""
    return FLOATS if function in FLOAT_ONLY else INTEGERS if function in INTEGER_ONLY else TYPES


def _eltwise(function: Eltwise) -> TileForm:
    common, words = (*_unused("type_kv"), *_nonzero("mn")), _unused("param0", "param1")
    if function in CONVERSIONS:
        sources, targets = CONVERSIONS[function]
        types = _type("type_in0", sources), _type("type_out", targets), *_unused("type_in1")
        return _rowwise((*common, *types, *(words if function is Eltwise.CAST else ())))
    if function is Eltwise.WHERE:
        types = _type("type_in0", REQUANTIZED), _type("type_in1", TYPES), _type("type_out", same="type_in1")
        return _rowwise((*common, *types, *words), OperandForm("in1", _M, _N, "type_in1"))
    result = _type("type_out", (DataType.UINT8,)) if function in COMPARE else _type("type_out", same="type_in0")
    types = _type("type_in0", source_types(function)), result
    if function in BINARY or function in COMPARE:
        shape = _limit("param1", max(Broadcast), f"a Broadcast, 0..{max(Broadcast)}")
        return _rowwise(
            (*common, *types, _type("type_in1", same="type_in0"), *_unused("param0"), shape),
            OperandForm("in1", Extent.BROADCAST_ROWS, Extent.BROADCAST_COLUMNS, "type_in1"),
        )
    return _rowwise((*common, *types, *_unused("type_in1"), *(() if function is Eltwise.CLIP else words)))


_FLOAT_ROWS = (
    _type("type_in0", FLOATS), _type("type_out", same="type_in0"), *_unused("type_kv"), *_nonzero("mn"),
)  # fmt: skip


def _norm(rows: Extent) -> TileForm:
    """Return LAYERNORM with the rows of gamma, and beta."""
    rules = *_FLOAT_ROWS, _type("type_in1", same="type_in0"), *_unused("param1")
    return _rowwise(rules, OperandForm("in1", rows, _N, "type_in1"))


_SOFTMAX = _rowwise((*_FLOAT_ROWS, *_unused("type_in1", "param0", "param1")))
_GELU = _rowwise((*_FLOAT_ROWS, *_unused("type_in1", "param1"), _limit("param0", 1, "0 (erf) or 1 (tanh)")))


def _reduce(function: Reduce) -> TileForm:
    same, index = _type("type_out", same="type_in0"), _type("type_out", (DataType.INT32,))
    results = {
        Reduce.ARGMAX: (index,), Reduce.SUM: (index.only_for("type_in0", INTEGERS), same.only_for("type_in0", FLOATS)),
    }.get(function, (same,))  # fmt: skip
    unused = *_unused("type_in1", "type_kv", "param0", "param1"), *_nonzero("mn")
    sources = _type("type_in0", FLOATS if function is Reduce.MEAN else TYPES)
    return _rowwise((sources, *results, *unused), columns=Extent.ONE)


def pool_window(d: Descriptor) -> Windows:
    """Return the window of POOL in tile form."""
    kh, kw, sh, sw = d.param0.to_bytes(4, "little")
    pt, pl, pb, pr = d.param1.to_bytes(4, "little")
    return Windows(1, d.tile_m, d.tile_n, kh, kw, sh, sw, 1, 1, pt, pl, pb, pr)


def _pool(types: Collection[DataType]) -> TileForm:
    rules = (
        _type("type_in0", types),
        _type("type_out", same="type_in0"),
        *_unused("type_in1", "type_kv"),
        *_nonzero("mnk"),
        Rule(Requirement.WINDOWS, "param0", TicketError.SHAPE),
    )
    pixels = OperandForm("in0", Extent.PIXELS, _K, "type_in0")
    return TileForm(rules, (pixels, OperandForm("out", Extent.WINDOWS, _K, "type_out")))


_ROPE = _rowwise(
    (
        *_FLOAT_ROWS,
        _type("type_in1", (DataType.FP32,), "type_in0"),
        *_unused("param1"),
        Rule(Requirement.EVEN, "tile_n", TicketError.SHAPE),
        _limit("param0", 1, "0 or 1", TicketError.SHAPE),
    ),
    OperandForm("in1", _M, _N, "type_in1"),
)

_GATHER = TileForm(
    (
        _type("type_in0", TYPES),
        _type("type_in1", (DataType.INT32,)),
        _type("type_out", same="type_in0"),
        *_unused("type_kv", "param1"),
        *_nonzero("mnk"),
        _stride("param0", "type_in0"),
    ),
    (
        OperandForm("in0", _N, _K, "type_in0", "param0"),
        OperandForm("in1", Extent.ONE, _M, "type_in1"),
        OperandForm("out", _M, _K, "type_out"),
    ),
)


def _kv(name: str, unused: str, source: str, target: str) -> TileForm:
    """Return a move between the cache, of type_kv, and the scratchpad, of the type `name`: the same, or floats. Only
    floats that an integer cache holds are scaled."""
    words = _unused("param0", "param1")
    rules = (
        _type("type_kv", (*FLOATS, *SMALL_INTEGERS)),
        _type(name, FLOATS, "type_kv"),
        *_unused("type_in1", unused),
        *_nonzero("mk"),
        *(rule.only_for("type_kv", FLOATS) for rule in words),
        *(rule.only_for(name, INTEGERS) for rule in words),
    )
    return TileForm(rules, (OperandForm("in0", _M, _K, source), OperandForm("out", _M, _K, target)))


_NOTHING = TileForm()

OPERATIONS: dict[Opcode, Operation] = {
    Opcode.NOP: Operation(None, _forms(Opcode.NOP, _NOTHING)),
    Opcode.LOAD: Operation(Kind.DMA, _forms(Opcode.LOAD, _LOAD), in_dram="in0"),
    Opcode.STORE: Operation(Kind.DMA, _forms(Opcode.STORE, _STORE), in_dram="out"),
    Opcode.GEMM_T: Operation(Kind.TE, _forms(Opcode.GEMM_T, _GEMM), ("accumulate", "in1_nk"), macro=True),
    Opcode.CONV2D_T: Operation(Kind.TE, {}, ("in1_nk",), macro=True),
    Opcode.ATTN_T: Operation(Kind.TE, {}, macro=True),
    Opcode.ELTWISE: Operation(Kind.VE, {function: _eltwise(function) for function in Eltwise}, macro=True),
    Opcode.LAYERNORM: Operation(Kind.VE, {Norm.LAYER: _norm(Extent.TWO), Norm.RMS: _norm(Extent.ONE)}, macro=True),
    Opcode.SOFTMAX: Operation(Kind.VE, _forms(Opcode.SOFTMAX, _SOFTMAX), macro=True),
    Opcode.GELU: Operation(Kind.VE, _forms(Opcode.GELU, _GELU), macro=True),
    Opcode.POOL: Operation(Kind.VE, {Pool.MAX: _pool(TYPES), Pool.AVG: _pool(FLOATS)}, macro=True),
    Opcode.REDUCE: Operation(Kind.VE, {function: _reduce(function) for function in Reduce}, macro=True),
    Opcode.COPY: Operation(Kind.VE, _forms(Opcode.COPY, _LOAD), macro=True),
    Opcode.GATHER: Operation(Kind.DMA, _forms(Opcode.GATHER, _GATHER), macro=True, in_dram="in0"),
    Opcode.ROPE: Operation(Kind.VE, _forms(Opcode.ROPE, _ROPE), macro=True),
    Opcode.KV_READ: Operation(
        Kind.DMA, _forms(Opcode.KV_READ, _kv("type_out", "type_in0", "type_kv", "type_out")), macro=True, in_dram="in0"
    ),
    Opcode.KV_APPEND: Operation(
        Kind.DMA,
        _forms(Opcode.KV_APPEND, _kv("type_in0", "type_out", "type_in0", "type_kv")),
        macro=True,
        in_dram="out",
    ),
    Opcode.BARRIER: Operation(None, _forms(Opcode.BARRIER, _NOTHING)),
    Opcode.CORE: Operation(None, _forms(Opcode.CORE, _NOTHING)),
}
"""The commands of the device."""

assert set(OPERATIONS) == set(Opcode), "every opcode has a row"


def holds_sum(d: Descriptor) -> bool:
    """Check whether a GEMM_T keeps its sum in the accumulator."""
    return d.opcode == Opcode.GEMM_T and bool(d.function & Gemm.HOLD)
