"""Keys and values of a request on their way between its caches and swap space: COPY commands, a block of tokens each.

A block of swap space has the tokens of all runs of all caches, one run behind the other. Bytes are copied as they are
stored, whatever they mean.
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
"""Of the scratchpad: a copy is read while the one before it is written."""


class CacheRun(NamedTuple):
    """Rows of a cache in which tokens lie one behind the other: those of its heads, or one that all heads share."""

    address: int
    rows: int
    token: int
    """Bytes of a token in a row."""
    stride: int
    """Bytes from row to row."""


def runs_of(caches: Iterable[StoredCache]) -> list[CacheRun]:
    """Return the runs of the caches of a request, whose elements are whole bytes."""
    runs = []
    for cache in caches:
        token = cache.token_bytes // cache.heads
        runs.append(CacheRun(cache.start, cache.heads, token, cache.t_max * token))
    return runs


def block_bytes(runs: Iterable[CacheRun], block_size: int) -> int:
    """Return bytes of a block of swap space."""
    return block_size * sum(run.rows * run.token for run in runs)


def copies(
    runs: Sequence[CacheRun], tokens: int, block_size: int, blocks: Sequence[int], target: Target, out: bool
) -> list[Command]:
    """Copy the first `tokens` of a request's caches to the blocks of swap space at these addresses, or (not `out`) back
    from there. The extended blocks have no addresses yet."""
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
    name: str, source: tuple[int, int], result: tuple[int, int], size: tuple[int, int], target: Target, turn: int
) -> Command:
    """Return a command; source and result: (address, bytes from row to row), size: rows and their bytes."""
    share = target.workspace // SHARES // SLOT * SLOT
    room = share // 2 // SLOT * SLOT  # of what is read, and of what is written
    rows, columns = size
    wide = min(columns, room)
    return Command(
        name,
        Descriptor(
            opcode=Opcode.COPY, extended=1, type_in0=DataType.INT8, type_out=DataType.INT8, in0_addr=source[0],
            out_addr=result[0], tile_m=max(1, min(rows, room // wide)), tile_n=wide,
        ),
        Extended.make(
            Opcode.COPY, m=1, n=1, k=rows, workspace=SPM_BASE + turn % SHARES * share, workspace_bytes=share,
            own={"dim3": columns, "stride_in": (0, 0, source[1], 1), "stride_out": (0, 0, result[1], 1)},
        ),
    )  # fmt: skip
