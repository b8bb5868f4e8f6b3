"""More of a resource never lengthens a run by more than a stated anomaly: random command lists on random machines.

Commands and steps are scheduled as they become ready, without looking ahead. With more of a resource another one may
come first, and the run may take longer (R. L. Graham, "Bounds on Multiprocessing Timing Anomalies", 1969).
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
from command_lists import Lists

from npu_device.abi.memory_map import DRAM_BASE
from npu_device.config import NpuConfig, TimedDramConfig
from npu_device.levels.runner import Listed, Runner

Change = Callable[[NpuConfig], NpuConfig]


def with_more(section: str, **more: Callable[[Any], Any]) -> Change:
    """Returns a change of keys of a section; None, which is no limit, stays."""

    def change(config: NpuConfig) -> NpuConfig:
        part = getattr(config, section)
        keys = {key: getattr(part, key) for key in more}
        values = {key: value if value is None else more[key](value) for key, value in keys.items()}
        return replace(config, **{section: replace(part, **values)})

    return change


def one_more(value: int) -> int:
    return value + 1


def twice(value: int) -> int:
    return 2 * value


def none(value: int) -> int:
    return 0


def one_more_channel(share: str) -> Change:
    """Returns a change of machines with a `dma.share`, unless they have a channel for each direction, or the most."""

    def change(config: NpuConfig) -> NpuConfig:
        dma = config.dma
        if dma.share != share or dma.direction == "split" or dma.channels == 4:
            return config
        return replace(config, dma=replace(dma, channels=dma.channels + 1))

    return change


def timed(config: NpuConfig) -> NpuConfig:
    """The machine with a timed DRAM of two channels with short queues, without an L2."""
    device = TimedDramConfig(queue=4)
    dram = replace(config.dram, model="timed", channels=2, timed=device)
    return replace(config, dram=dram, l2=replace(config.l2, enabled=False))


def with_timed(**more: Any) -> Change:
    """Returns a change of keys of the timed DRAM."""
    return lambda config: replace(config, dram=replace(config.dram, timed=replace(config.dram.timed, **more)))


RATE, OLDEST, ORDER, FAIR, WINDOW = 1.0, 2.0, 13.0, 16.0, 30.0
"""Percent by which a list may take longer: where only durations change; where more transfers move, oldest first; where
commands or steps come in another order; where fair sharing ends all transfers later; where a command takes an engine
before an older one."""
CHANGES: Mapping[str, tuple[Change, float]] = {
    "te.count": (with_more("te", count=one_more), ORDER),
    "ve.count": (with_more("ve", count=one_more), ORDER),
    "ve.lanes": (with_more("ve", lanes=twice), RATE),
    "ve.latency": (with_more("ve", latency=none), RATE),
    "dma.channels, fair": (one_more_channel("fair"), FAIR),
    "dma.channels, oldest": (one_more_channel("oldest"), OLDEST),
    "dma.outstanding": (with_more("dma", outstanding=twice), RATE),
    "dma.bytes_per_cycle": (with_more("dma", bytes_per_cycle=twice), RATE),
    "dram.bytes_per_second": (with_more("dram", bytes_per_second=twice), RATE),
    "dram.latency": (with_more("dram", latency=none), RATE),
    "noc.bytes_per_second": (with_more("noc", bytes_per_second=twice), RATE),
    "noc.latency": (with_more("noc", latency=none), RATE),
    "spm.port": (with_more("spm", port=twice), RATE),
    "spm.ports": (with_more("spm", ports=lambda ports: "1r1w"), RATE),
    "l2.bytes": (with_more("l2", bytes=twice), RATE),
    "scheduler.window": (with_more("scheduler", window=twice), WINDOW),
    "queue.tight_size": (with_more("queue", tight_size=twice), ORDER),
}
ROWS = 6.0
"""Percent by which a list may take longer where bursts of a timed DRAM come in another order, or rows lie elsewhere."""
TIMED: Mapping[str, tuple[Change, float]] = {
    "timed dram.channels": (with_more("dram", channels=twice), ROWS),
    "timed queue": (with_timed(queue=16), ROWS),
    "timed refresh": (with_timed(refi=0), ROWS),
    "timed tRCD, tRP, tCL": (with_timed(rcd=11, rp=11, cl=11), ROWS),
    "noc.topology": (with_more("noc", topology=lambda _: "crossbar"), RATE),
}
"""Changes of machines with a timed DRAM."""
LEVELS = {"CA_HYBRID": False, "IA_TIMING": True}
COMMANDS, QUICK, MANY = 24, range(12), range(300)


@cache
def random_list(seed: int) -> tuple[NpuConfig, list[Listed], bytes]:
    """Returns a machine, commands for it and its DRAM."""
    random = Lists(seed)
    config = random.config()
    dram, _ = random.memory()
    return config, [Listed(case.descriptor, 0, case.block) for case in random.commands(COMMANDS)], dram.tobytes()


def cycles(seed: int, config: NpuConfig, analytic: bool) -> int:
    _, commands, dram = random_list(seed)
    runner = Runner(config, values=False, analytic=analytic)
    runner.memory.write_bytes(DRAM_BASE, dram)
    return runner.run(commands).cycles


@cache
def base_cycles(seed: int, with_timed_dram: bool, analytic: bool) -> int:
    config = random_list(seed)[0]
    return cycles(seed, timed(config) if with_timed_dram else config, analytic)


def check(name: str, analytic: bool, seeds: range) -> None:
    """Each list within the anomaly, all of them together not longer."""
    change, anomaly = (CHANGES | TIMED)[name]
    before = after = 0
    for seed in seeds:
        config = random_list(seed)[0]
        if name in TIMED:
            config = timed(config)
        more = change(config)
        if more != config:
            base, changed = base_cycles(seed, name in TIMED, analytic), cycles(seed, more, analytic)
            assert changed <= base * (1 + anomaly / 100), f"seed {seed}: {base} cycles, {changed} with more"
            before, after = before + base, after + changed
    assert 0 < after <= before * (1 + RATE / 100)


@pytest.mark.parametrize("name", CHANGES | TIMED)
def test_more_is_not_slower(name: str) -> None:
    check(name, False, QUICK)


@pytest.mark.nightly
@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("name", CHANGES | TIMED)
def test_more_is_not_slower_on_many_lists(name: str, level: str) -> None:
    check(name, LEVELS[level], MANY)
