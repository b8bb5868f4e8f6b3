"""Speeds of straight-line code: end to end, single shots, steady state, floating point."""

import argparse
import json
import statistics
import sys
from collections.abc import Mapping, Sequence
from math import prod
from pathlib import Path
from typing import NamedTuple

from benchmarks.core.processes import OUR_SIDES, ProcessRun, Side, host_sides, run, run_cold, sides
from benchmarks.core.programs import FULL_ROUNDS, SHORT, SINGLE, build, build_for_host
from toolchain.gnu import MARCH

FLOATING = {
    "float": 40_000_000, "exact": 20_000_000, "nan": 20_000_000, "subnormal": 20_000_000, "static_mode": 20_000_000,
    "dynamic_mode": 20_000_000, "clear_flags": 20_000_000,
}  # fmt: skip
FLOAT_ISA = "rv32imafdc"
"""ISA of a hart with F and D."""
TICK = 1e-4
"""Lower bound of a difference of CPU seconds: runs with --divide may be too short to measure it."""


class Speeds(NamedTuple):
    """Median CPU seconds of a program on each side."""

    instructions: int
    cpu: list[float]

    def row(self, name: str) -> str:
        """Return a table row: million instructions per CPU second on each side, then the ratios."""
        speeds = [f"{self.instructions / seconds / 1e6:.0f}" for seconds in self.cpu]
        ratios = [f"{ratio:.2f}" for ratio in self.ratios]
        return f"| {' | '.join([name, f'{self.instructions / 1e9:.2f}e9', *speeds, *ratios])} |"

    @property
    def ratios(self) -> list[float]:
        """Speed of our first side over that of the others."""
        return [other / self.cpu[0] for other in self.cpu[1:]]

    def with_ours(self, index: int) -> "Speeds":
        """Return one of our sides and all other sides."""
        return Speeds(self.instructions, [self.cpu[index], *self.cpu[OUR_SIDES:]])


def measure(
    folder: Path, sides: Sequence[Side], name: str, rounds: int, repeats: int, march: str = MARCH
) -> tuple[Speeds, Speeds]:
    """Measure a program end to end, and its steady state: the difference to a short run.

    A first, unmeasured run fills the cache.
    """
    runs: dict[int, list[list[ProcessRun]]] = {length: [] for length in (rounds, max(rounds // SHORT, 1))}
    commands = {
        length: [
            [*side.command, str(
                build_for_host(folder, side.compiler, name, length) if side.compiler
                else build(folder, name, length, spike=side.spike, march=march)
            )]
            for side in sides
        ]
        for length in runs
    }  # fmt: skip
    code_cache = folder / "cache"
    for length in runs:
        run(commands[length][0], code_cache)
    for _ in range(repeats):
        for length, row in runs.items():
            pairs = zip(sides, commands[length], strict=True)
            row.append([run_cold(command) if side.cold else run(command, code_cache) for side, command in pairs])
    long, short = (
        Speeds(
            json.loads(row[0][0].output)["instret"],
            [statistics.median(run.cpu for run in column) for column in zip(*row, strict=True)],
        )
        for row in runs.values()
    )
    steady = [max(whole - part, TICK) for whole, part in zip(long.cpu, short.cpu, strict=True)]
    return long, Speeds(long.instructions - short.instructions, steady)


def print_table(title: str, sides: Sequence[Side], results: Mapping[str, Speeds]) -> None:
    """Print a table with the geometric means of the ratios."""
    names = [side.name for side in sides]
    heads = ["program", "instructions", *(f"{name}, MIPS" for name in names), *(f"ours / {name}" for name in names[1:])]
    print(f"\n{title}\n\n| {' | '.join(heads)} |\n|{'---|' * len(heads)}")
    for name, result in results.items():
        print(result.row(name))
    ratios = zip(*(result.ratios for result in results.values()), strict=True)
    means = [prod(column) ** (1 / len(results)) for column in ratios]
    print(f"| geometric mean |{' |' * (len(names) + 1)} {' | '.join(f'{mean:.2f}' for mean in means)} |", flush=True)


def speeds(folder: Path, args: argparse.Namespace) -> None:
    """Measure straight-line code: whole processes, then their steady state."""
    columns, whole, steady = _measure_all(folder, args, FULL_ROUNDS)
    for index, title in enumerate(("with native code from the cache", "with an empty cache, all translation included")):
        _print_ours(f"End to end, the whole process from its start, {title}", columns, whole, index)
    _print_ours("Steady state: a run less one of a tenth of its rounds, on every side", columns, steady)


def single(folder: Path, args: argparse.Namespace) -> None:
    """Measure single-shot checks: whole processes of about half a second; then their steady state."""
    columns, whole, steady = _measure_all(folder, args, SINGLE)
    for index, title in enumerate(("with native code from the cache", "with an empty cache")):
        _print_ours(f"Single-shot checks, {title}", columns, whole, index)
    _print_ours("Single-shot checks, steady state", columns, steady)


def floating(folder: Path, args: argparse.Namespace) -> None:
    """Measure floating point in f registers."""
    columns, whole, steady = _measure_all(folder, args, FLOATING, FLOAT_ISA)
    for index, title in enumerate(("native code from the cache", "an empty cache")):
        _print_ours(f"F and D, the whole process, with {title}", columns, whole, index)
    _print_ours("F and D, steady state", columns, steady)


def _measure_all(
    folder: Path, args: argparse.Namespace, programs: Mapping[str, int], march: str = MARCH
) -> tuple[list[Side], dict[str, Speeds], dict[str, Speeds]]:
    """Return (sides in table columns, times end to end, times in steady state); ours has one column."""
    compared = [*sides(args.core, march), *(host_sides() if march == MARCH else [])]
    whole, steady = {}, {}
    for name, rounds in programs.items():
        whole[name], steady[name] = measure(folder, compared, name, max(rounds // args.divide, 1), args.repeats, march)
        print(f"{name}: done", file=sys.stderr, flush=True)
    return [compared[0], *compared[OUR_SIDES:]], whole, steady


def _print_ours(title: str, columns: Sequence[Side], results: Mapping[str, Speeds], index: int = 0) -> None:
    print_table(title, columns, {name: result.with_ours(index) for name, result in results.items()})
