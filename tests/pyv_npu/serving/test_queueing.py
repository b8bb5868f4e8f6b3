"""With batching off a server is a queue with one desk, whose waiting time has been known since 1930."""

import math
import random
from collections.abc import Callable, Sequence

from pyv_npu.serving.requests import Request, Workload
from pyv_npu.serving.scheduler import SchedulerConfig
from pyv_npu.serving.server import Run, serve
from pyv_npu.serving.synthetic import Drawn, draw

HZ = 1_000_000_000
SERVICE = 1_000_000
"""ns of a step of M/D/1."""
ONE_AT_A_TIME = SchedulerConfig(blocks=1000, max_num_seqs=1)


def waited(run: Run) -> float:
    """Mean ns from arrival to the first step."""
    return sum(one.first_scheduled - one.arrival for one in run.served) / len(run.served)


def test_m_d_1() -> None:
    """Pollaczek and Khinchine: rho D / 2 (1 - rho)."""
    for rho, seed in ((0.3, 1), (0.6, 2)):
        workload = draw(Drawn(f"poisson:{rho * 1e9 / SERVICE}", 20_000, "16", "1", seed, 1 << 20))
        run = serve(workload, ONE_AT_A_TIME, HZ, lambda chunks: SERVICE)
        expected = rho * SERVICE / (2 * (1 - rho))
        assert math.isclose(waited(run), expected, rel_tol=0.06)


def test_m_g_1() -> None:
    """The same with two sizes of work: lambda E[S^2] / 2 (1 - rho)."""
    source = random.Random(3)
    rate, now, requests = 0.25 / SERVICE, 0.0, []
    for index in range(20_000):
        now += source.expovariate(rate)
        requests.append(Request(index, int(now), source.choice([10, 40]), 1))
    run = serve(
        Workload("test", "test", tuple(requests)), ONE_AT_A_TIME, HZ,
        lambda chunks: sum(tokens for tokens, _ in chunks) * SERVICE // 10,
    )  # fmt: skip
    mean, square = 2.5 * SERVICE, (1 + 16) / 2 * SERVICE**2
    assert math.isclose(waited(run), rate * square / (2 * (1 - rate * mean)), rel_tol=0.06)


def test_a_closed_loop_keeps_its_clients_busy() -> None:
    """Little's law: clients are throughput times response."""
    workload = draw(Drawn("closed:4", 400, "16", "3", 0, 1 << 20))
    run = serve(workload, SchedulerConfig(blocks=1000, max_num_seqs=2), HZ, lambda chunks: SERVICE)
    assert {row.running + row.waiting for row in run.ledger[:-10]} == {4}
    response = sum(one.tokens_at[-1] - one.arrival for one in run.served) / 400
    assert math.isclose(400 / run.end * response, 4, rel_tol=0.02)


def test_progress_counts_requests_that_left_the_server() -> None:
    workload, states, texts = draw(Drawn("closed:1", 3, "16", "2", 0, 1 << 20)), list[Callable[[], str]](), list[str]()

    def cycles(chunks: Sequence[tuple[int, int]]) -> int:
        texts.append(states[0]())
        return SERVICE

    serve(workload, ONE_AT_A_TIME, HZ, cycles, progress=states.append)
    assert texts == [f"{count // 2} of 3 requests are answered" for count in range(6)]
    assert [state() for state in states] == ["3 of 3 requests are answered"]


def test_calls_of_a_session_follow_each_other() -> None:
    calls = (Request(0, 500, 4, 2, session="a"), Request(1, 500, 4, 1, session="a", after=0, gap_ns=300))
    run = serve(Workload("test", "test", calls), ONE_AT_A_TIME, HZ, lambda chunks: 100)
    first, second = run.served
    assert (first.arrival, first.tokens_at) == (500, [600, 700])
    assert (second.arrival, second.tokens_at) == (1000, [1100])
