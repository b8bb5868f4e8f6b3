"""Python interface of the accumulators: checks with error messages, assignment, snapshots."""

from collections import Counter
from collections.abc import Iterator
from typing import Any

from npu_device.abi.errors import TicketError
from npu_device.config import NpuConfig
from npu_device.decode.command import ACCUMULATORS_BASE, SUM_BYTES, Command, Sum
from npu_device.memory.region import Region
from npu_device.operations.checks import CapacityError, DescriptorError
from npu_device.reservation import accumulators
from npu_device.reservation.buffer import IssueBuffer, iterate, list_buffer
from npu_device.reservation.state import UNUSED, Span
from pyv_native.state import LATEST, WORD32, StateError, inside, rows, sequence


class Accumulators:
    """Sums that the engines of a device hold after the commands accepted so far."""

    def __init__(self, config: NpuConfig, buffer: IssueBuffer | None = None) -> None:
        """`buffer`: the records of a device; None creates a standalone issue stage."""
        self._clusters, self._engines, self._size = config.clusters, config.te.count, config.te.acc_bytes
        self.reset(list_buffer(self._clusters * self._engines) if buffer is None else buffer)

    def reset(self, buffer: IssueBuffer) -> None:
        """Empty all accumulators. The records were reset before."""
        self._buffer, issue = buffer, buffer.issue
        issue.engines, issue.accumulator_size = self._engines, self._size
        issue.accumulators.resize(self._clusters * self._engines)
        buffer.reserve(Span, self._clusters * self._engines)
        buffer.call(accumulators.open_accumulators)

    def _request(self, command: Command, total: Sum) -> Any:
        """Fill the request of a command and return its view."""
        d, request = command.descriptor, self._buffer.issue.request
        request.rows, request.columns = total.shape
        request.integer, request.hold, request.accumulate = total.integer, total.hold, bool(d.accumulate)
        request.cluster, request.affinity, request.address = d.cluster, command.affinity, d.out_addr
        return request

    def _find(self, request: Any) -> Any:
        """Return a view of the first span of the sum at a request's output address, or None."""
        offset = self._buffer.call(accumulators.find_sum, request.cluster, request.address)
        return self._buffer.arena.reference(Span, offset)

    def check(self, command: Command, total: Sum) -> None:
        """Raise DescriptorError if the sum to accumulate into is missing, CapacityError if a new sum does not fit."""
        call, request = self._buffer.call, self._request(command, total)
        code = call(accumulators.check_sum, request.offset)
        if not code:
            return
        sum_span, address = self._find(request), command.descriptor.out_addr
        if code == TicketError.NO_ACCUMULATOR:
            raise DescriptorError(TicketError.NO_ACCUMULATOR, f"{address:#x} {_describe(sum_span)}; begin it with hold")
        if code == TicketError.AFFINITY:
            rule = f"must be {sum_span.engine}, which holds the sum"
            raise DescriptorError(TicketError.AFFINITY, f"engine {command.affinity - 1}: {rule}")
        offset = 0 if sum_span is None else sum_span.offset
        engine = call(accumulators.choose_engine, request.offset, offset)
        raise CapacityError(
            TicketError.ACC_OVERFLOW, f"the sum of {total.shape[0]} x {total.shape[1]} for out",
            f"accumulator of engine {engine} (te.acc_bytes {self._size})", total.size,
            call(accumulators.count_free, request.cluster, engine, offset),
            "split the command in M or N" if command.macro else "",
        )  # fmt: skip

    def bind(self, command: Command, total: Sum) -> None:
        """Bind a GEMM_T that passed `check` to its existing or new sum."""
        buffer = self._buffer
        buffer.reserve(Span, 1)
        request = self._request(command, total)
        regions = self._regions(self._find(request), request) if command.descriptor.accumulate else ()
        command.affinity = buffer.call(accumulators.bind_sum, request.offset) + 1
        buffer.issue.operands.clear()
        command.accumulator_regions = regions or self._regions(self._find(request), request)

    def _regions(self, first: Any, request: Any) -> tuple[Region, ...]:
        """Return the regions of the sum of a request. `first`: view of its first span."""
        base = ACCUMULATORS_BASE + (request.cluster * self._engines + first.engine) * self._size
        return tuple(
            Region(base + span.begin, 1, span.size, span.size)
            for span in iterate(first)
            if span.address == request.address
        )

    # -- snapshots ---------------------------------------------------------------------------------------------

    def regions(self) -> Iterator[Region]:
        """Iterate over the regions of all sums to which commands can add."""
        for index, accumulator in enumerate(self._buffer.issue.accumulators):
            for span in iterate(accumulator.spans):
                if span.address != UNUSED:
                    yield Region(ACCUMULATORS_BASE + index * self._size + span.begin, 1, span.size, span.size)

    def state(self) -> list[list[list[int]]]:
        """Return the state of a snapshot: for each accumulator its spans in order, with the address and shape of their
        sums."""
        return [
            [
                [span.size, span.address, *((0, 0, 0) if span.address == UNUSED else _shape(span))]
                for span in iterate(accumulator.spans)
            ]
            for accumulator in self._buffer.issue.accumulators
        ]

    def load_state(self, state: Any) -> None:
        """Restore the value of `state`, after a reset. Raise StateError."""
        buffer, limit, shapes = self._buffer, max(1, self._size), dict[tuple[int, int], object]()
        for index, item in enumerate(sequence(state, self._clusters * self._engines)):
            with inside(index):
                parts = rows(item, (1, limit), (UNUSED, LATEST), (0, limit), (0, limit), (0, 1))
                sizes: Counter[tuple[int, ...]] = Counter()
                for size, *fields in parts:
                    sizes[tuple(fields)] += size
                if sizes.total() != self._size:
                    raise StateError(f"are not the {self._size} bytes of an accumulator")
                for shape, size in sizes.items():
                    address, m, n, _ = shape
                    key = index // self._engines, address
                    is_complete = size == m * n * SUM_BYTES and shapes.setdefault(key, (index, shape)) == (index, shape)
                    if address != UNUSED and not is_complete:
                        raise StateError(f"do not hold one sum of {m} x {n}")
                buffer.reserve(Span, len(parts))
                accumulator = buffer.issue.accumulators[index]
                span = accumulator.spans
                for size, address, m, n, integer in parts:
                    buffer.call(accumulators.split_span, span.offset, size)
                    span.address, span.rows, span.columns, span.integer = address, m, n, bool(integer)
                    accumulator.free_bytes -= 0 if address == UNUSED else size
                    span = span.next

    def saved_regions(self, command: Command) -> list[list[int]] | None:
        """Return the [offset, bytes] of a command's sum for a snapshot, or None without a sum."""
        regions = command.accumulator_regions
        return [[region.address - ACCUMULATORS_BASE, region.row_bytes] for region in regions] or None

    def rebind(self, command: Command, state: Any) -> None:
        """Restore the sum of a command of a snapshot. Raise StateError."""
        total, first = command.order.total, command.descriptor.cluster * self._engines
        if (total is None) != (state is None):
            raise StateError("is no sum for this command")
        if total is None:
            return
        regions = [Region(address, 1, size, size) for address, size in rows(state, (0, WORD32 << 8), (1, total.size))]
        engines = {at // max(1, self._size) - first for region in regions for at in (region.address, region.end - 1)}
        engine = engines.pop() if len(engines) == 1 else -1
        if sum(region.payload for region in regions) != total.size or not 0 <= engine < self._engines:
            raise StateError("does not hold the sum of the command")
        if command.affinity not in (0, engine + 1):
            raise StateError("is not on the engine of the command")
        command.affinity = engine + 1
        command.accumulator_regions = tuple(
            region._replace(address=ACCUMULATORS_BASE + region.address) for region in regions
        )


def _shape(span: Any) -> tuple[int, int, int]:
    return span.rows, span.columns, int(span.integer)


def _describe(sum_span: Any) -> str:
    if sum_span is None:
        return "has no sum"
    return f"holds {sum_span.rows} x {sum_span.columns} of {'int32' if sum_span.integer else 'fp32'}"
