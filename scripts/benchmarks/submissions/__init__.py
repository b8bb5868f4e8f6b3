"""CPU time of an access to a device and of a submission, on the engines `fast` and `reference`.

Pieces of runs that have warmed up are measured in this process; the engines take turns, and medians are printed. The
time of a fixed Python loop between the pieces scales the figures of `fast` to our host. Submissions are those of
submit_latency with the latency of each attributed. Accesses need riscv64-unknown-elf-gcc.

--against CHECKOUT: bytecodes of Python for a submission in the core's part (core, bus and clock, without devices and
latency probe), CPU time of all and of the core's part, beside those of another checkout, by turns.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.host import CALIBRATION, ENV, ROOT, calibrate
from benchmarks.runner import positive
from pyv_npu.boot import find_program
from pyv_npu.config import load
from pyv_npu.errors import UsageError
from pyv_npu.platform import Platform
from toolchain.gnu import build_program, firmware_folder

ENGINES = ("fast", "reference")
WARM_UP = 2_000_000
"""Cycles: by then everything is translated."""
ENDLESS = 1 << 30
"""Rounds, or commands: no run comes to its end."""
PHASES = {1: "burst", 2: "paced", 4: "interrupts", 8: "prebuilt"}
HUNDRED_THOUSAND = 100_000
CORE_SHARE = Path(__file__).with_name("core_share.py")
PIECES = 5
"""Pieces of a run of `CORE_SHARE`."""


class Piece(NamedTuple):
    """A part of a run: CPU seconds, instructions, accesses or submissions."""

    cpu: float
    instructions: int
    operations: int

    @property
    def cost(self) -> float:
        """CPU microseconds of an operation."""
        return 1e6 * self.cpu / self.operations


class Machine:
    """A program on an engine, run piece by piece."""

    def __init__(
        self, engine: str, program: str | Path, arguments: dict[str, int], mode: str, preset: str,
        count: Callable[[Platform], int],
    ) -> None:  # fmt: skip
        self._platform = Platform(load([], preset, {"core.engine": engine, "npu.mode": mode}).config)
        self._platform.load(program, arguments)
        self._platform.run(until=WARM_UP)
        self._count = count

    def piece(self, cycles: int) -> Piece:
        """Runs so many cycles on."""
        platform = self._platform
        instructions, count, start = platform.hart.instret, self._count(platform), time.process_time()
        platform.run(until=platform.hart.cycle + cycles)
        cpu = time.process_time() - start
        return Piece(cpu, platform.hart.instret - instructions, self._count(platform) - count)


def measure(make: Callable[[str], Machine], cycles: int, repeats: int) -> tuple[dict[str, Piece], float]:
    """Returns the median piece of each engine, and the speed of the host over that of ours."""
    machines = {engine: make(engine) for engine in ENGINES}
    pieces: dict[str, list[Piece]] = {engine: [] for engine in ENGINES}
    loops = []
    for _ in range(repeats):
        for engine, machine in machines.items():
            pieces[engine].append(machine.piece(cycles))
        loops.append(calibrate())
    medians = {engine: sorted(row, key=lambda piece: piece.cost)[repeats // 2] for engine, row in pieces.items()}
    return medians, CALIBRATION / statistics.median(loops)


def print_row(title: str, pieces: dict[str, Piece], speed: float, cells: str = "") -> None:
    """Prints the costs on both engines, and further cells."""
    fast, reference = (pieces[engine].cost for engine in ENGINES)
    ratio = reference / fast
    print(f"| {title} | {fast:.3f} | {fast * speed:.3f} | {reference:.3f} | {ratio:.1f} |{cells}", flush=True)


def instructions_of_round(elf: Path) -> int:
    """Counts the instructions of a round, as the difference between two runs."""
    counts = []
    for rounds in (1000, 2000):
        platform = Platform(load([], "pyv").config)
        platform.load(elf, {"rounds": rounds})
        platform.run()
        counts.append(platform.hart.instret)
    return round((counts[1] - counts[0]) / 1000)


def print_accesses(folder: Path, preset: str, repeats: int) -> None:
    """Measures writes and reads of a scratch register, and reads of a status register that does not change."""
    print(f"\npreset {preset}: microseconds of CPU for an access and its share of the loop\n")
    print("| program | fast | on our host | reference | ratio |\n|---|---|---|---|---|")
    for name, accesses in (("mmio", 2), ("poll", 1)):
        elf = build_program(folder / f"{name}.elf", [firmware_folder() / "bench" / f"bench_{name}.c"])
        instructions = instructions_of_round(elf)

        def make(engine: str, elf: Path = elf, accesses: int = accesses, instructions: int = instructions) -> Machine:
            return Machine(
                engine, elf, {"rounds": ENDLESS}, "tight", preset,
                lambda platform: platform.hart.instret * accesses // instructions,
            )  # fmt: skip

        pieces, speed = measure(make, 8_000_000, repeats)
        print_row(f"bench_{name}", pieces, speed)


def print_submissions(phases: Sequence[int], preset: str, repeats: int) -> None:
    """Measures submissions by mode and phase of submit_latency."""
    print(f"\npreset {preset}: microseconds of CPU for a submission, latencies attributed\n")
    print("| mode, phase | fast | on our host | reference | ratio | CPU s for 100,000 | MIPS |")
    print("|---|---|---|---|---|---|---|")
    for mode in ("loose", "tight"):
        total = 0.0
        for phase in phases:

            def make(engine: str, mode: str = mode, phase: int = phase) -> Machine:
                return Machine(
                    engine, find_program("submit_latency"), {"n": ENDLESS, "phases": phase}, mode, preset,
                    lambda platform: platform.npu.counters.completed,
                )  # fmt: skip

            pieces, speed = measure(make, 250_000, repeats)
            fast = pieces["fast"]
            seconds = HUNDRED_THOUSAND * fast.cpu / fast.operations
            total += seconds
            mips = fast.instructions / fast.cpu / 1e6
            print_row(f"{mode}, {PHASES[phase]}", pieces, speed, f" {seconds:.1f} | {mips:.2f} |")
        print(f"| {mode}, mean of the phases | | | | | {total / len(phases):.1f} | |", flush=True)


def core_share(checkout: Path, mode: str, phase: int) -> dict[str, Any]:
    """Runs `CORE_SHARE` in a checkout."""
    command = [sys.executable, str(CORE_SHARE), str(checkout), mode, str(phase), str(PIECES)]
    process = subprocess.run(
        command, stdout=subprocess.PIPE, cwd=checkout, env=ENV | {"PYTHONPATH": str(checkout)}, check=False
    )
    if process.returncode:
        raise UsageError(f"{checkout}: {CORE_SHARE.name} ended with {process.returncode}")
    figures: dict[str, Any] = json.loads(process.stdout)
    return figures


def print_comparison(checkout: Path, phases: Sequence[int], repeats: int) -> None:
    """Compares submissions in another checkout with those in this one."""
    if not (checkout / "pyv_npu/platform.py").is_file():
        remedy = f"make one by `git worktree add --detach {checkout} COMMIT`"
        raise UsageError(f"{checkout}: no checkout of this project: {remedy}")
    print(f"then: {checkout}; bytecodes of Python in the core's part, CPU microseconds of all and of the core's part\n")
    print("| mode, phase | bytecodes then | now | ratio | us then | now | ratio | core us then | now | ratio |")
    print("|---|---|---|---|---|---|---|---|---|---|")
    for mode in ("loose", "tight"):
        for phase in phases:
            turns = [[core_share(root, mode, phase) for root in (checkout.resolve(), ROOT)] for _ in range(repeats)]
            cells = []
            for figure, digits in (("bytecodes", 0), ("cpu", 0), ("core", 1)):
                then, now = (min(turn[figure] for turn in side) for side in zip(*turns, strict=True))
                cells.append(f"{then:.{digits}f} | {now:.{digits}f} | {then / now:.2f}")
            print(f"| {mode}, {PHASES[phase]} | {' | '.join(cells)} |", flush=True)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--repeats", type=positive, default=5, help="of every measurement; medians are printed")
    parser.add_argument("--preset", default="soc-axi", help="the timing preset")
    parser.add_argument("--phases", type=int, nargs="+", choices=PHASES, default=list(PHASES), help="of submit_latency")
    parser.add_argument("--only", choices=("accesses", "submissions"), help="one of the two tables")
    parser.add_argument("--against", type=Path, metavar="CHECKOUT", help="compare with another checkout")


def run(args: argparse.Namespace) -> None:
    """Prints the tables that are asked for."""
    if args.against:
        print_comparison(args.against, args.phases, args.repeats)
        return
    print(f'"on our host": scaled to a host whose fixed loop takes {CALIBRATION} s')
    if args.only != "submissions":
        with tempfile.TemporaryDirectory() as folder:
            print_accesses(Path(folder), args.preset, args.repeats)
    if args.only != "accesses":
        print_submissions(args.phases, args.preset, args.repeats)
