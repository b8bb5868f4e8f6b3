"""Sizes, packing, alignment and KV addresses: the numbers of docs/bit-widths.md, R1 to R22."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from npu_device.abi.errors import NpuDeviceError
from npu_device.abi.opcodes import DataType
from npu_device.memory import bitwidth
from npu_device.memory.bitwidth import BitWidthError
from npu_device.memory.kv import KvCache, valid_elements


@pytest.mark.parametrize(
    ("elements", "qbits", "size"),
    [(4096, 8, 4096), (4096, 4, 2048), (4096 * 1024, 4, 2_097_152), (1, 4, 1), (3, 4, 2), (5, 2, 2), (7, 5, 5),
     (0, 4, 0)],
)  # fmt: skip
def test_r1_bytes(elements: int, qbits: int, size: int) -> None:
    assert bitwidth.bytes_total(elements, qbits) == size


def error(call: str, *arguments: object) -> tuple[str, str, object]:
    with pytest.raises(BitWidthError) as caught:
        getattr(bitwidth, call)(*arguments)
    return caught.value.code, caught.value.field, caught.value.value


def test_errors_name_code_field_and_value() -> None:
    assert error("bytes_total", -1, 8) == ("E_SIZE", "num_elements", -1)
    assert error("bytes_total", 1, 0) == ("E_QBITS", "qbits", 0)
    assert error("check_dtype", DataType.INT4, 8) == ("E_DTYPE", "qbits", 8)
    assert error("check_role", "kv", 3) == ("E_QBITS", "bitwidths.kv", 3)
    assert error("check_role", "bias", 8) == ("E_ROLE", "role", "bias")
    for qbits in (16, 32, 5):
        assert error("pack_factor", qbits) == ("E_PACK", "qbits", qbits)
    assert error("tensor_bytes", (3, 3), 4, "zip") == ("E_PACK", "packing.mode", "zip")
    assert error("aligned_bytes", 0, 1, 48) == ("E_ALIGN", "alignment", 48)
    assert error("check_spm_offset", 4000, 64) == ("E_ALIGN", "spm_offset", 4000)
    assert error("check_bank", [2_097_152], 262_144) == ("E_BANK", "bytes_tile", 2_097_152)
    with pytest.raises(NpuDeviceError, match="2097152 bytes in a bank of 262144, 1835008 over"):
        bitwidth.check_bank([2_097_152], 262_144)
    bitwidth.check_bank([262_143, 1], 262_144)


@given(st.integers(0, 10_000), st.sampled_from((2, 4, 8)))
def test_r3_packing_does_not_change_the_size_of_a_contiguous_tile(elements: int, qbits: int) -> None:
    assert bitwidth.packed_bytes(elements, qbits) == bitwidth.bytes_total(elements, qbits)


def test_r3_rows() -> None:
    assert [bitwidth.pack_factor(qbits) for qbits in (1, 2, 4, 8)] == [8, 4, 2, 1]
    assert [bitwidth.tensor_bytes((3, 3), 4, mode) for mode in bitwidth.PACKINGS] == [5, 6, 9]
    bitwidth.check_spm_offset(8000, 64)
    bitwidth.check_spm_offset(4000)


@pytest.mark.parametrize(
    ("address", "size", "alignment", "aligned"),
    [(131072, 32, 64, 64), (131104, 32, 64, 64), (100, 10, 32, 32), (40, 40, 64, 128), (120000, 2048, 64, 2048),
     (0, 2_097_152, 32, 2_097_152), (77, 0, 64, 0)],
)  # fmt: skip
def test_r5_alignment(address: int, size: int, alignment: int, aligned: int) -> None:
    assert bitwidth.aligned_bytes(address, size, alignment) == aligned


def test_r5_r6_r8() -> None:
    assert bitwidth.aligned_range(100, 10, 32) == (96, 128)
    assert bitwidth.alignment_of("weight") == bitwidth.alignment_of("kv") == 64
    assert bitwidth.alignment_of("activation") == bitwidth.alignment_of("weight", 32) == 32
    assert [bitwidth.num_bursts(size, 128) for size in (0, 1, 128, 129)] == [0, 1, 1, 2]


def cache(heads: int, t_max: int, head_dim: int, qbits: int, **more: object) -> KvCache:
    return KvCache(0, 1, heads, t_max, head_dim, (qbits,) * heads, **more)  # type: ignore[arg-type]


def test_r15_addresses() -> None:
    assert cache(32, 1024, 128, 4).address(3, 5) == 196_928
    assert cache(32, 1024, 128, 8).address(3, 5) == 393_856
    mixed = KvCache(4096, 2, 3, 16, 32, (4, 8, 4))
    assert mixed.address(1, 0) == 4096 + 16 * 16
    assert mixed.address(2, 1) == 4096 + 16 * 16 + 16 * 32 + 16
    assert mixed.address(0, 0, 1) == 4096 + mixed.bytes_alloc // 2
    with pytest.raises(NpuDeviceError, match="does not end at a byte"):
        cache(2, 4, 3, 4)
    assert cache(2, 4, 3, 4, pad_rows=True).row_bytes(0) == 2
    with pytest.raises(NpuDeviceError, match="token 1024: must be below 1024"):
        cache(32, 1024, 128, 4).address(0, 1024)


@pytest.mark.parametrize(("qbits", "size"), [(2, 1_048_576), (4, 2_097_152), (8, 4_194_304), (16, 8_388_608)])
def test_r16_footprint(qbits: int, size: int) -> None:
    one = cache(32, 1024, 128, qbits)
    assert one.bytes_alloc == size


def test_r20_elements() -> None:
    assert [valid_elements("store", count, 128, 40) for count in (128, 256, 64)] == [True, False, False]
    assert [valid_elements("load", count, 128, 40) for count in (128, 5120, 5248, 64, 0)] == [True, True] + [False] * 3
