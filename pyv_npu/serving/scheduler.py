"""Scheduler: the tokens of each step, with the semantics of vLLM's scheduler, version 1.

A request has `num_tokens` (prompt and generated tokens), of which `computed` are in its caches. Each step advances
`computed` towards `num_tokens` under a budget of tokens; prompts and generated tokens are not distinguished. Running
requests come first, in the order of admission. Blocks are allocated on demand; without a free block the request that
was admitted last (or has the lowest priority) is preempted: it releases its blocks and computes them again later. A
step that preempts admits no request. Source: vllm/v1/core/sched/scheduler.py, 2025.
"""

import heapq
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from itertools import pairwise
from typing import NamedTuple

from pyv_npu.errors import UsageError
from pyv_npu.serving.blocks import BlockPool, Key
from pyv_npu.serving.requests import Request, ns_of

POLICIES = ("fcfs", "priority", "token-batch")
"""Order of requests: by arrival; by priority; by arrival, with separate steps for prompts and for generation
(docs/serving.md, "Token-level batches")."""


@dataclass(frozen=True)
class SchedulerConfig:
    """Limits and options of the scheduler, with vLLM's names and defaults if vLLM has them."""

    blocks: int
    """Number of blocks."""
    block_size: int = 16
    """Tokens per block."""
    max_num_batched_tokens: int = 2048
    """Budget of a step, tokens."""
    max_num_seqs: int = 256
    """Maximum number of running requests."""
    policy: str = "fcfs"
    chunked_prefill: bool = True
    """Off: a prompt that exceeds the remaining budget waits, and a prompt that exceeds the budget is refused."""
    full_isl_gate: bool = True
    """Admission of a request requires blocks for all its tokens, not only for the first chunk."""
    watermark: int = 0
    """Number of blocks that admission leaves free."""
    prefix_cache: bool = False
    swap_blocks: int = 0
    """Number of blocks of swap space for keys and values of preempted requests, which are else computed again."""
    max_model_len: int = 1 << 24
    """Maximum tokens of prompt and answer."""
    window: int = 0
    """Sliding window, tokens: blocks before it are released; 0: no window."""

    def __post_init__(self) -> None:
        bounds = (
            ("--blocks", self.blocks, 1, 1 << 28), ("--block-size", self.block_size, 1, 1 << 16),
            ("--max-num-batched-tokens", self.max_num_batched_tokens, 1, 1 << 20),
            ("--max-num-seqs", self.max_num_seqs, 1, 1 << 16), ("--watermark", self.watermark, 0, self.blocks - 1),
            ("--max-model-len", self.max_model_len, 2, 1 << 25), ("--swap-blocks", self.swap_blocks, 0, 1 << 28),
            ("window", self.window, 0, 1 << 25),
        )  # fmt: skip
        for name, value, low, high in bounds:
            if not low <= value <= high:
                raise UsageError(f"{name} {value}: must be {low}..{high}")
        if self.policy not in POLICIES:
            raise UsageError(f"--policy {self.policy}: must be one of {', '.join(POLICIES)}")
        if self.policy == "token-batch" and not self.full_isl_gate:
            raise UsageError(
                "--policy token-batch: a prompt has all engines until its end, so all of it must have room; drop "
                "--no-full-isl-gate"
            )
        if self.swap_blocks and self.prefix_cache:
            raise UsageError("--swap-blocks: a swapped request has no blocks that others share; drop --prefix-cache")


@dataclass(eq=False, slots=True)
class Entry:
    """Request in the server, with its progress; times in cycles."""

    request: Request
    arrival: int = 0
    """Cycle of the arrival."""
    order: int = 0
    """Index in the order of arrival."""
    num_tokens: int = 0
    computed: int = 0
    answered: int = 0
    """Number of generated tokens."""
    blocks: list[int] = field(default_factory=list)
    dropped: int = 0
    """Number of released blocks before these, outside the sliding window."""
    keys: tuple[Key, ...] = ()
    """Keys of the full blocks of prompt and answer."""
    preemptions: int = 0
    recomputed: int = 0
    """Number of tokens computed again after a preemption."""
    reused: int = 0
    """Number of tokens from the prefix cache."""
    peak: int = 0
    """High-water mark of blocks."""
    furthest: int = 0
    """High-water mark of `computed`."""
    swapped: int = 0
    """Number of swap blocks that hold its keys and values."""
    swaps: int = 0
    """Number of preemptions with a swap."""
    first_scheduled: int = -1
    """Cycle of the begin of its first step."""
    tokens_at: list[int] = field(default_factory=list)
    """Cycle of each token of the answer."""
    control: int = 0
    """Cycles of firmware in the request's steps."""

    def __post_init__(self) -> None:
        self.num_tokens = self.request.input_toks

    def times(self, clock_hz: int) -> "Times":
        """Return the latencies."""
        at = [ns_of(cycle, clock_hz) for cycle in self.tokens_at]
        arrival = ns_of(self.arrival, clock_hz)
        gaps = array("q", (following - previous for previous, following in pairwise(at)))
        tpot = (at[-1] - at[0]) // (len(at) - 1) if gaps else None
        return Times(at[0] - arrival, tpot, at[-1] - arrival, gaps)


