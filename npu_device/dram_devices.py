"""DRAM devices of `npu.dram.model: timed`: organization and timing of one channel, with the source of each number.

Times are cycles of the DRAM's command clock, rounded up if the standard has nanoseconds.
"""

from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple


def _parameter(meaning: str, unit: str = "DRAM cycles", **rule: int) -> Any:
    """Return the field of a parameter, with its rule as in `npu_device.config`."""
    return field(metadata={"meaning": meaning, "unit": unit, "min": 0, **rule})


@dataclass(frozen=True)
class DramTiming:
    """Organization and timing of one DRAM channel. Times are in cycles of its command clock."""

    clock_hz: int = _parameter("command clock", "Hz", min=1)
    burst_bytes: int = _parameter("bytes of a burst of one channel", "bytes", min=8, power_of_two=True)
    row_bytes: int = _parameter("row of a bank, over the width of the channel", "bytes", min=64, power_of_two=True)
    ranks: int = _parameter("ranks of a channel", "ranks", min=1, power_of_two=True)
    groups: int = _parameter("bank groups of a rank", "groups", min=1, power_of_two=True)
    banks: int = _parameter("banks of a group", "banks", min=1, power_of_two=True)
    burst: int = _parameter("data bus, for one burst", min=1)
    cl: int = _parameter("tCL (RL): read to its first data")
    cwl: int = _parameter("tCWL (WL): write to its first data")
    rcd: int = _parameter("tRCD: activation to read or write")
    rp: int = _parameter("tRP: precharge to activation")
    ras: int = _parameter("tRAS: activation to precharge")
    rrd_s: int = _parameter("tRRD_S: activation to activation, other bank group")
    rrd_l: int = _parameter("tRRD_L: the same, same bank group")
    faw: int = _parameter("tFAW: window of four activations of a rank")
    ccd_s: int = _parameter("tCCD_S: burst to burst, other bank group", min=1)
    ccd_l: int = _parameter("tCCD_L: the same, same bank group", min=1)
    wtr_s: int = _parameter("tWTR_S: end of written data to read, other bank group")
    wtr_l: int = _parameter("tWTR_L: the same, same bank group")
    rtw: int = _parameter("tRTW: read to write")
    rtp: int = _parameter("tRTP: read to precharge")
    wr: int = _parameter("tWR: end of written data to precharge")
    rank_gap: int = _parameter("data bus, from rank to rank")
    refi: int = _parameter("tREFI: refresh to refresh; 0: none")
    rfc: int = _parameter("tRFC: one refresh of all banks")

    @property
    def spacing(self) -> int:
        """Minimum cycles from one burst to the next."""
        return max(self.burst, self.ccd_s)

    @property
    def bytes_per_second(self) -> int:
        """Peak bandwidth of one channel, with back-to-back bursts of different bank groups."""
        return self.burst_bytes * self.clock_hz // self.spacing


class Parameter(NamedTuple):
    """Parameter of `DramTiming` in tables and in the configuration."""

    meaning: str
    unit: str
    least: int
    power_of_two: bool = False


PARAMETERS = {item.name: item.metadata for item in fields(DramTiming)}
"""Meaning, unit and rule of each field of `DramTiming`."""


class DramDevice(NamedTuple):
    """Device that ships with the package."""

    title: str
    timing: DramTiming
    sources: dict[str, str]
    """Source by parameter; key "" for all others."""


_DDR4 = "JEDEC JESD79-4"
_LPDDR5 = "JEDEC JESD209-5"
_HBM2 = "JEDEC JESD235"
_HBM3 = "JEDEC JESD238"
_VENDOR = "chosen by us: vendors of HBM do not publish it"

_HBM_TIMING = DramTiming(
    clock_hz=1_600_000_000, burst_bytes=32, row_bytes=1024, ranks=1, groups=4, banks=4, burst=2, cl=23, cwl=8,
    rcd=23, rp=23, ras=53, rrd_s=4, rrd_l=6, faw=26, ccd_s=2, ccd_l=4, wtr_s=4, wtr_l=12, rtw=19, rtp=8, wr=26,
    rank_gap=0, refi=6240, rfc=560,
)  # fmt: skip
"""Timing of HBM2E and HBM3: a pseudo channel of HBM3 has half the width, and bursts of twice the length."""


def _hbm_sources(standard: str) -> dict[str, str]:
    """Return the sources that are common to generations of HBM, with the standard of a generation."""
    return {
        "": _VENDOR, "row_bytes": f"{standard}: 1 KB a pseudo channel", "groups": standard, "banks": standard,
        "ccd_s": standard, "ccd_l": standard, "rank_gap": f"{standard}: one rank", "rtw": "CL + burst + 2 - CWL",
        "refi": f"{standard}: 3.9 us", "rfc": f"{standard}: 350 ns at 8 Gbit a channel",
    }  # fmt: skip


