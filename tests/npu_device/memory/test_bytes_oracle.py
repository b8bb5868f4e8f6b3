"""The rule of bytes against a plain count of bits and lines: random shapes, widths, packings, alignments, layouts."""

import random

import pytest

from npu_device.abi.opcodes import BITS, DataType
from npu_device.cost.durations import partial_lines, transfer_size
from npu_device.memory import bitwidth
from npu_device.memory.operands import make_matrix
from npu_device.memory.region import make_region
from toolchain.ir.graph import Role, TensorIR

KINDS = (DataType.FP32, DataType.FP16, DataType.INT8, DataType.INT4, DataType.INT2)


def bytes_of(shape: tuple[int, ...], qbits: int, packing: str) -> int:
    """Bits are put one by one; a row may begin a new byte."""
    width = max(qbits, 8) if packing == "unpacked_byte" else qbits
    rows, columns = 1, shape[-1]
    for size in shape[:-1]:
        rows *= size
    bits = 0
    for _ in range(rows):
        bits += columns * width
        while packing == "packed_rows" and bits % 8:
            bits += 1
    return bits // 8 + (bits % 8 > 0)


def lines_of(address: int, rows: int, size: int, stride: int, alignment: int) -> list[tuple[int, int]]:
    """(aligned lines, lines covered in part) of each row, byte by byte of its ends."""
    found = []
    for row in range(rows):
        first = address + row * stride
        last = first + size - 1
        lines = range(first // alignment, last // alignment + 1)
        part = [line for line in lines if first > line * alignment or last < (line + 1) * alignment - 1]
        found.append((len(lines), len(part)))
    return found


def check(seed: int) -> None:
    dice = random.Random(seed)
    kind = dice.choice(KINDS)
    qbits, packing = BITS[kind], dice.choice(bitwidth.PACKINGS)
    shape = tuple(dice.randint(1, 9) for _ in range(dice.randint(1, 4)))
    size = bytes_of(shape, qbits, packing)
    assert bitwidth.tensor_bytes(shape, qbits, packing) == size
    assert TensorIR("t", Role.WEIGHT, shape, kind).size == bytes_of(shape, qbits, "packed_rows")
    rows, columns = dice.randint(1, 12), dice.randint(1, 200)
    matrix = make_matrix(0, rows, columns, kind)
    assert matrix.region.payload == bytes_of((rows, columns), qbits, "packed_rows")
    alignment, bus = 1 << dice.randint(0, 9), 1 << dice.randint(4, 8)
    row_bytes = matrix.region.payload // rows
    stride = dice.choice((0, row_bytes + dice.randint(0, 100)))
    region = make_region(dice.randint(0, 5000), rows, row_bytes, stride)
    lines = lines_of(region.address, region.rows, region.row_bytes, region.stride, alignment)
    aligned, bursts = transfer_size(region, alignment, bus)
    assert aligned == alignment * sum(whole for whole, _ in lines)
    assert bursts == sum(-(-whole * alignment // bus) for whole, _ in lines)
    assert partial_lines(region, alignment) == sum(part for _, part in lines)
    assert aligned >= region.payload


@pytest.mark.parametrize("first", range(0, 2000, 500))
def test_bytes_lines_and_bursts(first: int) -> None:
    for seed in range(first, first + 500):
        check(seed)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, 100_000, 10_000))
def test_bytes_lines_and_bursts_of_many(first: int) -> None:
    for seed in range(first, first + 10_000):
        check(seed)
