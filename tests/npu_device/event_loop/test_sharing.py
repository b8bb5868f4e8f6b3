"""What steps cost each other: DRAM and NoC, descriptor fetches, rows, banks. Numbers worked out by hand."""

from typing import Any

import pytest
from npu_graphs import listed
from npu_rig import DRAM, SPM, Rig

from npu_device.abi.descriptor import Descriptor
from npu_device.abi.memory_map import SPM_CLUSTER_STRIDE
from npu_device.abi.opcodes import DataType, Eltwise, Opcode
from npu_device.config import (
    DmaConfig,
    DramConfig,
    NocConfig,
    NpuConfig,
    SpmConfig,
    TeConfig,
    VeConfig,
)
from npu_device.cost import tensor
from npu_device.cost.banks import Access, bytes_per_bank, demands
from npu_device.cost.durations import Timing
from npu_device.event_loop.machine import Machine
from npu_device.levels.explain import Blocker, explain
from npu_device.levels.runner import Listed, Runner
from npu_device.memory.region import Region, make_region
from npu_device.trace.events import Cause, Kind, What
from npu_device.trace.records import joined
from npu_device.trace.run_spans import Spans
from npu_device.trace.stream import EventStream

INT8 = DataType.INT8
GHZ = 1_200_000_000
FREE = SpmConfig(port=None)


def load(size: int, out: int = SPM, source: int = DRAM, at: int = 0, **more: int) -> Listed:
    return Listed(
        Descriptor(opcode=Opcode.LOAD, tile_m=1, tile_k=size, type_in0=INT8, in0_addr=source, out_addr=out, **more), at
    )


def config(rate: int = 64, latency: int = 10, **more: Any) -> NpuConfig:
    """DRAM of `rate` bytes per cycle; channels of 128."""
    base: dict[str, Any] = {
        "spm": FREE, "dram": DramConfig(size=1 << 20, latency=latency, bytes_per_second=rate * GHZ),
        "noc": NocConfig(latency=0, bytes_per_second=None),
    }  # fmt: skip
    return NpuConfig(**(base | more))


def ends(commands: list[Listed], of: NpuConfig) -> list[int]:
    seen = listed(commands, of)
    done = {event["ticket"]: event["cycle"] for event in seen.of(What.DONE)}
    return [done[ticket] for ticket in seen.run.tickets]


def test_two_transfers_share_until_the_shorter_is_over() -> None:
    """64 bytes per cycle: 32 each while both move. The short one takes 10 + 200, then the long one has 64."""
    two = [load(12800, stream=1), load(6400, SPM + 65536, stream=2)]
    assert ends(two, config()) == [10 + 200 + 100, 10 + 200]


def test_a_channel_is_a_limit_of_its_own() -> None:
    one_of_three = [load(12800, SPM + 65536 * i, stream=i) for i in range(3)]
    assert ends(one_of_three, config(rate=1000, dma=DmaConfig(channels=3))) == [10 + 100] * 3
    assert ends(one_of_three, config(rate=300, dma=DmaConfig(channels=3))) == [10 + 128] * 3


@pytest.mark.parametrize("native", [False, True])
def test_sixteen_channels_of_two_clusters(native: bool) -> None:
    """1,024 bytes per cycle: 32 each. The queue takes 16 commands in cycle 0, whose data moves twice as fast at first,
    and 16 in cycle 1, which do so at last. The last channel has a register."""
    loads = [
        load(3200, SPM + cluster * SPM_CLUSTER_STRIDE + 4096 * i, stream=i, cluster=cluster)
        for i in range(16)
        for cluster in range(2)
    ]
    of = config(rate=1024, dma=DmaConfig(channels=16), clusters=2)
    seen = listed(loads, of, native=native)
    assert [event["cycle"] for event in seen.of(What.DONE)] == [10 + 1 + 98] * 16 + [1 + 10 + 98 + 1] * 16
    assert seen.run.device.read(0x500 + 8 * 31, 4, 200) == 109


def test_what_does_not_divide_goes_to_the_lowest_channel() -> None:
    """64 over three channels: 22, 21, 21 credits."""
    three = [load(6336, SPM + 65536 * i, stream=i) for i in range(3)]
    first, second, third = ends(three, config(dma=DmaConfig(channels=3, alignment=1)))
    assert first == 10 + 288
    assert second == third == 10 + 297


