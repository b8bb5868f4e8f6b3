"""Several DRAM channels: which bytes lie where, what lone and concurrent transfers take, rows, fetches."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from npu_graphs import channel_bytes, configs, listed, tiles
from npu_rig import DRAM, SPM, Rig
from shares import draws

from npu_device.abi.descriptor import Descriptor
from npu_device.abi.opcodes import DataType, Opcode
from npu_device.config import DmaConfig, DramConfig, L2Config, NocConfig, NpuConfig, SpmConfig
from npu_device.cost.banks import spread
from npu_device.cost.durations import Timing
from npu_device.cost.rates import WHOLE, Rates, part
from npu_device.event_loop.machine import Machine
from npu_device.levels.explain import explain
from npu_device.levels.runner import Listed
from npu_device.trace.events import Kind, What
from npu_device.trace.run_spans import Spans
from npu_device.trace.stream import EventStream
from npu_device.units import sharing
from npu_device.units.state import DMA, MOVING, Unit

INT8 = DataType.INT8
GHZ = 1_200_000_000
BLOCK = 4096


def config(channels: int, rate: int = 64, **more: Any) -> NpuConfig:
    """All DRAM channels together give `rate` bytes per cycle; a DMA channel takes what it gets."""
    dram = DramConfig(size=1 << 20, latency=10, bytes_per_second=rate * GHZ, channels=channels, **more.pop("dram", {}))
    base: dict[str, Any] = {
        "spm": SpmConfig(port=None), "dram": dram, "noc": NocConfig(latency=0, bytes_per_second=None),
        "dma": DmaConfig(channels=4, bytes_per_cycle=None),
    }  # fmt: skip
    return NpuConfig(**(base | more))


def load(rows: int, size: int = BLOCK, at: int = DRAM, stride: int = 0, out: int = SPM, **more: int) -> Listed:
    return Listed(
        Descriptor(opcode=Opcode.LOAD, tile_m=rows, tile_k=size, type_in0=INT8, in0_addr=at, param0=stride,
                   out_addr=out, **more)
    )  # fmt: skip


def done(commands: list[Listed], of: NpuConfig) -> list[int]:
    seen = listed(commands, of)
    cycles = {event["ticket"]: event["cycle"] for event in seen.of(What.DONE)}
    return [cycles[ticket] for ticket in seen.run.tickets]


@pytest.mark.parametrize("channels", [1, 2, 4, 16])
def test_a_lone_transfer_over_all_channels_takes_what_one_channel_takes(channels: int) -> None:
    (cycle,) = done([load(16)], config(channels))
    assert cycle == 10 + 16 * BLOCK // 64


@pytest.mark.parametrize("channels", [1, 2, 4, 16])
def test_a_lone_transfer_on_one_channel_takes_as_many_times_longer(channels: int) -> None:
    one = load(4, 1024, stride=channels * BLOCK)
    (cycle,) = done([one], config(channels))
    assert cycle == 10 + channels * 4 * 1024 // 64
    seen = listed([one], config(channels))
    assert explain(Spans([seen.events]), config(channels)).bounds["dram"] == cycle - 10


def test_the_fullest_channel_decides() -> None:
    """Of 5120 bytes 4096 lie on channel 0, 32 per cycle; the parts are not whole, so a cycle may be lost."""
    assert done([load(1)], config(2)) == [10 + BLOCK // 32]
    assert done([load(1, BLOCK + 1024)], config(2))[0] - 10 - BLOCK // 32 in (0, 1)


def test_transfers_share_a_channel_and_not_each_others() -> None:
    apart = [load(1), load(1, at=DRAM + BLOCK, out=SPM + BLOCK, stream=1)]
    together = [load(1), load(1, at=DRAM + 2 * BLOCK, out=SPM + BLOCK, stream=1)]
    assert done(apart, config(2)) == [10 + BLOCK // 32] * 2
    assert done(together, config(2)) == [10 + 2 * BLOCK // 32] * 2


def test_noc_and_dma_channel_remain_limits() -> None:
    narrow = config(4, noc=NocConfig(latency=0, bytes_per_second=16 * GHZ))
    assert done([load(4)], narrow) == [10 + 4 * BLOCK // 16]
    slow = config(4, dma=DmaConfig(bytes_per_cycle=8))
    assert done([load(4)], slow) == [10 + 4 * BLOCK // 8]


def test_rows_are_those_of_a_channel() -> None:
    """Two channels, rows of 2048: addresses 0 and 8192 are rows 0 and 2 of channel 0, 4096 is row 0 of channel 1."""
    rows = config(2, dram={"row_model": "open", "row_banks": 1})
    first = [load(1, 64), load(1, 64, at=DRAM + BLOCK), load(1, 64), load(1, 64, at=DRAM + 2 * BLOCK), load(1, 64)]
    spans = [end["cycle"] - begin["cycle"] for begin, end in listed(first, rows).spans()]
    assert spans == [10 + 36 + 2, 10 + 36 + 2, 10 + 2, 10 + 36 + 2, 10 + 36 + 2]


def test_the_row_after_the_last_byte_stays_closed() -> None:
    rows = config(1, dram={"row_model": "open", "row_banks": 2})
    commands = [load(1, 2048), load(1, 64, at=DRAM + 2048), load(1, 64)]
    spans = [end["cycle"] - begin["cycle"] for begin, end in listed(commands, rows).spans()]
    assert spans == [10 + 36 + 2048 // 64, 10 + 36 + 1, 10 + 1]


def test_lines_that_a_store_reads_first_are_on_the_channel_of_its_first_byte() -> None:
    """A store of 32 bytes in the middle of a line of channel 1 reads the line, and writes it."""
    store = Listed(
        Descriptor(opcode=Opcode.STORE, tile_m=1, tile_k=32, type_in0=INT8, in0_addr=SPM, out_addr=DRAM + BLOCK + 16)
    )
    base = config(2)
    seen = listed([store], replace(base, dma=replace(base.dma, partial_write="rmw")))
    assert channel_bytes(seen, 2) == [0, 2 * 64]


@pytest.mark.parametrize("same", [True, False])
def test_a_fetch_pauses_the_transfers_of_its_channel(same: bool) -> None:
    """32 bytes per cycle and channel. The bucket pays for two fetches, the third pauses channel 0 for two cycles."""
    spent = []
    for fetches in (2, 3):
        rig = Rig(config(2))
        ticket = rig.submit(load(1, at=DRAM if same else DRAM + BLOCK).descriptor)
        rig.go(20)
        assert rig.device.ring.base // BLOCK % 2 == 0
        rig.ring(*[Descriptor()] * fetches)
        rig.idle()
        spent.append(rig.stamps(What.DONE)[ticket])
    assert spent[1] - spent[0] == (2 if same else 0)


@given(st.lists(st.tuples(st.integers(0, 5000), st.integers(0, 300)), max_size=5), st.sampled_from((64, 256)),
       st.sampled_from((1, 2, 4)))  # fmt: skip
def test_bytes_go_round_the_channels(spans: list[tuple[int, int]], block: int, ways: int) -> None:
    counted = [0] * ways
    for start, size in spans:
        for address in range(start, start + size):
            counted[address // block % ways] += 1
    low = np.array([start for start, _ in spans], np.int64)
    high = np.array([start + size for start, size in spans], np.int64)
    assert spread(low, high, block, ways) == counted


@settings(max_examples=draws(60), deadline=None)
@given(st.lists(tiles, min_size=1, max_size=12), configs(), st.sampled_from((2, 4)), st.sampled_from((64, 4096)))
def test_bytes_are_conserved_by_channel(commands: list[Listed], base: NpuConfig, channels: int, block: int) -> None:
    """Access by access, as the descriptors ask for them; and no stretch of time has more than a channel gives."""
    bandwidth = base.dram.bytes_per_second
    dram = DramConfig(size=1 << 20, latency=3, bytes_per_second=bandwidth, channels=channels, interleave=block)
    of = replace(base, dram=dram, l2=L2Config())
    seen = listed(commands, of)
    expected = [0] * channels
    by_ticket: dict[int, list[int]] = {}
    for ticket, (d, _, _, _) in zip(seen.run.tickets, commands, strict=True):
        if d.opcode not in (Opcode.LOAD, Opcode.STORE):
            continue
        first = d.in0_addr if d.opcode is Opcode.LOAD else d.out_addr
        mine = by_ticket.setdefault(ticket, [0] * channels)
        packed = d.tile_m == 1 or d.param0 in (0, d.tile_k)
        rows = (
            [(first, d.tile_m * d.tile_k)]
            if packed
            else [(first + row * d.param0, d.tile_k) for row in range(d.tile_m)]
        )
        for start, size in rows:
            for access in range(start // 64, (start + size - 1) // 64 + 1):
                mine[access * 64 // block % channels] += 64
        expected = [a + b for a, b in zip(expected, mine, strict=True)]
    assert channel_bytes(seen, channels) == expected
    npu = seen.run.device.counters.to_json()
    assert npu["dram_channel_bytes"] == expected
    assert sum(expected) == npu["dram_bytes_read"] + npu["dram_bytes_written"]
    rates = Timing(of).rates
    spans = [(b["cycle"], e["cycle"], by_ticket[b["ticket"]]) for b, e in seen.spans() if b["unit"] >> 8 == Kind.DMA]
    for c in range(channels if rates.dram else 0):
        for low, _, _ in spans:
            for _, high, _ in spans:
                inside = sum(moved[c] for begin, end, moved in spans if low <= begin and end <= high)
                assert inside * rates.per_byte <= max(0, high - low) * rates.dram


def flows(machine: Machine, parts: list[list[int]]) -> list[Unit]:
    """Units that move data, with these parts of their bytes on the DRAM channels."""
    units = [unit for unit in machine.storage.loop.units if unit.kind == DMA][: len(parts)]
    for unit, own in zip(units, parts, strict=True):
        unit.phase, unit.left = MOVING, 1 << 40
        for index, share in enumerate((*own, WHOLE)):
            unit.share[index] = share
    return units


rates_of = st.sampled_from((None, 1_000_000_007, 7 * GHZ, 100 * GHZ))


@given(st.integers(1, 16), rates_of, rates_of, st.sampled_from((None, 3, 128)))
def test_filling_gives_equal_rates_where_all_are_alike(
    count: int, dram: int | None, noc: int | None, channel: int | None
) -> None:
    made = []
    for uniform in (1, 0):
        of = NpuConfig(clusters=4, dma=DmaConfig(channels=4, bytes_per_cycle=channel),
                       dram=DramConfig(bytes_per_second=dram), noc=NocConfig(bytes_per_second=noc))  # fmt: skip
        machine = Machine(of, Timing(of), EventStream())
        units = flows(machine, [[WHOLE]] * count)
        machine.storage.loop.uniform = uniform
        sharing.share_rates(machine.storage.loop, 0)
        made.append([unit.rate for unit in units])
    assert made[0] == made[1]


@settings(max_examples=draws(150))
@given(st.lists(st.lists(st.integers(0, 4096), min_size=4, max_size=4).filter(any), min_size=1, max_size=16),
       rates_of, rates_of, st.sampled_from((None, 3, 128)))  # fmt: skip
@example([[0, 0, 13, 1], [0, 0, 0, 1], [0, 0, 0, 1]], 1_000_000_007, None, None)
def test_rates_are_max_min_fair(sizes: list[list[int]], dram: int | None, noc: int | None, channel: int | None) -> None:
    """No transfer gets more than the rate of a channel; one that has less than another shares a full channel with it,
    or has all that its DMA channel takes."""
    of = NpuConfig(clusters=4, dma=DmaConfig(channels=4, bytes_per_cycle=channel),
                   dram=DramConfig(bytes_per_second=dram, channels=4), noc=NocConfig(bytes_per_second=noc))  # fmt: skip
    machine, rates = Machine(of, Timing(of), EventStream()), Rates(of)
    parts = [[part(size, sum(one)) for size in one] for one in sizes]
    units = flows(machine, parts)
    sharing.share_rates(machine.storage.loop, 0)
    given_ = [unit.rate for unit in units]
    if not (rates.dram or rates.noc or rates.channel):
        assert not any(given_)
        return
    assert min(given_) > 0
    used = [[rate * share / WHOLE for rate, share in zip(given_, (one[c] for one in parts), strict=True)]
            for c in range(4)]  # fmt: skip
    limits = [(rates.dram, used[c]) for c in range(4)] + [(rates.noc, list(map(float, given_)))]
    for limit, users in limits:
        assert not limit or sum(users) <= limit
    slack = 4 * len(units)  # credits that do not divide
    spread = max(-(-WHOLE // share) for one in parts for share in one if share)
    for i, rate in enumerate(given_):
        if rates.channel and rate >= rates.channel:
            continue
        full = [users for limit, users in limits if limit and users[i] and sum(users) >= limit - slack]
        # what does not divide goes to one user: so much rate as that is of the least part on the channel
        assert any(rate + slack * spread >= max(other for other, use in zip(given_, users, strict=True) if use)
                   for users in full)  # fmt: skip
