"""Requests to a server, with their arrival times."""

import heapq
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace

from pyv_npu.errors import BadInputError, UsageError

MOST_TOKENS = 1 << 24
"""Maximum of a request: prompt and new tokens."""
MOST_REQUESTS = 10_000_000
MOST_NS = 1 << 62
"""An arrival: 146 years."""


@dataclass(frozen=True, slots=True)
class Request:
    """A prompt, and how many tokens shall follow it."""

    id: int
    """Its index in the workload."""
    arrival_ns: int
    """With `after`: of its session, it is not looked at."""
    input_toks: int
    output_toks: int
    priority: int = 0
    """The smaller, the sooner."""
    session: str = ""
    after: int | None = None
    """The request that must have been answered before this request arrives."""
    gap_ns: int = 0
    """From that answer to the arrival."""
    tokens: tuple[int, ...] = ()
    """The prompt, where it is known: what a prefix cache compares."""
    units: tuple[int, ...] = ()
    """Names of the prompt's pieces of `unit_tokens` tokens, where those are known instead."""
    unit_tokens: int = 0
    answer: tuple[int, ...] = ()
    """The first tokens of the answer, where the prompt of the next turn has them."""

    @property
    def total(self) -> int:
        """Tokens of prompt and answer."""
        return self.input_toks + self.output_toks


@dataclass(frozen=True)
class Workload:
    """Requests in the order of their file, and what was read."""

    name: str
    form: str
    """Origin: a file's form, or the kind of synthetic arrivals."""
    requests: tuple[Request, ...]
    clients: int = 0
    """Not 0: a closed loop, in which so many requests are in the server at a time."""
    changed: int = 0
    """Requests that were cut to fit `--max-model-len`."""
    omitted: int = 0
    """Rows of the file that are failed calls."""

    def scaled(self, factor: float) -> "Workload":
        """Return the same requests, all times multiplied by `factor`."""
        requests = [
            replace(request, arrival_ns=int(request.arrival_ns * factor), gap_ns=int(request.gap_ns * factor))
            for request in self.requests
        ]
        return replace(self, requests=tuple(requests))

    @property
    def rate(self) -> float:
        """Requests per second that are offered. UsageError where they arrive together, or some wait for answers."""
        times = [request.arrival_ns for request in self.requests]
        spread = max(times, default=0) - min(times, default=0)
        if self.clients or not spread or any(request.after is not None for request in self.requests):
            raise UsageError(
                f"--workload {self.name}: has no rate, requests arrive together or after an answer; give poisson:RATE, "
                "or a file with times"
            )
        return (len(times) - 1) * 1e9 / spread

    def at_rate(self, rate: float) -> "Workload":
        """Return the same requests, their times scaled to so many per second. UsageError for a workload without a
        rate."""
        return self.scaled(self.rate / rate)


OVERLONG = ("refuse", "cut-prompt", "cut-both")
"""Rules for a request of more than `--max-model-len` tokens."""


def fitted(workload: Workload, longest: int, rule: str) -> Workload:
    """Requests of at most `longest` tokens: others are refused by the scheduler, lose the begin of their prompt, or
    lose of prompt and answer in proportion. BadInputError where nothing would be left of a prompt."""
    if rule == "refuse":
        return workload
    requests, changed = [], 0
    for request in workload.requests:
        if request.total <= longest:
            requests.append(request)
            continue
        changed += 1
        if rule == "cut-prompt":
            prompt, answer = longest - request.output_toks, request.output_toks
        else:
            prompt = max(1, request.input_toks * longest // request.total)
            answer = longest - prompt
        if prompt < 1 or answer < 1:
            raise BadInputError(
                f"request {request.id}: {request.input_toks} + {request.output_toks} tokens cannot be cut to "
                f"--max-model-len {longest} by --overlong {rule}: nothing is left; --overlong cut-both, or a larger "
                "length"
            )
        cut = request.input_toks - prompt
        requests.append(replace(request, input_toks=prompt, output_toks=answer, tokens=request.tokens[cut:], units=(),
                            answer=request.answer[:answer]))  # fmt: skip
    return replace(workload, requests=tuple(requests), changed=changed)


def cycles_of(ns: int, clock_hz: int) -> int:
    """Return the first cycle that is not before a time."""
    return -(-ns * clock_hz // 1_000_000_000)


def ns_of(cycles: int, clock_hz: int) -> int:
    """Nanoseconds of so many cycles, rounded down."""
    return cycles * 1_000_000_000 // clock_hz


class Arrivals:
    """Requests that have not arrived yet: at their time, behind an earlier request, or when a client is free."""

    def __init__(self, workload: Workload, clock_hz: int) -> None:
        self._clock, self._total, self._gone = clock_hz, len(workload.requests), 0
        self._waiting: dict[int, list[Request]] = {}
        self._idle: deque[Request] = deque()
        self._queue: list[tuple[int, int, Request]] = []
        ids = {request.id for request in workload.requests}
        for request in workload.requests:
            if request.after is not None and request.after in ids:
                self._waiting.setdefault(request.after, []).append(request)
            elif workload.clients:
                self._idle.append(request)
            else:
                self._push(cycles_of(request.arrival_ns, clock_hz), request)
        self._closed = workload.clients > 0
        for _ in range(min(workload.clients, len(self._idle))):
            self._push(0, self._idle.popleft())

    def progress(self) -> str:
        """Return the text of a display: requests that left the server."""
        return f"{self._gone:,} of {self._total:,} requests are answered"

    def _push(self, cycle: int, request: Request) -> None:
        heapq.heappush(self._queue, (cycle, request.id, request))

    def next_cycle(self) -> int | None:
        """Return the arrival of the next known request, in cycles; None without a request."""
        return self._queue[0][0] if self._queue else None

    def pop_until(self, now: int) -> list[tuple[int, Request]]:
        """(cycle, request) of those that have arrived, in order; each is given once."""
        arrivals = []
        while self._queue and self._queue[0][0] <= now:
            cycle, _, request = heapq.heappop(self._queue)
            arrivals.append((cycle, request))
        return arrivals

    def answered(self, request: int, now: int) -> None:
        """Let arrive what waited for a request, which left the server answered or refused."""
        self._gone += 1
        for follower in self._waiting.pop(request, ()):
            self._push(now + cycles_of(follower.gap_ns, self._clock), follower)
        if self._closed and self._idle:
            self._push(now, self._idle.popleft())


def checked(requests: Sequence[Request], source: str) -> tuple[Request, ...]:
    """BadInputError where there is nothing to serve."""
    if not requests:
        raise BadInputError(f"{source}: holds no request; give at least one")
    return tuple(requests)
