"""Tile forms by opcode: units, operands and their types (docs/opcodes.md has tables)."""

from collections.abc import Callable, Collection
from enum import IntEnum
from typing import NamedTuple

from npu_device.abi.descriptor import Descriptor
from npu_device.abi.errors import TicketError
from npu_device.abi.opcodes import DataType, Eltwise, Gemm, Norm, Opcode, Pool, Reduce
from npu_device.memory.operands import FLOATS, INTEGERS, TYPES, Matrix, make_matrix, row_bytes
from npu_device.operations.checks import DescriptorError, element_type, nonzero, unused_type, unused_word
from npu_device.operations.windows import Windows, blind
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


class Operands(NamedTuple):
    """Matrices of one command."""

    inputs: tuple[Matrix, ...] = ()
    output: Matrix | None = None


class Operation(NamedTuple):
    """Tile form of an opcode."""

    kind: Kind | None
    """Unit that executes it; None: none, it takes no time."""
    operands: Callable[[Descriptor], Operands] | None
    """DescriptorError when types, shapes or parameters are wrong; None: declared, not executed in tile form."""
    options: Collection[str] = ()
    """Option flags that it takes."""
    macro: bool = False
    """Whether it has a macro form (extended block)."""
    in_dram: str = ""
    """Operand that must be in DRAM: `in0` or `out`. All others are in the scratchpad."""


def _strided(d: Descriptor, address: int, kind: DataType, stride: str) -> Matrix:
    """Return a matrix of tile_m rows of tile_k elements, the named parameter between their starts."""
    distance = getattr(d, stride)
    if 0 < distance < row_bytes(d.tile_k, kind):
        size = row_bytes(d.tile_k, kind)
        raise DescriptorError(
            TicketError.SHAPE, f"{stride} {distance}: rows of {size} overlap: must be 0 or at least {size}"
        )
    return make_matrix(address, d.tile_m, d.tile_k, kind, distance)


ALIGNING = frozenset((Opcode.LOAD, Opcode.STORE, Opcode.KV_READ, Opcode.KV_APPEND))
"""Moves whose tile_n is an alignment."""


def own_alignment(d: Descriptor) -> int:
    """Return the bytes to which the accesses of a move in tile form are widened; 0: those of the device."""
    return d.tile_n if d.opcode in ALIGNING else 0


# -- operands ----------------------------------------------------------------------------------------------------------


def _nothing(d: Descriptor) -> Operands:
    return Operands()


def _move(d: Descriptor, in_stride: str, out_stride: str) -> Operands:
    kind = element_type(d, "type_in0", TYPES)
    unused_type(d, "type_in1", "type_kv")
    if d.type_out not in (DataType.NONE, kind):
        raise DescriptorError(TicketError.DATA_TYPE, f"type_out {d.type_out}: must be 0 or as type_in0, {kind.value}")
    nonzero(d, "tile_m", "tile_k")
    return Operands(
        (_strided(d, d.in0_addr, kind, in_stride),),
        _strided(d, d.out_addr, kind, out_stride),
    )


def _load(d: Descriptor) -> Operands:
    return _move(d, "param0", "param1")


def _store(d: Descriptor) -> Operands:
    return _move(d, "param1", "param0")


def _gemm(d: Descriptor) -> Operands:
    kind0 = element_type(d, "type_in0", (*SMALL_INTEGERS, *FLOATS))
    if kind0 in SMALL_INTEGERS:
        kind1 = element_type(d, "type_in1", SMALL_INTEGERS)
        out = element_type(d, "type_out", (DataType.INT32, *REQUANTIZED))
    else:
        kind1 = element_type(d, "type_in1", (kind0,))
        out = element_type(d, "type_out", (DataType.FP32, kind0))
    unused_type(d, "type_kv")
    nonzero(d, "tile_m", "tile_n", "tile_k")
    if out not in REQUANTIZED:
        unused_word(d, "param0", "param1")
    m, n, k = d.tile_m, d.tile_n, d.tile_k
    in1 = make_matrix(d.in1_addr, n, k, kind1) if d.in1_nk else make_matrix(d.in1_addr, k, n, kind1)
    return Operands((make_matrix(d.in0_addr, m, k, kind0), in1), make_matrix(d.out_addr, m, n, out))


