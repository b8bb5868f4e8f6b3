"""Configurations that cannot be name key, value and rule."""

from dataclasses import replace
from typing import Any

import pytest

from npu_device.abi.errors import NpuDeviceError
from npu_device.config import ChainedConfig, DmaConfig, DramConfig, NpuConfig, SpmConfig, TeConfig, check


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        ({"spm": SpmConfig(banks=0)}, "spm.banks = 0: must be at least 1"),
        ({"spm": SpmConfig(banks=7)}, "spm.size = 2097152: must be a multiple of 7 for spm.banks = 7 by block"),
        ({"spm": SpmConfig(size=4096 + 64, interleave="64B", banks=8)},
         "spm.size = 4160: must be a multiple of 512 for spm.banks = 8 by 64B"),
        ({"dram": DramConfig(bytes_per_second=0)}, "dram.bytes_per_second = 0: must be at least 1"),
        ({"dma": DmaConfig(bytes_per_cycle=0)}, "dma.bytes_per_cycle = 0: must be at least 1"),
        ({"dma": DmaConfig(bus_width_bytes=96)}, "dma.bus_width_bytes = 96: must be a power of two"),
        ({"dma": DmaConfig(channels=3, direction="split")},
         "dma.channels = 3: must be 2 with dma.direction = split, one reads and one writes"),
        ({"dram": DramConfig(channels=3)}, "dram.channels = 3: must be a power of two"),
        ({"dram": DramConfig(interleave=64), "dma": DmaConfig(alignment=128)},
         "dram.interleave = 64: must be at least dma.alignment = 128, an access is on one channel"),
        ({"te": TeConfig(kind="magic")}, "te.kind = magic: must be one of roofline, systolic_os, systolic_ws, "
                                         "systolic_is, systolic_ws_pipe, chained_ve"),
        ({"te": TeConfig(chained=ChainedConfig(T=0))}, "te.chained.T = 0: must be at least 1"),
        ({"te": TeConfig(chained=ChainedConfig(mask_skip="some"))},
         "te.chained.mask_skip = some: must be one of none, tile, dataflow"),
        ({"clock_ratio": (0, 1)}, "clock_ratio = (0, 1): must be at least 1"),
        ({"clusters": 13}, "clusters = 13: must be at most 12"),
        ({"dma": DmaConfig(channels=17)}, "dma.channels = 17: must be at most 16"),
    ],
)  # fmt: skip
def test_a_configuration_that_cannot_be(sections: dict[str, Any], message: str) -> None:
    with pytest.raises(NpuDeviceError) as caught:
        check(replace(NpuConfig(), **sections))
    assert str(caught.value) == message


def test_no_limit_is_a_value() -> None:
    check(NpuConfig(dram=DramConfig(bytes_per_second=None), spm=SpmConfig(port=None)))
