"""Scheduler as firmware on the core: firmware/apps/serve.c accepts requests, schedules and submits steps at a port."""

from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Any

from npu_device.config import NpuConfig
from pyv_ext.engines.core import StopReason
from pyv_npu.config import Config
from pyv_npu.errors import PyvNpuError, UsageError
from pyv_npu.platform import Platform
from pyv_npu.plugins import Placed
from pyv_npu.serving.blocks import BlockPool
from pyv_npu.serving.port import BLOCKS_MAX, PORT_BASE, PORT_SOURCE, REASONS, RUN_MAX, SLOTS, ServerPort
from pyv_npu.serving.requests import Arrivals, Workload
from pyv_npu.serving.scheduler import Scheduler, SchedulerConfig
from pyv_npu.serving.server import Run, StepCycles, SwapCycles, check_served, ids_of, ledger_row, swap_in_no_time
from pyv_npu.workloads.firmware import run_program
from pyv_npu.workloads.workload import ProgressDisplay, hidden

PROGRAM = "serve"


def check(config: SchedulerConfig, workload: Workload) -> None:
    """Raise UsageError for an option that the firmware lacks, or a value beyond its capacity."""
    if config.policy != "fcfs" or config.prefix_cache:
        raise UsageError("--scheduler firmware: is first come, first served, without a prefix cache; --scheduler host")
    for name, value, most in (
        ("--blocks", config.blocks, BLOCKS_MAX), ("--max-num-seqs", config.max_num_seqs, RUN_MAX),
        ("--first", len(workload.requests), SLOTS),
    ):  # fmt: skip
        if value > most:
            raise UsageError(f"{name} {value}: the firmware has room for {most}; give less, or --scheduler host")


def serve_on_core(
    workload: Workload, config: SchedulerConfig, platform: Config, step_cycles: StepCycles,
    swap_cycles: SwapCycles = swap_in_no_time, progress: ProgressDisplay = hidden,
) -> Run:  # fmt: skip
    """Serve all requests by the firmware, in the mode of `platform`; times are core cycles since its first read of
    ARRIVED. PyvNpuError when its decisions differ from those of the host's scheduler. The errors of `check`."""
    check(config, workload)
    scheduler, hz = Scheduler(config), platform.npu.clock_hz
    refusals = {request.id: why for request in workload.requests if (why := scheduler.refusal(request))}
    check_served(workload, refusals)
    refused_requests = [request for request in workload.requests if request.id in refusals]
    arrivals = Arrivals(workload, hz)
    progress(arrivals.progress)
    port = ServerPort(arrivals, refused_requests, step_cycles, swap_cycles)
    arguments = {
        "port": PORT_BASE, "source": PORT_SOURCE, "blocks": config.blocks, "block_size": config.block_size,
        "budget": config.max_num_batched_tokens, "most": config.max_num_seqs, "gate": int(config.full_isl_gate),
        "watermark": config.watermark, "chunks": int(config.chunked_prefill), "swap_blocks": config.swap_blocks,
    }  # fmt: skip
    core_config = replace(platform, npu=_small(platform.npu))
    run = run_program(core_config, PROGRAM, arguments, values=False,
                      make=partial(Platform, devices=[Placed(PORT_BASE, port, PORT_SOURCE)]))  # fmt: skip
    if run.stop.reason is not StopReason.EXIT or run.stop.code:
        raise PyvNpuError(f"{PROGRAM}: the firmware ended with {run.stop.text}; a bug of the firmware")
    assert run.core is not None
    if run.core.log:
        raise PyvNpuError(f"{PROGRAM}: the NPU refused a command: {run.core.log[0].reason}; a bug of the firmware")
    pool = replay(port, config)
    served = [port.served[key] for key in sorted(port.served)]
    return Run(served, refusals, port.ledger, hz, pool.allocated, pool.released, control(port))


def _small(npu: NpuConfig) -> NpuConfig:
    """Return the device without DRAM for weights and caches: the port replaces the commands that use them."""
    return replace(npu, dram=replace(npu.dram, size=min(npu.dram.size, 128 << 20)))


def replay(port: ServerPort, config: SchedulerConfig) -> BlockPool:
    """Run the host's scheduler on the same arrivals, compare each step, and count the blocks of each request. Return
    the scheduler's blocks. PyvNpuError names the first step that differs."""
    scheduler = Scheduler(config)
    for index, row in enumerate(port.ledger):
        for request in port.arrivals_by_step[index]:
            scheduler.add(port.served[request])
        step = scheduler.schedule()
        expected = ledger_row(scheduler, step, row.start, row.end, row.swap)
        _, finished = scheduler.commit(step)
        expected = expected._replace(finished=tuple(sorted(ids_of(finished))))
        actual = row._replace(finished=tuple(sorted(row.finished)))
        if expected != actual:
            raise PyvNpuError(f"step {index}: the firmware decided {actual}, the host's scheduler {expected}; a bug")
    return scheduler.pool


def control(port: ServerPort) -> dict[str, Any]:
    """Return the core cycles of the firmware by reason, in all steps, and its share of the time between tokens, in
    steps in which all requests generate."""
    sums = {name: sum(reason[at] for reason in port.reasons) for at, name in enumerate(REASONS)}
    steps = max(1, len(port.reasons))
    busy = sum(sums[name] for name in REASONS[:3])
    gap_cycles, control_cycles = 0, 0
    for index, (previous, row) in enumerate(pairwise(port.ledger), 1):
        if row.tokens == len(row.scheduled):
            gap_cycles += row.end - previous.end
            control_cycles += sum(port.reasons[index][:3])
    return {
        **sums, "per_step": busy / steps, "share": busy / max(1, port.ledger[-1].end if port.ledger else 1),
        "tpot_share": control_cycles / gap_cycles if gap_cycles else None,
    }  # fmt: skip