def test_a_transfer_that_joins_slows_the_other_from_then_on() -> None:
    joining = [load(6400, stream=1), load(640, SPM + 65536, at=50, stream=2)]
    # alone until 60, 50 x 64 bytes moved; 640 bytes each in 20 cycles; then 2560 alone
    assert ends(joining, config()) == [60 + 20 + 40, 80]


OLDEST = DmaConfig(channels=3, share="oldest")


def test_the_oldest_transfer_takes_what_it_can() -> None:
    """64 bytes per cycle: 6400 take 100 cycles, one after the other, their latencies side by side."""
    three = [load(6400, SPM + 65536 * i, stream=i) for i in range(3)]
    assert ends(three, config(dma=OLDEST)) == [10 + 100, 10 + 200, 10 + 300]
    joining = [load(6400, stream=1), load(640, SPM + 65536, at=50, stream=2)]
    assert ends(joining, config(dma=OLDEST)) == [10 + 100, 10 + 100 + 10]
    # 128 of 192 per cycle for the oldest, the channel's rate; 64 for the next, then 128
    assert ends(three[:2], config(rate=192, dma=OLDEST)) == [10 + 50, 10 + 50 + 25]
    assert ends(three, config(rate=1000, dma=OLDEST)) == [10 + 50] * 3


def test_a_transfer_that_waits_uses_banks_from_its_first_byte() -> None:
    """The second load moves from cycle 100 on, when the vector engine begins to read its bank: 50 + 100 port cycles."""
    of = config(latency=0, spm=SpmConfig(size=65536, banks=4, port=64), ve=VeConfig(latency=0, lanes=64), dma=OLDEST)
    commands = [load(6400, SPM + 16384 * 2), load(3200, stream=1), vector(6400, at=100, stream=2)]
    assert ends(commands, of) == [100, 100 + 50 + 100, 200]
    assert stalls(commands, of) == [(0, 2, Cause.BANK_CONFLICT, 100)]


@pytest.mark.parametrize("native", [False, True])
def test_oldest_first_on_several_dram_channels(native: bool) -> None:
    """Two transfers on one DRAM channel of 16 bytes per cycle, one on the other: it does not wait."""
    of = config(dma=OLDEST, dram=DramConfig(size=1 << 20, latency=10, bytes_per_second=32 * GHZ, channels=2))
    commands = [
        load(3200, SPM, DRAM), load(3200, SPM + 65536, DRAM + 8192, stream=1),
        load(3200, SPM + 131072, DRAM + 4096, stream=2),
    ]  # fmt: skip
    seen = listed(commands, of, native=native)
    done = {event["ticket"]: event["cycle"] for event in seen.of(What.DONE)}
    assert [done[ticket] for ticket in seen.run.tickets] == [10 + 200, 10 + 400, 10 + 200]


@pytest.mark.parametrize("analytic", [False, True])
@pytest.mark.parametrize("share", ["fair", "oldest"])
def test_outstanding_transfers_overlap_latency(share: str, analytic: bool) -> None:
    """64 bytes per cycle; the data of a channel moves in order, and a request is issued when one is through."""

    def done(commands: list[Listed], outstanding: int, channels: int = 1, rate: int = 64) -> list[int]:
        of = config(rate, dma=DmaConfig(channels=channels, share=share, outstanding=outstanding))
        events = EventStream(keep=True)
        run = Runner(of, events, analytic=analytic).run(commands)
        cycles = {event["ticket"]: event["cycle"] for event in joined(events.batches()) if event["what"] == What.DONE}
        return [cycles[ticket] for ticket in run.tickets]

    large, small = ([load(size, SPM + 65536 * i, stream=i) for i in range(4)] for size in (6400, 64))
    assert done(large, 1) == [110, 220, 330, 440]
    assert done(large, 2) == [110, 210, 310, 410]
    assert done(small, 1) == [11, 22, 33, 44]
    assert done(small, 2) == [11, 12, 22, 23]
    assert done(small, 4) == [11, 12, 13, 14]
    # no limit but the channels' 128 bytes: the third load is in channel 0, after the first one
    assert done([*large[:1], *small[1:]], 2, 2, 1000) == [60, 11, 61, 12]


def test_an_explanation_counts_latency_that_nothing_hides() -> None:
    """Four loads of one cycle each on one channel, which is busy with the latency of the first one, or of all."""
    for outstanding, causes in (
        (1, {Blocker.DRAM: 4, Blocker.DRAM_LATENCY: 10, Blocker.CHANNEL_BUSY: 30}),
        (4, {Blocker.DRAM: 4, Blocker.CHANNEL_BUSY: 10}),
    ):
        of = config(dma=DmaConfig(channels=1, outstanding=outstanding))
        seen = listed([load(64, SPM + 65536 * i, stream=i) for i in range(4)], of)
        assert explain(Spans([seen.events]), of).causes == causes


