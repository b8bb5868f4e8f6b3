"""Closed forms (docs/npu-timing.md, F1 to F8), and the analytic level against the event-driven one."""

from fractions import Fraction

import pytest
from analytic_rig import FREE, analysed, steps
from hypothesis import given, settings
from hypothesis import strategies as st
from npu_graphs import listed
from npu_rig import DRAM, SPM
from shares import draws

from npu_device.abi.descriptor import Descriptor
from npu_device.abi.extended import Extended
from npu_device.abi.opcodes import DataType, Opcode
from npu_device.config import DmaConfig, DramConfig, NocConfig, NpuConfig, TeConfig
from npu_device.cost.durations import Timing
from npu_device.cost.plan import Compute, Plan, Transfer, buffers, columns
from npu_device.cost.tensor import product
from npu_device.event_loop.dispatch import step_commands
from npu_device.event_loop.encoding import Pieces, encode
from npu_device.event_loop.machine import Machine
from npu_device.levels.runner import Listed
from npu_device.memory.region import Region
from npu_device.trace.events import Kind, Role, unit_code
from npu_device.trace.stream import EventStream, records

INT8, INT32, FP16 = DataType.INT8, DataType.INT32, DataType.FP16
FAST = {"dram": DramConfig(bytes_per_second=None), "noc": NocConfig(bytes_per_second=None)}


def gemm(m: int, n: int, k: int) -> Listed:
    return Listed(
        Descriptor(
            opcode=Opcode.GEMM_T, tile_m=m, tile_n=n, tile_k=k, type_in0=INT8, type_in1=INT8, type_out=INT32,
            in0_addr=SPM, in1_addr=SPM + (8 << 20), out_addr=SPM + (16 << 20),
        )
    )  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "side", "m", "n", "k", "cycles"),
    [
        ("systolic_os", 32, 256, 256, 256, 20_351),
        ("systolic_os", 32, 200, 300, 100, 11_339),
        ("systolic_os", 128, 1024, 1024, 1024, 81_791),
        ("systolic_ws", 32, 256, 256, 256, 22_399),
        ("systolic_ws", 32, 200, 300, 100, 11_759),
        ("systolic_ws", 128, 1024, 1024, 1024, 89_983),
        ("systolic_is", 32, 256, 256, 256, 22_399),
        ("systolic_is", 32, 200, 300, 100, 11_031),
    ],
)
def test_f1_f2_f3_one_tile_command_takes_what_scale_sim_says(
    kind: str, side: int, m: int, n: int, k: int, cycles: int
) -> None:
    te = TeConfig(count=1, kind=kind, rows=side, columns=side, acc_bytes=8 << 20)
    assert listed([gemm(m, n, k)], NpuConfig(spm=FREE, te=te)).makespan == cycles


@given(st.sampled_from(("systolic_os", "systolic_ws", "systolic_is")), *[st.integers(1, 300)] * 3,
       st.integers(1, 40), st.integers(1, 40))  # fmt: skip
