"""How far IA_TIMING is from CA_HYBRID on the random lists of `command_lists`."""

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
from command_lists import Lists

from npu_device.abi.descriptor import Descriptor
from npu_device.abi.memory_map import DRAM_BASE
from npu_device.abi.opcodes import Opcode
from npu_device.config import NpuConfig
from npu_device.levels.runner import Listed, Runner
from npu_device.trace.events import What
from npu_device.trace.records import Batch
from npu_device.trace.stream import records

PERCENTILES = (0, 1, 10, 50, 90, 99, 100)


class Timed(NamedTuple):
    """A list at one level."""

    makespan: int
    steps: int
    """On engines and channels."""
    stepped: int
    """Cycles that the event loop stepped."""


class Pair(NamedTuple):
    """A list at both levels."""

    config: NpuConfig
    analytic: Timed
    hybrid: Timed

    @property
    def error(self) -> float:
        """Percent of CA_HYBRID's makespan."""
        return 100 * (self.analytic.makespan - self.hybrid.makespan) / max(1, self.hybrid.makespan)

    @property
    def kinds(self) -> Iterator[str]:
        """What the machine has that IA_TIMING approximates."""
        config, plain = self.config, True
        for name, there in (
            ("bank ports", config.spm.port is not None),
            ("L2", config.l2.enabled),
            ("DRAM channels", config.dram.channels > 1),
        ):
            if there:
                plain = False
                yield name
        if plain:
            yield "none of these"


def timed(
    config: NpuConfig, commands: Sequence[Listed], dram: bytes, analytic: bool
) -> tuple[Timed, Batch, Sequence[int]]:
    """A list at one level, without values: its time, its events and its tickets."""
    runner = Runner(config, values=False, analytic=analytic)
    runner.memory.write_bytes(DRAM_BASE, dram)
    collected = records(runner.events)
    run = runner.run(commands)
    seen = collected()
    done = seen["cycle"][np.isin(seen["what"], (What.DONE, What.ERROR))]
    begun = int(np.isin(seen["what"], (What.DMA_BEGIN, What.TE_BEGIN, What.VE_BEGIN)).sum())
    stepped = runner.device.host.execution.engines.machine.storage.loop.stepped
    return Timed(int(done.max(initial=0)), begun, stepped), seen, run.tickets


def pair(seed: int) -> Pair:
    """The list of a seed, NOP in place of what ends with an error."""
    lists = Lists(seed)
    config = lists.config()
    dram, _ = lists.memory()
    cases = lists.commands(int(np.random.default_rng(seed).integers(8, 28)))
    commands = [Listed(case.descriptor, 0, case.block) for case in cases]
    while True:
        hybrid, events, tickets = timed(config, commands, dram.tobytes(), False)
        wrong = set(events["ticket"][events["what"] == What.ERROR].tolist())
        if not wrong:
            break
        for index, ticket in enumerate(tickets):
            if ticket in wrong:
                stream = commands[index].descriptor.stream
                commands[index] = Listed(Descriptor(opcode=Opcode.NOP, stream=stream))
    return Pair(config, timed(config, commands, dram.tobytes(), True)[0], hybrid)


def percentiles(errors: Iterable[float]) -> list[float]:
    """At PERCENTILES."""
    return [float(value) for value in np.percentile(list(errors), PERCENTILES)]


def table(pairs: Sequence[Pair]) -> str:
    """All errors, and those by what the machine has."""
    kinds: dict[str, list[float]] = {"all": [one.error for one in pairs]}
    for one in pairs:
        for kind in one.kinds:
            kinds.setdefault(kind, []).append(one.error)
    head = f"{'machine with':<14} {'lists':>6} " + " ".join(f"{f'p{p}':>7}" for p in PERCENTILES)
    rows = [
        f"{kind:<14} {len(errors):>6} " + " ".join(f"{value:>+7.1f}" for value in percentiles(errors))
        for kind, errors in kinds.items()
    ]
    stepped = [sum(getattr(one, level).stepped for one in pairs) for level in ("analytic", "hybrid")]
    steps = sum(one.hybrid.steps for one in pairs)
    return "\n".join([
        "IA_TIMING against CA_HYBRID, makespan, % of CA_HYBRID", head, *rows,
        f"cycles stepped per step of work: IA_TIMING {stepped[0] / steps:.2f}, CA_HYBRID {stepped[1] / steps:.2f}",
    ])  # fmt: skip
