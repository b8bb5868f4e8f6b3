"""A timed DRAM against a plain scheduler of bursts, published figures, and closed forms."""

from dataclasses import replace
from typing import Any

import pytest
from burst_scheduler import BurstScheduler, Transfer, cycles, ticks
from hypothesis import given, settings
from hypothesis import strategies as st
from npu_graphs import listed
from npu_rig import DRAM, SPM, Rig
from shares import draws

from npu_device.abi.descriptor import Descriptor
from npu_device.abi.errors import NpuDeviceError
from npu_device.abi.opcodes import DataType, Opcode
from npu_device.config import (
    DmaConfig,
    DramConfig,
    L2Config,
    NocConfig,
    NpuConfig,
    SpmConfig,
    TimedDramConfig,
    check,
)
from npu_device.cost.durations import Timing
from npu_device.dram_devices import DEVICES, MAPPINGS, PARAMETERS
from npu_device.event_loop.machine import Machine
from npu_device.levels.runner import Listed
from npu_device.trace.events import What
from npu_device.trace.stream import EventStream

GHZ = 1_200_000_000


def config(device: str = "ddr4-3200", channels: int = 1, interleave: int = 256, *, dma: int = 4, alignment: int = 64,
           outstanding: int = 1, share: str = "fair", **timed: Any) -> NpuConfig:  # fmt: skip
    """A machine in which nothing but the DRAM limits a transfer."""
    machine = NpuConfig(
        spm=SpmConfig(size=1 << 22, port=None), noc=NocConfig(latency=8, bytes_per_second=None),
        dma=DmaConfig(channels=dma, bytes_per_cycle=None, alignment=alignment, outstanding=outstanding, share=share),
        dram=DramConfig(size=1 << 26, model="timed", channels=channels, interleave=interleave,
                        timed=TimedDramConfig(device=device, **timed)),
    )  # fmt: skip
    check(machine)
    return machine


def move(
    rows: int, size: int, at: int = 0, stride: int = 0, write: bool = False, stream: int = 0, spm: int = 0
) -> Listed:
    """`spm`: which 16 KiB of the scratchpad; transfers of other ones and other streams are independent."""
    scratchpad = SPM + (spm << 14)
    ends = (scratchpad, DRAM + at) if write else (DRAM + at, scratchpad)
    return Listed(
        Descriptor(opcode=Opcode.STORE if write else Opcode.LOAD, tile_m=rows, tile_k=size, type_in0=DataType.INT8,
                   param0=stride, in0_addr=ends[0], out_addr=ends[1], stream=stream)
    )  # fmt: skip


def spent(command: Listed, of: NpuConfig, **level: Any) -> int:
    """Cycles of a lone transfer from its begin to its end."""
    ((begin, end),) = listed([command], of, True, **level).spans()
    return int(end["cycle"] - begin["cycle"])


# -- the plain scheduler -----------------------------------------------------------------------------------------------

_small = st.fixed_dictionaries(
    {
        "burst_bytes": st.sampled_from((32, 64)), "row_bytes": st.sampled_from((256, 512)),
        "ranks": st.sampled_from((1, 1, 2)), "groups": st.sampled_from((1, 2, 4)), "banks": st.sampled_from((1, 2)),
        "cl": st.integers(1, 9), "cwl": st.integers(0, 6), "rcd": st.integers(0, 9), "rp": st.integers(0, 9),
        "ras": st.integers(0, 20), "rrd_s": st.integers(0, 4), "rrd_l": st.integers(0, 7), "faw": st.integers(0, 30),
        "burst": st.integers(1, 4), "ccd_s": st.integers(1, 4), "ccd_l": st.integers(1, 9),
        "wtr_s": st.integers(0, 4), "wtr_l": st.integers(0, 9), "rtw": st.integers(0, 12), "rtp": st.integers(0, 6),
        "wr": st.integers(0, 9), "rank_gap": st.integers(0, 3), "refi": st.sampled_from((0, 90, 300)),
        "rfc": st.integers(0, 30), "clock_hz": st.sampled_from((GHZ, 1_600_000_000, 800_000_000)),
        "page": st.sampled_from(("open", "closed")), "mapping": st.sampled_from(MAPPINGS),
        "hash": st.sampled_from(("none", "xor")), "queue": st.sampled_from((1, 2, 5, 16)),
        "passes": st.sampled_from((0, 1, 3, 100)),
    }
)  # fmt: skip
_moves = st.lists(
    st.builds(
        move, st.sampled_from((1, 1, 3, 8)), st.sampled_from((1, 48, 64, 300, 1024)),
        st.integers(0, 40).map(lambda i: 48 * i), st.sampled_from((1024, 1100, 2048)), st.booleans(),
        st.integers(0, 7),
    ),
    min_size=1, max_size=10,
)  # fmt: skip


