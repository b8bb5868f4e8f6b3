"""What code is generated for, and what is generated."""

from typing import NamedTuple

from npu_device.abi import memory_map as mm
from npu_device.abi.descriptor import Descriptor
from npu_device.abi.extended import Extended


class Target(NamedTuple):
    """The sizes of a device that the compiler has to know."""

    spm_bytes: int = mm.SPM_SIZE
    banks: int = 8
    acc_bytes: int = 131_072
    """Of the accumulator of one tensor engine."""
    dram_bytes: int = mm.DRAM_SIZE

    @property
    def bank_bytes(self) -> int:
        return self.spm_bytes // self.banks


class Command(NamedTuple):
    """One descriptor. `param1` of one with an extended block is filled in when the block has a place."""

    layer: str
    descriptor: Descriptor
    block: Extended | None = None
