"""The L2: what it holds, what that costs and saves, and what core and NPU see of each other without coherence."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from npu_graphs import SPM_SIZE, Seen, channel_bytes, configs, listed, tiles
from npu_rig import DRAM, SPM, Rig
from shares import draws

from npu_device.abi.descriptor import Descriptor
from npu_device.abi.opcodes import DataType, Opcode
from npu_device.config import DmaConfig, DramConfig, L2Config, NocConfig, NpuConfig, SpmConfig
from npu_device.levels.explain import Blocker, explain
from npu_device.levels.runner import Listed
from npu_device.trace.events import CACHED, WRITES, Kind, What
from npu_device.trace.run_spans import Spans
from npu_device.units import cache

INT8 = DataType.INT8
GHZ = 1_200_000_000
NOC, LATENCY, HIT = 128, 50, 20
FLUSH = 1 << 2


def config(rate: int = 32, **l2: Any) -> NpuConfig:
    """DRAM of 32 bytes per cycle behind an L2, a NoC of 128 with a latency of 8."""
    cached = L2Config(**({"enabled": True, "snoop": 0} | l2))
    return NpuConfig(
        spm=SpmConfig(size=SPM_SIZE, port=None), dma=DmaConfig(channels=1, bytes_per_cycle=None), l2=cached,
        dram=DramConfig(size=1 << 20, latency=LATENCY, bytes_per_second=rate * GHZ),
        noc=NocConfig(latency=8, bytes_per_second=NOC * GHZ),
    )  # fmt: skip


def move(opcode: Opcode, size: int, at: int = DRAM, spm: int = SPM, rows: int = 1, stride: int = 0) -> Listed:
    ends = {"in0_addr": at, "out_addr": spm} if opcode is Opcode.LOAD else {"in0_addr": spm, "out_addr": at}
    return Listed(Descriptor(opcode=opcode, tile_m=rows, tile_k=size, type_in0=INT8, param0=stride, **ends))


def load(size: int, at: int = DRAM, **more: Any) -> Listed:
    return move(Opcode.LOAD, size, at, **more)


def store(size: int, at: int = DRAM, **more: Any) -> Listed:
    return move(Opcode.STORE, size, at, **more)


def lengths(commands: list[Listed], of: NpuConfig) -> list[int]:
    return [end["cycle"] - begin["cycle"] for begin, end in listed(commands, of).spans()]


def counted(seen: Seen) -> tuple[int, int, int]:
    """Lines: (hits, misses, written back)."""
    l2 = seen.run.device.counters.to_json()["l2"]
    return l2["hits"], l2["misses"], l2["write_backs"]


def test_a_line_is_fetched_once() -> None:
    seen = listed([load(4096), load(4096)], config())
    first, again = (end["cycle"] - begin["cycle"] for begin, end in seen.spans())
    assert first == 8 + HIT + LATENCY + 4096 // 32
    assert again == 8 + HIT + 4096 // NOC
    assert counted(seen) == (64, 64, 0)
    assert seen.run.device.counters.dram_bytes_read == 4096
    assert seen.run.device.counters.noc_bytes == 8192
    causes = explain(Spans([seen.events]), config()).causes
    assert causes[Blocker.DRAM] == 4096 // 32
    assert causes[Blocker.NOC] == 8 + 4096 // NOC
    assert sum(causes.values()) == seen.makespan


def test_large_transfers_go_past_it() -> None:
    assert lengths([load(8192)] * 2, config(bypass_bytes=8192)) == [8 + LATENCY + 8192 // 32] * 2
    assert lengths([load(8192)], config(bypass_bytes=8192, snoop=7)) == [8 + LATENCY + 7 + 8192 // 32]
    assert lengths([load(8192)], config(bypass_bytes=8192, snoop=7, coherence="none")) == [8 + LATENCY + 8192 // 32]


def test_a_dirty_line_in_any_row_of_a_large_read_is_written_back_first() -> None:
    small = [store(64, DRAM + at, spm=SPM + 0x8000) for at in (0, 0x2000, 0x4040, 0x6000)]
    seen = listed([*small, load(2048, rows=3, stride=0x2000)], config(bypass_bytes=4096))
    assert counted(seen)[2] == 3


def test_whole_lines_are_written_without_being_fetched() -> None:
    seen = listed([store(4096), load(4096)], config())
    assert [end["cycle"] - begin["cycle"] for begin, end in seen.spans()] == [4096 // NOC, 8 + HIT + 4096 // NOC]
    assert counted(seen) == (64, 64, 0)
    assert channel_bytes(seen, 1) == [0]
    part = listed([store(100, DRAM + 32)], config())  # 32 bytes of one line, 64 of the next, 4 of the last
    assert counted(part) == (0, 3, 0)
    assert part.run.device.counters.dram_bytes_read == 2 * 64


def test_the_line_that_was_used_longest_ago_leaves() -> None:
    """One set of two ways: lines 0, 1, 0 again; then 2 makes 1 leave, and 1 makes 0 leave."""
    small = config(bytes=128, ways=2)
    lines = [load(64), load(64, DRAM + 64), load(64), load(64, DRAM + 128), load(64), load(64, DRAM + 64)]
    seen = listed(lines, small)
    assert [one["what"] == What.L2_HIT for one in seen.of(What.L2_HIT, What.L2_MISS)] == [0, 0, 1, 0, 1, 0]


def test_a_dirty_line_goes_to_dram_before_the_transfer_that_needs_its_place() -> None:
    """64 lines leave: 4096 bytes, less what the bucket pays for, before 4096 bytes come."""
    full = config(bytes=4096, ways=1)
    seen = listed([store(4096), load(4096, DRAM + 4096)], full)
    (back,) = seen.of(What.L2_WRITE_BACK)
    assert (back["bytes"], back["aux"]) == (4096, 64)
    assert counted(seen) == (0, 128, 64)
    _, (begin, end) = seen.spans()
    pause = (4096 - 128) // 32
    assert end["cycle"] - begin["cycle"] == max(8 + HIT + LATENCY, pause) + 4096 // 32
    assert channel_bytes(seen, 1) == [8192]


def test_without_write_back_writes_go_to_dram() -> None:
    through = config(write_back=False)
    seen = listed([load(4096), store(4096), load(4096)], through)
    assert [end["cycle"] - begin["cycle"] for begin, end in seen.spans()][1] == 4096 // 32
    assert counted(seen) == (0, 128, 0)
    assert seen.run.device.counters.dram_bytes_written == 4096


class Model:
    """The same cache, written for a reader: a list per set, the line that was used last first."""

    def __init__(self, l2: L2Config) -> None:
        self.l2 = l2
        self.sets: list[list[int]] = [[] for _ in range(l2.bytes // l2.line // l2.ways)]
        self.dirty: set[int] = set()
        self.hits = self.misses = self.filled = self.backs = 0

    def leave(self, line: int) -> None:
        self.sets[line % len(self.sets)].remove(line)
        self.backs += line in self.dirty
        self.dirty.discard(line)

    def through(self, line: int, write: bool, whole: bool) -> None:
        ways = self.sets[line % len(self.sets)]
        if line in ways:
            self.hits += 1
            ways.remove(line)
        else:
            self.misses += 1
            self.filled += not (write and whole)
            if len(ways) == self.l2.ways:
                self.leave(ways[-1])
        ways.insert(0, line)
        if write:
            self.dirty.add(line)

    def past(self, line: int, write: bool) -> None:
        if line in self.sets[line % len(self.sets)]:
            if write:
                self.leave(line)
            else:
                self.backs += line in self.dirty
                self.dirty.discard(line)


@settings(max_examples=draws(80), deadline=None)
@given(st.lists(tiles, min_size=1, max_size=14), configs(), st.sampled_from((64, 256)))
def test_hits_misses_and_write_backs_are_those_of_a_plain_model(
    commands: list[Listed], base: NpuConfig, line: int
) -> None:
    of = replace(base, l2=replace(base.l2, enabled=True, line=line, bytes=max(base.l2.bytes, base.l2.ways * line)),
                 dram=replace(base.dram, interleave=4096))  # fmt: skip
    seen = listed(commands, of)
    model = Model(of.l2)
    asked = dict(zip(seen.run.tickets, commands, strict=True))
    for begin in seen.of(What.DMA_BEGIN):
        d = asked[begin["ticket"]].descriptor
        write = bool(begin["aux"] & WRITES)
        first = d.out_addr if write else d.in0_addr
        rows = [(first + row * (d.param0 or d.tile_k), d.tile_k) for row in range(d.tile_m)]
        if d.tile_m > 1 and d.param0 in (0, d.tile_k):
            rows = [(first, d.tile_m * d.tile_k)]
        for start, size in rows:
            for number in range(start // line, (start + size - 1) // line + 1):
                if begin["aux"] & CACHED:
                    whole = start <= number * line and (number + 1) * line <= start + size
                    model.through(number, write, whole)
                else:
                    model.past(number, write)
    assert counted(seen) == (model.hits, model.misses, model.backs)
    tags = seen.run.device.host.execution.engines.machine.storage.loop.l2.tags
    lines = [tag >> cache.FLAGS for tag in tags if tag]
    assert sorted(lines) == sorted(line for ways in model.sets for line in ways)


# -- what is seen ------------------------------------------------------------------------------------------------------


@settings(max_examples=draws(60), deadline=None)
@given(st.lists(tiles, min_size=1, max_size=14), configs(), st.sampled_from(("none", "io_coherent")))
def test_commands_see_each_other_and_a_flush_shows_everything(
    commands: list[Listed], base: NpuConfig, coherence: str
) -> None:
    memories = []
    for l2 in (L2Config(), replace(base.l2, enabled=True, coherence=coherence)):
        rig = Rig(replace(base, l2=l2))
        values = np.random.default_rng(1).integers(0, 256, 1 << 17, np.uint8)
        rig.dram[: len(values)] = values
        rig.spm[0][:] = values[: len(rig.spm[0])]
        for command in commands:
            rig.submit(command.descriptor)
        rig.idle()
        rig.write("CTRL", 1 | FLUSH | rig.read("CTRL"))
        memories.append((rig.dram.tobytes(), rig.spm[0].tobytes()))
    assert memories[0] == memories[1]


def loud(coherence: str = "none") -> Rig:
    """A device whose scratchpad begins with ones and whose DRAM is zero."""
    rig = Rig(config(coherence=coherence))
    rig.spm[0][:4096] = 1
    return rig


def finish(rig: Rig, command: Listed) -> None:
    rig.submit(command.descriptor)
    rig.idle()
    rig.go(rig.now + 1)


@pytest.mark.parametrize("coherence", ["none", "io_coherent"])
def test_what_the_npu_has_written_is_seen_after_a_flush(coherence: str) -> None:
    rig = loud(coherence)
    finish(rig, store(128))
    assert set(rig.bytes_at(DRAM, 128)) == ({0} if coherence == "none" else {1})
    assert rig.device.l2 is not None
    rig.device.l2.core_reads(DRAM + 64, 4, rig.now)
    stale = rig.happened(What.STALE)
    assert [(one["unit"] >> 8, one["bytes"], one["aux"]) for one in stale] == [(Kind.CORE, DRAM + 64, 4)]
    rig.write("CTRL", 1 | FLUSH)
    assert set(rig.bytes_at(DRAM, 128)) == {1}
    rig.device.l2.core_reads(DRAM + 64, 4, rig.now)
    assert rig.happened(What.STALE) == stale
    assert rig.device.counters.to_json()["l2"]["stale"] == 1


@pytest.mark.parametrize("action", [cache.CLEAN, cache.FLUSH, cache.INVALIDATE])
def test_zicbom_acts_on_one_line(action: int) -> None:
    rig = loud()
    finish(rig, store(128))
    assert rig.device.l2 is not None
    rig.device.l2.act(rig.now, DRAM + 70, action)
    assert set(rig.bytes_at(DRAM, 64)) == {0}
    assert set(rig.bytes_at(DRAM + 64, 64)) == ({0} if action == cache.INVALIDATE else {1})
    finish(rig, load(128, spm=SPM + 8192))
    assert set(rig.bytes_at(SPM + 8192, 64)) == {1}  # the L2 has it still
    assert set(rig.bytes_at(SPM + 8256, 64)) == ({0} if action == cache.INVALIDATE else {1})
    kept = {cache.CLEAN: 4, cache.FLUSH: 3, cache.INVALIDATE: 3}[action]
    assert rig.device.counters.to_json()["l2"]["hits"] + 2 == kept


@pytest.mark.parametrize("size", [64, 65536 - 64])
def test_what_the_core_has_written_is_not_seen_while_the_l2_has_the_line(size: int) -> None:
    """By a transfer through the L2, and by one that goes past it."""
    rig = Rig(replace(config(coherence="none", bypass_bytes=4096), spm=SpmConfig(size=1 << 18, port=None)))
    finish(rig, load(64))
    assert rig.device.l2 is not None
    rig.device.l2.core_writes(DRAM + 8, 4)
    rig.poke(DRAM + 8, np.full(4, 7, np.uint8))
    finish(rig, load(size, spm=SPM + 4096))
    assert rig.bytes_at(SPM + 4096 + 8, 4) == bytes(4)
    (stale,) = rig.happened(What.STALE)
    assert (stale["unit"] >> 8, stale["bytes"], stale["aux"]) == (Kind.L2, DRAM, 1)
    rig.device.l2.act(rig.now, DRAM, cache.INVALIDATE)
    finish(rig, load(64, spm=SPM + 4096))
    assert rig.bytes_at(SPM + 4096 + 8, 4) == bytes([7] * 4)
    assert len(rig.happened(What.STALE)) == 1


def test_a_whole_line_that_a_command_writes_is_no_longer_old() -> None:
    rig = loud()
    finish(rig, load(128))
    assert rig.device.l2 is not None
    rig.device.l2.core_writes(DRAM + 8, 4)
    rig.device.l2.core_writes(DRAM + 72, 4)
    finish(rig, store(64))
    finish(rig, load(128))
    (stale,) = rig.happened(What.STALE)
    assert (stale["bytes"], stale["aux"]) == (DRAM + 64, 1)


def test_a_line_that_leaves_takes_its_bytes_along() -> None:
    rig = Rig(config(coherence="none", bytes=4096, ways=1))
    rig.spm[0][:64] = 1
    finish(rig, store(64))
    assert set(rig.bytes_at(DRAM, 64)) == {0}
    finish(rig, load(64, DRAM + 4096))
    assert set(rig.bytes_at(DRAM, 64)) == {1}


def test_a_soft_reset_loses_nothing_that_is_complete() -> None:
    rig = loud()
    finish(rig, store(128))
    rig.write("CTRL", 2)
    assert set(rig.bytes_at(DRAM, 128)) == {1}
