"""How long things take: the closed forms of docs/npu-timing.md, with numbers worked out by hand."""

import math
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from npu_rig import DRAM, SPM, SPM_SIZE, Rig

from npu_device.abi.descriptor import Descriptor
from npu_device.abi.errors import NpuDeviceError
from npu_device.abi.opcodes import DataType, Eltwise, Norm, Opcode
from npu_device.config import DmaConfig, DramConfig, NocConfig, NpuConfig, SpmConfig, TeConfig, VeConfig
from npu_device.cost import durations as timing
from npu_device.cost.rates import Rates
from npu_device.cost.sequencer import Bus, classes
from npu_device.cost.tensor import product
from npu_device.memory.region import Region, make_region
from npu_device.trace.events import What

INT8, INT32, FP16 = DataType.INT8, DataType.INT32, DataType.FP16


PORTS_FREE = SpmConfig(size=SPM_SIZE, port=None)


def duration(descriptor: Descriptor, config: NpuConfig | None = None) -> int:
    rig = Rig(config or NpuConfig(spm=PORTS_FREE))
    ticket = rig.submit(descriptor)
    rig.idle()
    (begin,) = rig.happened(What.DMA_BEGIN, What.TE_BEGIN, What.VE_BEGIN)
    return rig.stamps(What.DONE)[ticket] - begin["cycle"]


@pytest.mark.parametrize(
    ("address", "size", "alignment", "aligned"),
    [
        (131072, 32, 64, 64), (131104, 32, 64, 64), (100, 10, 32, 32), (40, 40, 64, 128), (120000, 2048, 64, 2048),
        (0, 2097152, 32, 2097152), (7, 0, 64, 0),
    ],
)  # fmt: skip
def test_alignment_r5(address: int, size: int, alignment: int, aligned: int) -> None:
    assert timing.aligned_bytes(address, size, alignment) == aligned


