"""Pages of encoded keys and values: tables against a plain account, exhaustion, translation, snapshots."""

import tracemalloc
from dataclasses import replace
from math import ceil
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from npu_device.abi.errors import TicketError
from npu_device.abi.memory_map import DRAM_BASE
from npu_device.config import DramConfig, KvQuantConfig, NpuConfig
from npu_device.cost.durations import Timing
from npu_device.cost.plan import Transfer, columns
from npu_device.issue.mmu import Mmu
from npu_device.kv_quant.storage import EncodedCache, KvAccess, Sizes
from npu_device.memory.region import make_region
from npu_device.operations.checks import DescriptorError
from npu_device.trace.events import Role, What
from npu_device.trace.records import joined
from npu_device.trace.stream import EventStream
from pyv_native.state import StateError

HEADS, DIM, T_MAX, PAGE = 4, 128, 4096, 4096


def cache(number: int = 0) -> EncodedCache:
    base = DRAM_BASE + number * EncodedCache(0, HEADS, T_MAX, DIM).size
    return EncodedCache(base, HEADS, T_MAX, DIM)


def access(tokens: int, new: int, entries: int = 13, number: int = 0, first: int | None = None) -> KvAccess:
    """So many tokens, each with `entries` bytes in each stream; attention reads those from `first` on."""
    ends = np.repeat(np.arange(tokens + 1)[:, None] * entries, HEADS, axis=1)
    return KvAccess(cache(number), tokens, new, Sizes(ends), first)


def pages(tokens: int, entries: int = 13) -> tuple[int, int, int]:
    return HEADS * ceil(tokens * 64 / PAGE), HEADS * ceil(tokens * entries / PAGE), ceil(tokens * 12 / PAGE)


def made(pool: int | None = None, channels: int = 1, **more: Any) -> tuple[Mmu, EventStream]:
    config = NpuConfig(dram=DramConfig(channels=channels), kv_quant=KvQuantConfig(pool_pages=pool, **more))
    events = EventStream(keep=True)
    return Mmu(config, events), events


def test_pages_are_taken_when_they_are_touched() -> None:
    """O16, of four heads: 1,024 tokens are 16 pages of nibbles a head, and 4 of entries."""
    mmu, events = made()
    for tokens in (1, 64, 65, 1024):
        mmu.begin(0, tokens, [access(tokens, 1)])
        assert tuple(mmu.tables().values()) == pages(tokens)
    assert pages(1024)[:2] == (64, 16)
    mmu.begin(0, 9, [access(1000, 0)])  # a read gives nothing back
    assert mmu.allocated == sum(pages(1024))
    mmu.begin(0, 10, [access(64, 64)])  # the cache begins anew
    assert mmu.allocated == sum(pages(64))
    records = joined(events.batches())
    assert (records["what"] == What.PAGES).all() and records["bytes"].tolist()[-1] == mmu.allocated
    assert int(records["aux"].sum() - records["tile"].sum()) == mmu.allocated


def test_tables_of_a_large_batch_are_small() -> None:
    """256 requests in 32 layers have 2 million streams of 1,024 tokens: with lists of pages these took 1 GB."""
    mmu, count = made()[0], 100
    accesses = [access(1024, 1, number=number) for number in range(count)]
    tracemalloc.start()
    for one in accesses:
        mmu.begin(0, 1, [one])
    used, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert sum(mmu.tables().values()) == count * sum(pages(1024))
    assert used < 8 * mmu.allocated + 220 * count * (2 * HEADS + 1)


