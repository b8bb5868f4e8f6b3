"""Pipelined arrays take tiles fold by fold: when folds start, when columns are written; nothing else changes."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from npu_graphs import listed
from npu_rig import DRAM, SPM
from shares import draws

from npu_device.abi.descriptor import Descriptor
from npu_device.abi.extended import Extended
from npu_device.abi.opcodes import DataType, Opcode
from npu_device.config import DmaConfig, DramConfig, NocConfig, NpuConfig, SpmConfig, TeConfig
from npu_device.levels.runner import Listed
from npu_device.operations.macro.product import grid
from npu_device.trace.events import ROLE, WRITES, Kind, What

FP16 = DataType.FP16
SIDE, ROWS = 64, 64
RATE = 16
PART = SIDE * SIDE * 2 // RATE
"""Cycles in which a part of an operand moves."""


def config(kind: str = "systolic_ws_pipe", channels: int = 1, engines: int = 1, **dma: Any) -> NpuConfig:
    return NpuConfig(
        te=TeConfig(kind=kind, count=engines, rows=SIDE, columns=SIDE, acc_bytes=1 << 20),
        spm=SpmConfig(size=32 << 20, port=None), noc=NocConfig(latency=0, bytes_per_second=None),
        dram=DramConfig(latency=0, bytes_per_second=RATE * 1_200_000_000),
        dma=DmaConfig(channels=channels, bytes_per_cycle=None, **dma),
    )  # fmt: skip


def product(m: int, n: int, k: int, tile: tuple[int, int, int], order: int = 0, prefetch: int = 1, **at: int) -> Listed:
    block = Extended(m=m, n=n, k=k, workspace=SPM, workspace_bytes=4 << 20, loop_order=order)
    addresses = {"in0_addr": DRAM, "in1_addr": DRAM + (8 << 20), "out_addr": DRAM + (16 << 20)} | at
    descriptor = Descriptor(
        opcode=Opcode.GEMM_T, tile_m=tile[0], tile_n=tile[1], tile_k=tile[2], type_in0=FP16, type_in1=FP16,
        type_out=FP16, prefetch_dist=prefetch, **addresses,
    )  # fmt: skip
    return Listed(descriptor, 0, block)


ONE = product(ROWS, 2 * SIDE, 2 * SIDE, (ROWS, 2 * SIDE, 2 * SIDE))
FOLD, COLD, DRAIN = SIDE, 2 * SIDE - 1, 2 * SIDE - 2


def test_a_fold_starts_with_its_own_parts_and_columns_leave_when_they_are_finished() -> None:
    """Two parts of in0, four of in1, in the order in which they are needed, over one channel; each part takes longer
    than a fold. The first columns are written once the first two folds are through."""
    seen = listed([ONE], config())
    folds = [(begin["cycle"], end["cycle"]) for begin, end in seen.spans() if begin["unit"] >> 8 == Kind.TE]
    reads = [
        end["cycle"] for begin, end in seen.spans() if not begin["aux"] & WRITES and begin["unit"] >> 8 == Kind.DMA
    ]
    assert reads == [PART * i for i in range(1, 7)]
    assert [begin for begin, _ in folds] == [2 * PART, 4 * PART, 5 * PART, 6 * PART]
    assert all(end - begin == FOLD + COLD for begin, end in folds)
    finished = [end + DRAIN for _, end in folds]
    writes = [begin["cycle"] for begin, _ in seen.spans() if begin["aux"] & WRITES]
    assert writes == [max(finished[1], 6 * PART), max(finished[3], 7 * PART)]
    assert seen.makespan == writes[1] + PART


def test_a_column_is_written_while_the_next_one_is_made() -> None:
    split = listed([ONE], config(channels=2, direction="split"))
    first = min(begin["cycle"] for begin, _ in split.spans() if begin["aux"] & WRITES)
    last = max(end["cycle"] for begin, end in split.spans() if begin["unit"] >> 8 == Kind.TE)
    assert first < last


def test_with_everything_there_folds_follow_each_other() -> None:
    """As one tile of four folds: F5, and one fill and drain."""
    free = replace(config(channels=4), dram=DramConfig(latency=0, bytes_per_second=None))
    assert listed([ONE], free).makespan == 4 * FOLD + COLD + DRAIN


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"in0_addr": DRAM + 32}, "parts would begin within an access"),
        ({"tile": (ROWS, 96, 2 * SIDE)}, "the tile is no multiple of the array"),
    ],
)
def test_else_a_tile_is_taken_whole(more: dict[str, Any], why: str) -> None:
    tile = more.pop("tile", (ROWS, 2 * SIDE, 2 * SIDE))
    seen = listed([product(ROWS, 2 * SIDE, 2 * SIDE, tile, **more)], config())
    works = [begin for begin, _ in seen.spans() if begin["unit"] >> 8 == Kind.TE]
    assert len(works) == -(-2 * SIDE // tile[1]), why


sides = st.integers(1, 5).map(lambda i: 48 * i)


@settings(max_examples=draws(40), deadline=None)
@given(sides, sides, sides, st.sampled_from(((64, 128, 64), (32, 64, 128), (64, 128, 128))), st.integers(0, 1),
       st.integers(0, 2), st.integers(1, 2), st.sampled_from(("full", "out", "none")))  # fmt: skip
def test_what_moves_is_the_same_and_buffers_are_free_when_they_fill(
    m: int, n: int, k: int, tile: tuple[int, int, int], order: int, prefetch: int, engines: int, buffering: str
) -> None:
    """Against the same command on an array that takes tiles whole: bytes by role, and computations by tile."""
    k, n = -(-k // 32) * 32, -(-n // 32) * 32  # rows of whole accesses
    command = product(m, n, k, tile, order, prefetch)
    moved = []
    for kind in ("systolic_ws", "systolic_ws_pipe"):
        seen = listed([command], config(kind, 2, engines, buffering=buffering))
        by_role: dict[int, int] = {}
        for begin, end in seen.spans():
            if begin["unit"] >> 8 == Kind.DMA:
                role = begin["aux"] // WRITES
                by_role[role] = by_role.get(role, 0) + end["aux"]
        tiles = {begin["tile"] for begin in seen.of(What.TE_BEGIN)}
        moved.append((by_role, tiles))
    assert moved[0] == moved[1]
    # one engine: the reads of a tile wait until that B_in tiles before has been taken in
    if engines == 1 and not order:
        inputs = {"full": max(prefetch, 0) + 1, "out": 1, "none": 1}[buffering] if prefetch else 1
        over = {begin["tile"]: end["cycle"] for begin, end in seen.spans() if begin["unit"] >> 8 == Kind.TE}
        for begin in seen.of(What.DMA_BEGIN):
            if not begin["aux"] & WRITES and begin["aux"] & ROLE and begin["tile"] >= inputs:
                assert begin["cycle"] >= over[begin["tile"] - inputs]


@given(st.lists(st.tuples(st.integers(1, 256), st.integers(1, 256)), min_size=1, max_size=6))
def test_parts_cover_a_tile_once(tiles: list[tuple[int, int]]) -> None:
    columns, depth = np.array(tiles, np.int64).T
    parts = grid(columns, depth, (64, 32), (8, 256, 256))
    for index, (wide, deep) in enumerate(tiles):
        mine = parts.tile == index
        seen = list(zip(parts.across[mine].tolist(), parts.along[mine].tolist(), strict=True))
        assert seen == [(j, i) for j in range(-(-wide // 32)) for i in range(-(-deep // 64))]
        assert set(parts.first[mine].tolist()) == {int(np.flatnonzero(mine)[0])}
