"""Sums that tensor engines hold between commands (specification 20, "Accumulators").

Places are given in the order of acceptance, so that which command overflows depends on no timing. The bytes of each
accumulator are a memory of their own: the hazards between commands order its reuse.
"""

from typing import Any

from numpy.typing import NDArray

from npu_device.abi.errors import TicketError
from npu_device.command import Command
from npu_device.descriptor_error import DescriptorError
from npu_device.hazards import HELD_SUMS
from npu_device.region import Region

SUM_BYTES = 4
"""Of one element: int32 or fp32."""


class HeldSum:
    """The sum for one output address."""

    def __init__(self, engine: int, shape: tuple[int, int], integer: bool, spans: list[tuple[int, int]]) -> None:
        self.engine = engine
        """Index within the cluster: the chain stays there."""
        self.shape = shape
        self.integer = integer
        self.spans = spans
        """(offset, bytes) in the engine's accumulator."""
        self.value: NDArray[Any] | None = None
        """int32 or fp32; None before the first command of the chain has ended."""


class Accumulators:
    """Which sums the engines of one cluster hold after the commands accepted so far."""

    def __init__(self, cluster: int, engines: int, size: int) -> None:
        self._base = HELD_SUMS + cluster * engines * size
        self._size = size
        self._free: list[list[tuple[int, int]]] = [[(0, size)] if size else [] for _ in range(engines)]
        self._held: dict[int, HeldSum] = {}

    def plan(self, command: Command, shape: tuple[int, int], integer: bool, hold: bool) -> None:
        """Bind a GEMM_T to the sum that it adds to or begins; DescriptorError when it cannot be.

        `shape` is M x N; `integer` tells an int32 sum from an fp32 one.
        """
        address = command.descriptor.out_addr
        held = self._held.get(address)
        if command.descriptor.accumulate:
            if held is None or held.shape != shape or held.integer != integer:
                raise DescriptorError(TicketError.NO_ACCUMULATOR, f"{address:#x} {_what(held)}")
            if command.affinity not in (0, held.engine + 1):
                raise DescriptorError(
                    TicketError.AFFINITY, f"engine {command.affinity - 1}, but engine {held.engine} holds the sum"
                )
            if not hold:
                self._let_go(address)
        elif hold:
            old = self._let_go(address)
            held = self._place(command, shape, integer)
            if held is None:
                if old is not None:
                    self._restore(address, old)
                size = shape[0] * shape[1] * SUM_BYTES
                raise DescriptorError(TicketError.ACC_OVERFLOW, f"{size} bytes, free are {self._free_bytes()}")
            self._held[address] = held
        else:
            return
        command.held = held
        command.affinity = held.engine + 1
        base = self._base + held.engine * self._size
        command.held_regions = tuple(Region(base + offset, 1, size, size) for offset, size in held.spans)

    def _free_bytes(self) -> list[int]:
        return [sum(size for _, size in free) for free in self._free]

    def _place(self, command: Command, shape: tuple[int, int], integer: bool) -> HeldSum | None:
        """Put a new sum on the engine that has most room (lowest first), or the one that the command names."""
        need = shape[0] * shape[1] * SUM_BYTES
        room = self._free_bytes()
        engines = [command.affinity - 1] if command.affinity else range(len(room))
        engine = max(engines, key=lambda index: (room[index], -index))
        if room[engine] < need:
            return None
        spans = []
        free = self._free[engine]
        while need:
            offset, size = free.pop(0)
            used = min(size, need)
            spans.append((offset, used))
            if used < size:
                free.insert(0, (offset + used, size - used))
            need -= used
        return HeldSum(engine, shape, integer, spans)

    def _let_go(self, address: int) -> HeldSum | None:
        held = self._held.pop(address, None)
        if held is not None:
            free = self._free[held.engine]
            free.extend(held.spans)
            free.sort()
            free[:] = _joined(free)
        return held

    def _restore(self, address: int, held: HeldSum) -> None:
        """Take back what `_let_go` did."""
        free = self._free[held.engine]
        for low, size in held.spans:
            index = next(i for i, (offset, room) in enumerate(free) if offset <= low and low + size <= offset + room)
            offset, room = free[index]
            rest = [(offset, low - offset), (low + size, offset + room - low - size)]
            free[index : index + 1] = [span for span in rest if span[1]]
        self._held[address] = held


def _joined(spans: list[tuple[int, int]]) -> list[tuple[int, int]]:
    joined: list[tuple[int, int]] = []
    for offset, size in spans:
        if joined and sum(joined[-1]) == offset:
            joined[-1] = (joined[-1][0], joined[-1][1] + size)
        else:
            joined.append((offset, size))
    return joined


def _what(held: HeldSum | None) -> str:
    if held is None:
        return "has no sum"
    return f"holds {held.shape[0]} x {held.shape[1]} of {'int32' if held.integer else 'fp32'}"
