"""A command that does not fit names the tensor, the level, the bytes over and the legal tile."""

from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from npu_macro import MacroRig, block
from npu_rig import DRAM, SPM, SPM_SIZE, Rig
from shares import draws

from npu_device.abi.descriptor import Descriptor
from npu_device.abi.opcodes import DataType, Gemm, Opcode
from npu_device.config import NpuConfig, SpmConfig, TeConfig
from npu_device.levels.command_list import ListError, load

INT4, INT8, INT32 = DataType.INT4, DataType.INT8, DataType.INT32
LOAD = Descriptor(opcode=Opcode.LOAD, tile_m=4, tile_k=64, type_in0=INT8, in0_addr=DRAM, out_addr=SPM)
GEMM = Descriptor(
    opcode=Opcode.GEMM_T, tile_m=8, tile_n=8, tile_k=8, type_in0=INT8, type_in1=INT8, type_out=INT32,
    in0_addr=SPM, in1_addr=SPM + 64, out_addr=SPM + 128,
)  # fmt: skip
FOUR_BANKS = SpmConfig(size=SPM_SIZE, banks=4)
"""Of 16384 bytes: bits 1, 3, 5, 7 of a mask name them."""
BANKED = NpuConfig(spm=FOUR_BANKS, te=TeConfig(acc_bytes=16384))


def reason(d: Descriptor, config: NpuConfig = BANKED, before: tuple[Descriptor, ...] = ()) -> str:
    """Why the last of some commands is refused."""
    rig = Rig(config)
    for one in before:
        rig.submit(one)
    assert not rig.device.error_log
    rig.submit(d)
    return rig.device.error_log[-1].reason if rig.device.error_log else ""