@settings(deadline=None, max_examples=draws(50))
@given(_moves, _small, st.sampled_from((1, 2, 4)), st.sampled_from((64, 256)), st.sampled_from((32, 64)))
def test_each_transfer_ends_when_a_plain_scheduler_of_bursts_says(
    commands: list[Listed], timed: dict[str, Any], channels: int, interleave: int, alignment: int
) -> None:
    commands = [_apart(command, index) for index, command in enumerate(commands)]
    of = config("ddr4-3200", channels, interleave, alignment=alignment, **timed)
    trace = listed(commands, of, native=True)
    timing, clock = of.dram.timed.timing, of.dram_clock
    plain = BurstScheduler(timing, channels, interleave, of.dram.timed.mapping, of.dram.timed.hash == "xor",
                           of.dram.timed.page, of.dram.timed.queue, of.dram.timed.passes)  # fmt: skip
    commanded = dict(zip(trace.run.tickets, (command.descriptor for command in commands), strict=True))
    ends = {end["ticket"]: int(end["cycle"]) for end in trace.of(What.DMA_END)}
    requests: dict[int, Transfer] = {}
    for begin in sorted(trace.of(What.DMA_BEGIN), key=lambda begin: _order(begin, commanded)):
        descriptor = commanded[begin["ticket"]]
        address = descriptor.out_addr if _writes(descriptor) else descriptor.in0_addr
        transfer = Transfer(
            ticks(clock, begin["cycle"]), _writes(descriptor), address, descriptor.tile_m, descriptor.tile_k,
            descriptor.param0 or descriptor.tile_k, alignment,
        )  # fmt: skip
        plain.request(transfer)
        requests[begin["ticket"]] = transfer
    plain.run()
    return_latency = Timing(of).return_latency
    assert ends == {
        ticket: cycles(clock, transfer.finish or 0) + (0 if transfer.write else return_latency)
        for ticket, transfer in requests.items()
    }
    assert trace.run.device.counters.up_to_date().to_json()["dram"] == {
        "activations": sum(len(channel.activations) for channel in plain.channels),
        "bursts": sum(len(channel.columns) for channel in plain.channels),
    }


def _order(begin: dict[str, int], commands: dict[int, Descriptor]) -> tuple[int, ...]:
    """Reads request when they begin, writes with their first byte: after the reads of their cycle, by channel."""
    write = _writes(commands[begin["ticket"]])
    return begin["cycle"], write, begin["unit"] if write else 0


def _writes(descriptor: Descriptor) -> bool:
    return descriptor.opcode is Opcode.STORE


def _apart(command: Listed, index: int) -> Listed:
    """Rows that do not overlap, and a part of the scratchpad for each transfer: only DRAM makes one wait."""
    descriptor = command.descriptor
    scratchpad = SPM + (index << 14)
    ends = {"in0_addr": scratchpad} if _writes(descriptor) else {"out_addr": scratchpad}
    return command._replace(descriptor=descriptor.with_(param0=max(descriptor.param0, descriptor.tile_k), **ends))


# -- published figures -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("device", "channels", "gigabytes"),
    [("ddr4-3200", 1, "25.6"), ("lpddr5-6400", 1, "12.8"), ("hbm2e", 16, "409.6"), ("hbm3", 32, "819.2")],
)
def test_a_long_read_reaches_the_published_bandwidth_less_refresh(device: str, channels: int, gigabytes: str) -> None:
    of = config(device, channels)
    assert of.dram.rate == int(float(gigabytes) * 1e9)
    size = 1 << 22
    timing = of.dram.timed.timing
    peak = size * of.clock_hz / of.dram.rate
    without_refresh = peak / (1 - (timing.rfc + timing.rp + timing.rcd) / timing.refi)
    assert peak < spent(move(1, size), of) < 1.04 * without_refresh
    assert spent(move(1, size), config(device, channels, refi=0)) < 1.035 * peak
    assert spent(move(1, size), config(device, channels, refi=0, hash="none")) < 1.012 * peak


