"""More DMA channels do not lengthen double-buffered pipelines where the oldest transfer goes first; the choice of the
default of `dma.share` (docs/npu-timing.md, "Transfers")."""

import pytest

from benchmarks.dma_share import CHANNELS, FAMILIES, RATES, SHARES, commands, cycles, product_cycles
from npu_device.config import DmaConfig, DramConfig, NpuConfig, SpmConfig
from npu_device.levels.runner import Runner

QUICK, MANY = range(5), range(40)
CLOSE = 1.001
"""Cycles by which sums may differ: rounding, and the banks that transfers meet at."""
Sums = dict[tuple[str, int], int]


def check(family: str, rate: int, seeds: range) -> None:
    sums: Sums = {
        (share, channels): sum(cycles(family, seeds, share, channels, rate))
        for share in SHARES
        for channels in CHANNELS
    }
    assert sums["fair", 1] == sums["oldest", 1], "nothing to share"
    assert sums["oldest", 4] <= CLOSE * sums["oldest", 2] <= CLOSE**2 * sums["oldest", 1]
    assert sums["oldest", 4] <= CLOSE * min(sums["fair", 4], sums["fair", 2])
    if rate == RATES[-1]:
        assert sums["fair", 2] <= sums["oldest", 2], "the default machine"


@pytest.mark.parametrize("rate", RATES)
@pytest.mark.parametrize("family", ["one operand", "two operands"])
def test_the_oldest_first_gains_by_channels(family: str, rate: int) -> None:
    check(family, rate, QUICK)


@pytest.mark.parametrize("share", SHARES)
@pytest.mark.parametrize("channels", CHANNELS)
def test_both_levels_agree_where_ports_are_not_limited(share: str, channels: int) -> None:
    dma, dram = DmaConfig(channels=channels, share=share), DramConfig(size=1 << 26, bytes_per_second=RATES[0])
    config = NpuConfig(dma=dma, dram=dram, spm=SpmConfig(port=None))
    for family, seed in (("one operand", 3), ("two operands", 4), ("two operands", 5), ("products", 6)):
        hybrid, analytic = (
            Runner(config, values=False, analytic=level).run(commands(family, seed)).cycles for level in (False, True)
        )
        assert hybrid == analytic, (family, seed)


def test_outstanding_transfers_hide_latency_where_buffers_wait_for_a_channel() -> None:
    """65,536 cycles are ideal. With a prefetch distance of 1 both buffers are in use, not a channel."""
    assert product_cycles(4, 1, 1) == 244_914
    assert product_cycles(4, 1, 4) < 65_536 * 1.02
    assert product_cycles(1, 4, 1) == product_cycles(1, 4, 4) == 172_500


@pytest.mark.nightly
@pytest.mark.parametrize("rate", RATES)
@pytest.mark.parametrize("family", FAMILIES)
def test_many_pipelines(family: str, rate: int) -> None:
    check(family, rate, MANY)
