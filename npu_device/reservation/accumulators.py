"""Sums that tensor engines hold between commands (docs/interface.md, "Accumulators"), in the native subset.

Bytes are allocated in the order of acceptance, so that overflow does not depend on timing. Each accumulator is a
separate memory region, whose reuse is ordered by hazards between commands.
"""

from npu_device.abi.errors import TicketError
from npu_device.decode.command import ACCUMULATORS_BASE, SUM_BYTES
from npu_device.memory.region import OPERAND_WORDS
from npu_device.reservation.state import MAX_OPERANDS, UNUSED, Accumulator, Issue, Span, SumRequest


def accumulator_of(issue: Issue, cluster: int, engine: int) -> Accumulator:
    """Return the accumulator of an engine of a cluster."""
    return issue.accumulators[cluster * issue.engines + engine]


def open_accumulators(issue: Issue) -> None:
    """Free all bytes of each accumulator. The caller has reserved a Span for each."""
    for index in range(len(issue.accumulators)):
        span = issue.free_spans
        if span is not None and issue.accumulator_size:
            issue.free_spans = span.next
            issue.spare_spans -= 1
            span.begin = 0
            span.size = issue.accumulator_size
            span.engine = index % issue.engines
            span.address = UNUSED
            span.next = None
            issue.accumulators[index].spans = span
            issue.accumulators[index].free_bytes = issue.accumulator_size


def find_sum(issue: Issue, cluster: int, address: int) -> Span | None:
    """Return the first span of a cluster's sum for an output address, or None."""
    for engine in range(issue.engines):
        span = accumulator_of(issue, cluster, engine).spans
        while span is not None:
            if span.address == address:
                return span
            span = span.next
    return None


def count_free(issue: Issue, cluster: int, engine: int, replaced: Span | None) -> int:
    """Return the free bytes of an engine after the release of the sum `replaced`."""
    free_bytes = accumulator_of(issue, cluster, engine).free_bytes
    if replaced is not None and replaced.engine == engine:
        free_bytes += replaced.rows * replaced.columns * SUM_BYTES
    return free_bytes


def choose_engine(issue: Issue, request: SumRequest, replaced: Span | None) -> int:
    """Return the engine that a command names, or the lowest engine with the most free bytes."""
    if request.affinity:
        return request.affinity - 1
    best = 0
    for engine in range(1, issue.engines):
        if count_free(issue, request.cluster, engine, replaced) > count_free(issue, request.cluster, best, replaced):
            best = engine
    return best


def check_sum(issue: Issue, request: SumRequest) -> int:
    """Return the error of a request, or 0: no sum of this shape and type (NO_ACCUMULATOR), a sum on another engine than
    the requested (AFFINITY), too few free bytes (ACC_OVERFLOW)."""
    sum_span = find_sum(issue, request.cluster, request.address)
    if request.accumulate:
        if (
            sum_span is None or sum_span.rows != request.rows or sum_span.columns != request.columns
            or sum_span.integer != request.integer
        ):  # fmt: skip
            return TicketError.NO_ACCUMULATOR
        if request.affinity and request.affinity != sum_span.engine + 1:
            return TicketError.AFFINITY
        return 0
    free_bytes = count_free(issue, request.cluster, choose_engine(issue, request, sum_span), sum_span)
    return 0 if request.rows * request.columns * SUM_BYTES <= free_bytes else TicketError.ACC_OVERFLOW


def max_spans(issue: Issue, request: SumRequest) -> int:
    """Return an upper bound of the number of spans of a command's sum."""
    sum_span = find_sum(issue, request.cluster, request.address)
    engine = sum_span.engine if request.accumulate and sum_span is not None else choose_engine(issue, request, sum_span)
    count = 0
    span = accumulator_of(issue, request.cluster, engine).spans
    while span is not None:
        count += span.address == request.address or (span.address == UNUSED and not request.accumulate)
        span = span.next
    return count


def split_span(issue: Issue, span: Span, size: int) -> None:
    """Split a span after `size` bytes. The caller has reserved a Span."""
    tail = issue.free_spans
    if tail is None or size >= span.size:
        return
    issue.free_spans = tail.next
    issue.spare_spans -= 1
    tail.begin = span.begin + size
    tail.size = span.size - size
    tail.engine = span.engine
    tail.address = UNUSED
    tail.next = span.next
    span.size = size
    span.next = tail


def assign_bytes(issue: Issue, request: SumRequest, engine: int) -> None:
    """Allocate the first free bytes of an accumulator to a sum."""
    accumulator = accumulator_of(issue, request.cluster, engine)
    size = request.rows * request.columns * SUM_BYTES
    accumulator.free_bytes -= size
    span = accumulator.spans
    while size and span is not None:
        if span.address == UNUSED:
            split_span(issue, span, size)
            span.address = request.address
            span.rows = request.rows
            span.columns = request.columns
            span.integer = request.integer
            size -= span.size
        span = span.next


def release_sum(issue: Issue, cluster: int, engine: int, address: int) -> None:
    """Free the bytes of a sum: no later command adds to it."""
    accumulator = accumulator_of(issue, cluster, engine)
    span = accumulator.spans
    previous = span
    while span is not None:
        following = span.next
        if span.address == address:
            span.address = UNUSED
            accumulator.free_bytes += span.size
        if previous is not None and previous is not span and previous.address == UNUSED and span.address == UNUSED:
            previous.size += span.size
            previous.next = following
            span.next = issue.free_spans
            issue.free_spans = span
            issue.spare_spans += 1
        else:
            previous = span
        span = following


def append_spans(issue: Issue, request: SumRequest, engine: int, written: int) -> None:
    """Append the spans of a sum to `issue.operands`, up to its capacity."""
    base = ACCUMULATORS_BASE + (request.cluster * issue.engines + engine) * issue.accumulator_size
    span = accumulator_of(issue, request.cluster, engine).spans
    while span is not None and len(issue.operands) < MAX_OPERANDS * OPERAND_WORDS:
        if span.address == request.address:
            low = base + span.begin
            issue.operands.extend((low, low + span.size, span.size, 0, written))
        span = span.next


def bind_sum(issue: Issue, request: SumRequest) -> int:
    """Bind a request that passed `check_sum` to a sum: the existing sum with `accumulate`, else a new sum that replaces
    any at the address. Append its spans to `issue.operands`. Release it unless the request holds it. Return the engine.
    The caller has reserved a Span."""
    sum_span = find_sum(issue, request.cluster, request.address)
    engine = choose_engine(issue, request, sum_span)
    if sum_span is not None:
        if request.accumulate:
            engine = sum_span.engine
        else:
            release_sum(issue, request.cluster, sum_span.engine, request.address)
    if request.accumulate:
        append_spans(issue, request, engine, 0)
    else:
        assign_bytes(issue, request, engine)
    if request.hold:
        append_spans(issue, request, engine, 1)
    else:
        release_sum(issue, request.cluster, engine, request.address)
    return engine
