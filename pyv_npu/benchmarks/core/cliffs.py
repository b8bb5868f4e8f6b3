"""What is not straight code: traps, CSRs, interrupts, atomics, protection, stores beside code, the UART."""

import argparse
import json
import statistics
from collections.abc import Sequence
from pathlib import Path

from pyv_npu.benchmarks.core.processes import Runner, run, runners
from pyv_npu.benchmarks.core.programs import SHORT, build

CLIFFS = {
    "empty": 1,
    "traps": 2_000_000, "csr": 5_000_000, "lock": 100_000_000, "ticks": 40_000_000, "idle": 100_000, "yield": 400_000,
    "user": 300_000, "syscall": 1_000_000, "beside": 600_000, "misaligned": 200_000, "patch": 20_000, "lines": 20_000,
    "table": 16_000_000, "float": 1_500_000, "sha256": 400_000, "mixed": 10_000,
}  # fmt: skip
"""Programs of what is not straight code, sized for about half a second of QEMU with -icount: rounds. `empty` is the
start alone."""
SLIGHT = 0.2
"""CPU seconds of QEMU with -icount below which the marginal cost comes from ten times as many rounds, not a tenth."""
NOT_ON_SPIKE = ("ticks", "idle", "yield", "lines")
"""Programs that need devices of QEMU's `virt` machine."""
CLIFF_ISA = "rv32imacu_zicsr_zifencei"
"""Of the hart that runs them: with user mode."""
SPIKE_CLIFFS = "--isa=rv32imac_zicsr_zifencei_zicclsm"
"""The same for Spike, with misaligned accesses."""


def cliffs(folder: Path, given: argparse.Namespace) -> None:
    """Traps, CSRs, interrupts, atomics, protection, stores beside code, the UART: CPU seconds of whole processes, and
    the ratio of marginal costs, of which starts are no part."""
    sides = [side for side in runners(given.core) if side.name != "ours, cold"]
    sides[0] = sides[0]._replace(
        command=[*sides[0].command, "--set", f"core.isa={CLIFF_ISA}", "--set", "core.misaligned=true"]
    )
    sides = [side._replace(command=[side.command[0], SPIKE_CLIFFS, side.command[-1]]) if side.spike else side
             for side in sides]  # fmt: skip
    names = [side.name for side in sides]
    print("\nWhat is not straight code: CPU seconds of whole processes, native code from the cache\n")
    print(f"| program | instructions | {' | '.join(names)} | ours / QEMU -icount | marginal |")
    print(f"|{'---|' * (len(names) + 4)}")
    cache, peer = folder / "cache", names.index("QEMU -icount")
    for name, full in CLIFFS.items():
        rounds = max(full // given.divide, 1)
        instructions, cpu = medians(folder, cache, sides, name, rounds, given.repeats)
        shown = [f"{seconds:.2f}" for seconds in cpu] + ["-"] * (len(sides) - len(cpu))
        marginal = "-"
        if name != "empty":
            other = rounds * SHORT if cpu[peer] < SLIGHT else max(rounds // SHORT, 1)
            _, again = medians(folder, cache, [sides[0], sides[peer]], name, other, given.repeats)
            ours, theirs = abs(again[0] - cpu[0]), abs(again[1] - cpu[peer])
            marginal = f"{ours / theirs:.2f}" if theirs else "-"
        row = [name, f"{instructions / 1e6:.1f} M", *shown, f"{cpu[0] / cpu[peer]:.2f}", marginal]
        print(f"| {' | '.join(row)} |", flush=True)


def medians(
    folder: Path, cache: Path, sides: Sequence[Runner], name: str, rounds: int, repeats: int
) -> tuple[int, list[float]]:
    """Instructions of a program, and the median CPU seconds of each side that it can run on; ours is the first."""
    commands = [
        [*side.command, str(build(folder, name, rounds, spike=side.spike))]
        for side in sides
        if not side.spike or name not in NOT_ON_SPIKE
    ]
    instructions = json.loads(run(commands[0], cache).output)["instret"]
    rows = [[run(command, cache).cpu for command in commands] for _ in range(repeats)]
    return instructions, [statistics.median(column) for column in zip(*rows, strict=True)]
