"""Random command graphs and configurations for the model of time, and what their events say."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from hypothesis import strategies as st
from npu_rig import DRAM, SPM, Rig, dictionaries

from npu_device.abi.descriptor import Descriptor
from npu_device.abi.extended import Extended
from npu_device.abi.opcodes import DataType, Eltwise, Opcode, Scope
from npu_device.config import (
    ChainedConfig,
    DmaConfig,
    DramConfig,
    L2Config,
    NocConfig,
    NpuConfig,
    QueueConfig,
    SchedulerConfig,
    SpmConfig,
    TeConfig,
    TimedDramConfig,
    VeConfig,
)
from npu_device.dram_devices import DEVICES, MAPPINGS
from npu_device.levels.runner import Listed, Run, Runner
from npu_device.trace.events import Kind, What
from npu_device.trace.stream import records

INT8, INT32 = DataType.INT8, DataType.INT32
SPM_SIZE = 1 << 16
WORKSPACE = SPM + (1 << 15)
"""Macro commands use the upper half of the scratchpad, tile commands the lower."""
BLOCKS = DRAM + 0xC_0000
KINDS = ("roofline", "systolic_os", "systolic_ws", "systolic_is", "systolic_ws_pipe", "chained_ve")
BEGINS = (What.DMA_BEGIN, What.TE_BEGIN, What.VE_BEGIN)
ENDS = (What.DMA_END, What.TE_END, What.VE_END)

_spm = st.integers(0, 15).map(lambda i: SPM + 2048 * i)
_dram = st.integers(0, 31).map(lambda i: DRAM + 2048 * i)
_ways = st.fixed_dictionaries({"stream": st.integers(0, 3), "prio": st.integers(0, 3), "rank": st.integers(0, 2)})
_sizes = st.sampled_from((8, 64, 512, 2048))


@st.composite
def _moves(draw: st.DrawFn) -> Listed:
    load = draw(st.booleans())
    spm, dram, rows = draw(_spm), draw(_dram), draw(st.sampled_from((1, 1, 4)))
    size = draw(_sizes) // rows
    wide = draw(st.sampled_from((0, 0, 1024))) if rows > 1 else 0
    return Listed(
        Descriptor(
            opcode=Opcode.LOAD if load else Opcode.STORE, tile_m=rows, tile_k=size, type_in0=INT8, param0=wide,
            in0_addr=dram if load else spm, out_addr=spm if load else dram, **draw(_ways),
        )
    )  # fmt: skip


@st.composite
def _gemms(draw: st.DrawFn) -> Listed:
    m, n, k = (draw(st.sampled_from((1, 8, 20))) for _ in range(3))
    return Listed(
        Descriptor(
            opcode=Opcode.GEMM_T, tile_m=m, tile_n=n, tile_k=k, type_in0=INT8, type_in1=INT8, type_out=INT32,
            in0_addr=draw(_spm), in1_addr=draw(_spm), out_addr=draw(_spm), **draw(_ways),
        )
    )  # fmt: skip


@st.composite
def _vectors(draw: st.DrawFn) -> Listed:
    return Listed(
        Descriptor(
            opcode=Opcode.ELTWISE, function=Eltwise.RELU, tile_m=1, tile_n=draw(_sizes), type_in0=INT8, type_out=INT8,
            in0_addr=draw(_spm), out_addr=draw(_spm), **draw(_ways),
        )
    )  # fmt: skip


@st.composite
def macros(draw: st.DrawFn) -> Listed:
    m, n, k = (draw(st.sampled_from((8, 24, 40))) for _ in range(3))
    block = Extended(m=m, n=n, k=k, workspace=WORKSPACE, workspace_bytes=1 << 15, loop_order=draw(st.integers(0, 1)))
    descriptor = Descriptor(
        opcode=Opcode.GEMM_T, tile_m=16, tile_n=16, tile_k=draw(st.sampled_from((8, 16))), type_in0=INT8,
        type_in1=INT8, type_out=INT32, in0_addr=draw(_dram), in1_addr=draw(_dram),
        out_addr=DRAM + 0x4_0000 + 8192 * draw(st.integers(0, 3)), prefetch_dist=draw(st.integers(0, 2)), **draw(_ways),
    )  # fmt: skip
    return Listed(descriptor, 0, block)


@st.composite
def attentions(draw: st.DrawFn) -> Listed:
    kv_heads, group, width = (draw(st.sampled_from(choice)) for choice in ((1, 2), (1, 3), (8, 16)))
    queries, past = draw(st.sampled_from((1, 5, 16, 24))), draw(st.sampled_from((0, 0, 7, 16)))
    own = {
        "heads": kv_heads * group, "kv_heads": kv_heads, "head_dim": width, "attn_flags": draw(st.integers(0, 1)),
        "q_len": queries, "kv_len": queries + past, "window": draw(st.sampled_from((0, 0, 6))), "attn_scale": 0,
    }  # fmt: skip
    block = Extended.make(
        Opcode.ATTN_T, own=own, in2=draw(_dram), workspace=WORKSPACE, workspace_bytes=1 << 15,
    )  # fmt: skip
    descriptor = Descriptor(
        opcode=Opcode.ATTN_T, tile_m=draw(st.sampled_from((4, 16, 32))), tile_n=draw(st.sampled_from((8, 40))),
        tile_k=width, type_in0=DataType.FP16, type_kv=DataType.FP16, type_out=DataType.FP16, in0_addr=draw(_dram),
        in1_addr=draw(_dram), out_addr=DRAM + 0x5_0000 + 8192 * draw(st.integers(0, 3)),
        prefetch_dist=draw(st.integers(0, 1)), **draw(_ways),
    )  # fmt: skip
    return Listed(descriptor, 0, block)


@st.composite
def chains(draw: st.DrawFn) -> ChainedConfig:
    """The parameters of `chained_ve`."""
    return ChainedConfig(
        T=draw(st.sampled_from((1, 2, 3, 8))), lanes=draw(st.sampled_from((1, 4, 16))),
        channel_bytes=draw(st.sampled_from((1, 32))), lat=draw(st.sampled_from((0, 5, 16))),
        restart=draw(st.sampled_from((0, 2))), mask_skip=draw(st.sampled_from(("none", "tile", "dataflow"))),
        double_buffer=draw(st.booleans()),
    )  # fmt: skip


_barriers = st.builds(
    lambda scope, way: Listed(Descriptor(opcode=Opcode.BARRIER, function=scope, **way)),
    st.sampled_from(list(Scope)),
    _ways,
)
tiles = st.one_of(_moves(), _moves(), _gemms(), _vectors())
graphs = st.lists(st.one_of(tiles, tiles, tiles, macros(), attentions(), _barriers), min_size=4, max_size=24)


@st.composite
def configs(draw: st.DrawFn, **fixed: Any) -> NpuConfig:
    """A device; `fixed` replaces sections."""
    direction = draw(st.sampled_from(("shared", "split")))
    sections: dict[str, Any] = {
        "te": TeConfig(
            count=draw(st.integers(1, 2)), rows=draw(st.sampled_from((2, 8))), columns=4,
            kind=draw(st.sampled_from(KINDS)), form=draw(st.sampled_from(("v3", "paper"))), chained=draw(chains()),
        ),
        "ve": VeConfig(count=draw(st.integers(1, 2)), lanes=8, latency=draw(st.sampled_from((0, 16)))),
        "spm": SpmConfig(
            size=SPM_SIZE, banks=draw(st.sampled_from((1, 4, 8))), port=draw(st.sampled_from((None, 8, 64))),
            ports=draw(st.sampled_from(("1rw", "1r1w"))), interleave=draw(st.sampled_from(("block", "64B"))),
        ),
        "dma": DmaConfig(
            channels=2 if direction == "split" else draw(st.integers(1, 4)), direction=direction,
            bytes_per_cycle=draw(st.sampled_from((16, 128, None))),
            buffering=draw(st.sampled_from(("full", "out", "none"))), share=draw(st.sampled_from(("fair", "oldest"))),
            outstanding=draw(st.sampled_from((1, 2, 5))),
        ),
        "dram": DramConfig(
            size=1 << 20, latency=draw(st.sampled_from((0, 7, 120))),
            bytes_per_second=draw(st.sampled_from((7_000_000_000, 102_400_000_000, None))),
            row_model=draw(st.sampled_from(("none", "open"))), channels=draw(st.sampled_from((1, 1, 2, 4))),
            interleave=draw(st.sampled_from((64, 256, 4096))),
            model=draw(st.sampled_from(("simple", "simple", "timed"))),
            timed=TimedDramConfig(
                device=draw(st.sampled_from(tuple(DEVICES))), page=draw(st.sampled_from(("open", "closed"))),
                mapping=draw(st.sampled_from(MAPPINGS)), queue=draw(st.sampled_from((1, 4, 16))),
                refi=draw(st.sampled_from((None, 700))), rfc=40,
            ),
        ),
        "noc": NocConfig(
            latency=draw(st.sampled_from((0, 8))), topology=draw(st.sampled_from(("link", "link", "crossbar", "mesh"))),
        ),
        "l2": L2Config(
            enabled=draw(st.sampled_from((False, False, True))), bytes=draw(st.sampled_from((512, 4096, 1 << 16))),
            ways=draw(st.sampled_from((1, 2, 8))), hit=draw(st.sampled_from((0, 20))), write_back=draw(st.booleans()),
            bypass_bytes=draw(st.sampled_from((512, 65536))), coherence=draw(st.sampled_from(("none", "io_coherent"))),
        ),
        "scheduler": SchedulerConfig(
            policy=draw(st.sampled_from(("fifo", "prio", "cp"))), window=draw(st.sampled_from((1, 2, 16)))
        ),
        "clock_ratio": draw(st.sampled_from(((1, 1), (3, 2)))),
        "queue": QueueConfig(tight_size=64),
    }  # fmt: skip
    return NpuConfig(**(sections | fixed))


class Seen(NamedTuple):
    """A run, and its events."""

    run: Run
    events: np.ndarray[Any, Any]

    @property
    def makespan(self) -> int:
        """Cycle of the last completion; all commands were accepted at 0."""
        return int(self.events["cycle"][self.events["what"] == What.DONE].max())

    def of(self, *whats: What) -> list[dict[str, int]]:
        return dictionaries(self.events[np.isin(self.events["what"], whats)])

    def spans(self) -> list[tuple[dict[str, int], dict[str, int]]]:
        """Begin and end of every step, in the order of their ends."""
        begun: dict[int, dict[str, int]] = {}
        found = []
        for event in self.of(*BEGINS, *ENDS):
            if event["what"] in BEGINS:
                assert event["unit"] not in begun, "a unit does one thing at a time"
                begun[event["unit"]] = event
            else:
                found.append((begun.pop(event["unit"]), event))
        assert not begun
        return found


def listed(commands: Sequence[Listed], config: NpuConfig, native: bool = False, *, analytic: bool = False) -> Seen:
    """Run a list without a core, timing only."""
    runner = Runner(config, values=False, interpreted=not native, analytic=analytic)
    collected = records(runner.events)
    run = runner.run(commands)
    return Seen(run, collected())


def channel_bytes(seen: Seen, channels: int) -> list[int]:
    """What each of several DRAM channels has moved."""
    moved = [0] * channels
    for event in seen.of(What.CHANNEL_BYTES):
        assert event["unit"] >> 8 == Kind.DRAM
        moved[event["unit"] & 0xFF] += event["bytes"]
    return moved


def stepped(commands: Sequence[Listed], config: NpuConfig, step: int | None) -> str:
    """Hash of the events when the device is advanced in steps of so many cycles."""
    rig = Rig(config, step=step)
    for index, command in enumerate(commands):
        descriptor = command.descriptor
        if command.block is not None:
            at = BLOCKS + 128 * index
            rig.memory.write_bytes(at, command.block.pack())
            descriptor = descriptor.with_(extended=1, param1=at)
        rig.submit(descriptor)
    rig.idle()
    return rig.events.hexdigest()
