"""What a random list of commands leaves on a device, against numpy that was written apart from it (`sequential`)."""

import numpy as np
from command_lists import Case, Lists
from sequential import Sequential, memory_of

from npu_device.abi.memory_map import DRAM_BASE, SPM_BASE, SPM_CLUSTER_STRIDE
from npu_device.config import NpuConfig
from npu_device.levels.runner import Listed, Runner
from npu_device.trace.events import What
from npu_device.trace.stream import records

CTRL, FLUSH_L2, ENABLE = 0xC, 0x4, 0x1


def outcome(lists: Lists, config: NpuConfig, count: int, *, analytic: bool = False) -> tuple[list[Case], str]:
    """So many commands of these lists, and in words where a device of `config` and numpy differ, if they do."""
    runner = Runner(config, analytic=analytic)
    dram, scratchpads = lists.memory()
    cases = lists.commands(count)
    expected = Sequential(memory_of(dram, scratchpads, DRAM_BASE, SPM_BASE))
    good = [expected.execute(case.descriptor, case.block) for case in cases]
    runner.memory.write_bytes(DRAM_BASE, dram.tobytes())
    for cluster, data in enumerate(scratchpads):
        runner.memory.write_bytes(SPM_BASE + cluster * SPM_CLUSTER_STRIDE, data.tobytes())
    collected = records(runner.events)
    run = runner.run([Listed(case.descriptor, 0, case.block) for case in cases])
    runner.device.write(CTRL, 4, FLUSH_L2 | ENABLE, run.cycles + 1)
    while (due := runner.device.next_event()) is not None:
        runner.device.advance(due)
    events = collected()
    done = set(events["ticket"][events["what"] == What.DONE].tolist())
    reasons = {entry.ticket: entry.reason for entry in runner.device.error_log}
    for index, (ticket, case) in enumerate(zip(run.tickets, cases, strict=True)):
        if (ticket in done) != good[index]:
            return cases, f"command {index} of {case}: done {ticket in done}, {reasons.get(ticket)}"
    used = DRAM_BASE + len(dram) - 128 * len(cases)  # beyond are extended blocks
    for base, data in expected.memories.items():
        real = np.frombuffer(runner.memory.read(base, len(data)) or b"", np.uint8)
        wrong = np.flatnonzero(real != data)
        wrong = wrong[wrong + base < used] if base == DRAM_BASE else wrong
        if len(wrong):
            return cases, f"other bytes from {base + int(wrong[0]):#x} on, of {[case.descriptor for case in cases]}"
    return cases, ""