def test_the_paper_form_is_one_formula(kind: str, m: int, n: int, k: int, r: int, c: int) -> None:
    sr, sc, t = {"systolic_os": (m, n, k), "systolic_ws": (k, n, m), "systolic_is": (k, m, n)}[kind]
    expected = (2 * r + c + t - 2) * -(-sr // r) * -(-sc // c)
    assert product(TeConfig(kind=kind, form="paper", rows=r, columns=c), m, n, k, 8, 8).cycles == expected


@given(*[st.integers(1, 300)] * 3, st.sampled_from((8, 32, 128)))
def test_f5_a_pipelined_array_is_bound_by_its_folds(m: int, n: int, k: int, side: int) -> None:
    cost = product(TeConfig(kind="systolic_ws_pipe", rows=side, columns=side), m, n, k, 16, 16)
    assert cost.cycles == -(-k // side) * -(-n // side) * max(m, side, 4)
    assert cost.cold == 2 * side - 1
    assert cost.cycles + cost.drain >= 2 * side - 2 + max(m, 4)


def macro(m: int, n: int, k: int, tile: tuple[int, int, int], prefetch: int = 1, order: int = 0) -> Listed:
    block = Extended(m=m, n=n, k=k, workspace=SPM, workspace_bytes=1 << 20, loop_order=order)
    descriptor = Descriptor(
        opcode=Opcode.GEMM_T, tile_m=tile[0], tile_n=tile[1], tile_k=tile[2], type_in0=FP16, type_in1=FP16,
        type_out=FP16, in0_addr=DRAM, in1_addr=DRAM + (8 << 20), out_addr=DRAM + (16 << 20), prefetch_dist=prefetch,
    )  # fmt: skip
    return Listed(descriptor, 0, block)


sides = st.integers(1, 4).map(lambda i: 64 * i)


@settings(max_examples=draws(30), deadline=None)
@given(sides, sides, sides, st.sampled_from(((64, 64, 64), (32, 64, 32), (128, 64, 64))), st.integers(1, 2))
def test_f6_f7_roofline_and_traffic(m: int, n: int, k: int, tile: tuple[int, int, int], engines: int) -> None:
    config = NpuConfig(te=TeConfig(count=engines))
    seen = listed([macro(m, n, k, tile)], config)
    npu = seen.run.device.counters
    reads = 2 * (m * k * -(-n // tile[1]) + k * n * -(-m // tile[0]))
    assert (npu.dram_bytes_read, npu.dram_bytes_written) == (reads, 2 * m * n)
    rate = Fraction(102_400_000_000, 1_200_000_000)
    assert seen.makespan >= max(4 * m * n * k / (64 * 64 * engines), 2 * (m * k + k * n + m * n) / rate)


# -- F8 ----------------------------------------------------------------------------------------------------------------


def chain(n: int, load: int, work: int, store: int, prefetch: int, buffering: str) -> Plan:
    """n equal tiles: one read, one computation, one write each."""
    kept = buffers(buffering, prefetch)
    spm = Region(SPM, 1, 1, 1)
    pieces = (
        Transfer(False, Role.ACTIVATION, load, load, 0, spm, spm),
        Compute(Kind.TE, 0, work, 1, 1, 8, 8, 0, (), ()),
        Transfer(True, Role.ACTIVATION, store, store, 0, spm, spm),
    )
    steps: list[tuple[int, int, int, tuple[int, ...]]] = []
    for i in range(n):
        before = 3 * (i - 1) + 2 if kept.serial else 3 * (i - kept.inputs) + 1
        steps.append((0, i, 0, (before,) if before >= 0 else ()))
        free = 3 * (i - kept.outputs) + 2
        steps.append((1, i, 0, (3 * i, free) if free >= 0 else (3 * i,)))
        steps.append((2, i, 0, (3 * i + 1,)))
    return columns(steps, pieces)


def laid_out(plan: Plan, direction: str, channels: int) -> int:
    """Cycles of one plan: a channel moves a byte per cycle, nothing has a latency."""
    config = NpuConfig(
        te=TeConfig(count=1, rows=1, columns=1), spm=FREE, noc=NocConfig(latency=0, bytes_per_second=None),
        dram=DramConfig(latency=0, bytes_per_second=None),
        dma=DmaConfig(bytes_per_cycle=1, channels=channels, direction=direction),
    )  # fmt: skip
    events = EventStream()
    seen = records(events)
    timing = Timing(config)
    machine = Machine(config, timing, events)
    machine.add(encode(plan, Pieces(timing)), 1, 1, [unit_code(Kind.TE, 0)], 0)
    machine.start(0)
    machine.call(step_commands, 0, 1 << 40)
    return int(seen()["cycle"].max())


times = st.integers(1, 40)


@settings(max_examples=draws(150), deadline=None)
@given(st.integers(1, 12), times, times, times)
def test_f8_separate_channels_give_the_closed_form(n: int, load: int, work: int, store: int) -> None:
    def cycles(buffering: str) -> int:
        return laid_out(chain(n, load, work, store, 1, buffering), "split", 2)

    assert cycles("full") == load + (n - 1) * max(load, work, store) + work + store
    assert cycles("out") == load + work + (n - 1) * max(load + work, store) + store
    assert cycles("none") == n * (load + work + store)


@settings(max_examples=draws(150), deadline=None)
@given(st.integers(1, 12), times, times, times)
def test_f8_one_shared_channel_stays_below_its_bound(n: int, load: int, work: int, store: int) -> None:
    cycles = laid_out(chain(n, load, work, store, 1, "full"), "shared", 1)
    bound = load + (n - 1) * max(load + store, work) + work + store
    assert cycles <= bound
    if n == 1 or work >= load + store:
        assert cycles == bound


@given(st.integers(1, 12), times, times, times, st.integers(1, 3), st.integers(1, 3))
def test_the_recurrence_of_a_tile_is_what_the_event_loop_does(
    n: int, load: int, work: int, store: int, prefetch: int, _: int
) -> None:
    kept = buffers("full", prefetch)
    loads, works, stores = [0] * (n + 1), [0] * (n + 1), [0] * (n + 1)
    for i in range(1, n + 1):
        loads[i] = max(loads[i - 1], works[i - kept.inputs] if i > kept.inputs else 0) + load
        works[i] = max(works[i - 1], loads[i], stores[i - kept.outputs] if i > kept.outputs else 0) + work
        stores[i] = max(stores[i - 1], works[i]) + store
    assert laid_out(chain(n, load, work, store, prefetch, "full"), "split", 2) == stores[n]


def test_a_plan_without_steps_is_over_at_once() -> None:
    timing = Timing(NpuConfig())
    machine = Machine(NpuConfig(), timing, EventStream())
    slot = machine.add(encode(columns([], ()), Pieces(timing)), 1, 1, [unit_code(Kind.TE, 0)], 0, 17)
    machine.start(17)
    assert machine.next_cycle() == 17
    machine.call(step_commands, 17, 17)
    assert not machine.storage.runs[slot].number
    assert machine.free_units(int(Kind.TE), 0, 1) == [unit_code(Kind.TE, 0)]
    assert machine.next_cycle() is None


# -- L1 and L2 ---------------------------------------------------------------------------------------------------------


@settings(max_examples=draws(60), deadline=None)
@given(
    st.lists(st.tuples(sides, sides, sides, st.integers(0, 3), st.integers(0, 1)), min_size=1, max_size=3),
    st.sampled_from(("roofline", "systolic_os", "systolic_ws", "systolic_is", "systolic_ws_pipe")),
    st.sampled_from(("full", "out", "none")), st.sampled_from((0, 1, 90)), st.sampled_from((8, 32, 64)),
    st.sampled_from((1, 2, 8)), st.sampled_from((16, 32)),
)  # fmt: skip
def test_l1_equals_l2_where_nothing_is_shared(
    shapes: list[tuple[int, ...]], kind: str, buffering: str, latency: int, rate: int, channels: int, side: int
) -> None:
    """The conditions for equality: all accepted at 0, a channel per direction, rates that suffice (each channel
    of the DRAM for both), no banks. One engine, so that the commands follow each other."""
    config = NpuConfig(
        te=TeConfig(count=1, kind=kind, rows=side, columns=side), spm=FREE,
        dram=DramConfig(latency=latency, bytes_per_second=2 * rate * channels * 1_200_000_000, channels=channels),
        noc=NocConfig(latency=3, bytes_per_second=2 * rate * 1_200_000_000),
        dma=DmaConfig(channels=2, direction="split", bytes_per_cycle=rate, buffering=buffering),
    )  # fmt: skip
    commands = [macro(m, n, k, (64, 64, 32), prefetch, order) for m, n, k, prefetch, order in shapes]
    seen = listed(commands, config)
    cycles, events = analysed(commands, config)
    assert cycles == seen.makespan
    assert steps(events) == steps(seen.events)


@settings(max_examples=draws(40), deadline=None)
@given(st.integers(1, 12), st.integers(1, 64), st.integers(1, 64), st.integers(1, 3), st.sampled_from((0, 7, 120)))
def test_l1_equals_l2_on_tile_commands(n: int, rows: int, k: int, halves: int, latency: int) -> None:
    config = NpuConfig(te=TeConfig(count=1), spm=FREE, dma=DmaConfig(channels=2), **FAST | {
        "dram": DramConfig(latency=latency, bytes_per_second=None)})  # fmt: skip
    commands = []
    for tile in range(n):
        half = SPM + (1 << 16) * (tile % halves)
        commands += [
            Descriptor(opcode=Opcode.LOAD, tile_m=1, tile_k=rows * k, type_in0=INT8, in0_addr=DRAM, out_addr=half,
                       affinity=1),
            Descriptor(opcode=Opcode.GEMM_T, tile_m=rows, tile_n=k, tile_k=k, type_in0=INT8, type_in1=INT8,
                       type_out=INT32, in0_addr=half, in1_addr=half, out_addr=half + 32768),
            Descriptor(opcode=Opcode.STORE, tile_m=1, tile_k=rows * k, type_in0=INT32, in0_addr=half + 32768,
                       out_addr=DRAM + 65536 + 16384 * tile, affinity=2),
        ]  # fmt: skip
    whole = [Listed(one) for one in commands]
    cycles, events = analysed(whole, config)
    seen = listed(whole, config)
    assert cycles == seen.makespan
    assert steps(events) == steps(seen.events)
