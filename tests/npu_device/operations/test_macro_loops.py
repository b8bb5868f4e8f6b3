"""Loops of products over blocks: what moves, counted by a walk over the loops, and words that are refused."""

from dataclasses import replace
from itertools import product

import pytest

from npu_device.abi.descriptor import Descriptor
from npu_device.abi.errors import TicketError
from npu_device.abi.extended import Extended
from npu_device.abi.memory_map import DRAM_BASE, SPM_BASE
from npu_device.abi.opcodes import DataType, Opcode
from npu_device.config import NpuConfig, TeConfig
from npu_device.levels.runner import Listed, Runner
from npu_device.operations.checks import DescriptorError
from npu_device.operations.loops import decode_loops

ORDERS = ("mnk", "nkm", "mkn")
STAY = {"in0": 0x10, "in1": 0x20}
SHARED = 0x40


def listed(order: int, shape: tuple[int, int, int], tile: tuple[int, int, int], block: tuple[int, int, int]) -> Listed:
    m, n, k = shape
    d = Descriptor(
        opcode=Opcode.GEMM_T, extended=1, type_in0=DataType.INT8, type_in1=DataType.INT8, type_out=DataType.INT32,
        in0_addr=DRAM_BASE + (16 << 20), in1_addr=DRAM_BASE + (32 << 20), out_addr=DRAM_BASE + (48 << 20),
        tile_m=tile[0], tile_n=tile[1], tile_k=tile[2], prefetch_dist=1,
    )  # fmt: skip
    own = dict(zip(("block_m", "block_n", "block_k"), block, strict=True))
    words = Extended.make(
        Opcode.GEMM_T, own=own, m=m, n=n, k=k, loop_order=order, workspace=SPM_BASE, workspace_bytes=2 << 20
    )  # fmt: skip
    return Listed(d, 0, words)


def read(order: int, shape: tuple[int, int, int], tile: tuple[int, int, int], block: tuple[int, int, int]) -> int:
    """Bytes of in0 and in1 that one engine moves, by a walk: a tile that stays is there until another block of its
    operand comes, another one until the next tile of it."""
    extent, size, blocks = (dict(zip("mnk", values, strict=True)) for values in (shape, tile, block))
    axes = ORDERS[order & 15]
    outer = [range(0, extent[axis], blocks[axis] or size[axis]) for axis in axes]
    resident: dict[str, tuple[object, set[object]]] = {"in0": (None, set()), "in1": (None, set())}
    total = 0
    for corner in product(*outer):
        at = dict(zip(axes, corner, strict=True))
        inner = [range(at[a], min(extent[a], at[a] + (blocks[a] or size[a])), size[a]) for a in axes]
        for place in product(*inner):
            index = dict(zip(axes, place, strict=True))
            for name, dimensions in (("in0", "mk"), ("in1", "nk")):
                key = tuple(index[axis] for axis in dimensions)
                if order & STAY[name]:
                    period: object = tuple(at[axis] for axis in dimensions)
                    if resident[name][0] != period:
                        resident[name] = (period, set())
                elif key not in resident[name][1]:
                    resident[name] = (None, set())
                if key not in resident[name][1]:
                    resident[name][1].add(key)
                    bytes_of = 1
                    for axis in dimensions:
                        bytes_of *= min(size[axis], extent[axis] - index[axis])
                    total += bytes_of
    return total


@pytest.mark.parametrize("order", [0x10, 0x20, 0x30, 0x31, 0x11, 2, 0x32, 0x12, 0x22])
@pytest.mark.parametrize("block", [(0, 0, 0), (128, 128, 256), (256, 64, 256), (64, 192, 128)])
def test_bytes_are_those_of_a_walk_over_the_loops(order: int, block: tuple[int, int, int]) -> None:
    shape, tile = (256, 320, 256), (64, 64, 64)
    ran = Runner(NpuConfig(te=TeConfig(count=1)), values=False).run([listed(order, shape, tile, block)])
    assert not ran.device.error_log
    assert ran.device.counters.to_json()["dram_bytes_read"] == read(order, shape, tile, block)


@pytest.mark.parametrize(("order", "block"), [(0x70, (256, 64, 256)), (0x71, (64, 192, 256)), (0x72, (128, 320, 64))])
@pytest.mark.parametrize("engines", [2, 4])
def test_engines_share_what_stays(order: int, block: tuple[int, int, int], engines: int) -> None:
    """The operand that all use moves once, the other one once as well, shared out: as with one engine."""
    shape, tile = (256, 384, 256), (64, 64, 64)
    config = NpuConfig(te=TeConfig(count=engines))
    shared, alone = (
        Runner(machine, values=False).run([listed(order, shape, tile, block)])
        for machine in (config, replace(config, te=TeConfig(count=1)))
    )
    moved, other = (ran.device.counters.to_json()["dram_bytes_read"] for ran in (shared, alone))
    assert moved == other == read(order, shape, tile, block)
    assert shared.cycles < alone.cycles


@pytest.mark.parametrize(
    ("order", "block", "code", "text"),
    [
        (3, (0, 0, 0), TicketError.FUNCTION, "loop_order 3: [3:0] must be 0, 1, 2"),
        (0x80, (0, 0, 0), TicketError.RESERVED, "loop_order 0x80: bits above [6] must be 0"),
        (0x60, (0, 0, 0), TicketError.RESERVED, "loop_order 0x60: [6] shares in0, which does not stay"),
        (0x51, (0, 0, 0), TicketError.RESERVED, "loop_order 0x51: [6] shares in1, which does not stay"),
        (0, (96, 0, 0), TicketError.SHAPE, "block_m 96: must be a multiple of tile_m 64, or at least 256"),
    ],
)  # fmt: skip
def test_loops_that_cannot_be_are_refused(
    order: int, block: tuple[int, int, int], code: TicketError, text: str
) -> None:
    with pytest.raises(DescriptorError, match=None) as caught:
        decode_loops(order, block, (64, 64, 64), (256, 256, 256))
    assert caught.value.code is code
    assert text in str(caught.value)
