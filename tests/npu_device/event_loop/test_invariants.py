"""The invariants of docs/npu-timing.md over random command graphs and configurations."""

from dataclasses import replace
from fractions import Fraction

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from npu_graphs import SPM_SIZE, Seen, channel_bytes, configs, graphs, listed, macros, stepped, tiles
from npu_rig import DRAM, SPM
from shares import draws

from npu_device.abi.descriptor import Descriptor
from npu_device.abi.extended import Extended
from npu_device.abi.opcodes import DataType, Opcode
from npu_device.config import (
    DmaConfig,
    DramConfig,
    L2Config,
    NocConfig,
    NpuConfig,
    QueueConfig,
    SpmConfig,
    TeConfig,
    VeConfig,
)
from npu_device.cost.durations import Timing
from npu_device.cost.tensor import product
from npu_device.levels.runner import Listed
from npu_device.trace.events import WRITES, Kind, What

INT8, INT32 = DataType.INT8, DataType.INT32


@settings(max_examples=draws(80), deadline=None)
@given(graphs, configs())
def test_1_makespan_is_between_the_busiest_resource_and_the_serial_sum(
    commands: list[Listed], config: NpuConfig
) -> None:
    seen = listed(commands, config)
    npu = seen.run.device.counters.to_json()
    assert npu["completed"] == len(commands)
    makespan = seen.makespan
    assert makespan >= max(max(npu[kind]) for kind in ("te_busy", "ve_busy", "dma_busy"))
    ports = 2 if config.spm.ports == "1r1w" else 1
    assert makespan * ports >= max(npu["bank_busy"])
    timing = Timing(config)
    moved = npu["dram_bytes_read"] + npu["dram_bytes_written"]
    total = Fraction(timing.rates.total, timing.rates.per_byte)
    assert not total or makespan >= moved / total
    one = Fraction(timing.rates.dram, timing.rates.per_byte)
    assert not one or makespan >= max(channel_bytes(seen, config.dram.channels)) / one
    drain = timing.core_cycles(product(config.te, 40, 40, 40, 8, 8).drain)
    posted = max(timing.latency, timing.miss_latency) + timing.core_cycles(config.dram.row_cycles)
    posted += timing.network.hops(0) * timing.hop_latency
    serial = 0
    for begin, end in seen.spans():
        serial += end["cycle"] - begin["cycle"]
        serial += drain if begin["unit"] >> 8 == Kind.TE else posted if begin["aux"] & WRITES else 0
    assert makespan <= serial


