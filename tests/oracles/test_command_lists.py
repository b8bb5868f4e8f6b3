"""The result of every list is that of its commands one after the other: every opcode in both forms, streams,
priorities, windows, L2, clusters, encoded caches, against numpy that was written apart from the device (`sequential`).

`PYV_NPU_LISTS=N` sets how many lists the slow test runs (20,000); `PYV_NPU_LISTS_FROM` the first seed.
"""

import os
from collections import Counter

import numpy as np
import pytest
from command_lists import Case, Lists
from sequential import Sequential, memory_of

from npu_device.abi.memory_map import DRAM_BASE, SPM_BASE, SPM_CLUSTER_STRIDE
from npu_device.abi.opcodes import DataType, Opcode
from npu_device.levels.runner import Listed, Runner
from npu_device.trace.events import What
from npu_device.trace.stream import records

QUICK, LISTS, PART = 60, int(os.environ.get("PYV_NPU_LISTS", "20000")), 2500
FIRST = int(os.environ.get("PYV_NPU_LISTS_FROM", "1000"))


def kind_of(case: Case) -> str:
    """The operation, and whether its keys and values are encoded."""
    encoded = " ENCODED" if case.descriptor.type_kv == DataType.ENCODED else ""
    return Opcode(case.descriptor.opcode).name + encoded


def check(seed: int, seen: Counter[tuple[str, bool]] | None = None) -> None:
    """One list on one machine; AssertionError where the device and numpy differ."""
    lists = Lists(seed)
    config = lists.config()
    dram, scratchpads = lists.memory()
    cases = lists.commands(int(np.random.default_rng(seed).integers(8, 28)))
    expected = Sequential(memory_of(dram, scratchpads, DRAM_BASE, SPM_BASE))
    good = [expected.execute(case.descriptor, case.block) for case in cases]
    runner = Runner(config)
    runner.memory.write_bytes(DRAM_BASE, dram.tobytes())
    for cluster, data in enumerate(scratchpads):
        runner.memory.write_bytes(SPM_BASE + cluster * SPM_CLUSTER_STRIDE, data.tobytes())
    collected = records(runner.events)
    run = runner.run([Listed(case.descriptor, 0, case.block) for case in cases])
    runner.device.write(0xC, 4, 0x4 | 1, run.cycles + 1)  # CTRL: the L2 writes back what DRAM does not have
    runner.device.advance(run.cycles + 1_000_000)
    events = collected()
    done = set(events["ticket"][events["what"] == What.DONE].tolist())
    reasons = {entry.ticket: entry.reason for entry in runner.device.error_log}
    for index, (ticket, case) in enumerate(zip(run.tickets, cases, strict=True)):
        assert (ticket in done) == good[index], (seed, index, case, reasons.get(ticket))
        if seen is not None:
            seen[kind_of(case), case.block is not None] += 1
    used = DRAM_BASE + len(dram) - 128 * len(cases)  # beyond are extended blocks
    for base, data in expected.memories.items():
        real = np.frombuffer(runner.memory.read(base, len(data)) or b"", np.uint8)
        wrong = np.flatnonzero(real != data)
        wrong = wrong[wrong + base < used] if base == DRAM_BASE else wrong
        assert not len(wrong), (seed, hex(base + int(wrong[0])), [case.descriptor for case in cases])


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_lists_in_any_order_of_execution_leave_what_their_commands_leave_in_turn() -> None:
    seen: Counter[tuple[str, bool]] = Counter()
    for seed in range(QUICK):
        check(seed, seen)
    names = {name for name, _ in seen}
    assert names == {*(opcode.name for opcode in Opcode), "KV_APPEND ENCODED", "ATTN_T ENCODED"}
    assert len([name for name, macro in seen if macro]) == 16, "all macro forms"


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("first", range(FIRST, FIRST + LISTS, PART))
def test_many_lists(first: int) -> None:
    for seed in range(first, min(first + PART, FIRST + LISTS)):
        check(seed)
