"""Transfer of keys and values between a request's caches and swap space, by COPY commands of one token block each.

A block of swap space holds its tokens of all runs of all caches, run after run. Bytes are copied unchanged.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from npu_device.abi.descriptor import Descriptor
from npu_device.abi.extended import Extended
from npu_device.abi.memory_map import SPM_BASE
from npu_device.abi.opcodes import DataType, Opcode
from toolchain.codegen import Command, Target
from toolchain.codegen.tiles import SLOT
from toolchain.decoders.caches import StoredCache

SHARES = 2
"""Shares of the scratchpad: one copy is read while the previous one is written."""


class CacheRun(NamedTuple):
    """Rows of a cache with contiguous tokens: one row per head, or one row for all heads."""

    address: int
    rows: int
    token: int
    """Bytes of a token within a row."""
    stride: int
    """Row pitch, bytes."""


def runs_of(caches: Iterable[StoredCache]) -> list[CacheRun]:
    """Return the runs of a request's caches. Their elements must be whole bytes."""
    runs = []
    for cache in caches:
        token = cache.token_bytes // cache.heads
        runs.append(CacheRun(cache.start, cache.heads, token, cache.t_max * token))
    return runs


def block_bytes(runs: Iterable[CacheRun], block_size: int) -> int:
    """Return the size of a block of swap space, bytes."""
    return block_size * sum(run.rows * run.token for run in runs)


def copies(
    runs: Sequence[CacheRun], tokens: int, block_size: int, blocks: Sequence[int], target: Target, out: bool
) -> list[Command]:
    """Return commands that copy the first `tokens` of a request's caches to the swap blocks at these addresses or,
    without `out`, back. The extended blocks have no addresses yet."""
    commands: list[Command] = []
    for index, (first, block) in enumerate(zip(range(0, tokens, block_size), blocks, strict=True)):
        count, at = min(block_size, tokens - first), block
        for run in runs:
            cache, swap = (run.address + first * run.token, run.stride), (at, block_size * run.token)
            source, result = (cache, swap) if out else (swap, cache)
            commands.append(
                _copy(f"swap.{index}", source, result, (run.rows, count * run.token), target, len(commands))
            )
            at += run.rows * block_size * run.token
    return commands


def _copy(
    name: str, source: tuple[int, int], result: tuple[int, int], size: tuple[int, int], target: Target, index: int
) -> Command:
    """Return a COPY command; source and result: (address, row pitch in bytes); size: (rows, bytes per row)."""
    share = target.workspace // SHARES // SLOT * SLOT
    capacity = share // 2 // SLOT * SLOT  # for input and output
    rows, columns = size
    wide = min(columns, capacity)
    return Command(
        name,
        Descriptor(
            opcode=Opcode.COPY, extended=1, type_in0=DataType.INT8, type_out=DataType.INT8, in0_addr=source[0],
            out_addr=result[0], tile_m=max(1, min(rows, capacity // wide)), tile_n=wide,
        ),
        Extended.make(
            Opcode.COPY, m=1, n=1, k=rows, workspace=SPM_BASE + index % SHARES * share, workspace_bytes=share,
            own={"dim3": columns, "stride_in": (0, 0, source[1], 1), "stride_out": (0, 0, result[1], 1)},
        ),
    )  # fmt: skip