def _rowwise(d: Descriptor, kind: DataType, *more: Matrix, out: DataType | None = None, columns: int = 0) -> Operands:
    """Return in0 of M x N elements of `kind`, and a result, by default of the same shape and type."""
    return Operands(
        (make_matrix(d.in0_addr, d.tile_m, d.tile_n, kind), *more),
        make_matrix(d.out_addr, d.tile_m, columns or d.tile_n, out or kind),
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


def _eltwise(d: Descriptor) -> Operands:
    function = Eltwise(d.function)
    unused_type(d, "type_kv")
    nonzero(d, "tile_m", "tile_n")
    if function in CONVERSIONS:
        sources, targets = CONVERSIONS[function]
        kind, out = element_type(d, "type_in0", sources), element_type(d, "type_out", targets)
        unused_type(d, "type_in1")
        if function is Eltwise.CAST:
            unused_word(d, "param0", "param1")
        return _rowwise(d, kind, out=out)
    if function is Eltwise.WHERE:
        condition = element_type(d, "type_in0", REQUANTIZED)
        kind = element_type(d, "type_in1", TYPES)
        element_type(d, "type_out", (kind,))
        unused_word(d, "param0", "param1")
        return _rowwise(d, condition, make_matrix(d.in1_addr, d.tile_m, d.tile_n, kind), out=kind)
    kind = element_type(d, "type_in0", source_types(function))
    out = element_type(d, "type_out", (DataType.UINT8 if function in COMPARE else kind,))
    if function in BINARY or function in COMPARE:
        element_type(d, "type_in1", (kind,))
        unused_word(d, "param0")
        return _rowwise(d, kind, _second(d, kind), out=out)
    unused_type(d, "type_in1")
    if function is not Eltwise.CLIP:
        unused_word(d, "param0", "param1")
    return _rowwise(d, kind)


def _second(d: Descriptor, kind: DataType) -> Matrix:
    """Return in1 of a function with two operands, in the shape that param1 names."""
    if d.param1 > max(Broadcast):
        raise DescriptorError(TicketError.RESERVED, f"param1 {d.param1}: must be a Broadcast, 0..{len(Broadcast) - 1}")
    rows = 1 if d.param1 in (Broadcast.ROW, Broadcast.SCALAR) else d.tile_m
    columns = 1 if d.param1 in (Broadcast.COLUMN, Broadcast.SCALAR) else d.tile_n
    return make_matrix(d.in1_addr, rows, columns, kind)


def _float_rows(d: Descriptor) -> DataType:
    kind = element_type(d, "type_in0", FLOATS)
    element_type(d, "type_out", (kind,))
    unused_type(d, "type_kv")
    nonzero(d, "tile_m", "tile_n")
    return kind


def _norm(d: Descriptor) -> Operands:
    kind = _float_rows(d)
    element_type(d, "type_in1", (kind,))
    unused_word(d, "param1")
    return _rowwise(d, kind, make_matrix(d.in1_addr, 1 if d.function == Norm.RMS else 2, d.tile_n, kind))


def _softmax(d: Descriptor) -> Operands:
    kind = _float_rows(d)
    unused_type(d, "type_in1")
    unused_word(d, "param0", "param1")
    return _rowwise(d, kind)


def _gelu(d: Descriptor) -> Operands:
    kind = _float_rows(d)
    unused_type(d, "type_in1")
    unused_word(d, "param1")
    if d.param0 > 1:
        raise DescriptorError(TicketError.RESERVED, f"param0 {d.param0}: must be 0 (erf) or 1 (tanh)")
    return _rowwise(d, kind)


def reduce_types(d: Descriptor) -> tuple[DataType, DataType]:
    """Return (in0, out) of REDUCE."""
    kind = element_type(d, "type_in0", FLOATS if d.function == Reduce.MEAN else TYPES)
    integer = d.function == Reduce.ARGMAX or (d.function == Reduce.SUM and kind in INTEGERS)
    return kind, element_type(d, "type_out", (DataType.INT32 if integer else kind,))


def _reduce(d: Descriptor) -> Operands:
    kind, out = reduce_types(d)
    unused_type(d, "type_in1", "type_kv")
    unused_word(d, "param0", "param1")
    nonzero(d, "tile_m", "tile_n")
    return _rowwise(d, kind, out=out, columns=1)


def pool_window(d: Descriptor) -> Windows:
    """Return the window of POOL in tile form."""
    kh, kw, sh, sw = d.param0.to_bytes(4, "little")
    pt, pl, pb, pr = d.param1.to_bytes(4, "little")
    return Windows(1, d.tile_m, d.tile_n, kh, kw, sh, sw, 1, 1, pt, pl, pb, pr)


def _pool(d: Descriptor) -> Operands:
    kind = element_type(d, "type_in0", TYPES if d.function == Pool.MAX else FLOATS)
    element_type(d, "type_out", (kind,))
    unused_type(d, "type_in1", "type_kv")
    nonzero(d, "tile_m", "tile_n", "tile_k")
    s = pool_window(d)
    if not all((s.kh, s.kw, s.sh, s.sw)) or s.p < 1 or s.q < 1 or blind(s):
        raise DescriptorError(TicketError.SHAPE, f"windows of {s.kh} x {s.kw} do not fit {s.h} x {s.w} with its pads")
    return Operands(
        (make_matrix(d.in0_addr, s.h * s.w, d.tile_k, kind),), make_matrix(d.out_addr, s.pixels, d.tile_k, kind)
    )


def _rope(d: Descriptor) -> Operands:
    kind = _float_rows(d)
    table = element_type(d, "type_in1", dict.fromkeys((kind, DataType.FP32)))
    unused_word(d, "param1")
    if d.tile_n % 2 or d.param0 > 1:
        raise DescriptorError(TicketError.SHAPE, f"tile_n {d.tile_n} must be even, param0 {d.param0} 0 or 1")
    return _rowwise(d, kind, make_matrix(d.in1_addr, d.tile_m, d.tile_n, table))


def _gather(d: Descriptor) -> Operands:
    kind = element_type(d, "type_in0", TYPES)
    element_type(d, "type_in1", (DataType.INT32,))
    element_type(d, "type_out", (kind,))
    unused_type(d, "type_kv")
    unused_word(d, "param1")
    nonzero(d, "tile_m", "tile_n", "tile_k")
    size = row_bytes(d.tile_k, kind)
    if 0 < d.param0 < size:
        raise DescriptorError(
            TicketError.SHAPE, f"param0 {d.param0}: rows of {size} overlap: must be 0 or at least {size}"
        )
    table = make_matrix(d.in0_addr, d.tile_n, d.tile_k, kind, d.param0)
    indices = make_matrix(d.in1_addr, 1, d.tile_m, DataType.INT32)
    return Operands((table, indices), make_matrix(d.out_addr, d.tile_m, d.tile_k, kind))


def _kv(d: Descriptor, name: str, other: str) -> tuple[DataType, DataType]:
    """Return (cache, scratchpad): the same type, or floats in the scratchpad."""
    kind_kv = element_type(d, "type_kv", (*FLOATS, *SMALL_INTEGERS))
    kind = element_type(d, name, dict.fromkeys((*FLOATS, kind_kv)))
    unused_type(d, "type_in1", other)
    nonzero(d, "tile_m", "tile_k")
    if kind is kind_kv or kind_kv in FLOATS:
        unused_word(d, "param0", "param1")
    return kind_kv, kind


def _kv_read(d: Descriptor) -> Operands:
    cache, kind = _kv(d, "type_out", "type_in0")
    rows = make_matrix(d.in0_addr, d.tile_m, d.tile_k, cache)
    return Operands((rows,), make_matrix(d.out_addr, d.tile_m, d.tile_k, kind))


def _kv_append(d: Descriptor) -> Operands:
    cache, kind = _kv(d, "type_in0", "type_out")
    rows = make_matrix(d.in0_addr, d.tile_m, d.tile_k, kind)
    return Operands((rows,), make_matrix(d.out_addr, d.tile_m, d.tile_k, cache))


OPERATIONS: dict[Opcode, Operation] = {
    Opcode.NOP: Operation(None, _nothing),
    Opcode.LOAD: Operation(Kind.DMA, _load, in_dram="in0"),
    Opcode.STORE: Operation(Kind.DMA, _store, in_dram="out"),
    Opcode.GEMM_T: Operation(Kind.TE, _gemm, ("accumulate", "in1_nk"), macro=True),
    Opcode.CONV2D_T: Operation(Kind.TE, None, ("in1_nk",), macro=True),
    Opcode.ATTN_T: Operation(Kind.TE, None, macro=True),
    Opcode.ELTWISE: Operation(Kind.VE, _eltwise, macro=True),
    Opcode.LAYERNORM: Operation(Kind.VE, _norm, macro=True),
    Opcode.SOFTMAX: Operation(Kind.VE, _softmax, macro=True),
    Opcode.GELU: Operation(Kind.VE, _gelu, macro=True),
    Opcode.POOL: Operation(Kind.VE, _pool, macro=True),
    Opcode.REDUCE: Operation(Kind.VE, _reduce, macro=True),
    Opcode.COPY: Operation(Kind.VE, _load, macro=True),
    Opcode.GATHER: Operation(Kind.DMA, _gather, macro=True, in_dram="in0"),
    Opcode.ROPE: Operation(Kind.VE, _rope, macro=True),
    Opcode.KV_READ: Operation(Kind.DMA, _kv_read, macro=True, in_dram="in0"),
    Opcode.KV_APPEND: Operation(Kind.DMA, _kv_append, macro=True, in_dram="out"),
    Opcode.BARRIER: Operation(None, _nothing),
    Opcode.CORE: Operation(None, _nothing),
}
"""The commands of the device."""

assert set(OPERATIONS) == set(Opcode), "every opcode has a row"


def holds(d: Descriptor) -> bool:
    """Check whether a GEMM_T keeps its sum in the accumulator."""
    return d.opcode == Opcode.GEMM_T and bool(d.function & Gemm.HOLD)
