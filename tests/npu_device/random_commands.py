"""Random lists of commands with hazards, streams and barriers, and the ways to run them."""

from typing import NamedTuple

import numpy as np
from hypothesis import strategies as st
from npu_rig import DRAM, SMALL_SPM, SPM, Rig

from npu_device.abi.descriptor import Descriptor
from npu_device.abi.opcodes import DataType, Eltwise, Opcode, Scope
from npu_device.config import (
    DmaConfig,
    DramConfig,
    FrontEndConfig,
    NpuConfig,
    QueueConfig,
    SchedulerConfig,
    TeConfig,
    VeConfig,
)

INT8, INT32 = DataType.INT8, DataType.INT32


ACC_BYTES = 640


class Barrier(NamedTuple):
    """TBAR between two submissions."""

    immediate: int


spm = st.integers(0, 12).map(lambda i: SPM + 32 * i)


dram = st.integers(0, 12).map(lambda i: DRAM + 32 * i)


small = st.integers(1, 6)


stride = st.sampled_from((0, 0, 32, 64, 96))


ways = st.fixed_dictionaries(
    {
        "stream": st.integers(0, 3),
        "prio": st.integers(0, 3),
        "rank": st.integers(0, 2),
        "irq": st.integers(0, 1),
    }
)


@st.composite
def moves(draw: st.DrawFn) -> Descriptor:
    opcode = draw(st.sampled_from((Opcode.LOAD, Opcode.STORE, Opcode.COPY)))
    source = draw(dram if opcode is Opcode.LOAD else spm)
    target = draw(dram if opcode is Opcode.STORE else spm)
    kind, k = draw(st.sampled_from(((INT8, 24), (INT8, 32), (INT32, 8))))
    return Descriptor(
        opcode=opcode, tile_m=draw(small), tile_k=k, type_in0=kind, in0_addr=source, out_addr=target,
        param0=draw(stride), param1=draw(stride), **draw(ways),
    )  # fmt: skip


@st.composite
def gemms(draw: st.DrawFn) -> Descriptor:
    side = draw(st.sampled_from((4, 8)))
    return Descriptor(
        opcode=Opcode.GEMM_T, tile_m=side, tile_n=side, tile_k=draw(small), type_in0=INT8, type_in1=INT8,
        type_out=INT32, in0_addr=draw(spm), in1_addr=draw(spm), out_addr=SPM + 128 * draw(st.integers(0, 3)),
        accumulate=draw(st.integers(0, 1)), function=draw(st.integers(0, 1)), in1_nk=draw(st.integers(0, 1)),
        **draw(ways),
    )  # fmt: skip


@st.composite
def eltwises(draw: st.DrawFn) -> Descriptor:
    function = draw(st.sampled_from((Eltwise.ADD, Eltwise.RELU, Eltwise.WHERE)))
    return Descriptor(
        opcode=Opcode.ELTWISE, function=function, tile_m=draw(small), tile_n=32, type_in0=INT8,
        type_in1=0 if function is Eltwise.RELU else INT8, type_out=INT8, in0_addr=draw(spm), in1_addr=draw(spm),
        out_addr=draw(spm), **draw(ways),
    )  # fmt: skip


tbars = st.sampled_from([*(stream << 4 for stream in range(4)), int(Scope.CLUSTER), int(Scope.GLOBAL)]).map(Barrier)


configs = st.builds(
    lambda te, ve, dma, policy, window, front, ratio, latency, queue, history: NpuConfig(
        spm=SMALL_SPM,
        te=TeConfig(count=te, rows=2, columns=2, acc_bytes=ACC_BYTES),
        ve=VeConfig(count=ve, lanes=4, latency=latency),
        dma=DmaConfig(channels=dma, alignment=32),
        dram=DramConfig(latency=latency),
        scheduler=SchedulerConfig(policy=policy, window=window),
        frontend=FrontEndConfig(*front),
        clock_ratio=ratio,
        queue=QueueConfig(size=queue, command_size=history, tight_size=queue, history=1000),
    ),
    st.just(2),
    st.integers(1, 3),
    st.integers(1, 3),
    st.sampled_from(("fifo", "prio", "cp")),
    st.sampled_from((1, 2, 16)),
    st.sampled_from(((0, 0, 0), (5, 2, 1), (1, 3, 9))),
    st.sampled_from(((1, 1), (3, 2), (1, 3))),
    st.sampled_from((0, 7, 120)),
    st.sampled_from((4, 64)),
    st.sampled_from((2, 16)),
)


def fill(rig: Rig) -> None:
    random = np.random.default_rng(7)
    rig.dram[:4096] = random.integers(0, 256, 4096, np.uint8)
    for data in rig.spm:
        data[:4096] = random.integers(0, 256, 4096, np.uint8)