TILE_FORM = [
    (
        LOAD.with_(tile_m=2000),
        "a dimension is zero or too large: out: 128000 bytes of scratchpad from 0x50000000, there are 65536: "
        "62464 over; legal tile: tile_m 1024, tile_k 64",
    ),
    (
        LOAD.with_(out_addr=SPM + SPM_SIZE - 200),
        "an address range is outside memory: out: 256 bytes of scratchpad from 0x5000ff38, there are 200: 56 over; "
        "legal tile: tile_m 3, tile_k 64",
    ),
    (
        LOAD.with_(tile_m=1, tile_k=70000, type_in0=INT4, out_addr=SPM + 32768),
        "an address range is outside memory: out: 35000 bytes of scratchpad from 0x50008000, there are 32768: "
        "2232 over; legal tile: tile_m 1, tile_k 65536",
    ),
    (
        LOAD.with_(bank_mask=0b0010, out_addr=SPM + 16384 - 64),
        "an operand lies outside the bank mask: out: 256 bytes of banks 0..0 of mask 0x02, there are 64: 192 over; "
        "legal tile: tile_m 1, tile_k 64",
    ),
    (
        LOAD.with_(bank_mask=0b1010, tile_m=600),
        "an operand lies outside the bank mask: out: 38400 bytes of banks 0..1 of mask 0x0a, there are 32768: "
        "5632 over; legal tile: tile_m 512, tile_k 64",
    ),
    (
        LOAD.with_(bank_mask=0b1000),
        "an operand lies outside the bank mask: out is in banks 0..0, mask 0x08: it must begin in one of the mask",
    ),
    (LOAD.with_(bank_mask=0b0101), "the bank mask names no bank: mask 0x05 of spm.banks 4: bits that do are 0xaa"),
    (
        GEMM.with_(tile_m=128, tile_n=64, function=Gemm.HOLD, in1_addr=SPM + 4096, out_addr=SPM + 8192),
        "the sums do not fit the accumulator: the sum of 128 x 64 for out: 32768 bytes of accumulator of engine 0 "
        "(te.acc_bytes 16384), there are 16384: 16384 over; legal tile: tile_m 64, tile_n 64, tile_k 8",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("d", "message"), TILE_FORM)
def test_a_tile_command_that_does_not_fit(d: Descriptor, message: str) -> None:
    assert reason(d) == message


def test_what_other_sums_hold_counts() -> None:
    half = GEMM.with_(tile_m=32, tile_n=64, tile_k=8, in1_addr=SPM + 4096, out_addr=SPM + 8192, function=Gemm.HOLD)
    both = tuple(half.with_(affinity=engine, out_addr=SPM + 8192 * engine) for engine in (1, 2))
    wanted = half.with_(tile_m=64, out_addr=SPM + 32768)
    assert reason(wanted, before=both).endswith(
        "16384 bytes of accumulator of engine 0 (te.acc_bytes 16384), there are 8192: 8192 over; "
        "legal tile: tile_m 32, tile_n 64, tile_k 8"
    )
    assert not reason(wanted.with_(tile_m=32), before=both)


def test_nothing_fits_where_no_byte_is_left() -> None:
    tail = GEMM.with_(out_addr=SPM + SPM_SIZE - 4, type_in0=INT8)
    assert reason(tail).endswith("252 over; legal tile: tile_m 1, tile_n 1, tile_k 8")
    full = GEMM.with_(function=Gemm.HOLD)
    none = NpuConfig(spm=FOUR_BANKS, te=TeConfig(acc_bytes=0))
    assert reason(full, none).endswith("there are 0: 256 over; no tile fits there")


MACRO = Descriptor(
    opcode=Opcode.GEMM_T, tile_m=128, tile_n=128, tile_k=64, type_in0=INT8, type_in1=INT8, type_out=INT32,
    in0_addr=DRAM, in1_addr=DRAM, out_addr=DRAM + 0x1_0000, prefetch_dist=1,
)  # fmt: skip
SHAPE = {"m": 256, "n": 256, "k": 256}
BIG = NpuConfig(spm=SpmConfig(size=1 << 19), te=TeConfig(acc_bytes=16384))


@pytest.mark.parametrize(
    ("changes", "words", "message"),
    [
        (
            {}, {"workspace": SPM, "workspace_bytes": 0x8000},
            "the sums do not fit the accumulator: the sum of a tile of 128 x 128 of out: 65536 bytes of "
            "accumulator (te.acc_bytes), there are 16384: 49152 over; legal tile: "
            "tile_m 32, tile_n 64, tile_k 64",
        ),
        (
            {"tile_m": 64, "tile_n": 64}, {"workspace": SPM, "workspace_bytes": 0x4000},
            "the workspace is too small for the tiles: in0 2 x 4096, in1 2 x 4096, out 2 x 16384: 49152 bytes of "
            "scratchpad in the workspace, there are 16384: 32768 over; legal tile: "
            "tile_m 32, tile_n 32, tile_k 64",
        ),
        (
            {"tile_m": 8, "tile_n": 8}, {"workspace": SPM + 0x7_FF00, "workspace_bytes": 0x8000},
            "the workspace is too small for the tiles: workspace: 32768 bytes of scratchpad from 0x5007ff00, there are "
            "256: 32512 over; give workspace_bytes 256 or begin at 0x50000000",
        ),
        (
            {"tile_m": 8, "tile_n": 8, "in0_addr": SPM + 0x7_8000}, {"workspace": SPM, "workspace_bytes": 0x8000},
            "an address range is outside memory: in0: 65536 bytes of scratchpad from 0x50078000, there are 32768: "
            "32768 over; put it into DRAM, its size is not the tile's",
        ),
        (
            {"function": int(Gemm.HOLD), "tile_m": 8, "tile_n": 8}, {"workspace": SPM, "workspace_bytes": 0x8000},
            "the sums do not fit the accumulator: the sum of 256 x 256 for out: 262144 bytes of accumulator of "
            "engine 0 (te.acc_bytes 16384), there are 16384: 245760 over; split the command in M or N",
        ),
    ],
)  # fmt: skip
def test_a_macro_command_that_does_not_fit(changes: dict[str, int], words: dict[str, int], message: str) -> None:
    rig = MacroRig(BIG)
    rig.submit(rig.macro(MACRO.with_(**changes), block(Opcode.GEMM_T, **SHAPE, **words)))
    assert rig.device.error_log[0].reason == message


def test_a_command_list_says_the_same() -> None:
    command: dict[str, Any] = {
        "opcode": "DMA_LOAD_TILE", "tensor_role": "weight", "qbits": 8, "dram_addr": 0, "num_elements": 2_097_153,
        "spm_bank": 0, "spm_offset": 0,
    }  # fmt: skip
    with pytest.raises(ListError) as caught:
        load({"schema": 1, "commands": [command]}, NpuConfig())
    assert str(caught.value) == (
        "COMMAND: commands[0] = 'DMA_LOAD_TILE': SHAPE: a dimension is zero or too large: out: 2097153 bytes of "
        "scratchpad from 0x50000000, there are 2097152: 1 over; legal tile: tile_m 1, tile_k 2097152"
    )


@settings(max_examples=draws(60), deadline=None)
@given(st.integers(1, 300), st.integers(1, 300), st.integers(1, 300), st.sampled_from([INT4, INT8]), st.integers(0, 15))
def test_the_nearest_tile_is_legal_and_nothing_is_said_of_one_that_fits(
    m: int, n: int, k: int, kind: DataType, corner: int
) -> None:
    d = GEMM.with_(
        tile_m=m, tile_n=n, tile_k=k, type_in0=kind, type_in1=kind, in0_addr=SPM + 4096 * corner,
        in1_addr=SPM + 2048 * corner, out_addr=SPM + 1024 * corner,
    )  # fmt: skip
    found = reason(d)
    assume(found)
    sizes = {name: int(value) for name, value in (one.split(" ") for one in found.split("tile: ")[1].split(", "))}
    assert sizes != {"tile_m": m, "tile_n": n, "tile_k": k}
    assert all(0 < sizes[name] <= size for name, size in (("tile_m", m), ("tile_n", n), ("tile_k", k)))
    assert not reason(d.with_(**sizes))
