"""Requests to a server, with their arrival times."""

import heapq
from collections import deque
from dataclasses import dataclass, replace

from pyv_npu.errors import BadInputError, UsageError

MOST_TOKENS = 1 << 24
"""Maximum number of tokens in a prompt, and in an answer."""
MOST_REQUESTS = 10_000_000
MOST_NS = 1 << 62
"""Maximum arrival time, ns: 146 years."""


@dataclass(frozen=True, slots=True)
class Request:
    """Prompt and number of tokens to generate."""

    id: int
    """Index in the workload."""
    arrival_ns: int
    """Arrival time; with `after`, that of the session, which is unused."""
    input_toks: int
    output_toks: int
    priority: int = 0
    """Priority; smaller values run earlier."""
    session: str = ""
    after: int | None = None
    """Request whose answer must precede the arrival of this request."""
    gap_ns: int = 0
    """Time from that answer to the arrival."""
    tokens: tuple[int, ...] = ()
    """Prompt, if known: the prefix cache compares it."""
    units: tuple[int, ...] = ()
    """Hashes of the prompt's pieces of `unit_tokens` tokens, if known instead of the tokens."""
    unit_tokens: int = 0
    answer: tuple[int, ...] = ()
    """First tokens of the answer, if known, for example from the prompt of the next turn."""

    @property
    def total(self) -> int:
        """Tokens of prompt and answer."""
        return self.input_toks + self.output_toks


@dataclass(frozen=True)
class Workload:
    """Requests in the order of their file, with their origin."""

    name: str
    form: str
    """File format, or name of the synthetic arrivals."""
    requests: tuple[Request, ...]
    clients: int = 0
    """Number of clients of a closed loop, each with one request at a time; 0: open loop."""
    changed: int = 0
    """Number of requests cut to fit `--max-model-len`."""
    omitted: int = 0
    """Number of failed calls in the file."""

    def scaled(self, factor: float) -> "Workload":
        """Return the requests with all times multiplied by `factor`."""
        requests = [
            replace(request, arrival_ns=int(request.arrival_ns * factor), gap_ns=int(request.gap_ns * factor))
            for request in self.requests
        ]
        return replace(self, requests=tuple(requests))

    @property
    def rate(self) -> float:
        """Offered requests per second. UsageError when all arrive together, or some wait for answers."""
        times = [request.arrival_ns for request in self.requests]
        spread = max(times, default=0) - min(times, default=0)
        if self.clients or not spread or any(request.after is not None for request in self.requests):
            raise UsageError(
                f"--workload {self.name}: has no rate, requests arrive together or after an answer; give poisson:RATE, "
                "or a file with times"
            )
        return (len(times) - 1) * 1e9 / spread

    def at_rate(self, rate: float) -> "Workload":
        """Return the requests with times scaled to `rate` per second. UsageError for a workload without a rate."""
        return self.scaled(self.rate / rate)


OVERLONG = ("refuse", "cut-prompt", "cut-both")
"""Rules for a request of more than `--max-model-len` tokens."""


def fitted(workload: Workload, longest: int, rule: str) -> Workload:
    """Cut requests of more than `longest` tokens by a rule of OVERLONG: the scheduler refuses them, the begin of the
    prompt is cut, or prompt and answer are cut in proportion. BadInputError when no token would remain."""
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
    """Convert ns to cycles, rounded up."""
    return -(-ns * clock_hz // 1_000_000_000)


def ns_of(cycles: int, clock_hz: int) -> int:
    """Convert cycles to ns, rounded down."""
    return cycles * 1_000_000_000 // clock_hz


class Arrivals:
    """Queue of future arrivals: at a time, after an earlier request's answer, or when a client is free."""

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
        """Return a progress message: the requests that have left the server."""
        return f"{self._gone:,} of {self._total:,} requests are answered"

    def _push(self, cycle: int, request: Request) -> None:
        heapq.heappush(self._queue, (cycle, request.id, request))

    def next_cycle(self) -> int | None:
        """Return the arrival of the next known request, in cycles; None without a request."""
        return self._queue[0][0] if self._queue else None

    def pop_until(self, now: int) -> list[tuple[int, Request]]:
        """Remove and return the requests that have arrived, in order, as (cycle, request)."""
        arrivals = []
        while self._queue and self._queue[0][0] <= now:
            cycle, _, request = heapq.heappop(self._queue)
            arrivals.append((cycle, request))
        return arrivals

    def answered(self, request: int, now: int) -> None:
        """Schedule the arrivals that wait for a request, which has left the server answered or refused."""
        self._gone += 1
        for follower in self._waiting.pop(request, ()):
            self._push(now + cycles_of(follower.gap_ns, self._clock), follower)
        if self._closed and self._idle:
            self._push(now, self._idle.popleft())