def test_pages_that_a_window_has_passed_are_given_back() -> None:
    """Of 100 tokens; those of a token that is in the window stay. A cache that begins anew takes them again."""
    mmu, _ = made()
    for tokens in range(1, 1025):
        first = max(0, tokens - 100)
        mmu.begin(0, tokens, [access(tokens, 1, first=first)])
        bounds = [(HEADS, 64), (HEADS, 13), (1, 12)]
        assert list(mmu.tables().values()) == [
            count * (ceil(tokens * size / PAGE) - min(first, tokens - 1) * size // PAGE) for count, size in bounds
        ]
    other, _ = made()
    other.load_state(mmu.state())
    assert other.state() == mmu.state()
    with pytest.raises(DescriptorError, match="from token 700 on: 14 pages of the row at 0x") as caught:
        other.begin(0, 1, [access(1024, 0, first=700)])
    assert caught.value.code is TicketError.KV_PAGES and other.state() == mmu.state()
    other.begin(0, 2, [access(1100, 76)])  # an append reads nothing
    assert other.allocated == mmu.allocated + sum(pages(1100)) - sum(pages(1024))
    other.begin(0, 3, [access(64, 64, first=0)])
    assert other.allocated == sum(pages(64)) and not other.state()["passed"]


def test_a_pool_that_is_used_up_changes_nothing() -> None:
    need = sum(pages(64))
    mmu, _ = made(pool=need)
    mmu.begin(0, 1, [access(64, 64)])
    before = mmu.state()
    with pytest.raises(
        DescriptorError, match=f"need {sum(pages(65)) - need} more pages of 4096 bytes, 0 of {need} are"
    ) as caught:
        mmu.begin(0, 2, [access(65, 1)])
    assert caught.value.code is TicketError.KV_PAGES and mmu.state() == before
    mmu.reset()
    mmu.begin(0, 3, [access(64, 64, number=1)])
    assert mmu.allocated == need


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(1, 400), st.booleans(), st.integers(0, 64)), max_size=12))
def test_every_page_belongs_to_one_stream(steps: list[tuple[int, int, bool, int]]) -> None:
    """A plain account beside it: bytes that each stream has reached since it began anew."""
    mmu, _ = made(pool=120)
    account: dict[tuple[int, str, int], int] = {}
    for number, tokens, append, entries in steps:
        wanted = dict(account)
        for name, size, count in (("dense", tokens * 64, HEADS), ("sparse", tokens * entries, HEADS),
                                  ("meta", tokens * 12, 1)):  # fmt: skip
            for index in range(count):
                key = number, name, index
                wanted[key] = ceil(size / PAGE) if append else max(account.get(key, 0), ceil(size / PAGE))
        fits = sum(wanted.values()) <= 120
        try:
            mmu.begin(0, 1, [access(tokens, tokens if append else 0, entries, number)])
            assert fits
            account = wanted
        except DescriptorError:
            assert not fits
        assert mmu.allocated == sum(account.values())
        state = mmu.state()
        taken = [page for _, _, row in state["streams"] for page in row]
        assert sorted(taken + state["free"]) == list(range(state["fresh"]))
        other, _ = made(pool=120)
        other.load_state(state)
        assert other.state() == state


def test_transfers_go_where_their_pages_are() -> None:
    """Two heads that grow in turn share no page, and lie one behind the other in DRAM only within a page."""
    mmu, _ = made(channels=4)
    for tokens in (64, 128):  # a page of nibbles a head, twice
        mmu.begin(0, tokens, [access(tokens, 64, 0)])
    numbers = {start: row for start, _, row in mmu.state()["streams"]}
    head = cache().base + T_MAX * 64  # of head 1
    assert numbers[head] == [1, 6], "four heads and the metadata take a page each, then four heads again"
    one = Transfer(False, Role.KV, 8192, 8192, 64, make_region(0, 1, 8192), make_region(0, 1, 8192), 0, 16384)
    moves = [(0, 0, head, ()), (0, 1, head + 4096, ()), (0, 2, head, ())]
    small = one._replace(payload=4096, aligned=4096, dram=make_region(0, 1, 4096))
    plan = columns([(1, *moves[0][1:]), (1, *moves[1][1:]), (0, *moves[2][1:])], (one, small))
    there = mmu.translate(plan, [access(128, 0, 0)])
    assert there.dram.tolist() == [DRAM_BASE + 4096, DRAM_BASE + 6 * 4096, DRAM_BASE + 4096]
    both = there.pieces[there.piece[2]]
    assert isinstance(both, Transfer) and both.parts == ((4096, 4096), (2 * 4096, 4096)), "modulo four channels"
    timing = Timing(NpuConfig(dram=DramConfig(channels=4)))
    assert timing.cost(both).channels == (0, 4096, 4096, 0)
    assert timing.cost(timing.located(small, DRAM_BASE + 4096)).channels == (0, 4096, 0, 0)
    assert mmu.translate(plan, ()) is plan


def test_an_l2_is_indexed_by_virtual_addresses() -> None:
    config = NpuConfig()
    mmu = Mmu(replace(config, l2=replace(config.l2, enabled=True)))
    mmu.begin(0, 1, [access(64, 64)])
    one = Transfer(False, Role.KV, 64, 64, 1, make_region(0, 1, 64), make_region(0, 1, 64), 0, 128)
    plan = columns([(0, 0, cache().base, ())], (one,))
    assert mmu.translate(plan, [access(64, 0)]) is plan and mmu.allocated


@pytest.mark.parametrize(
    "state",
    [
        {"streams": [[0, 0, [0]], [64, 0, [0]]], "passed": [], "free": [], "fresh": 1},
        {"streams": [[0, 0, [0]]], "passed": [], "free": [], "fresh": 2},
        {"streams": [[0, 7, [0]]], "passed": [], "free": [], "fresh": 1},
        {"streams": [[0, 0, []]], "passed": [], "free": [], "fresh": 0},
        {"streams": [[0, 0, ["x"]]], "passed": [], "free": [], "fresh": 1},
        {"streams": [], "passed": [], "free": [3], "fresh": 1},
        {"streams": [[0, 0, [0]]], "passed": [[0, 0]], "free": [], "fresh": 1},
    ],
)
def test_spoiled_snapshots(state: Any) -> None:
    mmu, _ = made()
    with pytest.raises(StateError):
        mmu.load_state(state)