def test_a_write_frees_its_channel_when_its_bytes_are_sent() -> None:
    """100 cycles of bytes each, the second's directly behind the first's; a latency of 10 behind them."""
    first, second = load(6400), load(6400)
    stores = [
        one._replace(descriptor=one.descriptor.with_(opcode=Opcode.STORE, in0_addr=SPM + at, out_addr=DRAM + at))
        for one, at in ((first, 0), (second, 8192))
    ]
    seen = listed(stores, config(dma=DmaConfig(channels=1, alignment=1)))
    assert [(begin["cycle"], end["cycle"]) for begin, end in seen.spans()] == [(0, 100), (100, 200)]
    assert [one["cycle"] for one in seen.of(What.DONE)] == [110, 210]


def test_clusters_share_the_dram() -> None:
    both = [load(6400), load(6400, SPM + SPM_CLUSTER_STRIDE, stream=1, cluster=1)]
    assert ends(both, config(clusters=2)) == [10 + 200] * 2


def test_a_closed_row_costs_once() -> None:
    rows = config(dram=DramConfig(size=1 << 20, latency=10, bytes_per_second=64 * GHZ, row_model="open"))
    far = DRAM + 16 * 2048  # the same bank
    again = [load(640), load(640, at=1000), load(640, source=DRAM + 4096, at=2000), load(640, source=far, at=3000),
             load(640, at=4000)]  # fmt: skip
    assert [end - start for end, start in zip(ends(again, rows), (0, 1000, 2000, 3000, 4000), strict=True)] == [
        56, 20, 56, 56, 56,
    ]  # fmt: skip


def fetching(bandwidth: int) -> Machine:
    of = config(rate=bandwidth, latency=0)
    return Machine(of, Timing(of), EventStream())


def test_a_fetch_takes_what_the_bucket_holds_and_waits_for_the_rest() -> None:
    """32 bytes per cycle; the bucket holds a burst of 128 and is empty at reset."""
    machine = fetching(32)
    assert machine.priority_access(0, DRAM, 64) == 2
    assert machine.priority_access(2, DRAM, 64) == 2
    assert machine.priority_access(1000, DRAM, 64) == 0
    assert machine.priority_access(1000, DRAM, 64) == 0
    assert machine.priority_access(1000, DRAM, 65) == 3
    assert machine.priority_access(1003, DRAM, 31) == 0


@pytest.mark.parametrize(("bandwidth", "pause"), [(64, 1), (32, 2), (16, 4)])
def test_a_fetch_pauses_transfers(bandwidth: int, pause: int) -> None:
    """The bucket is full when the transfer begins: it pays for two fetches, the third takes its tokens first."""
    rigs = []
    for fetches in (2, 3):
        rig = Rig(config(rate=bandwidth, dma=DmaConfig(channels=1)))
        ticket = rig.submit(load(6400).descriptor)
        rig.go(100)
        rig.ring(*[Descriptor()] * fetches)
        rig.idle()
        rigs.append(rig.stamps(What.DONE)[ticket])
    assert rigs[1] - rigs[0] == pause


# -- banks -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("region", "interleave", "expected"),
    [
        (Region(SPM, 1, 4096, 4096), "block", [4096, 0, 0, 0]),
        (Region(SPM + 1000, 1, 100, 100), "block", [100, 0, 0, 0]),
        (Region(SPM + 16384 - 10, 1, 30, 30), "block", [10, 20, 0, 0]),
        (make_region(SPM, 4, 64, 16384), "block", [64, 64, 64, 64]),
        (Region(SPM, 1, 256, 256), "64B", [64, 64, 64, 64]),
        (Region(SPM + 32, 1, 96, 96), "64B", [32, 64, 0, 0]),
        (make_region(SPM, 3, 64, 256), "64B", [192, 0, 0, 0]),
    ],
)
def test_bytes_lie_on_banks(region: Region, interleave: str, expected: list[int]) -> None:
    assert bytes_per_bank(region, SpmConfig(size=65536, banks=4, interleave=interleave)) == expected


def test_ports_are_asked_for_reads_and_writes() -> None:
    accesses = [Access(Region(SPM, 1, 128, 128), False, 3), Access(Region(SPM, 1, 65, 65), True)]
    assert [tuple(one) for one in demands(accesses, SpmConfig(banks=1))] == [(0, 0, 8, 6)]
    both = SpmConfig(banks=1, ports="1r1w")
    assert [tuple(one) for one in demands(accesses, both)] == [(0, 0, 6, 6), (0, 1, 2, 2)]
    assert demands(accesses, SpmConfig(banks=1, port=None)) == ()


