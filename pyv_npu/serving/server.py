"""Event loop of a server: requests, scheduler and steps, in core cycles."""

from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain
from typing import Any, NamedTuple

from pyv_npu.csv_table import csv_text
from pyv_npu.errors import BadInputError
from pyv_npu.serving.requests import Arrivals, Workload
from pyv_npu.serving.scheduler import Entry, Scheduler, SchedulerConfig, Step, Times
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


@dataclass
class Run:
    """Outcome of a workload."""

    served: list[Entry]
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


def ledger_row(scheduler: Scheduler, step: Step, start: int, end: int, swap: int) -> LedgerRow:
    """Return the row of a step that is not committed, without its finished requests."""
    return LedgerRow(
        start, end, ScheduledTokens((entry.request.id, tokens, context) for entry, tokens, context in step.scheduled),
        ids_of(step.preempted), (), len(scheduler.running), scheduler.waiting, scheduler.pool.occupancy,
        tuple((entry.request.id, tokens) for entry, tokens in step.swapped), swap,
    )  # fmt: skip


def ids_of(entries: Iterable[Entry]) -> tuple[int, ...]:
    return tuple(entry.request.id for entry in entries)


def serve(
    workload: Workload, config: SchedulerConfig, clock_hz: int, step_cycles: StepCycles,
    swap_cycles: SwapCycles = swap_in_no_time, progress: ProgressDisplay = hidden,
) -> Run:  # fmt: skip
    """Serve all requests; scheduling takes no time. `progress`: as in `Session`. BadInputError when no request can be
    served."""
    arrivals, scheduler = Arrivals(workload, clock_hz), Scheduler(config)
    served: dict[int, Entry] = {}
    refused: dict[int, str] = {}
    ledger: list[LedgerRow] = []
    progress(arrivals.progress)
    now = 0
    while True:
        while batch := arrivals.pop_until(now):
            for cycle, request in batch:
                if why := scheduler.refusal(request):
                    refused[request.id] = why
                    arrivals.answered(request.id, cycle)
                else:
                    served[request.id] = Entry(request, cycle)
                    scheduler.add(served[request.id])
        step = scheduler.schedule()
        if not step.scheduled and not step.preempted:
            following = arrivals.next_cycle()
            if following is None:
                break
            now = following
            continue
        swap = sum(swap_cycles(tokens, bool(step.preempted)) for _, tokens in step.swapped)
        row = ledger_row(scheduler, step, now, now + swap, swap)
        for entry in step.admitted:
            if entry.first_scheduled < 0:
                entry.first_scheduled = now
        now += swap
        if step.scheduled:  # otherwise the first request was preempted, and the next step schedules
            now += step_cycles(row.scheduled.chunks)
        generating, finished = scheduler.commit(step)
        for entry in generating:
            entry.tokens_at.append(now)
        for entry in finished:
            arrivals.answered(entry.request.id, now)
        ledger.append(row._replace(end=now, finished=ids_of(finished)))
    if not served:
        check_served(workload, refused)
    return Run([served[key] for key in sorted(served)], refused, ledger, clock_hz, scheduler.pool.allocated,
               scheduler.pool.released)  # fmt: skip


def check_served(workload: Workload, refused: Mapping[int, str]) -> None:
    """Raise BadInputError if all requests are refused."""
    if len(refused) == len(workload.requests):
        first = next(iter(refused))
        raise BadInputError(f"{workload.name}: no request can be served; request {first}: {refused[first]}")
