"""Bandwidths of DMA channels, DRAM and NoC in whole credits (docs/npu-timing.md, "Transfers")."""

from fractions import Fraction
from math import lcm

from npu_device.abi.errors import NpuDeviceError
from npu_device.config import NpuConfig
from npu_device.memory.bitwidth import ceil_div

FRACTION_BITS = 16
WHOLE = 1 << FRACTION_BITS
"""Denominator of the shares of a transfer's bytes."""
WORD = 62
"""Maximum bits of a number of credits."""
MIN_CREDITS = 64
"""Minimum credits per cycle of a memory, so that shares of it do not round to 0."""


def part(size: int, total: int) -> int:
    """Return the share of `size` in `total` bytes, in 1/WHOLE, rounded up."""
    return ((size << FRACTION_BITS) + total - 1) // total if size else 0


class Rates:
    """Bandwidths as whole credits per core cycle; a credit is 1/`per_byte` of a byte. 0 for no limit."""

    def __init__(self, config: NpuConfig) -> None:
        npu, core = config.clock_ratio[1], config.clock_ratio[0]
        per_npu_cycle = config.dma.bytes_per_cycle
        channel = None if per_npu_cycle is None else Fraction(per_npu_cycle * npu, core)
        self._channels, self._interleave = config.dram.channels, config.dram.interleave
        dram, noc = (
            None if rate is None else Fraction(rate, config.clock_hz)
            for rate in (config.dram.rate, config.noc.bytes_per_second)
        )
        self.noc_is_lowest = noc is not None and (dram is None or noc < dram)
        self.uniform = self._channels == 1 and not config.l2.enabled and config.noc.topology == "link"
        """Whether all transfers use a single DRAM channel and the NoC equally; the lower rate then limits both."""
        per_channel = None if dram is None else dram / self._channels
        lowest = min((rate for rate in (per_channel, noc) if rate is not None), default=None)
        timed = config.dram.model == "timed"
        limits = (channel, lowest) if self.uniform and not timed else (channel, per_channel, noc)
        rates = [rate for rate in limits if rate is not None]
        self.per_byte = lcm(*(rate.denominator for rate in rates)) if rates else 1
        min_credits = MIN_CREDITS if self.uniform else MIN_CREDITS * max(16, self._channels)
        if lowest is not None and lowest * self.per_byte < min_credits:
            self.per_byte *= min_credits
        self.channel = self._credits(channel)
        """Rate of one DMA channel."""
        self.first = self._credits(lowest)
        """Rate of priority accesses over one DRAM channel and the NoC."""
        self.total = self.first if self.uniform else 0
        """Rate of DRAM and NoC together, if transfers are uniform."""
        self.dram = self.first if self.uniform else self._credits(per_channel)
        """Rate of one DRAM channel."""
        self.noc = self.first if self.uniform else self._credits(noc)
        self.shared_total = (self._credits(noc) if timed else self.total) if self.uniform else 0
        """Rate that uniform transfers share: of DRAM and NoC, or with a timed DRAM of the NoC alone."""
        self.shared_dram = 0 if timed else self.dram
        self.shared_noc = self._credits(noc) if timed else self.noc
        self._check(config)

    def _check(self, config: NpuConfig) -> None:
        """Raise NpuDeviceError if credits of the largest transfer, or of a cycle, overflow the words of native code."""
        largest = self.per_byte * config.spm.size
        bits = 0 if self.uniform else FRACTION_BITS  # rates of links are multiplied by WHOLE
        if max(largest, self.first, self.dram << bits, self.noc << bits, self.channel) >> WORD:
            rates = ", ".join(
                f"{name} = {rate}" for name, rate in (
                    ("clock_hz", config.clock_hz), ("dram.bytes_per_second", config.dram.rate),
                    ("noc.bytes_per_second", config.noc.bytes_per_second),
                    ("dma.bytes_per_cycle", config.dma.bytes_per_cycle), ("spm.size", config.spm.size),
                )
            )  # fmt: skip
            raise NpuDeviceError(
                f"{rates}: transfers would be counted in 1/{self.per_byte} of a byte, in more than {WORD} bits; "
                "choose rates that are nearer to each other"
            )

    def _credits(self, rate: Fraction | None) -> int:
        return int((rate or 0) * self.per_byte)

    def channel_of(self, address: int) -> int:
        """Return the DRAM channel of an address."""
        return address // self._interleave % self._channels

    def uncontended_rate(self, *channels: int) -> int:
        """Return the rate of a transfer with these bytes on each DRAM channel without contention, credits per cycle."""
        total = sum(channels)
        limits = [self.dram * WHOLE // part(size, total) for size in channels if size and self.dram]
        limits += [rate for rate in (self.channel, self.noc) if rate]
        return min(limits, default=0)

    def duration(self, *channels: int) -> int:
        """Return the core cycles of a transfer with these bytes on each DRAM channel without contention."""
        rate = self.uncontended_rate(*channels)
        return ceil_div(sum(channels) * self.per_byte, rate) if rate else 0

    def cached_duration(self, size: int) -> int:
        """Return the core cycles of `size` bytes that do not use DRAM, without contention."""
        rate = min((rate for rate in (self.channel, self.noc) if rate), default=0)
        return ceil_div(size * self.per_byte, rate) if rate else 0
