"""Tile forms as functions of a descriptor: a second writing of the rules of `operations.tile_form`, for comparison."""

from collections.abc import Callable
from typing import NamedTuple

from npu_device.abi.descriptor import Descriptor
from npu_device.abi.errors import TicketError
from npu_device.abi.memory_map import SPM_BASE, SPM_CLUSTER_STRIDE
from npu_device.abi.opcodes import FUNCTIONS, DataType, Eltwise, Norm, Opcode, Pool, Reduce
from npu_device.config import NpuConfig
from npu_device.decode.banks import Banks
from npu_device.memory.memory import Memory
from npu_device.memory.operands import ELEMENT_BYTES, FLOATS, INTEGERS, TYPES, Matrix, make_matrix, row_bytes
from npu_device.operations.checks import DescriptorError, element_type, nonzero, unused_type, unused_word
from npu_device.operations.limits import check_pads
from npu_device.operations.tile_form import (
    ALIGNING,
    BINARY,
    COMPARE,
    CONVERSIONS,
    REQUANTIZED,
    SMALL_INTEGERS,
    Broadcast,
    pool_window,
    source_types,
)
from npu_device.operations.windows import blind
from npu_device.trace.events import Kind, unit_counts

E = TicketError


class Operands(NamedTuple):
    """Matrices of one command."""

    inputs: tuple[Matrix, ...] = ()
    output: Matrix | None = None


def _strided(d: Descriptor, address: int, kind: DataType, stride: str) -> Matrix:
    """Return a matrix of tile_m rows of tile_k elements, the named parameter between their starts."""
    distance = getattr(d, stride)
    if 0 < distance < row_bytes(d.tile_k, kind):
        size = row_bytes(d.tile_k, kind)
        raise DescriptorError(
            TicketError.SHAPE, f"{stride} {distance}: rows of {size} overlap: must be 0 or at least {size}"
        )
    return make_matrix(address, d.tile_m, d.tile_k, kind, distance)


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


def _reduce_types(d: Descriptor) -> tuple[DataType, DataType]:
    """Return (in0, out) of REDUCE."""
    kind = element_type(d, "type_in0", FLOATS if d.function == Reduce.MEAN else TYPES)
    integer = d.function == Reduce.ARGMAX or (d.function == Reduce.SUM and kind in INTEGERS)
    return kind, element_type(d, "type_out", (DataType.INT32 if integer else kind,))


def _reduce(d: Descriptor) -> Operands:
    kind, out = _reduce_types(d)
    unused_type(d, "type_in1", "type_kv")
    unused_word(d, "param0", "param1")
    nonzero(d, "tile_m", "tile_n")
    return _rowwise(d, kind, out=out, columns=1)


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


_VE = Kind.VE
FORMS: dict[Opcode, tuple[Kind | None, Callable[[Descriptor], Operands] | None]] = {
    Opcode.NOP: (None, _nothing), Opcode.LOAD: (Kind.DMA, _load), Opcode.STORE: (Kind.DMA, _store),
    Opcode.GEMM_T: (Kind.TE, _gemm), Opcode.CONV2D_T: (Kind.TE, None), Opcode.ATTN_T: (Kind.TE, None),
    Opcode.ELTWISE: (_VE, _eltwise), Opcode.LAYERNORM: (_VE, _norm), Opcode.SOFTMAX: (_VE, _softmax),
    Opcode.GELU: (_VE, _gelu), Opcode.POOL: (_VE, _pool), Opcode.REDUCE: (_VE, _reduce), Opcode.COPY: (_VE, _load),
    Opcode.GATHER: (Kind.DMA, _gather), Opcode.ROPE: (_VE, _rope), Opcode.KV_READ: (Kind.DMA, _kv_read),
    Opcode.KV_APPEND: (Kind.DMA, _kv_append), Opcode.BARRIER: (None, _nothing), Opcode.CORE: (None, _nothing),
}  # fmt: skip
IN_DRAM = {
    Opcode.LOAD: "in0", Opcode.STORE: "out", Opcode.GATHER: "in0", Opcode.KV_READ: "in0", Opcode.KV_APPEND: "out",
}  # fmt: skip
OPTIONS = {Opcode.GEMM_T: ("accumulate", "in1_nk"), Opcode.CONV2D_T: ("in1_nk",)}


def decoded(d: Descriptor, config: NpuConfig, memory: Memory) -> Operands:
    """Return the operands of a descriptor without an extended block. DescriptorError, whose text is a code alone."""
    if d.opcode >= len(Opcode):
        raise DescriptorError(E.OPCODE, "")
    opcode = Opcode(d.opcode)
    kind, operands = FORMS[opcode]
    units = 0 if kind is None else unit_counts(config)[kind]
    banks = Banks(config.spm)
    for wrong, code in (
        (d.op_reserved, E.RESERVED),
        (d.cluster >= config.clusters, E.CLUSTER),
        (d.function not in [*map(int, FUNCTIONS.get(opcode, (0,)))], E.FUNCTION),
        (d.accumulate and "accumulate" not in OPTIONS.get(opcode, ()), E.RESERVED),
        (d.in1_nk and "in1_nk" not in OPTIONS.get(opcode, ()), E.RESERVED),
        (d.affinity > units, E.AFFINITY),
        (d.bank_mask and not banks.by_mask[d.bank_mask], E.BANK_MASK),
        (max(d.type_in0, d.type_in1, d.type_out, d.type_kv) > max(DataType), E.DATA_TYPE),
        (operands is None, E.UNSUPPORTED),
    ):
        if wrong:
            raise DescriptorError(code, "")
    assert operands is not None
    inputs, output = found = operands(d)
    limit = min(config.dram.interleave, config.l2.line) if config.l2.enabled else config.dram.interleave
    if opcode in ALIGNING and d.tile_n and (d.tile_n & d.tile_n - 1 or d.tile_n > limit):
        raise DescriptorError(E.SHAPE, "")
    for name, matrix in zip(("in0", "in1"), inputs, strict=False):
        _check_operand(d, config, memory, matrix, IN_DRAM.get(opcode) == name)
    if output is not None:
        _check_operand(d, config, memory, output, IN_DRAM.get(opcode) == "out")
    if opcode is Opcode.POOL:
        check_pads(config.limits, pool_window(d), d.tile_k)
    return found


def _check_operand(d: Descriptor, config: NpuConfig, memory: Memory, matrix: Matrix, in_dram: bool) -> None:
    region, element = matrix.region, ELEMENT_BYTES[matrix.kind]
    address, end = region.address, region.end
    if address % element or region.stride % element:
        raise DescriptorError(E.MISALIGNED, "")
    bases = [SPM_BASE + cluster * SPM_CLUSTER_STRIDE for cluster in range(config.clusters)]
    size, base = config.spm.size, bases[d.cluster]
    if base <= address < base + size and not in_dram:
        if end > base + size:
            raise DescriptorError(E.SHAPE if region.payload > size else E.ADDRESS, "")
        if d.bank_mask and (error := Banks(config.spm).error(d.bank_mask, "", address - base, end - base, "")):
            raise error
        return
    if not memory.holds(address, end - address):
        raise DescriptorError(E.ADDRESS, "")
    if not in_dram:
        raise DescriptorError(E.OPERAND_NOT_IN_SPM, "")
    if any(each < end and address < each + size for each in bases):
        raise DescriptorError(E.ADDRESS, "")
