"""Event loop of a server: requests, scheduler and steps, in core cycles."""

from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain, pairwise
from typing import Any, NamedTuple

from pyv_npu.csv_table import csv_text
from pyv_npu.errors import BadInputError
from pyv_npu.serving.requests import Arrivals, Request, Workload, ns_of
from pyv_npu.serving.scheduler import Entry, Scheduler, SchedulerConfig
from pyv_npu.workloads.workload import ProgressDisplay, hidden

StepCycles = Callable[[Sequence[tuple[int, int]]], int]
"""Function from (tokens, context) of each request of a step to its cycles."""
SwapCycles = Callable[[int, bool], int]
"""Function from (tokens, whether to or from swap space) to the cycles of the DMA for a request's keys and values."""


def swap_in_no_time(tokens: int, out: bool) -> int:
    """Return 0: swaps take no time."""
    return 0


class ScheduledTokens:
    """Tuples (request, tokens, context) of the requests of a step, in order: 24 bytes each in an array, as a long run
    has millions."""

    __slots__ = ("_words",)

    def __init__(self, entries: Iterable[tuple[int, int, int]] = ()) -> None:
        self._words = array("q", chain.from_iterable(entries))

    @property
    def chunks(self) -> list[tuple[int, int]]:
        """Tuples (tokens, context) of the requests."""
        return list(zip(self._words[1::3], self._words[2::3], strict=True))

    @property
    def tokens(self) -> int:
        return sum(self._words[1::3])

    def __len__(self) -> int:
        return len(self._words) // 3

    def __iter__(self) -> Iterator[tuple[int, int, int]]:
        words = iter(self._words)
        return zip(words, words, words, strict=True)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ScheduledTokens) and self._words == other._words

    def __hash__(self) -> int:
        return hash(self._words.tobytes())

    def __repr__(self) -> str:
        return repr(tuple(self))


LEDGER = (
    "step", "start_cycle", "end_cycle", "scheduled", "preempted", "finished", "running", "waiting", "blocks", "tokens",
    "swapped_out", "swapped_in", "swap_cycles",
)  # fmt: skip


class LedgerRow(NamedTuple):
    """Step of a run."""

    start: int
    """Cycle in which the commands were submitted."""
    end: int
    scheduled: ScheduledTokens
    preempted: tuple[int, ...]
    finished: tuple[int, ...]
    running: int
    """Number of running requests."""
    waiting: int
    """Number of waiting requests."""
    blocks: int
    """Number of blocks in use during the step."""
    swapped: tuple[tuple[int, int], ...] = ()
    """Copies (request, tokens) before the step: to swap space if requests were preempted, otherwise from it."""
    swap: int = 0
    """Cycles of these copies, included in the time between start and end."""

    @property
    def tokens(self) -> int:
        return self.scheduled.tokens

    @property
    def swapped_tokens(self) -> tuple[int, int]:
        """Tokens copied (to swap space, from swap space)."""
        tokens = sum(count for _, count in self.swapped)
        return (tokens, 0) if self.preempted else (0, tokens)


class Times(NamedTuple):
    """Latencies of a request, in ns."""

    ttft: int
    tpot: int | None
    e2e: int
    itl: Sequence[int]


@dataclass(slots=True)
class Served:
    """Outcome of a request; times in cycles."""

    request: Request
    arrival: int
    first_scheduled: int = -1
    tokens_at: list[int] = field(default_factory=list)
    """Cycle of each token of the answer."""
    preemptions: int = 0
    recomputed: int = 0
    reused: int = 0
    swaps: int = 0
    blocks_peak: int = 0
    control: int = 0
    """Cycles of firmware in the request's steps."""

    def times(self, clock_hz: int) -> Times:
        """Return the latencies."""
        at = [ns_of(cycle, clock_hz) for cycle in self.tokens_at]
        arrival = ns_of(self.arrival, clock_hz)
        gaps = array("q", (following - previous for previous, following in pairwise(at)))
        tpot = (at[-1] - at[0]) // (len(at) - 1) if gaps else None
        return Times(at[0] - arrival, tpot, at[-1] - arrival, gaps)


