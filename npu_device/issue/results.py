"""Outputs that wait for their turn to appear in memory, for Python: `reservation.results` has the rules.

Operations see memory through views that cannot be written. Their results are copied in the cycle of the start: from
then on no store changes them.
"""

import ctypes
from typing import Any

import numpy as np

from npu_device.event_loop.l2 import L2
from npu_device.event_loop.machine import Machine
from npu_device.memory.arrays import Bytes, WriteSet
from npu_device.memory.memory import Memory
from npu_device.memory.region import Region
from npu_device.reservation import results
from npu_device.reservation.buffer import LINKAGE, iterate
from npu_device.reservation.state import MIN_BLOCK, Issue, Output
from pyv_native.intrinsics import address_of
from pyv_native.records import WORD, layout


def detach(effect: WriteSet) -> WriteSet:
    """Copy the results of a command, which may be views of memory."""
    writes, total = effect
    return WriteSet(tuple((region, data.copy()) for region, data in writes), None if total is None else total.copy())


class Results:
    """Outputs of the commands of a device. Hazards see to it that no two of them overlap."""

    def __init__(self, memory: Memory, machine: Machine, l2: L2 | None = None) -> None:
        """`l2`: what commands read and write through, where it may hold other bytes than `memory`."""
        self._memory, self._through, self._machine = memory, memory if l2 is None else l2, machine
        arena = machine.storage.arena
        arena.link_callback(LINKAGE.slots[results.write_result], results.write_result, self._write)
        arena.link_callback(LINKAGE.slots[results.report_write], results.report_write, self._report)
        self.reset()

    def reset(self) -> None:
        """Forget all outputs. The records were reset before."""
        self._blocks: list[bytearray] = []
        """Memory of the blocks."""
        self._issue = self._machine.issue
        issue = self._issue.issue
        issue.reports_writes = self._memory.written is not None
        self._youngest = issue.offset // WORD + layout(Issue).fields["youngest_result"].word

    def _report(self, _: int, address: int, size: int) -> int:
        if self._memory.written is not None:
            self._memory.written(address, size)
        return 0

    def _write(self, _: int, offset: int) -> int:
        self._through.write(*_content(self._view(offset)))
        return 0

    def _view(self, offset: int) -> Any:
        return self._issue.arena.view(Output, offset)

    def reserve(self, size: int) -> None:
        """Add a block for an output of so many bytes."""
        number = self._machine.call(results.block_class, size)
        block = bytearray(MIN_BLOCK << number)
        self._blocks.append(block)
        offset = self._machine.storage.allocate(layout(Output).size)
        self._issue.arena.initialize(Output, offset, {})
        view = self._view(offset)
        view.data = address_of(block)
        blocks = self._issue.issue.free_blocks
        view.next, blocks[number] = blocks[number], view

    def store(self, entry: int, writes: tuple[tuple[Region, Bytes], ...]) -> None:
        """Add the outputs of a command that starts, or that an external engine has ended."""
        tile, direct = self._machine.storage.loop.tile.offset, self._through is self._memory
        for region, data in reversed(writes):
            content, size = np.ascontiguousarray(data), region.payload
            stride = region.stride if region.rows > 1 else 0
            source = content.__array_interface__["data"][0]
            words = tile, entry, region.address, region.end, region.row_bytes, stride, size, source, direct
            while not self._issue.call(results.store, *words):
                self.reserve(size)

    def outputs(self, entry: Any) -> tuple[tuple[Region, Bytes], ...]:
        """Return the outputs of a command that are not in memory yet. `entry`: view of its record."""
        return tuple(_content(result) for result in iterate(entry.result))

    def read(self, region: Region) -> Bytes:
        """Return the rows of a region as a later command sees them; a view of memory without an output there."""
        rows, issue = self._through.rows(region), self._issue
        if not issue.arena.words[self._youngest] or not issue.call(results.overlaps, region.address, region.end):
            return rows
        content = rows.copy()
        host, stride = content.__array_interface__["data"][0], region.stride if region.rows > 1 else 0
        issue.call(results.forward_all, region.address, region.end, region.row_bytes, stride, host)
        return content


def _content(result: Any) -> tuple[Region, Bytes]:
    """Return the region of an output and a copy of its bytes."""
    rows = result.size // result.row_bytes
    content = np.frombuffer(ctypes.string_at(result.data, result.size), np.uint8).reshape(rows, result.row_bytes)
    return Region(result.address, rows, result.row_bytes, result.stride or result.size), content
