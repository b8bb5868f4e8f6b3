"""Error of IA_TIMING against CA_HYBRID on random command lists, by features of the machine.

The lists are those of the oracle tests (docs/npu-timing.md).
"""

import argparse
import sys
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from benchmarks.host import ROOT
from benchmarks.runner import positive
from npu_device.abi.descriptor import Descriptor
from npu_device.abi.memory_map import DRAM_BASE
from npu_device.abi.opcodes import Opcode
from npu_device.config import NpuConfig
from npu_device.levels.runner import Listed, Runner
from npu_device.trace.events import What
from npu_device.trace.records import Batch
from npu_device.trace.stream import records

sys.path.append(str(ROOT / "tests" / "oracles"))
from command_lists import Lists

PERCENTILES = (0, 1, 10, 50, 90, 99, 100)


NO_FEATURE = "none of these"


class ListTime(NamedTuple):
    """Time of a command list at one level."""

    makespan: int
    steps: int
    """Number of steps on engines and DMA channels."""
    stepped: int
    """Number of cycles in which the event loop was stepped."""


class LevelPair(NamedTuple):
    """Times of a command list at both levels."""

    config: NpuConfig
    analytic: ListTime
    hybrid: ListTime

    @property
    def error(self) -> float:
        """Error of IA_TIMING in percent of CA_HYBRID's makespan."""
        return 100 * (self.analytic.makespan - self.hybrid.makespan) / max(1, self.hybrid.makespan)

    @property
    def features(self) -> list[str]:
        """Features of the machine that IA_TIMING approximates."""
        config = self.config
        features = {
            "bank ports": config.spm.port is not None,
            "L2": config.l2.enabled,
            "DRAM channels": config.dram.channels > 1,
        }
        return [name for name, present in features.items() if present] or [NO_FEATURE]


def time_list(
    config: NpuConfig, commands: Sequence[Listed], dram: bytes, analytic: bool
) -> tuple[ListTime, Batch, Sequence[int]]:
    """Run a list at one level without values. Return its time, events and tickets."""
    runner = Runner(config, values=False, analytic=analytic)
    runner.memory.write_bytes(DRAM_BASE, dram)
    collect = records(runner.events)
    tickets = runner.run(commands).tickets
    events = collect()
    ends = events["cycle"][np.isin(events["what"], (What.DONE, What.ERROR))]
    steps = int(np.isin(events["what"], (What.DMA_BEGIN, What.TE_BEGIN, What.VE_BEGIN)).sum())
    stepped = runner.device.host.execution.engines.machine.storage.loop.stepped
    return ListTime(int(ends.max(initial=0)), steps, stepped), events, tickets


def time_levels(seed: int) -> LevelPair:
    """Run the list of a seed at both levels. Commands that fail are replaced by NOPs."""
    lists = Lists(seed)
    config = lists.config()
    dram, _ = lists.memory()
    cases = lists.commands(int(np.random.default_rng(seed).integers(8, 28)))
    commands = [Listed(case.descriptor, 0, case.block) for case in cases]
    while True:
        hybrid, events, tickets = time_list(config, commands, dram.tobytes(), False)
        errors = set(events["ticket"][events["what"] == What.ERROR].tolist())
        if not errors:
            break
        for index, ticket in enumerate(tickets):
            if ticket in errors:
                stream = commands[index].descriptor.stream
                commands[index] = Listed(Descriptor(opcode=Opcode.NOP, stream=stream))
    return LevelPair(config, time_list(config, commands, dram.tobytes(), True)[0], hybrid)


def percentiles(errors: Iterable[float]) -> list[float]:
    """Return the errors at PERCENTILES."""
    return [float(value) for value in np.percentile(list(errors), PERCENTILES)]


def table(pairs: Sequence[LevelPair]) -> str:
    """Return the percentiles of all errors, and of those with each feature."""
    errors_of: dict[str, list[float]] = {"all": [pair.error for pair in pairs]}
    for pair in pairs:
        for feature in pair.features:
            errors_of.setdefault(feature, []).append(pair.error)
    head = f"{'machine with':<14} {'lists':>6} " + " ".join(f"{f'p{p}':>7}" for p in PERCENTILES)
    rows = [
        f"{feature:<14} {len(errors):>6} " + " ".join(f"{value:>+7.1f}" for value in percentiles(errors))
        for feature, errors in errors_of.items()
    ]
    stepped = [sum(getattr(pair, level).stepped for pair in pairs) for level in ("analytic", "hybrid")]
    steps = sum(pair.hybrid.steps for pair in pairs)
    return "\n".join([
        "IA_TIMING against CA_HYBRID, makespan, % of CA_HYBRID", head, *rows,
        f"cycles stepped per step of work: IA_TIMING {stepped[0] / steps:.2f}, CA_HYBRID {stepped[1] / steps:.2f}",
    ])  # fmt: skip


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--lists", type=positive, default=1000, help="how many (default %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of the first (default %(default)s)")


def run(args: argparse.Namespace) -> None:
    """Print the table of lists with consecutive seeds."""
    print(table([time_levels(seed) for seed in range(args.seed, args.seed + args.lists)]))
