"""Macro commands for tests: operands given as arrays, the result as an array."""

from typing import Any

import numpy as np
from npu_rig import DRAM, SPM, Rig

from npu_device.abi.descriptor import Descriptor
from npu_device.abi.extended import Extended
from npu_device.abi.opcodes import DataType, Opcode
from npu_device.config import NpuConfig, SpmConfig
from npu_device.memory.operands import FLOATS, row_bytes
from npu_device.operations.kernels import elements
from npu_device.operations.macro.base import Macro

Array = np.ndarray[Any, Any]
EXT = DRAM + 0xD_0000
POSITION = DRAM + 0xD_1000
WORK_SIZE = 1 << 18
CONFIG = NpuConfig(spm=SpmConfig(size=1 << 19))
WORK = SPM + (1 << 18)


class MacroRig(Rig):
    """A rig that lays out operands one after the other in DRAM, or in the scratchpad below the workspace."""

    def __init__(self, config: NpuConfig | None = None, **more: Any) -> None:
        super().__init__(config or CONFIG, **more)
        self.free = {"dram": DRAM + 0x100, "spm": SPM}

    def place(self, size: int, where: str = "dram", gap: int = 64) -> int:
        """`size` bytes of fresh memory."""
        at = self.free[where]
        self.free[where] = -(-(at + size) // 64) * 64 + gap
        return at

    def put(self, values: Array, kind: DataType, where: str = "dram", distance: int = 0) -> int:  # type: ignore[override]
        """A matrix with `distance` bytes between rows: its address."""
        rows = elements.encode(values.reshape(-1, values.shape[-1]), kind)
        step = distance or rows.shape[1]
        at = self.place(len(rows) * step, where)
        for index, row in enumerate(rows):
            self.memory.write_bytes(at + index * step, row.tobytes())
        return at

    def get(self, address: int, rows: int, columns: int, kind: DataType, distance: int = 0) -> Array:
        """A matrix from memory."""
        size = row_bytes(columns, kind)
        step = distance or size
        data = np.frombuffer(b"".join(self.bytes_at(address + i * step, size) for i in range(rows)), np.uint8)
        return elements.decode(data.reshape(rows, size), kind, rows, columns)

    def macro(self, d: Descriptor, block: Extended, at: int = EXT) -> Descriptor:
        """The descriptor with its block, and with a workspace if it names none."""
        if not block.workspace_bytes:
            block = block._replace(workspace=WORK, workspace_bytes=WORK_SIZE)
        self.memory.write_bytes(at, block.pack())
        return d.with_(extended=1, param1=at)

    def execute(self, d: Descriptor, block: Extended, **more: int) -> None:
        """Run one macro command to its end; it must end well."""
        ticket = self.submit(self.macro(d, block), **more)
        self.idle()
        assert not self.device.error_log, self.device.error_log
        assert self.status(ticket) == 3

    def decoded(self, d: Descriptor, block: Extended) -> Macro:
        """The validated command."""
        command = self.device.host.decoder.decode(self.macro(d, block), 0, 0)
        assert command.macro is not None
        return command.macro


def random(kind: DataType, rows: int, columns: int, seed: int) -> Array:
    """Elements over the whole range of an integer type; of moderate size for a float type."""
    rng = np.random.default_rng(seed)
    if kind in FLOATS:
        return (rng.standard_normal((rows, columns)) * 2).astype(np.float32).astype(elements.DTYPE[kind])
    low, high = elements.limits(kind)
    return rng.integers(low, high + 1, (rows, columns)).astype(elements.DTYPE[kind])


def block(opcode: Opcode, own: dict[str, Any] | None = None, **shared: Any) -> Extended:
    return Extended.make(opcode, own=own, **shared)