DEVICES: dict[str, DramDevice] = {
    "ddr4-3200": DramDevice(
        "DDR4-3200AA, one rank of eight x8 devices of 8 Gbit, 64 bits",
        DramTiming(
            clock_hz=1_600_000_000, burst_bytes=64, row_bytes=8192, ranks=1, groups=4, banks=4, burst=4, cl=22, cwl=16,
            rcd=22, rp=22, ras=52, rrd_s=4, rrd_l=8, faw=34, ccd_s=4, ccd_l=8, wtr_s=4, wtr_l=12, rtw=12, rtp=12, wr=24,
            rank_gap=2, refi=12480, rfc=560,
        ),
        {
            "": f"{_DDR4}, speed bin 3200AA (22-22-22), x8, page of 1 KB",
            "row_bytes": f"{_DDR4}: 1 KB a device, eight devices",
            "ranks": "chosen by us", "rtw": f"{_DDR4}: CL + burst + 2 - CWL", "rank_gap": "chosen by us",
            "rfc": f"{_DDR4}: 350 ns at 8 Gbit", "refi": f"{_DDR4}: 7.8 us",
        },
    ),
    "lpddr5-6400": DramDevice(
        "LPDDR5-6400, one x16 channel of 8 Gbit, bank groups, BL16, WCK:CK 4:1",
        DramTiming(
            clock_hz=800_000_000, burst_bytes=32, row_bytes=2048, ranks=1, groups=4, banks=4, burst=2, cl=17, cwl=9,
            rcd=15, rp=15, ras=34, rrd_s=4, rrd_l=4, faw=16, ccd_s=2, ccd_l=4, wtr_s=5, wtr_l=10, rtw=12, rtp=4, wr=28,
            rank_gap=2, refi=3125, rfc=168,
        ),
        {
            "": f"{_LPDDR5}, 6400 Mbit/s, bank group mode", "row_bytes": f"{_LPDDR5}: 2 KB",
            "rcd": f"{_LPDDR5}: 18 ns", "rp": f"{_LPDDR5}: 18 ns, one bank", "ras": f"{_LPDDR5}: 42 ns",
            "rrd_s": f"{_LPDDR5}: 5 ns", "rrd_l": f"{_LPDDR5}: 5 ns", "faw": f"{_LPDDR5}: 20 ns",
            "wtr_s": f"{_LPDDR5}: 6.25 ns", "wtr_l": f"{_LPDDR5}: 12 ns", "wr": f"{_LPDDR5}: 34 ns",
            "rtp": f"{_LPDDR5}: 7.5 ns less 2 cycles", "rtw": f"{_LPDDR5}: RL + BL/n + 2 - WL",
            "refi": f"{_LPDDR5}: 3.906 us", "rfc": f"{_LPDDR5}: 210 ns at 8 Gbit",
            "ranks": "chosen by us", "rank_gap": "chosen by us",
        },
    ),
    "hbm2e": DramDevice(
        "HBM2E at 3.2 Gbit/s, one pseudo channel of 64 bits, BL4; a stack has 16",
        _HBM_TIMING,
        _hbm_sources(_HBM2) | {
            "clock_hz": f"{_HBM2}: 3.2 Gbit/s a pin, double data rate",
            "burst_bytes": f"{_HBM2}: 64 bits, BL4", "ranks": f"{_HBM2}: no chip select", "burst": f"{_HBM2}: BL4",
            "ras": "33 ns of the IDD measurements of JEDEC JESD235",
        },
    ),
    "hbm3": DramDevice(
        "HBM3 at 6.4 Gbit/s, one pseudo channel of 32 bits, BL8; a stack has 32",
        _HBM_TIMING,
        _hbm_sources(_HBM3) | {
            "clock_hz": f"{_HBM3}: 6.4 Gbit/s a pin, four bits a cycle",
            "burst_bytes": f"{_HBM3}: 32 bits, BL8", "burst": f"{_HBM3}: BL8",
            "ranks": f"{_HBM3}, a stack of 4; stacks of 8 and more: stack ids", "ras": "33 ns, as HBM2E",
        },
    ),
}  # fmt: skip
"""Devices by the value of `npu.dram.timed.device`."""

MAPPINGS = ("row-rank-bank-group-column", "row-rank-bank-column-group", "row-column-rank-bank-group")
"""Address mappings of a channel, from high bits to low; the last field is directly above the bytes of a burst."""
