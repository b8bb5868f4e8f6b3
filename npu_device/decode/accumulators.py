"""Sums that tensor engines hold between commands (docs/interface.md, "Accumulators").

Space is assigned in the order of acceptance, so that no timing decides which command overflows. The bytes of each
accumulator are a memory of their own: the hazards between commands order its reuse.
"""

from collections.abc import Callable, Sequence
from typing import Any

from npu_device.abi.errors import TicketError
from npu_device.decode.command import ACCUMULATORS_BASE, AccumulatorSum, Command, Sum
from npu_device.memory.region import Region
from npu_device.operations.checks import DescriptorError, NoRoomError
from pyv_native.state import WORD64, StateError, rows


class Accumulators:
    """Sums that the engines of a cluster hold after the commands accepted so far."""

    def __init__(self, cluster: int, engines: int, size: int) -> None:
        self._base = ACCUMULATORS_BASE + cluster * engines * size
        self._size = size
        self._free: list[list[tuple[int, int]]] = [[(0, size)] if size else [] for _ in range(engines)]
        self._sums: dict[int, AccumulatorSum] = {}

    def check(self, command: Command, total: Sum) -> None:
        """DescriptorError when the sum that a command adds to is not there; NoRoomError for one that it begins."""
        address = command.descriptor.out_addr
        current = self._sums.get(address)
        if command.descriptor.accumulate:
            if current is None or current.shape != total.shape or current.integer != total.integer:
                raise DescriptorError(TicketError.NO_ACCUMULATOR, f"{address:#x} {_what(current)}; begin it with hold")
            if command.affinity not in (0, current.engine + 1):
                raise DescriptorError(
                    TicketError.AFFINITY,
                    f"engine {command.affinity - 1}: must be {current.engine}, which holds the sum",
                )
        elif total.hold:
            room = self._room(current)
            engine = self._engine(command, room)
            if room[engine] < total.size:
                raise NoRoomError(
                    TicketError.ACC_OVERFLOW, f"the sum of {total.shape[0]} x {total.shape[1]} for out",
                    f"accumulator of engine {engine} (te.acc_bytes {self._size})", total.size, room[engine],
                    "split the command in M or N" if command.macro else "",
                )  # fmt: skip

    def bind(self, command: Command, total: Sum) -> None:
        """Bind a GEMM_T that passed `check` to the sum that it adds to or begins."""
        address = command.descriptor.out_addr
        if command.descriptor.accumulate:
            current = self._sums[address]
            if not total.hold:
                self._release(address)
        else:
            self._release(address)
            current = self._sums[address] = self._assign(command, total)
        self._give(command, current)

    def _give(self, command: Command, current: AccumulatorSum) -> None:
        command.accumulator = current
        command.affinity = current.engine + 1
        base = self._base + current.engine * self._size
        command.accumulator_regions = tuple(Region(base + offset, 1, size, size) for offset, size in current.spans)

    # -- snapshots ---------------------------------------------------------------------------------------------

    @property
    def sums(self) -> list[AccumulatorSum]:
        """Sums that can be added to."""
        return list(self._sums.values())

    def state(self, index: Callable[[AccumulatorSum], int]) -> list[list[int]]:
        """Return the state of a snapshot: the index of the sum for each output address."""
        return [[address, index(one)] for address, one in self._sums.items()]

    def load_state(self, state: Any, sums: Sequence[AccumulatorSum]) -> None:
        self._sums = {}
        for place, (address, index) in enumerate(rows(state, (0, WORD64), (0, len(sums) - 1))):
            if address in self._sums or sums[index] in self._sums.values():
                raise StateError("comes twice", place)
            self._sums[address] = sums[index]
        for engine, free in enumerate(self._free):
            spans = sorted(span for one in self._sums.values() if one.engine == engine for span in one.spans)
            at = 0
            free.clear()
            for offset, size in [*spans, (self._size, 0)]:
                if offset < at:
                    raise StateError(f"two sums share bytes of engine {engine}")
                if offset > at:
                    free.append((at, offset - at))
                at = offset + size

    def rebind(self, command: Command, given: AccumulatorSum) -> None:
        """Bind a command of a snapshot to its sum."""
        total = command.order.total
        if total is None or given.shape != total.shape or given.integer != total.integer:
            raise StateError("is no sum for this command")
        self._give(command, given)

    def _room(self, gone: AccumulatorSum | None) -> list[int]:
        """Free bytes of each engine once `gone` is."""
        room = [sum(size for _, size in free) for free in self._free]
        if gone is not None:
            room[gone.engine] += sum(size for _, size in gone.spans)
        return room

    def _engine(self, command: Command, room: list[int]) -> int:
        """Return the engine that the command names, or the one that has most room (lowest first)."""
        engines = [command.affinity - 1] if command.affinity else range(len(room))
        return max(engines, key=lambda index: (room[index], -index))

    def _assign(self, command: Command, total: Sum) -> AccumulatorSum:
        engine = self._engine(command, self._room(None))
        spans = []
        free = self._free[engine]
        need = total.size
        while need:
            offset, size = free.pop(0)
            used = min(size, need)
            spans.append((offset, used))
            if used < size:
                free.insert(0, (offset + used, size - used))
            need -= used
        return AccumulatorSum(engine, total.shape, total.integer, spans)

    def _release(self, address: int) -> None:
        current = self._sums.pop(address, None)
        if current is not None:
            free = self._free[current.engine]
            free.extend(current.spans)
            free.sort()
            free[:] = _joined(free)


def _joined(spans: list[tuple[int, int]]) -> list[tuple[int, int]]:
    joined: list[tuple[int, int]] = []
    for offset, size in spans:
        if joined and sum(joined[-1]) == offset:
            joined[-1] = (joined[-1][0], joined[-1][1] + size)
        else:
            joined.append((offset, size))
    return joined


def _what(current: AccumulatorSum | None) -> str:
    if current is None:
        return "has no sum"
    return f"holds {current.shape[0]} x {current.shape[1]} of {'int32' if current.integer else 'fp32'}"
