"""Loose against tight over several phases: the same program with other bursts and distances between submissions.

A simulated machine is deterministic, so every burst of a run meets the same phase of handlers, queues and refreshes,
and a tail of one run may be an accident of that phase. A phase jitters the program's arguments `burst` and `gap` by up
to a quarter, seeded by `run.seed`; a result common to all phases is a property of the modes.
"""

from collections.abc import Mapping, Sequence
from random import Random
from typing import Any

from pyv_ext.elf import Program
from pyv_npu.boot import requirements
from pyv_npu.config import Config, with_values
from pyv_npu.result import Comparison
from pyv_npu.workloads.firmware import run_whole

DEFAULT = 6
JITTERED = ("burst", "gap")
"""Arguments that set the phase."""
SHARE = 4
"""Divisor of an argument that gives its maximum change."""


def arguments(program: Program, config: Config, count: int) -> list[dict[str, int]]:
    """Return the program's arguments in each of `count` phases; [] if it takes neither argument or both are below
    `SHARE`."""
    defaults = {argument.name: argument.default for argument in requirements(program).arguments}
    values = {name: config.run.args.get(name, defaults[name]) for name in JITTERED if name in defaults}
    values = {name: value for name, value in values.items() if value >= SHARE}
    if not values:
        return []
    random = Random(f"{config.run.seed} {sorted(values.items())}")
    columns = {name: _spread_out(random, value - value // SHARE, value + value // SHARE, count)
               for name, value in values.items()}  # fmt: skip
    return [{name: column[index] for name, column in columns.items()} for index in range(count)]


def _spread_out(random: Random, low: int, high: int, count: int) -> list[int]:
    """Return a random number from each of `count` equal parts of a range, in random order."""
    width = high - low + 1
    values = [low + (2 * width * index + random.randrange(2 * width)) // (2 * count) for index in range(count)]
    random.shuffle(values)
    return values


def run_phases(
    config: Config, program: Program, first: Mapping[str, float | None], count: int
) -> dict[str, Any] | None:
    """Return the object `phases` of the JSON result; None if the program has no argument to jitter. KeyboardInterrupt
    on Ctrl-C.

    `first`: the ratios of the run without jitter, the first element of each list.
    """
    phases = arguments(program, config, count)
    if not phases:
        return None
    ratios: dict[str, list[float | None]] = {name: [value] for name, value in first.items()}
    for values in phases:
        jittered = with_values(config, {f"run.args.{name}": value for name, value in values.items()})
        loose, tight = (run_whole(with_values(jittered, {"npu.mode": mode}), program) for mode in ("loose", "tight"))
        for name, value in Comparison(loose, tight).ratio.items():
            ratios[name].append(value)
    return {
        "seed": config.run.seed,
        "args": phases,
        "ratios": ratios,
        "spread": {name: spread(values) for name, values in ratios.items()},
    }


def spread(values: Sequence[float | None]) -> list[float] | None:
    """Return [lowest, highest] of a ratio, None if a phase lacks it."""
    numbers = [value for value in values if value is not None]
    return [min(numbers), max(numbers)] if len(numbers) == len(values) else None