@given(
    st.integers(0, 5000), st.integers(1, 9), st.integers(1, 300), st.integers(0, 400),
    st.sampled_from((1, 32, 64)), st.sampled_from((64, 128)),
)  # fmt: skip
def test_the_size_of_a_transfer_is_that_of_its_rows(
    address: int, rows: int, width: int, gap: int, alignment: int, bus: int
) -> None:
    region = make_region(address, rows, width, width + gap)
    if gap == 0:
        assert region == Region(address, 1, rows * width, rows * width)
    spans = [(address + row * (width + gap), width) for row in range(rows)] if gap else [(address, rows * width)]
    sizes = []
    for start, size in spans:
        first, last = start // alignment, (start + size - 1) // alignment
        sizes.append((last - first + 1) * alignment)
    bursts = sum((size + bus - 1) // bus for size in sizes)
    assert timing.transfer_size(region, alignment, bus) == (sum(sizes), bursts)


@pytest.mark.parametrize(
    ("config", "slowest"),
    [
        (NpuConfig(), Fraction(256, 3)),
        (NpuConfig(dma=DmaConfig(bytes_per_cycle=16)), 16),
        (NpuConfig(noc=NocConfig(bytes_per_second=1_200_000_000)), 1),
        (NpuConfig(clock_ratio=(2, 1), dma=DmaConfig(bytes_per_cycle=1024)), Fraction(256, 3)),
        (NpuConfig(clock_ratio=(2, 1), dma=DmaConfig(bytes_per_cycle=64)), 32),
        (NpuConfig(dram=DramConfig(bytes_per_second=1)), Fraction(1, 1_200_000_000)),
    ],
)
def test_a_lone_transfer_moves_at_the_rate_of_the_slowest_of_channel_dram_and_noc(
    config: NpuConfig, slowest: Fraction
) -> None:
    rates = Rates(config)
    for size in (1, 64, 255, 4096):
        assert rates.duration(size) == math.ceil(size / slowest)
    assert min(Fraction(rate, rates.per_byte) for rate in (rates.channel, rates.total)) == slowest


@pytest.mark.parametrize(
    "config",
    [
        NpuConfig(dram=DramConfig(bytes_per_second=2, channels=16)),
        NpuConfig(dma=DmaConfig(bytes_per_cycle=1 << 31), dram=DramConfig(bytes_per_second=2, channels=16)),
        NpuConfig(dma=DmaConfig(bytes_per_cycle=1 << 31), noc=NocConfig(bytes_per_second=3)),
        NpuConfig(dram=DramConfig(bytes_per_second=10**14 + 31, channels=4)),  # 47 bits, and 16 of a share
    ],
)
def test_rates_whose_credits_no_word_holds_are_refused(config: NpuConfig) -> None:
    """They ended in an OverflowError when commands ran in native code."""
    with pytest.raises(NpuDeviceError, match=r"noc.bytes_per_second = .* choose rates that are nearer to each other"):
        Rates(config)
    Rates(replace(config, dram=DramConfig(), dma=DmaConfig()))


def test_without_limits_bytes_take_no_time() -> None:
    free = NpuConfig(
        spm=PORTS_FREE, dma=DmaConfig(bytes_per_cycle=None), dram=DramConfig(bytes_per_second=None, latency=7),
        noc=NocConfig(bytes_per_second=None, latency=0),
    )  # fmt: skip
    load = Descriptor(opcode=Opcode.LOAD, tile_m=1, tile_k=4096, type_in0=INT8, in0_addr=DRAM, out_addr=SPM)
    assert duration(load, free) == 7
    slow = replace(free, dma=DmaConfig(bytes_per_cycle=3))
    assert duration(load, slow) == 7 + 1366
    assert (Rates(free).duration(4096), Rates(slow).duration(4096)) == (0, 1366)


@pytest.mark.parametrize(
    ("more", "cycles"),
    [
        ({"tile_m": 1, "tile_k": 64}, 128 + 1),  # 64 / 85.3
        ({"tile_m": 1, "tile_k": 4096}, 128 + 48),
        ({"tile_m": 1, "tile_k": 4097}, 128 + 49),
        ({"tile_m": 64, "tile_k": 64}, 128 + 48),
        ({"tile_m": 64, "tile_k": 64, "param0": 128}, 128 + 64),  # one burst per row
        ({"tile_m": 64, "tile_k": 64, "param1": 128}, 128 + 48),  # the scratchpad side does not count
        ({"tile_m": 4, "tile_k": 2, "in0_addr": DRAM + 63, "param0": 64}, 128 + 6),  # two lines per row
        ({"tile_m": 1, "tile_k": 4096, "type_in0": DataType.INT4}, 128 + 24),
    ],
)
def test_dma(more: dict[str, int], cycles: int) -> None:
    base = {"opcode": Opcode.LOAD, "type_in0": INT8, "in0_addr": DRAM, "out_addr": SPM}
    assert duration(Descriptor(**(base | more))) == cycles
    if "param0" not in more and "param1" not in more and "in0_addr" not in more:
        back = base | more | {"opcode": Opcode.STORE, "in0_addr": SPM, "out_addr": DRAM}
        assert duration(Descriptor(**back)) == cycles


@pytest.mark.parametrize(
    ("m", "n", "k", "in0", "in1", "out", "cycles"),
    [
        (128, 128, 64, INT8, INT8, INT32, 256),
        (64, 64, 1, INT8, INT8, INT32, 1),
        (65, 64, 1, INT8, INT8, INT32, 2),
        (1, 1, 1, INT8, INT8, INT32, 1),
        (64, 64, 64, FP16, FP16, FP16, 256),  # a quarter of the rate
        (64, 64, 64, INT8, DataType.INT4, INT32, 32),
        (64, 64, 64, DataType.INT4, DataType.INT2, INT32, 8),
        (32, 32, 32, DataType.FP32, DataType.FP32, DataType.FP32, 128),
    ],
)
def test_gemm(m: int, n: int, k: int, in0: DataType, in1: DataType, out: DataType, cycles: int) -> None:
    descriptor = Descriptor(
        opcode=Opcode.GEMM_T, tile_m=m, tile_n=n, tile_k=k, type_in0=in0, type_in1=in1, type_out=out,
        in0_addr=SPM, in1_addr=SPM + 65536, out_addr=SPM + 131072,
    )  # fmt: skip
    spm = SpmConfig(port=None)
    assert duration(descriptor, NpuConfig(spm=spm)) == cycles
    assert duration(descriptor, NpuConfig(spm=spm, te=TeConfig(fill=9))) == cycles + 9


@pytest.mark.parametrize(
    ("more", "cycles"),
    [
        ({"opcode": Opcode.ELTWISE, "function": Eltwise.ADD, "type_in1": INT8}, 16 + 16),
        ({"opcode": Opcode.ELTWISE, "function": Eltwise.RELU, "type_in0": FP16, "type_out": FP16}, 16 + 32),
        ({"opcode": Opcode.ELTWISE, "function": Eltwise.CAST, "type_out": FP16}, 16 + 16),
        ({"opcode": Opcode.GELU, "type_in0": FP16, "type_out": FP16}, 16 + 256),
        ({"opcode": Opcode.SOFTMAX, "type_in0": FP16, "type_out": FP16}, 16 + 192),
        ({"opcode": Opcode.LAYERNORM, "type_in0": FP16, "type_in1": FP16, "type_out": FP16}, 16 + 192),
        ({"opcode": Opcode.LAYERNORM, "function": Norm.RMS, "type_in0": FP16, "type_in1": FP16, "type_out": FP16},
         16 + 128),
        ({"opcode": Opcode.REDUCE, "function": 2}, 16 + 16),
        ({"opcode": Opcode.COPY, "tile_k": 64, "type_out": 0}, 16 + 16),
        ({"opcode": Opcode.ELTWISE, "function": Eltwise.RELU, "tile_m": 1, "tile_n": 1}, 17),
    ],
)  # fmt: skip
def test_vector(more: dict[str, int], cycles: int) -> None:
    base = {"tile_m": 16, "tile_n": 64, "type_in0": INT8, "type_out": INT8, "in0_addr": SPM, "in1_addr": SPM + 8192,
            "out_addr": SPM + 16384}  # fmt: skip
    assert duration(Descriptor(**(base | more))) == cycles
    slow = NpuConfig(spm=PORTS_FREE, ve=VeConfig(latency=0, lanes=32))
    assert duration(Descriptor(**(base | more)), slow) == max(1, 2 * (cycles - 16) - (cycles == 17))


@pytest.mark.parametrize(("ratio", "cycles"), [((1, 1), 131), ((2, 1), 262), ((1, 2), 66), ((3, 2), 197), ((2, 3), 88)])
def test_a_duration_is_rounded_up_in_core_cycles(ratio: tuple[int, int], cycles: int) -> None:
    config = NpuConfig(
        spm=PORTS_FREE, clock_ratio=ratio, dma=DmaConfig(bytes_per_cycle=1), dram=DramConfig(latency=120)
    )
    load = Descriptor(opcode=Opcode.LOAD, tile_m=1, tile_k=3, type_in0=INT8, in0_addr=DRAM, out_addr=SPM)
    config = replace(config, dma=DmaConfig(bytes_per_cycle=1, alignment=1))
    assert duration(load, config) == cycles


def test_nop_and_barrier_take_no_time() -> None:
    rig = Rig()
    tickets = [rig.submit(Descriptor()), rig.submit(Descriptor(opcode=Opcode.BARRIER))]
    rig.idle()
    accepted, done = rig.stamps(What.ACCEPT), rig.stamps(What.DONE)
    assert [done[ticket] - accepted[ticket] for ticket in tickets] == [0, 0]
    assert rig.counter("QUEUE_DEPTH_MAX") == 1


@pytest.mark.parametrize("n", [1, 2, 5, 9])
@pytest.mark.parametrize(("side", "slowest"), [(4, "compute"), (16, "store"), (64, "load")])
def test_double_buffering_is_the_closed_form_f8(n: int, side: int, slowest: str) -> None:
    """Equal tiles, two input and two output buffers, a channel per direction, one stream:
    L + (n-1) * max(L, P, W) + P + W."""
    dram = DramConfig(bytes_per_second=2 * 128 * 1_200_000_000)  # as much as both channels take
    noc = NocConfig(bytes_per_second=None)
    te = TeConfig(count=1, rows=side, columns=side)
    rig = Rig(NpuConfig(spm=PORTS_FREE, te=te, dram=dram, noc=noc))
    rows = 128 if slowest == "load" else 64
    load = Descriptor(opcode=Opcode.LOAD, tile_m=rows, tile_k=32, type_in0=INT8, in0_addr=DRAM, affinity=1)
    gemm = Descriptor(
        opcode=Opcode.GEMM_T, tile_m=32, tile_n=32, tile_k=8, type_in0=INT8, type_in1=INT8, type_out=INT32
    )
    store = Descriptor(
        opcode=Opcode.STORE, tile_m=160 if slowest == "store" else 32, tile_k=32, type_in0=INT32, affinity=2
    )
    if slowest == "load":
        load = load.with_(param0=256)
    for tile in range(n):
        half = SPM + 32768 * (tile % 2)
        rig.submit(load.with_(out_addr=half))
        rig.submit(gemm.with_(in0_addr=half, in1_addr=half + 1024, out_addr=half + 4096))
        rig.submit(store.with_(in0_addr=half + 4096, out_addr=DRAM + 65536 + 32768 * tile))
    rig.idle()
    begin = {event["ticket"]: event["cycle"] for event in rig.happened(What.DMA_BEGIN, What.TE_BEGIN)}
    end = {event["ticket"]: event["cycle"] for event in rig.happened(What.DMA_END, What.TE_END)}
    times = dict(zip(("load", "compute", "store"), (end[ticket] - begin[ticket] for ticket in (1, 2, 3)), strict=True))
    assert max(times, key=lambda name: times[name]) == slowest
    assert end[3 * n] - begin[1] == sum(times.values()) + (n - 1) * times[slowest]


@given(
    st.integers(0, 30), st.lists(st.sampled_from((1, 2, 5, 1 << 40)), min_size=1, max_size=4), st.integers(0, 1 << 30)
)
def test_equal_steps_are_found_whatever_their_columns_hold(count: int, widths: list[int], seed: int) -> None:
    rng = np.random.default_rng(seed)
    columns = [rng.integers(-width, width, count) for width in widths]
    table, index = classes(*columns)
    rows = np.stack(columns, axis=1)
    assert table.tolist() == np.unique(rows, axis=0).tolist()
    assert (table[index] == rows).all()


@given(
    st.sampled_from(("systolic_os", "systolic_ws", "systolic_is", "systolic_ws_pipe", "roofline", "chained_ve")),
    st.integers(1, 70), st.integers(1, 6), st.integers(1, 40), st.integers(1, 30),
)  # fmt: skip
def test_groups_side_by_side(kind: str, m: int, n: int, k: int, groups: int) -> None:
    """An array that holds weights has block matrices of several groups on its diagonal; others take groups in turn."""
    te = TeConfig(kind=kind, rows=16, columns=8)
    together = product(te, m, groups * n, k, 32, 32, groups=groups).cycles
    one = product(te, m, n, k, 32, 32).cycles
    if kind == "roofline":
        assert together == product(te, m, groups * n, k, 32, 32).cycles  # as many multiplications
    elif kind in ("systolic_ws", "systolic_ws_pipe"):
        blocks = max(1, min(16 // k, 8 // n))
        whole = product(te, m, min(blocks, groups) * n, min(blocks, groups) * k, 32, 32).cycles
        assert together == math.ceil(groups / blocks) * whole <= groups * one
    else:
        assert together == groups * one


def test_a_line_of_which_a_part_is_written_crosses_the_bus_twice() -> None:
    """R21: 16 bytes across two lines of 64, four bursts each."""
    part, whole = make_region(56, 1, 16), make_region(64, 1, 128)
    bus = Bus(64, 16, read_modify_write=True)
    assert bus.size(part, write=True) == (256, 16) and bus.size(part, write=False) == (128, 8)
    assert bus.size(whole, write=True) == (128, 8)