def stalls(commands: list[Listed], of: NpuConfig) -> list[tuple[int, int, Cause, int]]:
    """(bank, ticket, cause, cycles)"""
    return [
        (one["unit"] & 0xFF, one["ticket"], Cause(one["aux"]), one["bytes"])
        for one in listed(commands, of).of(What.STALL)
        if one["unit"] >> 8 == Kind.BANK
    ]


def vector(size: int, bank: int = 0, at: int = 0, **more: int) -> Listed:
    return Listed(
        Descriptor(
            opcode=Opcode.ELTWISE, function=Eltwise.RELU, tile_m=1, tile_n=size, type_in0=INT8, type_out=INT8,
            in0_addr=SPM + 16384 * bank + 8192, out_addr=SPM + 16384 * 3, **more,
        ),
        at,
    )  # fmt: skip


def test_a_step_that_needs_more_than_its_length_is_port_bound() -> None:
    spm = SpmConfig(size=65536, banks=4, port=8)
    narrow = config(spm=spm)
    assert stalls([load(6400)], narrow) == [(0, 1, Cause.PORT_BOUND, 800 - 100)]
    assert ends([load(6400)], narrow) == [10 + 800]


def test_the_lower_one_waits_for_the_bank() -> None:
    """The vector engine reads 6400 bytes of bank 0 in 100 cycles, all that one port can give: DMA goes after it."""
    spm = SpmConfig(size=65536, banks=4, port=64)
    ve = VeConfig(latency=0, lanes=64)
    both = [vector(6400), load(3200, stream=1)]
    apart = [vector(6400, bank=1), load(3200, stream=1)]
    of = config(spm=spm, ve=ve, latency=0)
    assert stalls(apart, of) == []
    assert ends(apart, of) == [100, 50]
    waits = stalls(both, of)
    assert {one[:3] for one in waits} == {(0, 2, Cause.BANK_CONFLICT)}
    assert sum(one[3] for one in waits) == 100
    assert ends(both, of) == [100, 150]  # 150 cycles of one port
    wide = config(spm=SpmConfig(size=65536, banks=4, port=64, ports="1r1w"), ve=ve, latency=0)
    assert stalls(both, wide) == []


def test_a_step_that_reads_and_writes_one_bank_conflicts_with_itself() -> None:
    of = config(spm=SpmConfig(size=65536, banks=4, port=64), ve=VeConfig(latency=0, lanes=64))
    assert stalls([vector(6400, bank=3)], of) == [(3, 1, Cause.BANK_CONFLICT, 100)]
    assert ends([vector(6400, bank=3)], of) == [200]


def test_of_two_transfers_the_younger_waits_for_the_bank() -> None:
    """Each could fill the port of bank 0: the older is served first, 150 cycles of one port."""
    of = config(rate=128, latency=0, spm=SpmConfig(size=65536, banks=4, port=64), dma=DmaConfig(bytes_per_cycle=64))
    both = [load(6400), load(3200, SPM + 8192, stream=1)]
    assert ends(both, of) == [100, 150]
    assert {stall[:3] for stall in stalls(both, of)} == {(0, 2, Cause.BANK_CONFLICT)}


@pytest.mark.parametrize(("at", "end"), [(100, 400), (350, 413)])
def test_a_transfer_that_dram_limits_catches_up_after_a_conflict(at: int, end: int) -> None:
    """It needs a quarter of the port's cycles, the vector engine all of them for 100 cycles: what waits then is served
    by cycle 400, unless the conflict lasts until then: a quarter of 50 cycles."""
    of = config(rate=16, latency=0, spm=SpmConfig(size=65536, banks=4, port=64), ve=VeConfig(latency=0, lanes=64))
    both = [load(6400), vector(6400, at=at, stream=1)]
    assert ends(both, of) == [end, at + 100]
    assert stalls(both, of) == ([] if end == 400 else [(0, 1, Cause.BANK_CONFLICT, end - 400)])


def test_output_stationary_arrays_read_their_operands_again() -> None:
    te = TeConfig(kind="systolic_os", rows=16, columns=16)
    assert tensor.product(te, 40, 64, 8, 8, 8).reads == (4, 3)
    assert tensor.product(TeConfig(), 40, 64, 8, 8, 8).reads == (1, 1)
