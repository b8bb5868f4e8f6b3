"""Each rule of the scheduler as a schedule of at most ten steps, worked out by hand from vLLM's text.

A row of a schedule: what each request brings (request: tokens@context), who is preempted, who is answered, what is
copied to swap space or back (request: tokens). Blocks hold four tokens.
"""

import tracemalloc
from array import array
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyv_npu.errors import BadInputError, UsageError
from pyv_npu.serving.blocks import BlockPool
from pyv_npu.serving.requests import Request, Workload
from pyv_npu.serving.scheduler import Entry, SchedulerConfig, prefix_keys
from pyv_npu.serving.server import Run, serve

GHZ = 1_000_000_000
STEP = 100
"""Cycles, and ns, of a step."""


@dataclass
class Case:
    """A schedule."""

    rule: str
    requests: list[tuple[int, ...]]
    """(prompt, answer, step before which it arrives, priority)"""
    steps: list[str]
    config: dict[str, object] = field(default_factory=dict)
    tokens: list[list[int]] = field(default_factory=list)


CASES = [
    Case("a prompt comes in chunks of the budget", [(10, 2), (5, 1)],
         ["0:8@0", "0:2@8 1:5@0 | | 1", "0:1@10 | | 0"], {"max_num_batched_tokens": 8}),
    Case("the rest of the budget is a chunk", [(6, 2), (6, 1)],
         ["0:6@0 1:2@0", "0:1@6 1:4@2 | | 0 1"], {"max_num_batched_tokens": 8}),
    Case("those that run are first", [(2, 3), (20, 1, 1)],
         ["0:2@0", "0:1@2 1:7@0", "0:1@3 1:7@7 | | 0", "1:6@14 | | 1"], {"max_num_batched_tokens": 8}),
    Case("the last one admitted gives way, and goes first later", [(7, 4), (7, 4)],
         ["0:7@0 1:7@0", "0:1@7 1:1@7", "0:1@8 | 1", "0:1@9 | | 0", "1:9@0", "1:1@9 | | 1"], {"blocks": 4}),
    Case("what was computed waits in swap space", [(7, 4), (7, 4)],
         ["0:7@0 1:7@0", "0:1@7 1:1@7", "0:1@8 | 1 | | 1:8", "0:1@9 | | 0", "1:1@8 | | | 1:8", "1:1@9 | | 1"],
         {"blocks": 4, "swap_blocks": 2}),
    Case("without room in swap space it is computed again", [(7, 4), (7, 4)],
         ["0:7@0 1:7@0", "0:1@7 1:1@7", "0:1@8 | 1", "0:1@9 | | 0", "1:9@0", "1:1@9 | | 1"],
         {"blocks": 4, "swap_blocks": 1}),
    Case("blocks of swap space are free when their request runs", [(7, 6), (7, 6), (3, 2, 6)],
         ["0:7@0 1:7@0", "0:1@7 1:1@7", "0:1@8 | 1 | | 1:8", "0:1@9", "0:1@10", "0:1@11 | | 0",
          "1:1@8 2:3@0 | | | 1:8", "1:1@9 2:1@3 | | 2", "1:1@10", "1:1@11 | | 1"],
         {"blocks": 4, "swap_blocks": 2}),
    Case("a step that preempted admits no request", [(7, 4), (7, 4), (1, 1, 2)],
         ["0:7@0 1:7@0", "0:1@7 1:1@7", "0:1@8 | 1", "0:1@9 | | 0", "1:9@0 2:1@0 | | 2", "1:1@9 | | 1"], {"blocks": 4}),
    Case("the head of the line holds up the others", [(8, 3), (8, 1), (1, 1)],
         ["0:8@0", "0:1@8", "0:1@9 | | 0", "1:8@0 2:1@0 | | 1 2"], {"blocks": 3}),
    Case("all of a prompt must have room", [(4, 2), (12, 1)],
         ["0:4@0", "0:1@4 | | 0", "1:4@0", "1:4@4", "1:4@8 | | 1"], {"blocks": 3, "max_num_batched_tokens": 4}),
    Case("without the gate its first chunk must", [(4, 2), (12, 1)],
         ["0:4@0", "0:1@4 1:3@0 | | 0", "1:4@3", "1:4@7", "1:1@11 | | 1"],
         {"blocks": 3, "max_num_batched_tokens": 4, "full_isl_gate": False}),
    Case("so many requests run", [(4, 2), (4, 1)], ["0:4@0", "0:1@4 | | 0", "1:4@0 | | 1"], {"max_num_seqs": 1}),
    Case("admission leaves blocks free", [(5, 2), (4, 1)],
         ["0:5@0", "0:1@5 | | 0", "1:4@0 | | 1"], {"blocks": 4, "watermark": 2}),
    Case("without chunks a prompt waits for its budget", [(5, 1), (5, 1)],
         ["0:5@0 | | 0", "1:5@0 | | 1"], {"max_num_batched_tokens": 8, "chunked_prefill": False}),
    Case("priority: the smaller number first", [(4, 1, 0, 7), (4, 1, 0, 3)],
         ["1:4@0 | | 1", "0:4@0 | | 0"], {"policy": "priority", "max_num_seqs": 1}),
    Case("priority: the largest number gives way", [(7, 4, 0, 1), (7, 4, 0, 0)],
         ["1:7@0 0:7@0", "1:1@7 0:1@7", "1:1@8 | 0", "1:1@9 | | 1", "0:9@0", "0:1@9 | | 0"],
         {"policy": "priority", "blocks": 4}),
    Case("a block that is found and free is no room for others", [(5, 1), (2, 3, 1), (13, 1, 2)],
         ["0:5@0 | | 0", "1:2@0", "1:1@2", "1:1@3 | | 1", "2:9@4 | | 2"],
         {"blocks": 4, "prefix_cache": True}, [[1, 2, 3, 4, 5], [7, 8], [1, 2, 3, 4, *range(10, 19)]]),
    Case("priority: one that gives way itself ends the step", [(7, 4, 0, 5), (7, 3, 1, 0)],
         ["0:7@0", "0:1@7 1:7@0", " | 0", "1:1@7", "1:1@8 | | 1", "0:9@0", "0:1@9 | | 0"],
         {"policy": "priority", "blocks": 4}),
    Case("token-batch: prompts have steps of their own, then all that run have a token", [(6, 3), (3, 2, 1), (2, 1, 3)],
         ["0:4@0", "0:2@4 1:2@0", "0:1@6 1:1@2", "2:2@0 | | 2", "0:1@7 1:1@3 | | 0 1"],
         {"policy": "token-batch", "max_num_batched_tokens": 4}),
    Case("token-batch: generation goes on where the next prompt has no room", [(7, 3), (9, 1)],
         ["0:7@0", "0:1@7", "0:1@8 | | 0", "1:9@0 | | 1"], {"policy": "token-batch", "blocks": 4}),
    Case("token-batch: what comes back from swap space has a step of its own", [(7, 4), (7, 4)],
         ["0:7@0 1:7@0", "0:1@7 1:1@7", "0:1@8 | 1 | | 1:8", "0:1@9 | | 0", "1:1@8 | | | 1:8", "1:1@9 | | 1"],
         {"policy": "token-batch", "blocks": 4, "swap_blocks": 2}),
    Case("full blocks of a prompt are found again, but never its last token", [(9, 1), (9, 1, 1), (8, 1, 2)],
         ["0:9@0 | | 0", "1:1@8 | | 1", "2:4@4 | | 2"], {"prefix_cache": True},
         [list(range(9)), list(range(9)), list(range(8))]),
    Case("a block with other tokens before it is another one", [(9, 1), (9, 1, 1)],
         ["0:9@0 | | 0", "1:9@0 | | 1"], {"prefix_cache": True}, [list(range(9)), [7, *range(1, 9)]]),
    Case("vLLM's budget of a step", [(2049, 1)], ["0:2048@0", "0:1@2048 | | 0"],
         {"max_num_batched_tokens": SchedulerConfig(1).max_num_batched_tokens, "blocks": 600}),
    Case("blocks behind a sliding window are given back", [(20, 2)],
         ["0:8@0", "0:8@8", "0:4@16", "0:1@20 | | 0"], {"blocks": 5, "window": 6, "max_num_batched_tokens": 8}),
    Case("of a sliding window what its next token attends to waits in swap space", [(7, 6), (7, 6)],
         ["0:7@0", "0:1@7 1:7@0", "0:1@8 | 1 | | 1:3", "0:1@9", "0:1@10", "0:1@11 1:1@7 | | 0 | 1:3",
          *(f"1:1@{at}" for at in range(8, 11)), "1:1@11 | | 1"],
         {"blocks": 3, "window": 4, "swap_blocks": 4, "max_num_batched_tokens": 8}),
    Case("its own blocks after a preemption, generated tokens included", [(7, 7), (7, 7)],
         ["0:7@0 1:7@0", *(f"0:1@{at} 1:1@{at}" for at in range(7, 12)), "0:1@12 | 1 | 0", "1:5@8 | | 1"],
         {"prefix_cache": True, "blocks": 6}, [list(range(7)), list(range(50, 57))]),
    Case("blocks that are needed lose what they held", [(8, 1), (16, 1, 1), (9, 1, 2)],
         ["0:8@0 | | 0", "1:16@0 | | 1", "2:9@0 | | 2"], {"prefix_cache": True, "blocks": 4},
         [list(range(8)), list(range(50, 66)), list(range(9))]),
]  # fmt: skip