@dataclass
class Run:
    """Outcome of a workload."""

    served: list[Served]
    """Served requests in the order of the workload, without refused requests."""
    refused: dict[int, str]
    """Request -> reason of its refusal."""
    ledger: list[LedgerRow]
    clock_hz: int
    allocated: int
    """Number of allocations of blocks."""
    released: int
    control: Mapping[str, Any] = field(default_factory=dict)
    """Cycles of firmware by reason; empty if the host schedules."""

    @property
    def end(self) -> int:
        """Cycle of the last token."""
        return self.ledger[-1].end if self.ledger else 0

    @cached_property
    def times(self) -> list[Times]:
        """Latencies of the served requests."""
        return [record.times(self.clock_hz) for record in self.served]

    @cached_property
    def steps_csv(self) -> bytes:
        """Line per step; `scheduled` is request:tokens@context, `swapped_out` and `swapped_in` request:tokens."""
        rows = (
            (index, row.start, row.end, " ".join([f"{id}:{tokens}@{context}" for id, tokens, context in row.scheduled]),
             " ".join(map(str, row.preempted)), " ".join(map(str, row.finished)), row.running, row.waiting, row.blocks,
             row.tokens, *_swaps(row), row.swap)
            for index, row in enumerate(self.ledger)
        )  # fmt: skip
        return csv_text(LEDGER, rows).encode()


def _swaps(row: LedgerRow) -> tuple[str, str]:
    text = " ".join(f"{request}:{tokens}" for request, tokens in row.swapped)
    return (text, "") if row.preempted else ("", text)


def serve(
    workload: Workload, config: SchedulerConfig, clock_hz: int, step_cycles: StepCycles,
    swap_cycles: SwapCycles = swap_in_no_time, progress: ProgressDisplay = hidden,
) -> Run:  # fmt: skip
    """Serve all requests; scheduling takes no time. `progress`: as in `Session`. BadInputError when no request can be
    served."""
    arrivals, scheduler = Arrivals(workload, clock_hz), Scheduler(config)
    served: dict[int, Served] = {}
    refused: dict[int, str] = {}
    ledger: list[LedgerRow] = []
    progress(arrivals.progress)
    now = 0
    while True:
        arrive(arrivals, scheduler, now, served, refused)
        step = scheduler.schedule()
        if not step.scheduled and not step.preempted:
            following = arrivals.next_cycle()
            if following is None:
                break
            now = following
            continue
        start, blocks, running, waiting = now, scheduler.pool.occupancy, len(scheduler.running), scheduler.waiting
        swap = sum(swap_cycles(tokens, bool(step.preempted)) for _, tokens in step.swapped)
        now += swap
        scheduled = ScheduledTokens([(entry.request.id, tokens, context) for entry, tokens, context in step.scheduled])
        if step.scheduled:  # otherwise the first request was preempted, and the next step schedules
            now += step_cycles(scheduled.chunks)
        for entry in step.admitted:
            record = served[entry.request.id]
            if record.first_scheduled < 0:
                record.first_scheduled = start
        generating, finished = scheduler.commit(step)
        for entry in generating:
            served[entry.request.id].tokens_at.append(now)
        for entry in finished:
            finish(served[entry.request.id], entry)
            arrivals.answered(entry.request.id, now)
        ledger.append(
            LedgerRow(
                start, now, scheduled, tuple(victim.request.id for victim in step.preempted),
                tuple(leaver.request.id for leaver in finished), running, waiting, blocks,
                tuple((swapped_entry.request.id, tokens) for swapped_entry, tokens in step.swapped), swap,
            )
        )  # fmt: skip
    if not served and refused:
        first = next(iter(refused))
        raise BadInputError(f"{workload.name}: no request can be served; request {first}: {refused[first]}")
    return Run([served[key] for key in sorted(served)], refused, ledger, clock_hz, scheduler.pool.allocated,
               scheduler.pool.released)  # fmt: skip


def arrive(
    arrivals: Arrivals, scheduler: Scheduler, now: int, served: dict[int, Served], refused: dict[int, str]
) -> None:
    """Add arrived requests to the scheduler, or refuse them; a refusal triggers the arrivals that wait for it."""
    while batch := arrivals.pop_until(now):
        for cycle, request in batch:
            why = scheduler.refusal(request)
            if why:
                refused[request.id] = why
                arrivals.answered(request.id, cycle)
            else:
                scheduler.add(request)
                served[request.id] = Served(request, cycle)


def finish(record: Served, entry: Entry) -> None:
    """Copy the scheduler's counts of a finished request to its record."""
    record.preemptions, record.recomputed, record.reused = entry.preemptions, entry.recomputed, entry.reused
    record.swaps, record.blocks_peak = entry.swaps, entry.peak