class Times(NamedTuple):
    """Latencies of a request, in ns."""

    ttft: int
    tpot: int | None
    e2e: int
    itl: Sequence[int]


class Scheduled(NamedTuple):
    """Tokens of a request in a step."""

    entry: Entry
    tokens: int
    context: int
    """Tokens in the request's caches before the step."""


class Swap(NamedTuple):
    """Copy of a request's keys and values before a step."""

    entry: Entry
    tokens: int


class Step(NamedTuple):
    """Decision of the scheduler for a step."""

    scheduled: list[Scheduled]
    preempted: list[Entry]
    """Preempted requests, in order."""
    swapped: list[Swap]
    """Copies to swap space in a step that preempts, otherwise copies from it."""
    admitted: list[Entry]
    """Scheduled requests that did not run before."""

    @property
    def tokens(self) -> int:
        return sum(part.tokens for part in self.scheduled)


class Scheduler:
    """Scheduler of the requests in a server."""

    def __init__(self, config: SchedulerConfig) -> None:
        self.config = config
        self.pool = BlockPool(config.blocks, config.block_size)
        self._free_swap_blocks = config.swap_blocks
        self.running: list[Entry] = []
        self._waiting: list[tuple[tuple[int, int], Entry]] = []
        """Heap of waiting requests by urgency. A request that is preempted has arrived before them."""
        self._arrived = 0

    @property
    def waiting(self) -> int:
        """Number of waiting requests."""
        return len(self._waiting)

    def refusal(self, request: Request) -> str:
        """Return the reason why a request can never be served, and a remedy; empty if it can."""
        config, tokens = self.config, request.total - 1
        if request.total > config.max_model_len:
            return f"{request.total} tokens: --max-model-len is {config.max_model_len}; raise it"
        if self._needed(tokens) > config.blocks - config.watermark:
            return (
                f"{request.total} tokens need {self._needed(tokens)} blocks of {config.block_size}: there are "
                f"{config.blocks - config.watermark}; raise --blocks or npu.dram.size"
            )
        if not config.chunked_prefill and tokens > config.max_num_batched_tokens:
            return (
                f"{tokens} tokens at once: --max-num-batched-tokens is {config.max_num_batched_tokens}; raise it or "
                "drop --no-chunked-prefill"
            )
        return ""

    def _needed(self, tokens: int) -> int:
        """Return the maximum number of blocks that a request of `tokens` occupies at a time; with a sliding window,
        those of the window and of a chunk."""
        config, blocks = self.config, self.pool.needed(tokens)
        if not config.window:
            return blocks
        return min(blocks, self.pool.needed(config.window - 1 + config.max_num_batched_tokens) + 1)

    def add(self, entry: Entry) -> None:
        """Add a request that has arrived, without a `refusal`."""
        entry.order = self._arrived
        self._arrived += 1
        if self.config.prefix_cache:
            entry.keys = prefix_keys(entry.request, self.config.block_size)
        self._wait(entry)

    def _wait(self, entry: Entry) -> None:
        heapq.heappush(self._waiting, (self._urgency(entry), entry))

    def _urgency(self, entry: Entry) -> tuple[int, int]:
        """Return the sort key of a request; smaller keys run earlier."""
        return entry.request.priority if self.config.policy == "priority" else 0, entry.order

    # -- a step ------------------------------------------------------------------------------------------------

    def schedule(self) -> Step:
        """Choose the tokens of the next step and allocate their blocks. An empty step means that no request can run."""
        step, budget = Step([], [], [], []), self.config.max_num_batched_tokens
        if self.config.policy == "token-batch":
            self._batch(step, budget)
            return step
        budget = self._continue(step, budget)
        if not step.preempted:
            self._admit(step, budget)
        return step

    def _batch(self, step: Step, budget: int) -> None:
        """Fill a step with prompts, the last of which may be a chunk; if none fits, with a token of each running
        request."""
        prompt = next((entry for entry in self.running if entry.num_tokens - entry.computed > 1), None)
        if prompt is not None:  # admission has ensured blocks for all its tokens
            tokens = min(prompt.num_tokens - prompt.computed, budget)
            self._grow(prompt, tokens)
            step.scheduled.append(Scheduled(prompt, tokens, prompt.computed))
            budget -= tokens
        self._admit(step, budget)
        if not step.scheduled:
            self._continue(step, budget)

    def _continue(self, step: Step, budget: int) -> int:
        """Schedule running requests; return the remaining budget."""
        running, index = self.running, 0
        size, window = self.pool.size, self.config.window
        while index < len(running) and budget > 0:
            entry = running[index]
            tokens = min(entry.num_tokens - entry.computed, budget)
            token_capacity = (entry.dropped + len(entry.blocks)) * size
            if (window or entry.computed + tokens > token_capacity) and not self._grow(entry, tokens):
                victim = max(running, key=self._urgency)
                if victim in running[:index]:
                    index -= 1
                    at = next(at for at, part in enumerate(step.scheduled) if part.entry is victim)
                    budget += step.scheduled.pop(at).tokens
                running.remove(victim)
                self._preempt(victim, step)
                if victim is entry:
                    break
                continue
            step.scheduled.append(Scheduled(entry, tokens, entry.computed))
            budget -= tokens
            index += 1
        return budget

    def _preempt(self, entry: Entry, step: Step) -> None:
        self._slide(entry)
        self.pool.release(entry.blocks)
        entry.blocks = []
        entry.preemptions += 1
        blocks = self.pool.needed(entry.computed) - entry.dropped
        if 0 < blocks <= self._free_swap_blocks:
            self._free_swap_blocks -= blocks
            entry.swapped = blocks
            entry.swaps += 1
            step.swapped.append(Swap(entry, entry.computed - entry.dropped * self.pool.size))
        else:
            entry.computed = entry.dropped = 0
        step.preempted.append(entry)
        self._wait(entry)

    def _admit(self, step: Step, budget: int) -> None:
        """Admit waiting requests in order, until a request does not fit."""
        config, pool = self.config, self.pool
        while budget > 0 and len(self.running) < config.max_num_seqs and self.waiting:
            entry = self._waiting[0][1]
            shared = pool.cached_prefix(entry.keys[: (entry.num_tokens - 1) // pool.size]) if entry.keys else []
            context = entry.computed if entry.swapped else len(shared) * pool.size
            token_count = entry.num_tokens - context
            if token_count > budget and not config.chunked_prefill:
                break
            tokens = min(token_count, budget)
            free_blocks = pool.free - pool.idle(shared)
            demand = self._needed(entry.num_tokens if config.full_isl_gate else context + tokens) - len(shared)
            if demand + config.watermark > free_blocks:
                break
            heapq.heappop(self._waiting)
            pool.share(shared)
            entry.blocks = shared
            entry.computed = context
            entry.reused += context if not entry.preemptions else 0
            self._grow(entry, tokens)
            if entry.swapped:
                self._free_swap_blocks += entry.swapped
                entry.swapped = 0
                step.swapped.append(Swap(entry, context - entry.dropped * pool.size))
            self.running.append(entry)
            step.admitted.append(entry)
            step.scheduled.append(Scheduled(entry, tokens, context))
            budget -= tokens

    def _grow(self, entry: Entry, tokens: int) -> bool:
        """Allocate blocks for `tokens` more tokens; return False if too few are free."""
        self._slide(entry)
        pool, blocks = self.pool, len(entry.blocks)
        block_count = -(-(entry.computed + tokens) // pool.size) - entry.dropped - blocks
        if block_count > 0:
            if block_count > pool.free:
                return False
            entry.blocks += pool.take(block_count)
            entry.peak = max(entry.peak, blocks + block_count)
        return True

    def _slide(self, entry: Entry) -> None:
        """Release the blocks before the window of the next token."""
        window = self.config.window
        if not window:
            return
        expired = (entry.computed - window + 1) // self.pool.size
        if expired > entry.dropped:
            count = min(expired - entry.dropped, len(entry.blocks))
            self.pool.release(entry.blocks[:count])
            del entry.blocks[:count]
            entry.dropped = expired

    def commit(self, step: Step) -> tuple[list[Entry], list[Entry]]:
        """End a step. Return (entries with a new token, entries of these whose answer is complete)."""
        generating, finished = [], []
        size = self.pool.size
        for entry, tokens, context in step.scheduled:
            computed = context + tokens
            entry.recomputed += max(0, min(entry.furthest, computed) - context)
            entry.furthest = max(entry.furthest, computed)
            entry.computed = computed
            if entry.keys:
                for index in range(context // size, min(computed // size, len(entry.keys))):
                    self.pool.name(entry.blocks[index - entry.dropped], entry.keys[index])
            if computed == entry.num_tokens:
                entry.num_tokens += 1
                entry.answered += 1
                generating.append(entry)
                if entry.answered == entry.request.output_toks:
                    finished.append(entry)
        if finished:
            done_ids = set(map(id, finished))
            self.running = [candidate for candidate in self.running if id(candidate) not in done_ids]
            for entry in finished:
                self.pool.release(entry.blocks)
                entry.blocks = []
        return generating, finished


def prefix_keys(request: Request, size: int) -> tuple[Key, ...]:
    """Return the keys of the full blocks of prompt and answer: SHA-256 over the content from the begin of the prompt
    to the end of each block. Unknown tokens of an answer differ from those of all other requests. Empty if the prompt
    is unknown."""
    by_name = bool(request.units) and request.unit_tokens % size == 0
    if not request.tokens and not by_name:
        return ()
    key, keys = b"", list[Key]()
    tokens = request.tokens + request.answer
    for at in range((request.total - 1) // size):
        begin, end = at * size, (at + 1) * size
        if end <= len(tokens):
            content = str(tokens[begin:end])
        elif not request.tokens and end <= request.input_toks:
            content = f"{request.units[begin // request.unit_tokens]} {begin % request.unit_tokens}"
        else:
            content = f"answer of {request.id} {tokens[begin:]}"
        key = sha256(key + content.encode()).digest()
        keys.append(key)
    return tuple(keys)