def run_of(requests: list[Request], **config: object) -> Run:
    limits = {"blocks": 100, "block_size": 4, **config}
    return serve(Workload("test", "test", tuple(requests)), SchedulerConfig(**limits), GHZ, lambda chunks: STEP)  # type: ignore[arg-type]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.rule)
def test_a_schedule_is_that_of_the_table(case: Case) -> None:
    requests = []
    for index, (prompt, answer, *more) in enumerate(case.requests):
        step, priority = (*more, 0, 0)[:2] if len(more) < 2 else more
        tokens = tuple(case.tokens[index]) if case.tokens else ()
        requests.append(Request(index, step * STEP, prompt, answer, priority, tokens=tokens))
    run = run_of(requests, **case.config)
    shown = []
    for row in run.ledger:
        chosen = " ".join(f"{request}:{tokens}@{context}" for request, tokens, context in row.scheduled)
        swapped = " ".join(f"{request}:{tokens}" for request, tokens in row.swapped)
        parts = [chosen, " ".join(map(str, row.preempted)), " ".join(map(str, row.finished)), swapped]
        shown.append([part.split() for part in parts])
    wanted = [[part.split() for part in (*row.split("|"), "", "", "")[:4]] for row in case.steps]
    assert shown == wanted
    assert run.allocated == run.released
    assert 2 * sum(request.swaps for request in run.served) == sum(len(row.swapped) for row in run.ledger)


