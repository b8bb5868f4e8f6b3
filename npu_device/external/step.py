"""Steps on external engines, and totals of the engines."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from npu_device.decode.command import Command
from npu_device.external.products import Job, Products


@dataclass
class Step:
    """Step on an external engine."""

    command: Command
    products: Products
    jobs: Sequence[Job]
    index: int
    """Index of the tensor step in its command."""
    lanes: int
    """Number of units of its command."""
    began: int
    """Core cycle of its begin."""
    at: int = 0
    """Index of the current job."""
    before: int = 0
    """NPU cycles of the previous jobs."""
    granted: int = 0
    """NPU cycles of the current job that the engine has run."""
    ended: bool = False
    result: NDArray[np.int32] = field(default_factory=lambda: np.zeros((0, 0), np.int32))
    written: int = 0
    """Number of written elements of `result`."""


@dataclass
class Totals:
    """Totals of external engines."""

    steps: int = 0
    cycles: int = 0
    """NPU cycles of all steps."""
    read_bytes: list[int] = field(default_factory=lambda: [0, 0])
    """Bytes of in0 and in1 that the engines report as read."""
