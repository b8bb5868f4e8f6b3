"""Inputs are sampled at the start: what is stored over them before the command retires does not reach its result."""

from collections.abc import Callable

import numpy as np
import pytest
from npu_rig import DRAM, SMALL_SPM, SPM, Rig
from random_commands import fill

from npu_device.abi.descriptor import Descriptor
from npu_device.abi.extended import Extended
from npu_device.abi.opcodes import DataType, Opcode
from npu_device.config import DramConfig, NpuConfig
from npu_device.trace.events import What

INT8, INT32 = DataType.INT8, DataType.INT32
SIZE = 256
SOURCE, OTHER, TARGET, WORK = SPM, SPM + 1024, SPM + 2048, SPM + 0x2000
CACHE, TABLE, LONG, BLOCK = DRAM + 0x1000, DRAM + 0x2000, DRAM + 0x4_0000, DRAM + 0x8000


def _move(opcode: Opcode, source: int, target: int, **more: int) -> Descriptor:
    return Descriptor(opcode=opcode, tile_m=1, tile_k=SIZE, in0_addr=source, out_addr=target, **more)


def _macro(rig: Rig) -> Descriptor:
    """KV_APPEND of one token of one head."""
    own = {"kv_heads": 1, "head_dim": SIZE, "t_max": 4, "q_len": 1}
    block = Extended.make(Opcode.KV_APPEND, own=own, workspace=WORK, workspace_bytes=4096)
    rig.memory.write_bytes(BLOCK, block.pack())
    return Descriptor(opcode=Opcode.KV_APPEND, tile_m=1, type_in0=INT8, type_kv=INT8, in0_addr=SOURCE, out_addr=CACHE,
                      extended=1, param1=BLOCK)  # fmt: skip


def _gather(rig: Rig) -> Descriptor:
    rig.poke(SOURCE, np.zeros(1, np.int32))
    return Descriptor(opcode=Opcode.GATHER, tile_m=1, tile_n=1, tile_k=SIZE, type_in0=INT8, type_in1=INT32,
                      type_out=INT8, in0_addr=TABLE, in1_addr=SOURCE, out_addr=TARGET)  # fmt: skip


CASES: dict[str, tuple[Callable[[Rig], Descriptor], int, int]] = {
    "KV_APPEND": (lambda _: _move(Opcode.KV_APPEND, SOURCE, CACHE, type_in0=INT8, type_kv=INT8), SOURCE, CACHE),
    "KV_APPEND of floats": (
        lambda _: _move(Opcode.KV_APPEND, SOURCE, CACHE, type_in0=DataType.FP32, type_kv=DataType.FP32).with_(
            tile_k=SIZE // 4
        ),
        SOURCE,
        CACHE,
    ),
    "KV_APPEND in macro form": (_macro, SOURCE, CACHE),
    "KV_READ": (lambda _: _move(Opcode.KV_READ, TABLE, TARGET, type_kv=INT8, type_out=INT8), TABLE, TARGET),
    "STORE": (lambda _: _move(Opcode.STORE, SOURCE, CACHE, type_in0=INT8), SOURCE, CACHE),
    "LOAD": (lambda _: _move(Opcode.LOAD, TABLE, TARGET, type_in0=INT8), TABLE, TARGET),
    "GATHER": (_gather, TABLE, TARGET),
}
"""How the command is made, what it reads, where its result goes."""


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("rate", [102_400_000_000, None])
def test_a_store_over_the_source_does_not_reach_a_result_that_waits(case: str, rate: int | None) -> None:
    """The command ends while an older one of its stream runs; another stream then overwrites its source."""
    rig = Rig(NpuConfig(spm=SMALL_SPM, dram=DramConfig(bytes_per_second=rate), mode="tight"))
    fill(rig)
    random = np.random.default_rng(3)
    rig.poke(TABLE, random.integers(0, 256, SIZE, np.uint8))
    make, source, target = CASES[case]
    d = make(rig)
    before = rig.bytes_at(source, SIZE)
    rig.submit(_move(Opcode.LOAD, LONG, SPM + 0x4000, type_in0=INT8, stream=1).with_(tile_k=0x8000))
    ticket = rig.submit(d.with_(stream=1))
    opcode = Opcode.STORE if source >= DRAM else Opcode.COPY
    over = rig.submit(_move(opcode, OTHER, source, type_in0=INT8, stream=2))
    rig.idle()
    done = rig.stamps(What.DONE)
    if rate:
        assert done[over] < done[ticket], "the case is about a store between the start and the retirement"
    assert rig.bytes_at(source, SIZE) == rig.bytes_at(OTHER, SIZE) != before
    assert rig.bytes_at(target, SIZE) == before
