"""One table of all kinds of code: traps, CSRs, interrupts, atomics, protection, stores beside code, the UART; and what
is straight."""

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from pyv_npu.benchmarks.core.processes import Runner, limit, run, run_first, runners
from pyv_npu.benchmarks.core.programs import SHORT, build, build_for_host

CLIFFS = {
    "empty": 1,
    "traps": 2_000_000, "csr": 5_000_000, "lock": 100_000_000, "fences": 10_000_000, "ticks": 40_000_000,
    "waits": 50_000, "idle": 100_000, "external": 200_000, "yield": 400_000, "user": 300_000, "syscall": 1_000_000,
    "regions": 200_000, "beside": 600_000, "misaligned": 200_000, "patch": 20_000, "generate": 40_000, "large": 4,
    "lines": 20_000,
    "table": 16_000_000, "float": 1_500_000, "sha256": 400_000, "mixed": 10_000,
    "records": 1_000_000, "memory": 4_000, "alu": 20_000_000,
}  # fmt: skip
"""Programs, and rounds for about half a second of QEMU with -icount where these are straight. `empty` is the start
alone."""
BEFORE = ("csr", "user")
"""What has run before first runs: native code without protection, and with it."""
SLIGHT = 0.2
"""CPU seconds of QEMU with -icount below which own work is told from the start by ten times as many rounds, not a
tenth."""
ON_HOST = ("table", "sha256", "mixed", "records", "memory", "alu")
"""Programs that are the same work on the host: `float` would use its FPU."""
NOT_ON_SPIKE = ("ticks", "waits", "idle", "external", "yield", "lines")
"""Programs that need devices of QEMU's `virt` machine."""
PYTHON = {
    "Python": "pass",
    "Python, with what we import of its library": "import argparse, ctypes, enum, json, typing",
}
"""What no program in Python starts without, beside `empty`."""
CLIFF_ISA = "rv32imacu_zicsr_zifencei"
"""Of the hart that runs them: with user mode."""
SPIKE_CLIFFS = "--isa=rv32imac_zicsr_zifencei_zicclsm"
"""The same for Spike, with misaligned accesses."""


def cliffs(folder: Path, given: argparse.Namespace) -> None:
    """CPU seconds of whole processes; and of these the own work of the program, without the start of the process."""
    sides = [side for side in [*runners(given.core), *limit()] if not side.cold]
    sides[0] = sides[0]._replace(
        command=[*sides[0].command, "--set", f"core.isa={CLIFF_ISA}", "--set", "core.misaligned=true"]
    )
    sides = [side._replace(command=[side.command[0], SPIKE_CLIFFS, side.command[-1]]) if side.spike else side
             for side in sides]  # fmt: skip
    sides.insert(1, sides[0]._replace(name="ours, first run", first=True))
    names = [side.name for side in sides]
    compared = [side for side in sides if side.name in ("ours", "QEMU -icount", "host")]
    print(
        "\nCPU seconds of whole processes, native code from the cache; of first runs; and without their start (own)\n"
    )
    titles = ["program", "instructions", *names, "ours / QEMU -icount", "first run / QEMU -icount",
              *(f"own, {side.name}" for side in compared), "own, ours / QEMU -icount", "own, host / ours"]  # fmt: skip
    print(f"| {' | '.join(titles)} |\n|{'---|' * len(titles)}")
    cache = folder / "cache"
    kept = folder / "kept"
    for name in BEFORE:
        run([*sides[0].command, str(build(folder, name, CLIFFS[name] + 1))], kept)
    for name, full in CLIFFS.items():
        rounds = max(full // given.divide, 1)
        instructions, cpu = least(folder, cache, kept, sides, name, rounds, given.repeats)
        own: dict[str, float] = {}
        if name != "empty":
            other = rounds * SHORT if cpu["QEMU -icount"] < SLIGHT else max(rounds // SHORT, 1)
            _, again = least(folder, cache, kept, compared, name, other, given.repeats)
            own = {side: (again[side] - cpu[side]) / (other - rounds) * rounds for side in again}
        row = [name, f"{instructions / 1e6:.1f} M", *(_shown(cpu.get(side), 2) for side in names),
               _ratio(cpu, "ours", "QEMU -icount"), _ratio(cpu, "ours, first run", "QEMU -icount"),
               *(_shown(own.get(side.name), 3) for side in compared),
               _ratio(own, "ours", "QEMU -icount"), _ratio(own, "host", "ours")]  # fmt: skip
        print(f"| {' | '.join(row)} |", flush=True)
        if name == "empty":
            start = cpu
    print(_starts(start, cache, given.repeats))


def _starts(empty: Mapping[str, float], cache: Path, repeats: int) -> str:
    """A table of the start, which is all of `empty`, beside that of any program in Python."""
    seconds = {name: min(run([sys.executable, "-c", code], cache).cpu for _ in range(repeats))
               for name, code in PYTHON.items()}  # fmt: skip
    seconds |= {side: empty[side] for side in ("ours", "QEMU -icount")}
    rows = [f"| {side} | {cpu * 1e3:.0f} | {cpu / empty['QEMU -icount']:.2f} |" for side, cpu in seconds.items()]
    return "\n".join(["\nThe start\n", "| process | CPU ms | / QEMU -icount |", "|---|---|---|", *rows])


def _shown(seconds: float | None, digits: int) -> str:
    """None: the program does not run there. Not above 0: the difference of two runs is less than their noise."""
    return "-" if seconds is None or seconds <= 0 else f"{seconds:.{digits}f}"


def _ratio(seconds: Mapping[str, float], one: str, other: str) -> str:
    """Of two sides; none where one is missing, or too short to be told from the start."""
    if min(seconds.get(one, 0.0), seconds.get(other, 0.0)) <= 0:
        return "-"
    return f"{seconds[one] / seconds[other]:.2f}"


def least(
    folder: Path, cache: Path, kept: Path, sides: Sequence[Runner], name: str, rounds: int, repeats: int
) -> tuple[int, dict[str, float]]:
    """Instructions of a program, and the least CPU seconds of each side that it can run on, by turns; ours is the
    first. `kept`: the folder with what first runs begin with."""
    commands: dict[str, list[str]] = {}
    runs_on = {side.spike for side in sides if not side.compiler and not (side.spike and name in NOT_ON_SPIKE)}
    programs = {spike: str(build(folder, name, rounds, spike=spike)) for spike in runs_on}
    for side in sides:
        if side.compiler:
            if name in ON_HOST:
                commands[side.name] = [str(build_for_host(folder, side.compiler, name, rounds))]
        elif side.spike in programs:
            commands[side.name] = [*side.command, programs[side.spike]]
    instructions = json.loads(run(commands[sides[0].name], cache).output)["instret"]
    first = {side.name for side in sides if side.first}
    turns = [
        {side: (run_first(command, kept) if side in first else run(command, cache)).cpu
         for side, command in commands.items()}
        for _ in range(repeats)
    ]  # fmt: skip
    return instructions, {side: min(turn[side] for turn in turns) for side in commands}
