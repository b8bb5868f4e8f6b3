"""The single-shot programs of firmware/bench compute what Python's own SHA-256 and floating point do."""

import hashlib
import struct
from collections.abc import Callable
from pathlib import Path

import pytest
from external_tools import GCC, PICOLIBC, needs

from pyv_npu.config import load
from pyv_npu.platform import Platform
from toolchain.gnu import build_program

BENCH = Path(__file__).resolve().parents[2] / "firmware" / "bench"
MASK = (1 << 32) - 1

pytestmark = needs(GCC, PICOLIBC)


def sha256(rounds: int) -> int:
    message, seed = b"", 1
    for _ in range(16 * rounds):
        seed = (seed * 1664525 + 1013904223) & MASK
        message += seed.to_bytes(4, "big")
    checksum = 0
    for word in struct.unpack(">8I", hashlib.sha256(message).digest()):
        checksum = (checksum >> 1 | checksum << 31 & MASK) ^ word
    return checksum


def single(value: float) -> float:
    rounded: float = struct.unpack("<f", struct.pack("<f", value))[0]
    return rounded


def floating(rounds: int) -> int:
    total, x, product, below = 0.0, 0.5, 1.0, 0
    for round_ in range(rounds):
        x = 0.75 * x * (1 - x) * 4
        total += x / (1 + float(round_))
        product = single(product * single(1 + single(single(x) * single(0.0001))))
        product = single(product - 1) if product > 2 else product
        below += x < 0.5
    low, high = struct.unpack("<II", struct.pack("<d", total))
    (bits,) = struct.unpack("<I", struct.pack("<f", product))
    return low ^ high ^ bits ^ below


def table(rounds: int) -> int:
    x = 1
    for round_ in range(rounds):
        n, x = (x >> 7 ^ round_) & 255, (x + round_) & MASK
        x = ((x ^ n * 0x0101_0101 & MASK) * (2 * n + 1) + (x >> n % 31 + 1)) & MASK
    return x


@pytest.mark.parametrize(("name", "judge", "rounds"), [("sha256", sha256, 40), ("float", floating, 3000),
                                                        ("table", table, 5000)])  # fmt: skip
def test_a_program_computes_what_its_judge_does(
    name: str, judge: Callable[[int], int], rounds: int, tmp_path: Path
) -> None:
    elf = build_program(tmp_path / "single.elf", [BENCH / f"bench_{name}.c"], flags=["-Wall", "-Wextra", "-Werror"])
    platform = Platform(load().config)
    platform.load(elf, {"rounds": rounds})
    assert platform.run().code == 0
    assert platform.console.text == f"{name} {judge(rounds):x}\n"
