"""Invariant 8 of docs/npu-timing.md: every cycle of the makespan has one cause, and no bound lies above it."""

from dataclasses import replace

from analytic_rig import analysed
from hypothesis import given, settings
from npu_graphs import configs, graphs, listed
from npu_rig import DRAM, SPM
from shares import draws

from npu_device.abi.descriptor import Descriptor
from npu_device.abi.opcodes import DataType, Opcode
from npu_device.config import DmaConfig, DramConfig, NocConfig, NpuConfig, SpmConfig, TeConfig
from npu_device.levels.critical_path import CriticalPath
from npu_device.levels.explain import Blocker, Explanation, explain
from npu_device.levels.runner import Listed, Runner
from npu_device.trace.run_spans import Spans

INT8, INT32 = DataType.INT8, DataType.INT32


@settings(max_examples=draws(80), deadline=None)
@given(graphs, configs())
def test_8_causes_add_up_to_the_makespan_and_bounds_stay_below(commands: list[Listed], config: NpuConfig) -> None:
    seen = listed(commands, config)
    runner = Runner(config, values=False)
    path = CriticalPath(config, runner.memory).walk(runner.place(commands), [0] * len(commands))
    made = explain(Spans([seen.events]), config, path)
    assert made.makespan == seen.makespan
    assert sum(made.causes.values()) == made.makespan
    assert all(cycles > 0 for cycles in made.causes.values())
    assert sum(made.chain.values()) == made.makespan and {cause for _, cause in made.chain} == set(made.causes)
    assert max(made.bounds.values()) <= made.makespan


def load(at: int = 0, size: int = 6400, out: int = SPM) -> Listed:
    return Listed(Descriptor(opcode=Opcode.LOAD, tile_m=1, tile_k=size, type_in0=INT8, in0_addr=DRAM, out_addr=out), at)


def explained(commands: list[Listed], config: NpuConfig) -> Explanation:
    return explain(Spans([listed(commands, config).events]), config)


def test_each_cause_has_its_cycles() -> None:
    free = SpmConfig(port=None)
    config = NpuConfig(spm=free, dram=DramConfig(latency=50, bytes_per_second=64 * 1_200_000_000),
                       noc=NocConfig(latency=8), dma=DmaConfig(channels=1), te=TeConfig(count=1))  # fmt: skip
    gemm = Descriptor(opcode=Opcode.GEMM_T, tile_m=64, tile_n=64, tile_k=64, type_in0=INT8, type_in1=INT8,
                      type_out=INT32, in0_addr=SPM, in1_addr=SPM, out_addr=SPM + 65536)  # fmt: skip
    barrier = Descriptor(opcode=Opcode.BARRIER, function=2)
    first = explained([load(at=30), Listed(gemm, 30)], config)
    assert first.causes == {
        Blocker.SUBMISSION: 30, Blocker.DRAM_LATENCY: 50, Blocker.NOC: 8, Blocker.DRAM: 100, Blocker.COMPUTE: 64,
    }  # fmt: skip
    busy = explained([load(), load(out=SPM + 8192)], config)
    assert busy.causes == {Blocker.CHANNEL_BUSY: 58, Blocker.DRAM_LATENCY: 50, Blocker.NOC: 8, Blocker.DRAM: 200}
    gated = explained([load(), Listed(barrier), Listed(gemm.with_(in0_addr=SPM + 16384, in1_addr=SPM + 16384))], config)
    assert gated.causes == {Blocker.BARRIER: 158, Blocker.COMPUTE: 64}
    assert explained([load()], config).bounds["dram"] == 100
    store = Listed(load(out=DRAM).descriptor.with_(opcode=Opcode.STORE, in0_addr=SPM))
    posted = explained([store, Listed(store.descriptor.with_(out_addr=DRAM + 8192))], config)
    assert posted.causes == {Blocker.DRAM_LATENCY: 50, Blocker.NOC: 8, Blocker.DRAM: 200}


@settings(max_examples=draws(60), deadline=None)
@given(graphs, configs())
def test_what_has_no_limit_is_not_blamed(commands: list[Listed], config: NpuConfig) -> None:
    dram, noc = replace(config.dram, model="simple", bytes_per_second=None), NocConfig(latency=0, bytes_per_second=None)
    unlimited = replace(config, dram=dram, noc=noc, l2=replace(config.l2, snoop=0))
    for seen in (listed(commands, unlimited).events, analysed(commands, unlimited)[1]):
        causes = explain(Spans([seen]), unlimited).causes
        assert not causes.keys() & {Blocker.DRAM, Blocker.NOC}


def test_bursts_and_rows_are_not_bandwidth_of_the_dram() -> None:
    """128 rows of 64 bytes: 96 cycles of the DRAM, a burst of the channel each."""
    narrow = load(size=64)._replace(descriptor=load(size=64).descriptor.with_(tile_m=128, param0=128))
    of = NpuConfig(spm=SpmConfig(port=None), dram=DramConfig(row_model="open"))
    explanation = explained([narrow], of)
    assert explanation.causes == {
        Blocker.DRAM: 96, Blocker.CHANNEL: 32, Blocker.DRAM_LATENCY: 120 + 36, Blocker.NOC: 8,
    }  # fmt: skip
    assert explanation.bounds["dram"] == 96
    shared = explained([narrow, load(size=6400, out=SPM + 65536)], of)
    assert shared.causes[Blocker.DRAM] == 96 + 75


def test_banks_are_named() -> None:
    config = NpuConfig(spm=SpmConfig(port=8), dma=DmaConfig(channels=1), dram=DramConfig(latency=0))
    bound = explained([load()], config)
    assert bound.causes[Blocker.PORT_BOUND] == 800 - 75
    assert bound.bounds["spm"] == 800
    table = bound.text()
    assert "port_bound" in table
    assert "largest" in table
