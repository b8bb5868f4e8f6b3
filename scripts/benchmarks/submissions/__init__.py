"""CPU time and memory of submissions, of tile commands in a list and of a fault campaign, with their goals.

Each row is measured in a separate process after a short warm-up run of the same kind. `--against CHECKOUT` measures
another checkout alternately. `--divide 1` runs the full amount of work, 90 seconds.
"""

import argparse
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from benchmarks.host import ENV, ROOT
from benchmarks.runner import positive
from pyv_npu.errors import UsageError

WORKER = Path(__file__).with_name("worker.py")


class Row(NamedTuple):
    """Kind of work: title, full amount, and the goal for this amount."""

    title: str
    amount: int
    goal: str


ROWS = {
    "values": Row("submissions of submit_latency, with values", 100_000, "4 s"),
    "timing": Row("submissions without values", 100_000, "0.6 s"),
    "spilled": Row("a million submissions without values", 1_000_000, "5 s, 200 MiB"),
    "tile-values": Row("tile commands in a list, with values", 65_536, "25 us each"),
    "tile-timing": Row("tile commands in a list", 65_536, "3 us each"),
    "window-64": Row("tile commands, scheduler.window 64", 65_536, ""),
    "window-4096": Row("tile commands, scheduler.window 4,096", 65_536, "2 times window 64"),
    "campaign": Row("faults on submit_latency, each in both modes: 2,000 runs", 1_000, "20 s"),
    "soak": Row("submissions of a soak, with values", 400_000, "growth of 5 MiB"),
}


class Figures(NamedTuple):
    """Results of a worker: units of work, CPU seconds, MiB."""

    amount: int
    cpu: float
    growth: float
    peak: float

    @property
    def cost(self) -> float:
        """CPU microseconds per unit of work."""
        return 1e6 * self.cpu / self.amount


def measure(checkout: Path, name: str, count: int) -> Figures:
    """Run a worker with the product of a checkout."""
    process = subprocess.run(
        [sys.executable, str(WORKER), name, str(count)],
        stdout=subprocess.PIPE, cwd=checkout, env=ENV | {"PYTHONPATH": str(checkout)}, check=False,
    )  # fmt: skip
    if process.returncode:
        raise UsageError(f"{checkout}: {WORKER.name} {name} {count} ended with {process.returncode}")
    return Figures(**json.loads(process.stdout))


def cells(row: Row, figures: Figures) -> str:
    """Format microseconds per unit, seconds of the full amount, peak memory and memory growth."""
    growth = f"{figures.growth:+.1f}" if figures.growth else ""
    return f"{figures.cost:.1f} | {figures.cost * row.amount / 1e6:.1f} | {figures.peak:.0f} | {growth}"


def print_table(names: Sequence[str], checkouts: Sequence[Path], divisor: int, repeats: int) -> None:
    """Measure rows in the checkouts alternately, and print the minimum of each."""
    heads = "us each | s for all | peak MiB | growth MiB"
    sides = " | ".join(f"{heads} " for _ in checkouts)
    print(f"| work | all | measured | {sides}| {'ratio | ' * (len(checkouts) > 1)}goal |")
    print("|---" * (4 + 4 * len(checkouts) + (len(checkouts) > 1)) + "|")
    for name in names:
        row = ROWS[name]
        count = max(1, row.amount // divisor)
        turns = [[measure(checkout, name, count) for checkout in checkouts] for _ in range(repeats)]
        best = [min(side, key=lambda figures: figures.cost) for side in zip(*turns, strict=True)]
        ratio = f"{best[0].cost / best[1].cost:.2f} | " if len(best) > 1 else ""
        sides = " | ".join(cells(row, figures) for figures in best)
        print(f"| {row.title} | {row.amount:,} | {best[-1].amount:,} | {sides} | {ratio}{row.goal} |", flush=True)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--divide", type=positive, default=10, metavar="N", help="measure one N-th (%(default)s)")
    parser.add_argument("--repeats", type=positive, default=1, help="of every row; the least CPU time is printed")
    parser.add_argument("--only", choices=ROWS, nargs="+", metavar="ROW", help=f"some of {', '.join(ROWS)}")
    parser.add_argument("--against", type=Path, metavar="CHECKOUT", help="compare with another checkout")


def run(args: argparse.Namespace) -> None:
    """Print the table."""
    checkouts = [ROOT]
    if args.against:
        checkout = args.against.resolve()
        if not (checkout / "pyv_npu/platform.py").is_file():
            remedy = f"make one by `git worktree add --detach {checkout} COMMIT`"
            raise UsageError(f"{checkout}: no checkout of this project: {remedy}")
        checkouts = [checkout, ROOT]
        print(f"first {checkout}, then this checkout\n")
    print_table(args.only or list(ROWS), checkouts, args.divide, args.repeats)