@pytest.mark.parametrize(("device", "nanoseconds"), [("ddr4-3200", 27.5), ("lpddr5-6400", 40), ("hbm3", 28.75)])
def test_an_idle_read_takes_the_published_latency(device: str, nanoseconds: float) -> None:
    """tRCD + tCL and a burst; DDR4-3200AA: 13.75 + 13.75 + 2.5 ns."""
    timing = DEVICES[device].timing
    assert (timing.rcd + timing.cl) * 1e9 / timing.clock_hz == nanoseconds
    of = config(device, controller=0)
    burst = timing.burst * 1e9 / timing.clock_hz
    assert spent(move(1, timing.burst_bytes), replace(of, dma=replace(of.dma, alignment=timing.burst_bytes))) == (
        of.noc.latency + -(-int((nanoseconds + burst) * 1200) // 1000)
    )


@pytest.mark.parametrize("device", DEVICES)
def test_each_number_of_a_device_has_a_source(device: str) -> None:
    sources = DEVICES[device].sources
    assert sources[""]
    assert set(sources) - {""} <= set(PARAMETERS)


# -- closed forms ------------------------------------------------------------------------------------------------------

TICK = {"clock_hz": GHZ, "refi": 0, "hash": "none", "controller": 0}
"""A DRAM cycle is a core cycle."""


def ddr4(**timed: Any) -> NpuConfig:
    return config(**(TICK | timed))


@pytest.mark.parametrize("bursts", [1, 2, 9, 200])
@pytest.mark.parametrize(("mapping", "distance"), [(MAPPINGS[0], 8), (MAPPINGS[1], 4)])
def test_a_stream_of_one_row_moves_a_burst_each_tccd(bursts: int, mapping: str, distance: int) -> None:
    """tCCD_L within a bank group, tCCD_S where bursts take the groups in turn: there the first four open their rows."""
    cycles_spent = spent(move(1, 64 * min(bursts, 128)), ddr4(mapping=mapping))
    bursts = min(bursts, 128)
    first = 8 + 22 + 22 + 4
    assert cycles_spent == first + distance * (bursts - 1)


@pytest.mark.parametrize("rows", [2, 3, 8])
def test_rows_of_one_bank_follow_one_another_after_trc(rows: int) -> None:
    stride = 8192 * 16
    assert spent(move(rows, 64, stride=stride), ddr4(mapping=MAPPINGS[0])) == 8 + 22 + 22 + 4 + (52 + 22) * (rows - 1)


@pytest.mark.parametrize("rows", [2, 4, 5, 8, 9, 16])
def test_rows_of_other_banks_open_by_trrd_and_tfaw(rows: int) -> None:
    """Rows take the groups in turn: tRRD_S, every fifth in the group of four before it, four activations in tFAW."""
    opened = [0]
    for row in range(1, rows):
        limits = [opened[-1] + 4]
        if row >= 4:
            limits += [opened[row - 4] + 8, opened[row - 4] + 34]
        opened.append(max(limits))
    assert spent(move(rows, 64, stride=8192), ddr4(mapping=MAPPINGS[0])) == 8 + opened[-1] + 22 + 22 + 4


def test_closed_pages_pay_for_each_row_segment_and_open_pages_once() -> None:
    """Two reads of one row, one after the other."""
    commands = [move(1, 64), move(1, 64, 64, spm=1)]
    ends = {}
    for page in ("open", "closed"):
        ends[page] = [
            int(end["cycle"]) for _, end in listed(commands, ddr4(page=page, mapping=MAPPINGS[0]), True).spans()
        ]
    assert ends["open"] == [8 + 22 + 22 + 4, 8 + 22 + 22 + 4 + 8]
    assert ends["closed"] == [8 + 22 + 22 + 4, 8 + 52 + 22 + 22 + 22 + 4]


def test_a_queue_lets_open_rows_pass_but_only_so_often() -> None:
    """One bank: a read of another row waits for those of the open row, at most `passes` of them."""
    of = ddr4(mapping=MAPPINGS[0], groups=1, banks=1)
    other = move(1, 64, 8192 * 4, stream=1, spm=1)
    hits = [move(1, 64, 64 * index, stream=2 + index, spm=2 + index) for index in range(2)]
    ends = {}
    for passes in (0, 100):
        timed = replace(of.dram.timed, passes=passes)
        trace = listed([move(1, 4096), other, *hits], replace(of, dram=replace(of.dram, timed=timed)), True)
        done = {event["ticket"]: event["cycle"] for event in trace.of(What.DONE)}
        ends[passes] = [done[ticket] for ticket in trace.run.tickets]
    assert ends[0][1] < ends[0][2]
    assert ends[100][2] < ends[100][1]


def test_reads_and_writes_pay_for_the_turn_of_the_bus() -> None:
    """One row: a write tRTW after a read, a read tWTR_L after the end of written data."""
    of = ddr4(mapping=MAPPINGS[0])
    trace = listed([move(1, 64, write=True), move(1, 64, 64, stream=1, spm=1)], of, True)
    assert [end["cycle"] for _, end in trace.spans()] == [22 + 12 + 16 + 4, 8 + 22 + 22 + 4]
    machine = Machine(of, Timing(of), EventStream())
    assert machine.priority_access(0, DRAM, 64, write=True) == 0
    assert machine.priority_access(0, DRAM + 64, 64) == (22 + 16 + 4 + 12) - 22


# -- other accesses ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("analytic", [False, True])
def test_fills_of_the_l2_are_dram_accesses(analytic: bool) -> None:
    of = replace(ddr4(), l2=L2Config(enabled=True, bytes=1 << 16, hit=20, snoop=0))
    first, again = (
        end["cycle"] - begin["cycle"]
        for begin, end in listed([move(1, 4096), move(1, 4096)], of, True, analytic=analytic).spans()
    )
    assert first == 8 + 20 + 22 + 22 + 4 + 63 * 4
    assert again == 8 + 20


def test_an_access_of_the_core_uses_bus_and_banks() -> None:
    """It opens a row that a transfer had open, and waits for the transfer's banks."""
    machine = Machine(ddr4(mapping=MAPPINGS[0]), Timing(ddr4(mapping=MAPPINGS[0])), EventStream())
    assert machine.priority_access(0, DRAM, 64) == 0
    assert machine.priority_access(0, DRAM + 64, 64) == 8
    assert machine.priority_access(0, DRAM + 8192 * 16, 64) == 52 + 22
    assert machine.priority_access(1000, DRAM + 8192, 64) == 0


def test_levels_agree_on_a_lone_transfer() -> None:
    for command in (move(1, 100_000), move(30, 100, stride=5000), move(9, 64, stride=1 << 17, write=True)):
        of = config("hbm2e", 16)
        assert spent(command, of) == spent(command, of, analytic=True)


def test_a_slower_dram_takes_longer_for_its_bursts() -> None:
    of = ddr4(mapping=MAPPINGS[0])
    machine = Machine(of, Timing(of), EventStream())
    machine.slow_down(3)
    assert machine.priority_access(0, DRAM, 64 * 11) == 10 * 3 * 8 - 0
    machine.dram_at(1)
    assert machine.priority_access(1000, DRAM + 8192 * 2, 64 * 11) == 10 * 8


# -- snapshots ---------------------------------------------------------------------------------------------------------


@settings(deadline=None, max_examples=20)
@given(_moves, st.integers(1, 400), st.sampled_from((1, 4)), st.sampled_from(("open", "closed")))
def test_a_snapshot_goes_on_with_queues_and_rows(commands: list[Listed], cut: int, outstanding: int, page: str) -> None:
    commands = [_apart(command, index % 3) for index, command in enumerate(commands)]
    of = config("ddr4-3200", 2, 64, dma=2, outstanding=outstanding, queue=2, page=page, refi=700, rfc=100)
    rigs = [Rig(of), Rig(of), Rig(of)]
    for rig in rigs[:2]:
        for command in commands:
            rig.submit(command.descriptor)
    rigs[0].idle()
    rigs[1].go(cut)
    rigs[1].events.flush()
    state = rigs[1].device.state()
    rigs[2].device.load_state(state)
    rigs[2].now = cut
    assert rigs[2].device.state() == state
    for rig in rigs[1:]:
        rig.idle()
    whole, first, rest = (rig.records() for rig in rigs)
    assert len(whole) == len(first)
    assert (whole[len(whole) - len(rest) :] == rest).all()


def test_a_row_is_closed_so_long_after_a_read_of_it() -> None:
    """tRTP, where tRAS is shorter: the next row of the bank opens later by as much."""
    of = {"ranks": 1, "groups": 1, "banks": 1, "row_bytes": 256, "burst_bytes": 64, "ras": 0, "refi": 0, "page": "open"}
    times = [spent(move(2, 64, stride=1024), config(interleave=1024, clock_hz=GHZ, rtp=rtp, **of))
             for rtp in (20, 60)]  # fmt: skip
    assert times[1] - times[0] == 40


# -- refusals ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("timed", "word"),
    [({"banks": 128}, "at most 128"), ({"burst_bytes": 512, "row_bytes": 8192}, "dram.interleave"),
     ({"refi": 600}, "rfc + rp + ras"), ({"clock_hz": 1_599_999_999}, "ratio"), ({"banks": 3}, "power of two")],
)  # fmt: skip
def test_numbers_that_make_no_dram_are_refused(timed: dict[str, int], word: str) -> None:
    with pytest.raises(NpuDeviceError, match=r"dram\.timed") as error:
        config(**timed)
    assert word in str(error.value)
