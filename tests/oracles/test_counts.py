"""Counts of what takes energy: those of the event loop on random lists, and numpy from shapes and loop nests.

The event loop counts by itself on machines whose times are counts: an engine of one multiplier, a vector engine of one
lane, ports of a byte.
"""

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from command_lists import Lists

from npu_device.abi.descriptor import Descriptor
from npu_device.abi.memory_map import DRAM_BASE, SPM_BASE, SPM_CLUSTER_STRIDE
from npu_device.abi.opcodes import DataType, Opcode
from npu_device.config import DramConfig, L2Config, NocConfig, NpuConfig, TeConfig
from npu_device.cost.counts import Counts, Event
from npu_device.levels.runner import Listed, Run, Runner, list_config
from npu_device.trace.events import Role, What
from npu_device.trace.stream import records
from pyv_npu.observe.analysis.traffic import traffic_of
from pyv_npu.observe.analysis.work import works

QUICK, MANY = 16, 400


def total(counts: Counts, *events: Event, role: Role | None = None) -> int:
    return sum(n for count, n in counts.items() if count.event in events and role in (None, count.role))


def one_by_one(config: NpuConfig, **te: Any) -> NpuConfig:
    """A machine whose busy cycles are counts; the time of no step depends on others."""
    return replace(
        config, clock_ratio=(1, 1), te=TeConfig(count=config.te.count, rows=1, columns=1, speed="flat", **te),
        ve=replace(config.ve, lanes=1, latency=0, speed="flat"), spm=replace(config.spm, port=None), l2=L2Config(),
    )  # fmt: skip


def run(commands: list[Listed], config: NpuConfig, dram: bytes) -> tuple[Run, Any]:
    runner = Runner(list_config(config, len(commands)), values=False)
    runner.memory.write_bytes(DRAM_BASE, dram)
    collected = records(runner.events)
    return runner.run(commands), collected()


def check(seed: int) -> None:
    lists = Lists(seed)
    config, (dram, _) = lists.config(), lists.memory()
    commands = [Listed(case.descriptor, 0, case.block) for case in lists.commands(24)]
    data, plain = dram.tobytes(), one_by_one(config)
    first, _ = run(commands, plain, data)
    failed = {entry.ticket for entry in first.device.error_log}
    commands = [each for each, ticket in zip(commands, first.tickets, strict=True) if ticket not in failed]
    result, events = run(commands, plain, data)
    assert not result.device.error_log
    counted = sum((work.counts for work in works(commands, plain, {DRAM_BASE: data})), Counter())
    npu = result.device.counters.to_json()
    assert total(counted, Event.MAC) == sum(npu["te_busy"])
    assert total(counted, Event.VECTOR) == sum(npu["ve_busy"])
    assert total(counted, Event.NOC) == npu["dram_bytes_read"] + npu["dram_bytes_written"], "a link for all"
    moved = traffic_of([events]).moved
    for role in Role:
        (_, read), (_, written) = moved[role]
        assert total(counted, Event.DRAM_READ, role=role) == read
        assert total(counted, Event.DRAM_WRITE, role=role) == written
    narrow = replace(config, clock_ratio=(1, 1), spm=replace(config.spm, port=1), l2=L2Config())
    _, events = run(commands, narrow, data)
    ports = int(events["bytes"][events["what"] == What.BANK_BUSY].sum())
    counted = sum((work.counts for work in works(commands, narrow, {DRAM_BASE: data})), Counter())
    assert total(counted, Event.SPM_READ, Event.SPM_WRITE) == ports


def test_the_event_loop_counts_the_same() -> None:
    for seed in range(QUICK):
        check(seed)


@pytest.mark.slow
def test_the_event_loop_counts_the_same_on_many_lists() -> None:
    for seed in range(MANY):
        check(seed)


def test_bytes_cross_the_links_of_their_route() -> None:
    """A mesh of 2 x 2 with a memory port west of each row: data goes along x first, and DRAM channel 1 is at row 1."""
    mesh = NpuConfig(clusters=4, noc=NocConfig(topology="mesh"), dram=DramConfig(channels=2))
    loads = [
        Listed(Descriptor(opcode=Opcode.LOAD, tile_m=1, tile_k=8192, type_in0=DataType.INT8, cluster=cluster,
                          in0_addr=DRAM_BASE, out_addr=SPM_BASE + cluster * SPM_CLUSTER_STRIDE))
        for cluster in range(4)
    ]  # fmt: skip
    links = [total(work.counts, Event.NOC) / 8192 for work in works(loads, mesh)]
    assert links == [1.5, 2.5, 1.5, 2.5]
    assert [total(work.counts, Event.NOC) for work in works(loads, NpuConfig(clusters=4))] == [8192] * 4
