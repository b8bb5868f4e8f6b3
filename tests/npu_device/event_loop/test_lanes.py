"""A macro command on all engines of its cluster: faster, within closed-form bounds, and with the same results."""

from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from analytic_rig import FREE, analysed, steps
from hypothesis import given, settings
from hypothesis import strategies as st
from npu_graphs import listed
from npu_macro import MacroRig, block, random
from npu_rig import DRAM, SPM
from shares import draws

from npu_device.abi.descriptor import Descriptor
from npu_device.abi.extended import Extended
from npu_device.abi.opcodes import DataType, Eltwise, Gemm, Opcode
from npu_device.config import DmaConfig, DramConfig, NocConfig, NpuConfig, SpmConfig, TeConfig, VeConfig
from npu_device.cost.plan import Compute
from npu_device.decode.decoder import Decoder
from npu_device.levels.runner import Listed, Runner
from npu_device.operations.macro.base import setting_of
from npu_device.operations.macro.product import ProductMacro
from npu_device.operations.macro.workspace import Reserved, Site
from npu_device.reservation.sums import Accumulators
from npu_device.trace.events import Kind, What, unit_code

FP16, INT8, INT32 = DataType.FP16, DataType.INT8, DataType.INT32
RATE = 64 * 64
"""MACs of one engine per cycle at 8 bits."""


def gemm(
    m: int, n: int, k: int, tile: tuple[int, int, int] = (128, 128, 64), order: int = 0, room: int = 1 << 20,
    kind: DataType = INT8, **more: int,
) -> Listed:  # fmt: skip
    out = INT32 if kind is INT8 else kind
    shape = dict(zip(("tile_m", "tile_n", "tile_k"), tile, strict=True))
    descriptor = Descriptor(
        opcode=Opcode.GEMM_T, type_in0=kind, type_in1=kind, type_out=out, in0_addr=DRAM, in1_addr=DRAM + (16 << 20),
        out_addr=DRAM + (32 << 20), prefetch_dist=1, **shape, **more,
    )  # fmt: skip
    return Listed(descriptor, 0, Extended(m=m, n=n, k=k, workspace=SPM, workspace_bytes=room, loop_order=order))


def config(engines: int, bandwidth: int | None = 1_638_400_000_000, **more: Any) -> NpuConfig:
    """A DRAM that feeds four engines without delay, unless another one is asked for."""
    return NpuConfig(
        te=TeConfig(count=engines), spm=SpmConfig(size=8 << 20, port=None),
        dram=DramConfig(size=64 << 20, latency=0, bytes_per_second=bandwidth),
        noc=NocConfig(latency=0, bytes_per_second=None),
        dma=DmaConfig(channels=4, bytes_per_cycle=512), **more,
    )  # fmt: skip


def busy(seen: Any, kind: Kind = Kind.TE) -> list[int]:
    """Steps of each engine, in the order of engines."""
    begins = seen.events[seen.events["what"] == (What.TE_BEGIN if kind is Kind.TE else What.VE_BEGIN)]
    return [int((begins["unit"] == unit_code(kind, index)).sum()) for index in range(4)]