def test_blocks_that_were_never_given_out_take_no_memory() -> None:
    """A small model on a large memory has a quarter of a billion of them."""
    tracemalloc.start()
    pool = BlockPool(1 << 22, 16)
    assert (pool.take(2), pool.free) == ([0, 1], (1 << 22) - 2)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1 << 16
    pool = BlockPool(3, 16)
    pool.release(pool.take(2))
    assert pool.free == 3 and pool.take(3) == [2, 1, 0] and pool.occupancy == 3


def test_a_shared_block_is_free_when_its_last_user_gives_it_back() -> None:
    pool = BlockPool(3, 16)
    blocks = pool.take(2)
    pool.share(blocks[:1])
    assert (pool.free, pool.idle(blocks)) == (1, 0)
    pool.release(blocks)
    assert (pool.free, pool.idle(blocks)) == (2, 1)
    pool.release(blocks[:1])
    assert (pool.free, pool.idle(blocks), pool.allocated, pool.released) == (3, 2, 3, 3)


def test_latencies_are_those_of_the_moments_of_tokens() -> None:
    """Time per output token is the mean of the gaps, rounded down."""
    served = Entry(Request(0, 0, 4, 4), arrival=10, tokens_at=[100, 120, 160, 181])
    assert served.times(GHZ) == (90, 27, 171, array("q", [20, 40, 21]))
    served.tokens_at = [100]
    assert served.times(GHZ) == (90, None, 90, array("q"))


def test_a_request_that_can_never_fit_is_refused_by_name() -> None:
    run = run_of([Request(0, 0, 12, 6), Request(1, 0, 12, 5)], blocks=4)
    assert run.refused == {0: "18 tokens need 5 blocks of 4: there are 4; raise --blocks or npu.dram.size"}
    assert [one.request.id for one in run.served] == [1]
    run = run_of([Request(0, 0, 12, 6), Request(1, 0, 12, 5)], blocks=5, watermark=1)
    assert run.refused == {0: "18 tokens need 5 blocks of 4: there are 4; raise --blocks or npu.dram.size"}
    run = run_of([Request(0, 0, 5, 5), Request(1, 0, 5, 4)], chunked_prefill=False, max_num_batched_tokens=8)
    assert run.refused == {0: "9 tokens at once: --max-num-batched-tokens is 8; raise it or drop --no-chunked-prefill"}


def test_prompts_of_equal_pieces_share_all_full_blocks() -> None:
    """The block of the answer is that of each request."""
    first, second = (Request(index, 0, 8, 6, units=(5, 6), unit_tokens=4) for index in range(2))
    keys, other = prefix_keys(first, 4), prefix_keys(second, 4)
    assert len(keys) == 3 and keys[:2] == other[:2] and keys[2] != other[2]
    assert len(prefix_keys(replace(first, output_toks=4), 4)) == 2, "nobody computes the last token of an answer"


def test_a_workload_of_which_nothing_fits_is_an_error() -> None:
    with pytest.raises(
        BadInputError, match=r"^test: no request can be served; request 0: 18 tokens need 5 blocks of 4"
    ):
        run_of([Request(0, 0, 12, 6)], blocks=4)


