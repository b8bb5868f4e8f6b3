"""firmware/apps/serve.c decides what the host's scheduler decides, on the same arrivals and step times."""

import random
from collections.abc import Sequence
from itertools import pairwise

import pytest

from pyv_npu.config import Config, load, with_values
from pyv_npu.errors import PyvNpuError, UsageError
from pyv_npu.serving import on_core
from pyv_npu.serving.on_core import serve_on_core
from pyv_npu.serving.requests import Request, Workload
from pyv_npu.serving.scheduler import SchedulerConfig
from pyv_npu.serving.server import serve


def step_cycles(chunks: Sequence[tuple[int, int]]) -> int:
    return 5_000 + sum(100 * tokens + context for tokens, context in chunks)


def swap_cycles(tokens: int, out: bool) -> int:
    return 300 + 10 * tokens + out


def workload(seed: int, count: int, gap: int) -> Workload:
    source, now, made = random.Random(seed), 0, []
    for index in range(count):
        now += source.randint(0, gap)
        after = index - 1 if index and source.random() < 0.2 else None
        made.append(Request(index, now, source.randint(1, 60), source.randint(1, 12), after=after, gap_ns=3_000))
    return Workload("random", "test", tuple(made))


def platform(mode: str) -> Config:
    return with_values(load().config, {"npu.mode": mode, "npu.queue.full_policy": "stall"})


TIGHT_MEMORY = SchedulerConfig(blocks=20, block_size=4, max_num_batched_tokens=32, max_num_seqs=6)


@pytest.mark.parametrize("mode", ["loose", "tight"])
@pytest.mark.parametrize(("gate", "swap"), [(True, 0), (False, 0), (True, 12), (False, 6)])
def test_ledgers_are_equal_when_all_arrive_at_once(mode: str, gate: bool, swap: int) -> None:
    """Then no decision depends on time: the ledger of the host's own run is that of the firmware."""
    requests = Workload("burst", "test", tuple(
        Request(one.id, 0, one.input_toks, one.output_toks) for one in workload(1, 40, 0).requests
    ))  # fmt: skip
    config = SchedulerConfig(20, 4, 32, 6, full_isl_gate=gate, swap_blocks=swap)
    ours = serve(requests, config, 1_000_000_000, step_cycles, swap_cycles)
    theirs = serve_on_core(requests, config, platform(mode), step_cycles, swap_cycles)
    decided = [(row.scheduled, row.preempted, row.finished, row.blocks, row.swapped) for row in theirs.ledger]
    assert decided == [(row.scheduled, row.preempted, row.finished, row.blocks, row.swapped) for row in ours.ledger]
    assert sum(one.preemptions for one in theirs.served) == sum(one.preemptions for one in ours.served) > 0
    assert [row.swap for row in theirs.ledger] == [row.swap for row in ours.ledger]
    swaps = [one.swaps for one in theirs.served]
    assert swaps == [one.swaps for one in ours.served] and (sum(swaps) > 0) == (swap > 0)
    assert [len(one.tokens_at) for one in theirs.served] == [len(one.tokens_at) for one in ours.served]
    assert theirs.end > ours.end
    assert (theirs.allocated, theirs.released) == (ours.allocated, ours.released)


@pytest.mark.parametrize("seed", range(3))
def test_ledgers_are_equal_when_they_arrive_one_by_one(seed: int) -> None:
    """`serve_on_core` lets the host's scheduler decide on what the firmware took before each step."""
    requests = workload(seed, 30, 40_000)
    run = serve_on_core(requests, TIGHT_MEMORY, platform(("loose", "tight")[seed % 2]), step_cycles)
    assert {one.request.id for one in run.served} | set(run.refused) == set(range(30))
    for one in run.served:
        assert len(one.tokens_at) == one.request.output_toks and one.first_scheduled >= one.arrival
        assert one.control > 0
    assert run.control["schedule"] > run.control["allocate"] > 0 and run.control["submit"] > 0
    between = others = 0
    for before, row in pairwise(run.ledger):
        if all(tokens == 1 for _, tokens, _ in row.scheduled):
            between += row.end - before.end
            others += row.start - before.end
    assert 0.5 * others < run.control["tpot_share"] * between <= others


def test_another_decision_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The host replays with a larger budget: the first step differs."""
    real = on_core.replay
    other = SchedulerConfig(blocks=20, block_size=4, max_num_batched_tokens=33, max_num_seqs=6)
    monkeypatch.setattr(on_core, "replay", lambda port, config: real(port, other))
    with pytest.raises(PyvNpuError, match=r"^step 0: the firmware decided "):
        serve_on_core(Workload("w", "test", (Request(0, 0, 60, 2),)), TIGHT_MEMORY, platform("tight"), step_cycles)


def test_what_the_firmware_does_not_do_is_refused() -> None:
    one = Workload("w", "test", (Request(0, 0, 6, 2),))
    with pytest.raises(UsageError, match=r"^--scheduler firmware: is first come, first served, without a prefix cache"):
        serve_on_core(one, SchedulerConfig(20, policy="priority"), platform("tight"), step_cycles)
    with pytest.raises(UsageError, match=r"^--max-num-seqs 2000: the firmware has room for 1024"):
        serve_on_core(one, SchedulerConfig(20, max_num_seqs=2000), platform("tight"), step_cycles)
