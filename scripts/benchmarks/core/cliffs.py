"""Table of kinds of code: traps, CSRs, interrupts, atomics, PMP, stores near code, the UART, and straight-line code."""

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.core.processes import Side, host_sides, run, run_first, sides
from benchmarks.core.programs import SHORT, build, build_for_host

CLIFFS = {
    "empty": 1,
    "traps": 2_000_000, "csr": 5_000_000, "lock": 100_000_000, "fences": 10_000_000, "ticks": 40_000_000,
    "waits": 50_000, "idle": 100_000, "external": 200_000, "yield": 400_000, "user": 300_000, "syscall": 1_000_000,
    "regions": 200_000, "beside": 600_000, "misaligned": 200_000, "patch": 20_000, "generate": 40_000, "large": 4,
    "lines": 20_000,
    "table": 16_000_000, "float": 1_500_000, "sha256": 400_000, "mixed": 10_000,
    "records": 1_000_000, "memory": 4_000, "alu": 20_000_000,
}  # fmt: skip
"""Program -> rounds. Straight-line programs take about half a second of QEMU with -icount; `empty`: start-up."""
BEFORE = ("csr", "user")
"""Programs that run before first runs and fill the cache: native code without PMP and with it."""
SHORT_RUN = 0.2
"""CPU seconds of QEMU with -icount. Below, a run of ten times as many rounds separates the work of a program from
start-up, else a run of a tenth."""
ON_HOST = ("table", "sha256", "mixed", "records", "memory", "alu")
"""Programs that do the same work on the host. `float` would use the FPU of the host."""
NOT_ON_SPIKE = ("ticks", "waits", "idle", "external", "yield", "lines")
"""Programs that need devices of QEMU's `virt` machine."""
PYTHON = {
    "Python": "pass",
    "Python, with what we import of its library": "import argparse, ctypes, enum, json, typing",
}
"""Python programs whose start-up is compared with that of `empty`."""
CODE_CACHE, FIRST_CACHE = "cache", "first"
"""Cache folders of native code: of all runs, and of the runs before first runs."""
CLIFF_ISA = "rv32imacu_zicsr_zifencei"
"""ISA of the hart for these programs, with user mode."""
SPIKE_CLIFFS = "--isa=rv32imac_zicsr_zifencei_zicclsm"
"""The same for Spike, with misaligned accesses."""


def cliffs(folder: Path, args: argparse.Namespace) -> None:
    """Measure CPU seconds of whole processes, and of the program alone, without start-up."""
    columns = [side for side in [*sides(args.core), *host_sides()] if not side.cold]
    columns[0] = columns[0]._replace(
        command=[*columns[0].command, "--set", f"core.isa={CLIFF_ISA}", "--set", "core.misaligned=true"]
    )
    columns = [side._replace(command=[side.command[0], SPIKE_CLIFFS, side.command[-1]]) if side.spike else side
               for side in columns]  # fmt: skip
    columns.insert(1, columns[0]._replace(name="ours, first run", first=True))
    names = [side.name for side in columns]
    compared = [side for side in columns if side.name in ("ours", "QEMU -icount", "host")]
    print(
        "\nCPU seconds of whole processes, native code from the cache; of first runs; and without their start (own)\n"
    )
    titles = ["program", "instructions", *names, "ours / QEMU -icount", "first run / QEMU -icount",
              *(f"own, {side.name}" for side in compared), "own, ours / QEMU -icount", "own, host / ours"]  # fmt: skip
    print(f"| {' | '.join(titles)} |\n|{'---|' * len(titles)}")
    for name in BEFORE:
        run([*columns[0].command, str(build(folder, name, CLIFFS[name] + 1))], folder / FIRST_CACHE)
    for name, full in CLIFFS.items():
        rounds = max(full // args.divide, 1)
        instructions, cpu = measure_least(folder, columns, name, rounds, args.repeats)
        work: dict[str, float] = {}
        if name != "empty":
            other = rounds * SHORT if cpu["QEMU -icount"] < SHORT_RUN else max(rounds // SHORT, 1)
            _, other_cpu = measure_least(folder, compared, name, other, args.repeats)
            work = {side: (other_cpu[side] - cpu[side]) / (other - rounds) * rounds for side in other_cpu}
        row = [name, f"{instructions / 1e6:.1f} M", *(_cell(cpu.get(side), 2) for side in names),
               _ratio(cpu, "ours", "QEMU -icount"), _ratio(cpu, "ours, first run", "QEMU -icount"),
               *(_cell(work.get(side.name), 3) for side in compared),
               _ratio(work, "ours", "QEMU -icount"), _ratio(work, "host", "ours")]  # fmt: skip
        print(f"| {' | '.join(row)} |", flush=True)
        if name == "empty":
            start = cpu
    print(_start_table(start, folder / CODE_CACHE, args.repeats))


def _start_table(empty: Mapping[str, float], code_cache: Path, repeats: int) -> str:
    """Compare start-up, measured by `empty`, with that of Python programs."""
    seconds = {name: min(run([sys.executable, "-c", code], code_cache).cpu for _ in range(repeats))
               for name, code in PYTHON.items()}  # fmt: skip
    seconds |= {side: empty[side] for side in ("ours", "QEMU -icount")}
    rows = [f"| {side} | {cpu * 1e3:.0f} | {cpu / empty['QEMU -icount']:.2f} |" for side, cpu in seconds.items()]
    return "\n".join(["\nThe start\n", "| process | CPU ms | / QEMU -icount |", "|---|---|---|", *rows])


def _cell(seconds: float | None, digits: int) -> str:
    """Format a time; "-" if it is None (unsupported program) or at most 0 (difference of two runs below noise)."""
    return "-" if seconds is None or seconds <= 0 else f"{seconds:.{digits}f}"


def _ratio(seconds: Mapping[str, float], side: str, base: str) -> str:
    """Format the ratio of two sides; "-" if a side is missing or its time is below noise."""
    if min(seconds.get(side, 0.0), seconds.get(base, 0.0)) <= 0:
        return "-"
    return f"{seconds[side] / seconds[base]:.2f}"


def measure_least(
    folder: Path, columns: Sequence[Side], name: str, rounds: int, repeats: int
) -> tuple[int, dict[str, float]]:
    """Return the instructions of a program and its minimum CPU seconds on each supported side. Sides run alternately.

    The first side is ours.
    """
    commands: dict[str, list[str]] = {}
    spikes = {side.spike for side in columns if not side.compiler and not (side.spike and name in NOT_ON_SPIKE)}
    programs = {spike: str(build(folder, name, rounds, spike=spike)) for spike in spikes}
    for side in columns:
        if side.compiler:
            if name in ON_HOST:
                commands[side.name] = [str(build_for_host(folder, side.compiler, name, rounds))]
        elif side.spike in programs:
            commands[side.name] = [*side.command, programs[side.spike]]
    code_cache, first_cache = folder / CODE_CACHE, folder / FIRST_CACHE
    instructions = json.loads(run(commands[columns[0].name], code_cache).output)["instret"]
    first = {side.name for side in columns if side.first}
    turns = [
        {side: (run_first(command, first_cache) if side in first else run(command, code_cache)).cpu
         for side, command in commands.items()}
        for _ in range(repeats)
    ]  # fmt: skip
    return instructions, {side: min(turn[side] for turn in turns) for side in commands}