def test_recomputed_tokens_are_counted() -> None:
    run = run_of([Request(0, 0, 7, 4), Request(1, 0, 7, 4)], blocks=4)
    assert [(one.preemptions, one.recomputed, one.first_scheduled) for one in run.served] == [(0, 0, 0), (1, 8, 0)]


lengths = st.tuples(st.integers(1, 40), st.integers(1, 12), st.integers(0, 30), st.integers(0, 2))


@given(
    st.lists(lengths, min_size=1, max_size=12), st.integers(2, 20), st.integers(1, 24), st.integers(1, 5),
    st.sampled_from(["fcfs", "priority", "token-batch"]), st.booleans(), st.booleans(),
    st.sampled_from([0, 1, 3, 50]), st.sampled_from([0, 0, 3, 9]), st.data(),
)  # fmt: skip
def test_nothing_is_lost(
    rows: list[tuple[int, int, int, int]], blocks: int, budget: int, most: int, policy: str, gate: bool, cache: bool,
    swap: int, window: int, data: st.DataObject,
) -> None:  # fmt: skip
    """Tokens in are tokens out, computed again or refused; blocks never exceed the pool, and all come back."""
    requests = []
    for index, (prompt, answer, at, priority) in enumerate(rows):
        tokens = tuple(data.draw(st.sampled_from([0, 1])) for _ in range(prompt)) if cache else ()
        requests.append(Request(index, at * STEP, prompt, answer, priority, tokens=tokens))
    config = {
        "blocks": blocks, "max_num_batched_tokens": budget, "max_num_seqs": most, "policy": policy,
        "full_isl_gate": gate or policy == "token-batch", "prefix_cache": cache, "window": window,
        "swap_blocks": 0 if cache else swap,
    }  # fmt: skip
    most_blocks = -(-(window - 1 + budget) // 4) + 1 if window else 1000
    fit = [one for one in requests if min(-(-(one.total - 1) // 4), most_blocks) <= blocks]
    if not fit:
        with pytest.raises(BadInputError):
            run_of(requests, **config)
        return
    run = run_of(requests, **config)
    assert [one.request for one in run.served] == fit
    assert len(run.refused) == len(requests) - len(fit)
    assert run.allocated == run.released
    totals: dict[int, int] = {}
    kept: dict[int, int] = {}
    for row in run.ledger:
        for request, tokens in row.swapped:  # what comes back is what went
            if row.preempted:
                kept[request] = tokens
            else:
                assert kept.pop(request) == tokens
        assert sum(-(-tokens // 4) for tokens in kept.values()) <= config["swap_blocks"]
        assert row.tokens <= budget and row.running <= most and row.blocks <= blocks
        for request, count, _ in row.scheduled:
            totals[request] = totals.get(request, 0) + count
    assert not kept
    for one in run.served:
        if swap == 50 and not cache:  # room for all
            assert (one.recomputed, one.swaps) == (0, one.preemptions)
        assert len(one.tokens_at) == one.request.output_toks
        assert one.tokens_at == sorted(one.tokens_at) and one.tokens_at[0] > one.arrival
        if not cache:
            assert totals[one.request.id] == one.request.total - 1 + one.recomputed


@pytest.mark.parametrize(
    ("name", "low", "high"),
    [
        ("blocks", 1, 1 << 28), ("block_size", 1, 1 << 16), ("max_num_batched_tokens", 1, 1 << 20),
        ("max_num_seqs", 1, 1 << 16), ("max_model_len", 2, 1 << 25), ("swap_blocks", 0, 1 << 28), ("watermark", 0, 99),
    ],
)  # fmt: skip
def test_a_limit_has_its_bounds(name: str, low: int, high: int) -> None:
    limits = {"blocks": 100, "block_size": 4}
    for value in (low, high):
        assert getattr(SchedulerConfig(**limits | {name: value}), name) == value
    for value in (low - 1, high + 1):
        with pytest.raises(UsageError, match=f"{value}: must be {low}"):
            SchedulerConfig(**limits | {name: value})


def test_a_sliding_window_bounds_the_blocks_of_a_request() -> None:
    """Mistral at 8,192 tokens: 385 blocks of 16, of the window and a step, instead of 512."""
    config = SchedulerConfig(blocks=385, window=4096)
    run = serve(Workload("test", "test", (Request(0, 0, 8191, 2),)), config, GHZ, lambda chunks: STEP)
    assert run.served[0].request.id == 0 and max(row.blocks for row in run.ledger) <= 385
    with pytest.raises(BadInputError, match="8193 tokens need 385 blocks of 16: there are 384"):
        serve(
            Workload("test", "test", (Request(0, 0, 8191, 2),)), replace(config, blocks=384), GHZ, lambda chunks: STEP
        )
