"""ATTN_T and products on chains of vector engines: cycles, causes and bytes of whole commands (docs/chained-ve.md)."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from analytic_rig import FREE, analysed, steps
from hypothesis import given, settings
from hypothesis import strategies as st
from npu_graphs import attentions, chains, listed
from npu_macro import MacroRig, block, random
from npu_rig import SPM
from shares import draws

from npu_device.abi.descriptor import Descriptor
from npu_device.abi.extended import Extended
from npu_device.abi.opcodes import DataType, Opcode
from npu_device.config import ChainedConfig, DmaConfig, DramConfig, NocConfig, NpuConfig, SpmConfig, TeConfig
from npu_device.cost import chained
from npu_device.levels.explain import Blocker, Explanation, explain
from npu_device.levels.runner import Listed
from npu_device.trace.events import Cause, Kind, What
from npu_device.trace.run_spans import Spans

FP16 = DataType.FP16
WIDTH = 128
PAPER = ChainedConfig()


def te(count: int = 1, **more: Any) -> TeConfig:
    return TeConfig(count=count, kind="chained_ve", chained=ChainedConfig(**more))


def attention(
    queries: int, keys: int, *, heads: int = 1, kv_heads: int = 1, causal: bool = True, window: int = 0,
    tile: tuple[int, int] = (4096, 4096), at: int = SPM, where: tuple[int, int, int] | None = None,
    width: int = WIDTH, room: int = 8 << 20,
) -> Listed:  # fmt: skip
    """Q, K, V and the result stay in the scratchpad, 1 MiB apart, if `where` does not say where they are."""
    q, k, v = where or (at, at + (1 << 20), at + (2 << 20))
    own = {
        "heads": heads, "kv_heads": kv_heads, "head_dim": width, "attn_flags": int(causal), "q_len": queries,
        "kv_len": keys, "window": window, "attn_scale": 0,
    }  # fmt: skip
    descriptor = Descriptor(
        opcode=Opcode.ATTN_T, tile_m=tile[0], tile_n=tile[1], tile_k=width, type_in0=FP16, type_kv=FP16, type_out=FP16,
        in0_addr=q, in1_addr=k, out_addr=q + (3 << 20), prefetch_dist=1,
    )  # fmt: skip
    return Listed(descriptor, 0, Extended.make(Opcode.ATTN_T, own=own, in2=v, workspace=SPM + (16 << 20),
                                               workspace_bytes=room))  # fmt: skip


def engine_steps(seen: Any) -> list[int]:
    """Cycles of the steps on tensor engines."""
    return [end["cycle"] - begin["cycle"] for begin, end in seen.spans() if begin["unit"] >> 8 == Kind.TE]


@pytest.mark.parametrize(
    ("skip", "cycles"), [("none", 66 * 32 * 32), ("tile", 34_848), ("dataflow", 33_168)], ids=str
)  # fmt: skip
def test_the_experiment_of_the_paper_on_the_device(skip: str, cycles: int) -> None:
    seen = listed([attention(256, 256)], NpuConfig(te=te(mask_skip=skip), spm=FREE))
    assert engine_steps(seen) == [cycles, cycles], "scores, then values"


@settings(max_examples=draws(40), deadline=None)
@given(st.integers(2, 80), st.integers(0, 80), st.integers(1, 3), chains(), st.booleans())
def test_a_command_of_one_tile_takes_the_closed_form(
    queries: int, past: int, heads: int, chain: ChainedConfig, causal: bool
) -> None:
    config = NpuConfig(te=TeConfig(count=1, kind="chained_ve", chained=chain), spm=FREE)
    seen = listed([attention(queries, queries + past, heads=heads, kv_heads=heads, causal=causal)], config)
    one = chained.masked(chain, queries, queries + past, WIDTH, 16, past, causal)
    assert engine_steps(seen) == [one.cycles] * 2 * heads
    lost = dict.fromkeys(Cause, 0)
    for stall in seen.of(What.STALL):
        if stall["unit"] >> 8 == Kind.TE:
            lost[Cause(stall["aux"])] += stall["bytes"]
    assert {cause: cycles for cause, cycles in lost.items() if cycles and cause > Cause.PORT_BOUND} == {
        cause: 2 * heads * cycles for cause, cycles in one.lost
    }


@pytest.mark.parametrize("kv", [64, 128, 256])
@pytest.mark.parametrize("tile", [64, 256])
def test_tiles_that_fall_on_those_of_the_chain_take_what_the_whole_takes(kv: int, tile: int) -> None:
    """The loop nest cuts 512 queries into tiles; all of them together have the tiles of the whole."""
    config = NpuConfig(te=te(lat=0), spm=FREE)
    seen = listed([attention(512, 512, tile=(tile, kv), room=14 << 20)], config)
    assert sum(engine_steps(seen)) == 2 * chained.masked(config.te.chained, 512, 512, WIDTH, 16).cycles


def losses(events: np.ndarray[Any, Any]) -> list[tuple[int, ...]]:
    """(ticket, tile, cause, cycles) of what engines lost."""
    chosen = events[(events["what"] == What.STALL) & (events["unit"] >> 8 == Kind.TE)]
    return sorted(tuple(int(one[name]) for name in ("ticket", "tile", "aux", "bytes")) for one in chosen)


@settings(max_examples=draws(30), deadline=None)
@given(st.lists(attentions(), min_size=1, max_size=2), chains(), st.sampled_from((0, 7, 120)), st.integers(1, 2))
def test_l1_equals_l2_where_nothing_is_shared(
    commands: list[Listed], chain: ChainedConfig, latency: int, engines: int
) -> None:
    config = NpuConfig(
        te=TeConfig(count=engines if len(commands) == 1 else 1, kind="chained_ve", chained=chain), spm=FREE,
        dram=DramConfig(latency=latency, bytes_per_second=None), noc=NocConfig(bytes_per_second=None),
        dma=DmaConfig(channels=2, direction="split"),
    )  # fmt: skip
    commands = [one._replace(descriptor=one.descriptor.with_(stream=0, prio=0, rank=0)) for one in commands]
    seen = listed(commands, config)
    cycles, events = analysed(commands, config)
    if engines == 1 or len(commands) > 1:
        assert cycles == seen.makespan
        assert steps(events) == steps(seen.events)
    assert losses(events) == losses(seen.events)


# -- masks -------------------------------------------------------------------------------------------------------------


def test_masks_reach_timing() -> None:
    """Causal, with a past, with a window, without a mask; and chains by what they pass over."""
    config = NpuConfig(te=te(), spm=FREE)

    def cycles(command: Listed, **more: Any) -> int:
        return sum(engine_steps(listed([command], replace(config, te=te(**more)))))

    causal, whole = cycles(attention(128, 128)), cycles(attention(128, 128, causal=False))
    window, past = cycles(attention(128, 128, window=32)), cycles(attention(128, 192))
    assert window < causal < past < cycles(attention(128, 192, causal=False))
    assert whole == 2 * 64 * 258, "8 x 8 tiles of 2T"
    assert causal == 2 * (28 * 258 + 8 * 138)
    assert past == causal + 2 * 8 * 4 * 258, "the past is four columns of other tiles"
    assert window == 2 * (8 * 138 + 258 * 7 + 122 * 6), "the edge of the window is a diagonal from the other end"
    for command in (attention(128, 128), attention(112, 144), attention(128, 128, window=64)):
        none, tile, dataflow = (cycles(command, mask_skip=skip) for skip in ("none", "tile", "dataflow"))
        assert none > tile > dataflow
        assert cycles(command, double_buffer=False) > dataflow
    assert cycles(attention(128, 128, causal=False), mask_skip="tile") == cycles(
        attention(128, 128, causal=False), mask_skip="none"
    )


def test_generation_takes_a_step_for_t_keys() -> None:
    seen = listed([attention(1, 1000, heads=4)], NpuConfig(te=te(), spm=FREE))
    one = 125 * 24 + 16 * 2
    assert engine_steps(seen) == [4 * one, 4 * one], "four heads on the same keys, one after the other"


# -- products ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("m", "n", "cycles"), [(64, 64, 512 * 24 + 64 * 2), (1, 64, 8 * 24 + 2), (64, 1, 8 * 24 + 2)])
def test_a_tile_command_runs_without_the_chain(m: int, n: int, cycles: int) -> None:
    gemm = Descriptor(opcode=Opcode.GEMM_T, tile_m=m, tile_n=n, tile_k=WIDTH, type_in0=FP16, type_in1=FP16,
                      type_out=FP16, in0_addr=SPM, in1_addr=SPM + 65536, out_addr=SPM + (1 << 20))  # fmt: skip
    assert listed([Listed(gemm)], NpuConfig(te=te(), spm=FREE)).makespan == cycles


# -- function ----------------------------------------------------------------------------------------------------------


@settings(max_examples=draws(25), deadline=None)
@given(st.integers(1, 20), st.integers(0, 12), st.booleans(), st.sampled_from((0, 3)), chains(), st.integers(1, 2))
def test_results_do_not_depend_on_the_engine(
    queries: int, past: int, causal: bool, window: int, chain: ChainedConfig, engines: int
) -> None:
    spm = SpmConfig(size=1 << 19)
    results = []
    for kind in ("roofline", "chained_ve"):
        rig = MacroRig(NpuConfig(te=TeConfig(count=engines, kind=kind, chained=chain), spm=spm))
        q, k, v = (random(DataType.FP32, rows, 16, rows) for rows in (queries, *[queries + past] * 2))
        own = {"heads": 2, "kv_heads": 2, "head_dim": 8, "attn_flags": int(causal), "q_len": queries,
               "kv_len": queries + past, "window": window, "attn_scale": 0x3F00_0000}  # fmt: skip
        d = Descriptor(
            opcode=Opcode.ATTN_T, tile_m=6, tile_n=9, tile_k=8, type_in0=DataType.FP32, type_kv=DataType.FP32,
            type_out=DataType.FP32, in0_addr=rig.put(q, DataType.FP32), in1_addr=rig.put(k, DataType.FP32),
            out_addr=rig.place(queries * 64),
        )  # fmt: skip
        rig.execute(d, block(Opcode.ATTN_T, own, in2=rig.put(v, DataType.FP32)))
        results.append(rig.get(d.out_addr, queries, 16, DataType.FP32))
    assert np.array_equal(*results)


# -- banks -------------------------------------------------------------------------------------------------------------


def test_keys_are_read_once_for_each_row_of_tiles_that_sees_them() -> None:
    """Port cycles of the bank with the keys, by the dataflow's own count of key accesses."""
    config = NpuConfig(te=te(), spm=SpmConfig(size=32 << 20, banks=32))
    seen = listed([attention(256, 256)], config)
    busy = {event["unit"] & 0xFF: event["bytes"] for event in seen.of(What.BANK_BUSY)}
    vectors = 272 * 8
    assert busy[1] == busy[2] == vectors * 256 // 64, "keys, values"
    assert busy[0] == 256 * 256 // 64, "queries are read once"
    pairs = 256 * 257 // 2
    assert busy[16] == 2 * -(-pairs * 4 // 64) + 2 * 256 * 256 * 4 // 64, "scores, weights, and both of the softmax"


def conflicts(command: Listed, config: NpuConfig) -> int:
    return sum(e["bytes"] for e in listed([command], config).of(What.STALL) if e["aux"] == Cause.BANK_CONFLICT)


def test_chains_that_read_one_bank_conflict_and_those_on_others_do_not() -> None:
    """Q, K and V of eight heads in one bank, or in three."""
    config = NpuConfig(te=te(4), spm=SpmConfig(size=32 << 20, banks=8, port=16))
    command = attention(64, 64, heads=8, kv_heads=8, tile=(64, 64), room=16 << 20)
    apart = attention(
        64, 64, heads=8, kv_heads=8, tile=(64, 64), room=16 << 20, where=(SPM, SPM + (4 << 20), SPM + (8 << 20))
    )
    assert conflicts(command, config) > conflicts(apart, config)
    wide = replace(config, spm=replace(config.spm, port=1024))
    assert conflicts(command, wide) == 0


# -- explanation -------------------------------------------------------------------------------------------------------


def explained(command: Listed, **more: Any) -> Explanation:
    config = NpuConfig(te=te(**more), spm=FREE)
    made = explain(Spans([listed([command], config).events]), config)
    assert sum(made.causes.values()) == made.makespan
    assert made.bounds["compute"] <= made.makespan
    return made


def test_each_cause_is_named() -> None:
    command = attention(256, 256)
    causes = explained(command).causes
    assert causes[Blocker.TILE_RESTART] == 2 * 136 * 2
    assert Blocker.CHAIN_FILL not in causes and Blocker.KEY_WAIT not in causes and Blocker.QUERY_LOAD not in causes
    assert causes[Blocker.COMPUTE] == 2 * 4112 * 8
    assert explained(command, mask_skip="tile").causes[Blocker.CHAIN_FILL] == 2 * (4224 - 4112) * 8
    assert explained(command, double_buffer=False).causes[Blocker.QUERY_LOAD] == 2 * 16 * 8 * 24
    slow = explained(command, lat=200).causes
    assert slow[Blocker.KEY_WAIT] == 2 * 16 * (216 - 136), "only diagonal tiles are shorter than two reads"
    once = explained(attention(1, 1000)).causes
    assert once[Blocker.KEY_WAIT] == 2 * 125 * 16


def test_without_a_cause_an_engine_computes() -> None:
    causes = explained(attention(256, 256), restart=0).causes
    assert set(causes) == {Blocker.COMPUTE, Blocker.VECTOR} | (set(causes) & {Blocker.DEPENDENCY})
