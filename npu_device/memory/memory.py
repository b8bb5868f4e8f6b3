"""Memory shared by device and core, by 64-bit NPU address."""

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

from npu_device.abi.errors import NpuDeviceError
from npu_device.abi.memory_map import SPM_BASE, SPM_CLUSTER_STRIDE
from npu_device.config import NpuConfig
from npu_device.memory.region import Region

if TYPE_CHECKING:
    from npu_device.memory.arrays import Bytes

MAX_VIEWS = 1024
"""Capacity of the cache of views, in regions."""


class _Window(NamedTuple):
    name: str
    base: int
    end: int
    data: memoryview


class Memory:
    """Regions of bytes. `written(address, size)` is called for each write; its range may include bytes between rows.

    Only views of rows are arrays, so a program without submissions does not import NumPy.
    """

    def __init__(self, regions: Iterable[tuple[str, int, Any]], written: Callable[[int, int], None] | None = None):
        """`regions`: (name, base address, writable buffer). Raise NpuDeviceError if one is read-only or two overlap."""
        self._windows: list[_Window] = []
        self._views: dict[Region, tuple[Bytes, Bytes]] = {}
        self.written = written
        """Reports a write; None if nobody is told."""
        for name, base, buffer in regions:
            data = memoryview(buffer).cast("B")
            if data.readonly:
                raise NpuDeviceError(f"memory {name}: the buffer is read-only, the device must be able to write it")
            for other in self._windows:
                if base < other.end and other.base < base + len(data):
                    raise NpuDeviceError(
                        f"memory {name} at {base:#x}..{base + len(data):#x} overlaps {other.name}: move one"
                    )
            self._windows.append(_Window(name, base, base + len(data), data))

    @property
    def windows(self) -> list[tuple[int, int, memoryview]]:
        """Base, end and bytes of each region."""
        return [(base, end, content) for _, base, end, content in self._windows]

    def _find(self, address: int, end: int) -> _Window | None:
        for window in self._windows:
            if window.base <= address and end <= window.end:
                return window
        return None

    def holds(self, address: int, size: int) -> bool:
        """Check whether `size` bytes at `address` are in one region."""
        return self._find(address, address + size) is not None

    def rows(self, region: Region) -> "Bytes":
        """Return a read-only view, shape (rows, row_bytes). Raise NpuDeviceError outside memory."""
        views = self._views.get(region)
        return (self._make_views(region) if views is None else views)[0]

    def _make_views(self, region: Region) -> "tuple[Bytes, Bytes]":
        """Return a read-only and a writable view of rows, and cache them, as commands repeat regions."""
        import numpy as np

        address, rows, row_bytes, stride = region
        window = self._find(address, region.end)
        if window is None:
            raise _no_memory(address, region.end)
        written = np.ndarray((rows, row_bytes), np.uint8, window.data, address - window.base, (stride, 1))
        read = written.view()
        read.setflags(write=False)
        if len(self._views) >= MAX_VIEWS:
            self._views.clear()
        self._views[region] = read, written
        return read, written

    def read(self, address: int, size: int) -> bytes | None:
        """Return `size` bytes, or None outside memory."""
        window = self._find(address, address + size)
        return None if window is None else window.data[address - window.base :][:size].tobytes()

    def write(self, region: Region, data: "Bytes") -> None:
        """Store `data`, which has the size of the region's payload. Raise NpuDeviceError outside memory."""
        if region.rows == 1:
            return self.write_bytes(region.address, data.reshape(-1).data)
        views = self._views.get(region) or self._make_views(region)
        views[1][:] = data.reshape(region.rows, region.row_bytes)
        if self.written is not None:
            self.written(region.address, region.end - region.address)

    def write_bytes(self, address: int, data: bytes | memoryview) -> None:
        """Store contiguous bytes. Raise NpuDeviceError outside memory."""
        end = address + len(data)
        window = self._find(address, end)
        if window is None:
            raise _no_memory(address, end)
        window.data[address - window.base : end - window.base] = data
        if self.written is not None:
            self.written(address, len(data))


def _no_memory(address: int, end: int) -> NpuDeviceError:
    return NpuDeviceError(f"no memory at {address:#x}..{end:#x}: ask `holds` first")


def scratchpads(config: NpuConfig, memory: Memory) -> list[int]:
    """Return the addresses of the scratchpads. Raise NpuDeviceError if the memory lacks one."""
    bases = [SPM_BASE + cluster * SPM_CLUSTER_STRIDE for cluster in range(config.clusters)]
    size = config.spm.size
    for cluster, base in enumerate(bases):
        if not memory.holds(base, size):
            raise NpuDeviceError(
                f"scratchpad {cluster}: no memory at {base:#x}..{base + size:#x}, give the device a region there"
            )
    if size % config.spm.banks:
        raise NpuDeviceError(f"spm.banks {config.spm.banks}: must divide spm.size {size}")
    return bases
