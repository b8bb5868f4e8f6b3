"""Speeds of straight code: end to end, single shots, steady state, floating point."""

import argparse
import json
import statistics
import sys
from collections.abc import Mapping, Sequence
from math import prod
from pathlib import Path
from typing import NamedTuple

from pyv_npu.benchmarks.core.processes import OURS, Ran, Runner, limit, run, run_cold, runners
from pyv_npu.benchmarks.core.programs import FULL_ROUNDS, SHORT, SINGLE, build, build_for_host
from toolchain.gnu import MARCH

FLOATING, FLOAT_ROUNDS, FLOAT_ISA = "float", 40_000_000, "rv32imafdc"
"""One of these programs, for a hart that has F and D."""
TICK = 1e-4
"""CPU seconds below which nothing can be told: a run with --divide may be too short."""


class Measured(NamedTuple):
    """Median CPU seconds of one program, by runner."""

    instructions: int
    cpu: list[float]

    def row(self, name: str) -> str:
        """Speeds in million instructions per CPU second, then the ratios."""
        speeds = [f"{self.instructions / seconds / 1e6:.0f}" for seconds in self.cpu]
        ratios = [f"{ratio:.2f}" for ratio in self.ratios]
        return f"| {' | '.join([name, f'{self.instructions / 1e9:.2f}e9', *speeds, *ratios])} |"

    @property
    def ratios(self) -> list[float]:
        """Our speed over that of the others."""
        return [other / self.cpu[0] for other in self.cpu[1:]]

    def of(self, ours: int) -> "Measured":
        """One of ours and the others."""
        return Measured(self.instructions, [self.cpu[ours], *self.cpu[OURS:]])


def measure(
    folder: Path, sides: Sequence[Runner], name: str, rounds: int, repeats: int, march: str = MARCH
) -> tuple[Measured, Measured]:
    """A program end to end, and the difference between it and a short run: its steady state.

    One run more, of which nothing is measured, comes first: it fills the cache.
    """
    runs: dict[int, list[list[Ran]]] = {length: [] for length in (rounds, max(rounds // SHORT, 1))}
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
    cache = folder / "cache"
    for length in runs:
        run(commands[length][0], cache)
    for _ in range(repeats):
        for length, row in runs.items():
            pairs = zip(sides, commands[length], strict=True)
            row.append([run_cold(command) if side.cold else run(command, cache) for side, command in pairs])
    long, short = (
        Measured(
            json.loads(row[0][0].output)["instret"],
            [statistics.median(ran.cpu for ran in column) for column in zip(*row, strict=True)],
        )
        for row in runs.values()
    )
    steady = [max(whole - part, TICK) for whole, part in zip(long.cpu, short.cpu, strict=True)]
    return long, Measured(long.instructions - short.instructions, steady)


def table(title: str, sides: Sequence[Runner], results: dict[str, Measured]) -> None:
    """One table with the geometric means of the ratios."""
    names = [side.name for side in sides]
    heads = ["program", "instructions", *(f"{name}, MIPS" for name in names), *(f"ours / {name}" for name in names[1:])]
    print(f"\n{title}\n\n| {' | '.join(heads)} |\n|{'---|' * len(heads)}")
    for name, result in results.items():
        print(result.row(name))
    means = [prod(column) ** (1 / len(results)) for column in zip(*(r.ratios for r in results.values()), strict=True)]
    print(f"| geometric mean |{' |' * (len(names) + 1)} {' | '.join(f'{mean:.2f}' for mean in means)} |", flush=True)


def speeds(folder: Path, given: argparse.Namespace) -> None:
    """Straight code: whole processes, then their steady state."""
    shown, whole, steady = _measured(folder, given, FULL_ROUNDS)
    for ours, title in enumerate(("with native code from the cache", "with an empty cache, all translation included")):
        _of_ours(f"End to end, the whole process from its start, {title}", shown, whole, ours)
    _of_ours("Steady state: a run less one of a tenth of its rounds, on every side", shown, steady)


def single(folder: Path, given: argparse.Namespace) -> None:
    """Single-shot checks: whole processes of about half a second; then their steady state."""
    shown, whole, steady = _measured(folder, given, SINGLE)
    for ours, title in enumerate(("with native code from the cache", "with an empty cache")):
        _of_ours(f"Single-shot checks, {title}", shown, whole, ours)
    _of_ours("Single-shot checks, steady state", shown, steady)


def _measured(
    folder: Path, given: argparse.Namespace, programs: Mapping[str, int]
) -> tuple[list[Runner], dict[str, Measured], dict[str, Measured]]:
    """(the columns of a table: one of ours and the others; programs end to end; their steady state)."""
    sides = [*runners(given.core), *limit()]
    whole, steady = {}, {}
    for name, rounds in programs.items():
        whole[name], steady[name] = measure(folder, sides, name, max(rounds // given.divide, 1), given.repeats)
        print(f"{name}: done", file=sys.stderr, flush=True)
    return [sides[0], *sides[OURS:]], whole, steady


def _of_ours(title: str, shown: Sequence[Runner], results: Mapping[str, Measured], ours: int = 0) -> None:
    table(title, shown, {name: result.of(ours) for name, result in results.items()})


def floating(folder: Path, given: argparse.Namespace) -> None:
    """Floating point in f registers."""
    sides, rounds = runners(given.core, FLOAT_ISA), max(FLOAT_ROUNDS // given.divide, 1)
    whole, steady = measure(folder, sides, FLOATING, rounds, given.repeats, FLOAT_ISA)
    for ours, title in enumerate(("native code from the cache", "an empty cache")):
        table(f"F and D, the whole process, with {title}", [sides[0], *sides[OURS:]], {FLOATING: whole.of(ours)})
    table("F and D, steady state", [sides[0], *sides[OURS:]], {FLOATING: steady.of(0)})
