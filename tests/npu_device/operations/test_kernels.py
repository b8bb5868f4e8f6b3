"""What commands compute: docs/numerics.md, checked with numpy, ml_dtypes and exact rationals."""

import math
from fractions import Fraction
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from npu_rig import SPM, Rig
from shares import draws

from npu_device.abi.descriptor import Descriptor
from npu_device.abi.opcodes import BITS, DataType, Eltwise, Norm, Opcode, Reduce
from npu_device.config import NpuConfig
from npu_device.memory.operands import FLOATS, INTEGERS, TYPES
from npu_device.operations.kernels import elements
from npu_device.operations.tile_form import Broadcast

T = DataType
Array = np.ndarray[Any, Any]
IN0, IN1, OUT = SPM, SPM + 0x4_0000, SPM + 0x8_0000


def f32_bits(value: float) -> int:
    return int(np.float32(value).view(np.uint32))


def u32(value: int) -> int:
    return value & 0xFFFF_FFFF


def run(descriptor: Descriptor, in0: Array, in1: Array | None = None, out: Array | None = None) -> Array:
    """Execute with operands given as arrays of `elements.DTYPE`; the result as an array."""
    rig = Rig(NpuConfig())
    d = descriptor.with_(in0_addr=IN0, in1_addr=IN1, out_addr=OUT)
    rig.poke(IN0, elements.encode(in0, T(d.type_in0)))
    if in1 is not None:
        rig.poke(IN1, elements.encode(in1, T(d.type_in1)))
    if out is not None:
        rig.poke(OUT, elements.encode(out, T(d.type_out)))
    rig.submit(d)
    rig.idle()
    assert not rig.device.error_log, rig.device.error_log
    columns = 1 if d.opcode == Opcode.REDUCE else d.tile_n
    size = d.tile_m * ((columns * BITS[T(d.type_out)] + 7) // 8)
    data = np.frombuffer(rig.bytes_at(OUT, size), np.uint8).reshape(d.tile_m, -1)
    return elements.decode(data, T(d.type_out), d.tile_m, columns)


def integers(kind: DataType, shape: tuple[int, int], seed: int = 1) -> Array:
    low, high = elements.limits(kind)
    return np.random.default_rng(seed).integers(low, high + 1, shape).astype(elements.DTYPE[kind])


def floats(kind: DataType, shape: tuple[int, int], seed: int = 1, scale: float = 2.0) -> Array:
    return (np.random.default_rng(seed).standard_normal(shape) * scale).astype(np.float32).astype(elements.DTYPE[kind])


# -- elements ----------------------------------------------------------------------------------------------------------


@settings(deadline=None)
@given(st.sampled_from(INTEGERS), st.integers(1, 5), st.integers(1, 9), st.integers(0, 99))
def test_elements_below_a_byte_are_packed_low_bits_first_and_rows_padded(
    kind: DataType, rows: int, columns: int, seed: int
) -> None:
    values = integers(kind, (rows, columns), seed)
    data = elements.encode(values, kind)
    bits = BITS[kind]
    expected = []
    for row in values.tolist():
        word = sum((value & ((1 << bits) - 1)) << (bits * index) for index, value in enumerate(row))
        expected.append(word.to_bytes((columns * bits + 7) // 8, "little"))
    assert data.tobytes() == b"".join(expected)
    assert np.array_equal(elements.decode(data, kind, rows, columns), values)


# -- GEMM_T ------------------------------------------------------------------------------------------------------------


def gemm(m: int, n: int, k: int, in0: DataType, in1: DataType, out: DataType, **more: int) -> Descriptor:
    return Descriptor(opcode=Opcode.GEMM_T, tile_m=m, tile_n=n, tile_k=k, type_in0=in0, type_in1=in1, type_out=out,
                      **more)  # fmt: skip


@pytest.mark.parametrize("in1", [T.INT8, T.UINT8, T.INT4, T.INT2])
@pytest.mark.parametrize("in0", [T.INT8, T.UINT8, T.UINT4])
@pytest.mark.parametrize("nk", [0, 1])
def test_integer_gemm_is_exact(in0: DataType, in1: DataType, nk: int) -> None:
    a, b = integers(in0, (7, 33), 2), integers(in1, (5, 33) if nk else (33, 5), 3)
    out = run(gemm(7, 5, 33, in0, in1, T.INT32, in1_nk=nk), a, b)
    assert np.array_equal(out, a.astype(np.int64) @ (b.T if nk else b).astype(np.int64))


def test_integer_sums_wrap() -> None:
    rig = Rig(NpuConfig())
    rig.spm[0][: 255 * 255] = 255
    base = gemm(1, 1, 65000, T.UINT8, T.UINT8, T.INT32, in0_addr=SPM, in1_addr=SPM, out_addr=OUT)
    rig.submit(base.with_(function=1))
    rig.submit(base.with_(accumulate=1))
    rig.idle()
    exact = 2 * 65000 * 255 * 255
    assert exact > 2**32
    assert int.from_bytes(rig.bytes_at(OUT, 4), "little") == exact % 2**32


@settings(max_examples=draws(60), deadline=None)
@given(
    st.lists(st.integers(-128, 127), min_size=8, max_size=8),
    st.floats(2.0**-12, 4.0, width=32),
    st.integers(-130, 260),
    st.sampled_from((T.INT8, T.UINT8)),
)
def test_requantize_rounds_half_to_even_after_the_zero_point(
    values: list[int], multiplier: float, zero: int, out: DataType
) -> None:
    a = np.array(values, np.int8).reshape(8, 1)
    b = np.array([[3]], np.int8)
    got = run(gemm(8, 1, 1, T.INT8, T.INT8, out, param0=f32_bits(multiplier), param1=u32(zero)), a, b)
    low, high = elements.limits(out)
    for value, result in zip(values, got[:, 0].tolist(), strict=True):
        assert result == min(max(round(3 * value * Fraction(multiplier) + zero), low), high)


@pytest.mark.parametrize("kind", FLOATS)
def test_float_gemm_keeps_sums_in_fp32_and_rounds_once(kind: DataType) -> None:
    a, b = floats(kind, (6, 40), 4), floats(kind, (40, 5), 5)
    exact = a.astype(np.float64) @ b.astype(np.float64)
    assert np.array_equal(run(gemm(6, 5, 40, kind, kind, T.FP32), a, b), exact.astype(np.float32))
    limit = {T.E4M3FN: 448.0, T.E5M2: 57344.0}.get(kind, np.inf)
    rounded = np.clip(exact.astype(np.float32), -limit, limit).astype(elements.DTYPE[kind])
    assert np.array_equal(run(gemm(6, 5, 40, kind, kind, kind), a, b), rounded)


def test_tile_sums_are_added_in_fp32_in_k_order() -> None:
    rig = Rig(NpuConfig())
    tiles = [(1.0, 1.0), (2.0**-12, 2.0**-12), (2.0**-12, 2.0**-12), (-1.0, 1.0)]
    total = np.float32(0)
    for index, (a, b) in enumerate(tiles):
        rig.poke(IN0 + 16 * index, np.array([a], np.float16))
        rig.poke(IN1 + 16 * index, np.array([b], np.float16))
        total = np.float32(total + np.float32(a * b))
        rig.submit(
            gemm(
                1,
                1,
                1,
                T.FP16,
                T.FP16,
                T.FP32,
                in0_addr=IN0 + 16 * index,
                in1_addr=IN1 + 16 * index,
                out_addr=OUT,
                accumulate=int(index > 0),
                function=int(index < 3),
            )
        )
        if index == 2:
            rig.idle()
            assert rig.bytes_at(OUT, 4) == bytes(4)  # in the accumulator: nothing is written
    rig.idle()
    assert rig.bytes_at(OUT, 4) == total.tobytes()
    assert total == 0.0 != 2.0**-23  # fp32 has lost what fp64 would have kept


def test_fp8_saturates() -> None:
    a = np.array([[400.0]], ml_dtypes.float8_e4m3fn)
    assert float(run(gemm(1, 1, 1, T.E4M3FN, T.E4M3FN, T.E4M3FN), a, a)[0, 0]) == 448.0


# -- ELTWISE -----------------------------------------------------------------------------------------------------------


def eltwise(
    function: Eltwise, shape: tuple[int, int], in0: DataType, in1: int, out: DataType, **more: int
) -> Descriptor:
    return Descriptor(opcode=Opcode.ELTWISE, function=function, tile_m=shape[0], tile_n=shape[1], type_in0=in0,
                      type_in1=in1, type_out=out, **more)  # fmt: skip


def int_divide(a: int, b: int) -> int:
    return 0 if b == 0 else int(Fraction(a, b))  # towards zero


INTEGER_BINARY = {
    Eltwise.ADD: lambda a, b: a + b,
    Eltwise.SUB: lambda a, b: a - b,
    Eltwise.MUL: lambda a, b: a * b,
    Eltwise.DIV: int_divide,
    Eltwise.REM: lambda a, b: a - int_divide(a, b) * b,
    Eltwise.MAX: max,
    Eltwise.MIN: min,
    Eltwise.AND: lambda a, b: a & b,
    Eltwise.OR: lambda a, b: a | b,
    Eltwise.XOR: lambda a, b: a ^ b,
    Eltwise.SHL: lambda a, b: a << b if 0 <= b < 32 else 0,
    Eltwise.SHR: lambda a, b: a >> (b if 0 <= b < 32 else 32),
}


@pytest.mark.parametrize("kind", INTEGERS)
@pytest.mark.parametrize("function", INTEGER_BINARY)
def test_integer_arithmetic_is_exact_and_wraps(function: Eltwise, kind: DataType) -> None:
    shape = (9, 31)
    a, b = integers(kind, shape, 6), integers(kind, shape, 7)
    a[0, 0], b[0, 0] = elements.limits(kind)[0], -1 if elements.limits(kind)[0] else 1
    b[1] = np.arange(31) % min(34, elements.limits(kind)[1] + 1)  # numbers of places
    got = run(eltwise(function, shape, kind, kind, kind), a, b)
    low, high = elements.limits(kind)
    for x, y, z in zip(a.ravel().tolist(), b.ravel().tolist(), got.ravel().tolist(), strict=True):
        assert z == (INTEGER_BINARY[function](x, y) - low) % (high - low + 1) + low


FLOAT_BINARY = {
    Eltwise.ADD: np.add,
    Eltwise.SUB: np.subtract,
    Eltwise.MUL: np.multiply,
    Eltwise.DIV: np.divide,
    Eltwise.MAX: np.maximum,
    Eltwise.MIN: np.minimum,
    Eltwise.POW: np.power,
}
FLOAT_UNARY = {
    Eltwise.RELU: lambda x: max(x, 0.0),
    Eltwise.SIGMOID: lambda x: 1 / (1 + math.exp(-x)),
    Eltwise.TANH: math.tanh,
    Eltwise.ERF: math.erf,
    Eltwise.EXP: math.exp,
    Eltwise.SQRT: math.sqrt,
    Eltwise.FLOOR: math.floor,
    Eltwise.CEIL: math.ceil,
    Eltwise.ROUND: round,
    Eltwise.RELU6: lambda x: min(max(x, 0.0), 6.0),
    Eltwise.SILU: lambda x: x / (1 + math.exp(-x)),
    Eltwise.HARD_SIGMOID: lambda x: min(max(x / 6 + 0.5, 0.0), 1.0),
    Eltwise.HARD_SWISH: lambda x: x * min(max(x / 6 + 0.5, 0.0), 1.0),
    Eltwise.MISH: lambda x: x * math.tanh(math.log1p(math.exp(x))),
}


def rounded(values: Array, kind: DataType) -> Array:
    limit = {T.E4M3FN: 448.0, T.E5M2: 57344.0}.get(kind, np.inf)
    with np.errstate(all="ignore"):
        return np.clip(values.astype(np.float32), -limit, limit).astype(elements.DTYPE[kind])


def same(a: Array, b: Array) -> bool:
    return a.dtype == b.dtype and np.array_equal(a.astype(np.float64), b.astype(np.float64), equal_nan=True)


@pytest.mark.parametrize("kind", FLOATS)
@pytest.mark.parametrize("function", FLOAT_BINARY)
def test_float_arithmetic_is_fp32_rounded_once(function: Eltwise, kind: DataType) -> None:
    a, b = floats(kind, (5, 17), 8), floats(kind, (5, 17), 9)
    with np.errstate(all="ignore"):
        if function is Eltwise.POW:
            expected = np.power(a.astype(np.float64), b.astype(np.float64))
        else:
            expected = FLOAT_BINARY[function](a.astype(np.float32), b.astype(np.float32))
    assert same(run(eltwise(function, (5, 17), kind, kind, kind), a, b), rounded(expected, kind))


PATTERNS = {
    T.FP32: (0x7FC0_0000, 0xFFC0_1234), T.FP16: (0x7E00, 0xFE12), T.BF16: (0x7FC0, 0xFFC5), T.E4M3FN: (0x7F, 0xFF),
    T.E5M2: (0x7E, 0xFF),
}  # fmt: skip
"""The not-a-number of docs/numerics.md, and another one."""


@pytest.mark.parametrize("kind", FLOATS)
def test_zeros_of_a_maximum_are_positive_and_every_not_a_number_has_one_pattern(kind: DataType) -> None:
    dtype = elements.DTYPE[kind]
    bits = np.dtype(f"<u{dtype.itemsize}")
    own, other = (np.array([pattern], bits).view(dtype)[0] for pattern in PATTERNS[kind])
    sign = 1 << 8 * dtype.itemsize - 1
    zero, minus = dtype.type(0), np.array([sign], bits).view(dtype)[0]
    a = np.array([[zero, minus, minus, other, zero, other] * 8], dtype)
    b = np.array([[minus, zero, minus, zero, other, other] * 8], dtype)
    expected = [0, 0, 0, *[PATTERNS[kind][0]] * 3] * 8
    for function, second in ((Eltwise.MAX, b), (Eltwise.MIN, b), (Eltwise.RELU, None)):
        made = run(eltwise(function, (1, 48), kind, kind if second is not None else 0, kind), a, second)
        wanted = expected if second is not None else [0, 0, 0, PATTERNS[kind][0], 0, PATTERNS[kind][0]] * 8
        assert made.view(bits).ravel().tolist() == wanted
    for row, wanted in (([minus, zero, minus], 0), ([minus, other, own], PATTERNS[kind][0])):
        d = Descriptor(opcode=Opcode.REDUCE, function=Reduce.MAX, tile_m=1, tile_n=3, type_in0=kind, type_out=kind)
        assert run(d, np.array([row], dtype)).view(bits).item() == wanted


@pytest.mark.parametrize("kind", FLOATS)
@pytest.mark.parametrize("function", FLOAT_UNARY)
def test_float_functions(function: Eltwise, kind: DataType) -> None:
    a = floats(kind, (4, 19), 10)
    if function is Eltwise.SQRT:
        a = np.abs(a.astype(np.float32)).astype(a.dtype)
    expected = np.array([[FLOAT_UNARY[function](float(x)) for x in row] for row in a])
    got = run(eltwise(function, (4, 19), kind, 0, kind), a)
    if function in (Eltwise.RELU, Eltwise.SQRT):
        assert same(got, rounded(expected, kind))
    else:  # libm's and numpy's last bit may differ before the rounding
        error = np.abs(got.astype(np.float64) - expected)
        step = {T.FP32: 2**-23, T.FP16: 2**-10, T.BF16: 2**-7, T.E4M3FN: 2**-3, T.E5M2: 2**-2}[kind]
        assert (error <= 0.51 * step * np.maximum(np.abs(expected), 2.0**-6)).all()


@pytest.mark.parametrize("kind", [T.INT8, T.INT32, T.UINT8, T.INT4])
def test_integer_relu_and_clip(kind: DataType) -> None:
    a = integers(kind, (3, 11), 11)
    assert np.array_equal(run(eltwise(Eltwise.RELU, (3, 11), kind, 0, kind), a), np.maximum(a, 0))
    clipped = run(eltwise(Eltwise.CLIP, (3, 11), kind, 0, kind, param0=u32(-3), param1=5), a)
    assert np.array_equal(clipped, np.clip(a.astype(np.int64), -3, 5))


def test_float_clip() -> None:
    a = floats(T.FP16, (3, 11), 12)
    d = eltwise(Eltwise.CLIP, (3, 11), T.FP16, 0, T.FP16, param0=f32_bits(-0.5), param1=f32_bits(1.25))
    assert np.array_equal(run(d, a), np.clip(a, -0.5, 1.25))


@pytest.mark.parametrize("mode", list(Broadcast))
def test_broadcast_of_the_second_operand(mode: Broadcast) -> None:
    shape = {Broadcast.FULL: (4, 6), Broadcast.ROW: (1, 6), Broadcast.COLUMN: (4, 1), Broadcast.SCALAR: (1, 1)}[mode]
    a, b = integers(T.INT8, (4, 6), 13), integers(T.INT8, shape, 14)
    got = run(eltwise(Eltwise.ADD, (4, 6), T.INT8, T.INT8, T.INT8, param1=mode), a, b)
    assert np.array_equal(got, (a.astype(int) + b).astype(np.int8))


@pytest.mark.parametrize("kind", [T.FP16, T.INT4, T.INT32])
def test_where_keeps_what_is_not_selected(kind: DataType) -> None:
    condition = integers(T.UINT8, (5, 7), 15) % 3
    make = floats if kind in FLOATS else integers
    x, y = make(kind, (5, 7), 16), make(kind, (5, 7), 17)
    got = run(eltwise(Eltwise.WHERE, (5, 7), T.UINT8, kind, kind), condition, x, y)
    assert np.array_equal(got, np.where(condition != 0, x, y))


@pytest.mark.parametrize("out", TYPES)
@pytest.mark.parametrize("kind", [T.FP32, T.FP16, T.INT32, T.INT8, T.UINT8, T.INT4])
def test_cast(kind: DataType, out: DataType) -> None:
    a = floats(kind, (6, 9), 18, scale=90.0) if kind in FLOATS else integers(kind, (6, 9), 18)
    got = run(eltwise(Eltwise.CAST, (6, 9), kind, 0, out), a)
    for x, y in zip(a.ravel().tolist(), got.ravel().tolist(), strict=True):
        if out in INTEGERS:
            low, high = elements.limits(out)
            if kind in FLOATS:
                assert y == min(max(math.trunc(x), low), high)
            else:
                assert y == (x - low) % (high - low + 1) + low
        else:
            assert float(y) == float(rounded(np.array([float(x)]).astype(np.float64), out)[0])


def test_cast_of_what_is_not_a_number() -> None:
    a = np.array([[np.nan, np.inf, -np.inf]], np.float32)
    assert run(eltwise(Eltwise.CAST, (1, 3), T.FP32, 0, T.INT8), a).tolist() == [[0, 127, -128]]


@settings(max_examples=draws(60), deadline=None)
@given(
    st.lists(st.floats(-1e4, 1e4, width=32), min_size=6, max_size=6),
    st.floats(2.0**-10, 64.0, width=32),
    st.integers(-8, 8),
    st.sampled_from((T.INT8, T.UINT8, T.INT4, T.UINT4, T.INT2)),
)
def test_quantize_as_onnx_does(values: list[float], scale: float, zero: int, out: DataType) -> None:
    a = np.array([values], np.float32)
    d = eltwise(Eltwise.QUANT, (1, 6), T.FP32, 0, out, param0=f32_bits(scale), param1=u32(zero))
    low, high = elements.limits(out)
    expected = [min(max(round(float(np.float32(x) / np.float32(scale))) + zero, low), high) for x in values]
    assert run(d, a)[0].tolist() == expected


def test_ties_are_rounded_before_or_after_the_zero_point() -> None:
    """QuantizeLinear rounds and then adds the zero point; requantizing adds it and then rounds."""
    halves = np.array([[1, 3, 5, -1, -3]], np.int32)
    onnx = eltwise(Eltwise.QUANT, (1, 5), T.FP32, 0, T.INT8, param0=f32_bits(2.0), param1=1)
    assert run(onnx, halves.astype(np.float32))[0].tolist() == [1, 3, 3, 1, -1]
    sums = eltwise(Eltwise.QUANT, (1, 5), T.INT32, 0, T.INT8, param0=f32_bits(0.5), param1=1)
    assert run(sums, halves)[0].tolist() == [2, 2, 4, 0, 0]
    product = gemm(5, 1, 1, T.INT8, T.INT8, T.INT8, param0=f32_bits(0.5), param1=1)
    assert run(product, halves.T.astype(np.int8), np.array([[1]], np.int8))[:, 0].tolist() == [2, 2, 4, 0, 0]


def test_quantize_of_sums_is_requantize() -> None:
    a = np.array([[5, 15, 25, -5, -15, 100000]], np.int32)
    d = eltwise(Eltwise.QUANT, (1, 6), T.INT32, 0, T.INT8, param0=f32_bits(0.1), param1=3)
    scale = float(np.float64(np.float32(0.1)))
    assert run(d, a)[0].tolist() == [max(-128, min(127, round(x * scale + 3))) for x in a[0].tolist()]


@pytest.mark.parametrize("kind", INTEGERS)
@pytest.mark.parametrize("out", [T.FP32, T.FP16, T.BF16])
def test_dequantize(kind: DataType, out: DataType) -> None:
    a = integers(kind, (3, 8), 19)
    d = eltwise(Eltwise.DEQUANT, (3, 8), kind, 0, out, param0=f32_bits(0.037), param1=u32(-2))
    expected = ((a.astype(np.int64) + 2).astype(np.float64) * np.float64(np.float32(0.037))).astype(np.float32)
    assert same(run(d, a), rounded(expected, out))


# -- rows --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [T.FP32, T.FP16, T.BF16])
def test_softmax(kind: DataType) -> None:
    a = floats(kind, (4, 23), 20, scale=30.0)
    got = run(Descriptor(opcode=Opcode.SOFTMAX, tile_m=4, tile_n=23, type_in0=kind, type_out=kind), a)
    x = a.astype(np.longdouble)
    e = np.exp(x - x.max(axis=1, keepdims=True))
    assert same(got, rounded(e / e.sum(axis=1, keepdims=True), kind))


@pytest.mark.parametrize("function", list(Norm))
@pytest.mark.parametrize("kind", [T.FP32, T.FP16])
def test_norms(function: Norm, kind: DataType) -> None:
    a, w = floats(kind, (5, 31), 21), floats(kind, (2, 31), 22)
    d = Descriptor(opcode=Opcode.LAYERNORM, function=function, tile_m=5, tile_n=31, type_in0=kind, type_in1=kind,
                   type_out=kind, param0=f32_bits(1e-5))  # fmt: skip
    got = run(d, a, w if function is Norm.LAYER else w[:1]).astype(np.float64)
    x = a.astype(np.longdouble)
    gamma, beta = w.astype(np.longdouble)
    epsilon = np.longdouble(np.float32(1e-5))
    if function is Norm.LAYER:
        expected = (x - x.mean(1, keepdims=True)) / np.sqrt(x.var(1, keepdims=True) + epsilon) * gamma + beta
    else:
        expected = x / np.sqrt((x * x).mean(1, keepdims=True) + epsilon) * gamma
    assert np.allclose(got, rounded(expected, kind).astype(np.float64), rtol=1e-6, atol=0)


@pytest.mark.parametrize("tanh", [0, 1])
def test_gelu(tanh: int) -> None:
    a = floats(T.FP32, (3, 40), 23)
    got = run(Descriptor(opcode=Opcode.GELU, tile_m=3, tile_n=40, type_in0=T.FP32, type_out=T.FP32, param0=tanh), a)
    for x, y in zip(a.ravel().tolist(), got.ravel().tolist(), strict=True):
        if tanh:
            gate = math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))
        else:
            gate = math.erf(x / math.sqrt(2))
        assert y == pytest.approx(x / 2 * (1 + gate), rel=1e-6, abs=1e-9)


@pytest.mark.parametrize("kind", [T.FP32, T.FP16, T.INT8, T.UINT4, T.INT32])
@pytest.mark.parametrize("function", list(Reduce))
def test_reduce(function: Reduce, kind: DataType) -> None:
    if function is Reduce.MEAN and kind in INTEGERS:
        return
    a = floats(kind, (6, 14), 24) if kind in FLOATS else integers(kind, (6, 14), 24)
    out = T.INT32 if function is Reduce.ARGMAX or (function is Reduce.SUM and kind in INTEGERS) else kind
    d = Descriptor(opcode=Opcode.REDUCE, function=function, tile_m=6, tile_n=14, type_in0=kind, type_out=out)
    got = run(d, a)
    wide = a.astype(np.int64) if kind in INTEGERS else a.astype(np.float64)
    expected = {
        Reduce.SUM: lambda: wide.sum(1, keepdims=True),
        Reduce.MEAN: lambda: wide.mean(1, keepdims=True),
        Reduce.MAX: lambda: wide.max(1, keepdims=True),
        Reduce.ARGMAX: lambda: wide.argmax(1)[:, None],
    }[function]()
    if out in INTEGERS:
        assert np.array_equal(got, expected.astype(np.int32))
    else:
        assert same(got, rounded(expected, out))


def test_copy_moves_strided_rows_inside_the_scratchpad() -> None:
    rig = Rig()
    rig.spm[0][:4096] = np.random.default_rng(25).integers(0, 256, 4096, np.uint8)
    before = rig.spm[0][:4096].copy()
    rig.submit(
        Descriptor(
            opcode=Opcode.COPY,
            tile_m=5,
            tile_k=3,
            type_in0=T.INT32,
            in0_addr=SPM + 64,
            out_addr=SPM + 8192,
            param0=100,
            param1=12,
        )
    )
    rig.idle()
    expected = np.concatenate([before[64 + 100 * i : 64 + 100 * i + 12] for i in range(5)])
    assert np.array_equal(rig.spm[0][8192 : 8192 + 60], expected)