@pytest.mark.parametrize("order", [0, 1])
def test_a_large_gemm_gains_what_its_engines_are_worth(order: int) -> None:
    m = n = k = 1024
    made = gemm(m, n, k, (128, 128, 128), order, room=4 << 20)
    one, two, four = (listed([made], config(engines)) for engines in (1, 2, 4))
    for engines, seen in ((1, one), (2, two), (4, four)):
        assert seen.makespan >= m * n * k / (engines * RATE)
        assert busy(seen)[:engines] == [8**3 // engines] * engines
        assert sum(busy(seen)) == 8**3
    assert one.makespan > 1.9 * two.makespan
    assert one.makespan > 3.5 * four.makespan
    for seen in (two, four):  # the same tiles move
        assert seen.run.device.counters.dram_bytes_read == one.run.device.counters.dram_bytes_read
        assert seen.run.device.counters.dram_bytes_written == one.run.device.counters.dram_bytes_written


@pytest.mark.parametrize("order", [0, 1])
def test_pipelined_arrays_share_tiles_of_several_fold_columns(order: int) -> None:
    """Tiles of 2 x 4 folds, of which no engine waits for those of another one."""
    m, n, k = 512, 2048, 512
    made = gemm(m, n, k, (64, 256, 128), order, room=8 << 20)
    cycles = []
    for engines in (1, 2, 4):
        pipelined = TeConfig(count=engines, kind="systolic_ws_pipe", rows=64, columns=64, acc_bytes=1 << 20)
        channels = DmaConfig(channels=4, bytes_per_cycle=None)
        seen = listed([made], replace(config(engines, None), te=pipelined, dma=channels))
        assert len(set(busy(seen)[:engines])) == 1 and sum(busy(seen)) == m // 64 * n // 64 * k // 64
        cycles.append(seen.makespan)
    assert cycles[0] < 1.01 * m * n * k // RATE
    assert cycles[0] > 1.98 * cycles[1] > 3.9 * cycles[2]


@pytest.mark.parametrize("lanes", [1, 3])
def test_rows_of_a_product_are_in_the_order_of_its_plan(lanes: int) -> None:
    """External engines find the operands of a step by its place in the plan."""
    pipelined = TeConfig(count=3, kind="systolic_ws_pipe", rows=64, columns=64, acc_bytes=1 << 20)
    runner = Runner(replace(config(3), te=pipelined), values=False)
    (descriptor,) = runner.place([gemm(192, 512, 256, (64, 256, 128), room=4 << 20)])
    macro = Decoder(runner.config, runner.memory, Accumulators(runner.config)).decode(descriptor).macro
    assert isinstance(macro, ProductMacro)
    plan, rows = macro.plan(setting_of(runner.config), lanes), macro.rows(setting_of(runner.config), lanes)
    tensor = np.array([isinstance(piece, Compute) for piece in plan.pieces])[plan.piece]
    tile = (rows.row // 64 * 2 + rows.column // 256) * 2 + rows.at // 128
    assert plan.tile[tensor].tolist() == tile.tolist()
    assert plan.lane[tensor][: 3 * lanes].tolist() == [*range(lanes)] * 3


@settings(max_examples=draws(150), deadline=None)
@given(
    *[st.integers(1, 5).map(lambda i: 48 * i)] * 3, st.sampled_from(((64, 64, 64), (32, 64, 32), (48, 96, 64))),
    st.integers(0, 1), st.sampled_from((102_400_000_000, 1_638_400_000_000, None)), st.integers(1, 4),
)  # fmt: skip
def test_more_engines_take_longer_by_their_last_writes_at_most(
    m: int, n: int, k: int, tile: tuple[int, int, int], order: int, bandwidth: int | None, engines: int
) -> None:
    """Whatever bounds the run: outputs that end together are written one after the other."""

    def run(count: int) -> Any:
        made = config(count, bandwidth)
        return listed([gemm(m, n, k, tile, order)], replace(made, dma=DmaConfig(channels=2, direction="split")))

    one, many = run(1), run(engines)
    rate = Fraction(128) if bandwidth is None else min(Fraction(128), Fraction(bandwidth, 1_200_000_000))
    writes = (engines - 1) * (-(-m // tile[0]) if order else 1)
    assert many.makespan <= one.makespan + writes * (4 * tile[0] * tile[1] / rate + 1)
    assert many.makespan >= m * n * k / (engines * RATE)
    bytes_min = m * k * -(-n // tile[1]) + k * n * -(-m // tile[0]) if not order else 0
    assert many.makespan >= bytes_min / rate


def test_an_engine_that_is_named_works_alone() -> None:
    seen = listed([gemm(256, 256, 256, (64, 64, 64), affinity=2)], config(4))
    assert busy(seen) == [0, 64, 0, 0]


@pytest.mark.parametrize("engines", [1, 2, 3])
def test_a_command_that_asks_for_fewer_engines_runs_as_where_there_are_so_many(engines: int) -> None:
    made = gemm(256, 256, 256, (64, 64, 64))
    assert made.block is not None
    asked = made._replace(block=made.block._replace(engines=engines))
    few, many, all_of_them = listed([made], config(engines)), listed([asked], config(4)), listed([made], config(4))
    assert few.events.tobytes() == many.events.tobytes() != all_of_them.events.tobytes()


def test_a_workspace_for_one_engine_uses_one() -> None:
    need = 2 * 2 * 64 * 64 + 2 * 4 * 64 * 64
    rooms = ((need, [64, 0, 0, 0]), (2 * need, [32, 32, 0, 0]), (4 * need - 64, [22, 21, 21, 0]))
    for room, expected in rooms:
        assert busy(listed([gemm(256, 256, 256, (64, 64, 64), room=room)], config(4))) in (
            expected, [24, 20, 20, 0],
        )  # fmt: skip


def test_engines_that_others_hold_are_not_waited_for() -> None:
    """One engine is taken by a long command of its own: the other does all tiles, and both end."""
    first = gemm(512, 512, 512, (64, 64, 64), affinity=1)
    other = Listed(gemm(256, 256, 256, (64, 64, 64), stream=1).descriptor.with_(
        in0_addr=DRAM + (40 << 20), in1_addr=DRAM + (44 << 20), out_addr=DRAM + (48 << 20)), 1,
        Extended(m=256, n=256, k=256, workspace=SPM + (1 << 20), workspace_bytes=1 << 20))  # fmt: skip
    seen = listed([first, other], config(2))
    mine = seen.events[(seen.events["ticket"] == 2) & (seen.events["what"] == What.TE_BEGIN)]
    assert set(mine["unit"].tolist()) == {unit_code(Kind.TE, 1)}
    assert len(seen.events[seen.events["what"] == What.DONE]) == 2


def test_a_chain_of_sums_stays_on_one_engine() -> None:
    hold = gemm(128, 128, 128, (64, 64, 64), room=1 << 19, function=int(Gemm.HOLD))
    end = Listed(gemm(128, 128, 128, (64, 64, 64), accumulate=1).descriptor, 0,
                 Extended(m=128, n=128, k=128, workspace=SPM + (1 << 19), workspace_bytes=1 << 19))  # fmt: skip
    assert busy(listed([hold, end], config(4))) == [16, 0, 0, 0]


def test_vector_engines_share_the_blocks() -> None:
    add = Descriptor(
        opcode=Opcode.ELTWISE, function=Eltwise.ADD, tile_m=16, tile_n=256, type_in0=INT8, type_in1=INT8,
        type_out=INT8, in0_addr=SPM, in1_addr=SPM + 65536, out_addr=SPM + 131072,
    )  # fmt: skip
    made = Listed(add, 0, Extended(m=256, n=256))
    one, four = (listed([made], NpuConfig(ve=VeConfig(count=count), spm=SpmConfig(port=None))) for count in (1, 4))
    assert busy(four, Kind.VE) == [4, 4, 4, 4]
    assert one.makespan == 16 * (16 + 16 * 256 // 64)
    assert four.makespan == 4 * (16 + 16 * 256 // 64)


@settings(max_examples=draws(40), deadline=None)
@given(
    st.lists(st.tuples(*[st.integers(1, 4).map(lambda i: 64 * i)] * 3, st.integers(0, 1)), min_size=1, max_size=3),
    st.integers(1, 4), st.sampled_from(("roofline", "systolic_os", "systolic_ws_pipe")),
    st.sampled_from(("full", "out", "none")),
)  # fmt: skip
def test_l1_equals_l2_on_several_engines(
    shapes: list[tuple[int, int, int, int]], engines: int, kind: str, buffering: str
) -> None:
    """Under the conditions of docs/npu-timing.md, "Levels"; commands that follow each other through what they write."""
    made = replace(
        config(engines, None), te=TeConfig(count=engines, kind=kind, rows=16, columns=16), spm=FREE,
        dma=DmaConfig(channels=2, direction="split", bytes_per_cycle=32, buffering=buffering),
    )  # fmt: skip
    commands = [gemm(m, n, k, (64, 64, 32), order, kind=FP16) for m, n, k, order in shapes]
    seen = listed(commands, made)
    cycles, events = analysed(commands, made)
    assert cycles == seen.makespan
    assert steps(events) == steps(seen.events)


@pytest.mark.parametrize("order", [0, 1])
def test_results_are_those_of_one_engine_bit_for_bit(order: int) -> None:
    results = []
    for engines in (1, 2, 4):
        rig = MacroRig(NpuConfig(spm=SpmConfig(size=1 << 19), te=TeConfig(count=engines)))
        a, b = random(FP16, 70, 90, 1), random(FP16, 90, 50, 2)
        at = rig.place(2 * 70 * 50)
        d = Descriptor(
            opcode=Opcode.GEMM_T, tile_m=16, tile_n=16, tile_k=32, type_in0=FP16, type_in1=FP16, type_out=FP16,
            in0_addr=rig.put(a, FP16), in1_addr=rig.put(b, FP16), out_addr=at, prefetch_dist=1,
        )  # fmt: skip
        rig.execute(d, block(Opcode.GEMM_T, m=70, n=50, k=90, loop_order=order))
        assert len({event["unit"] for event in rig.happened(What.TE_BEGIN)}) == engines
        results.append(rig.get(at, 70, 50, FP16))
    assert all(np.array_equal(results[0].view(np.uint16), other.view(np.uint16)) for other in results)


Wanted = dict[str, tuple[int, int]]


def test_buffers_begin_in_the_next_bank_where_the_workspace_has_whole_banks() -> None:
    site = Site(SPM, 1 << 21, 1 << 17, 1 << 18)
    wanted = {"in0": (1 << 14, 2), "in1": (1 << 17, 2), "out": (1 << 16, 2)}
    attention = {"in0": (256, 2), "in1": (1 << 17, 2), "in2": (1 << 17, 2), "scores": (1 << 15, 1)}

    def banks(address: int, room: int, lanes: int = 1, wanted: Wanted = wanted) -> dict[str, list[int]]:
        slots = Reserved(site, address, room, wanted).slots(lanes)
        return {name: [(one - SPM) >> 18 for one in slots[name].addresses] for name in wanted}

    assert banks(SPM, 1 << 21) == {"in0": [0, 1], "in1": [2, 3], "out": [4, 5]}
    assert banks(SPM + (1 << 19), 3 << 18) == {"in0": [2, 3], "in1": [4, 2], "out": [3, 4]}
    assert banks(SPM, 1 << 21, lanes=2) == {"in0": [0, 1], "in1": [2, 3], "out": [0, 1]}
    full = banks(SPM, 3 << 18, wanted=attention)
    assert full == {"in0": [0, 1], "in1": [2, 0], "in2": [1, 2], "scores": [0]}
    bank_2_is_full = banks(SPM, 3 << 18, wanted={**attention, "scores": (1 << 15, 3)})
    assert bank_2_is_full["scores"] == [0, 1, 0]
    packed = Reserved(site, SPM + 64, 1 << 21, wanted).slots(1)
    assert [packed[name].addresses[0] - SPM for name in wanted] == [64, 64 + (2 << 14), 64 + (2 << 14) + (2 << 17)]


def attention(queries: int, room: int = 1 << 20) -> Listed:
    """Causal attention of 8 heads of 64 over K and V that were just made, one after the other in DRAM."""
    own = {"heads": 8, "kv_heads": 8, "head_dim": 64, "q_len": queries, "kv_len": queries, "attn_flags": 1,
           "attn_scale": int(np.float32(0.125).view(np.uint32))}  # fmt: skip
    d = Descriptor(
        opcode=Opcode.ATTN_T, tile_m=64, tile_n=64, tile_k=64, type_in0=FP16, type_kv=FP16, type_out=FP16,
        in0_addr=DRAM, in1_addr=DRAM + (1 << 20), out_addr=DRAM + (3 << 20), prefetch_dist=1,
    )  # fmt: skip
    words = {"in2": DRAM + (2 << 20), "workspace": SPM, "workspace_bytes": room}
    return Listed(d, 0, block(Opcode.ATTN_T, own, **words))


@pytest.mark.parametrize("engines", [1, 2, 4])
@pytest.mark.parametrize("vectors", [1, 4])
def test_l1_equals_l2_on_an_attention(engines: int, vectors: int) -> None:
    made = replace(
        config(engines, None), te=TeConfig(count=engines, rows=16, columns=16), ve=VeConfig(count=vectors), spm=FREE,
        dma=DmaConfig(channels=2, direction="split", bytes_per_cycle=32),
    )  # fmt: skip
    commands = [attention(200, room=4 << 20)]
    seen = listed(commands, made)
    cycles, events = analysed(commands, made)
    assert cycles == seen.makespan
    assert steps(events) == steps(seen.events)


def test_heads_of_an_attention_run_side_by_side() -> None:
    one, four = (listed([attention(256)], config(count)) for count in (1, 4))
    assert busy(one) == [8 * 2 * (1 + 2 + 3 + 4), 0, 0, 0]
    assert sum(busy(four)) == sum(busy(one)) and max(busy(four)) == min(busy(four))
    assert 2.5 < one.makespan / four.makespan <= 4.0
    read = [seen.run.device.counters.dram_bytes_read for seen in (one, four)]
    assert read[0] == read[1]
