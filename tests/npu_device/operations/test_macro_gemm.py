"""GEMM_T in macro form: against numpy, and against its own tiles executed one by one in tile form."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from npu_macro import WORK, MacroRig, block, random
from npu_rig import SPM
from shares import draws

from npu_device.abi.descriptor import Descriptor
from npu_device.abi.extended import Epilogue
from npu_device.abi.opcodes import Activation, DataType, Opcode
from npu_device.memory.operands import row_bytes

T = DataType
Array = np.ndarray[Any, Any]


def tile_by_tile(d: Descriptor, m: int, n: int, k: int, in0: Array, in1: Array) -> Array:
    """The product in tile form: LOAD, GEMM_T with accumulate and hold, STORE for each hardware tile."""
    rig = MacroRig()
    kinds = T(d.type_in0), T(d.type_in1), T(d.type_out)
    ld = [row_bytes(in0.shape[1], kinds[0]), row_bytes(in1.shape[1], kinds[1]), row_bytes(n, kinds[2])]
    a, b = rig.put(in0, kinds[0]), rig.put(in1, kinds[1])
    c = rig.place(m * ld[2])
    for i in range(0, m, d.tile_m):
        for j in range(0, n, d.tile_n):
            tm, tn = min(d.tile_m, m - i), min(d.tile_n, n - j)
            for at in range(0, k, d.tile_k):
                tk = min(d.tile_k, k - at)
                row, column = (j, at) if d.in1_nk else (at, j)
                for address, stride, first, second, rows, columns, kind, target in (
                    (a, ld[0], i, at, tm, tk, kinds[0], SPM),
                    (b, ld[1], row, column, *((tn, tk) if d.in1_nk else (tk, tn)), kinds[1], SPM + 0x10000),
                ):
                    source = address + first * stride + row_bytes(second, kind)
                    rig.submit(Descriptor(opcode=Opcode.LOAD, tile_m=rows, tile_k=columns, type_in0=kind,
                                          in0_addr=source, out_addr=target, param0=stride))  # fmt: skip
                more, hold = int(at > 0), int(at + tk < k)
                rig.submit(d.with_(tile_m=tm, tile_n=tn, tile_k=tk, in0_addr=SPM, in1_addr=SPM + 0x10000,
                                   out_addr=SPM + 0x20000, accumulate=more, function=hold))  # fmt: skip
            target = c + i * ld[2] + row_bytes(j, kinds[2])
            rig.submit(Descriptor(opcode=Opcode.STORE, tile_m=tm, tile_k=tn, type_in0=kinds[2], in0_addr=SPM + 0x20000,
                                  out_addr=target, param0=ld[2]))  # fmt: skip
    rig.idle()
    assert not rig.device.error_log
    return rig.get(c, m, n, kinds[2])


sizes = st.integers(1, 20)
tiles = st.sampled_from((4, 8, 16, 32))
locations = st.sampled_from(("dram", "spm"))
kinds = st.sampled_from(
    ((T.INT8, T.INT8, T.INT32), (T.UINT8, T.INT4, T.INT32), (T.INT4, T.INT2, T.INT32), (T.FP16, T.FP16, T.FP32),
     (T.BF16, T.BF16, T.BF16), (T.FP32, T.FP32, T.FP32), (T.E4M3FN, T.E4M3FN, T.E4M3FN), (T.E5M2, T.E5M2, T.FP32))
)  # fmt: skip


@settings(max_examples=draws(60), deadline=None)
@given(sizes, sizes, sizes, st.tuples(tiles, tiles, tiles), kinds, st.booleans(), st.booleans(),
       st.tuples(locations, locations, locations), st.integers(0, 3), st.integers(0, 40))  # fmt: skip
def test_a_macro_equals_its_tiles_one_by_one(
    m: int, n: int, k: int, tile: tuple[int, int, int], kind: tuple[DataType, ...], nk: bool, weight: bool,
    where: tuple[str, str, str], prefetch: int, pad: int,
) -> None:  # fmt: skip
    in0, in1 = random(kind[0], m, k, 1), random(kind[1], *((n, k) if nk else (k, n)), 2)
    d = Descriptor(opcode=Opcode.GEMM_T, tile_m=tile[0], tile_n=tile[1], tile_k=tile[2], type_in0=kind[0],
                   type_in1=kind[1], type_out=kind[2], in1_nk=int(nk), prefetch_dist=prefetch)  # fmt: skip
    rig = MacroRig()
    ld0, ldo = (4 * (row_bytes(k, kind[0]) // 4 + pad), 4 * (row_bytes(n, kind[2]) // 4 + 1 + pad)) if pad else (0, 0)
    ld0 = max(ld0, -(-row_bytes(k, kind[0]) // 4) * 4) if pad else 0
    a, b = rig.put(in0, kind[0], where[0], ld0), rig.put(in1, kind[1], where[1])
    c = rig.place(m * (ldo or row_bytes(n, kind[2])), where[2])
    shape = block(Opcode.GEMM_T, m=m, n=n, k=k, ld0=ld0, ldo=ldo, loop_order=int(weight))
    macro = d.with_(in0_addr=a, in1_addr=b, out_addr=c)
    rig.execute(macro, shape)
    got = rig.get(c, m, n, kind[2], ldo)
    one_by_one = tile_by_tile(d, m, n, k, in0, in1)
    assert got.tobytes() == one_by_one.tobytes()
    if kind[2] is T.INT32:
        assert np.array_equal(got, in0.astype(np.int64) @ (in1.T if nk else in1).astype(np.int64))


@pytest.mark.parametrize("order", [0, 1])
def test_zero_points_bias_residual_and_requantization(order: int) -> None:
    m, n, k = 19, 24, 50
    in0, in1 = random(T.UINT8, m, k, 3), random(T.INT8, k, n, 4)
    residual = random(T.INT8, m, n, 5)
    bias = np.random.default_rng(6).integers(-5000, 5000, (1, n)).astype(np.int32)
    scale = np.random.default_rng(7).uniform(1e-4, 2e-3, (1, n)).astype(np.float32)
    other = np.float32(0.3)
    rig = MacroRig()
    d = Descriptor(opcode=Opcode.GEMM_T, tile_m=8, tile_n=8, tile_k=16, type_in0=T.UINT8, type_in1=T.INT8,
                   type_out=T.INT8, prefetch_dist=1, in0_addr=rig.put(in0, T.UINT8), in1_addr=rig.put(in1, T.INT8),
                   out_addr=rig.place(m * n))  # fmt: skip
    flags = Epilogue.BIAS | Epilogue.RESIDUAL | Epilogue.REQUANTIZE | Epilogue.PER_CHANNEL | Activation.RELU
    rig.execute(d, block(
        Opcode.GEMM_T, m=m, n=n, k=k, epilogue=flags, loop_order=order, zero_point=(120, -3, 7, -20),
        in2=rig.put(residual, T.INT8), bias=rig.put(bias, T.INT32),
        scale=rig.put(np.append(scale, other)[None], T.FP32),
    ))  # fmt: skip
    total = (in0.astype(np.int64) - 120) @ (in1.astype(np.int64) + 3) + bias
    exact = total * scale.astype(np.float64) + (residual.astype(np.float64) - 7) * np.float64(other)
    expected = np.clip(np.rint(np.maximum(exact, 0) - 20), -128, 127).astype(np.int8)
    assert np.array_equal(rig.get(d.out_addr, m, n, T.INT8), expected)


def test_float_epilogue_and_integer_weights() -> None:
    m, n, k = 9, 12, 40
    in0, in1 = random(T.FP16, m, k, 3), random(T.INT4, k, n, 4)
    residual, bias = random(T.FP16, m, n, 5), random(T.FP32, 1, n, 6)
    scale = np.random.default_rng(7).uniform(0.01, 0.1, (1, n)).astype(np.float32)
    rig = MacroRig()
    d = Descriptor(opcode=Opcode.GEMM_T, tile_m=8, tile_n=8, tile_k=64, type_in0=T.FP16, type_in1=T.INT4,
                   type_out=T.FP16, in0_addr=rig.put(in0, T.FP16), in1_addr=rig.put(in1, T.INT4),
                   out_addr=rig.place(m * n * 2))  # fmt: skip
    flags = Epilogue.BIAS | Epilogue.RESIDUAL | Epilogue.REQUANTIZE | Epilogue.PER_CHANNEL | Activation.SILU
    rig.execute(d, block(
        Opcode.GEMM_T, m=m, n=n, k=k, epilogue=flags, in2=rig.put(residual, T.FP16), bias=rig.put(bias, T.FP32),
        scale=rig.put(scale, T.FP32), zero_point=(0, 2, 0, 0),
    ))  # fmt: skip
    x = (in0.astype(np.float64) @ (in1.astype(np.float64) - 2)) * scale + bias + residual.astype(np.float64)
    expected = x / (1 + np.exp(-x))
    got = rig.get(d.out_addr, m, n, T.FP16).astype(np.float64)
    assert np.abs(got - expected).max() <= 2e-3 * np.abs(expected).max()


def test_a_sum_stays_in_the_accumulator_between_macros_and_tiles() -> None:
    in0, in1 = random(T.INT8, 8, 64, 1), random(T.INT8, 64, 8, 2)
    rig = MacroRig()
    a, b, c = rig.put(in0, T.INT8), rig.put(in1, T.INT8), rig.place(256)
    d = Descriptor(opcode=Opcode.GEMM_T, tile_m=8, tile_n=8, tile_k=16, type_in0=T.INT8, type_in1=T.INT8,
                   type_out=T.INT32, in0_addr=a, in1_addr=b, out_addr=c)  # fmt: skip
    rig.execute(d.with_(function=1), block(Opcode.GEMM_T, m=8, n=8, k=32, ld0=64))
    assert not rig.get(c, 8, 8, T.INT32).any()
    rig.execute(d.with_(accumulate=1, in0_addr=a + 32, in1_addr=b + 256), block(Opcode.GEMM_T, m=8, n=8, k=32, ld0=64))
    assert np.array_equal(rig.get(c, 8, 8, T.INT32), in0.astype(np.int32) @ in1.astype(np.int32))


def test_the_workspace_is_left_as_it_was() -> None:
    rig = MacroRig()
    rig.spm[0][:] = 0x5A
    before = rig.bytes_at(WORK, 1 << 18)
    in0 = random(T.INT8, 16, 16, 1)
    d = Descriptor(opcode=Opcode.GEMM_T, tile_m=8, tile_n=8, tile_k=8, type_in0=T.INT8, type_in1=T.INT8,
                   type_out=T.INT32, in0_addr=rig.put(in0, T.INT8), in1_addr=rig.put(in0, T.INT8),
                   out_addr=rig.place(1024))  # fmt: skip
    rig.execute(d, block(Opcode.GEMM_T, m=16, n=16, k=16))
    assert rig.bytes_at(WORK, 1 << 18) == before