@settings(max_examples=draws(60), deadline=None)
@given(graphs, configs())
def test_2_bytes_are_conserved(commands: list[Listed], config: NpuConfig) -> None:
    """What descriptors ask for crosses DRAM and NoC, widened to whole accesses, and nothing else does."""
    seen = listed(commands, config)
    by_ticket: dict[int, int] = {}
    aligned = {False: 0, True: 0}
    for begin, end in seen.spans():
        assert begin["bytes"] == end["bytes"]
        if begin["unit"] >> 8 == Kind.DMA:
            by_ticket[begin["ticket"]] = by_ticket.get(begin["ticket"], 0) + begin["bytes"]
            aligned[bool(begin["aux"] >> 16 & 1)] += end["aux"]
            assert end["aux"] >= end["bytes"]
            assert end["aux"] % config.dma.alignment == 0
    for ticket, (d, _, block, _) in zip(seen.run.tickets, commands, strict=True):
        if d.opcode in (Opcode.LOAD, Opcode.STORE):
            assert by_ticket[ticket] == d.tile_m * d.tile_k
        elif d.opcode == Opcode.ATTN_T:
            assert block is not None
            own = block.words(Opcode.ATTN_T)
            rows = 2 * own["q_len"] * own["heads"] * own["head_dim"]
            kv = 2 * own["kv_len"] * own["kv_heads"] * own["head_dim"]
            blocks = -(-own["q_len"] * own["heads"] // own["kv_heads"] // d.tile_m)
            most = (
                2 * kv * blocks + 2 * own["heads"] * own["head_dim"] * 2 * 2 * blocks
            )  # a block of rows may split a query
            assert (0 if own["window"] else 2 * kv) <= by_ticket[ticket] - 2 * rows <= most
        elif block is not None:
            n_tiles, m_tiles = -(-block.n // d.tile_n), -(-block.m // d.tile_m)
            k_tiles = -(-block.k // d.tile_k)
            most = block.m * block.k * n_tiles + block.k * block.n * m_tiles  # F7: the output stays, k is innermost
            out = 4 * block.m * block.n
            assert by_ticket[ticket] <= most + out * (1 if block.loop_order == 0 else 2 * k_tiles)
            assert by_ticket[ticket] >= block.m * block.k + block.k * block.n + out
    npu = seen.run.device.counters
    assert npu.noc_bytes == aligned[False] + aligned[True]
    if not config.l2.enabled:
        assert (npu.dram_bytes_read, npu.dram_bytes_written) == (aligned[False], aligned[True])
    if config.l2.enabled or config.dram.channels > 1:
        assert npu.dram_bytes_read + npu.dram_bytes_written == sum(channel_bytes(seen, config.dram.channels))


@settings(max_examples=draws(60), deadline=None)
@given(graphs, configs())
def test_3_nothing_is_used_twice_at_once(commands: list[Listed], config: NpuConfig) -> None:
    """Units by `spans`; the bytes of any stretch of time fit the rate; each bank's stalls lengthen steps."""
    seen = listed(commands, config)
    timing = Timing(config)
    transfers = [(e["cycle"], b["cycle"], e["aux"]) for b, e in seen.spans() if b["unit"] >> 8 == Kind.DMA]
    if timing.rates.total and transfers:
        ends, begins, sizes = np.array(sorted(transfers), np.int64).T
        for low in set(begins.tolist()):
            inside = np.cumsum(np.where(begins >= low, sizes, 0))  # in transfers from `low` on, up to each end
            assert (inside * timing.rates.per_byte <= np.maximum(0, ends - low) * timing.rates.total).all()
    for stall in seen.of(What.STALL):
        if stall["unit"] >> 8 == Kind.BANK:
            assert stall["bytes"] > 0
            assert stall["unit"] & 0xFF < config.spm.banks


def pipeline(count: int, rows: int, k: int) -> list[Listed]:
    """Loads, products and stores in three buffers."""
    made = []
    for tile in range(count):
        half = SPM + 16384 * (tile % 3)
        made += [
            Descriptor(opcode=Opcode.LOAD, tile_m=1, tile_k=rows * k, type_in0=INT8, in0_addr=DRAM, out_addr=half),
            Descriptor(opcode=Opcode.GEMM_T, tile_m=rows, tile_n=k, tile_k=k, type_in0=INT8, type_in1=INT8,
                       type_out=INT32, in0_addr=half, in1_addr=half, out_addr=half + 8192),
            Descriptor(opcode=Opcode.STORE, tile_m=1, tile_k=rows * k, type_in0=INT32, in0_addr=half + 8192,
                       out_addr=DRAM + 65536 + 4096 * tile),
        ]  # fmt: skip
    return [Listed(d) for d in made]


FREE = SpmConfig(size=SPM_SIZE, port=None)


@settings(max_examples=draws(40), deadline=None)
@given(st.integers(1, 9), st.integers(1, 30), st.sampled_from((16, 32)), st.sampled_from((1, 16, None)))
def test_5_the_limits_are_exact(count: int, rows: int, k: int, rate: int | None) -> None:
    """Zero latencies, no bank limits, one engine, one channel, a queue that holds everything."""
    base = NpuConfig(
        queue=QueueConfig(command_size=64), te=TeConfig(count=1), spm=FREE,
        dma=DmaConfig(channels=1, bytes_per_cycle=None),
        dram=DramConfig(size=1 << 20, latency=0, bytes_per_second=None),
        noc=NocConfig(latency=0, bytes_per_second=None),
    )  # fmt: skip
    commands = pipeline(count, rows, k)
    compute = count * -(-rows * k * k // 4096)
    assert listed(commands, base).makespan == compute
    bound = replace(base, te=TeConfig(count=1, ideal=True), ve=VeConfig(ideal=True),
                    dma=DmaConfig(channels=1, bytes_per_cycle=rate))  # fmt: skip
    sizes = [-(-size // 64) * 64 for size in (rows * k, 4 * rows * k)]
    moved = 0 if rate is None else sum(max(-(-size // rate), -(-size // 128)) for size in sizes)
    assert listed(commands, bound).makespan == count * moved


@settings(max_examples=draws(40), deadline=None)
@given(
    st.integers(1, 6),
    st.integers(1, 8),
    configs(te=TeConfig(count=1, speed="flat"), scheduler=NpuConfig().scheduler, l2=L2Config()),
)
def test_6_half_the_bits_are_half_the_bytes(count: int, lines: int, config: NpuConfig) -> None:
    runs: dict[DataType, Seen] = {}
    for kind in (DataType.INT8, DataType.INT4):
        k = 128 * lines
        commands = []
        for tile in range(count):
            half = SPM + 16384 * (tile % 2)
            commands += [
                Descriptor(opcode=Opcode.LOAD, tile_m=1, tile_k=k, type_in0=kind, in0_addr=DRAM + 4096 * tile,
                           out_addr=half),
                Descriptor(opcode=Opcode.GEMM_T, tile_m=1, tile_n=1, tile_k=k, type_in0=INT8, type_in1=kind,
                           type_out=INT32, in0_addr=half + 4096, in1_addr=half, out_addr=half + 8192),
            ]  # fmt: skip
        runs[kind] = listed([Listed(d) for d in commands], config)
    whole, halved = runs[DataType.INT8], runs[DataType.INT4]
    assert 2 * halved.run.device.counters.dram_bytes_read == whole.run.device.counters.dram_bytes_read
    assert whole.makespan / 2 <= halved.makespan + config.clock_ratio[0]
    assert halved.makespan <= whole.makespan


@settings(max_examples=draws(25), deadline=None)
@given(graphs, configs())
def test_7_steps_of_any_size_give_the_same_events(commands: list[Listed], config: NpuConfig) -> None:
    assert len({stepped(commands, config, step) for step in (1, 7, 1000, None)}) == 1


@settings(max_examples=draws(60), deadline=None)
@given(graphs, configs())
def test_the_compiled_loop_gives_the_events_of_the_plain_one(commands: list[Listed], config: NpuConfig) -> None:
    plain, native = listed(commands, config), listed(commands, config, native=True)
    assert plain.run.events.hexdigest() == native.run.events.hexdigest()
    assert plain.run.device.counters.to_json() == native.run.device.counters.to_json()


@settings(max_examples=draws(30), deadline=None)
@given(st.lists(tiles | macros(), min_size=2, max_size=12), configs())
def test_a_run_repeats_itself(commands: list[Listed], config: NpuConfig) -> None:
    assert listed(commands, config).run.events.hexdigest() == listed(commands, config).run.events.hexdigest()


def test_a_step_may_wake_in_a_cycle_in_which_the_front_end_acts() -> None:
    """A result on its way through the array wakes the store that waits for it; commands are accepted all the time."""
    block = Extended(m=16, n=16, k=16, workspace=SPM, workspace_bytes=1 << 15)
    product = Descriptor(
        opcode=Opcode.GEMM_T, tile_m=16, tile_n=16, tile_k=16, type_in0=INT8, type_in1=INT8, type_out=INT32,
        in0_addr=DRAM, in1_addr=DRAM + 1024, out_addr=DRAM + 2048,
    )  # fmt: skip
    config = NpuConfig(te=TeConfig(kind="systolic_ws_pipe", rows=8, columns=8))
    alone = listed([Listed(product, 0, block)], config)
    nops = [Listed(Descriptor(stream=1), at) for at in range(alone.makespan)]
    busy = listed([Listed(product, 0, block), *nops], config)
    done = {event["ticket"]: event["cycle"] for event in busy.of(What.DONE)}
    assert done[busy.run.tickets[0]] == alone.makespan
