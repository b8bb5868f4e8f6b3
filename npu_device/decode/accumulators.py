"""Bytes of the sums that tensor engines hold between commands (docs/interface.md, "Accumulators")."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from npu_device.config import NpuConfig
from npu_device.decode.command import ACCUMULATORS_BASE, Command
from npu_device.memory.arrays import Bytes
from npu_device.memory.region import Region


class AccumulatorMemory:
    """Memory of all accumulators of a device. Hazards order its use."""

    def __init__(self, config: NpuConfig) -> None:
        self.content = np.zeros(config.clusters * config.te.count * config.te.acc_bytes, np.uint8)

    def bytes_of(self, region: Region) -> Bytes:
        """Return a view of the bytes of a region."""
        start = region.address - ACCUMULATORS_BASE
        return self.content[start : start + region.row_bytes]

    def read(self, command: Command) -> NDArray[Any]:
        """Return the sum that a command adds to: int32 or fp32, in its shape; may share this memory."""
        total = command.order.total
        assert total is not None
        parts = [self.bytes_of(region) for region in command.accumulator_regions]
        flat = parts[0] if len(parts) == 1 else np.concatenate(parts)
        return flat.view(np.int32 if total.integer else np.float32).reshape(total.shape)

    def write(self, command: Command, total: NDArray[Any]) -> None:
        """Store the sum of a command that has ended."""
        content, start = total.reshape(-1).view(np.uint8), 0
        for region in command.accumulator_regions:
            self.bytes_of(region)[:] = content[start : start + region.row_bytes]
            start += region.row_bytes
